"""Were the promises kept? Ranks, coverage at several levels, and how much wider bands have to be.

What is promised are samples: many runs of one policy on plants drawn from the model. What is kept are executed runs. If
the promise is honest, an executed number is one more sample: its rank among them is uniform, and central intervals
cover it as often as they say. All functions take arrays; `sampled` has the samples along its first axis.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""The nominal coverages of a calibration curve."""
BAND = 0.9
"""The nominal coverage of the bands that are promised."""
PRIOR = 2.0
"""So many promises, exactly kept, are assumed before the first one is tested."""
SMALLEST = 0.01
"""The least half-width of a band that is taken seriously, relative to its middle."""
LARGEST_MISS = 1000.0
"""A miss that counts as no larger: where nothing was left open any other total would miss infinitely, for ever."""
MEMORY = 0.8
"""How much less each earlier promise counts than the one after it: models improve as data come in."""


def central_interval(sampled: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the central interval that one more sample lies in with probability `level`.

    Quantiles at `k / (samples + 1)`, so that the probability is exact also with few samples.
    """
    if not 0 < level < 1:
        raise ValueError(f"The level of an interval must be between 0 and 1; given {level}.")
    low, high = np.quantile(sampled, [(1 - level) / 2, (1 + level) / 2], axis=0, method="weibull")
    return np.asarray(low), np.asarray(high)


def coverage(sampled: np.ndarray, executed: np.ndarray, levels: Sequence[float] = LEVELS) -> dict[float, float]:
    """The share of executed values within the central interval of the sampled ones, at each nominal level.

    Args:
        sampled: Shape (samples, ...): totals (samples,), costs per step (samples, times), states (samples, times,
            states).
        executed: Shape (executions, ...), or that of one execution.
    """
    sampled, executed = np.asarray(sampled), np.asarray(executed)
    if executed.shape == sampled.shape[1:]:
        executed = executed[None]
    if sampled.ndim < 1 or len(sampled) < 2 or executed.shape[1:] != sampled.shape[1:]:
        raise ValueError(
            "coverage needs at least two samples, and executed values of the same shape but for the first axis; given "
            f"shapes {sampled.shape} and {executed.shape}."
        )
    found = {}
    for level in levels:
        low, high = central_interval(sampled, level)
        found[float(level)] = float(np.mean((executed >= low) & (executed <= high)))
    return found


def calibration_curve(
    sampled: Mapping[str, np.ndarray], executed: Mapping[str, np.ndarray], levels: Sequence[float] = LEVELS
) -> dict[str, dict[float, float]]:
    """`coverage` of several quantities, by name: totals, states, costs. Pool several promises with `pooled`."""
    return {name: coverage(sampled[name], executed[name], levels) for name in sampled}


def pooled(curves: Sequence[Mapping[float, float]]) -> dict[float, float]:
    """The mean of several calibration curves: over promises, seeds or methods, each with the same weight."""
    if not curves:
        raise ValueError("There is no calibration curve to pool.")
    return {level: float(np.mean([curve[level] for curve in curves])) for level in curves[0]}


def rank(sampled: np.ndarray, executed: float) -> float:
    """Where an executed value is among the samples: uniform between 0 and 1 if the promise is honest."""
    sampled = np.asarray(sampled)
    below, same = np.sum(sampled < executed), np.sum(sampled == executed)
    return float((below + (same + 1) / 2) / (len(sampled) + 1))


def miss(sampled: np.ndarray, executed: float) -> float:
    """How far an executed value is from the samples' median, in units in which a 90 % band ends at +-1.645.

    Each side of the median has its own unit, as totals are skewed: a failed run costs much more than a good one. A unit
    is at least `SMALLEST` of the median: nobody minds a total that is wrong by less.
    """
    low, high = central_interval(np.asarray(sampled), BAND)
    middle = float(np.median(sampled))
    side = float(high) - middle if executed > middle else middle - float(low)
    side = max(side, SMALLEST * abs(middle))
    edge = float(ndtri((1 + BAND) / 2))
    if executed == middle:
        return 0.0
    away = edge * (executed - middle) / side if side > 0 else np.copysign(np.inf, executed - middle)
    return float(np.clip(away, -LARGEST_MISS, LARGEST_MISS)) if not np.isnan(away) else LARGEST_MISS


class Calibration(NamedTuple):
    """What earlier promises tell about the next one."""

    promises: int
    """How many were tested."""
    scale: float
    """How large the misses were, relative to those that were promised: 1 if the promises are honest."""
    factor: float
    """How much wider a 90 % band has to be."""

    def widened(self, sampled: np.ndarray) -> tuple[float, float]:
        """The 90 % band of samples, widened on each side of the median."""
        low, high = (float(end) for end in central_interval(np.asarray(sampled), BAND))
        middle = float(np.median(sampled))
        return middle - self.factor * (middle - low), middle + self.factor * (high - middle)


def calibrate(misses: Sequence[float]) -> Calibration:
    """From the misses of earlier promises, the oldest first, to the width of the next band.

    Misses are taken for normal, with a scale that is not known. `PRIOR` kept promises of scale 1 come first, and
    older misses count less (`MEMORY`). The next miss then has Student's distribution, whose quantiles are wider than
    the normal ones: more so with few promises.
    """
    z = np.asarray(misses, dtype=float)
    weights = MEMORY ** np.arange(len(z))[::-1]
    known = PRIOR + weights.sum()
    scale = float(np.sqrt((PRIOR + np.sum(weights * z**2)) / known))
    half = (1 + BAND) / 2
    factor = scale * float(stdtrit(known, half) / ndtri(half))
    return Calibration(len(z), scale, max(factor, 1.0))
