"""The GP at a point, at high signal-to-noise ratios, against long double."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.core.gp import GaussianProcess, condition, condition_sparse
from tests.test_linalg import solve

EPS = np.finfo(np.float64).eps
POINTS = 40
LENGTH = 2.0


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, size=(POINTS, 2))
    return x, np.sin(x[:, :1]) * x[:, 1:], random.uniform(-1, 1, size=(20, 2))


def covariance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    distance = np.sum((x[:, None] - y[None]).astype(np.longdouble) ** 2, axis=-1)
    return np.exp(-distance / (2 * LENGTH**2))


@pytest.mark.parametrize("ratio", [1e2, 1e4, 1e5, 1e6])
def test_variance_at_high_signal_to_noise(ratio: float) -> None:
    """To what rounding the kernel's entries does to it: `alpha' dK alpha`. With an inverse the error is 1e-6."""
    x, y, at = data()
    gp = condition(x, y, np.full((1, 2), LENGTH), np.ones(1), np.array([ratio**-2]))
    k = covariance(at, x)
    alpha = solve(covariance(x, x) + ratio**-2 * np.eye(POINTS), k.T)
    exact = 1 - np.sum(k.T * alpha, axis=0)
    found = np.asarray(jax.vmap(gp.variance)(jnp.asarray(at)))[:, 0]
    assert exact.min() < max(2e-6, ratio**-2), "there is something to lose"
    assert (np.abs(found - exact) < 10 * EPS * (1 + np.abs(alpha).sum(axis=0)) ** 2).all()


@pytest.mark.parametrize("kind", ["vfe", "fitc"])
def test_variance_of_sparse_models_at_high_signal_to_noise(kind: Literal["vfe", "fitc"]) -> None:
    x, y, at = data()
    z, noise, ridge = x[:25], 1e-6, 1e-8
    gp = condition_sparse(x, y, z, np.full((1, 2), LENGTH), np.ones(1), np.array([noise]), kind=kind, ridge=ridge)
    Kmm, Kmn, k = covariance(z, z) + ridge * np.eye(25), covariance(z, x), covariance(z, at)
    unexplained = 1 - np.sum(Kmn * solve(Kmm, Kmn), axis=0)
    G = noise + (unexplained if kind == "fitc" else 0)
    exact = 1 - np.sum(k * solve(Kmm, k), axis=0) + np.sum(k * solve(Kmm + (Kmn / G) @ Kmn.T, k), axis=0)
    found = np.asarray(jax.vmap(gp.variance)(jnp.asarray(at)))[:, 0]
    assert np.abs(found - exact).max() < 1e-9  # 8e-9 with the inverse


def test_the_root_belongs_to_the_precision() -> None:
    """Both describe the same variance, and so do the sparse model's two factors."""
    x, y, at = data()
    full = condition(x, y, np.full((1, 2), LENGTH), np.ones(1), np.array([1e-2]))
    sparse = condition_sparse(x, y, x[:10], np.full((1, 2), LENGTH), np.ones(1), np.array([1e-2]))
    for gp in (full, sparse):
        by_inverse = GaussianProcess(
            gp.inputs, gp.length_scales, gp.signal_variance, gp.weights, gp.precision, gp.slope, gp.offset
        )
        for point in jnp.asarray(at):
            assert np.allclose(gp.variance(point), by_inverse.variance(point), rtol=1e-8, atol=1e-10)
            assert np.allclose(gp.padded(50).variance(point), by_inverse.variance(point), rtol=1e-12, atol=1e-13)
    with pytest.raises(ValueError, match="give its root too"):
        GaussianProcess(
            sparse.inputs,
            sparse.length_scales,
            sparse.signal_variance,
            sparse.weights,
            sparse.precision,
            sparse.slope,
            sparse.offset,
            inner=sparse.inner,
        )
