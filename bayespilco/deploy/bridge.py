"""From what was learned to a `Controller`, which runs without this library's mathematics, and from there to a plant.

A policy of either kind is a kernel network plus a linear map, of which one is zero; so is the model's mean. What a
controller needs of them are arrays, and here they are named.
"""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.control.policy import Affine
from bayespilco.core.gp import GaussianProcess
from bayespilco.core.precision import float64
from bayespilco.deploy import logs
from bayespilco.deploy.controller import GATE, PATIENCE, Controller, Description
from bayespilco.deploy.rig import Agent, PlantStopped, RandomAgent, Rig
from bayespilco.execution import Executor, Filtered, PolicyExecutor, RandomActions, at_goal, episode_costs
from bayespilco.model import belief
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode
from bayespilco.tasks.task import Task
from bayespilco.version import VERSION

OTHER_UNITS = 2.0
"""Logged actions that are so many times their limit were probably written in other units."""


@float64
def controller(
    task: Task, executor: PolicyExecutor, method: str = "", gate: float = GATE, patience: int = PATIENCE
) -> Controller:
    """A controller that acts as the executor does, and rejects samples that its filter cannot explain.

    Args:
        gate, patience: See `deploy.controller.gate`. With a gate of 0 everything is believed, as the executor does.
    """
    policy, dynamics = executor.policy, executor.dynamics
    structure, sensors, filters = dynamics.structure, dynamics.sensors, isinstance(executor, Filtered)
    description = Description(
        task=task.name,
        method=method,
        version=VERSION,
        dt=float(task.dt),
        states=task.row_names,
        sensors=task.sensor_names,
        actions=task.action_names,
        known=structure.known,
        references=task.reference_rows,
        policy_angles=policy.features.angles,
        policy_keep=policy.features.keep,
        model_angles=dynamics.features.angles if filters else (),
        model_keep=dynamics.features.keep if filters else (),
        gate=float(gate),
        patience=int(patience),
    )
    start = belief.start(task.start, structure.known)
    arrays: dict[str, Any] = {
        "initial_mean": task.start.mean,
        "initial_cov": start.cov,
        "limits": policy.squash.limits,
        "middle": policy.middle,
        "rest": jnp.clip(0.0, policy.middle - policy.squash.limits, policy.middle + policy.squash.limits),
        "transition": structure.L,
        "action_matrix": structure.M,
        "drift": np.zeros((0, structure.states)) if structure.drift is None else structure.drift,
        "sensor_offset": sensors.d,
    }
    function = _network(policy.function) if isinstance(policy.function, Affine) else policy.function.gp
    names = ("inputs", "length_scales", "signal_variance", "weights", "slope", "offset")
    arrays |= {f"policy_{name}": getattr(function, name) for name in names}
    if filters and policy.caution is not None:
        caution = policy.caution
        arrays |= {"policy_scale": caution.scale, "policy_shift": caution.shift, "policy_doubt": caution.noise}
    if filters:
        arrays |= _filter_arrays(dynamics, names)
        arrays |= {"sensor_turn": _turns(task), "wide_cov": _wide_cov(task, dynamics)}
    else:
        n = structure.plant_states
        of_unit = jax.vmap(lambda z: sensors.raw_estimate(z + sensors.d, n))(jnp.eye(sensors.count))
        arrays["estimate"] = of_unit.T
    return Controller(description, {name: np.asarray(array) for name, array in arrays.items()})


def _filter_arrays(dynamics: Dynamics, names: tuple[str, ...]) -> dict[str, Any]:
    """What a controller that filters needs beside."""
    gp = dynamics.gp
    if gp.precision is None:
        raise ValueError("A controller that filters needs a model that knows its uncertainty; this one has none.")
    (points, inputs), outputs = gp.inputs.shape, gp.offset.shape[0]
    certain = {
        "cross_cov": jnp.zeros((outputs, points, 1 + inputs)),
        "linear_cov": jnp.zeros((outputs, 1 + inputs, 1 + inputs)),
    }
    arrays: dict[str, Any] = {name: getattr(gp, name) for name in (*names, "precision")}
    arrays |= {name: zero if getattr(gp, name) is None else getattr(gp, name) for name, zero in certain.items()}
    if dynamics.sensors.growth is not None:
        arrays |= {"sensor_growth": dynamics.sensors.growth, "sensor_best_at": dynamics.sensors.best_at}
    return arrays | {
        "output_matrix": dynamics.structure.B,
        "correction": dynamics.structure.H,
        "rate_rows": np.eye(dynamics.structure.states)[list(dynamics.structure.outputs)],
        "moves": dynamics.structure.moves[0],
        "sensor_matrix": dynamics.sensors.C,
        "sensor_noise": dynamics.sensor_noise,
        "process_noise": dynamics.process_noise,
    }


def _turns(task: Task) -> np.ndarray:
    """What a sensor of one angle reports more after a full turn; 0 for other sensors."""
    angles = {task.states[i].name for i in task.angles}
    full = [2 * np.pi * abs(s.of[0][1]) if len(s.of) == 1 and s.of[0][0] in angles else 0.0 for s in task.sensed]
    return np.array(full)


def _wide_cov(task: Task, dynamics: Dynamics) -> np.ndarray:
    """How far the plant may be from where it is believed to be, once a belief has to be given up.

    As far as the model's data reach from the first state, and for an angle anywhere on the circle. What late sensors
    will report is as uncertain as the states; rows that are known stay known.
    """
    n, inputs = len(task.states), np.asarray(dynamics.gp.inputs)
    spread = np.diagonal(np.asarray(task.initial.cov)).copy()
    for column, state in enumerate(dynamics.features.keep):
        if state < n and len(inputs):
            reach = np.mean(np.square(inputs[:, column] - float(task.initial.mean[state])))
            spread[state] = max(spread[state], float(reach))
    spread[list(task.angles)] = np.pi**2 / 3  # of a uniform distribution on the circle
    E = task.embedding
    return np.asarray(E @ np.diag(spread) @ E.T)


@float64
def execute(task: Task, rig: Rig, executor: Executor, seed: int) -> Episode:
    """One episode on a plant that is there.

    One that ends at a limit is filled up: its samples are missing from there on, the actuators rest as they did when it
    ended, and every step costs the most that there is. After any other end the user has to look at the plant: a
    `PlantStopped` says why, and has what was recorded.
    """
    agent = _agent(task, executor, seed)
    names = task.sensor_names, task.action_names
    recording = within_limits(task, rig).run(
        agent, dt=task.dt, steps=task.steps, states=names[0], actions=names[1], seed=seed, learning=True
    )
    times = len(recording.observations)
    if recording.ended not in ("finished", "limit") or times < 2 or not recording.stopped:
        raise PlantStopped(recording)
    z, u = _unwrapped(task, np.array(recording.observations)), np.array(recording.actions[: times - 1])
    states = np.array(recording.states) if recording.states else None
    rows = episode_rows(task, z, u, states)
    costs = episode_costs(task, rows, jnp.asarray(u))
    left = task.steps + 1 - times
    return Episode(
        jnp.pad(z, ((0, left), (0, 0)), constant_values=jnp.nan),
        jnp.concatenate([u, jnp.tile(task.rest, (left, 1))]),
        None if states is None else jnp.pad(states, ((0, left), (0, 0)), mode="edge"),
        jnp.concatenate([costs, jnp.full(left, _worst(task, costs))]),
        jnp.pad(at_goal(task, rows), (0, left)),
    )


def within_limits(task: Task, rig: Rig) -> Rig:
    """The rig, which also ends an episode at the limits that the task declares.

    A limit of a state is one of each sensor that measures this state alone. Where the rig has a limit of its own, the
    narrower one counts. What no sensor measures cannot be watched: a warning says so.
    """
    if not task.limits:
        return rig
    low = np.full(len(task.sensed), -np.inf) if rig.low is None else np.array(rig.low, dtype=float)
    high = np.full(len(task.sensed), np.inf) if rig.high is None else np.array(rig.high, dtype=float)
    for limit in task.limits:
        watching = [n for n, sensor in enumerate(task.sensed) if sensor.measures_only(limit.name)]
        if not watching:
            warnings.warn(f"No sensor measures {limit.name!r} alone: the rig cannot watch its limit.", stacklevel=3)
        for n in watching:
            (_, weight), offset = task.sensed[n].of[0], task.sensed[n].offset
            ends = sorted((offset + weight * limit.low, offset + weight * limit.high))
            low[n], high[n] = max(low[n], ends[0]), min(high[n], ends[1])
    return dataclasses.replace(rig, low=low, high=high)


def _unwrapped(task: Task, z: np.ndarray) -> np.ndarray:
    """Observations in which angles that a sensor cuts (at +-pi, say) go on: models are trained on continuous series.

    A sensor that cuts has values within one turn; a jump by more than half of one is a cut, and so is a series that
    starts more than that away from where the task's plant does.
    """
    z = z.copy()
    first = np.asarray(task.sensors_with(np.ones(len(task.sensed)))(task.start.mean))
    for k, turn in enumerate(_turns(task)):
        seen = np.isfinite(z[:, k])
        values = z[seen, k]
        if turn > 0 and len(values) and np.ptp(values) <= turn:
            jumps = np.cumsum(np.round(np.diff(values, prepend=first[k]) / turn))
            z[seen, k] = values - turn * jumps
    return z


def _worst(task: Task, costs: Array) -> Array:
    """What a step costs that was not run: the most there is or, where costs have no bound, the most that was met."""
    return jnp.where(jnp.isfinite(task.cost.worst), task.cost.worst, jnp.max(costs))


def _agent(task: Task, executor: Executor, seed: int) -> Agent:
    """The executor as a plant that is there meets it: in NumPy, one step at a time."""
    if isinstance(executor, RandomActions):
        low, high = np.asarray(executor.low), np.asarray(executor.high)
        limits, rest = np.maximum(np.abs(low), np.abs(high)), np.clip(0.0, low, high)
        return RandomAgent(limits, np.random.default_rng(seed), low, high, rest)
    if isinstance(executor, PolicyExecutor):
        return controller(task, executor)
    raise ValueError(f"A {type(executor).__name__} cannot run on a real plant; it is neither random nor a policy.")


def episode_rows(task: Task, z: np.ndarray, u: np.ndarray, states: np.ndarray | None) -> Float[Array, "times row"]:
    """All rows of the state in an episode: by the true states if they are known, else by what the sensors said.

    A missing value is the last one seen. A state that no sensor tells directly counts as it was expected at first.
    """
    sensors = task.sensors_with(np.ones(len(task.sensed)))
    n, structure = len(task.states), task.structure()
    rows = np.tile(np.asarray(task.start.mean), (len(z), 1))
    if states is None:
        held = _hold(z, np.asarray(sensors(task.start.mean)))
        C = sensors.C[:, :n]
        rows[:, :n] += (held - rows @ sensors.C.T - sensors.d) @ np.linalg.pinv(C).T
    else:
        rows[:, :n] = states
    for t in range(len(z) - 1):
        following = structure.L @ rows[t] + structure.M @ u[t] + np.asarray(structure.drift_at(t))
        rows[t + 1, n:] = following[n:]
    return jnp.asarray(rows)


@float64
def with_logged(task: Task, path: Path | str) -> Task:
    """The task with episodes from a file (see `bayespilco.deploy.logs`) to start learning from."""
    read = logs.read(path, task.sensor_names, task.action_names, task.dt)
    largest = np.max([np.abs(u).max(axis=0) for _, u in read], axis=0)
    limits = np.maximum(np.abs(np.asarray(task.action_low)), np.abs(np.asarray(task.action_high)))
    for name, value, limit in zip(task.actions, largest, limits, strict=True):
        if value > OTHER_UNITS * limit:
            sentence = f"{path}: {name} reaches {value:.4g}, but the task's limit is {limit:.4g}. Is it in other units?"
            warnings.warn(sentence, stacklevel=3)
    episodes = []
    for cut, u in read:
        z = _unwrapped(task, cut)
        rows = episode_rows(task, z, u, None)
        costs = episode_costs(task, rows, jnp.asarray(u))
        episodes.append(Episode(jnp.asarray(z), jnp.asarray(u), None, costs, at_goal(task, rows)))
    return dataclasses.replace(task, logged=tuple(episodes))


def log_text(task: Task) -> str:
    """The content of a file that `with_logged` reads the same episodes from."""
    sensors, actions = task.sensor_names, task.action_names
    parts = [logs.heading(sensors, actions)]
    for number, episode in enumerate(task.logged):
        z, u = np.asarray(episode.observations), np.asarray(episode.actions)
        parts.append(logs.text(sensors, actions, task.dt * np.arange(len(z)), z, u, number))
    return "".join(parts)


def _hold(z: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Observations in which the last value stands in for what is missing."""
    held = [first]
    for each in z:
        held.append(np.where(np.isnan(each), held[-1], each))
    return np.array(held[1:])


def _network(affine: Affine) -> GaussianProcess:
    """A linear map as a kernel network without kernels."""
    outputs, inputs = affine.matrix.shape
    return GaussianProcess(
        inputs=jnp.zeros((0, inputs)),
        length_scales=jnp.ones((outputs, inputs)),
        signal_variance=jnp.ones(outputs),
        weights=jnp.zeros((outputs, 0)),
        precision=None,
        slope=affine.matrix,
        offset=affine.offset,
    )
