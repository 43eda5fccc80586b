"""The one piece of small linear algebra: a covariance shrunk by a precision, `(P^-1 + B)^-1`, without inverting `P` or `B`.

Blurring a kernel by an uncertain input, a belief by an observation, a cost by an uncertain state: each is this function.
`P` and `B` are symmetric without negative eigenvalues and may both be singular; `I + P B` never is, its eigenvalues are
at least 1. The derivatives are products of what is known already, so a gradient costs a few small multiplications.
"""

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

from bayespilco.gaussian import symmetrise


@jax.custom_vjp
def shrink(P: Float[Array, "n n"], B: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """`(I + P B)^-1 P` and `-1/2 log |I + P B|`. With `B = 0` these are `P` and 0."""
    return _forward(P, B)[0]


def _forward(P, B):  # type: ignore[no-untyped-def]
    eye = jnp.eye(P.shape[0])
    lu, pivots = jsl.lu_factor(eye + P @ B)
    M = jsl.lu_solve((lu, pivots), eye)
    T = symmetrise(M @ P)
    return (T, -jnp.sum(jnp.log(jnp.abs(jnp.diag(lu)))) / 2), (M, T, B)


def _backward(residuals, cotangents):  # type: ignore[no-untyped-def]
    """From `dT = M dP M' - T dB T` and `d log|I + PB| = tr(B M dP) + tr(T dB)`, with `M = (I + P B)^-1`."""
    M, T, B = residuals
    along_T, along_log = cotangents
    along_T = symmetrise(along_T)
    along_P = M.T @ along_T @ M - along_log / 2 * symmetrise(B @ M)
    along_B = -T @ along_T @ T - along_log / 2 * T
    return along_P, along_B


shrink.defvjp(_forward, _backward)
