"""Time: when a step is due, and a plant that keeps its sampling period.

Deadlines are absolute, so that delays do not add up. The other modules of the rig read the clock here.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np


def monotonic() -> float:
    """Seconds of a clock that never jumps."""
    return time.monotonic()


def sleep(seconds: float) -> None:
    time.sleep(max(0.0, seconds))


def sleep_until(due: float) -> None:
    sleep(due - monotonic())


class Paced:
    """A plant made of a device's functions: make it ready, send an action, read the sensors.

    It samples at absolute times. To stop it, the sensors are not read, because they may be what failed.
    """

    applied: np.ndarray | None = None
    """The last action."""
    rest: np.ndarray | None = None
    """The action that stops the device. Zero if no rig has set it."""

    def __init__(
        self, ready: Callable[[], object], send: Callable[[np.ndarray], object], read: Callable[[], Any], dt: float
    ) -> None:
        self.ready, self.send, self.read, self.dt = ready, send, read, dt

    def rest_at(self, action: np.ndarray) -> None:
        self.rest = action.copy()

    def reset(self) -> Any:
        self.ready()
        self.due = monotonic()
        return self.read()

    def step(self, action: np.ndarray) -> Any:
        self.applied = action.copy()  # a driver may scale what it is given
        self.send(action)
        self.due += self.dt
        sleep_until(self.due)
        return self.read()

    def stop(self) -> None:
        if self.rest is not None:
            self.send(self.rest.copy())
        elif self.applied is not None:
            self.send(np.zeros_like(self.applied))
