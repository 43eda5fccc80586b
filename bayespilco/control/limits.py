"""Limits of states in a prediction: how probable it is, at each step, that a state is beyond one.

The predicted state is Gaussian at each step, so this is two tails of a normal distribution, with an exact gradient.
Over several limits, and over the steps of a run, probabilities are added (Boole's inequality): the sum is at least the
probability that any limit is ever exceeded. It is more where a state stays beyond a limit for several steps, so a
search that keeps the sum small is on the safe side. What is reported comes from sampling.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array, Float

from bayespilco.core.gaussian import Gaussian

SMALLEST_VARIANCE = 1e-30
"""Below this a variance counts as zero where something is divided by its root."""


class Bounds(eqx.Module):
    """What one row of the state must not exceed."""

    row: int = eqx.field(static=True)
    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)


def outside(limits: Sequence[Bounds], state: Gaussian) -> Float[Array, ""]:
    """The probability that a Gaussian state is beyond a limit, added up over the limits."""
    total = jnp.zeros(())
    for limit in limits:
        mean, variance = state.mean[limit.row], state.cov[limit.row, limit.row]
        std = jnp.sqrt(jnp.where(variance > SMALLEST_VARIANCE, variance, SMALLEST_VARIANCE))
        # An infinite end has no tail, and no gradient: 0 times infinity would be NaN.
        for beyond, end in ((mean - limit.high, limit.high), (limit.low - mean, limit.low)):
            if math.isfinite(end):
                total = total + ndtr(beyond / std)
    return total
