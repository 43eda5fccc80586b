"""Policies: against the original programs, value and derivative with respect to state and parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian, Moments
from bayespilco.policy import LinearPolicy, Network, PolicyMap, RBFPolicy
from tests.golden import cases, compare, load

RIDGE = 1e-6
"""The original adds this to the variance of an RBF network's output; this library does not."""


class RidgedNetwork(Network):
    def moments(self, gaussian: Gaussian) -> Moments:
        plain = super().moments(gaussian)
        return Moments(plain.mean, plain.cov + RIDGE * jnp.eye(plain.mean.size), plain.gain)


class RidgedRBFPolicy(RBFPolicy):
    """The original's RBF policy, ridge included, for comparisons to rounding."""

    def map(self) -> PolicyMap:
        plain = super().map()
        return PolicyMap(plain.features, RidgedNetwork(plain.function.gp), plain.squash)  # type: ignore[union-attr]


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
    return RidgedRBFPolicy(centroids, targets, scales, AngleFeatures((), tuple(range(inputs))), limits).map()


KINDS = [
    ("conlin", linear, False, (0,)),
    ("congp", network, False, (2,)),
    ("conCat_conlin_gSat", linear, True, (0,)),
    ("conCat_congp_gSat", network, True, (2,)),
]


@pytest.mark.parametrize(
    ("name", "build", "squashed", "number"),
    [
        pytest.param(*kind[:3], number.values[0], marks=number.marks, id=f"{kind[0]}-{number.values[0]}")
        for kind in KINDS
        for number in cases(kind[0], quick=kind[3])
    ],
)
def test_policy(name, build, squashed, number) -> None:  # type: ignore[no-untyped-def]
    case = load(name)[number]
    limits = jnp.asarray(case["maxU"].ravel())

    def moments(m: jax.Array, s: jax.Array, p: jax.Array) -> dict[str, jax.Array]:
        policy = build(p, m.size, limits)
        outer = policy.moments(Gaussian(m, s)) if squashed else policy.function.moments(Gaussian(m, s))
        return {"M": outer.mean, "S": outer.cov, "C": outer.gain}

    arguments = {"m": case["m"].ravel(), "s": case["s"], "p": case["p_unwrapped"].ravel()}
    compare(moments, case, arguments, 1e-8)
