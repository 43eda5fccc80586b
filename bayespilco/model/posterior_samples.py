"""Plants drawn from a model: functions that the data leave possible, one at a time.

A model does not know its function; it knows a distribution over its weights. A function drawn from it is again a
model, one that knows its weights: the mean is that function, and of the variance only that remains which the points
leave unexplained whatever their weights, `s^2 - k(x, X) k(X, X)^-1 k(X, x)`. (A function over the whole space has
infinitely many weights; these are the rest of them. Whoever simulates the plant draws that rest afresh at each step.)

A fit knows the weights of all its outputs jointly, and draws them so (`EvidenceFit.draw`). Here is what any GP allows:
each output for itself, from the matrices that prediction uses.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array

from bayespilco.core.compilation import compiled
from bayespilco.core.gp import kernel, per_output
from bayespilco.core.precision import float64
from bayespilco.model.dynamics import Dynamics


@runtime_checkable
class CanDraw(Protocol):
    """A fit: what knows how its weights may be."""

    def draw(self, key: Array) -> Dynamics: ...


class OnePlant(eqx.Module):
    """What stands in for a fit where only one plant counts as possible."""

    dynamics: Dynamics

    def draw(self, key: Array) -> Dynamics:
        """That plant, whatever chance says."""
        return self.dynamics


def mean_function(dynamics: Dynamics) -> Dynamics:
    """The plant that a model expects: its mean function, as if it were known. Noise stays."""
    gp = eqx.tree_at(
        lambda g: (g.precision, g.cross_cov, g.linear_cov, g.root, g.inner),
        dynamics.gp,
        5 * (None,),
        is_leaf=lambda leaf: leaf is None,
    )
    plant: Dynamics = eqx.tree_at(lambda d: d.gp, dynamics, gp)
    return plant


def arrays_of(fit: CanDraw) -> CanDraw:
    """The fit without what it says in plain numbers. That is about its training, and whatever is compiled for it would
    be compiled again for every fit."""
    bare: CanDraw = eqx.filter(fit, eqx.is_array)
    return bare


@float64
def draw_many(fit: CanDraw, keys: Array) -> Dynamics:
    """A plant for each key: a `Dynamics` whose arrays have a leading axis."""
    plants: Dynamics = _draw_many(arrays_of(fit), keys)
    return plants


@compiled
def _draw_many(fit: CanDraw, keys: Array) -> Dynamics:
    return jax.vmap(lambda key: fit.draw(key))(keys)


RIDGE = 1e-8
"""Added to the diagonal of k(X, X), relative to the signal, to have a Cholesky factor of it."""


@float64
def draw(dynamics: Dynamics, key: Array) -> Dynamics:
    """One plant from a model, the outputs independently.

    The weights of `k(x, X)` and of `[1, x]` have the joint covariance `[K^-1 - W, H; H', P]`. With `K = L L'` and
    the kernel's weights whitened, `c = L^-T v`, that is `[I - L'WL, L'H; H'L, P]`, which has a root without inverting
    anything.
    """
    gp = dynamics.gp
    if gp.precision is None:
        return dynamics  # a function that is known already
    (outputs, points), size = gp.weights.shape, 1 + gp.inputs.shape[1]
    H = jnp.zeros((outputs, points, size)) if gp.cross_cov is None else gp.cross_cov
    P = jnp.zeros((outputs, size, size)) if gp.linear_cov is None else gp.linear_cov
    K = kernel(gp.inputs, gp.inputs, gp.length_scales, gp.signal_variance)
    K = K + RIDGE * gp.signal_variance[:, None, None] * jnp.eye(points)

    def one(K: Array, W: Array, H: Array, P: Array, chance: Array) -> tuple[Array, Array, Array]:
        L = jnp.linalg.cholesky(K)
        v_v, v_l = jnp.eye(points) - L.T @ W @ L, L.T @ H
        values, vectors = jnp.linalg.eigh(jnp.block([[v_v, v_l], [v_l.T, P]]))
        away = vectors @ (jnp.sqrt(jnp.maximum(values, 0.0)) * chance)
        weights = jsl.solve_triangular(L, away[:points], lower=True, trans=1)
        return weights, away[points:], jsl.cho_solve((L, True), jnp.eye(points))

    chances = jax.random.normal(key, (outputs, points + size))
    weights, linear, inverse = per_output(one, K, gp.precision, H, P, chances)
    drawn = eqx.tree_at(
        lambda g: (g.weights, g.precision, g.slope, g.offset, g.cross_cov, g.linear_cov, g.root, g.inner),
        gp,
        (gp.weights + weights, inverse, gp.slope + linear[:, 1:], gp.offset + linear[:, 0], *4 * (None,)),
        is_leaf=lambda leaf: leaf is None,
    )
    plant: Dynamics = eqx.tree_at(lambda d: d.gp, dynamics, drawn)
    return plant
