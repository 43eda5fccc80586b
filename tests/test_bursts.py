"""Bursts of lost samples: the chain, what is simulated and predicted of it, and policies of the whole belief."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Settings, tasks
from bayespilco.algorithm import check_sees, make_problem, random_policy
from bayespilco.control.cost import SaturatingCost
from bayespilco.control.policy import BeliefPolicy, Caution, LinearPolicy
from bayespilco.control.prediction import Filtered, Mismatched, MostLikely, Prediction, Unfiltered, predict
from bayespilco.control.problem import Problem
from bayespilco.control.search import improve
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess
from bayespilco.deploy import bridge
from bayespilco.deploy.controller import Controller
from bayespilco.environments import TaskEnvironment
from bayespilco.execution import RandomActions, execute_many, filtered
from bayespilco.model.bursts import Chain
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.sensors import Sensors
from bayespilco.model.structure import free
from bayespilco.report import playground
from bayespilco.runs.arrays import read_module, write_module
from bayespilco.runs.plain import read_task, task_text
from bayespilco.tasks import Bursts, Task
from tests import systems, test_c, test_controller_frame, test_playground
from tests.browser import run_node
from tests.oracles import Kalman, Sampled, directional_difference, products

CHAIN = Chain(begin=0.1, end=0.25)
TIMES = 25


def marginals(chain: Chain, times: int) -> tuple[np.ndarray, np.ndarray]:
    """How likely each step is lost, and each pair of steps: by powers of the chain's matrix."""
    P = np.array([[1 - chain.begin, chain.begin], [chain.end, 1 - chain.end]])
    powers = [np.linalg.matrix_power(P, k) for k in range(times)]
    alone = np.array([power[0, 1] for power in powers])
    both = np.array([[alone[min(s, t)] * powers[abs(s - t)][1, 1] for t in range(times)] for s in range(times)])
    return alone, both


def bursty(chain: Chain = CHAIN) -> Dynamics:
    """The system of all tests, whose sensors fall silent now and then."""
    model = systems.dynamics()
    return eqx.tree_at(lambda d: d.sensors, model, dataclasses.replace(model.sensors, bursts=chain))


def problem(steps: int = 10, chain: Chain = CHAIN) -> Problem:
    return Problem(Filtered(), bursty(chain), systems.INITIAL, systems.COST, steps).drawn()


def cautious(kind: str = "rbf") -> BeliefPolicy:
    """A policy that makes much of the covariance."""
    return BeliefPolicy(systems.policy(kind), Caution([[-0.6, 0.4]], [[0.2, -0.3]], [0.02, 0.03]))


# The chain.


def test_both_ways_to_draw_are_the_chain_by_sampling() -> None:
    """Each step and each pair of steps. Of patterns drawn together, sets are independent, not the patterns in them."""
    alone, both = marginals(CHAIN, TIMES)
    drawn = np.asarray(jax.vmap(lambda key: CHAIN.draw(key, TIMES))(jax.random.split(jax.random.key(0), 20_000)))
    Sampled.of(drawn).assert_agrees(alone, "drawn one by one")
    Sampled.of(drawn[:, :, None] & drawn[:, None, :]).assert_agrees(both, "pairs of steps")
    sets = np.array([CHAIN.paths(TIMES, 8, number) for number in range(4000)])
    Sampled.of(sets.mean(axis=1)).assert_agrees(alone, "drawn together")
    Sampled.of((sets[..., :, None] & sets[..., None, :]).mean(axis=1)).assert_agrees(both, "pairs, drawn together")
    # Together they are spread more evenly than one by one.
    assert sets.mean(axis=(1, 2)).std() < 0.7 * drawn.reshape(-1, 8, TIMES).mean(axis=(1, 2)).std()


def test_patterns_are_numbered() -> None:
    paths = CHAIN.paths(TIMES, 16, 3)
    assert not paths[:, 0].any() and (paths != paths[0]).any()
    np.testing.assert_array_equal(paths, CHAIN.paths(TIMES, 16, 3))
    assert (paths != CHAIN.paths(TIMES, 16, 4)).any()
    np.testing.assert_array_equal(Chain(1.0, 1.0).paths(6, 2), [[False, True] * 3] * 2)


# What is simulated.


def lossy(bursts: Bursts | None) -> Task:
    return dataclasses.replace(tasks.spring(), bursts=bursts)


def test_a_simulation_loses_all_samples_together() -> None:
    """As often as the chain says; and what is left is what was there without bursts, to the bit."""
    of = tasks.spring()
    bursts = Bursts(apart=6 * of.dt, lasting=3 * of.dt)
    keys, executor = jax.random.split(jax.random.key(1), 4000), RandomActions(of.action_limits)
    z, whole = (np.asarray(execute_many(lossy(b), executor, keys).observations) for b in (bursts, None))
    lost = np.isnan(z)
    assert (lost.all(axis=-1) == lost.any(axis=-1)).all() and np.isfinite(whole).all()
    np.testing.assert_array_equal(z[~lost], whole[~lost])
    alone, both = marginals(Chain(1 / 6, 1 / 3), of.steps + 1)
    Sampled.of(lost[..., 0]).assert_agrees(alone, "lost")
    Sampled.of(lost[..., 0][:, :, None] & lost[..., 0][:, None, :]).assert_agrees(both, "pairs of steps")


def test_an_environment_and_the_page_have_bursts_too() -> None:
    of = lossy(Bursts(apart=6 * tasks.spring().dt, lasting=3 * tasks.spring().dt))
    alone, both = marginals(Chain(1 / 6, 1 / 3), 12)
    environment, lost = TaskEnvironment(of), []
    for seed in range(150):
        seen = [environment.reset(seed=seed)[0], *(environment.step(np.zeros(1))[0] for _ in range(11))]
        lost.append(np.isnan(np.array(seen)).all(axis=1))
    Sampled.of(lost).assert_agrees(alone, "environment")
    program = """
      const loop = Object.create(Loop.prototype);
      const chance = new Chance(3);
      return Array.from({ length: 4000 }, () => {
        const still = { noise: 1, dropout: null, time: 0, blindUntil: 0, inBurst: false };
        Object.assign(loop, still, { setup: data, rows: data.rows, chance });
        return Array.from({ length: 12 }, (_, step) => {
          loop.step = step;
          return loop.measure().every(Number.isNaN) ? 1 : 0;
        });
      });"""
    setup = playground.setup(of, test_controller_frame.dynamics(of, "free"))
    scripts = ("linalg.js", "controller.js", "plants.js", "canvas.js", "playground.js")
    given = {"sensors": setup["sensors"], "bursts": setup["bursts"], "rows": np.zeros(2)}
    found = np.array(run_node(scripts, program, given))
    Sampled.of(found).assert_agrees(alone, "page")
    Sampled.of(found[:, :, None] * found[:, None, :]).assert_agrees(both, "page, pairs")


# What is predicted.


def steady() -> tuple[Dynamics, Gaussian, np.ndarray]:
    """A linear plant, whose belief is as uncertain at the start as it is ever after, as long as samples come.

    The second row is a target that the policy is not shown: a pulse at known steps.
    """
    q, r = 0.1**2, 0.1**2
    V = q / 2 + np.sqrt(q**2 / 4 + q * r)  # of x' = x + u + w, before an observation
    path = np.zeros(21)
    path[8:13] = 1.0
    structure = free(1, 1).with_references(1, np.diff(path)[:, None])
    gp = GaussianProcess(
        np.zeros((1, 2)), np.ones((1, 2)), np.ones(1), np.zeros((1, 1)), None, np.array([[1.0, 1.0]]), np.zeros(1)
    )
    sensors = Sensors([r], [[1.0, 0.0]], bursts=Chain(1 / 12, 1 / 5))
    model = Dynamics(gp, AngleFeatures((), (0, 2)), sensors, np.array([q, 0.0]), structure)
    return model, Gaussian([0.0, 0.0], np.diag([V, 0.0])), path


def chasing(matrix: float = -0.3) -> LinearPolicy:
    return LinearPolicy([[matrix]], [0.0], AngleFeatures((), (0,)), [2.0])


MISSED = SaturatingCost(AngleFeatures((), (0, 1)), np.zeros(2), 2 * np.array([[1.0, -1.0], [-1.0, 1.0]]))
"""How far the plant is from the target."""


def test_each_pattern_has_the_textbook_s_path_of_the_covariance() -> None:
    model, initial, path = steady()
    lost = model.sensors.bursts.paths(21, 4, 2)
    assert lost.any(axis=1).sum() >= 2
    kalman = Kalman(np.eye(1), np.eye(1), np.eye(1) * 0.01, np.eye(1) * 0.01)
    expected = np.zeros((4, 20))
    for number, pattern in enumerate(lost):
        P = np.asarray(initial.cov)[:1, :1]
        for t in range(20):
            P = P if pattern[t] else kalman.update(np.zeros(1), P, np.zeros(1))[1]
            expected[number, t] = P[0, 0]
            P = kalman.predict(np.zeros(1), P, np.zeros(1))[1]
    found = predict(Filtered(), chasing(), model, initial, MISSED, 20, lost=jnp.asarray(lost))
    np.testing.assert_allclose(found.belief_cov[:, 0, 0], expected.mean(axis=0), rtol=1e-10)
    # With a filter that is right, the joint of state and belief says the same.
    joint = predict(Mismatched(model), chasing(), model, initial, MISSED, 20, lost=jnp.asarray(lost))
    np.testing.assert_allclose(joint.belief_cov[:, 0, 0], expected.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(joint.cost_mean, found.cost_mean, rtol=1e-9)
    np.testing.assert_allclose(found.state_mean[:, 1], path, atol=1e-12)


def test_a_prediction_is_the_mixture_of_its_patterns() -> None:
    given, policy = problem(6), cautious()
    each = [given._replace(lost=given.lost[jnp.array([i, i, (i + 1) % 16])]) for i in range(0, 16, 5)]
    for one in each:
        # Two of three parts are the same pattern: what is left of the third is known by linearity.
        whole, pair = one.prediction(policy), one._replace(lost=one.lost[1:]).prediction(policy)
        single = 3 * np.asarray(whole.cost_mean) - 2 * np.asarray(pair.cost_mean)
        again = one._replace(lost=one.lost[jnp.array([0, 0, 0, 2])]).prediction(policy)
        np.testing.assert_allclose(again.cost_mean, (2 * single + 2 * np.asarray(pair.cost_mean)) / 4, atol=1e-12)
    values = [problem(6)._replace(lost=part).value(policy) for part in jnp.split(given.lost, 2)]
    assert given.value(policy) == pytest.approx(np.mean(values), rel=1e-12)
    # Eight parts are repeated, each with two patterns.
    split, parts = problem(6).split(2), systems_parts(2)
    np.testing.assert_array_equal(split.components, np.tile(parts, (2, 1)))
    np.testing.assert_array_equal(split.lost, CHAIN.paths(7, 16, 2))
    halves = [half.value(policy) for half in split.halves()]
    assert split.value(policy) == pytest.approx(np.mean(halves), rel=1e-12)
    value, _ = given.value_and_gradient(policy)
    assert float(value) == pytest.approx(given.value(policy), rel=1e-12)


def systems_parts(number: int) -> np.ndarray:
    """The parts of a prediction without bursts."""
    split = Problem(Filtered(), systems.dynamics(), systems.INITIAL, systems.COST, 6).split(number)
    return np.asarray(split.components)


def assert_same(one: Prediction, other: Prediction, rtol: float) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-13)


def test_without_bursts_nothing_changes() -> None:
    """Neither without the declaration, nor if no pattern loses anything, nor for predictors without a filter."""
    model, policy = systems.dynamics(), systems.policy()
    plain = Problem(Filtered(), model, systems.INITIAL, systems.COST, 6)
    assert plain.drawn() is not None and plain.drawn().lost is None and plain.split().lost is None
    silent = problem(6)._replace(lost=jnp.zeros((4, 7), dtype=bool))
    assert_same(silent.prediction(policy), plain.prediction(policy), 1e-12)
    split = silent._replace(components=plain.split().components)
    split = split._replace(lost=jnp.zeros((len(split.components), 7), dtype=bool))
    assert_same(split.prediction(policy), plain.split().prediction(policy), 1e-12)
    for predictor in (Unfiltered(), MostLikely()):
        made = problem(6)._replace(predictor=predictor)
        assert_same(made.prediction(policy), plain._replace(predictor=predictor).prediction(policy), 1e-12)
        assert made.drawn().lost is None
    unaware = systems.run(Filtered(), policy, model, systems.INITIAL, systems.COST, 6)
    assert_same(unaware, plain.prediction(policy), 1e-12)


def test_a_burst_costs_what_sampling_says() -> None:
    """A linear plant, its filter and its policy, in NumPy: over all bursts, not over the patterns of one prediction."""
    model, initial, path = steady()
    rng, runs = np.random.default_rng(4), 40_000
    lost = np.asarray(
        jax.vmap(lambda key: model.sensors.bursts.draw(key, 21))(jax.random.split(jax.random.key(5), runs))
    )
    x = np.sqrt(float(initial.cov[0, 0])) * rng.normal(size=runs)
    m, V, totals = np.zeros(runs), np.full(runs, float(initial.cov[0, 0])), np.zeros(runs)
    caution = Caution([[-0.5, 0.0]], [[0.2, 0.0]], [0.01, 1.0])
    for t in range(21):
        totals += 1 - np.exp(-np.square(x - path[t]))
        K = np.where(lost[:, t], 0.0, V / (V + 0.01))
        m, V = m + K * (x + 0.1 * rng.normal(size=runs) - m), (1 - K) * V
        d = np.log(1 + V / 0.01)
        y = np.exp(-0.5 * d) * -0.3 * m + 0.2 * d
        u = 2 * (9 * np.sin(y) + np.sin(3 * y)) / 8
        m, V, x = m + u, V + 0.01, x + u + 0.1 * rng.normal(size=runs)
    problem = Problem(Filtered(), model, initial, MISSED, 20)
    values = [problem.drawn(number).value(BeliefPolicy(chasing(), caution)) for number in range(30)]
    sampled, predicted = Sampled.of(totals), Sampled.of(values)
    # The squashing is not linear: a percent is left to moment matching.
    off = abs(float(sampled.value) - float(predicted.value))
    assert off < 5 * np.hypot(sampled.error, predicted.error) + 0.01 * float(sampled.value)
    none = problem.drawn().value(chasing())
    assert abs(none - float(sampled.value)) > 0.05 * float(sampled.value)  # it would fail on another policy


# Policies of the whole belief.


def test_moments_of_a_cautious_policy_by_sampling() -> None:
    """Two actions, linear before they are squashed, so that nothing is approximate."""
    V, S = np.array([[0.3, 0.1], [0.1, 0.2]]), np.array([[0.05, 0.01], [0.01, 0.04]])
    linear = LinearPolicy([[0.5, -0.8], [0.3, 0.6]], [0.1, -0.2], AngleFeatures((), (0, 1)), [1.5, 0.7])
    A, B, r = np.array([[-0.6, 0.4], [0.3, 0.5]]), np.array([[0.2, -0.3], [0.0, 0.4]]), np.array([0.02, 0.03])
    ready, rng = BeliefPolicy(linear, Caution(A, B, r)).map(), np.random.default_rng(7)
    m = rng.multivariate_normal(np.asarray(systems.INITIAL.mean), S, size=200_000)
    # As a textbook would write it.
    d = np.log(1 + np.diag(V) / r)
    y = np.exp(A @ d) * (m @ np.asarray(linear.matrix).T + np.asarray(linear.offset)) + B @ d
    u = np.array([1.5, 0.7]) * (9 * np.sin(y) + np.sin(3 * y)) / 8
    np.testing.assert_allclose(jax.vmap(lambda m: ready.at_belief(Gaussian(m, V)))(jnp.asarray(m[:9])), u[:9], 1e-12)
    found = ready.belief_moments(Gaussian(systems.INITIAL.mean, S), jnp.asarray(V))
    Sampled.of(u).assert_agrees(found.mean, "mean")
    Sampled.of(products(u, u)).assert_agrees(found.cov, "covariance")
    Sampled.of(products(m, u)).assert_agrees(S @ np.asarray(found.gain), "gain")


@pytest.mark.parametrize("kind", ["rbf", "linear"])
def test_it_starts_as_the_policy_of_the_mean(kind: str) -> None:
    """To the bit when executed, to rounding when predicted; and from there the gradient can leave."""
    base = systems.policy(kind)
    start = BeliefPolicy(base, Caution.none([0.02, 0.03], 1))
    belief = Gaussian([0.3, -0.2], [[0.3, 0.1], [0.1, 0.2]])
    np.testing.assert_array_equal(start.map().at_belief(belief), base.map().at_belief(belief))
    np.testing.assert_array_equal(cautious(kind).map()(belief.mean), base.map()(belief.mean))  # a state is no doubt
    if kind == "linear":
        return
    given = problem(6)
    assert_same(given.prediction(start), given.prediction(base), 1e-12)
    _, slope = given.value_and_gradient(start)
    assert np.abs(slope.caution.scale).min() > 1e-4 and np.abs(slope.caution.shift).min() > 1e-4
    np.testing.assert_array_equal(slope.caution.noise, 0.0)


@pytest.mark.parametrize("split", [False, True])
def test_gradients_of_predictions_with_bursts(split: bool) -> None:
    given, policy = problem(8), cautious()
    given = given.split(1) if split else given
    free_ones, fixed = eqx.partition(policy, learned(policy))
    rng = np.random.default_rng(8)
    along = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), free_ones)
    expected = directional_difference(lambda p: given.value(eqx.combine(p, fixed)), free_ones, along)
    slope = eqx.filter(given.value_and_gradient(policy)[1], learned(policy))
    found = sum(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.sum(a * b)), along, slope)))
    assert found == pytest.approx(expected, rel=1e-6)
    of_caution = jax.tree.map(lambda leaf: jnp.zeros_like(leaf), along)
    of_caution = eqx.tree_at(lambda p: p.caution, of_caution, along.caution)
    expected = directional_difference(lambda p: given.value(eqx.combine(p, fixed)), free_ones, of_caution)
    found = sum(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.sum(a * b)), along.caution, slope.caution)))
    assert found == pytest.approx(expected, rel=1e-6) and abs(found) > 1e-3


def learned(policy: BeliefPolicy) -> Any:
    """Which leaves of a policy are."""
    every = jax.tree.map(lambda _: True, policy)
    return eqx.tree_at(lambda p: (p.caution.noise, p.of_mean.limits), every, (False, False))


# It is no clock.


def test_a_clock_is_refused() -> None:
    """Where one path of V is predicted, or paths that are all the same. A policy of the mean is not refused."""
    given, policy = problem(6), cautious()
    same = given._replace(lost=jnp.repeat(given.lost[:1], 4, axis=0))
    for clock, why in ((given._replace(lost=None, dynamics=systems.dynamics()), "one path"), (same, "all the same")):
        assert np.isfinite(clock.value(systems.policy()))
        for asked in (clock.value, clock.prediction, clock.value_and_gradient):
            with pytest.raises(ValueError, match=why):
                asked(policy)
        with pytest.raises(ValueError, match=why):
            clock.also_from([(0.5, systems.INITIAL)])._replace(lost=clock.lost).value_and_gradient(policy)
    lossy_one_by_one = dataclasses.replace(systems.dynamics().sensors, dropout=(0.3, 0.3))
    averaged = eqx.tree_at(lambda d: d.sensors, systems.dynamics(), lossy_one_by_one)
    with pytest.raises(ValueError, match="one path"):
        predict(Filtered(), policy, averaged, systems.INITIAL, systems.COST, 4)
    with pytest.raises(ValueError, match="drawn patterns"):
        given._replace(lost=None).value(systems.policy())
    with pytest.raises(ValueError, match="for each; given 4"):
        given.split()._replace(lost=given.lost[:4]).value(policy)


def test_what_a_policy_sees_in_a_burst_is_how_long_it_has_lasted() -> None:
    """The executed policy may know that as well. The same is seen at many steps, whichever they are: it is no clock."""
    model, initial, _ = steady()
    assert model.sensors.bursts is not None
    lost = model.sensors.bursts.paths(21, 16, 0)[:, :20]
    seen: dict[int, dict[int, float]] = {}
    for pattern in lost:
        one = predict(Filtered(), chasing(), model, initial, MISSED, 20, lost=jnp.asarray(pattern[None]))
        doubt = np.log(1 + np.asarray(one.belief_cov)[:, 0, 0] / 0.01)
        burst = np.flatnonzero(pattern)
        for t in burst[burst - np.arange(len(burst)) == burst[:1]]:  # the first burst; before it all is steady
            seen.setdefault(int(t - burst[0]) + 1, {})[int(t)] = float(doubt[t])
    for length in (1, 2, 3):
        doubts = np.array(list(seen[length].values()))
        assert np.ptp(doubts) < 1e-9 and len(doubts) >= 5 and np.ptp(list(seen[length])) > 10
    assert np.diff([np.mean(list(seen[k].values())) for k in (1, 2, 3)]).min() > 0.1


@functools.cache
def searched(number: int) -> tuple[float, float, float]:
    """What caution is predicted to gain that is learned from nearly coinciding patterns (-1), or from drawn ones.

    On the patterns it has learned from, and on others; and what the policy without it costs on these.
    """
    model, initial, path = steady()
    given = Problem(Filtered(), model, initial, MISSED, 20)
    if number < 0:  # one burst, just when the target moves. Not refused, as the last step differs.
        lost = np.repeat((path > 0)[None], 2, axis=0)
        lost[1, 19] = True
        own = given._replace(lost=jnp.asarray(lost))
    else:
        own = given._replace(lost=jnp.asarray(model.sensors.bursts.paths(21, 32, number)))
    others = given._replace(lost=jnp.asarray(model.sensors.bursts.paths(21, 256, 99)))
    base = improve(chasing(), others, evaluations=15).policy
    found = improve(BeliefPolicy(base, Caution.none([0.01, 1.0], 1)), own, evaluations=15).policy
    gains = [each.value(base) - each.value(found) for each in (own, others)]
    return gains[0], gains[1], others.value(base)


def test_time_is_learned_from_one_path_and_not_from_drawn_ones() -> None:
    """A target moves at known steps, which only a clock could know of. That is all there is to gain."""
    promised, kept, cost = searched(-1)
    assert promised > 0.1 * cost and kept < 0  # what must not happen: hence the refusal
    promised, kept, cost = searched(0)
    assert promised < 0.03 * cost and kept > -0.02 * cost


# From a task to a controller.


def test_a_task_says_how_its_samples_are_lost() -> None:
    of = tasks.cart_pole_bursts()
    assert of.bursts == Bursts(2.0, 0.5) and of.plant is tasks.cart_pole().plant
    chain = of.true_sensors.bursts
    assert chain is not None
    np.testing.assert_allclose(chain, [1 / 60, 1 / 15])
    again = read_task(task_text(of)).task
    assert again.bursts == of.bursts and again.plant is of.plant
    assert tasks.cart_pole().true_sensors.bursts is None
    assert tasks.spring().varied(bursts=Bursts(3, 1)).bursts == Bursts(3, 1)
    assert make_problem(of, Settings(), model_of(of)).lost.shape == (16, 61)
    assert make_problem(of, Settings(method="dallaire"), model_of(of)).lost is None


def model_of(of: Task) -> Dynamics:
    return test_controller_frame.dynamics(of, "second-order")


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="positive, finite"):
        Bursts(0.0, 1.0)
    with pytest.raises(ValueError, match="at least a step apart"):
        lossy(Bursts(1.0, 0.001))
    with pytest.raises(ValueError, match=r"shape \(actions, states\)"):
        Caution(np.zeros((1, 2)), np.zeros((1, 3)), np.ones(2))
    with pytest.raises(ValueError, match="positive"):
        Caution.none([0.1, 0.0], 1)
    with pytest.raises(ValueError, match="is for 2"):
        BeliefPolicy(systems.policy(), Caution.none([0.1, 0.1], 2))
    check_sees(tasks.spring(), Settings())
    check_sees(lossy(Bursts(3, 1)), Settings(sees="belief"))
    with pytest.raises(ValueError, match="no bursts"):
        check_sees(tasks.spring(), Settings(sees="belief"))
    with pytest.raises(ValueError, match="only 13% have"):  # 1 - (1 - 0.2 / 30)^20
        check_sees(lossy(Bursts(30, 1)), Settings(sees="belief"))
    with pytest.raises(ValueError, match="pilco does not predict"):
        check_sees(lossy(Bursts(3, 1)), Settings(sees="belief", method="pilco"))


def test_the_first_policy_of_a_search() -> None:
    of = lossy(Bursts(3, 1))
    model, key = test_controller_frame.dynamics(of, "free"), jax.random.key(0)
    made = random_policy(of, Settings(sees="belief"), model, key)
    assert isinstance(made, BeliefPolicy)
    assert eqx.tree_equal(made.of_mean, random_policy(of, Settings(), model, key))
    np.testing.assert_allclose(made.caution.noise, model.sensor_noise)
    # Of a state without a sensor, what is known of it at first; of two sensors of one state, both together.
    sensors = Sensors([0.04, 0.01], [[2.0, 0.0], [0.5, 0.0]])
    np.testing.assert_allclose(sensors.noise_of_states(jnp.array([9.0, 0.7])), [1 / (100 + 25), 0.7])


def test_a_cautious_policy_is_stored(tmp_path: Path) -> None:
    for kind in ("rbf", "linear"):
        policy = cautious(kind)
        write_module(tmp_path / kind, policy)
        known = {"of_mean": type(policy.of_mean), "of_mean/features": policy.of_mean.features}
        assert eqx.tree_equal(read_module(tmp_path / kind, BeliefPolicy, known), policy)


def controller_of(gate: float) -> tuple[Controller, Task, Any]:
    """With late samples and actions, references, and an actuator that only pushes."""
    of = test_controller_frame.task()
    model, base = test_controller_frame.dynamics(of, "free"), test_controller_frame.policy(of)
    rng, n = np.random.default_rng(9), of.row_count
    caution = Caution(0.2 * rng.normal(size=(1, n)), 0.2 * rng.normal(size=(1, n)), rng.uniform(0.01, 0.1, size=n))
    executor = filtered(BeliefPolicy(base, caution), model)
    return bridge.controller(of, executor, gate=gate), of, executor


def test_the_controller_equals_the_library(tmp_path: Path) -> None:
    controller, of, executor = controller_of(0.0)
    z = 0.5 * np.random.default_rng(6).normal(size=(25, 2)) + 0.5
    z[6:14] = np.nan
    expected = test_controller_frame.actions_of_the_library(executor, of, z)
    assert np.abs(np.array([controller.act(each) for each in z]) - expected).max() < 1e-9
    plain = bridge.controller(of, filtered(test_controller_frame.policy(of), executor.dynamics), gate=0.0)
    assert np.abs(np.array([plain.act(each) for each in z]) - expected).max() > 0.05
    (tmp_path / "file").write_bytes(controller.to_bytes())
    again = Controller.load(tmp_path / "file")
    assert np.abs(np.array([again.act(each) for each in z]) - expected).max() < 1e-9
    for name in ("policy_scale", "policy_shift", "policy_doubt"):
        arrays = {key: array for key, array in controller.arrays.items() if key != name}
        with pytest.raises(ValueError, match=name):
            Controller(controller.description, arrays)


def test_c_and_javascript_equal_numpy(tmp_path: Path) -> None:
    agent, _, _ = controller_of(5.0)
    z, expected = test_c.trouble(agent, 0)
    program = test_c.compiled(test_c.written(agent, tmp_path), *test_c.SANITIZED)
    found = test_c.run(program, z)
    assert np.abs(found[:, 0] - expected[:, 0]).max() < 1e-9
    finite = np.where(np.abs(z) < 1e50, z, np.nan)
    test_playground.compare([test_playground.recorded(agent, finite)])
    single = test_c.written(agent, tmp_path, single=True)
    assert np.isfinite(test_c.run(test_c.compiled(single), z)[:, 0]).all()
