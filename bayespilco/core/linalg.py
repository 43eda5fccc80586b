"""Small linear algebra, written out: a covariance shrunk by a precision, roots, and the whitening of an innovation.

Blurring a kernel by an uncertain input, a cost by an uncertain state, an innovation by a belief: each is the function

    (P^-1 + B)^-1 = (I + P B)^-1 P

of two symmetric matrices without negative eigenvalues, which may both be singular. So neither is inverted. With any
root `C C' = P` it is `C (I + C' B C)^-1 C'`, whose inner matrix has eigenvalues of at least 1.

The matrices have a few rows, one per state or input, and there are many of them: one per output, pair of outputs, trial
or execution. So the factorisations are loops over their columns, each a single pass over the whole batch. That takes
half the time of LAPACK's calls. And it cannot hang: XLA divides a batch of LAPACK calls among the threads of the pool
that it runs in and waits for them there, so that two batches at a time can wait for each other for ever. For the same
reason large matrices are factored one after the other (`gp.per_output`).

No loop is ever differentiated. The derivatives are products of what is known already.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bayespilco.core.gaussian import diagonal, diagonal_matrix, symmetrise

Square = Float[Array, "n n"]
Vector = Float[Array, " n"]
Scalar = Float[Array, ""]
Index = Int[Array, ""]


@jax.jit
def shrink(P: Square, B: Square) -> tuple[Square, Scalar]:
    """`(P^-1 + B)^-1 = (I + P B)^-1 P`, and `-1/2 log |I + P B|`. With `B = 0` these are `P` and 0."""
    return _shrink(P, B)


@jax.jit
def shrink_diagonal(p: Vector, B: Square) -> tuple[Square, Scalar]:
    """`shrink` of a diagonal `P`: of the inverse squares of length-scales, or of sensors' precisions."""
    return _shrink_diagonal(p, B)


@jax.jit
def shrink_by_diagonal(P: Square, b: Vector) -> tuple[Square, Scalar]:
    """`shrink` by a diagonal `B`: one component after the other is observed with precision `b_k`. Needs no root."""
    return _shrink_by_diagonal(P, b)


@jax.custom_jvp
def inverse_root(M: Square) -> Square:
    """Lower triangular `H = L^-1` of the Cholesky factor `L L' = M`: so `H M H' = I` and `H' H = M^-1`.

    It whitens: `H x` of `x ~ N(0, M)` is standard normal, and `sum log diag H = -1/2 log |M|`. NaN if `M` is not
    positive definite.
    """
    n = M.shape[0]
    index = np.arange(n)

    def eliminate(k: Index, both: Float[Array, "2 n n"]) -> Float[Array, "2 n n"]:
        rows = jax.lax.dynamic_index_in_dim(both, k, axis=1, keepdims=False)
        pivot = jnp.sum(jnp.where(index == k, rows[0], 0.0))
        factor = jnp.where(index > k, rows[0] / pivot, 0.0)
        left: Array = both - factor[:, None] * rows[:, None, :]
        return left

    upper, H = jax.lax.fori_loop(0, n, eliminate, jnp.stack([M, jnp.eye(n, dtype=M.dtype)]))
    root: Square = H / jnp.sqrt(diagonal(upper))[:, None]
    return root


@inverse_root.defjvp
def _inverse_root_jvp(primals: tuple[Square], tangents: tuple[Square]) -> tuple[Square, Square]:
    """`dH = -low(H dM H') H`, where `low` keeps what is below the diagonal, and half of the diagonal."""
    H = inverse_root(*primals)
    change = H @ symmetrise(tangents[0]) @ H.T
    return H, -(change * (np.tri(H.shape[0]) - np.eye(H.shape[0]) / 2)) @ H


@jax.jit
def _inverse(M: Square) -> tuple[Square, Scalar]:
    """`M^-1` and `-1/2 log |M|` of a positive definite matrix, by sweeping each of its pivots in turn."""
    index = np.arange(M.shape[0])

    def sweep(k: Index, carry: tuple[Square, Scalar]) -> tuple[Square, Scalar]:
        M, log = carry
        here = index == k
        e, rest = here.astype(M.dtype), (~here).astype(M.dtype)
        row = jax.lax.dynamic_index_in_dim(M, k, keepdims=False)
        pivot = jax.lax.dynamic_index_in_dim(row, k, keepdims=False)
        row = row * rest - e
        return M * rest[:, None] * rest - row[:, None] * (row / pivot), log - jax.lax.log(pivot) / 2

    negative, log = jax.lax.fori_loop(0, M.shape[0], sweep, (M, np.zeros((), M.dtype)))
    return -negative, log


@jax.jit
def _built_up(P: Square, B: Square) -> tuple[Square, Scalar]:
    """`T = (P^-1 + B)^-1`, built up with `P = sum_k c_k c_k'`, column by column of a Cholesky factor. Each column adds

        u u' / (1 + u' B c),   u = c - T B c

    so that to `T` only what is positive is added. The largest pivot comes first, in units in which the diagonal of `P`
    is 1. Then no entry of what is left is larger than its pivot, but for rounding, which is cut off. So nothing is ever
    divided by a pivot that should be zero, and a matrix that is singular, or negative by rounding, does no harm.
    """
    n = P.shape[0]
    index = np.arange(n)
    size = jnp.sqrt(jnp.maximum(diagonal(P), 0.0))
    scale = jnp.where(size > 0, 1 / size, 0.0)

    def add(_: Index, carry: tuple[Square, Vector, Square, Scalar]) -> tuple[Square, Vector, Square, Scalar]:
        left, pivots, T, log = carry
        k = jnp.argmax(pivots)
        row, pivot = (jax.lax.dynamic_index_in_dim(each, k, keepdims=False) for each in (left, pivots))
        root = jnp.sqrt(jnp.maximum(pivot, 0.0))
        c = jnp.where(root > 0, jnp.clip(row / root, -root, root), 0.0)
        left, pivots = left - c[:, None] * c, jnp.where(index == k, 0.0, pivots - c**2)
        c = size * c
        Bc = jnp.sum(B * c, axis=1)
        u = c - jnp.sum(T * Bc, axis=1)
        factor = 1 + jnp.sum(u * Bc)
        return left, pivots, T + u[:, None] * (u / factor), log - jax.lax.log(factor) / 2

    left = P * scale[:, None] * scale
    start = (left, diagonal(left), np.zeros(P.shape, P.dtype), np.zeros((), P.dtype))
    _, _, T, log = jax.lax.fori_loop(0, n, add, start)
    return T, log


@jax.jit
def _observed(P: Square, b: Vector) -> tuple[Square, Scalar]:
    """`(P^-1 + diag b)^-1`, by observing one component after the other with precision `b_k`."""

    def observe(k: Index, carry: tuple[Square, Scalar]) -> tuple[Square, Scalar]:
        T, log = carry
        row, precision = (jax.lax.dynamic_index_in_dim(each, k, keepdims=False) for each in (T, b))
        factor = 1 + precision * jax.lax.dynamic_index_in_dim(row, k, keepdims=False)
        return T - row[:, None] * (precision / factor * row), log - jax.lax.log(factor) / 2

    T, log = jax.lax.fori_loop(0, P.shape[0], observe, (P, np.zeros((), P.dtype)))
    return T, log


@jax.custom_vjp
def _shrink(P: Square, B: Square) -> tuple[Square, Scalar]:
    T, log = _built_up(P, B)
    return T, log


Shrunk = tuple[tuple[Square, Scalar], tuple[Square, Square]]


def _forward(P: Square, B: Square) -> Shrunk:
    T, log = _built_up(P, B)
    return (T, log), (T, B)


def _backward(residuals: tuple[Square, Square], cotangents: tuple[Square, Scalar]) -> tuple[Square, Square]:
    return _derivatives(*residuals, *cotangents)


def _derivatives(T: Square, B: Square, along_T: Square, along_log: Scalar) -> tuple[Square, Square]:
    """From `dT = M dP M' - T dB T` and `d log|I + PB| = tr(B M dP) + tr(T dB)`, with `M = (I + P B)^-1 = I - T B`."""
    along_T = symmetrise(along_T)
    M = -(T @ B) + np.eye(T.shape[0])
    along_P = M.T @ along_T @ M - along_log / 2 * symmetrise(B @ M)
    along_B = -T @ along_T @ T - along_log / 2 * T
    return along_P, along_B


_shrink.defvjp(_forward, _backward)


@jax.custom_vjp
def _shrink_diagonal(p: Vector, B: Square) -> tuple[Square, Scalar]:
    return _diagonal_forward(p, B)[0]


def _diagonal_forward(p: Vector, B: Square) -> Shrunk:
    c = jnp.sqrt(p)
    cc = c[:, None] * c[None, :]
    inverse, log = _inverse(np.eye(p.shape[0]) + cc * B)
    T = cc * inverse
    return (T, log), (T, B)


def _diagonal_backward(residuals: tuple[Square, Square], cotangents: tuple[Square, Scalar]) -> tuple[Vector, Square]:
    along_P, along_B = _derivatives(*residuals, *cotangents)
    return diagonal(along_P), along_B


_shrink_diagonal.defvjp(_diagonal_forward, _diagonal_backward)


@jax.custom_vjp
def _shrink_by_diagonal(P: Square, b: Vector) -> tuple[Square, Scalar]:
    T, log = _observed(P, b)
    return T, log


def _by_diagonal_forward(P: Square, b: Vector) -> tuple[tuple[Square, Scalar], tuple[Square, Vector]]:
    T, log = _observed(P, b)
    return (T, log), (T, b)


def _by_diagonal_backward(residuals: tuple[Square, Vector], cotangents: tuple[Square, Scalar]) -> tuple[Square, Vector]:
    T, b = residuals
    along_P, along_B = _derivatives(T, diagonal_matrix(b), *cotangents)
    return along_P, diagonal(along_B)


_shrink_by_diagonal.defvjp(_by_diagonal_forward, _by_diagonal_backward)
