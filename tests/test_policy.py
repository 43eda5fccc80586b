"""Policies: against the original programs, value and derivative with respect to state and parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.features import AngleFeatures, Saturation
from bayespilco.gaussian import Gaussian, Moments
from bayespilco.policy import LinearPolicy, PolicyMap, RBFPolicy
from tests.golden import cases, compare, load

RIDGE = 1e-6
"""The original adds this to the variance of an RBF network's output; this library does not."""


def linear(p: jax.Array, inputs: int, limits: jax.Array) -> PolicyMap:
    """Parameters in the original's order: b, then w column by column."""
    actions = limits.size
    offset, matrix = p[:actions], p[actions:].reshape(inputs, actions).T
    return LinearPolicy(matrix, offset, AngleFeatures((), tuple(range(inputs))), limits).map()


def network(p: jax.Array, inputs: int, limits: jax.Array) -> PolicyMap:
    """Parameters in the original's order: hyp, inputs, targets, each column by column; signal and noise are fixed."""
    actions = limits.size
    points = (p.size - (inputs + 2) * actions) // (inputs + actions)
    hyp, centroids, targets = jnp.split(p, np.cumsum([(inputs + 2) * actions, points * inputs]))
    scales = hyp.reshape(actions, inputs + 2)[:, :inputs]
    centroids, targets = centroids.reshape(inputs, points).T, targets.reshape(actions, points).T
    return RBFPolicy(centroids, targets, scales, AngleFeatures((), tuple(range(inputs))), limits).map()


KINDS = [
    ("conlin", linear, 0.0, False, (0, 1)),
    ("congp", network, RIDGE, False, (0,)),
    ("conCat_conlin_gSat", linear, 0.0, True, (0, 1)),
    ("conCat_congp_gSat", network, RIDGE, True, (0, 2)),
]


@pytest.mark.parametrize(
    ("name", "build", "ridge", "squashed", "number"),
    [
        pytest.param(*kind[:4], number.values[0], marks=number.marks, id=f"{kind[0]}-{number.values[0]}")
        for kind in KINDS
        for number in cases(kind[0], quick=kind[4])
    ],
)
def test_policy(name, build, ridge, squashed, number) -> None:  # type: ignore[no-untyped-def]
    case = load(name)[number]
    limits = jnp.asarray(case["maxU"].ravel())

    def moments(m: jax.Array, s: jax.Array, p: jax.Array) -> dict[str, jax.Array]:
        policy = build(p, m.size, limits)
        inner = policy.function.moments(Gaussian(m, s))
        inner = Moments(inner.mean, inner.cov + ridge * jnp.eye(limits.size), inner.gain)
        outer = inner.then(Saturation(limits).moments(inner.output)) if squashed else inner
        return {"M": outer.mean, "S": outer.cov, "C": outer.gain}

    arguments = {"m": case["m"].ravel(), "s": case["s"], "p": case["p_unwrapped"].ravel()}
    compare(moments, case, arguments, 1e-8)
