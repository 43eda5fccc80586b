"""A Gaussian in parts: many narrow ones, whose mixture has the mean and the covariance of the whole.

Moment matching replaces what a distribution becomes by a Gaussian, at every step. That is the better the narrower the
distribution is. Where a plant starts may be far from narrow: a cart half a metre to the left and one half a metre to
the right need different pushes, and what comes of both is not one Gaussian. A policy search that sees only one is
even rewarded for policies whose trajectories a Gaussian describes badly. Predicted from each part by itself, they are
seen for what they are.

There are many ways to cut a Gaussian. A policy with hundreds of parameters learns one cut by heart, so a search does
well to go on with another after a while: ways are numbered.
"""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

PER_DIMENSION = 4
"""Parts for each dimension of the Gaussian: 16 for the cart-pole's state."""
WITHIN = 0.25
"""The share of the variance that is left within a part; the rest is between the parts: each is half as wide."""


def shifts(cov: Float[Array, "dim dim"], points: Float[Array, "parts dim"]) -> Float[Array, "parts dim"]:
    """Where the parts of `N(0, cov)` have their means, given those of `N(0, I)`."""
    values, vectors = jnp.linalg.eigh(cov)  # a Gaussian may be singular: nothing to cut there
    root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))
    means: Array = jnp.sqrt(1 - WITHIN) * points @ root.T
    return means


def points_for(cov: np.ndarray, way: int = 0, per_dimension: int = PER_DIMENSION) -> Float[np.ndarray, "parts dim"]:
    """Standard points for a Gaussian that may be singular: none are spent where it has no variance.

    `shifts` goes along the eigenvectors, in ascending order of their eigenvalues.
    """
    values = np.linalg.eigvalsh(cov)
    rank = max(int((values > 1e-12 * max(values.max(initial=0.0), 1e-300)).sum()), 1)
    return np.pad(standard_points(rank, way, per_dimension), ((0, 0), (len(values) - rank, 0)))


@functools.cache
def standard_points(size: int, way: int = 0, per_dimension: int = PER_DIMENSION) -> Float[np.ndarray, "parts dim"]:
    """Points spread like `N(0, I)`: evenly, in pairs of opposites, with exactly this mean and covariance."""
    from scipy.stats import qmc  # only here: it would be a third of the time that importing the library takes

    half = qmc.MultivariateNormalQMC(np.zeros(size), engine=qmc.Halton(size, seed=way)).random(
        per_dimension * size // 2
    )
    points = np.concatenate([half, -half])
    root = np.linalg.cholesky(points.T @ points / len(points))
    return np.linalg.solve(root, points.T).T
