"""The hot loop equals the plain formula, in value and in every derivative."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess, condition
from bayespilco.core.moments import belief_moments, gp_moments
from bayespilco.core.pair_sums import LARGE, over_pairs, own_sum, pair_sum
from tests.golden import assert_close


def exponentials(k, G, H, M, mu, X):  # type: ignore[no-untyped-def]
    c = X - mu
    both = jnp.concatenate([jnp.repeat(c, len(c), axis=0), jnp.tile(c, (len(c), 1))], axis=1)
    form = jnp.block([[G, -M], [-M.T, H]])
    return jnp.exp(k - jnp.sum((both @ form) * both, axis=1) / 2).reshape(len(c), len(c))


def plain_pair_sum(k, G, H, M, mu, X, u, v):  # type: ignore[no-untyped-def]
    return u @ exponentials(k, G, H, M, mu, X) @ v


def plain_own_sum(k, G, M, mu, X, u, W):  # type: ignore[no-untyped-def]
    E = exponentials(k, G, G, M, mu, X)
    return jnp.sum((jnp.outer(u, u) - (0 if W is None else W)) * E)


def data(points: int) -> dict[str, jax.Array | None]:
    rng = np.random.default_rng(points)
    G, H, M, W = (rng.normal(size=(n, n)) / 3 for n in (3, 3, 3, points))
    values = {
        "k": rng.normal(),
        "G": G + G.T,
        "H": H + H.T,
        "M": M,
        "symmetric M": M + M.T,
        "mu": rng.normal(size=3),
        "X": rng.normal(size=(points, 3)),
        "u": rng.normal(size=points),
        "v": rng.normal(size=points),
        "W": W + W.T,
    }
    return {"nothing": None, **{name: jnp.asarray(value) for name, value in values.items()}}


def value_and_slopes(function, arguments):  # type: ignore[no-untyped-def]
    """Where an argument is symmetric, only the symmetric part of its derivative has a meaning."""
    present = [n for n, argument in enumerate(arguments) if argument is not None]
    value, slopes = jax.jit(jax.value_and_grad(function, argnums=present))(*arguments)

    def symmetric(slope: jax.Array, n: int) -> jax.Array:
        square = slope.ndim == 2 and slope.shape[0] == slope.shape[1]
        return slope + slope.T if square and bool((arguments[n] == arguments[n].T).all()) else slope

    return value, [symmetric(slope, n) for n, slope in zip(present, slopes, strict=True)]


@pytest.mark.parametrize("points", [7, LARGE + 3])
def test_pair_sum(points: int) -> None:
    arguments = [data(points)[name] for name in ("k", "G", "H", "M", "mu", "X", "u", "v")]
    one, two = (value_and_slopes(function, arguments) for function in (pair_sum, plain_pair_sum))
    jax.tree.map(lambda x, y: assert_close(x, y, 1e-10), one, two)


@pytest.mark.parametrize("points", [7, LARGE + 3])
@pytest.mark.parametrize("uncertainty", ["W", "nothing"])
def test_own_sum(points: int, uncertainty: str) -> None:
    arguments = [data(points)[name] for name in ("k", "G", "symmetric M", "mu", "X", "u", uncertainty)]
    one, two = (value_and_slopes(function, arguments) for function in (own_sum, plain_own_sum))
    jax.tree.map(lambda x, y: assert_close(x, y, 1e-10), one, two)


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


def test_many_trials_at_once_are_each_on_its_own() -> None:
    """Gradients along the model of a batch of loops, as the Direct method asks for: as many trials as pairs of outputs,
    so that axes taken for one another would not show in the shapes."""
    random = np.random.default_rng(3)
    points, outputs = random.normal(size=(5, 2)), 3
    gp = condition(points, random.normal(size=(5, outputs)), np.ones((outputs, 2)), np.ones(outputs), np.ones(outputs))
    means = jnp.asarray(random.normal(size=(3, 2)))
    weights = jnp.asarray(random.normal(size=(3, 3)))

    def trial(gp: GaussianProcess, mean: jax.Array) -> jax.Array:
        def step(mean: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return mean, jnp.sum(weights * gp_moments(gp, Gaussian(mean, 0.1 * jnp.eye(2))).cov)

        return jnp.sum(jax.lax.scan(step, mean, length=2)[1])

    together = eqx.filter_grad(lambda gp: jnp.sum(jax.vmap(lambda mean: trial(gp, mean) * mean[0])(means)))(gp)
    each = [eqx.filter_grad(lambda gp, mean=mean: trial(gp, mean) * mean[0])(gp) for mean in means]
    apart = jax.tree.map(lambda *parts: sum(parts), *each)
    for left, right in zip(jax.tree.leaves(together), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-12)
