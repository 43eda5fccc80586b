"""Policies: against the original programs, value and derivative with respect to state and parameters."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.control.policy import LinearPolicy, Network, PolicyMap, RBFPolicy
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, Moments
from tests.golden import assert_reference, cases, cropped, load
from tests.oracles import jacobian

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
        return eqx.tree_at(lambda ready: ready.function, plain, RidgedNetwork(plain.function.gp))  # type: ignore[union-attr]


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


FAR = 1e3
"""Of a centroid: so many length-scales away that its kernel is exactly zero."""
WIDE = 30.0
"""Of an input's log length-scale: so wide that the input does not matter."""


def placed(
    p: np.ndarray, sizes: tuple[int, int], points: int, largest: tuple[int, int]
) -> tuple[jax.Array, np.ndarray]:
    """An RBF policy's parameters among those of a larger one that is the same function, and where they are there.

    `sizes` and `largest` are numbers of inputs and actions. More inputs do not matter, more centroids are out of reach.
    """
    (n, actions), (inputs, _) = sizes, largest
    assert actions == largest[1]
    own = (p.size - (n + 2) * actions) // (n + actions)
    hyp = np.arange((inputs + 2) * actions).reshape(actions, inputs + 2).T
    centroids = hyp.size + np.arange(points * inputs).reshape(inputs, points).T
    targets = hyp.size + centroids.size + np.arange(points * actions).reshape(actions, points).T
    larger = np.zeros(hyp.size + centroids.size + targets.size)
    larger[hyp[n:inputs]] = WIDE
    larger[centroids[own:, :n]] = FAR * np.arange(1, points - own + 1)[:, None]
    rows = [*range(n), inputs, inputs + 1]
    parts = (hyp[rows], centroids[:own, :n], targets[:own])
    where = np.concatenate([part.ravel(order="F") for part in parts])
    larger[where] = p
    return jnp.asarray(larger), where


INPUTS, ACTIONS, CENTROIDS = 6, 2, 22
"""The largest of all cases: smaller ones are padded to it and share the compiled code."""


def every_moment(build: Callable[..., PolicyMap]) -> Callable[..., Any]:
    """Values and derivatives of a policy's moments, before and after squashing."""

    @jacobian
    def moments(given: dict[str, jax.Array], limits: jax.Array) -> dict[str, dict[str, jax.Array]]:
        policy, state = build(given["p"], INPUTS, limits), Gaussian(given["m"], given["s"])
        both = {"plain": policy.function.moments(state), "squashed": policy.moments(state)}
        return {kind: {"M": of.mean, "S": of.cov, "C": of.gain} for kind, of in both.items()}

    return moments


LINEAR, NETWORK = every_moment(linear), every_moment(network)
KINDS = {"conlin": "plain", "congp": "plain", "conCat_conlin_gSat": "squashed", "conCat_congp_gSat": "squashed"}


@pytest.mark.parametrize(("name", "number"), [(name, number) for name in KINDS for number in cases(name)])
def test_policy(name: str, number: int) -> None:
    case = load(name)[number]
    p, n = case["p_unwrapped"].ravel(), case["m"].size
    if "congp" in name:
        evaluate = NETWORK
        larger, where = placed(p, (n, ACTIONS), CENTROIDS, (INPUTS, ACTIONS))
    else:
        evaluate = LINEAR
        where = np.arange(p.size)  # column by column: the weights of further inputs come last
        larger = jnp.zeros(ACTIONS + INPUTS * ACTIONS).at[where].set(p)
    further = (0, INPUTS - n)
    given = {"m": jnp.pad(case["m"].ravel(), further), "s": jnp.pad(case["s"], further), "p": larger}
    values, jacobians = (both[KINDS[name]] for both in evaluate(given, jnp.asarray(case["maxU"].ravel())))
    shapes = {"M": (ACTIONS,), "S": (ACTIONS, ACTIONS), "C": (n, ACTIONS)}
    values = {name: cropped(values[name], shape) for name, shape in shapes.items()}
    jacobians = {
        name: {
            "m": cropped(jacobians[name]["m"], (*shape, n)),
            "s": cropped(jacobians[name]["s"], (*shape, n, n)),
            "p": cropped(jacobians[name]["p"], shape)[..., where],
        }
        for name, shape in shapes.items()
    }
    assert_reference(values, jacobians, case, 1e-8)
