"""How well a GP explains its data: the negative log marginal likelihood of one output, and its penalties.

Ordinary training (errors in the targets only) minimises one of these over the hyperparameters:

    full   1/2 r' K^-1 r + 1/2 log |K| + N/2 log 2 pi,      K = k(X, X) + sn^2 I,    r = y - X phi - b
    FITC   the same with K = Q + diag(k(X, X) - Q) + sn^2 I,    Q = Knm Kmm^-1 Kmn (inducing points m)
    VFE    the same with K = Q + sn^2 I, plus tr(k(X, X) - Q) / (2 sn^2)

Everything is written for one output and padded data: a point whose `real` is false has a row and column of the
identity in `K` and a residual of zero, so it adds nothing, and compiled code serves data sets of many sizes.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Bool, Float

LOG_2PI = float(np.log(2 * np.pi))
Scalar = Float[Array, ""]
Either = Array | np.ndarray
"""Parameters are JAX arrays while their likelihood is differentiated, and NumPy arrays once they are found."""


class Hyperparameters(NamedTuple):
    """What ordinary training learns for one output (with a leading axis: for all of them)."""

    log_length_scales: Float[Either, "*output input"]
    log_signal: Float[Either, "*output"]
    """log s, a standard deviation."""
    log_noise: Float[Either, "*output"]
    """log sn, a standard deviation."""
    slope: Float[Either, "*output input"]
    offset: Float[Either, "*output"]


class Points(NamedTuple):
    """The data of one output, padded, with the inputs that its kernel and its linear mean may look at."""

    inputs: Float[Array, "points input"]
    targets: Float[Array, " points"]
    real: Bool[Array, " points"]
    kernel_inputs: Bool[Array, " input"]
    linear_inputs: Bool[Array, " input"]


def negative_log_likelihood(hyper: Hyperparameters, data: Points) -> Scalar:
    """The full GP's negative log marginal likelihood, with its gradient in closed form (one inverse, no tape)."""
    x, y, real, kernel_inputs, linear_inputs = data
    slope = jnp.where(linear_inputs, hyper.slope, 0.0)
    residual = jnp.where(real, y - x @ slope - hyper.offset, 0.0)
    # The kernel sees differences only; centring keeps the squared distances below from cancelling.
    centre = jnp.sum(jnp.where(real[:, None], x, 0.0), axis=0) / jnp.maximum(jnp.sum(real), 1)
    scaled = jnp.where(kernel_inputs, (x - centre) * jnp.exp(-hyper.log_length_scales), 0.0)
    return _gaussian_nll(scaled, hyper.log_signal, hyper.log_noise, residual, real)


def covariance_matrix(scaled: Array, log_signal: Either, real: Array) -> Array:
    """`k(X, X)` on real points, zero on padding."""
    square = jnp.sum(scaled**2, axis=1)
    distance = jnp.maximum(square[:, None] + square[None, :] - 2 * scaled @ scaled.T, 0.0)
    distance = distance * (1 - jnp.eye(scaled.shape[0]))
    return jnp.where(real[:, None] & real[None, :], jnp.exp(2 * log_signal - distance / 2), 0.0)


Gradient = tuple[Float[Array, "points input"], Scalar, Scalar, Float[Array, " points"]]
"""Along the scaled inputs, `log_signal`, `log_noise` and the residual."""


@jax.custom_vjp
def _gaussian_nll(scaled: Array, log_signal: Array, log_noise: Array, residual: Array, real: Array) -> Scalar:
    """`-log N(r; 0, K)` as a function of the scaled inputs."""
    return _gaussian_nll_forward(scaled, log_signal, log_noise, residual, real)[0]


def _gaussian_nll_forward(
    scaled: Array, log_signal: Array, log_noise: Array, residual: Array, real: Array
) -> tuple[Scalar, Gradient]:
    noise = jnp.exp(2 * log_noise)
    K = covariance_matrix(scaled, log_signal, real)
    L = jnp.linalg.cholesky(K + jnp.diag(jnp.where(real, noise, 1.0)))
    W = jsl.cho_solve((L, True), jnp.eye(residual.shape[0]))
    alpha = W @ residual
    value = residual @ alpha / 2 + jnp.sum(jnp.log(jnp.diag(L))) + jnp.sum(real) * LOG_2PI / 2
    G = (W - jnp.outer(alpha, alpha)) / 2  # dvalue/dK
    GK = G * K
    along_scaled = 2 * (GK @ scaled - jnp.sum(GK, axis=1)[:, None] * scaled)
    along_noise = 2 * noise * jnp.sum(jnp.where(real, jnp.diag(G), 0.0))
    return value, (along_scaled, 2 * jnp.sum(GK), along_noise, alpha)


def _gaussian_nll_backward(gradient: Gradient, cotangent: Scalar) -> tuple[Array | None, ...]:
    return (*(cotangent * part for part in gradient), None)


_gaussian_nll.defvjp(_gaussian_nll_forward, _gaussian_nll_backward)


def sparse_negative_log_likelihood(
    hyper: Hyperparameters,
    data: Points,
    inducing: Float[Array, "inducing input"],
    kind: Literal["fitc", "vfe"] = "vfe",
    ridge: float = 0.0,
    relative_ridge: float = 1e-6,
) -> Scalar:
    """FITC's or VFE's objective. To the diagonal of `Kmm` go `ridge + relative_ridge s^2`.

    With the inducing points on all inputs (and no ridge) both are the full GP's negative log marginal likelihood.
    """
    x, y, real, kernel_inputs, linear_inputs = data
    slope = jnp.where(linear_inputs, hyper.slope, 0.0)
    residual = jnp.where(real, y - x @ slope - hyper.offset, 0.0)
    signal, noise = jnp.exp(2 * hyper.log_signal), jnp.exp(2 * hyper.log_noise)

    def scaled(points: Array) -> Array:
        return jnp.where(kernel_inputs, points * jnp.exp(-hyper.log_length_scales), 0.0)

    def covariance(a: Array, b: Array) -> Array:
        return signal * jnp.exp(-jnp.sum((a[:, None, :] - b[None, :, :]) ** 2, axis=-1) / 2)

    z = scaled(inducing)
    eye = jnp.eye(z.shape[0])
    L = jnp.linalg.cholesky(covariance(z, z) + (ridge + relative_ridge * signal) * eye)
    V = jsl.solve_triangular(L, jnp.where(real, covariance(z, scaled(x)), 0.0), lower=True)
    unexplained = jnp.where(real, signal - jnp.sum(V**2, axis=0), 0.0)
    G = jnp.where(real, noise + (unexplained if kind == "fitc" else 0.0), 1.0)
    # |V'V + G| = |G| |I + V G^-1 V'|, and the same identity for the inverse: nothing of size points x points.
    A = jnp.linalg.cholesky(eye + (V / G) @ V.T)
    projected = jsl.solve_triangular(A, V @ (residual / G), lower=True)
    log_determinant = jnp.sum(jnp.log(G)) / 2 + jnp.sum(jnp.log(jnp.diag(A)))
    value = (jnp.sum(residual**2 / G) - jnp.sum(projected**2)) / 2 + log_determinant + jnp.sum(real) * LOG_2PI / 2
    return value + (jnp.sum(unexplained) / (2 * noise) if kind == "vfe" else 0.0)


def snr_penalty(log_signal: Either, log_noise: Either, limit: float, power: int = 30) -> Array:
    """`(SNR / limit)^power` with `SNR = s / sn`: nothing below the limit, a wall at it.

    Without it a noise-free looking output drives its noise to zero and `K` to singularity.
    """
    return jnp.exp(power * (log_signal - log_noise - np.log(limit)))


def curb_penalty(
    hyper: Hyperparameters, spread: Float[Array, " input"], snr: float = 500.0, length: float = 100.0, power: int = 30
) -> Scalar:
    """PILCO v0.9's penalty: powers of *logarithms*, and on the length-scales l as well as on the SNR,

    `sum_d (log(l_d / spread_d) / log length)^power + (log SNR / log snr)^power`,

    `spread` being the standard deviations of the inputs. Also a wall, but around (1/limit, limit).
    """
    lengths = jnp.sum(((hyper.log_length_scales - jnp.log(spread)) / np.log(length)) ** power)
    penalty: Array = lengths + ((hyper.log_signal - hyper.log_noise) / np.log(snr)) ** power
    return penalty
