"""The one hot loop: sums over pairs of points of a Gaussian of both, `E_ij`, value and gradient in one sweep.

Every covariance of moment matching is `sum_ij u_i v_j E_ij` for two outputs, or `sum_ij (u_i u_j - W_ij) E_ij` for one
with its own uncertainty, where

    E_ij = exp( k - 1/2 c_i' G c_i - 1/2 c_j' H c_j + c_i' M c_j ),      c = X - mu

The points `X` are many; `k`, `G`, `H`, `M` and `mu` are small, and all that changes from step to step of a prediction.
Their derivatives are the moments of the weights `w_ij = u_i v_j E_ij`: with row sums `w_i`, column sums `w_j` and
`sum_j w_ij c_j` at hand, nothing of size points x points is needed again, kept, or differentiated. What only model
training or a policy's centroids ask for, the derivatives along `X`, `u`, `v` and `W`, is made only when asked for.
"""

from typing import Any

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


def _exponentials(
    k: Scalar, G: Square, H: Square, M: Square, c: Points
) -> tuple[Float[Array, "points points"], Float[Array, "points points"]]:
    """`E`, and the products `c_i' M c_j` that it was made of."""
    p = k - jnp.sum((c @ G) * c, axis=1) / 2
    r = -jnp.sum((c @ H) * c, axis=1) / 2
    products = (c @ M) @ c.T
    return jnp.exp(p[:, None] + r[None, :] + products), products


def _not_in_place(s: Scalar, products: Float[Array, "points points"]) -> Scalar:
    """`s`, with the products still in use when it is known.

    Otherwise the compiler writes the exponentials where the products were, and a loop that writes where it reads is not
    vectorised: it takes five times as long. Adding a zero that depends on both is all that keeps them apart.
    """
    return s + 0.0 * (products[0, 0] * s)


@jax.custom_vjp
def pair_sum(
    k: Scalar, G: Square, H: Square, M: Square, mu: Small, X: Points, u: Vector, v: Vector
) -> Float[Array, ""]:
    """`sum_ij u_i v_j E_ij`, for two different outputs. `G` and `H` are symmetric."""
    return u @ (_exponentials(k, G, H, M, X - mu)[0] @ v)


def _pair_sum_forward(*arguments: Any) -> tuple[Scalar, Any]:
    (k, G, H, M, mu, X, u, v), points_asked = _values_and_whether(arguments, few=5)
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
    if not points_asked:
        return s, (gradient, (None, None, None))
    columns = E.T @ (u[:, None] * c)
    as_row = u[:, None] * (rows[:, 1:] @ M.T - along_u[:, None] * (c @ G))
    as_column = v[:, None] * (columns @ M - along_v[:, None] * (c @ H))
    return s, (gradient, (as_row + as_column, along_u, along_v))


@jax.custom_vjp
def own_sum(
    k: Scalar, G: Square, M: Square, mu: Small, X: Points, u: Vector, W: Float[Array, "points points"] | None
) -> Float[Array, ""]:
    """`sum_ij (u_i u_j - W_ij) E_ij` with `H = G`: an output with itself, less what is uncertain about it.

    `G`, `M` and `W` are symmetric, and so is `E`: one side's derivative serves for both. `W` may be None, for zero.
    """
    E = _exponentials(k, G, G, M, X - mu)[0]
    return u @ (E @ u) if W is None else jnp.sum((u[:, None] * u[None, :] - W) * E)


def _own_sum_forward(*arguments: Any) -> tuple[Scalar, Any]:
    (k, G, M, mu, X, u, W), points_asked = _values_and_whether(arguments, few=4)
    c = X - mu
    E, products = _exponentials(k, G, G, M, c)
    if W is None:
        rows = u[:, None] * (E @ jnp.concatenate([u[:, None], u[:, None] * c], axis=1))
    else:
        rows = ((u[:, None] * u[None, :] - W) * E) @ jnp.concatenate([jnp.ones_like(c[:, :1]), c], axis=1)
    w_i, w_ij_c = rows[:, 0], rows[:, 1:]
    s = _not_in_place(jnp.sum(w_i), products)
    gradient = (s, -(c.T @ (w_i[:, None] * c)), c.T @ w_ij_c, 2 * (G - M) @ (w_i @ c))
    if not points_asked:
        return s, (gradient, (None, None, None))
    along_X = 2 * (w_ij_c @ M - w_i[:, None] * (c @ G))
    return s, (gradient, (along_X, 2 * (E @ u), None if W is None else -E))


def _values_and_whether(arguments: tuple[Any, ...], few: int) -> tuple[list[Any], bool]:
    """The values of the arguments, and whether a derivative along one after the `few` small ones is asked for."""
    present = [argument for argument in arguments[few:] if argument is not None]
    return [None if each is None else each.value for each in arguments], any(each.perturbed for each in present)


def _scale(gradient: Any, cotangent: Any) -> Any:
    small, large = gradient
    if isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return (None,) * (len(small) + len(large))
    return tuple(None if part is None else cotangent * part for part in (*small, *large))


pair_sum.defvjp(_pair_sum_forward, _scale, symbolic_zeros=True)
own_sum.defvjp(_own_sum_forward, _scale, symbolic_zeros=True)


def over_pairs(function, *batches):  # type: ignore[no-untyped-def]
    """`function` for each pair of outputs: all at once when points are few, one after the other when they are many."""
    points = batches[-1].shape[1]
    if points < LARGE:
        return jax.vmap(function)(*batches)
    return jax.lax.map(lambda arguments: function(*arguments), batches)
