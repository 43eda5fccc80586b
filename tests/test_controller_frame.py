"""The NumPy controller equals the library with known rows: hidden states, delays, mixtures, references, a pump."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Dynamics, tasks
from bayespilco.control.policy import LinearPolicy
from bayespilco.core.gp import condition
from bayespilco.deploy import bridge
from bayespilco.deploy.controller import Controller
from bayespilco.execution import PolicyExecutor, filtered, unfiltered
from bayespilco.tasks import Reference, Sensor, Task
from bayespilco.tasks.task import Kind


def task() -> Task:
    """A spring measured twice, once late; actions come late and only push; a reference moves."""
    sensors = (
        Sensor("position", "m", of="position", offset=0.3, dropout=0.2),
        Sensor("mixture", "m", of={"position": 0.5, "velocity": 0.1}, delay=2, period=2),
    )
    return dataclasses.replace(
        tasks.spring(),
        sensors=sensors,
        sensor_std=[0.02, 0.05],
        action_limits=[[0.0, 3.0]],
        action_delay=2,
        references=(Reference("target", "m", tuple(0.5 + 0.02 * np.arange(21)), std=0.1),),
    )


def dynamics(of: Task, kind: Kind) -> Dynamics:
    """A model of the right shape, curved, with knowledge of its own uncertainty."""
    features, structure = of.features(kind), of.structure(kind)
    rng, outputs = np.random.default_rng(4), len(structure.outputs)
    x = rng.normal(size=(15, features.size))
    y = np.tanh(x @ rng.normal(size=(features.size, outputs)))
    gp = condition(
        x, y, np.full((outputs, features.size), 1.6), np.full(outputs, 0.4), np.full(outputs, 1e-3), None, None
    )
    noise = np.zeros(structure.states)
    noise[: structure.plant_states] = 1e-3
    return Dynamics(gp, features, of.sensors_with(np.square(np.asarray(of.sensor_std))), noise, structure)


def policy(of: Task) -> LinearPolicy:
    size = of.policy_features.size
    matrix = 0.4 * np.random.default_rng(5).normal(size=(1, size))
    return LinearPolicy(matrix, [0.2], of.policy_features, of.action_reach, of.action_middle)


def actions_of_the_library(executor: PolicyExecutor, of: Task, observations: np.ndarray) -> np.ndarray:
    def step(carry: object, now: tuple[jax.Array, jax.Array]) -> tuple[object, jax.Array]:
        return executor.step(carry, now[0], now[1], jax.random.key(0))

    times = jnp.arange(len(observations))
    return np.asarray(jax.lax.scan(step, executor.start(of.start), (jnp.asarray(observations), times))[1])


@pytest.mark.parametrize("kind", ["free", "second-order"])
def test_the_filtering_controller_equals_the_library(kind: Kind, tmp_path: object) -> None:
    of = task()
    executor = filtered(policy(of), dynamics(of, kind))
    z = 0.5 * np.random.default_rng(6).normal(size=(25, 2)) + 0.5
    z[np.random.default_rng(7).uniform(size=z.shape) < 0.3] = np.nan
    expected = actions_of_the_library(executor, of, z)
    controller = bridge.controller(of, executor, "bayes-filter", gate=0.0)  # these observations are not the model's
    assert np.abs(np.array([controller.act(each) for each in z]) - expected).max() < 1e-9
    assert ((expected >= 0) & (expected <= 3)).all() and np.ptp(expected) > 0.1
    assert controller.restarts == 0 and (controller.low == 0).all() and (controller.high == 3).all()


@pytest.mark.parametrize("make", [filtered, unfiltered])
def test_a_late_plant_with_all_sensors(make: Callable[..., PolicyExecutor]) -> None:
    of = dataclasses.replace(tasks.spring().with_delay(1), references=(Reference("target", "m", 0.5),))
    executor = make(policy(of), dynamics(of, "free"))
    z = np.random.default_rng(6).normal(size=(12, 2))
    z[3], z[7, 0] = np.nan, np.nan
    controller = bridge.controller(of, executor, gate=0.0)
    again = Controller(controller.description, controller.arrays)
    expected = actions_of_the_library(executor, of, z)
    assert np.abs(np.array([again.act(each) for each in z]) - expected).max() < 1e-9


def test_an_operator_moves_the_target() -> None:
    """The action follows it at once, and a wrong number of targets is refused."""
    of = task()
    controller = bridge.controller(of, filtered(policy(of), dynamics(of, "second-order")))
    first = controller.act([0.5, 0.3])
    controller.reset()
    assert not np.allclose(controller.act([0.5, 0.3], references=[1.5]), first)
    with pytest.raises(ValueError, match="one per target \\(target \\[m\\]\\)"):
        controller.act([0.5, 0.3], references=[1.0, 2.0])
    with pytest.raises(ValueError, match="2 entries \\(position \\[m\\], mixture \\[m\\]\\)"):
        controller.act([0.5])
