"""Does it hold? A learned controller, used for longer than it was trained for, and pushed.

A plant is *up* when it has been at the goal for half a second, and *down* when it has been away from it for half a
second: a single step beyond the border, which the goal of a cost has to have somewhere, is neither. A fall is a change
from up to down. A push is an impulse on one state, given to a plant that is up; the plant has recovered if it is at the
goal again some seconds later, and for half a second from then.
"""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayespilco.algorithm import METHODS
from bayespilco.core.checks import LARGEST_SEED, check_integer, unknown_name
from bayespilco.core.precision import float64
from bayespilco.deploy.files import write
from bayespilco.execution import PolicyExecutor, execute_many, execute_pushed
from bayespilco.experiments.results import HOLD, Numbers
from bayespilco.experiments.studies import rounded
from bayespilco.runs import Run
from bayespilco.runs.directory import HOLDING
from bayespilco.runs.plain import NO_PLANT, MissingPlant
from bayespilco.settings import LARGEST_COUNT
from bayespilco.tasks import Task
from bayespilco.tasks.components import by_name
from bayespilco.tasks.task import RealPlant

PUSH_SIZES = {("cart-pole", "pole angular velocity"): 9.0}
"""What knocks down a plant that is well balanced, where that is known, in the units of the state."""
SETTLING = 2
"""A push comes after this many times the length of an episode."""
TRIES = 4
"""How many times as many runs as pushes are begun at most, as a plant that is not up cannot be pushed."""
LONGEST = 24 * 60.0
"""Minutes of a run at most."""


class Push(NamedTuple):
    """An impulse: by how much which state jumps. Every other push is in the opposite direction."""

    state: str
    size: float

    @classmethod
    def of(cls, task: Task, state: str | None = None, size: float | None = None) -> "Push":
        """The push asked for; by default of the task's last rate, by a size that is known to matter."""
        names = [each.name for each in task.states]
        if state is None:
            if not task.rates:
                raise ValueError(
                    f"The task {task.name!r} does not say which state is a rate: say which state to push "
                    f"(--push-state), one of {', '.join(names)}."
                )
            state = task.rates[-1][1]
        if state not in names:
            raise unknown_name(state, names, f"state of {task.name!r}:")
        if size is None:
            size = PUSH_SIZES.get((task.name, state))
        if size is None:
            unit = task.states[names.index(state)].unit or "its own unit"
            raise ValueError(f"How hard to push the {state} of {task.name!r}? Give --push-size, in {unit}.")
        if not 0 < size < np.inf:
            raise ValueError(f"The size of a push must be positive and finite; given {size}. Both signs are tried.")
        return cls(state, float(size))


@float64
def evaluate_holding(
    run: Run,
    *,
    minutes: float = 5.0,
    runs: int = 10,
    pushes: int = 0,
    push_state: str | None = None,
    push_size: float | None = None,
    within: float = 5.0,
    seed: int = 1,
) -> Numbers:
    """Run the last controller of a run for long on its simulated plant, and push it.

    Args:
        minutes: How long each run is.
        runs: How many.
        pushes: How many; in other, shorter runs.
        push_state: Which state to push; by default the task's last rate.
        push_size: By how much, in the units of that state.
        within: Seconds until a plant that was pushed, or has fallen, should be up again.
        seed: Of first states and sensor noise.
    """
    task = run.task
    _check(task)
    check_integer(runs, "runs", 1, LARGEST_COUNT)
    check_integer(pushes, "pushes", 0, LARGEST_COUNT)
    check_integer(seed, "seed", 0, LARGEST_SEED)
    for name, value, highest in (("minutes", minutes, LONGEST), ("within", within, 60 * LONGEST)):
        if not 0 < value <= highest:
            raise ValueError(f"{name} must be above 0 and at most {highest:g}; given {value}.")
    push = Push.of(task, push_state, push_size) if pushes else None
    executor = METHODS[run.method].executor(run.policy, run.dynamics)
    for_long, for_pushes = jax.random.split(jax.random.key(seed))
    found: Numbers = {"task": task.name, "method": run.method, "episodes": len(run.records), "seed": seed}
    found["long"] = {"minutes": minutes, "runs": runs, "within_s": within} | _long_runs(
        task, executor, minutes, runs, within, for_long
    )
    if push is not None:
        found["pushes"] = {"wanted": pushes, "within_s": within} | _pushed_runs(
            task, executor, push, pushes, within, for_pushes
        )
    return found


def save(found: Numbers, directory: Path) -> Path:
    """Keep the numbers in the directory of their run."""
    path = directory / HOLDING
    write(path, (json.dumps(rounded(found), indent=2) + "\n").encode())
    return path


def _check(task: Task) -> None:
    if isinstance(task.plant, MissingPlant):
        raise ValueError(f"The controller cannot be run: {NO_PLANT}")
    if isinstance(task.plant, RealPlant):
        raise ValueError(
            f"The task {task.name!r} has a real plant. Falls are counted and pushes given in simulation only: for a "
            "real plant, export the controller and try it there."
        )
    if task.structure().drift is not None:
        raise ValueError(
            f"The target of the task {task.name!r} moves along a path that ends with the episode: there is no goal to "
            "hold for longer."
        )
    if not task.cost.terminal(task.row_count).parts:
        raise ValueError(f"The cost of the task {task.name!r} is of actions alone: it has no goal to hold.")


def _steps(task: Task, seconds: float) -> int:
    return max(1, round(seconds / task.dt))


def hold_samples(dt: float) -> int:
    """Samples in a row that last for half a second."""
    return int(np.floor(HOLD / dt + 1e-9)) + 1


def _long_runs(
    task: Task, executor: PolicyExecutor, minutes: float, runs: int, within: float, key: jax.Array
) -> Numbers:
    long = dataclasses.replace(task, steps=_steps(task, 60 * minutes))
    reached = np.asarray(execute_many(long, executor, jax.random.split(key, runs)).reached)
    return count_falls(reached, task.dt, within)


def count_falls(reached: np.ndarray, dt: float, within: float) -> Numbers:
    """What happened in runs, from whether each was at the goal at each step (runs, times)."""
    courses = [course(row, hold_samples(dt)) for row in reached]
    after = [row[changes[0][0] :] for row, changes in zip(reached, courses, strict=True) if changes]
    falls = [[start for start, up in changes if not up] for changes in courses]
    returns = [later - start for changes in courses for (start, up), (later, _) in pairwise(changes) if not up]
    # A fall at the very end has had no time to get up again.
    stayed = [
        bool(changes and not changes[-1][1] and (len(row) - 1 - changes[-1][0]) * dt >= within)
        for row, changes in zip(reached, courses, strict=True)
    ]
    first = [changes[0][0] * dt for changes in courses if changes]
    return {
        "reached": len(first),
        "reached_s": float(np.median(first)) if first else None,
        "falls": sum(map(len, falls)),
        "fell": sum(bool(each) for each in falls),
        "stayed_down": sum(stayed),
        "first_falls_s": [each[0] * dt if each else None for each in falls],
        "up_again_s": float(np.median(returns)) * dt if returns else None,
        "at_goal": float(np.mean(np.concatenate(after))) if after else 0.0,
    }


def course(reached: np.ndarray, hold: int) -> list[tuple[int, bool]]:
    """When a plant went up and down: the steps of the changes, and whether it was up from then on.

    It is down at first. What lasts for fewer than `hold` samples changes nothing.
    """
    borders = np.flatnonzero(np.diff(reached.astype(int))) + 1
    starts = [0, *borders.tolist()]
    changes: list[tuple[int, bool]] = []
    for start, end in zip(starts, [*starts[1:], len(reached)], strict=True):
        value = bool(reached[start])
        if end - start >= hold and value != (bool(changes) and changes[-1][1]):
            changes.append((start, value))
    return changes


def _pushed_runs(
    task: Task, executor: PolicyExecutor, push: Push, count: int, within: float, key: jax.Array
) -> Numbers:
    hold, window = hold_samples(task.dt), _steps(task, within)
    settled = max(SETTLING * task.steps, hold)
    long = dataclasses.replace(task, steps=settled + window + hold)
    place = by_name(task.states)[push.state]
    signs = np.where(np.arange(count) % 2 == 0, 1.0, -1.0)
    pushes = np.zeros((count, long.steps, len(task.states)))
    pushes[:, settled - 1, place] = push.size * signs
    kept: list[np.ndarray] = []
    given: list[float] = []
    for attempt in range(TRIES):
        keys = jax.random.split(jax.random.fold_in(key, attempt), count)
        reached = np.asarray(execute_pushed(long, executor, keys, jnp.asarray(pushes)).reached)
        up = reached[:, settled - hold : settled].all(axis=1)
        kept.extend(reached[up, settled:])
        given.extend(signs[up])
        if len(kept) >= count:
            break
    unit = task.states[place].unit
    numbers = {"state": push.state, "unit": unit, "size": push.size}
    after = np.array(kept[:count], dtype=bool).reshape(len(kept[:count]), window + hold + 1)
    return numbers | count_recoveries(after, np.array(given[:count]), task.dt, window)


def count_recoveries(reached: np.ndarray, signs: np.ndarray, dt: float, window: int) -> Numbers:
    """How pushed plants got on, from whether each was at the goal at each step after its push (pushes, times).

    Args:
        signs: The directions of the pushes, 1 or -1.
        window: Steps after which they should be at the goal again, and stay to the end.
    """
    count = len(reached)
    back, stayed = (np.asarray(part.all(axis=1)) for part in (reached[:, window:], reached))
    knocked = ~stayed
    times = [dt * (np.flatnonzero(~row)[-1] + 1) for row in reached[back & knocked]]

    def share(which: np.ndarray) -> float | None:
        return float(np.mean(back[which])) if which.any() else None

    return {
        "given": count,
        "left_the_goal": int(knocked.sum()),
        "recovered": int(back.sum()),
        "share": share(np.ones(count, dtype=bool)),
        "share_plus": share(signs > 0),
        "share_minus": share(signs < 0),
        "median_s": float(np.median(times)) if times else None,
    }
