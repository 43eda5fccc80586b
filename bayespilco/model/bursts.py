"""Bursts: now and then all samples are lost for a while, as where a radio link breaks down or a hand hides the plant.

Samples that are lost one by one (`Sensors.dropout`) can be averaged over at each step, and leave one path of the
belief's covariance. A burst cannot: what the filter knows in the middle of one depends on how long it has lasted. So a
prediction draws several patterns of bursts, follows each, and averages at the end. The patterns are numbered, like
splits (`splitting`): the same number gives the same patterns, for every policy.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

PATHS = 16
"""Patterns that a prediction draws at least. One in parts draws one for each part."""


class Chain(NamedTuple):
    """A two-state Markov chain: samples come, or they are lost. At the first step they come."""

    begin: float
    """The probability that a burst begins at a step, after one with samples."""
    end: float
    """The probability that it ends at a step, after one without."""

    def following(self, lost: Any, uniform: Any) -> Any:
        """Whether the samples of the next step are lost, given those of this one and a uniform random number."""
        return uniform < self.begin + lost * (1 - self.end - self.begin)

    def draw(self, key: Array, times: int) -> Bool[Array, " times"]:
        """At which steps samples are lost."""

        def step(lost: Array, uniform: Array) -> tuple[Array, Array]:
            following = self.following(lost, uniform)
            return following, following

        first = jnp.asarray(False)
        _, later = jax.lax.scan(step, first, jax.random.uniform(key, (times - 1,)))
        return jnp.concatenate([first[None], later])

    def paths(self, times: int, count: int = PATHS, number: int = 0) -> Bool[np.ndarray, "paths times"]:
        """Patterns of equal weight, each with the distribution of the chain, and together spread evenly.

        A pattern is a row of durations, with and without samples in turn, which are geometric. A Latin hypercube over
        them makes as few patterns as these as different as they should be.
        """
        rng = np.random.default_rng(number)
        lost, now = np.zeros((count, times), dtype=bool), np.zeros(count, dtype=int)
        steps, in_burst = np.arange(times), False
        while now.min() < times:
            quantiles = (rng.permutation(count) + rng.uniform(size=count)) / count
            until = now + _geometric(quantiles, self.end if in_burst else self.begin, times)
            if in_burst:
                lost |= (steps >= now[:, None]) & (steps < until[:, None])
            now, in_burst = until, not in_burst
        return lost


def _geometric(quantiles: Float[np.ndarray, " paths"], probability: float, most: int) -> np.ndarray:
    """How many steps something lasts that ends with this probability at each step; at most `most`."""
    if probability == 1:
        return np.ones(len(quantiles), dtype=int)
    durations: np.ndarray = np.minimum(np.log1p(-quantiles) / np.log1p(-probability), most).astype(int) + 1
    return durations
