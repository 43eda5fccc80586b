"""Exploration by what can be learned: of the spread of a policy's cost, only what data reduce is worth trying for.

The total cost of a policy varies for two reasons. Nobody knows which of the plants that the data leave possible is the
real one; and each run has a first state and noise of its own. More data reduce the first part only. Two runs on one
drawn plant, each with its own first state and noise, have nothing in common but the plant. So the covariance of their
totals, over many plants, is the reducible part: no derivative and no covariance between steps is needed.

What it is worth to try a policy depends on how many episodes are left to make use of what is learned. For a choice
between normal distributions with unknown means that is Gittins' index, here for a finite number of episodes.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
import scipy.optimize
from jaxtyping import Float
from scipy.special import ndtri


class Spread(NamedTuple):
    """How the total cost of a policy varies, over plants and over runs."""

    mean: float
    reducible: float
    """The variance that comes from not knowing the plant."""
    rest: float
    """The variance between runs on one plant."""
    error: float
    """The standard error of `reducible`."""


def spread(first: Float[np.ndarray, " plants"], second: Float[np.ndarray, " plants"]) -> Spread:
    """Of the totals of two independent runs on each of many plants.

    An estimated covariance below zero counts as zero.
    """
    one, other = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if one.ndim != 1 or one.shape != other.shape or len(one) < 2:
        raise ValueError(
            f"A reducible variance needs two runs on each of at least two plants; given totals of shapes {one.shape} "
            f"and {other.shape}."
        )
    cov = np.cov(one, other)
    reducible = max(float(cov[0, 1]), 0.0)
    products = (one - one.mean()) * (other - other.mean())
    return Spread(
        mean=float((one.mean() + other.mean()) / 2),
        reducible=reducible,
        rest=max(float(np.trace(cov) / 2) - reducible, 0.0),
        error=float(products.std(ddof=1) / np.sqrt(len(products))),
    )


def worth(found: Spread, left: int) -> float:
    """How much more than the best known cost a policy may cost on average and be worth an episode all the same.

    Gittins' index for as many episodes as there are: this one and those `left` after it. In each of them one either
    goes on with the policy, whose mean is then known better, or gives it up for good, for a policy of known cost. The
    index is the difference of costs at which trying and giving up are worth the same. At the end it is 0: nobody is
    left to make use of what is learned.
    """
    if left < 1 or found.reducible <= 0:
        return 0.0
    return math.sqrt(found.reducible) * _index(found.rest / found.reducible, left + 1)


REACH, POINTS, NODES = 6.0, 241, 200
"""The grid of means, in standard deviations of what is not known, and the points that stand for a normal variable: of
equal weight, as what is integrated has a bend."""


@functools.lru_cache(maxsize=1024)
def _index(rest: float, plays: int) -> float:
    """The index where the unknown mean has variance 1 and a run has variance `rest`: backward induction on a grid."""
    nodes = ndtri((np.arange(NODES) + 0.5) / NODES)
    nodes = nodes / nodes.std()
    grid = np.linspace(-REACH, REACH, POINTS)
    left = [rest / (rest + k) if k else 1.0 for k in range(plays + 1)]  # the variance after k runs
    moves = [math.sqrt(max(before - after, 0.0)) for before, after in itertools.pairwise(left)]

    def advantage(charge: float) -> float:
        """Of one run and all that may follow over none, if each run gains the unknown mean less a charge."""
        value = np.zeros_like(grid)  # of what is left of the plays, by the mean so far
        for move in reversed(moves[1:]):
            following = np.interp(grid[:, None] + move * nodes, grid, value).mean(axis=1)
            value = np.maximum(grid - charge + following, 0.0)
        return float(np.interp(moves[0] * nodes, grid, value).mean()) - charge

    return float(scipy.optimize.brentq(advantage, 0.0, REACH))
