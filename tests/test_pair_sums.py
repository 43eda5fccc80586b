"""The hot loop equals the plain formula, in value and in every derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.gaussian import Gaussian
from bayespilco.gp import GaussianProcess
from bayespilco.moments import belief_moments
from bayespilco.pair_sums import LARGE, over_pairs, own_sums, pair_sum
from tests.golden import assert_close


def plain_pair_sum(p, r, a, b, T, u, v):  # type: ignore[no-untyped-def]
    return jnp.sum(u[:, None] * v[None, :] * jnp.exp(p[:, None] + r[None, :] + a @ T @ b.T))


def plain_own_sums(p, a, T, u, W):  # type: ignore[no-untyped-def]
    E = jnp.exp(p[:, None] + p[None, :] + a @ T @ a.T)
    return jnp.sum(u[:, None] * u[None, :] * E), jnp.sum(W * E)


def data(points: int) -> dict[str, jax.Array]:
    rng = np.random.default_rng(points)
    T, W = rng.normal(size=(3, 3)), rng.normal(size=(points, points))
    return {
        "p": rng.normal(size=points),
        "r": rng.normal(size=points),
        "a": rng.normal(size=(points, 3)) / 2,
        "b": rng.normal(size=(points, 3)) / 2,
        "T": (T + T.T) / 4,
        "u": rng.normal(size=points),
        "v": rng.normal(size=points),
        "W": (W + W.T) / 2,
    }


@pytest.mark.parametrize("points", [7, LARGE + 3])
def test_pair_sum(points: int) -> None:
    arguments = [jnp.asarray(data(points)[name]) for name in "prabTuv"]
    one = jax.jit(jax.value_and_grad(pair_sum, argnums=range(7)))(*arguments)
    two = jax.jit(jax.value_and_grad(plain_pair_sum, argnums=range(7)))(*arguments)
    jax.tree.map(lambda x, y: assert_close(x, y, 1e-10), one, two)


@pytest.mark.parametrize("points", [7, LARGE + 3])
def test_own_sums(points: int) -> None:
    """`T` and `W` are symmetric: the derivatives with respect to them agree along symmetric directions."""
    arguments = [jnp.asarray(data(points)[name]) for name in "paTuW"]

    def both(function):  # type: ignore[no-untyped-def]
        def combined(*arguments):  # type: ignore[no-untyped-def]
            s, t = function(*arguments)
            return s * 1.3 + t * 0.7

        value, slopes = jax.jit(jax.value_and_grad(combined, argnums=range(5)))(*arguments)
        return value, [
            slope + slope.T if slope.ndim == 2 and slope.shape[0] == slope.shape[1] else slope for slope in slopes
        ]

    jax.tree.map(lambda x, y: assert_close(x, y, 1e-10), both(own_sums), both(plain_own_sums))


def test_pairs_at_once_and_one_after_the_other() -> None:
    few, many = jnp.ones((2, LARGE - 1)), jnp.ones((2, LARGE))
    assert_close(over_pairs(jnp.sum, few), [LARGE - 1, LARGE - 1], 1e-14)
    assert_close(over_pairs(jnp.sum, many), [LARGE, LARGE], 1e-14)


def test_many_points_equal_few() -> None:
    """A GP split into copies of its points, each with its share of the weights, is the same GP: both branches agree."""
    rng = np.random.default_rng(0)
    X, beta, W = rng.normal(size=(9, 2)), rng.normal(size=(2, 9)), np.stack([np.eye(9) * 0.1] * 2)
    copies = LARGE // 9 + 1

    def gp(n: int) -> GaussianProcess:
        return GaussianProcess(
            np.tile(X, (n, 1)),
            [[1.0, 2.0], [1.5, 0.7]],
            [1.1, 0.8],
            np.tile(beta / n, (1, n)),
            np.tile(W / n**2, (1, n, n)),
            np.zeros((2, 2)),
            np.zeros(2),
        )

    def total(mean: jax.Array, S: jax.Array, V: jax.Array, n: int) -> jax.Array:
        of_mean, cov = belief_moments(gp(n), Gaussian(mean, S), V)
        return jnp.sum(of_mean.mean) + jnp.sum(of_mean.cov * jnp.asarray([[1.0, 2.0], [2.0, -1.0]])) + jnp.sum(cov)

    arguments = jnp.asarray([0.1, -0.2]), jnp.diag(jnp.asarray([0.2, 0.1])), jnp.diag(jnp.asarray([0.1, 0.3]))
    gradient = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)), static_argnums=3)
    jax.tree.map(lambda x, y: assert_close(x, y, 1e-10), gradient(*arguments, copies), gradient(*arguments, 1))
