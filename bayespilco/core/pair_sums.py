"""The one hot loop: sums over pairs of points of a Gaussian of both, `E_ij`, value and gradient in one sweep.

Every covariance of moment matching is `sum_ij u_i v_j E_ij` for two outputs, or `sum_ij (u_i u_j - W_ij) E_ij` for one
with its own uncertainty, where

    E_ij = exp( k - 1/2 c_i' G c_i - 1/2 c_j' H c_j + c_i' M c_j ),      c = X - mu

The points `X` are many; `k`, `G`, `H`, `M` and `mu` are small, and all that changes from step to step of a prediction.
Their derivatives are the moments of the weights `w_ij = u_i v_j E_ij`: with row sums `w_i`, column sums `w_j` and
`sum_j w_ij c_j` at hand, nothing of size points x points is needed again, kept, or differentiated. What only model
training or a policy's centroids ask for, the derivatives along `X`, `u`, `v` and `W`, is made in the backward pass:
for everybody else it is dead code there, and removed by the compiler.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LARGE = 128
"""From this many points on, pairs of outputs are swept one after the other, so that one `E` stays in cache."""

Scalar = Float[Array, ""]
Vector = Float[Array, " points"]
Points = Float[Array, "points dim"]
Small = Float[Array, " dim"]
Square = Float[Array, "dim dim"]
Pairs = Float[Array, "points points"]

# What the forward passes keep for the backward ones: the gradient along what is small, sums over the points, and all
# that was given.
PairSum = tuple[
    tuple[Scalar, Square, Square, Square, Small],
    tuple[Vector, Vector],
    tuple[Scalar, Square, Square, Square, Small, Points, Vector, Vector],
]
OwnSum = tuple[
    tuple[Scalar, Square, Square, Small],
    tuple[Vector, Points],
    tuple[Scalar, Square, Square, Small, Points, Vector, Pairs | None],
]


def _exponentials(k: Scalar, G: Square, H: Square, M: Square, c: Points) -> tuple[Pairs, Pairs]:
    """`E`, and the products `c_i' M c_j` that it was made of."""
    p = k - jnp.sum((c @ G) * c, axis=1) / 2
    r = -jnp.sum((c @ H) * c, axis=1) / 2
    products = (c @ M) @ c.T
    return jnp.exp(p[:, None] + r[None, :] + products), products


def _not_in_place(s: Scalar, products: Pairs) -> Scalar:
    """`s`, with the products still in use when it is known.

    Otherwise the compiler writes the exponentials where the products were, and a loop that writes where it reads is not
    vectorised: it takes five times as long. Adding a zero that depends on both is all that keeps them apart.
    """
    return s + 0.0 * (products[0, 0] * s)


@jax.custom_vjp
def _pair_sum(k: Scalar, G: Square, H: Square, M: Square, mu: Small, X: Points, u: Vector, v: Vector) -> Scalar:
    """`sum_ij u_i v_j E_ij`, for two different outputs. `G` and `H` are symmetric."""
    return _pair_sum_forward(k, G, H, M, mu, X, u, v)[0]


def _pair_sum_forward(
    k: Scalar, G: Square, H: Square, M: Square, mu: Small, X: Points, u: Vector, v: Vector
) -> tuple[Scalar, PairSum]:
    c = X - mu
    E, products = _exponentials(k, G, H, M, c)
    rows = E @ jnp.concatenate([v[:, None], v[:, None] * c], axis=1)
    along_u, along_v = rows[:, 0], u @ E
    w_i, w_j = u * along_u, v * along_v
    s = _not_in_place(jnp.sum(w_i), products)
    gradient = (
        s,
        -(c.T @ (w_i[:, None] * c)) / 2,
        -(c.T @ (w_j[:, None] * c)) / 2,
        c.T @ (u[:, None] * rows[:, 1:]),
        (G - M.T) @ (w_i @ c) + (H - M) @ (w_j @ c),
    )
    return s, (gradient, (along_u, along_v), (k, G, H, M, mu, X, u, v))


def _pair_sum_backward(residuals: PairSum, cotangent: Scalar) -> tuple[Array, ...]:
    gradient, (along_u, along_v), (k, G, H, M, mu, X, u, v) = residuals
    c = X - mu
    E, _ = _exponentials(k, G, H, M, c)
    as_row = u[:, None] * ((E @ (v[:, None] * c)) @ M.T - along_u[:, None] * (c @ G))
    as_column = v[:, None] * ((E.T @ (u[:, None] * c)) @ M - along_v[:, None] * (c @ H))
    return tuple(cotangent * part for part in (*gradient, as_row + as_column, along_u, along_v))


_pair_sum.defvjp(_pair_sum_forward, _pair_sum_backward)
pair_sum: Callable[..., Scalar] = jax.jit(_pair_sum)


@jax.custom_vjp
def _own_sum(k: Scalar, G: Square, M: Square, mu: Small, X: Points, u: Vector, W: Pairs | None) -> Scalar:
    """`sum_ij (u_i u_j - W_ij) E_ij` with `H = G`: an output with itself, less what is uncertain about it.

    `G`, `M` and `W` are symmetric, and so is `E`: one side's derivative serves for both. `W` may be None, for zero.
    """
    return _own_sum_forward(k, G, M, mu, X, u, W)[0]


def _own_sum_forward(
    k: Scalar, G: Square, M: Square, mu: Small, X: Points, u: Vector, W: Pairs | None
) -> tuple[Scalar, OwnSum]:
    c = X - mu
    E, products = _exponentials(k, G, G, M, c)
    if W is None:
        rows = u[:, None] * (E @ jnp.concatenate([u[:, None], u[:, None] * c], axis=1))
    else:
        rows = ((u[:, None] * u[None, :] - W) * E) @ jnp.concatenate([jnp.ones_like(c[:, :1]), c], axis=1)
    w_i, w_ij_c = rows[:, 0], rows[:, 1:]
    s = _not_in_place(jnp.sum(w_i), products)
    gradient = (s, -(c.T @ (w_i[:, None] * c)), c.T @ w_ij_c, 2 * (G - M) @ (w_i @ c))
    return s, (gradient, (w_i, w_ij_c), (k, G, M, mu, X, u, W))


def _own_sum_backward(residuals: OwnSum, cotangent: Scalar) -> tuple[Array | None, ...]:
    gradient, (w_i, w_ij_c), (k, G, M, mu, X, u, W) = residuals
    c = X - mu
    E, _ = _exponentials(k, G, G, M, c)
    along_X = 2 * (w_ij_c @ M - w_i[:, None] * (c @ G))
    scaled = tuple(cotangent * part for part in (*gradient, along_X, 2 * (E @ u)))
    return (*scaled, None if W is None else -cotangent * E)


_own_sum.defvjp(_own_sum_forward, _own_sum_backward)
own_sum: Callable[..., Scalar] = jax.jit(_own_sum)


def over_pairs(function: Callable[..., Scalar], *batches: Array) -> Float[Array, " pairs"]:
    """`function` for each pair of outputs: all at once when points are few, one after the other when they are many."""
    points = batches[-1].shape[1]
    if points < LARGE:
        return jax.vmap(function)(*batches)
    sums: Array = jax.lax.map(lambda arguments: function(*arguments), batches)
    return sums
