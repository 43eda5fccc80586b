"""Closed-form moments against sampling: mean, covariance and gain, within five computed standard errors."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.control.cost import SaturatingCost
from bayespilco.core.features import AngleFeatures, Saturation
from bayespilco.core.gaussian import Gaussian, Moments
from bayespilco.core.gp import GaussianProcess
from bayespilco.core.moments import belief_moments, gp_moments
from tests import systems
from tests.oracles import Sampled, products

SAMPLES = 40_000
ANGLES = AngleFeatures((1,), (0, 2))
SQUASH = Saturation(jnp.asarray([1.0, 2.0]))
COST = SaturatingCost(AngleFeatures((), (0, 1)), [0.2, -0.1], [[2.0, 0.5], [0.5, 1.0]])
"""Of the state itself: after angle features it is one of the maps in turn, below."""

Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def exactly(function: Callable[[Any], Any]) -> Draw:
    """A deterministic map, drawn."""
    many = jax.jit(jax.vmap(function))
    return lambda x, rng: np.asarray(many(jnp.asarray(x)))


def from_gp(gp: GaussianProcess) -> Draw:
    """Values of the uncertain function: each output is independent of the others, given its input."""
    many = jax.jit(jax.vmap(lambda x: (gp(x), gp.variance(x))))

    def draw(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        mean, variance = (np.asarray(value) for value in many(jnp.asarray(x)))
        assert variance.min() > -1e-10
        return mean + np.sqrt(np.maximum(variance, 0)) * rng.normal(size=mean.shape)

    return draw


def from_dynamics(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    inputs = np.asarray(jax.vmap(systems.dynamics().features)(jnp.asarray(x)))
    noise = np.sqrt(np.asarray(systems.dynamics().process_noise))
    return from_gp(systems.gp())(inputs, rng) + noise * rng.normal(size=(len(x), 2))


MAPS: dict[str, tuple[int, Callable[[Gaussian], Moments], Draw]] = {
    "angle features": (3, ANGLES.moments, exactly(ANGLES)),
    "saturation": (2, SQUASH.moments, exactly(SQUASH)),
    "cost": (2, COST.moments, exactly(lambda x: COST(x)[None])),
    "full GP": (5, lambda g: gp_moments(systems.gp(), g), from_gp(systems.gp())),
    "FITC": (5, lambda g: gp_moments(systems.gp("fitc"), g), from_gp(systems.gp("fitc"))),
    "VFE": (5, lambda g: gp_moments(systems.gp("vfe"), g), from_gp(systems.gp("vfe"))),
    "uncertain mean": (5, lambda g: gp_moments(systems.gp("uncertain"), g), from_gp(systems.gp("uncertain"))),
    "RBF function": (
        3,
        lambda g: systems.policy("rbf").map().function.moments(g),
        exactly(systems.policy("rbf").map().function),
    ),
    "linear function": (
        3,
        lambda g: systems.policy("linear").map().function.moments(g),
        exactly(systems.policy("linear").map().function),
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_moments(name: str) -> None:
    size, moments, draw = MAPS[name]
    rng = np.random.default_rng(7)
    mean, cov = 0.4 * rng.normal(size=size), systems.covariance(rng, size, 0.6)
    expected = eqx.filter_jit(moments)(Gaussian(mean, cov))
    x = rng.multivariate_normal(mean, cov, size=SAMPLES)
    y = draw(x, rng)
    Sampled.of(y).assert_agrees(expected.mean, "mean")
    Sampled.of(products(y, y)).assert_agrees(expected.cov, "covariance")
    Sampled.of(products(x, y)).assert_agrees(cov @ expected.gain, "Cov[x, y]")


@pytest.mark.parametrize("kind", ["RBF policy", "linear policy", "cost", "dynamics"])
def test_moments_of_maps_in_turn(kind: str) -> None:
    """Maps after maps are Gaussian only in the limit of small uncertainty: there, the errors are of second order."""
    rng = np.random.default_rng(8)
    size = 3 if kind == "dynamics" else 2
    mean, cov = 0.4 * rng.normal(size=size), systems.covariance(rng, size, 0.05)
    if kind == "dynamics":
        moments, draw = systems.dynamics().moments, from_dynamics
    elif kind == "cost":
        moments, draw = systems.COST.moments, exactly(lambda x: systems.COST(x)[None])
    else:
        policy = systems.policy(kind.split()[0].lower())
        moments, draw = policy.moments, exactly(policy.map())
    expected = eqx.filter_jit(moments)(Gaussian(mean, cov))
    x = rng.multivariate_normal(mean, cov, size=SAMPLES)
    y = draw(x, rng)
    scale = 3e-3 * np.sqrt(np.diag(np.asarray(expected.cov)) + 1e-12)  # the second order, relative to the spread
    Sampled.of(y).assert_agrees(expected.mean, "mean", rounding=scale.max())
    Sampled.of(products(y, y)).assert_agrees(expected.cov, "covariance", rounding=scale.max() ** 2)
    Sampled.of(products(x, y)).assert_agrees(cov @ expected.gain, "Cov[x, y]", rounding=scale.max() * 3e-4)


HIERARCHICAL: dict[str, tuple[int, Callable[..., Any], Callable[[Gaussian], Moments]]] = {
    "angle features": (3, ANGLES.belief_moments, ANGLES.moments),
    "saturation": (2, SQUASH.belief_moments, SQUASH.moments),
    "cost": (2, COST.belief_moments, COST.moments),
    "GP": (5, lambda g, V: belief_moments(systems.gp(), g, V), lambda g: gp_moments(systems.gp(), g)),
    "uncertain mean": (
        5,
        lambda g, V: belief_moments(systems.gp("uncertain"), g, V),
        lambda g: gp_moments(systems.gp("uncertain"), g),
    ),
}


@pytest.mark.parametrize("name", HIERARCHICAL)
def test_belief_moments(name: str) -> None:
    """Draw the belief's mean, take the (tested) moments under that belief, and look at how they vary."""
    size, moments, within = HIERARCHICAL[name]
    rng = np.random.default_rng(9)
    mean, S, V = 0.4 * rng.normal(size=size), systems.covariance(rng, size, 0.4), systems.covariance(rng, size, 0.4)
    of_mean, expected_cov = eqx.filter_jit(moments)(Gaussian(mean, S), jnp.asarray(V))
    M = rng.multivariate_normal(mean, S, size=4_000)
    each = jax.jit(lambda means: jax.lax.map(lambda m: within(Gaussian(m, V)), means))(jnp.asarray(M))
    y = np.asarray(each.mean)
    Sampled.of(y).assert_agrees(of_mean.mean, "mean of the mean")
    Sampled.of(products(y, y)).assert_agrees(of_mean.cov, "variance of the mean")
    Sampled.of(each.cov).assert_agrees(expected_cov, "mean of the covariance")
    Sampled.of(products(M, y)).assert_agrees(S @ of_mean.gain, "Cov[M, M']")
