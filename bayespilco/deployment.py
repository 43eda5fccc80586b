"""From what was learned to a `Controller`, which runs without this library's mathematics, and from there to a plant.

A policy of either kind is a kernel network plus a linear map, of which one is zero; so is the model's mean. What a
controller needs of them are arrays, and here they are named.
"""

import dataclasses
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from bayespilco import logs
from bayespilco.controller import Controller, Description
from bayespilco.dynamics import Dynamics
from bayespilco.episode import Episode
from bayespilco.gp import GaussianProcess
from bayespilco.plants import Agent, PlantStopped, Rig
from bayespilco.policy import Affine, PolicyMap
from bayespilco.precision import float64
from bayespilco.tasks.task import Component, Task
from bayespilco.version import VERSION

OTHER_UNITS = 2.0
"""Logged actions that are so many times their limit were probably written in other units."""


@float64
def controller(task: Task, policy: PolicyMap, dynamics: Dynamics | None, method: str = "") -> Controller:
    """A controller that acts as `execution.Filtered` does or, without dynamics, as `execution.Unfiltered` does."""
    description = Description(
        task=task.name,
        method=method,
        version=VERSION,
        dt=float(task.dt),
        states=_names(task.states),
        actions=_names(task.actions),
        policy_angles=policy.features.angles,
        policy_keep=policy.features.keep,
        model_angles=dynamics.features.angles if dynamics is not None else (),
        model_keep=dynamics.features.keep if dynamics is not None else (),
    )
    arrays = {"initial_mean": task.initial.mean, "initial_cov": task.initial.cov, "limits": policy.squash.limits}
    function = _network(policy.function) if isinstance(policy.function, Affine) else policy.function.gp
    names = ("inputs", "length_scales", "signal_variance", "weights", "slope", "offset")
    arrays |= {f"policy_{name}": getattr(function, name) for name in names}
    if dynamics is not None:
        gp = dynamics.gp
        if gp.precision is None:
            raise ValueError("A controller that filters needs a model that knows its uncertainty; this one has none.")
        (points, inputs), outputs = gp.inputs.shape, gp.offset.shape[0]
        certain = {
            "cross_cov": jnp.zeros((outputs, points, 1 + inputs)),
            "linear_cov": jnp.zeros((outputs, 1 + inputs, 1 + inputs)),
        }
        arrays |= {name: getattr(gp, name) for name in (*names, "precision")}
        arrays |= {name: zero if getattr(gp, name) is None else getattr(gp, name) for name, zero in certain.items()}
        arrays |= {"sensor_noise": dynamics.sensor_noise, "process_noise": dynamics.process_noise}
    return Controller(description, {name: np.asarray(array) for name, array in arrays.items()})


@float64
def execute(task: Task, rig: Rig, agent: Agent, seed: int) -> Episode:
    """One episode on a plant that is there.

    One that ends at a limit is filled up: its samples are missing from there on, the action is zero as it was when it
    ended, and every step costs 1, the most that there is. After any other end the user has to look at the plant: a
    `PlantStopped` says why, and has what was recorded.
    """
    states, actions = _names(task.states), _names(task.actions)
    recording = rig.run(agent, dt=task.dt, steps=task.steps, states=states, actions=actions, seed=seed)
    times = len(recording.observations)
    if recording.ended not in ("finished", "limit") or times < 2 or not recording.stopped:
        raise PlantStopped(recording)
    z, u = np.array(recording.observations), np.array(recording.actions[: times - 1])
    known = np.array(recording.states) if recording.states else _hold(z, np.asarray(task.initial.mean))
    rest = task.steps + 1 - times
    return Episode(
        jnp.pad(z, ((0, rest), (0, 0)), constant_values=jnp.nan),
        jnp.pad(u, ((0, rest), (0, 0))),
        jnp.pad(known, ((0, rest), (0, 0)), mode="edge") if recording.states else None,
        jnp.pad(jax.vmap(task.cost)(jnp.asarray(known)), (0, rest), constant_values=1.0),
    )


@float64
def with_logged(task: Task, path: Path | str) -> Task:
    """The task with episodes from a file (see `bayespilco.logs`) to start learning from."""
    read = logs.read(path, _names(task.states), _names(task.actions), task.dt)
    largest = np.max([np.abs(u).max(axis=0) for _, u in read], axis=0)
    for name, value, limit in zip(task.actions, largest, np.asarray(task.action_limits), strict=True):
        if value > OTHER_UNITS * limit:
            sentence = f"{path}: {name} reaches {value:.4g}, but the task's limit is {limit:.4g}. Is it in other units?"
            warnings.warn(sentence, stacklevel=3)
    first = np.asarray(task.initial.mean)
    episodes = []
    for z, u in read:
        costs = jax.vmap(task.cost)(jnp.asarray(_hold(z, first)))
        episodes.append(Episode(jnp.asarray(z), jnp.asarray(u), None, costs))
    return dataclasses.replace(task, logged=tuple(episodes))


def log_text(task: Task) -> str:
    """The content of a file that `with_logged` reads the same episodes from."""
    states, actions = _names(task.states), _names(task.actions)
    parts = [logs.heading(states, actions)]
    for number, episode in enumerate(task.logged):
        z, u = np.asarray(episode.observations), np.asarray(episode.actions)
        parts.append(logs.text(states, actions, task.dt * np.arange(len(z)), z, u, number))
    return "".join(parts)


def _names(components: tuple[Component, ...]) -> tuple[str, ...]:
    return tuple(map(str, components))


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
