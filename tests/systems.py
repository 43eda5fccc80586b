"""One small, mildly nonlinear system with an angle, for tests that need a model, a policy and a cost."""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from bayespilco.control.cost import SaturatingCost
from bayespilco.control.policy import LinearPolicy, Policy, RBFPolicy
from bayespilco.control.prediction import predict
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess, condition, condition_sparse
from bayespilco.model.dynamics import Dynamics

ANGLE = 1
run = eqx.filter_jit(predict)
"""One compiled prediction for all tests: the same shapes and numbers of steps are compiled once."""
INITIAL = Gaussian([0.3, 0.4], [[0.09, 0.02], [0.02, 0.12]])
"""Of the state [position, angle]."""


def covariance(rng: np.random.Generator, size: int, scale: float) -> np.ndarray:
    root = rng.normal(size=(size, size + 2)) * scale / np.sqrt(size + 2)
    return root @ root.T


@functools.cache
def gp(kind: str = "full", points: int = 15) -> GaussianProcess:
    """From [position, angle, u, sin, cos] to the next [position, angle]; the angle is in the linear mean only."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.5, 1.5, size=(points, 3))
    inputs = np.column_stack([x, np.sin(x[:, ANGLE]), np.cos(x[:, ANGLE])])
    targets = np.column_stack(
        [
            0.9 * x[:, 0] + 0.15 * np.sin(x[:, 1]) + 0.2 * np.tanh(x[:, 2]),
            0.75 * x[:, 1] + 0.15 * x[:, 0] * np.cos(x[:, 1]) - 0.15 * x[:, 2],
        ]
    )
    kernel = {
        "length_scales": np.array([[1.5, np.inf, 2.0, 1.4, 1.8], [2.0, np.inf, 1.7, 1.2, 1.5]]),
        "signal_variance": np.array([0.3, 0.4]) ** 2,
        "noise_variance": np.array([0.03, 0.02]) ** 2,
        "slope": np.array([[0.9, 0.1, 0.1, 0.0, 0.0], [0.1, 0.75, -0.1, 0.0, 0.0]]),
        "offset": np.array([0.02, -0.03]),
    }
    if kind == "full":
        return eqx.filter_jit(condition)(inputs, targets, **kernel)
    if kind in ("fitc", "vfe"):
        return eqx.filter_jit(condition_sparse)(inputs, targets, inputs[::2] + 0.05, **kernel, kind=kind)
    assert kind == "uncertain"  # the linear mean is uncertain, jointly with the weights
    base = gp("full", points)
    prior = np.diag([0.02, 0.05, 0.03, 0.04, 0.0, 0.0])
    basis = np.column_stack([np.ones(points), inputs])
    W = np.asarray(base.precision)
    # Bayesian linear regression on the residuals of the GP: the textbook's (Rasmussen & Williams, Section 2.7).
    cross, cov = [], []
    for a in range(2):
        posterior = np.linalg.inv(np.linalg.inv(prior + 1e-12 * np.eye(6)) + basis.T @ W[a] @ basis)
        cov.append(posterior)
        cross.append(-W[a] @ basis @ posterior)
    precision = np.stack([W[a] - W[a] @ basis @ cov[a] @ basis.T @ W[a] for a in range(2)])
    return eqx.tree_at(
        lambda g: (g.precision, g.cross_cov, g.linear_cov, g.root),
        base,
        (jnp.asarray(precision), jnp.asarray(np.stack(cross)), jnp.asarray(np.stack(cov)), None),
        is_leaf=lambda leaf: leaf is None,
    )


@functools.cache
def dynamics(kind: str = "full", sensor: float = 0.15, process: float = 0.05) -> Dynamics:
    features = AngleFeatures((ANGLE,), (0, 1, 2))
    return Dynamics(gp(kind), features, np.full(2, sensor**2), np.full(2, process**2))


@functools.cache
def policy(kind: str = "rbf") -> Policy:
    rng = np.random.default_rng(2)
    features = AngleFeatures((ANGLE,), (0,))
    if kind == "linear":
        return LinearPolicy([[-0.4, -0.6, 0.2]], [0.1], features, [1.5])
    centroids = rng.normal(size=(6, 3))
    return RBFPolicy(centroids, 0.5 * rng.normal(size=(6, 1)), np.log([[1.2, 1.5, 0.9]]), features, [1.5])


COST = SaturatingCost(AngleFeatures((ANGLE,), (0,)), [0.0, 0.0, 1.0], np.diag([1.0, 2.0, 0.5]))
