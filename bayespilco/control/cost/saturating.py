"""The paper's cost, which saturates: `1 - exp(-1/2 (y - target)' W (y - target))` on features of the state.

It is 0 at the target and 1 far from it, so being far away is bad but not worse than a little less far: the
learner explores when everything looks equally far, and becomes careful when near. The price is that its
gradient vanishes at a distance; `widened` gives the same cost with a broader valley, to search in first.
"""

from typing import final

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.control.cost.base import COSTS, FeatureCost
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, Moments, check_covariance
from bayespilco.core.linalg import shrink
from bayespilco.core.precision import as_float64, float64, is_concrete


@final
@COSTS.register("saturating")
class SaturatingCost(FeatureCost):
    """`1 - exp(-(y - target)' W (y - target) / 2)`: near is good, and far is 1 however far."""

    features: AngleFeatures
    """From the state to `y`: what is kept of it, and the sines and cosines of its angles."""
    target: Float[Array, " feature"] = eqx.field(converter=as_float64)
    weight: Float[Array, "feature feature"] = eqx.field(converter=as_float64)
    """W: symmetric, no negative eigenvalue; usually `C' C / width^2` with `C y` a position in space."""

    def __check_init__(self) -> None:
        check_valley(self, self.features, self.target, self.weight)

    @property
    def worst(self) -> float:
        return 1.0

    @float64
    def at_goal(self, a: Float[Array, " joint"]) -> Bool[Array, ""]:
        """Where the cost is below 0.5: nearer than 1.18 widths."""
        return self(a) < 0.5

    @float64
    def widened(self, factor: float) -> "SaturatingCost":
        """The same cost with its width multiplied by `factor`."""
        return SaturatingCost(self.features, self.target, self.weight / factor**2)

    def value(self, y: Float[Array, " feature"]) -> Float[Array, ""]:
        d = y - self.target
        return -jnp.expm1(-d @ self.weight @ d / 2)

    def feature_moments(self, y: Gaussian) -> Moments:
        """From `r = exp(-d'Wd/2)`, whose mean and mean square are Gaussian integrals."""
        log_reward, slope = self._log_reward(y, 1.0)
        log_square, _ = self._log_reward(y, 2.0)
        mean = -jnp.expm1(log_reward)
        variance = jnp.exp(log_square) - jnp.exp(2 * log_reward)
        return Moments(mean[None], variance[None, None], (jnp.exp(log_reward) * slope)[:, None])

    def curvature(self, y: Gaussian) -> Float[Array, "feature feature"]:
        blurred, log_scale = shrink(self.weight, y.cov)
        d = y.mean - self.target
        slope = blurred @ d
        curvature: Array = jnp.exp(log_scale - d @ slope / 2) * (blurred - jnp.outer(slope, slope))
        return curvature

    def covariance_with(
        self, other: FeatureCost, y: Gaussian, z: Gaussian, cross: Float[Array, "feature others"]
    ) -> Float[Array, ""]:
        """Tilting: `E[r(y) g(z)] = E[r] E[g(z')]`, where `z'` has seen that `y` is near the target."""
        blurred, log_scale = shrink(self.weight, y.cov)
        d = y.mean - self.target
        reward = jnp.exp(log_scale - d @ blurred @ d / 2)
        tilted = Gaussian(z.mean - cross.T @ blurred @ d, z.cov - cross.T @ blurred @ cross)
        return reward * (other.feature_moments(z).mean[0] - other.feature_moments(tilted).mean[0])

    def _log_reward(self, y: Gaussian, power: float) -> tuple[Float[Array, ""], Float[Array, " feature"]]:
        """`log E[exp(-power d'Wd/2)]`, and the gain of the first power's exponent, `-(I + W S)^-1 W d`."""
        d = y.mean - self.target
        blurred, log_scale = shrink(power * self.weight, y.cov)
        return log_scale - d @ blurred @ d / 2, blurred @ d


def check_valley(
    cost: FeatureCost,
    features: AngleFeatures,
    target: Float[Array, " any"],
    weight: Float[Array, "any2 any3"],
) -> None:
    """The checks of a cost with a target and a weight matrix."""
    n, kind = features.size, type(cost).__name__
    if target.shape != (n,) or weight.shape != (n, n):
        raise ValueError(
            f"A {kind} on {n} features needs a target of shape ({n},) and a weight of shape ({n}, {n}); "
            f"given {target.shape} and {weight.shape}."
        )
    if is_concrete(weight, target):
        check_covariance(np.asarray(weight), f"weight of a {kind}")
        if not np.isfinite(np.asarray(target)).all():
            raise ValueError(f"The target of a {kind} must be finite; given {np.asarray(target)}.")
