"""The loop: it runs an agent on a plant in real time, records what happens, and always ends safely."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from bayespilco.deploy import logs
from bayespilco.deploy.rig.agents import ActionRange
from bayespilco.deploy.rig.pacing import monotonic
from bayespilco.deploy.rig.permission import require_go, require_main
from bayespilco.deploy.rig.protocols import Agent, Plant
from bayespilco.deploy.rig.recording import Recording, Stop
from bayespilco.deploy.rig.signals import Ending
from bayespilco.deploy.rig.stopping import stop
from bayespilco.deploy.rig.threads import Caller, Here, Thread, call
from bayespilco.deploy.rig.watch import Watch


@dataclass(frozen=True, eq=False)
class Rig:
    """A plant, and how to run it."""

    plant: Plant
    low: Sequence[float] | np.ndarray | None = None
    """An observation below this ends the episode. One entry per state, -inf where there is no limit."""
    high: Sequence[float] | np.ndarray | None = None
    """An observation above this ends the episode. One entry per state, inf where there is no limit."""
    tolerance: float = logs.TOLERANCE
    """How late an observation may come, in sampling periods. In real time the default is also the most, as in a log."""
    blind: int = 10
    """The episode ends after this many samples in a row in which everything is missing, or a state that has a limit, or
    one that the agent cannot do without (its `required`). What the agent's filter rejected counts as missing."""
    lost: int = 3
    """The episode ends when the agent has had to give up its belief so many times (`Controller.health`). 0: never.
    While learning this is off, because early models are poor."""
    realtime: bool = True
    """Whether a sampling period takes its time. In a simulation it need not."""
    log: Path | str | None = None
    """A file that every episode is added to, in the format that `--from-data` reads."""
    certificate: Path | str | None = None
    """A `certificate.json`: without a GO in it, for this controller, an episode is refused before the plant moves."""

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _limits(name, getattr(self, name)))
        if self.low is not None and self.high is not None:
            fits = len(self.low) == len(self.high) and bool(np.less(self.low, self.high).all())
            _require(fits, "low", "below high, with as many entries", f"low = {self.low} and high = {self.high}")
        most = logs.TOLERANCE if self.realtime else np.inf
        _require(
            isinstance(self.tolerance, Real) and 0 <= float(self.tolerance) <= most,
            "tolerance",
            f"from 0 to {most:g} sampling periods (for a plant with more delay choose a longer period)",
            self.tolerance,
        )
        for name, least in (("blind", 1), ("lost", 0)):
            value = getattr(self, name)
            _require(
                isinstance(value, Integral) and int(value) >= least, name, f"a whole number from {least} on", value
            )

    def run(
        self,
        agent: Agent,
        *,
        dt: float,
        steps: int,
        states: Sequence[str] = (),
        actions: Sequence[str] = (),
        seed: int | None = None,
        learning: bool = False,
    ) -> Recording:
        """Run one episode with this agent.

        Args:
            dt: Sampling period in seconds.
            states, actions: Their names, for the log and for reasons.
            seed: For a plant that draws random numbers.
            learning: Whether the agent's model is still poor: then the episode goes on if it is `lost`.
        """
        require_main("run the plant")
        if self.certificate is not None:
            require_go(self.certificate, agent)
        required, lost = tuple(getattr(agent, "required", ())), 0 if learning else self.lost
        watch = Watch(self.low, self.high, self.blind, states, self._checked_size(dt, steps, states), required, lost)
        allowed = ActionRange.of(agent)
        actions = actions or [f"action {i}" for i in range(len(allowed))]
        _require(len(actions) == len(allowed), "actions", f"names, one per action ({len(allowed)})", actions)
        if self.log is not None:
            logs.check_appendable(self.log, states, actions)  # better refused now than after the episode
        recording = Recording(dt=dt)
        with Ending(self.realtime) as ending:
            caller = Thread() if self.realtime else Here()
            stopping = False
            try:  # two, so that an interruption while the plant is stopped does not cost the log
                try:
                    self._episode(recording, agent, allowed, watch, caller, ending, steps, seed)
                except Stop as reason:
                    recording.ended, recording.reason = reason.ended, str(reason)
                except Exception as error:
                    recording.ended, recording.reason = "failed", f"{type(error).__name__}: {error}"
                except BaseException:
                    recording.ended, recording.reason = "interrupted", "interrupted"
                    raise
                finally:
                    ending.hold()
                    stopping = True
                    stop(self.plant, caller, allowed.rest, recording, self.realtime)
            finally:
                ending.hold()
                if not stopping:  # a signal came just before signals were held
                    stop(self.plant, caller, allowed.rest, recording, self.realtime)
                self._keep(recording, states, actions)
        return recording

    def as_declared(self, task: Any) -> "Rig":
        """The rig with its plant as a task declares it, if the plant is simulated and can be (`environments`)."""
        declared = getattr(self.plant, "as_declared", None)
        return self if declared is None else replace(self, plant=declared(task))

    def execute(self, task: Any, executor: Any, seed: int) -> Any:
        """One episode of learning (by `deploy.bridge`, which needs JAX): a rig can be the plant of a task."""
        from bayespilco.deploy import bridge

        return bridge.execute(task, self.as_declared(task), executor, seed)

    def _checked_size(self, dt: float, steps: int, states: Sequence[str]) -> int | None:
        """The number of states, if it is known already. What does not fit is refused before the plant moves."""
        _require(isinstance(dt, Real) and 0 < float(dt) < np.inf, "dt", "a positive number of seconds", dt)
        _require(isinstance(steps, Integral) and steps >= 1, "steps", "a whole number from 1 on", steps)
        own = getattr(self.plant, "dt", None)
        fits = not isinstance(own, Real) or bool(np.isclose(float(own), dt, rtol=1e-6, atol=0.0))
        _require(fits, "dt", f"the plant's own sampling period, {own} s", dt)
        for name, limit in (("low", self.low), ("high", self.high)):
            fits = limit is None or not states or len(limit) == len(states)
            _require(fits, name, f"numbers, one per state ({', '.join(states)})", limit)
        return next((len(each) for each in (states or None, self.low, self.high) if each is not None), None)

    def _episode(
        self,
        recording: Recording,
        agent: Agent,
        allowed: ActionRange,
        watch: Watch,
        caller: Caller,
        ending: Ending,
        steps: int,
        seed: int | None,
    ) -> None:
        plant, dt = self.plant, recording.dt
        agent.reset()
        if seed is not None and hasattr(plant, "seed"):
            plant.seed(seed)
        if hasattr(plant, "rest_at"):
            plant.rest_at(allowed.rest.copy())
        sample = call(caller, plant.reset, ending=ending)
        start, came = monotonic(), 0.0
        for step in range(1, steps + 2):
            z = watch.take(recording, came, sample, getattr(plant, "true_state", None))
            if step > steps:
                break
            u = _action(recording, agent, allowed, z)
            watch.judge(recording, agent)
            due = step * dt
            last = due + self.tolerance * dt
            sample = call(caller, plant.step, u, ending=ending, until=start + last, what=f"sample {step}")
            came = due
            if self.realtime:
                # The recorded time is the one that is checked, so that a log accepts what a rig accepts.
                came = max(due, monotonic() - start)
                recording.lateness.append(came - due)
                if came > last:
                    raise Stop("late", f"sample {step} came {(came - due) / dt:.2f} sampling periods late")
                ending.sleep_until(start + due)

    def _keep(self, recording: Recording, states: Sequence[str], actions: Sequence[str]) -> None:
        """Add the episode to the log, if there is one. An error here must not cost the recording, so it only warns."""
        if self.log is None or len(recording.observations) < 2:  # nothing can be learned from one sample
            return
        states = states or [f"state {i}" for i in range(len(recording.observations[0]))]
        try:
            told = [
                (health.largest_surprise, "; ".join(health.rejected_names), health.restarts)
                for health in recording.health
            ]
            logs.append(self.log, states, actions, recording.times, recording.observations, recording.actions, told)
            recording.log = Path(self.log)
        except Exception as error:
            warnings.warn(f"The episode is not in the log: {error}", stacklevel=3)


def _action(recording: Recording, agent: Agent, allowed: ActionRange, z: np.ndarray) -> np.ndarray:
    """The agent's action, within its range, recorded. Agent and plant get copies, with which they may do anything."""
    begin = monotonic()
    u = np.asarray(agent.act(z.copy()), dtype=np.float64)
    recording.delays.append(monotonic() - begin)
    if u.shape != (len(allowed),):
        raise Stop("failed", f"the action is {u}, and should have one entry per action ({len(allowed)})")
    if not np.isfinite(u).all():
        raise Stop("failed", f"the action is {u}")
    recording.actions.append(allowed.clip(u))
    return recording.actions[-1].copy()


def _require(holds: bool, name: str, wanted: str, given: object) -> None:
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
    _require(fits, name, f"a list with one number per state, {infinity} where there is no limit", given)
    return limits
