"""A probability from counted runs: with bounds that hold for any number of runs, also if none or all of them count.

Clopper and Pearson's bounds invert the binomial distribution, so they need no approximation. Looking several times
while runs are added gives chance several opportunities; `looks` divides the error that is allowed among them.
"""

from typing import NamedTuple

from scipy.special import betaincinv


class Share(NamedTuple):
    """How many of so many runs, with a lower and an upper bound of the probability."""

    times: int
    runs: int
    lower: float
    upper: float
    confidence: float
    """Of each bound by itself."""

    @property
    def probability(self) -> float:
        return self.times / self.runs


def clopper_pearson(times: int, runs: int, confidence: float = 0.95, looks: int = 1) -> Share:
    """One-sided bounds of the probability of what happened in `times` of `runs` runs.

    Args:
        confidence: That the probability is above the lower bound, and, by itself, that it is below the upper one.
        looks: How many times the runs are counted while there are more and more of them. The bounds hold at all of
            these together.
    """
    if not 0 <= times <= runs or runs < 1:
        raise ValueError(f"A share needs a count from 0 to the number of runs, at least 1; given {times} of {runs}.")
    if not 0 < confidence < 1 or looks < 1:
        raise ValueError(f"confidence must be between 0 and 1, looks at least 1; given {confidence} and {looks}.")
    error = (1 - confidence) / looks
    lower = float(betaincinv(times, runs - times + 1, error)) if times else 0.0
    upper = float(betaincinv(times + 1, runs - times, 1 - error)) if times < runs else 1.0
    return Share(times, runs, lower, upper, confidence)
