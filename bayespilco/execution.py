"""Executors: how a policy meets the plant, raw or through the filter, and the simulation of what happens.

Each is a start and a step from an observation to an action; `execute` runs one against a task's simulated plant, or
hands it to a plant that is there. The filter of `Filtered` is the one that the `Filtered` predictor predicts with: same
update, same order.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.control.policy import Policy, PolicyMap
from bayespilco.core.compilation import compiled
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import as_float64, float64
from bayespilco.model.belief import Belief, start
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode
from bayespilco.model.sensors import Sensors
from bayespilco.model.structure import Structure
from bayespilco.tasks.task import RealPlant, Simulation, Task


class Executor(eqx.Module):
    """From observations to actions, one step at a time. What is carried from step to step is its own affair."""

    @abc.abstractmethod
    def start(self, initial: Gaussian) -> Any:
        """What is carried into the first step. `initial` is the distribution of all rows of the state."""

    @abc.abstractmethod
    def step(self, carry: Any, observation: Float[Array, " sensor"], t: Array, key: Array) -> tuple[Any, Array]:
        """The action at step `t`, and what is carried on."""


class PolicyExecutor(Executor):
    """Executes a policy that was learned."""

    policy: eqx.AbstractVar[PolicyMap]
    dynamics: eqx.AbstractVar[Dynamics]


class Unfiltered(PolicyExecutor):
    """The observation goes straight into the policy. Where it is missing (NaN), the last one stands in for it."""

    policy: PolicyMap
    dynamics: Dynamics

    def start(self, initial: Gaussian) -> tuple[Array, Array]:
        """The last observation, and the rows that are known: past actions and references."""
        return self.dynamics.sensors(initial.mean), initial.mean

    def step(
        self, carry: tuple[Array, Array], observation: Float[Array, " sensor"], t: Array, key: Array
    ) -> tuple[tuple[Array, Array], Array]:
        latest, rows = carry
        latest = jnp.where(jnp.isfinite(observation), observation, latest)
        structure = self.dynamics.structure
        n = structure.plant_states
        x = jnp.concatenate([self.dynamics.sensors.raw_estimate(latest, n), rows[n:]])
        u = self.policy(x)
        return (latest, known_rows(structure, x, u, t)), u


class Filtered(PolicyExecutor):
    """The policy sees a belief, which the model carries from step to step (Section 3.1), also past missing samples."""

    policy: PolicyMap
    dynamics: Dynamics

    def start(self, initial: Gaussian) -> Belief:
        before = start(initial, self.dynamics.structure.known)
        return Belief(initial.mean, before.cov)

    def step(self, carry: Belief, observation: Float[Array, " sensor"], t: Array, key: Array) -> tuple[Belief, Array]:
        updated = carry.update(observation, self.dynamics.sensors)
        action = updated.act(self.policy)
        return updated.predict(self.dynamics, action, t), action


class RandomActions(Executor):
    """Uniform actions within the limits: how the first data are collected.

    The limits are those of a task: the largest action, or a pair of lowest and highest, per action.
    """

    limits: Float[Array, " action"] | Float[Array, "action 2"] = eqx.field(converter=as_float64)

    @property
    def low(self) -> Array:
        return -self.limits if self.limits.ndim == 1 else self.limits[:, 0]

    @property
    def high(self) -> Array:
        return self.limits if self.limits.ndim == 1 else self.limits[:, 1]

    def start(self, initial: Gaussian) -> None:
        return None

    def step(self, carry: None, observation: Float[Array, " sensor"], t: Array, key: Array) -> tuple[None, Array]:
        if self.limits.ndim == 1:
            return None, jax.random.uniform(key, self.limits.shape, minval=-1.0, maxval=1.0) * self.limits
        return None, self.low + (self.high - self.low) * jax.random.uniform(key, self.low.shape)


def unfiltered(policy: Policy, dynamics: Dynamics) -> PolicyExecutor:
    return Unfiltered(policy.map(), dynamics)


def filtered(policy: Policy, dynamics: Dynamics) -> PolicyExecutor:
    return Filtered(policy.map(), dynamics)


@float64
def execute(task: Task, executor: Executor, key: Array) -> Episode:
    """One episode on the task's plant: on a simulated one, noise is drawn independently per channel and step."""
    episode: Episode = jax.tree.map(lambda leaf: leaf[0], execute_many(task, executor, key[None]))
    return episode


@float64
def execute_many(task: Task, executor: Executor, keys: Array) -> Episode:
    """Many episodes as one batch: an `Episode` whose arrays have a leading axis, one entry per key."""
    if isinstance(task.plant, RealPlant):
        seeds = [int(jax.random.randint(key, (), 0, 2**31 - 1)) for key in keys]
        episodes = [task.plant.execute(task, executor, seed) for seed in seeds]
        stacked: Episode = jax.tree.map(lambda *leaves: jnp.stack(leaves), *episodes)
        return stacked
    return _simulate(task, task.plant, executor, keys)


@float64
def execute_pushed(task: Task, executor: Executor, keys: Array, pushes: Float[Array, "keys steps state"]) -> Episode:
    """Like `execute_many`, on a simulated plant whose states are pushed: `pushes` are added at the end of each step."""
    if isinstance(task.plant, RealPlant):
        raise ValueError(f"Task {task.name!r} has a real plant, which this program cannot push.")
    return _simulate(task, task.plant, executor, keys, pushes)


@compiled
def _simulate(
    task: Task, simulation: Simulation, executor: Executor, keys: Array, pushes: Array | None = None
) -> Episode:
    structure, n, sensors = task.structure(), len(task.states), task.true_sensors

    def one(key: Array, pushes: Array | None) -> Episode:
        def plant(x: Array, u: Array, t: Array, key: Array) -> Array:
            acting = jnp.concatenate([x, u])[np.array(structure.acting)]
            following = simulation(x[:n], acting)
            following = following if pushes is None else following + pushes[t]
            return jnp.concatenate([following, known_rows(structure, x, u, t)[n:]])

        return _run(task, plant, sensors, executor, key)

    return jax.vmap(one)(keys, pushes)


def known_rows(structure: Structure, x: Array, u: Array, t: Array) -> Array:
    """All rows of the next state as `L x + M u + k_t`: right for those behind the plant's own."""
    if structure.states == structure.plant_states:
        return x
    following: Array = structure.L @ x + structure.M @ u + structure.drift_at(t)
    return following


@float64
@compiled
def simulate_samples(task: Task, executor: Executor, plants: Dynamics, keys: Array) -> Episode:
    """Many episodes on plants drawn from a learned model, a plant of its own for each: a prediction by sampling.

    Nothing is approximated but the plant: beliefs keep whatever shape they take. The sensors have the noise that was
    learned. A state that leaves every range costs the worst there is, as in `predict`.

    Args:
        plants: As many drawn plants as keys (`fit.draw` under `jax.vmap`): arrays with a leading axis.
    """

    def one(drawn: Dynamics, key: Array) -> Episode:
        def plant(x: Array, u: Array, t: Array, key: Array) -> Array:
            inputs = drawn.features(jnp.concatenate([x, u]))
            variance = jnp.maximum(drawn.gp.variance(inputs), 0.0)
            if drawn.structure.is_free:
                return drawn.gp(inputs) + jnp.sqrt(variance + drawn.process_noise) * jax.random.normal(key, x.shape)
            of_function, of_plant = jax.random.split(key)
            y = drawn.gp(inputs) + jnp.sqrt(variance) * jax.random.normal(of_function, variance.shape)
            noise = jnp.sqrt(drawn.process_noise) * jax.random.normal(of_plant, x.shape)
            return drawn.known_part(x, u, t, y) + noise

        return _run(task, plant, drawn.sensors, executor, key)

    return jax.vmap(one)(plants, keys)


rehearse = simulate_samples  # its name in version 0.1


def _run(
    task: Task,
    plant: Callable[[Array, Array, Array, Array], Array],
    sensors: Sensors,
    executor: Executor,
    key: Array,
) -> Episode:
    first, noise, chance = jax.random.split(key, 3)
    x0 = _first_state(task, first)
    samples = (task.steps + 1, sensors.count)
    errors = jnp.sqrt(sensors.noise) * jax.random.normal(noise, samples)
    errors = errors + _lost(sensors, jax.random.fold_in(noise, 1), task.steps + 1)
    if sensors.bursts is not None:
        silent = sensors.bursts.draw(jax.random.fold_in(noise, 2), task.steps + 1)
        errors = jnp.where(silent[:, None], jnp.nan, errors)

    def step(
        carry: tuple[Array, Any], inputs: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Any], tuple[Array, Array, Array]]:
        x, memory = carry
        error, t, key = inputs
        z = sensors(x) + error * _noisier(sensors, x)
        memory, u = executor.step(memory, z, t, key)
        return (plant(x, u, t, jax.random.fold_in(key, 1)), memory), (x, z, u)

    chances = jax.random.split(chance, task.steps)
    memory = executor.start(_known_at_first(task, x0))
    (last, _), (x, z, u) = jax.lax.scan(step, (x0, memory), (errors[:-1], jnp.arange(task.steps), chances))
    z = jnp.concatenate([z, (sensors(last) + errors[-1] * _noisier(sensors, last))[None]])
    rows = jnp.concatenate([x, last[None]])
    costs = episode_costs(task, rows, u)
    return Episode(z, u, rows[:, : len(task.states)], costs, at_goal(task, rows))


def episode_costs(task: Task, rows: Float[Array, "times row"], actions: Float[Array, "steps action"]) -> Array:
    """What each step of an episode costs: of state and action, and at the last step of the state alone."""
    during = jax.vmap(task.cost)(jnp.concatenate([rows[:-1], actions], axis=1))
    last = task.cost.terminal(rows.shape[1])(rows[-1])
    costs = jnp.concatenate([during, last[None]])
    return jnp.where(jnp.isfinite(costs), costs, task.cost.worst)


def at_goal(task: Task, rows: Float[Array, "times row"]) -> Bool[Array, " times"]:
    """At which steps the state is at the goal: what actions cost has no part in it."""
    return jax.vmap(task.cost.terminal(rows.shape[1]).at_goal)(rows)


def exceeded(task: Task, states: np.ndarray) -> np.ndarray:
    """Whether each limit of a task was exceeded at any step, of states of shape (runs, times, states)."""
    places = {state.name: place for place, state in enumerate(task.states)}
    found = np.zeros((len(states), len(task.limits)), dtype=bool)
    for number, limit in enumerate(task.limits):
        x = states[:, :, places[limit.name]]
        found[:, number] = ~((x >= limit.low) & (x <= limit.high)).all(axis=1)  # NaN is beyond every limit
    return found


def _first_state(task: Task, key: Array) -> Float[Array, " row"]:
    """All rows of the state at the first step: the plant's own drawn, past actions zero, references drawn."""
    n = len(task.states)
    root = jnp.linalg.cholesky(task.initial.cov)
    x: Array = task.initial.mean + root @ jax.random.normal(key, (n,))
    if task.row_count == n:
        return x
    levels = np.array([reference.path[0] for reference in task.references])
    spread = np.array([reference.std for reference in task.references])
    drawn = levels + spread * jax.random.normal(jax.random.fold_in(key, 1), (len(levels),))
    return (jnp.asarray(task.embedding) @ x).at[np.array(task.reference_rows, dtype=int)].set(drawn)


def _known_at_first(task: Task, x0: Float[Array, " row"]) -> Gaussian:
    """What a controller knows before the first observation: of references, this episode's own levels."""
    rows = np.array(task.reference_rows, dtype=int)
    return Gaussian(task.start.mean.at[rows].set(x0[rows]), task.start.cov)


def _noisier(sensors: Sensors, x: Float[Array, " row"]) -> Float[Array, " sensor"] | float:
    """How many times their least standard deviation the sensors have in a state."""
    return 1.0 if sensors.growth is None else jnp.sqrt(sensors.relative_noise(x))


def _lost(sensors: Sensors, key: Array, times: int) -> Float[Array, "times sensor"] | float:
    """NaN where a sample is lost or not due, 0 elsewhere."""
    due = jax.vmap(lambda t: jnp.asarray(sensors.scheduled(t)))(jnp.arange(times))
    if not any(sensors.dropout):
        return 0.0 if all(p == 1 for p in sensors.period) else jnp.where(due, 0.0, jnp.nan)
    kept = jax.random.uniform(key, due.shape) >= jnp.asarray(sensors.dropout)
    return jnp.where(due & kept, 0.0, jnp.nan)
