"""A real plant: what it has to offer, and a loop that keeps its sampling period, records it, and ends safely.

    rig = Rig(plant, low=[-0.5, -inf], high=[0.5, inf])
    recording = rig.run(controller, dt=0.05, steps=100)

However an episode ends, after its last step, at a limit, late, or because something broke or the user pressed Ctrl-C,
zero is sent to the actuators, and what was recorded until then is kept. Like `bayespilco.controller`, this needs NumPy
only. To learn on a plant, make its rig the `plant` of a `Task`.
"""

import contextlib
import functools
import queue
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from bayespilco import logs

PATIENCE = 1.0
"""Seconds that a plant is given to take the zero action at the end. What fails is tried again until then."""
PAUSE = 0.05
"""Seconds between two of these tries."""


@runtime_checkable
class Plant(Protocol):
    """What is to be controlled. Observations have an entry per state, NaN for what is missing; None if all is.

    Two more methods are used if they are there: `stop()`, in place of a step with zero action at the end; and
    `seed(number)` before each `reset`, for a simulation that draws its own chance. So are two attributes: `dt`, the
    sampling period that the plant keeps; and `true_state`, without the sensors' noise, which only a simulation knows.
    """

    def reset(self) -> Any:
        """Bring the plant to its start, however long that takes, and return the first observation."""

    def step(self, action: np.ndarray) -> Any:
        """Apply an action at once, and return what the sensors say one sampling period later.

        To wait for that is up to the plant (see `Paced`). One that returns at once, a simulation say, is waited for.
        """


class Paced:
    """A plant made of a device's functions: to make it ready, to send an action, and to read the sensors.

    It samples at absolute times, so that delays do not add up. To stop it, the sensors are not read: they may be what
    failed.
    """

    applied: np.ndarray | None = None
    """The last action."""

    def __init__(
        self, ready: Callable[[], object], send: Callable[[np.ndarray], object], read: Callable[[], Any], dt: float
    ) -> None:
        self.ready, self.send, self.read, self.dt = ready, send, read, dt

    def reset(self) -> Any:
        self.ready()
        self.due = time.monotonic()
        return self.read()

    def step(self, action: np.ndarray) -> Any:
        self.applied = action
        self.send(action)
        self.due += self.dt
        sleep_until(self.due)
        return self.read()

    def stop(self) -> None:
        if self.applied is not None:
            self.send(np.zeros_like(self.applied))


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
    """The truth, if the plant has a `true_state`: only a simulation does."""
    ended: Ended = "finished"
    reason: str = ""
    """The same in words."""
    stopped: bool = True
    """Whether the zero action was taken at the end. If not, the reason says why."""
    log: Path | None = None
    """The file that this was added to."""


class PlantStopped(ValueError):
    """An episode that cannot be learned from, and after which the user has to look at the plant."""

    def __init__(self, recording: Recording) -> None:
        place = "this error's `recording`" if recording.log is None else recording.log
        super().__init__(
            f"The episode on the plant ended after {len(recording.observations)} samples: {recording.reason}. "
            f"What was recorded is in {place}."
        )
        self.recording = recording


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
    """Observations below this end the episode: an entry per state, -inf where there is no limit."""
    high: Sequence[float] | np.ndarray | None = None
    """The same above, inf where there is no limit."""
    tolerance: float = logs.TOLERANCE
    """How late an observation may come, in sampling periods. In real time no more than by default, as in a log."""
    blind: int = 10
    """After so many samples in a row with nothing in them the episode ends."""
    realtime: bool = True
    """Whether a sampling period takes its time. A simulation need not."""
    log: Path | str | None = None
    """A file to add every episode to, as `--from-data` reads it."""

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _limits(name, getattr(self, name)))
        if self.low is not None and self.high is not None:
            fits = len(self.low) == len(self.high) and bool(np.less(self.low, self.high).all())
            _demand(fits, "low", "below high, with as many entries", f"low = {self.low} and high = {self.high}")
        most = logs.TOLERANCE if self.realtime else np.inf
        _demand(
            isinstance(self.tolerance, Real) and 0 <= float(self.tolerance) <= most,
            "tolerance",
            f"from 0 to {most:g} sampling periods (for a plant with more delay choose a longer period)",
            self.tolerance,
        )
        _demand(isinstance(self.blind, Integral) and self.blind >= 1, "blind", "a whole number from 1 on", self.blind)

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
        size = self._checked_size(dt, steps, states)
        actions = actions or [f"action {i}" for i in range(len(agent.limits))]
        _demand(len(actions) == len(agent.limits), "actions", f"names, one per action ({len(agent.limits)})", actions)
        if self.log is not None and states:
            logs.next_episode(self.log, states, actions)  # better refused now than after the episode
        recording = Recording()
        worker = _Thread() if self.realtime else _Here()
        with _ended_by_signals():
            try:  # two, so that a second Ctrl-C, while the plant is stopped, does not cost the log
                try:
                    self._episode(recording, agent, worker, dt, steps, states, size, seed)
                except Stop as stop:
                    recording.ended, recording.reason = stop.ended, str(stop)
                except Exception as error:
                    recording.ended, recording.reason = "failed", f"{type(error).__name__}: {error}"
                except BaseException:
                    recording.ended, recording.reason = "interrupted", "interrupted"
                    raise
                finally:
                    self._stop(recording, worker, np.zeros(len(agent.limits)))
            finally:
                self._keep(recording, states, actions)
        return recording

    def _checked_size(self, dt: float, steps: int, states: Sequence[str]) -> int | None:
        """The number of states, if it is known already. What does not fit is refused before the plant moves."""
        _demand(isinstance(dt, Real) and 0 < float(dt) < np.inf, "dt", "a positive number of seconds", dt)
        _demand(isinstance(steps, Integral) and steps >= 1, "steps", "a whole number from 1 on", steps)
        own = getattr(self.plant, "dt", None)
        fits = not isinstance(own, Real) or bool(np.isclose(float(own), dt, rtol=1e-6, atol=0.0))
        _demand(fits, "dt", f"the plant's own sampling period, {own} s", dt)
        for name, limit in (("low", self.low), ("high", self.high)):
            fits = limit is None or not states or len(limit) == len(states)
            _demand(fits, name, f"numbers, one per state ({', '.join(states)})", limit)
        return next((len(each) for each in (states or None, self.low, self.high) if each is not None), None)

    def _episode(
        self,
        recording: Recording,
        agent: Agent,
        worker: "_Thread | _Here",
        dt: float,
        steps: int,
        states: Sequence[str],
        size: int | None,
        seed: int | None,
    ) -> None:
        agent.reset()
        if seed is not None and hasattr(self.plant, "seed"):
            self.plant.seed(seed)
        sample = _call(worker, self.plant.reset)
        start, came = time.monotonic(), 0.0
        for step in range(1, steps + 2):
            z = self._record(recording, came, sample, states, size)
            if step > steps:
                break
            u = np.asarray(agent.act(z), dtype=np.float64)
            if u.shape != (len(agent.limits),):
                raise Stop("failed", f"the action is {u}, and should have one entry per action ({len(agent.limits)})")
            if not np.isfinite(u).all():
                raise Stop("failed", f"the action is {u}")
            recording.actions.append(np.clip(u, -agent.limits, agent.limits))
            due = step * dt
            last = due + self.tolerance * dt
            sample = _call(worker, self.plant.step, recording.actions[-1], until=start + last, what=f"sample {step}")
            came = due
            if self.realtime:
                # The time that is recorded is the one that is checked, so that a log has what a rig lets pass.
                came = max(due, time.monotonic() - start)
                if came > last:
                    raise Stop("late", f"sample {step} came {(came - due) / dt:.2f} sampling periods late")
                sleep_until(start + due)

    def _record(
        self, recording: Recording, came: float, sample: Any, states: Sequence[str], size: int | None
    ) -> np.ndarray:
        """Add a sample to the recording, if it can be one, and look whether the episode can go on after it."""
        if recording.observations:
            size = len(recording.observations[0])
        if sample is None and size is None:
            raise Stop("failed", "the first sample is None, so that the number of states is not known: give `states`")
        z = np.full(size or 0, np.nan) if sample is None else np.array(sample, dtype=np.float64)
        if z.ndim != 1 or (size is not None and len(z) != size):
            known = "" if size is None else f" ({size})"
            raise Stop("failed", f"an observation must have one entry per state{known}; the plant gave shape {z.shape}")
        seen = np.where(np.isfinite(z), z, np.nan)  # as a controller takes it; but limits hold for infinity, too
        recording.times.append(came)
        recording.observations.append(seen)
        if (truth := getattr(self.plant, "true_state", None)) is not None:
            recording.states.append(np.array(truth, dtype=np.float64))
        for limit, beyond, side in ((self.low, np.less, "below"), (self.high, np.greater, "above")):
            if limit is not None and beyond(z, limit).any():  # NaN is neither
                i = int(np.argmax(beyond(z, limit)))
                name = states[i] if states else f"state {i}"
                raise Stop("limit", f"{name} was {z[i]:.4g}, {side} its limit of {limit[i]:.4g}")
        if len(recording.observations) >= self.blind and np.isnan(recording.observations[-self.blind :]).all():
            raise Stop("blind", f"{self.blind} samples in a row were missing")
        return seen

    def _stop(self, recording: Recording, worker: "_Thread | _Here", zero: np.ndarray) -> None:
        """Send zero, and say so if it did not arrive. (A simulation cannot be left on: of it nothing is said.)

        A step that has not returned may still send its action when it wakes up. So zero is sent at once, by another
        thread, and again by that step's own, as soon as it returns.
        """
        stop = getattr(self.plant, "stop", None) or functools.partial(self.plant.step, zero)
        until = time.monotonic() + (PATIENCE if self.realtime else 0.0)
        workers = [worker, _Thread()] if worker.busy else [worker]
        sent = [each.submit(_until_it_works, stop, until) for each in workers]
        wait(sent, timeout=PATIENCE + PAUSE)
        at_once = sent[-1]
        error = at_once.exception() if at_once.done() else TimeoutError("it did not return")
        if self.realtime and error is not None:
            recording.stopped = False
            why = f"zero could not be sent ({type(error).__name__}: {error}), look at the plant"
            recording.reason = f"{recording.reason}; {why}" if recording.reason else why

    def _keep(self, recording: Recording, states: Sequence[str], actions: Sequence[str]) -> None:
        """Add the episode to the log, if there is one. The recording is more than its log: no error passes."""
        if self.log is None or len(recording.observations) < 2:  # one sample is nothing to learn from
            return
        states = states or [f"state {i}" for i in range(len(recording.observations[0]))]
        try:
            logs.append(self.log, states, actions, recording.times, recording.observations, recording.actions)
            recording.log = Path(self.log)
        except Exception as error:
            warnings.warn(f"The episode is not in the log: {error}", stacklevel=3)


def sleep_until(due: float) -> None:
    time.sleep(max(0.0, due - time.monotonic()))


def _demand(holds: bool, name: str, wanted: str, given: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {wanted}; given {given}.")


def _limits(name: str, given: Any) -> np.ndarray | None:
    if given is None:
        return None
    try:
        limits = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        limits = np.array(np.nan)
    infinity = "-inf" if name == "low" else "inf"
    fits = limits.ndim == 1 and limits.size > 0 and not np.isnan(limits).any()
    _demand(fits, name, f"a list with one number per state, {infinity} where there is no limit", given)
    return limits


class _Here:
    """Calls functions where it is called itself."""

    busy = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class _Thread:
    """Calls functions in a thread, one after the other, so that one that does not return in time can be given up."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue = queue.SimpleQueue()
        self.last: Future | None = None
        threading.Thread(target=self._work, args=(self.jobs,), daemon=True).start()

    @staticmethod
    def _work(jobs: queue.SimpleQueue) -> None:
        while (job := jobs.get()) is not None:
            future, function, arguments = job
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

    @property
    def busy(self) -> bool:
        return self.last is not None and not self.last.done()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        self.last = Future()
        self.jobs.put((self.last, function, arguments))
        return self.last

    def __del__(self) -> None:
        self.jobs.put(None)


def _until_it_works(function: Callable[[], object], until: float) -> None:
    while True:
        try:
            function()
            return
        except Exception:
            if time.monotonic() + PAUSE > until:
                raise
        time.sleep(PAUSE)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let the signals that end a process raise an exception instead, so that the plant is stopped first."""
    if threading.current_thread() is not threading.main_thread():  # only there Python takes signals
        yield
        return

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)  # what a shell says of a process that was ended so

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    free = [number for name in names if signal.getsignal(number := getattr(signal, name)) is signal.SIG_DFL]
    for number in free:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in free:
            signal.signal(number, signal.SIG_DFL)


def _call(
    worker: _Here | _Thread,
    function: Callable[..., Any],
    *arguments: Any,
    until: float | None = None,
    what: str = "the first sample",
) -> Any:
    """What a function returns, or raises, if it does so in time."""
    future = worker.submit(function, *arguments)
    if not future.done():
        wait([future], timeout=None if until is None else max(0.0, until - time.monotonic()))
    if not future.done():
        raise Stop("late", f"the plant did not answer in time: {what} did not come")
    return future.result()
