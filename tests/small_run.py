"""A run of `learn` in miniature, put together by hand: real parts, but neither training nor policy search."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespilco import METHODS, Dynamics, Episode, LinearPolicy, Record, Run, execute, predict, tasks
from bayespilco.execution import RandomActions
from bayespilco.gp import condition


@functools.cache
def small_run(records: int = 2) -> Run:
    """The mass on the spring, with a model of a few transitions and a policy that pushes towards the mark."""
    task = tasks.spring()
    made = []
    executor = RandomActions(task.action_limits)
    for number in range(records):
        episode = execute(task, executor, jax.random.key(number))
        dynamics = _dynamics(episode)
        policy = LinearPolicy(jnp.array([[-1.0, -0.5]]), jnp.array([0.7 + 0.1 * number]), task.policy_features, [2.0])
        method = METHODS["bayes-filter"]
        predicted = eqx.filter_jit(predict)(
            method.predictor, policy, dynamics, task.initial, task.cost, task.steps
        )
        made.append(Record(episode, dynamics, policy, predicted, 10 + number, "the gradient vanished"))
        executor = method.executor(policy, dynamics)
    return Run(task, "bayes-filter", 0, "evidence", tuple(made))


def _dynamics(episode: Episode) -> Dynamics:
    """A GP on latent states (which training would not see), good enough to predict with."""
    task = tasks.spring()
    assert episode.states is not None
    x, u = np.asarray(episode.states), np.asarray(episode.actions)
    inputs = np.concatenate([x[:-1], u], axis=1)
    slope = np.eye(2, 3)
    gp = condition(inputs, x[1:], np.full((2, 3), 2.0), np.full(2, 0.5), np.full(2, 1e-4), slope, np.zeros(2))
    return Dynamics(gp, task.dynamics_features, np.square([0.021, 0.09]), np.full(2, 1e-6))
