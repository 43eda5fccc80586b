"""Gymnasium's environments are tasks, and the tasks here are environments that pass its checks without a warning."""

import dataclasses
import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from bayespilco import Gaussian, environments, execute, tasks
from bayespilco.core.precision import as_float64
from bayespilco.execution import RandomActions, execute_many
from bayespilco.tasks import Sensor

EXAMPLE = Path(__file__).parents[1] / "examples" / "inverted_pendulum.py"
NAMES = {name: f"bayespilco/{''.join(map(str.capitalize, name.split('-')))}-v0" for name in tasks.TASKS}


@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_environments(name: str) -> None:
    env = gym.make(NAMES[name], render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    task = tasks.TASKS[name]()
    first, truth = env.reset(seed=3)
    seen = task.true_sensors.C @ env.unwrapped.rows
    noise = np.asarray(task.true_sensors.at(as_float64(env.unwrapped.rows)).noise)
    action, u = np.full(len(task.actions), 0.5), np.asarray(task.action_middle + 0.5 * task.action_reach)
    _, reward, terminated, truncated, info = env.step(action)
    expected = jax.jit(task.plant)(truth["state"], u)
    assert np.allclose(info["state"], expected, atol=1e-12)
    rows = np.concatenate([env.unwrapped.rows, u])
    assert np.allclose(rows[: len(task.states)], expected)
    assert np.isclose(reward, 1 - float(task.cost(jax.numpy.asarray(rows)))) and not terminated and not truncated
    assert 0 < np.abs((first - seen) / np.sqrt(noise)).max() < 6
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.ndim == 3 and np.ptp(picture) > 100, "something should be drawn"
    assert env.spec.max_episode_steps == task.steps
    env.close()


class Dial(gym.Env):
    """A hand that turns by what it is told, seen by its cosine and sine; it ends after two turns."""

    def __init__(self, action_space: Any = None, observation_space: Any = None) -> None:
        self.action_space = action_space or spaces.Box(np.float32(-0.5), np.float32(1.5), (1,))
        self.observation_space = observation_space or spaces.Box(-2.0, 2.0, (3,), dtype=np.float64)
        self.dt = 0.1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.angle = 3.1 + 0.05 * self.np_random.normal()
        return self._look(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.angle += float(action[0])
        return self._look(), 0.0, self.angle > 4 * np.pi, False, {}

    def _look(self) -> np.ndarray:
        return np.array([np.cos(self.angle), 7.0, np.sin(self.angle)])


class Limited(Dial):
    """A dial with a specification, as registered ones have: a time limit is noted there."""

    spec = gym.envs.registration.EnvSpec("Dial-v0")


def dial_task(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "env": Dial(),
        "states": {"angle [rad]": (2, 0)},
        "goal": {"angle [rad]": (np.pi / 2, 0.3)},
        "sensor_std": [0.01],
        "steps": 30,
    }
    return environments.task(**(options | changes))


def test_an_environment_is_a_task() -> None:
    task = dial_task()
    assert (task.name, task.dt, task.steps, task.angles) == ("Dial", 0.1, 30, (0,))
    assert str(task.states[0]) == "angle [rad]" and str(task.actions[0]) == "action 0"
    assert np.allclose(task.action_limits, 1.0)
    # Where it starts is estimated: 3.1 rad, give or take 0.05, also where that is beyond half a turn.
    assert abs(float(task.initial.mean[0]) - 3.1) < 0.02 and abs(float(task.initial.cov[0, 0]) ** 0.5 - 0.05) < 0.01
    assert float(task.cost(jnp.array([np.pi / 2 + 2 * np.pi]))) < 1e-12
    near = 1 - np.exp(-(2 - 2 * np.cos(0.2)) / (2 * 0.3**2))
    assert np.isclose(float(task.cost(jnp.array([np.pi / 2 + 0.2]))), near)
    assert np.isclose(float(dial_task(goal=task.cost).cost(jnp.array([1.0]))), float(task.cost(jnp.array([1.0]))))


def test_episodes_of_an_environment() -> None:
    task = dial_task()
    key = jax.random.key(1)
    episode = execute(task, RandomActions(task.action_limits), key)
    x, u, z = (np.asarray(part) for part in (episode.states, episode.actions, episode.observations))
    seen = np.isfinite(z[:, 0])
    last = int(np.flatnonzero(seen)[-1])
    # An action of zero is the middle of the range, 0.5; and the angle goes on past a turn.
    assert np.allclose(np.diff(x[: last + 1, 0]), u[:last, 0] + 0.5, atol=1e-6)
    assert x[last, 0] > 4 * np.pi and last < 30, "it should have ended early"
    assert (np.asarray(episode.costs)[last + 1 :] == 1).all()
    errors = (z - x)[seen]
    assert 0.003 < errors.std() < 0.03
    again = execute_many(task, RandomActions(task.action_limits), key[None])
    assert np.array_equal(again.observations[0], z, equal_nan=True), "the same key, the same chance"


class Cart(gym.Env):
    """A cart on a rail, pushed; it says its position and its speed."""

    action_space = spaces.Box(-1.0, 1.0, (1,), dtype=np.float64)
    observation_space = spaces.Box(-9.0, 9.0, (2,), dtype=np.float64)
    dt = 0.1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.rows = 0.1 * self.np_random.normal(size=2)
        return self.rows, {}

    def step(self, action: Any) -> Any:
        self.rows = self.rows + 0.1 * np.array([self.rows[1], float(action[0])])
        return self.rows, 0.0, False, False, {}


def test_an_environment_has_the_sensors_and_delays_that_its_task_declares() -> None:
    """Whichever way they are declared: by the options, or later."""
    given: dict[str, Any] = {
        "states": {"position [m]": 0, "speed [m/s]": 1},
        "goal": {"position [m]": (0.0, 0.3)},
        "rates": {"position": "speed"},
        "steps": 200,
    }
    everything = environments.task(Cart(), **given, sensor_std=[0.01, 0.2])
    assert everything.plant is not everything.with_noise(2.0).plant, "each task has a plant of its own"
    declared = environments.task(
        Cart(), **given, sensor_std=[0.01], sensors=(Sensor("position", "m", "position", dropout=0.3),), action_delay=2
    )
    later = everything.varied(sensors=["position"], delay=2, dropout=0.3)
    for task in (
        declared,
        later,
        dataclasses.replace(everything, sensors=later.sensors, sensor_std=[0.01], action_delay=2),
    ):
        assert np.allclose(task.initial.cov, everything.initial.cov, atol=5e-4), "the hidden speed too"
        episode = execute(task, RandomActions(task.action_limits), jax.random.key(1))
        x, u, z = (np.asarray(part) for part in (episode.states, episode.actions, episode.observations))
        assert z.shape == (201, 1) and x.shape == (201, 2)
        assert 35 < np.isnan(z).sum() < 85
        assert 0.007 < np.nanstd(z[:, 0] - x[:, 0]) < 0.013
        assert np.allclose(np.diff(x[2:, 1]), 0.1 * u[:-2, 0]), "two steps late"
        assert np.allclose(np.diff(x[:3, 1]), 0.0)
    twice = execute(everything.with_noise(2.0), RandomActions(everything.action_limits), jax.random.key(1))
    errors = np.std(np.asarray(twice.observations) - np.asarray(twice.states), axis=0)
    assert np.allclose(errors, [0.02, 0.4], rtol=0.3)
    slow = (Sensor("position", "m", "position"), Sensor("late", "m", "position", delay=2, period=2))
    late = dataclasses.replace(everything, sensors=slow, sensor_std=[1e-6, 1e-6])
    z = np.asarray(execute(late, RandomActions(everything.action_limits), jax.random.key(1)).observations)
    assert np.isnan(z[1::2, 1]).all() and np.allclose(z[2::2, 1], z[:-2:2, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"env": Dial(spaces.Discrete(2))}, "must be continuous and bounded"),
        ({"env": Dial(spaces.Box(-np.inf, np.inf, (1,)))}, "must be continuous and bounded"),
        ({"env": Dial(spaces.Box(0, 3, (1,), dtype=np.int64))}, "must be continuous and bounded .*int64"),
        ({"env": Dial(None, spaces.Dict({"a": spaces.Box(-1, 1)}))}, r"must be numbers .*Try .*FlattenObservation"),
        *(
            (
                {"states": {"angle [rad]": entry}},
                rf"states must be indices .*, 0 to 2, .*given {given} for 'angle \[rad\]'",
            )
            for entry, given in {
                7: "7",
                -1: "-1",
                1.0: "1.0",
                (2, 3): r"\(2, 3\)",
                (2,): r"\(2,\)",
                (2, 0, 1): r"\(2, 0, 1\)",
            }.items()
        ),
        ({"states": {"angle [rad]": (0, 0)}}, "each of entries of its own"),
        ({"states": {"angle [rad]": (2, 0), "sine": 2}}, "each of entries of its own"),
        ({"states": {}}, "states must be one or more"),
        ({"angles": ["angel [rad]"]}, "angles must be among the states"),
        ({"goal": {"angel [rad]": (0.0, 1.0)}}, "goal must be of states, angle .*; given 'angel"),
        ({"goal": {}}, "goal must be of states, .*; given none"),
        *(
            ({"goal": {"angle [rad]": pair}}, rf"goal must say where 'angle \[rad\]' should be, .*given {given}")
            for pair, given in {
                0.0: "0.0",
                (0.0, 0.0): r"\(0.0, 0.0\)",
                (0.0, -1.0): r"\(0.0, -1.0\)",
                (np.nan, 1.0): r"\(nan, 1.0\)",
            }.items()
        ),
        ({"steps": None}, "does not say its steps"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": 2.5}, "steps must be at least 1, and an integer; given steps = 2.5"),
        (
            {"env": gym.wrappers.TimeLimit(Limited(), 10), "steps": 11},
            "at most 10, .*; given 11. Try .*max_episode_steps",
        ),
        ({"dt": 0.0}, "dt must be positive"),
        ({"sensor_std": [0.0]}, "sensor_std must be positive"),
        ({"sensor_std": [np.nan]}, "sensor_std must be positive"),
        ({"sensor_std": [0.1, 0.1]}, r"sensor_std must have one entry per state \(1\)"),
        ({"sensor_std": 0.1}, r"sensor_std must have one entry per state \(1\)"),
        ({"initial": Gaussian(np.zeros(2), np.eye(2))}, "initial must be a Gaussian over the 1 states"),
    ],
)
def test_what_makes_no_task_is_refused(changes: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As users are: without the checks of annotations that the tests have, and before the first reset."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(Dial, "reset", None)
    with pytest.raises(ValueError, match=sentence):
        dial_task(**changes)


def test_any_integer_is_an_index() -> None:
    task = dial_task(states={"angle [rad]": (np.int64(2), np.int32(0)), "seven": np.int64(1)}, sensor_std=[0.01, 0.01])
    assert task.angles == (0,) and np.allclose(task.initial.mean, [3.1, 7.0], atol=0.02)


def test_steps_are_as_many_as_the_environment_allows() -> None:
    env = gym.wrappers.TimeLimit(Limited(), 10)
    task = dial_task(env=env, steps=None)
    assert task.steps == 10 and dial_task(env=env, steps=5).steps == 5
    episode = execute(task, RandomActions(0.1 * task.action_limits), jax.random.key(0))
    assert np.isfinite(np.asarray(episode.observations)).all(), "every step should have been made"


def test_only_a_simulation_is_an_environment() -> None:
    with pytest.raises(ValueError, match="Only a simulation"):
        environments.TaskEnvironment(dial_task())


def test_a_misspelt_task_is_not_an_environment() -> None:
    with pytest.raises(ValueError, match=r"Unknown task 'sprng'; .*Did you mean 'spring'"):
        environments.TaskEnvironment("sprng")


@pytest.mark.parametrize("action", [[np.nan], [np.inf], [0.1, 0.2], 0.1])
def test_an_action_that_is_none_is_refused(action: Any) -> None:
    env = environments.TaskEnvironment("spring")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"a number from -1 to 1 for each of force \[N\]; given"):
        env.step(np.array(action))


IN_A_PROCESS = """
import runpy, sys
runpy.run_path(sys.argv[1])
import bayespilco.environments
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
"""


def test_imports_do_not_start_jax() -> None:
    """Else `startup.single_thread` would come too late."""
    command = [sys.executable, "-c", IN_A_PROCESS, str(EXAMPLE)]
    environment = os.environ | {"PYTHONPATH": str(EXAMPLE.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_mujoco() -> None:
    """The task of the example: the environment's own state, limits and sampling period."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    task = example.make()
    assert task.dt == 0.04 and np.allclose(task.action_limits, 3.0)
    assert np.abs(np.asarray(task.initial.mean)).max() < 0.002
    episode = execute(task, RandomActions(task.action_limits), jax.random.key(0))
    seen = np.isfinite(np.asarray(episode.observations)).all(axis=1)
    assert 3 < seen.sum() < 40, "random actions do not balance"
