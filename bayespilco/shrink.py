"""The one piece of small linear algebra: a covariance shrunk by a precision, `(P^-1 + B)^-1`, inverting neither.

Blurring a kernel by an uncertain input, a cost by an uncertain state, an innovation by a belief: each is this function.
`P` and `B` are symmetric without negative eigenvalues and may both be singular. With any root `C C' = P` it is

    C (I + C' B C)^-1 C'

whose inner matrix has eigenvalues of at least 1. The derivatives are products of what is known already, so that a
gradient costs a few small multiplications, and no factorisation is ever differentiated.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.gaussian import diagonal, symmetrise

Square = Float[Array, "n n"]


@jax.jit
def shrink(P: Square, B: Square, root: Square | None = None) -> tuple[Square, Float[Array, ""]]:
    """`(P^-1 + B)^-1 = (I + P B)^-1 P`, and `-1/2 log |I + P B|`. With `B = 0` these are `P` and 0.

    A `root` of `P` may be given where one is known.
    """
    return _shrink(P, B, jax.lax.stop_gradient(psd_root(P) if root is None else root))


def psd_root(P: Square) -> Square:
    """`C` with `C C' = P`, also for a singular `P`."""
    eigenvalues, eigenvectors = jnp.linalg.eigh(jax.lax.stop_gradient(P))
    return eigenvectors * jnp.sqrt(jnp.maximum(eigenvalues, 0.0))


@jax.custom_vjp
def _shrink(P: Square, B: Square, C: Square) -> tuple[Square, Float[Array, ""]]:
    return _forward(P, B, C)[0]


def _forward(P, B, C):  # type: ignore[no-untyped-def]
    L = jax.lax.linalg.cholesky(np.eye(P.shape[0]) + C.T @ B @ C, symmetrize_input=False)
    half = jax.lax.linalg.triangular_solve(L, C.T, left_side=True, lower=True)
    T = half.T @ half
    return (T, -jnp.sum(jnp.log(diagonal(L)))), (T, B)


def _backward(residuals, cotangents):  # type: ignore[no-untyped-def]
    """From `dT = M dP M' - T dB T` and `d log|I + PB| = tr(B M dP) + tr(T dB)`, with `M = (I + P B)^-1 = I - T B`."""
    T, B = residuals
    along_T, along_log = cotangents
    along_T = symmetrise(along_T)
    M = np.eye(T.shape[0]) - T @ B
    along_P = M.T @ along_T @ M - along_log / 2 * symmetrise(B @ M)
    along_B = -T @ along_T @ T - along_log / 2 * T
    return along_P, along_B, jnp.zeros_like(T)


_shrink.defvjp(_forward, _backward)
