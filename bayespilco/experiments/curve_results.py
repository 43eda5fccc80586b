"""From what was measured after each episode to the numbers of a study: per seed, and over seeds with intervals.

Costs are sums over all steps of an episode. A number that does not exist is None: the seconds until a threshold that
was never kept, or an interval of a single seed.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bayespilco.experiments.results import RESAMPLES, Numbers, spread
from bayespilco.tasks import Task

LEVELS = (50, 80, 90, 95)
"""Per cent of the sampled totals between the two ends of a band."""
THRESHOLDS = {"cart-pole": (26.8, 22.0, 20.0)}
"""Executed costs to be below, where more is known than the worst cost: 26.8 is what the paper reached with 22 s."""
SHARES = (1 / 2, 2 / 5, 1 / 3)
"""For other tasks: of the most that an episode can cost, or else of what the first, random episode did cost."""
SETTLED = 5
"""Episodes of data from which on predictions are expected to be calibrated: 10 s on the cart-pole."""


def usual_thresholds(task: Task, curves: Sequence[Numbers]) -> list[float]:
    """Costs to be below, from the highest to the lowest."""
    if task.name in THRESHOLDS:
        return list(THRESHOLDS[task.name])
    worst = task.cost.worst * (task.steps + 1)
    if not np.isfinite(worst):
        worst = float(np.median([curve["episodes"][0]["episode_cost"] for curve in curves])) if curves else 0.0
    return [float(f"{share * worst:.3g}") for share in SHARES]


def curve_numbers(curve: Numbers, thresholds: Sequence[float], episodes: int) -> Numbers:
    """All numbers of the first `episodes` of one run. It is complete when it has as many."""
    entries = curve["episodes"]
    following = [entry["episode_cost"] for entry in entries[1:]] + [None]
    numbers = [episode_numbers(entry, cost) for entry, cost in zip(entries, following, strict=True)][:episodes]
    seconds, executed = ([entry[key] for entry in numbers] for key in ("seconds", "executed"))
    return {
        "seed": curve["seed"],
        "method": curve["method"],
        "complete": len(numbers) == episodes,
        "until": {
            f"{limit:g}": dict(zip(("first", "stays"), seconds_until(seconds, executed, limit), strict=True))
            for limit in thresholds
        },
        "wall_s": _total(entry["wall_s"] for entry in numbers),
        "cpu_s": _total(entry["cpu_s"] for entry in numbers),
        "episodes": numbers,
    }


def episode_numbers(entry: Numbers, following: float | None) -> Numbers:
    """What the policy learned after one episode came to.

    Args:
        entry: What was measured (`curves.evaluate_record`).
        following: What the next episode of the run cost, which executed this policy once.
    """
    executed, sampled = np.array(entry["executed_totals"]), np.array(entry["sampled_totals"])
    bands = {str(level): band(sampled, level) for level in LEVELS}
    left_out = ("executed_totals", "sampled_totals", "taken")
    return {key: value for key, value in entry.items() if key not in left_out} | {
        "executed": float(executed.mean()),
        "executed_error": float(executed.std(ddof=1) / np.sqrt(len(executed))) if len(executed) > 1 else None,
        "executed_std": float(executed.std()),
        "sampled": float(sampled.mean()),
        "sampled_std": float(sampled.std()),
        "bands": bands,
        "coverage": {level: float(np.mean(inside(executed, ends))) for level, ends in bands.items()},
        "next_cost": following,
        "next_covered": {
            level: None if following is None else bool(inside(np.array([following]), ends)[0])
            for level, ends in bands.items()
        },
        "wall_s": entry["taken"]["wall_s"] if entry.get("taken") else None,
        "cpu_s": entry["taken"]["cpu_s"] if entry.get("taken") else None,
    }


def band(sampled: np.ndarray, level: int) -> tuple[float, float]:
    """The quantiles that have `level` per cent of the sampled totals between them."""
    low, high = np.quantile(sampled, (0.5 - level / 200, 0.5 + level / 200))
    return float(low), float(high)


def inside(values: np.ndarray, ends: Sequence[float]) -> np.ndarray:
    between: np.ndarray = (values >= ends[0]) & (values <= ends[1])
    return between


def seconds_until(
    seconds: Sequence[float], executed: Sequence[float], limit: float
) -> tuple[float | None, float | None]:
    """The seconds of interaction after which the cost was at most `limit` for the first time, and from then on."""
    below = np.array(executed) <= limit
    first = float(seconds[int(np.argmax(below))]) if below.any() else None
    staying = np.flatnonzero(~below)
    start = int(staying[-1]) + 1 if len(staying) else 0
    return first, float(seconds[start]) if start < len(below) else None


def _total(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if any(value is None for value in known) else float(sum(value for value in known if value is not None))


def summarise(curves: Sequence[Numbers], thresholds: Sequence[float]) -> Numbers:
    """Over seeds, by method."""
    methods = dict.fromkeys(curve["method"] for curve in curves)
    return {
        method: _summary([curve for curve in curves if curve["method"] == method], thresholds) for method in methods
    }


def _summary(curves: Sequence[Numbers], thresholds: Sequence[float]) -> Numbers:
    """One method. Thresholds and times are of complete runs; a curve's point is of all runs that have it."""
    complete = [curve for curve in curves if curve["complete"]]
    longest = max(len(curve["episodes"]) for curve in curves)
    at = [[curve["episodes"][n] for curve in curves if n < len(curve["episodes"])] for n in range(longest)]
    last = [curve["episodes"][-1] for curve in complete]
    ratios = np.array([np.array(entry["noise"]["learned"]) / np.array(entry["noise"]["true"]) for entry in last])
    walls, cpus = ([curve[key] for curve in complete if curve[key] is not None] for key in ("wall_s", "cpu_s"))
    return {
        "seeds": [curve["seed"] for curve in complete],
        "incomplete": [curve["seed"] for curve in curves if not curve["complete"]],
        "curve": [
            {
                "episode": n,
                "seconds": float(np.median([entry["seconds"] for entry in entries])),
                "seeds": len(entries),
                **{
                    name: spread([entry[name] for entry in entries])
                    for name in ("executed", "predicted", "sampled", "success", "reached")
                },
                "coverage": {level: _mean(entry["coverage"][level] for entry in entries) for level in map(str, LEVELS)},
            }
            for n, entries in enumerate(at)
        ],
        "until": {f"{limit:g}": _until(complete, limit) for limit in thresholds},
        "failed": failures(complete, max(thresholds)) if thresholds else None,
        "coverage": {
            "early": coverage(curves, range(SETTLED - 1)),
            "settled": coverage(curves, range(SETTLED - 1, longest)),
        },
        "noise_ratio": {
            "median": np.median(ratios, axis=0).tolist(),
            "lowest": ratios.min(axis=0).tolist(),
            "highest": ratios.max(axis=0).tolist(),
        }
        if last
        else None,
        "wall_s": spread(walls) if walls else None,
        "cpu_s": spread(cpus) if cpus else None,
    }


def _until(curves: Sequence[Numbers], limit: float) -> Numbers:
    """Seconds until the cost is at most `limit` and stays so: the median over seeds, those that never are included."""
    stays = [curve["until"][f"{limit:g}"]["stays"] for curve in curves]
    first = [curve["until"][f"{limit:g}"]["first"] for curve in curves]
    kept = sum(value is not None for value in stays)
    return {"kept_in": kept, "of": len(stays), **median_until(stays), "first": median_until(first)["median"]}


def median_until(seconds: Sequence[float | None]) -> Numbers:
    """Median and its 95 % bootstrap interval of times, where None is later than all others."""
    if not seconds:
        return {"median": None, "median_95": None}
    values = np.array([np.inf if value is None else value for value in seconds])
    interval = None
    if len(values) > 1:
        again = np.median(np.random.default_rng(0).choice(values, (RESAMPLES, len(values))), axis=1)
        interval = [_finite(end) for end in np.quantile(again, (0.025, 0.975), method="inverted_cdf")]
    return {"median": _finite(np.median(values)), "median_95": interval}


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def failures(curves: Sequence[Numbers], limit: float) -> Numbers:
    """The seeds whose last policy costs more than `limit`."""
    failed = [curve["seed"] for curve in curves if curve["episodes"][-1]["executed"] > limit]
    return {"limit": limit, "seeds": failed, "share": len(failed) / len(curves) if curves else None}


def coverage(curves: Sequence[Numbers], episodes: Iterable[int]) -> Numbers:
    """How often executed totals lie in the sampled bands, over all seeds and these episodes.

    `executions` is the share of all executions of the policies; `next` of the single episodes that runs went on with.
    """
    wanted = set(episodes)
    entries = [entry for curve in curves for entry in curve["episodes"] if entry["episode"] in wanted]
    once = [entry for entry in entries if entry["next_cost"] is not None]
    return {
        "policies": len(entries),
        "episodes": len(once),
        "executions": {level: _mean(entry["coverage"][level] for entry in entries) for level in map(str, LEVELS)},
        "next": {level: _mean(entry["next_covered"][level] for entry in once) for level in map(str, LEVELS)},
    }


def _mean(values: Iterable[Any]) -> float | None:
    found = [float(value) for value in values]
    return float(np.mean(found)) if found else None
