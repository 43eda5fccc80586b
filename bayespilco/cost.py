"""What is to be avoided: a saturating cost, `1 - exp(-1/2 (y - target)' W (y - target))` on features of the state.

It is 0 at the target and 1 far from it, so being far away is bad but not worse than a little less far: the
learner explores when everything looks equally far, and becomes careful when near. The price is that its
gradient vanishes at a distance; `widened` gives the same cost with a broader valley, to search in first.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian, Moments, check_covariance
from bayespilco.precision import as_float64, float64, is_concrete
from bayespilco.shrink import shrink


class SaturatingCost(eqx.Module):
    """The paper's cost, with moments under a Gaussian state and under a distribution over beliefs."""

    features: AngleFeatures
    """From the state to `y`: what is kept of it, and the sines and cosines of its angles."""
    target: Float[Array, " feature"] = eqx.field(converter=as_float64)
    weight: Float[Array, "feature feature"] = eqx.field(converter=as_float64)
    """W: symmetric, no negative eigenvalue; usually `C' C / width^2` with `C y` a position in space."""

    def __check_init__(self) -> None:
        n = self.features.size
        if self.target.shape != (n,) or self.weight.shape != (n, n):
            raise ValueError(
                f"A SaturatingCost on {n} features needs a target of shape ({n},) and a weight of shape ({n}, {n}); "
                f"given {self.target.shape} and {self.weight.shape}."
            )
        if is_concrete(self.weight, self.target):
            check_covariance(np.asarray(self.weight), "weight of a SaturatingCost")
            if not np.isfinite(np.asarray(self.target)).all():
                raise ValueError(f"The target of a SaturatingCost must be finite; given {np.asarray(self.target)}.")

    def widened(self, factor: float) -> "SaturatingCost":
        """The same cost with its width multiplied by `factor`."""
        return SaturatingCost(self.features, self.target, self.weight / factor**2)

    @float64
    def __call__(self, x: Float[Array, " state"]) -> Float[Array, ""]:
        d = self.features(x) - self.target
        return -jnp.expm1(-d @ self.weight @ d / 2)

    @float64
    @jax.jit
    def moments(self, gaussian: Gaussian) -> Moments:
        """Mean, variance and gain of the cost of a state `N(m, S)`. Shapes (1,), (1, 1) and (state, 1)."""
        inner = self.features.moments(gaussian)
        log_reward, slope = self._log_reward(inner.mean, inner.cov, 1.0)
        log_square, _ = self._log_reward(inner.mean, inner.cov, 2.0)
        mean = -jnp.expm1(log_reward)
        variance = jnp.exp(log_square) - jnp.exp(2 * log_reward)
        gain = inner.gain @ (jnp.exp(log_reward) * slope)
        return Moments(mean[None], variance[None, None], gain[:, None])

    @float64
    def belief_moments(
        self, gaussian: Gaussian, cov: Float[Array, "state state"]
    ) -> tuple[Moments, Float[Array, "1 1"]]:
        """Moments of the cost that the belief expects, and the expected variance of the cost in the belief.

        The belief is `N(M, V)`, `M ~ N(mu, S)`. Blurring by `V` turns `exp(-d'Wd/2)` into another of its kind, with
        `W_V = W (I + V W)^-1`, whose mean and variance over `M` are those of `moments`. With `V = 0` the second is 0.
        """
        inner, V = self.features.belief_moments(gaussian, cov)
        flat, slope = self._log_reward(inner.mean, inner.cov + V, 1.0)
        blurred, log_scale = shrink(self.weight, V)
        log_square, _ = SaturatingCost(self.features, self.target, blurred)._log_reward(inner.mean, inner.cov, 2.0)
        of_mean = jnp.exp(log_square + 2 * log_scale) - jnp.exp(2 * flat)
        total, _ = self._log_reward(inner.mean, inner.cov + V, 2.0)
        variance = jnp.exp(total) - jnp.exp(2 * flat) - of_mean
        gain = inner.gain @ (jnp.exp(flat) * slope)
        return Moments(-jnp.expm1(flat)[None], of_mean[None, None], gain[:, None]), variance[None, None]

    def _log_reward(
        self, m: Float[Array, " feature"], S: Float[Array, "feature feature"], power: float
    ) -> tuple[Float[Array, ""], Float[Array, " feature"]]:
        """`log E[exp(-power d'Wd/2)]`, and the gain of the first power's exponent, `-(I + W S)^-1 W d`."""
        d = m - self.target
        blurred, log_scale = shrink(power * self.weight, S)
        return log_scale - d @ blurred @ d / 2, blurred @ d
