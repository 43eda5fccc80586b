"""The plant for a `Rig`: it asks the other side, and sorts out what comes back."""

import time
from dataclasses import dataclass

import numpy as np

from bayespilco.deploy.link.messages import Message, decode, encode
from bayespilco.deploy.link.transports import Transport

HOMING = 5.0
"""Seconds in which a plant must answer the request to start an episode. It is repeated until then."""
AGAIN = 0.2
"""Seconds between two requests."""


@dataclass
class Counts:
    """What became of the lines that came in."""

    samples: int = 0
    missing: int = 0
    duplicates_or_late: int = 0
    damaged: int = 0


class RemotePlant:
    """A plant with a clock of its own, behind a transport.

    Args:
        transport: `Udp` or `Serial`.
        dt: The sampling period of the plant.
        wait: How long to wait for a sample beyond its sampling period, in seconds. Then it is missing. By default
            0.4 sampling periods, which a rig in real time tolerates.
    """

    def __init__(self, transport: Transport, dt: float, wait: float | None = None) -> None:
        self.transport, self.dt = transport, dt
        self.wait = 0.4 * dt if wait is None else wait
        self.episode, self.expected = int(time.time()) % 100_000, 0
        self.rest: np.ndarray | None = None
        self.actions = 0
        self.counts = Counts()

    def rest_at(self, action: np.ndarray) -> None:
        self.rest = action.copy()

    def reset(self) -> np.ndarray:
        """Begin an episode: the other side homes the plant, however long that takes, and sends sample 0."""
        self.episode, self.expected = self.episode + 1, 0
        end = time.monotonic() + HOMING
        while time.monotonic() < end:
            self.transport.write(encode(Message("h", self.episode)))
            sample = self._sample(time.monotonic() + AGAIN)
            if sample is not None:
                return sample
        raise TimeoutError(f"the plant did not answer within {HOMING:g} s")

    def step(self, action: np.ndarray) -> np.ndarray | None:
        """Send an action, and wait for the next sample. None if it does not come."""
        self._send(action)
        sample = self._sample(time.monotonic() + self.dt + self.wait)
        if sample is None:
            self.counts.missing += 1
            self.expected += 1
        return sample

    def stop(self) -> None:
        """Send the rest action, thrice, since a packet may be lost. The other side stops by itself, too."""
        rest = np.zeros(self.actions) if self.rest is None else self.rest
        for _ in range(3):
            self._send(rest)

    def close(self) -> None:
        self.transport.close()

    def _send(self, action: np.ndarray) -> None:
        self.actions = len(action)
        self.transport.write(encode(Message("a", self.episode, self.expected - 1, tuple(action.tolist()))))

    def _sample(self, until: float) -> np.ndarray | None:
        """The sample that is due, or a later one, if it comes in time. Others are dropped."""
        while (line := self.transport.read(until - time.monotonic())) is not None:
            message = decode(line)
            if message is None or message.kind != "z":
                self.counts.damaged += 1
            elif message.episode != self.episode or message.number < self.expected:
                self.counts.duplicates_or_late += 1
            else:
                self.counts.samples += 1
                self.expected = message.number + 1
                return np.array(message.values)
        return None
