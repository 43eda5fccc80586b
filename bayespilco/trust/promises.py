"""What a policy promises before it is executed, and what came of it.

A promise is a set of runs on plants drawn from the model, one plant for each run, with the policy and the filter that
are about to be executed. It is made of nothing that was learned later, and its random numbers are its own: it can be
made at any time, before the trial or years after it, and is the same.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bayespilco.algorithm import METHODS, Record, Settings
from bayespilco.control.policy import Policy
from bayespilco.core.compilation import compiled
from bayespilco.core.precision import float64
from bayespilco.deploy.bridge import episode_rows
from bayespilco.execution import PolicyExecutor, at_goal, episode_costs, exceeded, simulate_samples
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode
from bayespilco.model.posterior_samples import CanDraw, arrays_of, draw_many
from bayespilco.tasks import Task
from bayespilco.trust.calibration import BAND, central_interval, miss, rank

BATCH = 100
"""Runs that are simulated at a time: one size, so that they are compiled once."""
RUNS = 200
"""Runs of a promise."""
HOLD = 0.5
"""Seconds at the end of an episode that the goal has to be held for: a success."""
SATURATED = 0.99
"""An action beyond this share of the actuator's reach counts as saturated."""
PURPOSE = 2**21
"""Folded into the seed's key, so that no random number of learning is used again."""


@float64
def sample_runs(task: Task, settings: Settings, record: Record, number: int, part: int = 0) -> Episode:
    """`BATCH` runs of a record's policy on plants drawn from its model: an `Episode` with a leading axis.

    Args:
        number: Which record it is, from 0: each has random numbers of its own.
        part: Other parts are other runs.
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.seed), PURPOSE), number)
    plants, runs = (jax.random.split(each, BATCH) for each in jax.random.split(jax.random.fold_in(key, part)))
    executor, fit = METHODS[settings.method].executor, arrays_of(record.fit)
    return _simulate(task, executor, record.policy, record.dynamics, fit, plants, runs)


@compiled
def _simulate(
    task: Task,
    executor: Callable[[Policy, Dynamics], PolicyExecutor],
    policy: Policy,
    dynamics: Dynamics,
    fit: CanDraw,
    plants: Array,
    runs: Array,
) -> Episode:
    """Policy, plants and runs in one program: a certificate asks for many batches, and compiles this once."""
    return simulate_samples(task, executor(policy, dynamics), draw_many(fit, plants), runs)


class Outcome(NamedTuple):
    """What is counted of runs: arrays with one entry per run."""

    totals: np.ndarray
    success: np.ndarray
    """Whether the goal was held at the end."""
    exceeded: np.ndarray
    """Whether each limit of the task was exceeded at any step: shape (runs, limits)."""
    saturated: np.ndarray
    """The share of time that each actuator was at its limit: shape (runs, actions)."""

    def and_then(self, more: "Outcome") -> "Outcome":
        return Outcome(*(np.concatenate(both) for both in zip(self, more, strict=True)))


@float64
def outcome(task: Task, runs: Episode, *, as_observed: bool = False) -> Outcome:
    """Count what happened in runs (an `Episode` with a leading axis).

    Args:
        as_observed: Whether to judge runs by what their sensors said, as for a plant whose states are not known.
    """
    if as_observed or runs.states is None:
        judged = [_as_observed(task, z, u) for z, u in zip(runs.observations, runs.actions, strict=True)]
        costs, reached, states = (np.stack([np.asarray(each[part]) for each in judged]) for part in range(3))
    else:
        assert runs.costs is not None and runs.reached is not None, "who knows the states knows these too"
        costs, reached, states = (np.asarray(each) for each in (runs.costs, runs.reached, runs.states))
    last = int(np.floor(HOLD / task.dt + 1e-9)) + 1
    away = np.abs(np.asarray(runs.actions) - np.asarray(task.action_middle)) / np.asarray(task.action_reach)
    return Outcome(
        costs.sum(axis=1),
        np.all(reached[:, -last:], axis=1),
        exceeded(task, states),
        (away >= SATURATED).mean(axis=1),
    )


def _as_observed(task: Task, z: Any, u: Any) -> tuple[Any, Any, Any]:
    rows = episode_rows(task, np.asarray(z), np.asarray(u), None)
    return episode_costs(task, rows, jnp.asarray(u)), at_goal(task, rows), rows[:, : len(task.states)]


class Promise(NamedTuple):
    """Runs of a policy that is about to be executed, and what is counted of them."""

    number: int
    """Of the record with the policy: the promise is about the episode after it."""
    parts: tuple[Episode, ...]
    """The runs themselves, in batches."""
    outcome: Outcome

    @property
    def band(self) -> tuple[float, float]:
        """Where 90 % of the totals are."""
        low, high = central_interval(self.outcome.totals, BAND)
        return float(low), float(high)

    def numbers(self) -> dict[str, Any]:
        """For a line of metrics."""
        found: dict[str, Any] = finite(
            {
                "total": float(np.median(self.outcome.totals)),
                "band": list(self.band),
                "success": float(np.mean(self.outcome.success)),
                "exceeding": [float(share) for share in self.outcome.exceeded.mean(axis=0)],
            }
        )
        return found


def promise(task: Task, settings: Settings, records: Sequence[Record], number: int) -> Promise:
    """What the policy of a record promised before it was executed.

    On a plant whose states are not known, runs are judged as the executed ones are: by what the sensors said.
    """
    parts = tuple(sample_runs(task, settings, records[number], number, part) for part in range(RUNS // BATCH))
    unknown = judged_as_observed(records)
    counted = [outcome(task, runs, as_observed=unknown) for runs in parts]
    whole = counted[0]
    for more in counted[1:]:
        whole = whole.and_then(more)
    return Promise(number, parts, whole)


def judged_as_observed(records: Sequence[Record]) -> bool:
    """Whether the plant's states are not known, so that its costs are those of the observations."""
    return records[-1].episode.states is None


class Kept(NamedTuple):
    """A promise against what was executed."""

    total: float
    rank: float
    """Of the executed total among the promised ones: uniform if the promise is honest."""
    miss: float
    """How far it is from the promised median; a 90 % band ends at +-1.645."""
    within: bool
    """Whether it is in the 90 % band."""
    success: bool
    exceeded: list[bool]

    def numbers(self) -> dict[str, Any]:
        found: dict[str, Any] = finite(self._asdict())
        return found


def finite(value: Any) -> Any:
    """Plain values for JSON, which knows neither infinity nor NaN: they become None."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def kept(task: Task, promised: Promise, episode: Episode) -> Kept:
    """What came of a promise in the episode that it was about."""
    one: Episode = jax.tree.map(lambda leaf: leaf[None], episode)
    found = outcome(task, one)
    totals, (low, high) = promised.outcome.totals, promised.band
    total = float(np.sum(np.asarray(episode.costs))) if episode.costs is not None else float(found.totals[0])
    return Kept(
        total,
        rank(totals, total),
        miss(totals, total),
        bool(low <= total <= high),
        bool(found.success[0]),
        [bool(each) for each in found.exceeded[0]],
    )
