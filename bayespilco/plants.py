"""A real plant: what it has to offer, and a loop that keeps its sampling period, records it, and ends safely.

    rig = Rig(plant, low=[-0.5, -inf], high=[0.5, inf])
    recording = rig.run(controller, dt=0.05, steps=100)

However an episode ends, after its last step, at a limit, late, or because something broke or the user pressed Ctrl-C,
zero is sent to the actuators, and what was recorded until then is kept. Like `bayespilco.controller`, this needs NumPy
only. To learn on a plant, make its rig the `plant` of a `Task`.
"""

import contextlib
import queue
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from bayespilco import logs

PATIENCE = 1.0
"""Seconds that a plant is given to take the zero action at the end."""


@runtime_checkable
class Plant(Protocol):
    """What is to be controlled. Observations have an entry per state, NaN for a sample that is missing.

    Two more methods are used if they are there: `stop()`, in place of a step with zero action at the end; and
    `seed(number)` before each `reset`, for a simulation that draws its own chance.
    """

    def reset(self) -> Any:
        """Bring the plant to its start, however long that takes, and return the first observation."""

    def step(self, action: np.ndarray) -> Any:
        """Apply an action at once, and return what the sensors say one sampling period later.

        To wait for that is up to the plant (see `Paced`). One that returns at once, a simulation say, is waited for.
        """


class Paced:
    """A plant made of a device's functions: to make it ready, to send an action, and to read the sensors.

    It samples at absolute times, so that delays do not add up.
    """

    def __init__(
        self, ready: Callable[[], object], send: Callable[[np.ndarray], object], read: Callable[[], Any], dt: float
    ) -> None:
        self.ready, self.send, self.read, self.dt = ready, send, read, dt

    def reset(self) -> Any:
        self.ready()
        self.due = time.monotonic()
        return self.read()

    def step(self, action: np.ndarray) -> Any:
        self.send(action)
        self.due += self.dt
        sleep_until(self.due)
        return self.read()


@runtime_checkable
class Agent(Protocol):
    """What controls, such as a `Controller`."""

    limits: np.ndarray

    def reset(self) -> None: ...
    def act(self, observation: Any) -> np.ndarray: ...


@dataclass
class RandomAgent:
    """Uniform actions within the limits."""

    limits: np.ndarray
    random: np.random.Generator

    def reset(self) -> None:
        pass

    def act(self, observation: Any) -> np.ndarray:
        return self.limits * self.random.uniform(-1, 1, len(self.limits))


Ended = Literal["finished", "limit", "blind", "late", "failed", "interrupted"]
"""As planned; out of limits; without a sample for too long; late; by an error; by Ctrl-C."""


@dataclass
class Recording:
    """What happened in one episode. If it ended in the middle of a step, that step's action is the last entry."""

    times: list[float] = field(default_factory=list)
    """Seconds from the first observation to each."""
    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)
    """The truth, if the plant has an attribute `state`: only a simulation does."""
    ended: Ended = "finished"
    reason: str = ""
    """The same in words."""


class Stop(Exception):
    """Ends an episode, for a reason. A plant may raise it too."""

    def __init__(self, ended: Ended, reason: str) -> None:
        super().__init__(reason)
        self.ended: Ended = ended


@dataclass(frozen=True, eq=False)
class Rig:
    """A plant, and how to run it."""

    plant: Plant
    low: Sequence[float] | np.ndarray | None = None
    """Observations below this end the episode; -inf where there is no limit."""
    high: Sequence[float] | np.ndarray | None = None
    tolerance: float = 0.5
    """How late an observation may come, in sampling periods."""
    blind: int = 10
    """After so many samples in a row with nothing in them the episode ends."""
    realtime: bool = True
    """Whether a sampling period takes its time. A simulation need not."""
    log: Path | str | None = None
    """A file to add every episode to, as `--from-data` reads it."""

    def run(
        self,
        agent: Agent,
        *,
        dt: float,
        steps: int,
        states: Sequence[str] = (),
        actions: Sequence[str] = (),
        seed: int | None = None,
    ) -> Recording:
        """One episode with the agent in charge, and how it went.

        Args:
            dt: Sampling period in seconds.
            states, actions: What they are called, in the log and in reasons.
            seed: For a plant that draws its own chance.
        """
        recording = Recording()
        if self.log is not None and states and actions:
            logs.next_episode(self.log, states, actions)  # better refused now than after the episode
        try:
            self._episode(recording, agent, dt, steps, states, seed)
        except Stop as stop:
            recording.ended, recording.reason = stop.ended, str(stop)
        except Exception as error:
            recording.ended, recording.reason = "failed", f"{type(error).__name__}: {error}"
        except BaseException:
            recording.ended, recording.reason = "interrupted", "interrupted"
            raise
        finally:
            self._stop(np.zeros(len(agent.limits)))
            if self.log is not None and len(recording.observations) > 1:  # one sample is nothing to learn from
                states = states or [f"state {i}" for i in range(len(recording.observations[0]))]
                actions = actions or [f"action {i}" for i in range(len(agent.limits))]
                try:
                    logs.append(self.log, states, actions, recording.times, recording.observations, recording.actions)
                except (OSError, ValueError) as error:  # the recording is more than its log
                    warnings.warn(f"The episode is not in the log: {error}", stacklevel=2)
        return recording

    def _episode(
        self, recording: Recording, agent: Agent, dt: float, steps: int, states: Sequence[str], seed: int | None
    ) -> None:
        call = _Thread().call if self.realtime else _directly
        agent.reset()
        if seed is not None and hasattr(self.plant, "seed"):
            self.plant.seed(seed)
        z = np.array(call(self.plant.reset), dtype=np.float64)
        start = time.monotonic()
        for step in range(1, steps + 2):
            recording.times.append(time.monotonic() - start if self.realtime else (step - 1) * dt)
            recording.observations.append(z)
            if hasattr(self.plant, "state"):
                recording.states.append(np.array(self.plant.state, dtype=np.float64))
            self._check(recording.observations, states)
            if step > steps:
                break
            u = agent.act(z)
            if not np.isfinite(u).all():
                raise Stop("failed", f"the action is {u}")
            recording.actions.append(np.clip(u, -agent.limits, agent.limits))
            due = start + step * dt
            last = due + self.tolerance * dt
            z = np.array(call(self.plant.step, recording.actions[-1], until=last), dtype=np.float64)
            if self.realtime:
                if (now := time.monotonic()) > last:
                    raise Stop("late", f"sample {step} came {(now - due) / dt:.2f} sampling periods late")
                sleep_until(due)

    def _check(self, observations: list[np.ndarray], states: Sequence[str]) -> None:
        z = observations[-1]
        if z.shape != observations[0].shape or z.ndim != 1:
            raise ValueError(f"An observation must have one entry per state; the plant gave one of shape {z.shape}.")
        for limit, beyond, side in ((self.low, np.less, "below"), (self.high, np.greater, "above")):
            if limit is not None and beyond(z, limit).any():  # NaN is neither
                i = int(np.argmax(beyond(z, limit)))
                name = states[i] if states else f"state {i}"
                raise Stop("limit", f"{name} was {z[i]:.4g}, {side} its limit of {limit[i]:.4g}")
        if len(observations) >= self.blind and np.isnan(observations[-self.blind :]).all():
            raise Stop("blind", f"{self.blind} samples in a row were missing")

    def _stop(self, zero: np.ndarray) -> None:
        """Send zero, in a thread of its own: that of a step that never returned is still stuck there."""
        stop = getattr(self.plant, "stop", None)
        until = time.monotonic() + PATIENCE
        with contextlib.suppress(Exception):  # if the plant is gone, there is nothing more to be done
            call = _Thread().call if self.realtime else _directly
            call(self.plant.step, zero, until=until) if stop is None else call(stop, until=until)


def sleep_until(due: float) -> None:
    time.sleep(max(0.0, due - time.monotonic()))


def _directly(function: Callable[..., Any], *arguments: Any, until: float | None = None) -> Any:
    return function(*arguments)


class _Thread:
    """Calls functions in a thread, so that one that does not return in time can be given up."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue = queue.SimpleQueue()
        self.results: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(self.jobs, self.results), daemon=True).start()

    @staticmethod
    def _work(jobs: queue.SimpleQueue, results: queue.SimpleQueue) -> None:
        while (job := jobs.get()) is not None:
            function, arguments = job
            try:
                results.put((function(*arguments), None))
            except BaseException as error:
                results.put((None, error))

    def call(self, function: Callable[..., Any], *arguments: Any, until: float | None = None) -> Any:
        self.jobs.put((function, arguments))
        timeout = None if until is None else max(0.0, until - time.monotonic())
        try:
            result, error = self.results.get(timeout=timeout)
        except queue.Empty:
            raise Stop("late", "the plant did not answer in time") from None
        if error is not None:
            raise error
        return result

    def __del__(self) -> None:
        self.jobs.put(None)
