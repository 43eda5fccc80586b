"""Light-dark: the task, its picture, and that looking is learned from the exact gradient."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import METHODS, Dynamics, Settings, Task, tasks
from bayespilco.algorithm import make_problem, model_structure
from bayespilco.control.search import search
from bayespilco.core.gp import GaussianProcess
from bayespilco.execution import execute_many
from bayespilco.report.poses import ellipse, picture

light_dark = importlib.import_module("bayespilco.tasks.light_dark")


def known(task: Task) -> Dynamics:
    """The plant is linear: a model that is exact."""
    A, B = jax.jacfwd(task.plant, argnums=(0, 1))(task.initial.mean, jnp.zeros(2))
    slope, nothing = np.concatenate([A, B], axis=1), (np.zeros((1, 6)), np.ones((4, 6)), np.ones(4), np.zeros((4, 1)))
    gp = GaussianProcess(*nothing, None, slope, np.zeros(4))
    return Dynamics(gp, task.features("free"), task.true_sensors, np.zeros(4), task.structure("free"))


def test_the_camera_is_as_good_as_the_light_is_near() -> None:
    """Its noise is 0.1 m in the light, and far away about as large as the distance; the speedometers do not care."""
    task = tasks.light_dark()
    for away in (0.0, 0.1, 5.0):
        x = jnp.array([light_dark.LIGHT[0] + away, light_dark.LIGHT[1], 0.0, 0.0])
        std = np.sqrt(task.true_sensors.at(x).noise)
        np.testing.assert_allclose(std[:2], np.hypot(0.1, away), rtol=1e-12)
        np.testing.assert_allclose(std[2:], 0.1, rtol=1e-12)
    assert model_structure(task, Settings()) == "second-order" and not task.hidden


def test_a_straight_way_does_not_see() -> None:
    """The light is off the way: along the straight line the camera is worse than what is known from the start."""
    line = np.linspace(light_dark.START, light_dark.GOAL, 20)
    nearest = np.linalg.norm(line - np.array(light_dark.LIGHT), axis=1).min()
    assert nearest > 1.5 * light_dark.START_STD


def test_a_belief_is_drawn_as_an_ellipse() -> None:
    mean, cov = np.array([1.0, 2.0, 9.0]), np.array([[0.5, 0.2, 0.0], [0.2, 0.3, 0.0], [0.0, 0.0, 7.0]])
    away = ellipse(mean, cov, (0, 1)) - mean[:2]
    np.testing.assert_allclose(np.einsum("pi,ij,pj->p", away, np.linalg.inv(cov[:2, :2]), away), 4.0, rtol=1e-10)
    task, x = tasks.light_dark(), np.zeros(4)
    wide = np.diag([1.0, 1.0, 0.1, 0.1])
    plain, with_belief = picture(task, x, size=60), picture(task, x, size=60, belief=(x, wide))
    assert plain.shape == with_belief.shape and (plain != with_belief).any()
    spring = tasks.spring()
    one, other = (picture(spring, np.zeros(2), size=60, belief=b) for b in (None, (np.zeros(2), np.eye(2))))
    np.testing.assert_array_equal(one, other)  # its states are no places in the plane


@pytest.mark.slow
@pytest.mark.parametrize("method", ["bayes-filter", "dallaire"])
def test_who_predicts_the_filter_goes_to_look(method: str) -> None:
    """And costs less for it, executed with the same filter. One deterministic trajectory has nothing to learn there."""
    task = tasks.light_dark()
    model = known(task)
    x, u = jnp.array([1.0, -0.5, 0.3, 0.2]), jnp.array([0.7, -1.0])
    np.testing.assert_allclose(model(x, u), task.plant(x, u), rtol=1e-12)
    problem = make_problem(task, Settings(method=method), model)
    starts = [task.random_policy(key) for key in jax.random.split(jax.random.key(0), 4)]
    found = search(problem, [], starts, evaluations=80, split_evaluations=0, refined=[])
    executor = METHODS[method].executor(found.policy, model)
    runs = execute_many(task, executor, jax.random.split(jax.random.key(1), 100))
    near = np.linalg.norm(np.asarray(runs.states)[..., :2] - np.array(light_dark.LIGHT), axis=-1).min(axis=1)
    looks, cost = np.median(near) < 1.0, float(np.asarray(runs.costs).sum(axis=1).mean())
    assert (looks, cost < 19.0) == ((True, True) if method == "bayes-filter" else (False, False))
