"""From the parts of a study to its numbers: per method, per seed, and over seeds with intervals."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayespilco.control.cost import QuadraticCost, SaturatingCost
from bayespilco.control.policy import Policy
from bayespilco.core.precision import float64
from bayespilco.experiments import paper
from bayespilco.experiments.comparison import (
    ABLATIONS,
    PARTS,
    Outcome,
    Part,
    Study,
    Taken,
    is_complete,
    part_file,
    read_model,
    read_outcome,
    read_run,
    read_taken,
)
from bayespilco.tasks import Task

OURS = "bayes-filter"
HOLD = 0.5
"""Seconds at the end of an episode that the goal has to be held for."""
AT_THE_GOAL = 1 - np.exp(-0.5)
"""The cost at a distance of one width of the cost from the goal: 0.1 m from the pole's tip on the cart-pole. A run is a
success if it costs less than this at every step of its last `HOLD` seconds."""
BAND = (0.05, 0.95)
"""The quantiles of the sampled costs between which 90 % of the executed ones should lie, at every step."""
RESAMPLES = 10_000
SUMMARISED = ("predicted", "sampled", "executed", "gap", "final_cost", "success", "gain", "coverage")

Numbers = dict[str, Any]


def method_numbers(task: Task, outcome: Outcome, index: int) -> Numbers:
    """One method of one seed. Costs are sums over all steps, the first included, unless said otherwise."""
    executed, sampled = np.asarray(outcome.executed[index]), np.asarray(outcome.sampled[index])
    totals, predicted = executed.sum(axis=1), float(outcome.predicted.total_cost)
    return {
        "predicted": predicted,
        "sampled": float(sampled.sum(axis=1).mean()),
        "executed": float(totals.mean()),
        "executed_std": float(totals.std(ddof=1)) if len(totals) > 1 else 0.0,
        "executed_median": float(np.median(totals)),
        "sampled_std": float(sampled.sum(axis=1).std(ddof=1)) if len(sampled) > 1 else 0.0,
        "gap": float(totals.mean()) - predicted,
        "final_cost": float(executed[:, -1].mean()),
        "final_cost_std": float(executed[:, -1].std()),
        "success": success(task, executed),
        "sampled_success": success(task, sampled),
        "gain": gain(task, outcome.policy),
        "coverage": float(np.mean(covered(executed, sampled))),
        "evaluations": outcome.evaluations,
        "stopped": outcome.stopped,
    }


def success(task: Task, costs: np.ndarray) -> float:
    """The share of runs that are at the goal and stay there for the last half second."""
    last = int(np.floor(HOLD / task.dt + 1e-9)) + 1
    return float(np.mean((costs[:, -last:] < AT_THE_GOAL).all(axis=1)))


def covered(executed: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """At every step, the share of executed costs within the 90 % band of the sampled ones."""
    low, high = np.quantile(sampled, BAND, axis=0)
    share: np.ndarray = np.mean((executed >= low) & (executed <= high), axis=0)
    return share


@float64
def gain(task: Task, policy: Policy) -> float:
    """How the action at the goal changes with the angle (with the first state, where there is no angle)."""
    index = task.angles[0] if task.angles else 0
    return float(jax.jacfwd(policy.map())(goal(task))[0, index])


def goal(task: Task) -> jax.Array:
    """The state that the cost wants, what it does not speak of being zero; the first state if it names no target."""
    if not isinstance(task.cost, SaturatingCost | QuadraticCost):
        return task.initial.mean
    features, target = task.cost.features, np.asarray(task.cost.target)
    state = np.zeros(len(task.states))
    kept = len(features.keep)
    state[list(features.keep)] = target[:kept]
    for n, angle in enumerate(features.angles):
        state[angle] = np.arctan2(target[kept + 2 * n], target[kept + 2 * n + 1])
    return jnp.asarray(state)


def rank_sum(ours: np.ndarray, other: np.ndarray) -> Numbers:
    """Wilcoxon's rank-sum test of two samples of executed costs; a negative statistic: ours are lower."""
    from scipy.stats import ranksums  # only here: importing it takes long

    test = ranksums(ours, other)
    return {"statistic": float(test.statistic), "p": float(test.pvalue)}


def seed_numbers(study: Study, seed: int, directory: Path) -> Numbers:
    """All numbers of one seed, ablations as far as they are there."""
    task, run = study.make_task(), read_run(directory)
    model = read_model(study, directory, "evidence")
    dynamics = model.fit.dynamics
    outcomes = {part.name: read_outcome(study, directory, part) for part in PARTS}
    numbers = _methods(task, PARTS, outcomes)
    totals = {
        method: np.asarray(outcomes[part.name].executed[n]).sum(axis=1)
        for part in PARTS
        for n, method in enumerate(part.methods)
    }
    for method, values in totals.items():
        if method != OURS:
            numbers[method]["rank_sum"] = rank_sum(totals[OURS], values)
    spent = {"data": read_taken(directory), "model": [model.taken]} | {
        name: [outcome.taken] for name, outcome in outcomes.items()
    }
    result = {
        "seed": seed,
        "methods": numbers,
        "noise": {
            "learned": np.sqrt(np.asarray(dynamics.sensor_noise)).tolist(),
            "true": np.asarray(task.sensor_std).tolist(),
            "process_learned": np.sqrt(np.asarray(dynamics.process_noise)).tolist(),
            "process_true": [0.0] * len(task.states),
        },
        "data": {
            "executed": [record.executed_cost for record in run.records],
            "predicted": [record.predicted_cost for record in run.records],
        },
    }
    ablations: Numbers = {}
    for part in ABLATIONS:
        if part_file(directory, part).exists():
            outcome = read_outcome(study, directory, part)
            spent[part.name] = [outcome.taken]
            ablations[part.name] = _methods(task, [part], {part.name: outcome})
    if any(part.training == "direct" for part in ABLATIONS if part.name in ablations):
        direct = read_model(study, directory, "direct")
        spent["direct"] = [direct.taken]
        ablations["direct-noise"] = np.sqrt(np.asarray(direct.fit.dynamics.sensor_noise)).tolist()
    if ablations:
        result["ablations"] = ablations
    compared = [one for name in ("data", "model", *outcomes) for one in spent[name]]
    return result | {
        "wall_s": elapsed(compared),
        "cpu_s": sum(one.cpu_s for one in compared),
        "seconds": {
            name: {"wall_s": sum(one.wall_s for one in taken), "cpu_s": sum(one.cpu_s for one in taken)}
            for name, taken in spent.items()
        },
    }


def _methods(task: Task, parts: Iterable[Part], outcomes: dict[str, Outcome]) -> Numbers:
    return {
        method: method_numbers(task, outcomes[part.name], n) for part in parts for n, method in enumerate(part.methods)
    }


def elapsed(taken: Sequence[Taken]) -> float:
    """Seconds in which at least one of several computations was under way."""
    total, until = 0.0, -np.inf
    for one in sorted(taken, key=lambda one: one.began):
        end = one.began + one.wall_s
        total += max(0.0, end - max(one.began, until))
        until = max(until, end)
    return float(total)


def summarise(seeds: Sequence[Numbers]) -> Numbers:
    """Over seeds: mean, median and 95 % bootstrap intervals of each, and how often the paper's order holds."""
    methods = seeds[0]["methods"]

    def column(method: str, name: str) -> np.ndarray:
        return np.array([seed["methods"][method][name] for seed in seeds])

    executed = {method: column(method, "executed") for method in methods}
    ordered = np.array([executed[method] for method in paper.ORDER])
    others = [method for method in methods if method != OURS]
    ratio = np.array([np.array(seed["noise"]["learned"]) / np.array(seed["noise"]["true"]) for seed in seeds])
    return {
        "seeds": len(seeds),
        "methods": {
            method: {name: spread(column(method, name)) for name in SUMMARISED}
            | {
                "predicted_error": spread(relative_error(column(method, "predicted"), executed[method])),
                "sampled_error": spread(relative_error(column(method, "sampled"), executed[method])),
            }
            for method in methods
        },
        "best_in": {method: int(np.sum(executed[OURS] < executed[method])) for method in others},
        "best_of_all_in": int(np.sum(np.all([executed[OURS] < executed[method] for method in others], axis=0))),
        "paper_order_in": int(np.sum((np.diff(ordered, axis=0) > 0).all(axis=0))),
        "rank_sum_largest_p": {
            method: max(seed["methods"][method]["rank_sum"]["p"] for seed in seeds) for method in others
        },
        "worst_seed_executed": {method: float(values.max()) for method, values in executed.items()},
        "noise_ratio": {
            "median": np.median(ratio, axis=0).tolist(),
            "lowest": ratio.min(axis=0).tolist(),
            "highest": ratio.max(axis=0).tolist(),
        },
        "wall_s": spread([seed["wall_s"] for seed in seeds]),
        "cpu_s": spread([seed["cpu_s"] for seed in seeds]),
    }


def relative_error(promised: np.ndarray, executed: np.ndarray) -> np.ndarray:
    """How far a prediction was off, as a share of what was executed."""
    error: np.ndarray = np.abs(promised - executed) / executed
    return error


def spread(values: Sequence[float] | np.ndarray) -> Numbers:
    """Mean and median with their 95 % bootstrap intervals, and the extremes."""
    values = np.asarray(values)
    intervals = {}
    for name, statistic in (("mean", np.mean), ("median", np.median)):
        intervals[f"{name}_95"] = bootstrap_interval(values, statistic)
    return {"mean": float(values.mean()), "median": float(np.median(values)), **intervals} | {
        "lowest": float(values.min()),
        "highest": float(values.max()),
    }


def bootstrap_interval(values: np.ndarray, statistic: Callable[..., Any]) -> list[float] | None:
    """The 95 % percentile interval; the same every time. None from a single value, which has no spread."""
    if len(values) < 2:
        return None
    again = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(statistic(again, axis=1), (0.025, 0.975))
    return [float(low), float(high)]


CURVES = (
    "predicted_mean",
    "predicted_std",
    "sampled_mean",
    "sampled_std",
    "sampled_5",
    "sampled_95",
    "executed_mean",
    "executed_std",
    "covered",
)


def curves(outcome: Outcome, index: int) -> dict[str, np.ndarray]:
    """Cost per step of one method, as predicted, sampled and executed; mean and standard deviation of a single run."""
    executed, sampled = np.asarray(outcome.executed[index]), np.asarray(outcome.sampled[index])
    low, high = np.quantile(sampled, BAND, axis=0)
    columns = (
        np.asarray(outcome.predicted.cost_mean),
        np.sqrt(np.maximum(np.asarray(outcome.predicted.cost_variance), 0.0)),
        sampled.mean(axis=0),
        sampled.std(axis=0),
        low,
        high,
        executed.mean(axis=0),
        executed.std(axis=0),
        covered(executed, sampled),
    )
    return dict(zip(CURVES, columns, strict=True))


CURVES_HEAD = ",".join(("seed", "part", "method", "step", *CURVES))


def curve_lines(study: Study, seed: int, directory: Path) -> list[str]:
    """The curves of one seed as lines of CSV, one per part, method and step."""
    lines = []
    for part in (*PARTS, *ABLATIONS):
        if not part_file(directory, part).exists():
            continue
        outcome = read_outcome(study, directory, part)
        for n, method in enumerate(part.methods):
            columns = curves(outcome, n)
            for step in range(len(columns["predicted_mean"])):
                values = (f"{columns[name][step]:.6g}" for name in CURVES)
                lines.append(",".join((str(seed), part.name, method, str(step), *values)))
    return lines


def finished(directory: Path) -> dict[int, Path]:
    """The complete seeds of a study, by number."""
    found = {int(path.name.removeprefix("seed-")): path for path in directory.glob("seed-[0-9]*")}
    return {seed: found[seed] for seed in sorted(found) if is_complete(found[seed])}
