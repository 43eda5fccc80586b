"""A run of `learn` in miniature, put together by hand: real parts, but neither training nor policy search."""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import METHODS, Dynamics, Episode, LinearPolicy, Record, Run, Settings, execute, predict, tasks
from bayespilco.algorithm import TRAININGS
from bayespilco.core.gp import condition
from bayespilco.core.optimise import Reason
from bayespilco.core.registry import Entry
from bayespilco.execution import RandomActions
from bayespilco.tasks.task import Kind
from bayespilco.training.evidence import EvidenceFit
from bayespilco.training.trajectory import Layout, Parameters

STRUCTURE: Kind = "second-order"
"""What learning chooses for this task by itself."""


@functools.cache
def small_run(records: int = 2) -> Run:
    """The mass on the spring, with a model of a few transitions and a policy that pushes towards the mark."""
    task = tasks.spring()
    made = []
    executor = RandomActions(task.action_limits)
    for number in range(records):
        episode = execute(task, executor, jax.random.key(number))
        fit = _fit(episode)
        dynamics = fit.dynamics
        policy = LinearPolicy(jnp.array([[-1.0, -0.5]]), jnp.array([0.7 + 0.1 * number]), task.policy_features, [2.0])
        method = METHODS["bayes-filter"]
        predicted = eqx.filter_jit(predict)(method.predictor, policy, dynamics, task.initial, task.cost, task.steps)
        made.append(Record(episode, fit, policy, predicted, 10 + number, Reason.CONVERGED))
        executor = method.executor(policy, dynamics)
    return Run(task, Settings(episodes=records, structure=STRUCTURE), tuple(made))


def _fit(episode: Episode) -> EvidenceFit:
    """What training would return, with parameters that say little: shapes and places are right."""
    task = tasks.spring()
    features, structure, points = task.features(STRUCTURE), task.structure(STRUCTURE), 4
    z, u = np.asarray(episode.observations)[:-1], np.asarray(episode.actions)
    inputs = np.concatenate([z, u], axis=1)
    centre, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scaled = jnp.asarray((inputs - centre) / scale)
    layout = Layout(
        features,
        structure,
        task.sensors_with(scale[:2] ** 2),
        task.initial,
        jnp.asarray(centre),
        jnp.asarray(scale),
        jnp.asarray(scale[:2]),
        scaled[:points],
    )
    one, two, size = jnp.zeros(1), jnp.zeros(2), layout.basis_size
    parameters = Parameters(jnp.zeros((1, 3)), one, two - 1, two - 2, 0.1 * jnp.ones((1, size)))
    root = jnp.eye(size) + jnp.tril(jnp.full((size, size), 0.01))
    return EvidenceFit(_dynamics(episode), 12.5, 60, Reason.BUDGET, parameters, layout, root)


def _dynamics(episode: Episode) -> Dynamics:
    """A GP on latent states (which training would not see), good enough to predict with."""
    task = tasks.spring()
    assert episode.states is not None
    x, u = np.asarray(episode.states), np.asarray(episode.actions)
    inputs = np.concatenate([x[:-1], u], axis=1)
    slope = np.array([[0.0, 1.0, 0.0]])
    gp = condition(inputs, x[1:, 1:], np.full((1, 3), 2.0), np.full(1, 0.5), np.full(1, 1e-4), slope, np.zeros(1))
    sensors = task.sensors_with(np.square([0.021, 0.09]))
    return Dynamics(gp, task.features(STRUCTURE), sensors, np.full(2, 1e-6), task.structure(STRUCTURE))


def replace_training(monkeypatch: pytest.MonkeyPatch, name: str, fit: Callable[..., object]) -> None:
    """Let a training of the table be another function for the length of a test."""
    entry = TRAININGS[name]
    changed = Entry(name, entry.value._replace(fit=fit), entry.description, entry.extras)
    monkeypatch.setitem(TRAININGS._entries, name, changed)


def assert_same(one: object, other: object) -> None:
    """To the bit, in every array."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert type(a) is type(b)
        if isinstance(a, jax.Array):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        else:
            assert a == b
