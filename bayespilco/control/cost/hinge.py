"""A cost of leaving an interval: zero inside, and outside proportional to the distance from it.

It is the sum of two ramps, `slope (y - upper)+` and `slope (lower - y)+`. Under a Gaussian a ramp's mean and variance
are those of a rectified normal variable.
"""

from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jax.scipy.stats.norm import pdf
from jaxtyping import Array, Bool, Float

from bayespilco.control.cost.base import COSTS, FeatureCost
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, Moments
from bayespilco.core.precision import as_float64, float64, is_concrete

SMALLEST_VARIANCE = 1e-30
"""Below this a variance counts as zero where something is divided by its root."""
NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)


@final
@COSTS.register("hinge")
class HingeCost(FeatureCost):
    """`slope (y - upper)` above an interval and `slope (lower - y)` below it: stay inside."""

    features: AngleFeatures
    """From the state (and action) to `y`, which is one number: `AngleFeatures((), (i,))`."""
    slope: Float[Array, ""] = eqx.field(converter=as_float64)
    lower: Float[Array, ""] = eqx.field(converter=as_float64, default=-np.inf)
    upper: Float[Array, ""] = eqx.field(converter=as_float64, default=np.inf)
    """The interval's ends. An infinite end is no limit."""

    def __check_init__(self) -> None:
        if self.features.size != 1:
            raise ValueError(
                f"A HingeCost is on one feature, such as AngleFeatures((), (0,)); given {self.features}. For several, "
                f"add several HingeCosts."
            )
        if self.slope.shape or self.lower.shape or self.upper.shape:
            raise ValueError("Slope, lower and upper of a HingeCost are single numbers; given arrays.")
        if is_concrete(self.slope, self.lower, self.upper):
            slope, lower, upper = (np.asarray(value) for value in (self.slope, self.lower, self.upper))
            if not (slope >= 0 and np.isfinite(slope)):
                raise ValueError(f"The slope of a HingeCost must be finite and at least 0; given {slope}.")
            if not lower <= upper:
                raise ValueError(f"A HingeCost needs lower <= upper; given {lower} and {upper}.")

    @property
    def worst(self) -> float:
        return float("inf")

    @float64
    def at_goal(self, a: Float[Array, " joint"]) -> Bool[Array, ""]:
        """Inside the interval, its ends included."""
        return self(a) <= 0

    def widened(self, factor: float) -> "HingeCost":
        """Itself: outside, its gradient does not vanish; inside, there is nothing to find."""
        return self

    def value(self, y: Float[Array, " feature"]) -> Float[Array, ""]:
        return self.slope * (jnp.maximum(y[0] - self.upper, 0) + jnp.maximum(self.lower - y[0], 0))

    def feature_moments(self, y: Gaussian) -> Moments:
        above, below = self._ramps(y)
        mean = above.mean + below.mean
        # One of the ramps is always zero: the expectation of their product is too.
        variance = above.variance + below.variance - 2 * above.mean * below.mean
        gain = above.share - below.share
        return Moments(self.slope * mean[None], self.slope**2 * variance[None, None], self.slope * gain[None, None])

    def curvature(self, y: Gaussian) -> Float[Array, "1 1"]:
        above, below = self._ramps(y)
        return self.slope * (above.density + below.density)[None, None]

    def covariance_with(
        self, other: FeatureCost, y: Gaussian, z: Gaussian, cross: Float[Array, "1 others"]
    ) -> Float[Array, ""] | None:
        """With another hinge: an integral over the correlation (Price's theorem), by quadrature."""
        if not isinstance(other, HingeCost):
            return None
        first = self.feature_moments(y).gain[0, 0] * cross[0, 0] * other.feature_moments(z).gain[0, 0]
        bends: Array = _bends(self._ends, y, other._ends, z, cross[0, 0])
        return first + self.slope * other.slope * bends

    @property
    def _ends(self) -> Float[Array, "2"]:
        return jnp.stack([self.lower, self.upper])

    def _ramps(self, y: Gaussian) -> "tuple[Ramp, Ramp]":
        """The part above the interval and the part below it, for a slope of 1."""
        v = y.cov[0, 0]
        return ramp(y.mean[0] - self.upper, v), ramp(self.lower - y.mean[0], v)


class Ramp(NamedTuple):
    """Moments of `(x)+`, the positive part of a normal variable."""

    mean: Float[Array, ""]
    variance: Float[Array, ""]
    share: Float[Array, ""]
    """P(x > 0): the expected slope."""
    density: Float[Array, ""]
    """The density of x at 0: the expected second derivative."""


@jax.jit
def ramp(m: Float[Array, ""], v: Float[Array, ""]) -> Ramp:
    """Of `(x)+` with `x ~ N(m, v)`; a mean of minus infinity gives zeros, and no variance the value itself."""
    exists = jnp.isfinite(m)
    m, s = jnp.where(exists, m, 0.0), _root(v)
    P, p = ndtr(m / s), pdf(m / s)
    mean = m * P + s * p
    variance = v * P + m**2 * P * ndtr(-m / s) + m * s * p * (1 - 2 * P) - (s * p) ** 2
    return Ramp(*(jnp.where(exists, value, 0.0) for value in (mean, variance, P, p / s)))


@jax.jit
def _bends(
    b: Float[Array, " bends"], y: Gaussian, c: Float[Array, " others"], z: Gaussian, cross: Float[Array, ""]
) -> Float[Array, ""]:
    """What bends at `b` and at `c` add to the covariance of two functions of jointly normal `y` and `z`.

    `integral from 0 to k of (k - t) p(b, c; t) dt`, with `k = Cov[y, z]` and `p` the joint density for a covariance of
    `t`, summed over the pairs. With `t = s_y s_z sin(angle)` the integrand is smooth, up to a correlation of 1.
    """
    s_y, s_z = _root(y.cov[0, 0]), _root(z.cov[0, 0])
    sign = jnp.where(cross < 0, -1.0, 1.0)
    correlation = sign * cross / (s_y * s_z)
    h = ((jnp.where(jnp.isfinite(b), b, 0.0) - y.mean[0]) / s_y)[:, None, None]
    k = (sign * (jnp.where(jnp.isfinite(c), c, 0.0) - z.mean[0]) / s_z)[:, None]
    # The integrand is zero at its upper end, so moving this end adds nothing to the derivative.
    end = jnp.arcsin(jnp.clip(jax.lax.stop_gradient(correlation), 0.0, 1.0))
    sine, cosine = jnp.sin(end * (NODES + 1) / 2), jnp.cos(end * (NODES + 1) / 2)
    exponent = -((h - k) ** 2) / (2 * cosine**2) - h * k / (1 + sine)
    each = jnp.exp(exponent) @ (WEIGHTS * (correlation - sine)) * end / 2
    exist = jnp.isfinite(b)[:, None] & jnp.isfinite(c)
    return s_y * s_z * jnp.sum(jnp.where(exist, each, 0.0)) / (2 * jnp.pi)


def _root(variance: Float[Array, ""]) -> Float[Array, ""]:
    """The standard deviation, kept from zero."""
    return jnp.sqrt(jnp.where(variance > SMALLEST_VARIANCE, variance, SMALLEST_VARIANCE))
