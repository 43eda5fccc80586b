"""The one hot loop: sums over pairs of points of products of kernels, averaged over a Gaussian.

Every covariance of moment matching is a sum `s = sum_ij u_i v_j E_ij` with

    E_ij = exp(p_i + r_j + a_i' T b_j)        p, r: points      a, b: points x dim      T: dim x dim

and, for the uncertainty of the function, `t = sum_ij W_ij E_ij`. Only these two numbers leave the loop, and
their derivatives need the same exponentials: `ds/dp_i = u_i (E v)_i`, `ds/da_i = u_i T (E (v b))_i`, and so on.
So one sweep over `E` yields the values and the whole gradient, which is small; the backward pass then touches
nothing of size points x points, and nothing of that size is kept from step to step of a prediction.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LARGE = 128
"""From this many points on, pairs of outputs are swept one after the other, so that one `E` stays in cache."""

Vector = Float[Array, " points"]
Points = Float[Array, "points dim"]
Square = Float[Array, "dim dim"]


@jax.custom_vjp
def pair_sum(p: Vector, r: Vector, a: Points, b: Points, T: Square, u: Vector, v: Vector) -> Float[Array, ""]:
    """`sum_ij u_i v_j exp(p_i + r_j + a_i' T b_j)`, for two different outputs."""
    return u @ (_exponentials(p, r, a, b, T) @ v)


def _exponentials(p: Vector, r: Vector, a: Points, b: Points, T: Square) -> Float[Array, "points points"]:
    return jnp.exp(p[:, None] + r[None, :] + (a @ T) @ b.T)


def _pair_sum_forward(p, r, a, b, T, u, v):  # type: ignore[no-untyped-def]
    E = _exponentials(p, r, a, b, T)
    by_row = E @ jnp.concatenate([v[:, None], v[:, None] * b], axis=1)
    by_column = E.T @ jnp.concatenate([u[:, None], u[:, None] * a], axis=1)
    Ev, Evb = by_row[:, 0], by_row[:, 1:]
    Eu, Eua = by_column[:, 0], by_column[:, 1:]
    wa, wb = u[:, None] * Evb, v[:, None] * Eua
    gradient = (u * Ev, v * Eu, wa @ T.T, wb @ T, a.T @ wa, Ev, Eu)
    return u @ Ev, gradient


def _scale(gradient, cotangent):  # type: ignore[no-untyped-def]
    return tuple(cotangent * part for part in gradient)


pair_sum.defvjp(_pair_sum_forward, _scale)


@jax.custom_vjp
def own_sums(
    p: Vector, a: Points, T: Square, u: Vector, W: Float[Array, "points points"] | None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """`sum_ij u_i u_j E_ij` and `sum_ij W_ij E_ij` with `E_ij = exp(p_i + p_j + a_i' T a_j)`: an output with itself.

    `T` and `W` are symmetric, and so is `E`: one side's derivative serves for both. Without `W` the second is zero.
    """
    E = _exponentials(p, p, a, a, T)
    return u @ (E @ u), jnp.zeros(()) if W is None else jnp.sum(W * E)


def _own_sums_forward(p, a, T, u, W):  # type: ignore[no-untyped-def]
    E = _exponentials(p, p, a, a, T)
    by_row = E @ jnp.concatenate([u[:, None], u[:, None] * a], axis=1)
    Eu, w = by_row[:, 0], u[:, None] * by_row[:, 1:]
    s = u @ Eu
    gradient_s = (2 * u * Eu, 2 * w @ T, a.T @ w, 2 * Eu)
    if W is None:
        return (s, jnp.zeros(())), (gradient_s, None, None)
    weighted = (W * E) @ jnp.concatenate([jnp.ones_like(u)[:, None], a], axis=1)
    row, w = weighted[:, 0], weighted[:, 1:]
    gradient_t = (2 * row, 2 * w @ T, a.T @ w)
    return (s, jnp.sum(row)), (gradient_s, gradient_t, (p, a, T))


def _own_sums_backward(residuals, cotangents):  # type: ignore[no-untyped-def]
    gradient_s, gradient_t, inputs = residuals
    cotangent_s, cotangent_t = cotangents
    gradient = _scale(gradient_s, cotangent_s)
    if gradient_t is None:
        return (*gradient, None)
    along_p, along_a, along_T = (x + cotangent_t * y for x, y in zip(gradient, gradient_t, strict=False))
    # Only model training asks for the derivative with respect to W; elsewhere this line is dead code and removed.
    p, a, T = inputs
    along_W = cotangent_t * _exponentials(p, p, a, a, T)
    return along_p, along_a, along_T, gradient[3], along_W


own_sums.defvjp(_own_sums_forward, _own_sums_backward)


def over_pairs(function, *batches):  # type: ignore[no-untyped-def]
    """`function` for each pair of outputs: all at once when points are few, one after the other when they are many."""
    points = batches[0].shape[1]
    if points < LARGE:
        return jax.vmap(function)(*batches)
    return jax.lax.map(lambda arguments: function(*arguments), batches)
