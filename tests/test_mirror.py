"""A plant that behaves like its mirror image: the model knows it exactly, and learns from every transition twice."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import tasks
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.execution import RandomActions, execute_many
from bayespilco.model.episode import Episode, Trials, batch
from bayespilco.model.sensors import complete
from bayespilco.model.structure import Structure, free
from bayespilco.tasks import Task
from bayespilco.tasks.checking import check_plant
from bayespilco.tasks.simulation import hold
from bayespilco.training.conversion import dynamics, posterior
from bayespilco.training.evidence import EvidenceFit, fit_evidence
from bayespilco.training.laplace import linearise, negative_log_evidence
from bayespilco.training.placement import spread_out
from bayespilco.training.trajectory import Layout, Parameters, build
from tests.oracles import directional_difference

FEATURES = AngleFeatures((1,), (0, 1, 2))
"""Of [height, angle, action]: the mirror turns the angle and the action, and leaves the height."""
SIGNS = (1, -1, -1)
OF_INPUTS = np.array([1, -1, -1, -1, 1])
OF_OUTPUTS = np.array([1, -1])


def _layout(structure: Structure, points: int = 4) -> Layout:
    rng = np.random.default_rng(4)
    scale = jnp.array([0.5, 0.7, 1.0, 0.6, 0.4])
    centre = jnp.array([0.3, 0.0, 0.0, 0.0, -0.2])
    initial = Gaussian([0.0, 0.1], np.diag([0.1, 0.2]))
    where = jnp.asarray(rng.normal(size=(points, 5)))
    return Layout(FEATURES, structure, complete(scale[:2] ** 2), initial, centre, scale, scale[:2], where)


def _parameters(layout: Layout) -> Parameters:
    rng = np.random.default_rng(5)
    return Parameters(
        jnp.asarray(np.log(rng.uniform(0.8, 2.0, size=(2, 4)))),
        jnp.log(np.array([0.5, 0.8])),
        jnp.log(np.full(2, 0.3)),
        jnp.log(np.full(2, 0.2)),
        jnp.asarray(0.3 * rng.normal(size=(2, layout.basis_size))),
    )


def _trials(steps: int = 6) -> Trials:
    rng = np.random.default_rng(3)
    walk = np.cumsum(rng.normal(size=(steps + 1, 2)) * 0.3, axis=0)
    return batch([Episode(walk, rng.normal(size=(steps, 1)))])


def test_the_mirror_of_inputs_and_outputs() -> None:
    structure = free(2, 1).with_mirror(SIGNS)
    assert (structure.mirrored_inputs(FEATURES) == OF_INPUTS).all()
    assert (structure.mirrored_outputs == OF_OUTPUTS).all()
    late = structure.with_action_delay(2)  # the action that the plant feels is a row of the state now
    assert (late.mirrored_inputs(AngleFeatures((1,), (0, 1, *late.acting))) == OF_INPUTS).all()
    assert free(2, 1).mirrored_inputs(FEATURES) is None


def test_every_function_that_the_model_allows_is_odd_or_even() -> None:
    """Mean and variance of the converted model, and each function drawn from it; at any weights."""
    layout = _layout(free(2, 1).with_mirror(SIGNS))
    p = _parameters(layout)
    root = linearise(p, layout, _trials()).root
    shape = (2, layout.basis_size)
    fit = EvidenceFit(dynamics(p, layout, posterior(root, shape)), 0.0, 1, "converged", p, layout, root)
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(20, 5)))
    for gp in (fit.dynamics.gp, fit.draw(jax.random.key(1)).gp):
        here, there = jax.vmap(gp)(inputs), jax.vmap(gp)(OF_INPUTS * inputs)
        identity = np.stack([inputs[:, 0], inputs[:, 1]], axis=1)  # the model predicts what is added to the state
        assert np.abs(here - identity).max() > 0.1
        assert np.allclose(OF_OUTPUTS * here, there, rtol=0, atol=1e-10)
        spread, image = jax.vmap(gp.variance)(inputs), jax.vmap(gp.variance)(OF_INPUTS * inputs)
        assert np.allclose(spread, image, rtol=1e-9, atol=1e-9) and spread.min() > 0


def test_the_converted_model_is_the_trained_one() -> None:
    """The trained model has pairs of points, the converted one has all of them: the same mean and variance."""
    layout = _layout(free(2, 1).with_mirror(SIGNS))
    p = _parameters(layout)
    model, converted = build(p, layout), dynamics(p, layout, jnp.zeros((2, layout.basis_size, layout.basis_size)))
    for x in np.random.default_rng(1).normal(size=(5, 3)):
        step = model.step(jnp.asarray(x[:2]), jnp.asarray(x[2:]), 0)
        h = FEATURES(jnp.asarray(x))
        assert np.allclose(step.mean, converted.gp(h), rtol=0, atol=1e-12)
        assert np.allclose(np.diag(step.unexplained), converted.gp.variance(h), rtol=1e-6, atol=1e-8)


def test_the_prior_is_that_of_an_odd_function() -> None:
    """Sampled: functions drawn from the model before any data have the variance of the kernel of their parity."""
    layout = _layout(free(2, 1).with_mirror(SIGNS), points=12)
    p = eqx.tree_at(lambda q: q.weights, _parameters(layout), jnp.zeros((2, layout.basis_size)))
    size = 2 * layout.basis_size
    fit = EvidenceFit(
        dynamics(p, layout, jnp.stack(2 * [jnp.eye(layout.basis_size)])), 0.0, 1, "converged", p, layout, jnp.eye(size)
    )
    at = layout.centre + layout.scale * layout.points[0]  # at a point nothing is unexplained
    draws = 4000
    values = jax.vmap(lambda key: fit.draw(key).gp(at))(jax.random.split(jax.random.key(0), draws))
    wanted = fit.dynamics.gp.variance(at)
    of_variance = np.sqrt(2 / draws) * np.asarray(wanted)
    assert (np.abs(np.var(values, axis=0) - wanted) < 5 * of_variance).all()


def test_gradient_of_the_evidence_with_a_mirror() -> None:
    layout, trials = _layout(free(2, 1).with_mirror(SIGNS)), _trials()
    p = _parameters(layout)
    gradient = eqx.filter_jit(eqx.filter_grad(negative_log_evidence))(p, layout, trials)
    rng = np.random.default_rng(0)
    for _ in range(3):
        direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), p)
        along = sum(jnp.sum(g * d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
        difference = directional_difference(lambda q: negative_log_evidence(q, layout, trials), p, direction)
        assert abs(along - difference) < 1e-6 * max(1.0, abs(difference))


def test_points_are_placed_with_their_mirror_images() -> None:
    """Two clusters that are images of each other need one point."""
    rng = np.random.default_rng(0)
    one = np.array([1.0, 2.0]) + 0.01 * rng.normal(size=(10, 2))
    inputs = np.concatenate([one, -one, [[3.0, -1.0]]])
    chosen = spread_out(inputs, np.ones((1, 2)), 2, np.array([-1, -1]))
    assert 20 in chosen and len(chosen) == 2


def _pushed(low: float, high: float, seed: int) -> list[Episode]:
    task = tasks.pendulum()
    executor = RandomActions(np.array([[low, high]]))
    many = execute_many(task, executor, jax.random.split(jax.random.key(seed), 2))
    return [jax.tree.map(lambda leaf, i=i: leaf[i], many) for i in range(2)]


@functools.cache
def _trained(symmetry: bool) -> EvidenceFit:
    """A pendulum that was only ever pushed one way."""
    task = tasks.pendulum()
    structure = task.structure("second-order", symmetry)
    data = batch([Episode(each.observations, each.actions) for each in _pushed(0.5, 2.5, 0)])
    return fit_evidence(data, task.features("second-order"), task.start, structure=structure, points=24, rounds=2)


def _error(fit: EvidenceFit, episodes: list[Episode]) -> float:
    """Root mean square error of the next angular velocity, at the true states."""
    x = np.concatenate([np.concatenate([each.states[:-1], each.actions], axis=1) for each in episodes])
    following = np.concatenate([np.asarray(each.states)[1:, 1] for each in episodes])
    predicted = jax.vmap(lambda x: fit.dynamics.gp(fit.dynamics.features(x))[0])(jnp.asarray(x))
    return float(np.sqrt(np.mean((predicted - following) ** 2)))


def test_what_was_seen_on_one_side_is_known_on_the_other() -> None:
    other_way = _pushed(-2.5, -0.5, 1)
    plain, mirrored = _trained(False), _trained(True)
    assert mirrored.layout.points.shape[0] == 12 and mirrored.dynamics.gp.inputs.shape[0] == 24
    assert _error(mirrored, other_way) < 0.5 * _error(plain, other_way)
    assert _error(mirrored, other_way) < 2 * _error(mirrored, _pushed(0.5, 2.5, 2))


def test_a_mirror_names_states_and_actions() -> None:
    task = tasks.pendulum()
    with pytest.raises(ValueError, match=r"mirror of 'pendulum'.*Did you mean 'torque'"):
        dataclasses.replace(task, mirror=("angle", "angular velocity", "torqe"))
    assert not task.structure("free").mirror and task.structure("free", symmetry=True).mirror == (-1, -1, -1)


def test_the_mirrors_of_the_built_in_tasks_are_true() -> None:
    """Of the plant's own equations: the next state of the mirror image is the mirror image of the next state."""
    rng = np.random.default_rng(0)
    declared = 0
    for name in tasks.TASKS:
        task: Task = tasks.TASKS[name].value()
        if not task.mirror:
            continue
        declared += 1
        signs = np.array([-1 if part.name in task.mirror else 1 for part in (*task.states, *task.actions)])
        n = len(task.states)
        for _ in range(5):
            x, u = rng.normal(size=n), rng.uniform(task.action_low, task.action_high)
            here = task.plant(jnp.asarray(x), jnp.asarray(u))
            there = task.plant(jnp.asarray(signs[:n] * x), jnp.asarray(signs[n:] * u))
            assert np.allclose(signs[:n] * here, there, rtol=0, atol=1e-9), name
    assert declared >= 3


def test_a_mirror_that_the_plant_does_not_have_is_refused() -> None:
    """Of a pendulum that a wind pushes to one side; of one whose torque was left out of the mirror."""
    task = tasks.pendulum()
    check_plant(task)
    windy = dataclasses.replace(
        task, plant=hold(lambda x, u: jnp.stack([x[1], jnp.sin(x[0]) + u[0] + 0.3]), task.dt, 4)
    )
    with pytest.raises(ValueError, match=r"not its own mirror image: .* should be opposite.* leave `mirror` out"):
        check_plant(windy)
    with pytest.raises(ValueError, match="not its own mirror image"):
        check_plant(dataclasses.replace(task, mirror=("angle", "angular velocity")))
    with pytest.raises(ValueError, match="change sign together"):
        dataclasses.replace(task, mirror=("angle", "torque"))
