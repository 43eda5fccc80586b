"""Costs that grow without bound: quadratic, `(y - target)' W (y - target)`, and linear, `slope' (y - origin)`.

The quadratic cost pulls from any distance, so a search finds its way from far; but an unlikely excursion can dominate
the expectation. It is the usual cost of actions (`effort`, `smoothness`). Both are exact under a Gaussian.
"""

from typing import final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.control.cost.base import COSTS, FeatureCost
from bayespilco.control.cost.between import expansion
from bayespilco.control.cost.saturating import check_valley
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, Moments
from bayespilco.core.precision import as_float64, float64, is_concrete


@final
@COSTS.register("quadratic")
class QuadraticCost(FeatureCost):
    """`(y - target)' W (y - target)`: pulls from any distance."""

    features: AngleFeatures
    """From the state (and action) to `y`: what is kept of it, and the sines and cosines of its angles."""
    target: Float[Array, " feature"] = eqx.field(converter=as_float64)
    weight: Float[Array, "feature feature"] = eqx.field(converter=as_float64)
    """W: symmetric, no negative eigenvalue."""
    tolerance: Float[Array, ""] = eqx.field(converter=as_float64, default=1.0)
    """At the goal where the cost is below this; `inf` if the cost has no say in it (a cost of actions)."""

    def __check_init__(self) -> None:
        check_valley(self, self.features, self.target, self.weight)
        if is_concrete(self.tolerance) and not np.asarray(self.tolerance) >= 0:
            raise ValueError(f"The tolerance of a QuadraticCost must be at least 0; given {self.tolerance}.")

    @property
    def worst(self) -> float:
        return float("inf")

    @float64
    def at_goal(self, a: Float[Array, " joint"]) -> Bool[Array, ""]:
        """Where the cost is below its `tolerance`."""
        return self(a) < self.tolerance

    def widened(self, factor: float) -> "QuadraticCost":
        """Itself: its gradient does not vanish at a distance."""
        return self

    def value(self, y: Float[Array, " feature"]) -> Float[Array, ""]:
        d = y - self.target
        return d @ self.weight @ d

    def feature_moments(self, y: Gaussian) -> Moments:
        """`d'Wd + tr(WS)`, `4 d'WSWd + 2 tr(WSWS)` and `2Wd`."""
        d, WS = y.mean - self.target, self.weight @ y.cov
        Wd = self.weight @ d
        variance = 4 * Wd @ y.cov @ Wd + 2 * jnp.sum(WS * WS.T)
        return Moments((d @ Wd + jnp.sum(self.weight * y.cov))[None], variance[None, None], 2 * Wd[:, None])

    def curvature(self, y: Gaussian) -> Float[Array, "feature feature"]:
        return 2 * self.weight

    def covariance_with(
        self, other: FeatureCost, y: Gaussian, z: Gaussian, cross: Float[Array, "feature others"]
    ) -> Float[Array, ""]:
        """A quadratic has no third derivative, so two terms of the expansion are all."""
        return expansion(self, other, y, z, cross)


@final
@COSTS.register("linear")
class LinearCost(FeatureCost):
    """`slope' (y - origin)`: proportional, and negative on the good side (a reward)."""

    features: AngleFeatures
    """From the state (and action) to `y`: what is kept of it, and the sines and cosines of its angles."""
    slope: Float[Array, " feature"] = eqx.field(converter=as_float64)
    origin: Float[Array, " feature"] = eqx.field(converter=as_float64)
    """Where the cost is zero."""

    def __check_init__(self) -> None:
        n = self.features.size
        if self.slope.shape != (n,) or self.origin.shape != (n,):
            raise ValueError(
                f"A LinearCost on {n} features needs a slope and an origin of shape ({n},); given {self.slope.shape} "
                f"and {self.origin.shape}."
            )
        if is_concrete(self.slope, self.origin):
            for name, value in (("slope", self.slope), ("origin", self.origin)):
                if not np.isfinite(np.asarray(value)).all():
                    raise ValueError(f"The {name} of a LinearCost must be finite; given {np.asarray(value)}.")

    @property
    def worst(self) -> float:
        return float("inf")

    @float64
    def at_goal(self, a: Float[Array, " joint"]) -> Bool[Array, ""]:
        """On the good side of the origin: where the cost is not positive."""
        return self(a) <= 0

    def widened(self, factor: float) -> "LinearCost":
        """Itself: its gradient is the same everywhere."""
        return self

    def value(self, y: Float[Array, " feature"]) -> Float[Array, ""]:
        return self.slope @ (y - self.origin)

    def feature_moments(self, y: Gaussian) -> Moments:
        return Moments(self.value(y.mean)[None], (self.slope @ y.cov @ self.slope)[None, None], self.slope[:, None])

    def curvature(self, y: Gaussian) -> Float[Array, "feature feature"]:
        return jnp.zeros_like(y.cov)

    def covariance_with(
        self, other: FeatureCost, y: Gaussian, z: Gaussian, cross: Float[Array, "feature others"]
    ) -> Float[Array, ""]:
        """Stein's lemma: only the first term of the expansion."""
        return self.slope @ cross @ other.feature_moments(z).gain[:, 0]
