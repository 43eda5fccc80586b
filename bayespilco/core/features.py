"""Sines: angle features (sin, cos) and the sine that saturates actions, under Gaussian uncertainty.

A GP cannot know that an angle of 7 rad is nearly one of 0.7 rad, so models, policies and costs see the sine and
cosine of each angle. And a policy's output is squashed to the actuator's range by `(9 sin y + sin 3y) / 8`,
which is linear around zero and flat at the limits. Both are sines of linear maps of a Gaussian, so one set of
moments serves: `sines` below, plain and hierarchical (for a distribution over beliefs, where the expectation
over the belief is taken first: `E_b[sin x] = exp(-V/2) sin m`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.gaussian import Gaussian, Moments, diagonal, diagonal_matrix
from bayespilco.core.precision import float64


@float64
@jax.jit
def sines(gaussian: Gaussian, phases: Float[Array, " dim"]) -> Moments:
    """Moments of `sin(x_i + phase_i)`; a phase of pi/2 gives the cosine.

    From `2 sin a sin b = cos(a - b) - cos(a + b)` and `E cos(y) = exp(-var(y)/2) cos(E y)`. With zero covariance
    the mean is the sine itself and the covariance vanishes.
    """
    m, S = gaussian.mean + phases, gaussian.cov
    v = diagonal(S)
    damping = jnp.exp(-v / 2)
    mean = damping * jnp.sin(m)
    # exp(-(v_i + v_j)/2) (exp(+-S_ij) - 1), written so that small S does not cancel and large S not overflow.
    spread = (v[:, None] + v[None, :]) / 2
    above, below = jnp.maximum(S, 0), jnp.minimum(S, 0)
    excess = -jnp.expm1(-above) * jnp.exp(above - spread) + jnp.expm1(below) * jnp.exp(-spread)
    deficit = jnp.expm1(-above) * jnp.exp(-spread) - jnp.expm1(below) * jnp.exp(-below - spread)
    difference, total = m[:, None] - m[None, :], m[:, None] + m[None, :]
    cov = (excess * jnp.cos(difference) - deficit * jnp.cos(total)) / 2
    return Moments(mean, cov, diagonal_matrix(damping * jnp.cos(m)))


@float64
def belief_sines(
    gaussian: Gaussian, cov: Float[Array, "dim dim"], phases: Float[Array, " dim"]
) -> tuple[Moments, Float[Array, "dim dim"]]:
    """Moments of the belief's expectation `E_b[sin(x + phase)]`, and the expected covariance that remains in it.

    The belief is `N(M, V)` with `M ~ N(mu, S)`. With `V = 0` the first is `sines(gaussian)` and the second zero.
    """
    flat = sines(Gaussian(gaussian.mean, gaussian.cov + cov), phases)
    damping = jnp.exp(-diagonal(cov) / 2)
    of_mean = damping[:, None] * damping[None, :] * sines(gaussian, phases).cov
    return Moments(flat.mean, of_mean, flat.gain), flat.cov - of_mean


def _linear(matrix: Float[Array | np.ndarray, "output input"], gaussian: Gaussian) -> Gaussian:
    A = jnp.asarray(matrix)
    return Gaussian(A @ gaussian.mean, A @ gaussian.cov @ A.T)


class AngleFeatures(eqx.Module):
    """The map `x -> [x[keep], sin x_a, cos x_a, ...]` over the angles `a`, in this order: sin and cos per angle."""

    angles: tuple[int, ...] = eqx.field(static=True)
    keep: tuple[int, ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        return len(self.keep) + 2 * len(self.angles)

    @property
    def _phases(self) -> Float[Array, " trig"]:
        return jnp.asarray(np.tile([0.0, np.pi / 2], len(self.angles)))

    def _select(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Matrices that pick the components kept, and each angle twice (for its sine and its cosine)."""
        eye = np.eye(size)
        return eye[list(self.keep)].reshape(-1, size), np.repeat(eye[list(self.angles)], 2, axis=0).reshape(-1, size)

    @float64
    def __call__(self, x: Float[Array, " dim"]) -> Float[Array, " feature"]:
        keep, twice = self._select(x.shape[0])
        return jnp.concatenate([keep @ x, jnp.sin(twice @ x + self._phases)])

    @float64
    def moments(self, gaussian: Gaussian) -> Moments:
        _, twice = self._select(gaussian.size)
        return self._append(gaussian, sines(_linear(twice, gaussian), self._phases))

    @float64
    def belief_moments(
        self, gaussian: Gaussian, cov: Float[Array, "dim dim"]
    ) -> tuple[Moments, Float[Array, "feature feature"]]:
        """Moments of the belief's expected features, and the expected covariance of the features in the belief."""
        _, twice = self._select(gaussian.size)
        trig, trig_cov = belief_sines(_linear(twice, gaussian), twice @ cov @ twice.T, self._phases)
        moments = self._append(gaussian, trig)
        return moments, self._assemble(moments.gain, cov, trig_cov)

    @float64
    def cross_cov(
        self, x: Gaussian, m: Gaussian, cross: Float[Array, "dim dim"], cov: Float[Array, "dim dim"]
    ) -> Float[Array, "feature feature"]:
        """`Cov[features of X, E_b[features]]`, for a belief `N(M, cov)` and jointly Gaussian X and M.

        Args:
            cross: `Cov[X, M]`.
        """
        _, twice = self._select(x.size)
        block = twice @ cross @ twice.T
        of_both = jnp.block([[twice @ x.cov @ twice.T, block], [block.T, twice @ m.cov @ twice.T]])
        means = jnp.concatenate([twice @ x.mean, twice @ m.mean])
        of_sines = sines(Gaussian(means, of_both), jnp.tile(self._phases, 2)).cov
        damping = jnp.exp(-diagonal(twice @ cov @ twice.T) / 2)
        trig = of_sines[: len(twice), len(twice) :] * damping[None, :]
        linear = self.moments(x).gain.T @ cross @ self.belief_moments(m, cov)[0].gain
        return jax.lax.dynamic_update_slice(linear, trig, (len(self.keep),) * 2)

    def _append(self, gaussian: Gaussian, trig: Moments) -> Moments:
        keep, twice = self._select(gaussian.size)
        gain = jnp.concatenate([keep.T, twice.T @ trig.gain], axis=1)
        mean = jnp.concatenate([keep @ gaussian.mean, trig.mean])
        return Moments(mean, self._assemble(gain, gaussian.cov, trig.cov), gain)

    def _assemble(self, gain: Array, input_cov: Array, trig_block: Array) -> Float[Array, "feature feature"]:
        """Cov[kept, kept] and Cov[kept, trig] follow from the gain; the sines' own block is what it is."""
        kept = len(self.keep)
        return jax.lax.dynamic_update_slice(gain.T @ input_cov @ gain, trig_block, (kept, kept))


class Saturation(eqx.Module):
    """The squashing `y -> limit (9 sin y + sin 3y) / 8`, between `-limit` and `limit`."""

    limits: Float[Array, " action"]

    def _phases(self) -> tuple[Float[Array, "sines action"], Float[Array, "action sines"]]:
        eye = np.eye(self.limits.shape[0])
        scale = diagonal_matrix(jax.lax.stop_gradient(self.limits))
        return jnp.asarray(np.concatenate([eye, 3 * eye])), jnp.concatenate([9 * scale, scale], axis=1) / 8

    @float64
    def __call__(self, y: Float[Array, " action"]) -> Float[Array, " action"]:
        multiples, combine = self._phases()
        return combine @ jnp.sin(multiples @ y)

    @float64
    def moments(self, gaussian: Gaussian) -> Moments:
        multiples, combine = self._phases()
        inner = sines(_linear(multiples, gaussian), jnp.zeros(multiples.shape[0]))
        return Moments(combine @ inner.mean, combine @ inner.cov @ combine.T, multiples.T @ inner.gain @ combine.T)

    @float64
    def belief_moments(
        self, gaussian: Gaussian, cov: Float[Array, "action action"]
    ) -> tuple[Moments, Float[Array, "action action"]]:
        """Moments of the expected squashed value under a belief, and the expected covariance left in the belief."""
        multiples, combine = self._phases()
        inner, inner_cov = belief_sines(
            _linear(multiples, gaussian), multiples @ cov @ multiples.T, jnp.zeros(multiples.shape[0])
        )
        outer = Moments(combine @ inner.mean, combine @ inner.cov @ combine.T, multiples.T @ inner.gain @ combine.T)
        return outer, combine @ inner_cov @ combine.T
