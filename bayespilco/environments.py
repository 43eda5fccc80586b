"""Gymnasium in both directions: any of its environments as a task, and the tasks here as environments.

    task = environments.task(
        "InvertedPendulum-v5",
        states={"cart position [m]": 0, "pole angle [rad]": 1, "cart velocity [m/s]": 2, "pole velocity [rad/s]": 3},
        angles=["pole angle [rad]"],
        goal={"pole angle [rad]": (0.0, 0.1)},
        sensor_std=[0.01, 0.01, 0.1, 0.1],
        steps=50,
    )
    run = bayespilco.learn(task)

To import this module registers `bayespilco/CartPole-v0` and the other tasks with Gymnasium.
"""

import copy
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

try:
    import gymnasium as gym
    from gymnasium import spaces
except ImportError as error:
    raise ImportError("Environments need the extra `gym`: pip install 'bayespilco[gym]'.") from error

from bayespilco.control.cost import SaturatingCost
from bayespilco.core.checks import lookup
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import as_float64, float64
from bayespilco.deploy.rig import Rig, Stop
from bayespilco.tasks import TASKS, Component, Task
from bayespilco.tasks.task import RealPlant

RESETS = 200
"""How often an environment is reset to see where it starts."""

FAR = 1e6
"""Gymnasium wants observations to have bounds; this is beyond any."""

Entry = SupportsIndex | tuple[SupportsIndex, SupportsIndex]
"""The observation's entry that is a state; or the two that are an angle's sine and cosine."""

Indices = tuple[int, ...]
"""The same, checked: one index or two."""


class Surroundings:
    """What a task declares around a plant that somebody else moves: late actions, and sensors with all their faults.

    It keeps all rows of the state: the plant's own, past actions, and what late sensors will report.
    """

    def __init__(self, task: Task) -> None:
        self.own, self.embedding = len(task.states), task.embedding
        self._structure, self._sensors = task.structure(), task.true_sensors

    def begin(self, rows: np.ndarray) -> None:
        self.rows, self.time, self._in_burst = rows, 0, False

    @property
    def state(self) -> np.ndarray:
        """The plant's own states."""
        return self.rows[: self.own]

    def felt(self, u: np.ndarray) -> np.ndarray:
        """The action that the plant feels when it is given this one."""
        felt: np.ndarray = np.concatenate([self.rows, u])[list(self._structure.acting)]
        return felt

    def follow(self, u: np.ndarray, state: np.ndarray) -> None:
        """A step later, with the plant in this state."""
        drift = np.asarray(self._structure.drift_at(self.time))
        following = self._structure.L @ self.rows + self._structure.M @ u + drift
        following[: self.own] = state
        self.rows, self.time = following, self.time + 1

    @float64
    def observe(self, random: np.random.Generator) -> np.ndarray:
        """What the sensors say; NaN where a sample is lost or not due."""
        sensors = self._sensors
        rows = as_float64(self.rows)
        noise = np.sqrt(np.asarray(sensors.at(rows).noise)) * random.normal(size=sensors.count)
        z = np.asarray(sensors(rows)) + noise
        lost = np.zeros(sensors.count, dtype=bool)
        if any(sensors.dropout):
            lost = random.uniform(size=sensors.count) < np.array(sensors.dropout)
        if sensors.bursts is not None:
            follows = bool(sensors.bursts.following(self._in_burst, random.uniform()))
            self._in_burst = follows and self.time > 0
            lost = lost | self._in_burst
        return np.where(np.asarray(sensors.scheduled(self.time)) & ~lost, z, np.nan)


class EnvironmentPlant:
    """An environment as a plant, its observations as states, with the sensors and the delays that a task declares."""

    around: Surroundings

    def __init__(self, env: gym.Env, entries: Sequence[Indices]) -> None:
        space = env.action_space
        if not isinstance(space, spaces.Box) or not space.is_bounded() or not np.issubdtype(space.dtype, np.floating):
            raise ValueError(f"The actions must be continuous and bounded (a Box of floats); these are {space}.")
        self.env, self.entries = env, entries
        low, high = (np.ravel(side).astype(np.float64) for side in (space.low, space.high))
        self.middle, self.limits = (low + high) / 2, (high - low) / 2
        self.start = np.zeros(len(entries))
        """Near which an episode's first angles are: of those that differ by turns, the nearest is taken."""
        self.next_seed: int | None = None
        self.random = np.random.default_rng()

    def as_declared(self, task: Task) -> "EnvironmentPlant":
        """The same environment with this task's sensors and delays."""
        other = copy.copy(self)
        other.around = Surroundings(task)
        return other

    def seed(self, number: int) -> None:
        self.next_seed = number
        self.random = np.random.default_rng(number)

    def first_state(self) -> np.ndarray:
        """Where the environment is after a reset."""
        observation, _ = self.env.reset(seed=self.next_seed)
        self.next_seed, self.over = None, ""
        return self._state(observation, self.start)

    def reset(self) -> np.ndarray:
        self.true_state = self.first_state()
        self.around.begin(self.around.embedding @ self.true_state)
        return self.around.observe(self.random)

    def step(self, action: np.ndarray) -> np.ndarray:
        if self.over:
            raise Stop("limit", self.over)
        space = self.env.action_space
        applied = np.reshape(self.around.felt(action) + self.middle, space.shape or ()).astype(space.dtype)
        observation, _, terminated, truncated, _ = self.env.step(applied)
        self.over = "the environment terminated" if terminated else "its time was over" if truncated else ""
        self.true_state = self._state(observation, self.true_state)
        self.around.follow(action, self.true_state)
        return self.around.observe(self.random)

    def stop(self) -> None:
        """Nothing moves in an environment that is not stepped."""

    def _state(self, observation: Any, before: np.ndarray) -> np.ndarray:
        values, state = np.ravel(observation).astype(np.float64), np.empty(len(self.entries))
        for i, entry in enumerate(self.entries):
            if len(entry) == 1:
                state[i] = values[entry[0]]
            else:  # an angle goes on where it was, and does not jump by a turn
                angle = np.arctan2(values[entry[0]], values[entry[1]])
                state[i] = angle + 2 * np.pi * np.round((before[i] - angle) / (2 * np.pi))
        return state


@float64
def task(
    env: gym.Env | str,
    states: Mapping[str, Entry],
    goal: Mapping[str, tuple[float, float]] | SaturatingCost,
    sensor_std: Sequence[float],
    *,
    angles: Sequence[str] = (),
    steps: int | None = None,
    dt: float | None = None,
    initial: Gaussian | None = None,
    actions: Sequence[str] = (),
    name: str | None = None,
    **options: Any,
) -> Task:
    """Any Gymnasium environment with continuous actions, as a task.

    Args:
        env: The environment, or its name.
        states: By name and unit, such as `"pole angle [rad]"`, the observation's entry: its index, or for an angle that
            is observed by its sine and cosine, the indices of these. Together they must be a state: what happens next
            depends on nothing else.
        goal: By state, where it should be and how near is near; or a cost of your own. What is not in it does not
            matter.
        sensor_std: The noise to add to each sensor; without `sensors` among the options, each state has one. (Models
            that are learned here need a little.)
        angles: Which of the states are angles in radians; those given by sine and cosine are anyway.
        steps: Actions per episode; at most, and by default, as many as the environment allows.
        dt: Sampling period in seconds, if the environment does not say.
        initial: The distribution of first states; by default estimated from many resets.
        actions: Names and units.
        options: Whatever else a `Task` takes, such as `policy_spread`. Sensors, delays and dropouts that are declared
            here or later (`task.with_sensors`, say) are simulated around the environment.
    """
    env = gym.make(env) if isinstance(env, str) else env
    names, entries = list(states), _indices(env, states)
    plant = EnvironmentPlant(env, list(entries.values()))
    if unknown := [each for each in angles if each not in names]:
        raise ValueError(f"angles must be among the states, {', '.join(names)}; given {unknown[0]!r}.")
    turning = tuple(i for i, (n, entry) in enumerate(entries.items()) if n in angles or len(entry) == 2)
    most = env.spec.max_episode_steps if env.spec is not None else None
    steps = most if steps is None else steps
    dt = getattr(env.unwrapped, "dt", None) if dt is None else dt
    if steps is None or dt is None:
        raise ValueError(f"The environment does not say its {'steps' if steps is None else 'dt'}: give it.")
    if most is not None and steps > most:
        raise ValueError(
            f"steps must be at most {most}, where the environment ends; given {steps}. "
            f"Try gymnasium.make(..., max_episode_steps={steps})."
        )
    made = Task(
        name=name or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__),
        states=tuple(map(_component, names)),
        actions=tuple(map(_component, actions or [f"action {i}" for i in range(len(plant.limits))])),
        angles=turning,
        dt=float(dt),
        steps=steps,
        plant=Rig(plant, realtime=False),
        action_limits=as_float64(plant.limits),
        initial=initial or Gaussian(as_float64(np.zeros(len(names))), as_float64(np.eye(len(names)))),
        sensor_std=as_float64(sensor_std),
        cost=goal if isinstance(goal, SaturatingCost) else _near(names, turning, goal),
        **options,
    )
    # Only now that all is checked: what is wrong would make the resets fail, without a sentence.
    if initial is None:
        # If it starts at the same place always, the sensors' noise will do for what a filter does not know.
        floor = 0.01 * np.asarray(made.true_sensors.noise_of_states(jnp.zeros(made.row_count)))[: len(names)]
        initial = _where_it_starts(plant, floor)
    plant.start = np.asarray(initial.mean)
    started: Task = eqx.tree_at(lambda task: task.initial, made, initial)
    return dataclasses.replace(started, plant=Rig(plant.as_declared(started), realtime=False))


def _indices(env: gym.Env, states: Mapping[str, Entry]) -> dict[str, Indices]:
    """Each state's place in the observation."""
    space = env.observation_space
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"The observations must be numbers (a Box); these are {space}. "
            "Try gymnasium.wrappers.FlattenObservation(env)."
        )
    size = int(np.prod(space.shape))
    found: dict[str, Indices] = {}
    for name, entry in states.items():
        try:
            indices = tuple(map(operator.index, entry if isinstance(entry, tuple) else (entry,)))
        except TypeError:
            indices = ()
        expected = 2 if isinstance(entry, tuple) else 1
        if len(indices) != expected or not all(0 <= index < size for index in indices):
            raise ValueError(
                f"states must be indices of the observation's entries, 0 to {size - 1}, or for an angle the two of its "
                f"sine and cosine; given {entry!r} for {name!r}."
            )
        found[name] = indices
    taken = [index for indices in found.values() for index in indices]
    if not taken or len(set(taken)) < len(taken):
        raise ValueError(f"states must be one or more, each of entries of its own; given {dict(states)}.")
    return found


def _component(name: str) -> Component:
    name, _, unit = name.partition(" [")
    return Component(name, unit.removesuffix("]"))


def _where_it_starts(plant: EnvironmentPlant, least: np.ndarray) -> Gaussian:
    """Mean and covariance of the first states, of which the very first says near which turn the angles are."""
    first: list[np.ndarray] = []
    for number in range(RESETS):
        plant.seed(number)
        first.append(plant.first_state())
        plant.start = first[0]
    floor = np.diag(least)
    cov = np.cov(first, rowvar=False).reshape(floor.shape) + floor
    return Gaussian(as_float64(np.mean(first, axis=0)), as_float64(cov))


def _near(names: list[str], angles: tuple[int, ...], goal: Mapping[str, tuple[float, float]]) -> SaturatingCost:
    """`1 - exp(-1/2 sum ((x - target) / width)^2)`; the distance of an angle is that of its sine and cosine."""
    unknown = [each for each in goal if each not in names]
    if unknown or not goal:
        raise ValueError(f"goal must be of states, {', '.join(names)}; given {repr(unknown[0]) if goal else 'none'}.")
    for name, pair in goal.items():
        if np.shape(pair) != (2,) or not np.isfinite(pair).all() or not pair[1] > 0:
            raise ValueError(
                f"goal must say where {name!r} should be, and with a positive number how near is near, such as "
                f"(0.0, 0.5); given {pair}."
            )
    wanted = {names.index(name): value for name, value in goal.items()}
    turning = tuple(i for i in wanted if i in angles)
    straight = tuple(i for i in wanted if i not in angles)
    target = [wanted[i][0] for i in straight]
    for i in turning:
        target += [np.sin(wanted[i][0]), np.cos(wanted[i][0])]
    widths = [wanted[i][1] for i in straight] + [wanted[i][1] for i in turning for _ in range(2)]
    weight = np.diag(np.array(widths, dtype=float) ** -2)
    return SaturatingCost(AngleFeatures(turning, straight), as_float64(target), as_float64(weight))


class TaskEnvironment(gym.Env):
    """A simulated task as an environment, after Gymnasium's habits.

    Actions are in units of their limits, observations are noisy, and the reward is 1 less the cost of the latent state,
    which is in the info.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, task: Task | str, render_mode: str | None = None) -> None:
        self.task = lookup(TASKS, task, "task")() if isinstance(task, str) else task
        if isinstance(self.task.plant, RealPlant) or self.task.sensor_std is None:
            raise ValueError(f"Only a simulation can be an environment; the task {self.task.name!r} has a plant.")
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": max(1, round(1 / self.task.dt))}
        self.action_space = spaces.Box(-1.0, 1.0, (len(self.task.actions),), dtype=np.float64)
        self.observation_space = spaces.Box(-FAR, FAR, (len(self.task.sensed),), dtype=np.float64)
        self._around = Surroundings(self.task)
        self._plant, self._cost = float64(jax.jit(self.task.plant)), float64(eqx.filter_jit(self.task.cost))

    @float64
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        mean, cov = np.asarray(self.task.initial.mean), np.asarray(self.task.initial.cov)
        rows = self.task.embedding @ self.np_random.multivariate_normal(mean, cov)
        for row, reference in zip(self.task.reference_rows, self.task.references, strict=True):
            rows[row] = reference.path[0] + reference.std * self.np_random.normal()
        self._around.begin(rows)
        return self._around.observe(self.np_random), self._truth(self.task.rest)

    @property
    def rows(self) -> np.ndarray:
        """All rows of the state."""
        return self._around.rows

    @property
    def state(self) -> np.ndarray:
        """The plant's own states."""
        return self._around.state

    @float64
    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        action = np.asarray(action, dtype=np.float64)
        if action.shape != self.action_space.shape or not np.isfinite(action).all():
            names = ", ".join(map(str, self.task.actions))
            raise ValueError(f"An action must be a number from -1 to 1 for each of {names}; given {action}.")
        u = np.asarray(self.task.action_middle + self.task.action_reach * np.clip(action, -1.0, 1.0))
        self._around.follow(u, np.asarray(self._plant(self.state, self._around.felt(u))))
        truth = self._truth(u)
        return self._around.observe(self.np_random), 1.0 - truth["cost"], False, False, truth

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        from bayespilco.report.poses import picture

        return picture(self.task, self.state, around=np.stack([self.state, np.asarray(self.task.initial.mean)]))

    def _truth(self, action: Any) -> dict[str, Any]:
        cost = self._cost(as_float64(np.concatenate([self.rows, np.asarray(action)])))
        return {"state": self.state.copy(), "cost": float(cost)}


def _register() -> None:
    for name, make in TASKS.items():
        title = "".join(word.capitalize() for word in name.split("-"))
        if f"bayespilco/{title}-v0" not in gym.registry:
            gym.register(
                f"bayespilco/{title}-v0",
                entry_point="bayespilco.environments:TaskEnvironment",
                # Only traced, the task has no arrays: they would start XLA, with several threads (see `startup`).
                max_episode_steps=eqx.filter_eval_shape(make).steps,
                kwargs={"task": name},
            )


_register()
