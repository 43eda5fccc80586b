"""Executors: how a policy meets the plant, raw or through the filter, and the recording of what happened.

Each is a start and a step from an observation to an action; `execute` runs one against a task's simulated plant, or,
as a `Controller`, on a plant that is there.
The filter of `Filtered` is the one that the `Filtered` predictor predicts with: same update, same order.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco import deployment
from bayespilco.belief import Belief
from bayespilco.compilation import compiled
from bayespilco.controller import Controller
from bayespilco.dynamics import Dynamics
from bayespilco.episode import Episode
from bayespilco.gaussian import Gaussian
from bayespilco.plants import Agent, RandomAgent, Rig
from bayespilco.policy import Policy, PolicyMap
from bayespilco.precision import float64
from bayespilco.tasks.task import Simulation, Task


class Unfiltered(eqx.Module):
    """The observation goes straight into the policy. Where it is missing (NaN), the last one stands in for it."""

    policy: PolicyMap

    def start(self, initial: Gaussian) -> Array:
        return initial.mean

    def step(self, carry: Array, observation: Float[Array, " state"], key: Array) -> tuple[Array, Array]:
        latest = jnp.where(jnp.isfinite(observation), observation, carry)
        return latest, self.policy(latest)

    def controller(self, task: Task, method: str = "") -> Controller:
        return deployment.controller(task, self.policy, None, method)


class Filtered(eqx.Module):
    """The policy sees a belief, which the model carries from step to step (Section 3.1), also past missing samples."""

    policy: PolicyMap
    dynamics: Dynamics

    def start(self, initial: Gaussian) -> Belief:
        return Belief(initial.mean, initial.cov)

    def step(self, carry: Belief, observation: Float[Array, " state"], key: Array) -> tuple[Belief, Array]:
        updated = carry.update(observation, self.dynamics.R)
        action = updated.act(self.policy)
        return updated.predict(self.dynamics, action), action

    def controller(self, task: Task, method: str = "") -> Controller:
        return deployment.controller(task, self.policy, self.dynamics, method)


class RandomActions(eqx.Module):
    """Uniform actions within the limits: how the first data are collected."""

    limits: Float[Array, " action"]

    def start(self, initial: Gaussian) -> None:
        return None

    def step(self, carry: None, observation: Float[Array, " state"], key: Array) -> tuple[None, Array]:
        return None, jax.random.uniform(key, self.limits.shape, minval=-1.0, maxval=1.0) * self.limits


Learned = Unfiltered | Filtered
Executor = Learned | RandomActions


def unfiltered(policy: Policy, dynamics: Dynamics) -> Learned:
    return Unfiltered(policy.map())


def filtered(policy: Policy, dynamics: Dynamics) -> Learned:
    return Filtered(policy.map(), dynamics)


@float64
def execute(task: Task, executor: Executor, key: Array) -> Episode:
    """One episode on the task's plant: on a simulated one, noise is drawn independently per channel and step."""
    return jax.tree.map(lambda leaf: leaf[0], execute_many(task, executor, key[None]))


@float64
def execute_many(task: Task, executor: Executor, keys: Array) -> Episode:
    """Many episodes as one batch: an `Episode` whose arrays have a leading axis, one entry per key."""
    if isinstance(task.plant, Rig):
        episodes = [deployment.execute(task, task.plant, _agent(task, executor, seed), seed) for seed in _seeds(keys)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *episodes)
    return _simulate(task, task.plant, executor, keys)


def _seeds(keys: Array) -> list[int]:
    return [int(jax.random.randint(key, (), 0, 2**31 - 1)) for key in keys]


def _agent(task: Task, executor: Executor, seed: int) -> Agent:
    """The executor as a plant that is there meets it: in NumPy, one step at a time."""
    if isinstance(executor, RandomActions):
        return RandomAgent(np.asarray(executor.limits), np.random.default_rng(seed))
    return executor.controller(task)


@compiled
def _simulate(task: Task, simulation: Simulation, executor: Executor, keys: Array) -> Episode:
    def plant(x: Array, u: Array, key: Array) -> Array:
        return simulation(x, u)

    std = task.sensor_std
    assert std is not None, "a task checks that its simulation has it"
    return jax.vmap(lambda key: _run(task, plant, std, executor, key))(keys)


@float64
@compiled
def rehearse(task: Task, executor: Executor, plants: Dynamics, keys: Array) -> Episode:
    """Many episodes on plants drawn from a learned model, a plant of its own for each: a prediction by sampling.

    Nothing is approximated but the plant: beliefs keep whatever shape they take. The sensors have the noise that was
    learned. A state that leaves every range costs 1, as in `predict`.

    Args:
        plants: As many drawn plants as keys (`fit.draw` under `jax.vmap`): arrays with a leading axis.
    """

    def one(drawn: Dynamics, key: Array) -> Episode:
        def plant(x: Array, u: Array, key: Array) -> Array:
            inputs = drawn.features(jnp.concatenate([x, u]))
            variance = jnp.maximum(drawn.gp.variance(inputs), 0.0) + drawn.process_noise
            return drawn.gp(inputs) + jnp.sqrt(variance) * jax.random.normal(key, x.shape)

        return _run(task, plant, jnp.sqrt(drawn.sensor_noise), executor, key)

    return jax.vmap(one)(plants, keys)


def _run(
    task: Task,
    plant: Callable[[Array, Array, Array], Array],
    sensor_std: Float[Array, " state"],
    executor: Executor,
    key: Array,
) -> Episode:
    first, noise, chance = jax.random.split(key, 3)
    root = jnp.linalg.cholesky(task.initial.cov)
    states = task.initial.size
    x0 = task.initial.mean + root @ jax.random.normal(first, (states,))
    errors = sensor_std * jax.random.normal(noise, (task.steps + 1, states))

    def step(carry, inputs):  # type: ignore[no-untyped-def]
        x, memory = carry
        error, key = inputs
        memory, u = executor.step(memory, x + error, key)
        return (plant(x, u, jax.random.fold_in(key, 1)), memory), (x, x + error, u)

    chances = jax.random.split(chance, task.steps)
    (last, _), (x, z, u) = jax.lax.scan(step, (x0, executor.start(task.initial)), (errors[:-1], chances))
    x = jnp.concatenate([x, last[None]])
    z = jnp.concatenate([z, (last + errors[-1])[None]])
    costs = jax.vmap(task.cost)(x)
    return Episode(z, u, x, jnp.where(jnp.isfinite(costs), costs, 1.0))
