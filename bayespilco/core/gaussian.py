"""The language every map speaks: a Gaussian goes in, the moments of the output come out.

A map `y = f(x)` with `x ~ N(m, S)` is summarised by the mean and covariance of `y` and by its *gain*
`S^-1 Cov[x, y]`, always in closed form and never by inverting `S`, which is often singular (an action is a
function of the state; a first state may be known). For a Gaussian input the gain is the expected slope of `f`
(Stein's lemma), so gains of maps applied in turn multiply, and whatever is jointly Gaussian with `x` sees `y`
through the same gain.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.precision import as_float64, float64, is_concrete


class Gaussian(eqx.Module):
    """A Gaussian distribution `N(mean, cov)`. The covariance may be singular or zero."""

    mean: Float[Array, " dim"] = eqx.field(converter=as_float64)
    cov: Float[Array, "dim dim"] = eqx.field(converter=as_float64)

    def __check_init__(self) -> None:
        if self.mean.ndim != 1 or self.cov.shape != 2 * self.mean.shape:
            raise ValueError(
                f"A Gaussian needs a mean of shape (n,) and a covariance of shape (n, n); given {self.mean.shape} and "
                f"{self.cov.shape}. For one dimension use [m] and [[v]]."
            )
        if is_concrete(self.mean, self.cov):
            check_covariance(np.asarray(self.cov), "covariance of a Gaussian")
            if not np.isfinite(np.asarray(self.mean)).all():
                raise ValueError(f"The mean of a Gaussian must be finite; given {np.asarray(self.mean)}.")

    @property
    def size(self) -> int:
        return self.mean.shape[0]


class Moments(eqx.Module):
    """Mean, covariance and gain `Cov[x, x]^-1 Cov[x, y]` of a map's output `y` under a Gaussian input `x`."""

    mean: Float[Array, " output"]
    cov: Float[Array, "output output"]
    gain: Float[Array, "input output"]

    @property
    def output(self) -> Gaussian:
        return Gaussian(self.mean, self.cov)

    def then(self, following: "Moments") -> "Moments":
        """The moments of two maps applied in turn; `following` were computed at this map's output."""
        return Moments(following.mean, following.cov, self.gain @ following.gain)


@float64
def joint(gaussian: Gaussian, moments: Moments) -> Gaussian:
    """The joint of an input and its output, `[x, y]`: Eqs. 19-20 of the paper, where `y` is the action."""
    cross = gaussian.cov @ moments.gain
    return Gaussian(
        jnp.concatenate([gaussian.mean, moments.mean]),
        jnp.block([[gaussian.cov, cross], [cross.T, moments.cov]]),
    )


def symmetrise(matrix: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    return (matrix + jnp.swapaxes(matrix, -1, -2)) / 2


def diagonal(matrix: Float[Array, "*batch n n"]) -> Float[Array, "*batch n"]:
    """What is on the diagonal. (`jnp.diag` is a choice between platforms, which takes milliseconds to trace.)"""
    return jnp.sum(matrix * np.eye(matrix.shape[-1]), axis=-1)


def diagonal_matrix(values: Float[Array, "*batch n"]) -> Float[Array, "*batch n n"]:
    return values[..., None] * np.eye(values.shape[-1])


def check_covariance(cov: np.ndarray, what: str) -> None:
    """Refuse what is not a covariance: not finite, not symmetric, or with a negative eigenvalue beyond rounding."""
    if not np.isfinite(cov).all():
        raise ValueError(f"The {what} must be finite; given {cov}.")
    scale = np.abs(cov).max(initial=0.0)
    if scale == 0:
        return
    if np.abs(cov - cov.T).max() > 1e-8 * scale:
        raise ValueError(f"The {what} must be symmetric; given {cov}. Try (C + C.T) / 2.")
    lowest = np.linalg.eigvalsh(cov).min()
    if lowest < -1e-8 * max(scale, 1e-4):
        raise ValueError(
            f"The {what} must have no negative eigenvalue; the lowest of the one given is {lowest:.3g}. "
            f"Standard deviations go in squared: np.diag(std**2). Given {cov}."
        )
