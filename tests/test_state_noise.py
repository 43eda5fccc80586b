"""Sensors whose noise depends on the state: expectations, updates, predictions, executions, training, controllers."""

import dataclasses
import functools
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Gaussian, tasks
from bayespilco.control.policy import Policy
from bayespilco.control.prediction import Filtered, Predictor, Unfiltered, predict, predict_split
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gp import GaussianProcess
from bayespilco.deploy import bridge
from bayespilco.deploy.controller import Controller
from bayespilco.deploy.controller.filter import sensor_noise
from bayespilco.environments import TaskEnvironment
from bayespilco.execution import RandomActions, execute_many, filtered
from bayespilco.model.belief import Belief, BeliefDistribution
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode, batch
from bayespilco.model.sensors import Sensors, complete
from bayespilco.model.splitting import points_for
from bayespilco.report import playground
from bayespilco.runs.arrays import read_module, write_module
from bayespilco.runs.plain import read_task, task_text
from bayespilco.tasks import Sensor, Task
from bayespilco.training.evidence import fit_evidence
from bayespilco.training.filtering import negative_log_evidence
from bayespilco.training.trajectory import Layout, Parameters, build, filter_trials
from bayespilco.trust.sensors import with_sensor
from tests import systems, test_c, test_controller_frame, test_playground
from tests.browser import run_node
from tests.oracles import Sampled, directional_difference, products

COUNT = 200_000
LIGHT = (("position", 0.6, 0.3), ("velocity", -0.2, 0.5))


def sensors() -> Sensors:
    """Three sensors of two states. The second depends on both states, the third on none."""
    growth, best_at = [[4.0, 0.0], [1.5, 2.5], [0.0, 0.0]], [[0.5, 0.0], [0.2, -0.3], [0.0, 0.0]]
    C = [[1.0, 0.0], [0.4, 1.0], [0.3, -0.5]]
    return Sensors([0.04, 0.02, 0.3], C, (0.1, 0.0, -0.2), growth=growth, best_at=best_at)


def belief() -> Gaussian:
    return Gaussian([0.3, 0.4], [[0.3, 0.1], [0.1, 0.2]])


def drawn(rng: np.random.Generator, of: Gaussian) -> np.ndarray:
    return rng.multivariate_normal(np.asarray(of.mean), np.asarray(of.cov), size=COUNT)


def observed(rng: np.random.Generator, of: Sensors, x: np.ndarray) -> np.ndarray:
    """As a textbook would write it, one state at a time: nothing of `Sensors` but its fields."""
    growth, best_at = np.asarray(of.growth), np.array(of.best_at)
    variance = np.asarray(of.noise) * (1 + np.einsum("ij,nij->ni", growth, (x[:, None] - best_at) ** 2))
    return x @ of.C.T + of.d + np.sqrt(variance) * rng.normal(size=variance.shape)


# The expectation, and what a filter makes of it.


def test_expected_noise_by_sampling() -> None:
    """Under a belief, and under a distribution over beliefs."""
    of, spread = sensors(), np.array([[0.2, -0.05], [-0.05, 0.1]])
    rng = np.random.default_rng(0)
    x = drawn(rng, belief())
    each = jax.vmap(lambda x: of.at(x).noise)
    Sampled.of(each(x)).assert_agrees(of.at(belief().mean, belief().cov).noise, "under a belief")
    x = x + rng.multivariate_normal(np.zeros(2), spread, size=COUNT)
    flattened = BeliefDistribution(Gaussian(belief().mean, spread), belief().cov).state
    Sampled.of(each(x)).assert_agrees(of.at(flattened.mean, flattened.cov).noise, "under beliefs")
    direct = np.asarray(of.noise) * (1 + np.sum(np.asarray(of.growth) * (0.7 - np.array(of.best_at)) ** 2, axis=1))
    np.testing.assert_allclose(of.at(jnp.full(2, 0.7)).noise, direct, rtol=1e-14)


def test_a_belief_is_as_uncertain_as_it_says_by_sampling() -> None:
    """The update is the best linear one: V+ is the covariance of its error, which has nothing to do with its mean."""
    of, rng = sensors(), np.random.default_rng(1)
    x = drawn(rng, belief())
    z = observed(rng, of, x)
    means = np.asarray(jax.vmap(lambda z: Belief(belief().mean, belief().cov).update(z, of).mean)(z))
    updated = Belief(belief().mean, belief().cov).update(jnp.asarray(z[0]), of)
    Sampled.of(means).assert_agrees(belief().mean, "mean")
    Sampled.of(products(x - means, x - means)).assert_agrees(updated.cov, "covariance of the error")
    Sampled.of(products(x - means, means)).assert_agrees(np.zeros((2, 2)), "error and mean")
    # The prediction of this update, from a belief that is known.
    predicted = BeliefDistribution(Gaussian(belief().mean, np.zeros((2, 2))), belief().cov).update(of)
    np.testing.assert_allclose(predicted.cov, updated.cov, rtol=1e-12)
    Sampled.of(products(means, means)).assert_agrees(predicted.mean.cov, "spread of the mean")


def test_a_predicted_update_of_beliefs_that_differ() -> None:
    """What is certain: nothing is lost, S + V. And where beliefs differ, V is predicted too large, never too small."""
    of, spread, rng = sensors(), np.array([[0.2, -0.05], [-0.05, 0.1]]), np.random.default_rng(2)
    m = rng.multivariate_normal(np.asarray(belief().mean), spread, size=COUNT)
    x = m + rng.multivariate_normal(np.zeros(2), np.asarray(belief().cov), size=COUNT)
    z = observed(rng, of, x)
    updated = jax.vmap(lambda m, z: Belief(m, belief().cov).update(z, of))(m, z)
    whole = BeliefDistribution(Gaussian(belief().mean, spread), belief().cov)
    after = whole.update(of)
    np.testing.assert_allclose(after.state.cov, whole.state.cov, atol=1e-12)
    means = np.asarray(updated.mean)
    Sampled.of(products(means, means) + np.asarray(updated.cov)).assert_agrees(whole.state.cov, "S + V")
    above = np.asarray(after.cov) - np.asarray(updated.cov).mean(axis=0)
    assert np.linalg.eigvalsh(above).min() > 0 and np.trace(above) < 0.15 * np.trace(np.asarray(after.cov))


def test_a_raw_estimate_by_sampling() -> None:
    """Of the methods that filter nothing: the error of what one observation alone says, averaged over the state."""
    of, rng = sensors(), np.random.default_rng(3)
    x = drawn(rng, belief())
    errors = np.asarray(jax.vmap(lambda z: of.raw_estimate(z, 2))(observed(rng, of, x))) - x
    Sampled.of(products(errors, errors)).assert_agrees(of.raw_noise(2, belief()), "more sensors than states")
    Sampled.of(products(errors, x)).assert_agrees(np.zeros((2, 2)), "error and state")
    square = dataclasses.replace(complete([0.1, 0.2]), growth=of.growth[:2], best_at=of.best_at[:2])
    errors = observed(rng, square, x) - x
    Sampled.of(products(errors, errors)).assert_agrees(square.raw_noise(2, belief()), "one sensor per state")


def test_without_growth_nothing_changes() -> None:
    """Of zero growth the numbers are those of constant noise; without growth, so is the code."""
    of = sensors()
    constant = dataclasses.replace(of, growth=None, best_at=())
    assert constant.at(belief().mean, belief().cov) is constant and constant.relative_noise(belief().mean) == 1.0
    zero = dataclasses.replace(of, growth=np.zeros((3, 2)))
    z = jnp.array([0.2, np.nan, 0.5])
    for one, other in zip(zero.condition(*parts(), z), constant.condition(*parts(), z), strict=True):
        np.testing.assert_array_equal(one, other)
    model = systems.dynamics()
    still = eqx.tree_at(lambda d: d.sensors, model, with_light(model.sensors, 0.0))
    for predictor in (Filtered(), Unfiltered()):
        made = [systems.run(predictor, systems.policy(), d, systems.INITIAL, systems.COST, 4) for d in (model, still)]
        np.testing.assert_allclose(made[1].cost_mean, made[0].cost_mean, rtol=1e-13)
        np.testing.assert_allclose(made[1].state_cov, made[0].state_cov, rtol=1e-12, atol=1e-15)


def parts() -> tuple[jax.Array, jax.Array]:
    return belief().mean, belief().cov


def with_light(of: Sensors, growth: float) -> Sensors:
    shape = of.C.shape
    return dataclasses.replace(of, growth=np.full(shape, growth), best_at=np.tile([0.7, -0.4], (shape[0], 1)))


# Predictions.


@functools.cache
def lit() -> Dynamics:
    model = systems.dynamics()
    return eqx.tree_at(lambda d: d.sensors, model, with_light(model.sensors, 3.0))


@pytest.mark.parametrize("way", ["filtered", "split", "unfiltered"])
def test_gradients_of_a_prediction(way: str) -> None:
    """By the policy and by the growth, against finite differences: looking is worth something, and it is seen."""
    points = jnp.asarray(points_for(np.asarray(systems.INITIAL.cov))[:4])

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def cost(at: tuple[Policy, jax.Array]) -> jax.Array:
        dynamics = eqx.tree_at(lambda d: d.sensors.growth, lit(), at[1])
        predictor: Predictor = Unfiltered() if way == "unfiltered" else Filtered()
        given = predictor, at[0], dynamics, systems.INITIAL, systems.COST, 4
        found = predict_split(*given, points) if way == "split" else predict(*given)
        return found.total_cost

    at = systems.policy("linear"), jnp.asarray(lit().sensors.growth)
    _, gradient = cost(at)
    rng = np.random.default_rng(4)
    along = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), at)
    along = eqx.tree_at(lambda both: both[0].limits, along, jnp.zeros_like(at[0].limits))  # no parameters
    for part in range(2):
        only = tuple(a if i == part else jax.tree.map(jnp.zeros_like, a) for i, a in enumerate(along))
        numeric = directional_difference(lambda given: cost(given)[0], at, only)
        leaves = zip(jax.tree.leaves(gradient), jax.tree.leaves(only), strict=True)
        exact = sum(float(jnp.vdot(g, d)) for g, d in leaves)
        assert abs(numeric) > 1e-5, "a direction along which nothing changes tests nothing"
        assert abs(exact - numeric) < 1e-5 * abs(numeric)


def test_the_belief_is_better_near_the_light() -> None:
    """The predicted V depends on where the policy drives: that is what a search can learn to use."""
    covs = []
    for place in (0.7, 3.0):
        start = Gaussian([place, -0.4], 0.05 * np.eye(2))
        covs.append(BeliefDistribution(Gaussian(start.mean, np.zeros((2, 2))), start.cov).update(lit().sensors).cov)
    assert np.trace(covs[0]) < 0.5 * np.trace(covs[1])


def test_parts_of_the_first_state_make_up_the_whole() -> None:
    """All filters start from the same belief, so the first observation has the same noise in every part."""
    predictor, initial = Filtered(), systems.INITIAL
    starts = predictor.starts(initial, lit(), jnp.asarray(points_for(np.asarray(initial.cov))))
    after = jax.vmap(lambda part: part.update(lit().sensors))(starts)
    whole = predictor.start(initial, lit()).update(lit().sensors)
    away = np.asarray(after.mean.mean) - np.asarray(whole.mean.mean)
    spread = np.asarray(after.mean.cov).mean(axis=0) + away.T @ away / len(away)
    np.testing.assert_allclose(spread, whole.mean.cov, atol=1e-12)
    np.testing.assert_allclose(after.cov, np.broadcast_to(whole.cov, after.cov.shape), atol=1e-12)
    assert np.linalg.eigvalsh(np.asarray(after.mean.cov)).min() > -1e-12


# Tasks and executions.


@functools.cache
def task() -> Task:
    """A spring whose position sensor sees well in one place, and whose velocity sensor is constant."""
    made = (Sensor("position", "m", of="position", offset=0.2, best_at=LIGHT), Sensor("velocity", "m/s", of="velocity"))
    return dataclasses.replace(tasks.spring(), sensors=made)


def relative(x: np.ndarray) -> np.ndarray:
    """How many times its least variance the first sensor has, by hand."""
    return 1 + ((x[..., 0] - 0.6) / 0.3) ** 2 + ((x[..., 1] + 0.2) / 0.5) ** 2


def test_the_plant_draws_the_noise_of_where_it_is() -> None:
    """In executions, in an environment; and the constant sensor's noise stays what it was."""
    of = task()
    episodes = execute_many(of, RandomActions(of.action_limits), jax.random.split(jax.random.key(0), 500))
    x, z = np.asarray(episodes.states), np.asarray(episodes.observations)
    errors = z - x - [0.2, 0.0]
    scaled = errors / (np.asarray(of.sensor_std) * np.stack([np.sqrt(relative(x)), np.ones(x.shape[:2])], axis=-1))
    assert relative(x).max() > 10
    for chosen in (relative(x) < 4, relative(x) > 6):
        Sampled.of(scaled[chosen]).assert_agrees(np.zeros(2), "mean")
        Sampled.of(scaled[chosen] ** 2).assert_agrees(np.ones(2), "variance")
    plain = dataclasses.replace(of, sensors=tuple(dataclasses.replace(s, best_at=()) for s in of.sensors))
    same = execute_many(plain, RandomActions(of.action_limits), jax.random.split(jax.random.key(0), 500))
    np.testing.assert_allclose(same.observations[..., 1], z[..., 1], atol=1e-12)

    environment, far = TaskEnvironment(of), []
    environment.reset(seed=0)
    environment._around.rows = np.array([-0.9, 0.3])
    for _ in range(2000):
        far.append(
            (environment._around.observe(environment.np_random)[0] - (-0.9 + 0.2))
            / (0.02 * np.sqrt(relative(environment.rows)))
        )
    Sampled.of(np.square(far)).assert_agrees(1.0, "environment")


def test_a_task_says_how_its_noise_grows() -> None:
    of = task()
    made = of.true_sensors
    np.testing.assert_allclose(made.growth, [[0.3**-2, 0.5**-2], [0.0, 0.0]])
    np.testing.assert_allclose(made.best_at, [[0.6, -0.2], [0.0, 0.0]])
    assert tasks.spring().true_sensors.growth is None
    again = read_task(task_text(dataclasses.replace(tasks.light_dark(), sensors=tasks.light_dark().sensors))).task
    assert again.sensors == tasks.light_dark().sensors
    more = with_sensor(made, 1, 0.3)
    np.testing.assert_allclose(more.at(jnp.array([0.6, 5.0])).noise[1:], [0.01, 0.09])
    written = Sensor("a", "m", of="position", best_at={"position": (0.6, 0.3), "velocity": (-0.2, 0.5)})
    assert written.best_at == LIGHT
    # Other sensors and delays move the rows, and the growth with them.
    late = of.with_delay(2).true_sensors
    np.testing.assert_allclose(late.growth[0], [0.3**-2, 0.5**-2, 0, 0])
    assert of.with_sensors(["velocity"]).true_sensors.growth is None


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="'speed'"):
        dataclasses.replace(task(), sensors=(Sensor("position", "m", of="position", best_at={"speed": (0, 1)}),))
    with pytest.raises(ValueError, match="positive distance"):
        Sensor("position", "m", of="position", best_at={"position": (0, 0)})
    with pytest.raises(ValueError, match="reports late"):
        Sensor("position", "m", of="position", best_at={"position": (0, 1)}, delay=1)
    with pytest.raises(ValueError, match="state: \\(place, distance\\)"):
        Sensor("position", "m", of="position", best_at=("position",))
    with pytest.raises(ValueError, match="not negative"):
        dataclasses.replace(sensors(), growth=-np.ones((3, 2)))
    with pytest.raises(ValueError, match="one entry per sensor and state"):
        dataclasses.replace(sensors(), growth=np.ones((2, 2)))
    with pytest.raises(ValueError, match="say where it is"):
        sensors().expected_update(belief().cov)


def test_sensors_are_stored(tmp_path: Path) -> None:
    of = sensors()
    write_module(tmp_path / "sensors", of)
    known = {field.name: getattr(of, field.name) for field in dataclasses.fields(of) if field.metadata.get("static")}
    assert eqx.tree_equal(read_module(tmp_path / "sensors", Sensors, known), of)


# Training.


def linear(of: Sensors) -> Dynamics:
    """A model without curvature: the filter is a Kalman filter, but for its R."""
    slope = np.array([[0.9, 0.2, 0.1], [-0.1, 0.8, 0.3]])
    gp = GaussianProcess(np.zeros((1, 3)), np.ones((2, 3)), np.ones(2), np.zeros((2, 1)), None, slope, np.zeros(2))
    return Dynamics(gp, AngleFeatures((), (0, 1, 2)), of, np.array([0.01, 0.02]))


def textbook(model: Dynamics, initial: Gaussian, z: np.ndarray, u: np.ndarray) -> float:
    """The likelihood of a series by a filter that asks for R at each step."""
    of, slope, Q = model.sensors, np.asarray(model.gp.slope), np.diag(np.asarray(model.process_noise))
    m, P, total = np.asarray(initial.mean), np.asarray(initial.cov), 0.0
    for t in range(len(z)):
        squares = (m - np.array(of.best_at)) ** 2 + np.diag(P)
        R = np.diag(np.asarray(of.noise) * (1 + np.sum(np.asarray(of.growth) * squares, axis=1)))
        S, e = of.C @ P @ of.C.T + R, z[t] - of.C @ m - of.d
        total += e @ np.linalg.solve(S, e) / 2 + np.log(np.linalg.det(2 * np.pi * S)) / 2
        K = P @ of.C.T @ np.linalg.inv(S)
        m, P = m + K @ e, P - K @ of.C @ P
        if t < len(u):
            m, P = slope @ np.append(m, u[t]), slope[:, :2] @ P @ slope[:, :2].T + Q
    return float(total)


def series(of: Sensors, trials: int, steps: int) -> list[Episode]:
    """Of the linear plant, from the belief of this file."""
    rng, episodes = np.random.default_rng(6), []
    for _ in range(trials):
        u = rng.normal(size=(steps, 1))
        x = [rng.multivariate_normal(np.asarray(belief().mean), np.asarray(belief().cov))]
        for each in u:
            x.append(np.asarray(linear(of).gp.slope) @ np.append(x[-1], each) + 0.01 * rng.normal(size=2))
        z = observed(rng, of, np.array(x))
        episodes.append(Episode(jnp.asarray(z), jnp.asarray(u), jnp.asarray(x), jnp.zeros(steps + 1)))
    return episodes


def test_likelihoods_ask_for_the_noise_at_each_step() -> None:
    """Of both trainings, against a textbook's filter."""
    of = sensors()
    episode = series(of, 1, 12)[0]
    model, trials = linear(of), batch([episode])
    expected = textbook(model, belief(), np.asarray(episode.observations), np.asarray(episode.actions))
    np.testing.assert_allclose(negative_log_evidence(model, trials, belief()), expected, rtol=1e-10)
    # The model of trajectories, whose weights are its slope: x' = x + scale * omega' [k, x, u, 1].
    slope, unit = np.asarray(model.gp.slope) - np.eye(2, 3), np.ones(3)
    layout = Layout(
        model.features,
        model.structure,
        of,
        belief(),
        jnp.zeros(3),
        jnp.asarray(unit),
        jnp.ones(2),
        jnp.full((1, 3), 9e9),
    )
    p = Parameters(
        jnp.zeros((2, 3)),
        jnp.full(2, -20.0),
        jnp.zeros(3),
        jnp.log(jnp.sqrt(model.process_noise)),
        jnp.asarray(np.column_stack([np.zeros(2), slope, np.zeros(2)])),
    )
    found = filter_trials(build(p, layout), trials)
    constant = episode.observations.size * np.log(2 * np.pi) / 2
    value = float(jnp.sum(found.white**2) / 2 + found.log_det) + constant
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_training_learns_the_least_noise() -> None:
    """From data taken mostly far from where the noise is least. Taken for constant, it would be many times as large."""
    growth, best_at = [[9.0, 0.0], [0.0, 4.0]], [[2.0, 0.0], [0.0, -2.0]]
    of = dataclasses.replace(complete([0.05**2, 0.05**2]), growth=growth, best_at=best_at)
    trials = batch(series(of, 4, 25))
    features = AngleFeatures((), (0, 1, 2))
    unit = of.with_noise(np.ones(2))
    fit = fit_evidence(trials, features, belief(), sensors=unit, points=4, evaluations=30, rounds=1)
    np.testing.assert_allclose(np.sqrt(fit.dynamics.sensor_noise), 0.05, rtol=0.3)
    np.testing.assert_array_equal(fit.dynamics.sensors.growth, of.growth)
    plant = fit.draw(jax.random.key(0))
    np.testing.assert_array_equal(plant.sensors.growth, of.growth)


# Controllers.


def controller_of(gate: float) -> tuple[Controller, Task, object]:
    of = task()
    executor = filtered(test_controller_frame.policy(of), test_controller_frame.dynamics(of, "free"))
    return bridge.controller(of, executor, gate=gate), of, executor


def test_the_controller_equals_the_library(tmp_path: Path) -> None:
    controller, of, executor = controller_of(0.0)
    z = 0.5 * np.random.default_rng(6).normal(size=(25, 2))
    z[np.random.default_rng(7).uniform(size=z.shape) < 0.2] = np.nan
    expected = test_controller_frame.actions_of_the_library(executor, of, z)
    assert np.abs(np.array([controller.act(each) for each in z]) - expected).max() < 1e-9
    assert np.ptp(expected) > 0.1 and controller.restarts == 0
    (tmp_path / "file").write_bytes(controller.to_bytes())
    again = Controller.load(tmp_path / "file")
    assert np.abs(np.array([again.act(each) for each in z]) - expected).max() < 1e-9
    library = executor.dynamics.sensors.at(jnp.asarray(controller.mean), jnp.asarray(controller.cov)).noise
    np.testing.assert_allclose(sensor_noise(controller.arrays, controller.mean, controller.cov), library, rtol=1e-12)
    for name in ("sensor_growth", "sensor_best_at"):
        arrays = {key: array for key, array in controller.arrays.items() if key != name}
        with pytest.raises(ValueError, match=name):
            Controller(controller.description, arrays)


def test_c_and_javascript_equal_numpy(tmp_path: Path) -> None:
    """With spikes, missing samples and a belief that has to be widened, where the noise is that of a wider belief."""
    agent, _, _ = controller_of(5.0)
    z, expected = test_c.trouble(agent, 0)
    program = test_c.compiled(test_c.written(agent, tmp_path), *test_c.SANITIZED)
    found = test_c.run(program, z)
    assert np.abs(found[:, 0] - expected[:, 0]).max() < 1e-9
    assert np.allclose(found[:, 1:], expected[:, 1:], rtol=1e-6, atol=1e-9, equal_nan=True)
    assert expected[-1, -1] > 0  # it was widened
    finite = np.where(np.abs(z) < 1e50, z, np.nan)
    test_playground.compare([test_playground.recorded(agent, finite)])


def test_the_page_draws_the_noise_of_where_its_plant_is() -> None:
    program = """
      const loop = Object.create(Loop.prototype);
      const still = { noise: 1, dropout: null, time: 0, blindUntil: 0, step: 0 };
      Object.assign(loop, still, { setup: data, rows: data.rows, chance: new Chance(3) });
      return Array.from({ length: 4000 }, () => loop.measure());"""
    setup = playground.setup(task(), test_controller_frame.dynamics(task(), "free"))
    scripts = ("linalg.js", "controller.js", "plants.js", "canvas.js", "playground.js")
    x = np.array([-0.5, 0.4])
    z = np.array(run_node(scripts, program, {"sensors": setup["sensors"], "rows": x}))
    scaled = (z - x - [0.2, 0.0]) / [0.02 * np.sqrt(relative(x)), 0.1]
    Sampled.of(scaled**2).assert_agrees(np.ones(2), "variance")
