"""A filter that is not the plant's: its prediction against the original program, in limits, and against sampling."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Settings
from bayespilco.algorithm import make_problem
from bayespilco.control.cost import SaturatingCost
from bayespilco.control.policy import LinearPolicy, PolicyMap
from bayespilco.control.prediction import Filtered, Mismatched, StateAndBelief, predict_split
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess
from bayespilco.core.moments import cross_cov, gp_moments
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.sensors import Sensors
from bayespilco.model.splitting import WITHIN, points_for
from bayespilco.trust.mismatch import foresee, foresee_on, with_wrong_noise
from tests import systems
from tests.golden import assert_close, cases, load
from tests.oracles import Sampled, jacobian, products
from tests.small_run import small_run
from tests.test_reference_cost import cart_pole_pc
from tests.test_reference_filter import Joint, Shape, flat, policy_pc, reference, stored, unflat


def from_joint(state: Joint) -> StateAndBelief:
    return StateAndBelief(Gaussian(state.mean, state.cov), state.belief_cov)


@jacobian
def one_step(given: tuple[jax.Array, jax.Array], shape: Shape, filter: Dynamics, plant: Dynamics, limits: Any) -> Any:
    """The next state from the last one and the policy's parameters, all in one vector each."""
    state, p = given
    now, ready = from_joint(unflat(state, shape.states)), policy_pc(shape, p, limits).map()
    both, V = Mismatched(filter, by_gains=True).step(now, jnp.asarray(0), ready, plant).following
    return flat(Joint(both.mean, both.cov, V))


@pytest.mark.parametrize("number", cases("pc_propagateBF")[:2])
def test_one_step_of_the_original(number: int) -> None:
    """There the filter does not know of process noise: a filter that is not the plant's. With derivatives."""
    case = load("pc_propagateBF")[number]
    this, following = reference(case), stored(case["s_next"])
    plant = eqx.tree_at(lambda d: d.process_noise, this.dynamics, this.process_noise)
    given = (flat(stored(case["s"])), this.parameters)
    value, (by_state, _) = one_step(given, this.shape, this.dynamics, plant, this.limits)
    for name, actual, expected in zip(Joint._fields, unflat(value, this.shape.states), following, strict=True):
        assert_close(actual, expected, 1e-11, name)
    assert_close(by_state, case["dsds"], 1e-9, "by the state")


def test_six_steps_of_the_original() -> None:
    """States, actions and costs at every step."""
    case = load("pc_simulateBF")[0]
    this = reference(case)
    plant = eqx.tree_at(lambda d: d.process_noise, this.dynamics, this.process_noise)
    policy = policy_pc(this.shape, this.parameters, this.limits)
    cost = cart_pole_pc(case["cost"]["ell"].item(), case["cost"]["width"].item())
    found = systems.run(Mismatched(this.dynamics, by_gains=True), policy, plant, this.initial, cost, 7)
    n = this.shape.states
    for t, expected in enumerate(case["states"]):
        assert_close(found.state_mean[t], expected["m"].ravel()[:n], 1e-9, f"mean at {t}")
        assert_close(found.state_cov[t], expected["s"][:n, :n], 1e-9, f"covariance at {t}")
        assert_close(found.cost_mean[t], case["costs"][t]["m"].item(), 1e-9, f"cost at {t}")
    for t, expected in enumerate(case["actions"]):
        assert_close(found.action_mean[t], expected["m"].ravel(), 1e-9, f"action at {t}")
    assert_close(jnp.sum(found.cost_mean[:7]), case["loss"].item(), 1e-10, "total cost")


# Limits.


@functools.cache
def linear(dropout: float = 0.3) -> Dynamics:
    """Two states and an action; a sensor that loses samples."""
    slope = np.array([[0.9, 0.2, 0.1], [-0.1, 0.8, 0.3]])
    gp = GaussianProcess(np.zeros((1, 3)), np.ones((2, 3)), np.ones(2), np.zeros((2, 1)), None, slope, np.zeros(2))
    sensors = Sensors([0.1, 0.2], [[1.0, 0.0], [0.3, 1.0]], (1.5, -0.2), (0.0, dropout))
    return Dynamics(gp, AngleFeatures((), (0, 1, 2)), sensors, np.array([0.02, 0.03]))


def wrong(dropout: float = 0.3) -> Dynamics:
    """Other slopes, other noises, and an offset that nobody told it of."""
    right = linear(dropout)
    gp = eqx.tree_at(lambda g: g.slope, right.gp, 0.95 * right.gp.slope)
    sensors = dataclasses.replace(right.sensors, noise=[0.4, 0.1], offset=(0.0, -0.2))
    return dataclasses.replace(right, gp=gp, sensors=sensors, process_noise=np.array([0.01, 0.01]))


def policy() -> LinearPolicy:
    return LinearPolicy([[-0.4, -0.6]], [0.1], AngleFeatures((), (0, 1)), [1.5])


COST = SaturatingCost(AngleFeatures((), (0, 1)), [0.0, 0.0], np.eye(2))


def test_a_filter_that_is_right() -> None:
    """Of a linear plant the two predictions are the same; of another they are near, and the same for a step."""
    ours = systems.run(Filtered(), policy(), linear(), systems.INITIAL, COST, 6)
    joint = systems.run(Mismatched(linear()), policy(), linear(), systems.INITIAL, COST, 6)
    for name in ("state_mean", "state_cov", "action_cov", "cost_mean", "belief_cov"):
        assert_close(getattr(joint, name), getattr(ours, name), 1e-9, name)


def test_a_filter_that_is_right_of_a_curved_plant() -> None:
    """The same prediction as well, from one Gaussian and from parts; by gains alone it is another."""
    plant, ready, cost = systems.dynamics(), systems.policy("rbf"), systems.COST
    points = jnp.asarray(points_for(np.asarray(systems.INITIAL.cov)))
    in_parts = eqx.filter_jit(predict_split)
    for run, more in ((systems.run, ()), (in_parts, (points,))):
        ours = run(Filtered(), ready, plant, systems.INITIAL, cost, 5, *more)
        joint = run(Mismatched(plant), ready, plant, systems.INITIAL, cost, 5, *more)
        for name in ("state_mean", "state_cov", "action_cov", "cost_mean", "belief_cov"):
            assert_close(getattr(joint, name), getattr(ours, name), 1e-9, name)
    by_gains = systems.run(Mismatched(plant, by_gains=True), ready, plant, systems.INITIAL, cost, 5)
    whole = systems.run(Filtered(), ready, plant, systems.INITIAL, cost, 5)
    assert np.abs(by_gains.state_cov - whole.state_cov).max() > 1e-8


def test_what_two_models_have_in_common_by_sampling() -> None:
    """`Cov[f(X), E_b[g]]` of two GPs, and of angle features."""
    rng = np.random.default_rng(3)
    f, g, features = systems.gp("full"), systems.gp("fitc"), AngleFeatures((1,), (0, 2))
    for inputs in (5, 3):
        both, V = systems.covariance(rng, 2 * inputs, 0.5), systems.covariance(rng, inputs, 0.4)
        means = 0.3 * rng.normal(size=2 * inputs)
        draws = rng.multivariate_normal(means, both, size=200_000)
        x, m = (Gaussian(means[of], both[of, of]) for of in (slice(inputs), slice(inputs, None)))
        cross = jnp.asarray(both[:inputs, inputs:])
        X, M = jnp.asarray(draws[:, :inputs]), jnp.asarray(draws[:, inputs:])
        if inputs == 5:
            found = cross_cov(f, x, g, m, jnp.asarray(V), cross)
            of_x = jax.jit(jax.vmap(f))(X)
            of_m = jax.jit(jax.vmap(lambda at, V: gp_moments(g, Gaussian(at, V)).mean, in_axes=(0, None)))(M, V)
        else:
            found = features.cross_cov(x, m, cross, jnp.asarray(V))
            of_x = jax.jit(jax.vmap(features))(X)
            of_m = jax.jit(jax.vmap(lambda at, V: features.moments(Gaussian(at, V)).mean, in_axes=(0, None)))(M, V)
        Sampled.of(products(np.asarray(of_x), np.asarray(of_m))).assert_agrees(found, f"{inputs} inputs")


def by_hand(rng: np.random.Generator, count: int, steps: int, dropout: float) -> tuple[np.ndarray, np.ndarray]:
    """The wrong filter on the right plant, many times, as a textbook would write it: states, and the policy's costs."""
    plant, filter = linear(), wrong()
    ready: PolicyMap = policy().map()
    x = rng.multivariate_normal(np.asarray(systems.INITIAL.mean), np.asarray(systems.INITIAL.cov), size=count)
    m = np.tile(np.asarray(systems.INITIAL.mean), (count, 1))
    Vs, C, slope = np.tile(np.asarray(systems.INITIAL.cov), (count, 1, 1)), plant.sensors.C, np.asarray(plant.gp.slope)
    R, of_filter = np.diag(np.asarray(filter.sensors.noise)), np.asarray(filter.gp.slope)
    costs = []
    for _ in range(steps):
        z = x @ C.T + plant.sensors.d + np.sqrt(np.asarray(plant.sensors.noise)) * rng.normal(size=x.shape)
        lost = rng.uniform(size=count) < dropout
        noise = np.tile(R, (count, 1, 1))
        noise[lost, 1, 1] = 1e12
        K = Vs @ C.T @ np.linalg.inv(C @ Vs @ C.T + noise)
        m = m + np.einsum("nij,nj->ni", K, z - m @ C.T - filter.sensors.d)
        Vs = Vs - K @ C @ Vs
        u = np.asarray(jax.vmap(ready)(jnp.asarray(m)))
        costs.append(np.asarray(jax.vmap(COST)(jnp.asarray(x))))
        noise_x = np.sqrt(np.asarray(plant.process_noise)) * rng.normal(size=x.shape)
        x = np.concatenate([x, u], axis=1) @ slope.T + noise_x
        m = np.concatenate([m, u], axis=1) @ of_filter.T
        Vs = of_filter[:, :2] @ Vs @ of_filter[:, :2].T + np.diag(np.asarray(filter.process_noise))
    return x, np.array(costs)


def test_a_wrong_filter_by_sampling() -> None:
    """One step without dropouts, which is exact; and the costs of six with them."""
    x, _ = by_hand(np.random.default_rng(0), 200_000, 1, 0.0)
    one = systems.run(Mismatched(wrong(0.0)), policy(), linear(0.0), systems.INITIAL, COST, 1)
    Sampled.of(x).assert_agrees(one.state_mean[1], "mean")
    Sampled.of(products(x, x)).assert_agrees(one.state_cov[1], "covariance")
    _, costs = by_hand(np.random.default_rng(1), 40_000, 6, 0.3)
    found = systems.run(Mismatched(wrong()), policy(), linear(), systems.INITIAL, COST, 6)
    right = systems.run(Filtered(), policy(), linear(), systems.INITIAL, COST, 6)
    totals = Sampled.of(costs.sum(axis=0))
    totals.assert_agrees(found.cost_mean[:6].sum(), "total cost")
    away = abs(float(right.cost_mean[:6].sum()) - totals.value)
    assert away > 10 * totals.error, "the filter is so wrong that it matters"


def test_parts_make_up_what_the_filter_believes() -> None:
    """After the first look the parts together are what the whole is; each knows its own share better."""
    predictor, initial, plant = Mismatched(wrong(0.0)), systems.INITIAL, linear(0.0)
    points = jnp.asarray(points_for(np.asarray(initial.cov)))
    look = jax.jit(lambda carry: predictor._look(carry, jnp.asarray(0), plant)[0])
    mean, cov = look(predictor.start(initial, plant))
    means, covs = jax.vmap(look)(predictor.starts(initial, plant, points))
    away = np.asarray(means - mean)
    assert_close(np.asarray(covs).mean(axis=0) + away.T @ away / len(away), cov, 1e-11)
    assert_close(covs[0][2:, 2:], WITHIN * np.asarray(cov)[2:, 2:], 1e-11)
    assert np.linalg.eigvalsh(covs[0]).min() > 0


def test_parts_make_up_the_whole_where_samples_are_lost() -> None:
    """The parts' states together have the first state's moments, and the filter is told nothing of them."""
    predictor, initial = Mismatched(wrong()), systems.INITIAL
    starts = predictor.starts(initial, linear(), jnp.asarray(points_for(np.asarray(initial.cov))))
    away = np.asarray(starts.both.mean)[:, :2] - np.asarray(initial.mean)
    assert_close(np.asarray(starts.both.cov)[:, :2, :2].mean(axis=0) + away.T @ away / len(away), initial.cov, 1e-12)
    assert_close(starts.both.mean[:, 2:], np.tile(initial.mean, (len(away), 1)), 1e-15)
    assert not np.asarray(starts.both.cov)[:, 2:].any()


# A learned controller.


@functools.cache
def drawn_plants(runs: int) -> tuple[Dynamics, jax.Array]:
    """The model of a small run, whose function differs from its mean afresh at each step, as moments assume."""
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (runs, *leaf.shape)), small_run().dynamics)
    return same, jax.random.split(jax.random.key(0), runs)


@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_wrong_noise_is_foreseen(factor: float) -> None:
    """Within 10 % of sampling."""
    run = small_run()
    problem = make_problem(run.task, run.settings, run.dynamics)
    wrong_filter = with_wrong_noise(run.dynamics, factor)
    found = foresee_on(run.task, problem, run.policy, wrong_filter, *drawn_plants(200), split=False)
    assert abs(found.missed) < 0.1 and found.error < 0.05 * found.sampled


def test_mistakes_are_named() -> None:
    run = small_run()
    with pytest.raises(ValueError, match="positive number"):
        with_wrong_noise(run.dynamics, 0.0)
    with pytest.raises(ValueError, match="at least two runs"):
        foresee(run.task, Settings(), run.records[-1], run.dynamics, runs=1)
