"""What a task is: the plant as the learner meets it, and what is wanted of it.

    Task(name="tank", states=..., actions=..., dt=..., steps=..., plant=..., initial=..., sensor_std=..., cost=...)

A task declares once what the rest of the library respects everywhere: which states have sensors, which state is the
rate of which, how late actions and samples are, which targets are to be followed. From these it builds the rows of the
state (`state_rows`), their known dynamics (`structure`) and the sensors (`sensors_with`).
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.control.cost import Cost, reindexed
from bayespilco.control.policy import POLICIES, LinearPolicy, RBFPolicy
from bayespilco.core.checks import unknown_name
from bayespilco.core.compilation import compiled
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import as_float64, float64, is_concrete, optional_float64
from bayespilco.model.episode import Episode
from bayespilco.model.sensors import Sensors, unobservable
from bayespilco.model.structure import Structure, as_rows, free, second_order
from bayespilco.tasks.components import Bursts as Bursts
from bayespilco.tasks.components import Component as Component
from bayespilco.tasks.components import Limit, Reference, Sensor, as_limits, by_name
from bayespilco.tasks.components import Pose as Pose
from bayespilco.tasks.components import Start as Start
from bayespilco.tasks.simulation import Simulation as Simulation
from bayespilco.tasks.simulation import hold as hold

LOG_COLUMNS = ("episode", "time")
"""What stands beside sensors and actions in a log: no component may have these names."""
Kind = Literal["free", "second-order"]
"""How the dynamics are modelled: every state learned, or positions known from their rates (`model.structure`)."""


@runtime_checkable
class RealPlant(Protocol):
    """A plant that is there, such as a `Rig`: it runs an episode by itself."""

    def execute(self, task: "Task", executor: Any, seed: int) -> Episode: ...


@dataclasses.dataclass(frozen=True)
class MissingPlant:
    """Stands in for the plant of a task that was read from a file, or sent to another process.

    Whoever wants to run it is told where it is.
    """

    def execute(self, task: "Task", executor: Any, seed: int) -> Episode:
        raise ValueError(f"The plant of the task {task.name!r} cannot be run: {NO_PLANT}")


NO_PLANT = (
    "this run has no plant equation: give --task file.py:task (in Python, task=). A run keeps everything of a task but "
    "its code."
)


def _pairs(given: Mapping[str, str] | Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(a), str(b)) for a, b in (given.items() if isinstance(given, Mapping) else given))


class Task(eqx.Module):
    """A plant and what is wanted of it. Everything is in the units of its components.

    Which plant this is, the learner does not know: of `plant` and `sensor_std` it sees only what episodes show.

    Attributes:
        name: What it is called.
        states: The plant's states, with names and units.
        actions: Its actions.
        angles: Indices of states that are angles in radians: models, policies and costs see their sine and cosine.
        dt: Sampling period in seconds; actions are held in between.
        steps: Actions per episode.
        plant: The next state from a state and an action (`hold` makes one of an equation of motion); or a plant that
            is there, such as a `Rig`.
        action_limits: The largest actions, one number per action: actions lie between minus and plus this. Or a pair
            per action, lowest and highest: `[(0, 10)]`.
        initial: The distribution of first states, and so the belief before the first observation.
        sensor_std: What a simulation adds to its observations, per sensor. None if the plant has sensors of its own.
        cost: What is to be avoided.
        policy_kind: "rbf" or "linear".
        centroids: Of an RBF policy.
        policy_spread: How far a first policy's centroids reach around the initial state, per policy feature; None to
            choose it from the data.
        policy_length_scales: Of a first RBF policy, per policy feature; None to choose them from the data.
        logged: Episodes recorded before: what learning starts from, in place of an episode with random actions.
        pose: What the plant looks like in a state, if it can be drawn.
        rates: Which state is the rate of which: `{"cart position": "cart velocity"}`.
        sensors: What is measured; by default every state by a sensor of its own.
        action_delay: How many steps late the plant feels an action.
        references: Targets to follow: rows of the state behind the plant's own, which the policy sees.
        remember_action: Whether the last action is a row of the state, for costs of action changes.
        discount: How much less each later step counts, by this factor: above 0, at most 1.
        limits: What states must not exceed, lowest and highest by name: `{"cart position": (-0.5, 0.5)}`. None or an
            infinite number where there is no limit. (Actions have `action_limits`.)
        auto_structure: What the structure `auto` means where everything is measured: "free" for a plant that moves too
            much within a step for its positions to follow from their rates. None: second-order if there are `rates`.
        recover_from: Where else a run may begin, each `Start` with its weight: after a push, say. With the setting
            `recover` the last policy of a run is refined for these starts too, so that it recovers from them.
        mirror: States and actions that change sign in a mirror, by name, if the plant behaves like its mirror image: a
            pole falls to the left as it falls to the right. Then every transition teaches two.
        bursts: How the samples of all sensors are lost together for a while, now and then; None: they are not.
            (Samples that are lost one by one are the `dropout` of a `Sensor`.)
    """

    name: str = eqx.field(static=True)
    states: tuple[Component, ...] = eqx.field(static=True)
    actions: tuple[Component, ...] = eqx.field(static=True)
    angles: tuple[int, ...] = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    plant: Simulation | RealPlant = eqx.field(static=True)
    action_limits: Float[Array, " action"] | Float[Array, "action 2"] = eqx.field(converter=as_float64)
    initial: Gaussian
    sensor_std: Float[Array, " sensor"] | None = eqx.field(converter=optional_float64)
    cost: Cost
    policy_kind: str = eqx.field(static=True, default="rbf")
    centroids: int = eqx.field(static=True, default=100)
    policy_spread: Float[Array, "..."] | None = eqx.field(converter=optional_float64, default=None)
    policy_length_scales: Float[Array, "..."] | None = eqx.field(converter=optional_float64, default=None)
    logged: tuple[Episode, ...] = ()
    pose: Callable[[np.ndarray], Pose] | None = eqx.field(static=True, default=None)
    rates: tuple[tuple[str, str], ...] = eqx.field(static=True, default=(), converter=_pairs)
    sensors: tuple[Sensor, ...] = eqx.field(static=True, default=())
    action_delay: int = eqx.field(static=True, default=0)
    references: tuple[Reference, ...] = eqx.field(static=True, default=())
    remember_action: bool = eqx.field(static=True, default=False)
    discount: float = eqx.field(static=True, default=1.0)
    limits: tuple[Limit, ...] = eqx.field(static=True, default=(), converter=as_limits)
    auto_structure: Kind | None = eqx.field(static=True, default=None)
    recover_from: tuple[Start, ...] = eqx.field(static=True, default=(), converter=tuple)
    mirror: tuple[str, ...] = eqx.field(static=True, default=(), converter=tuple)
    bursts: Bursts | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        made_of: dict[str, tuple[Sequence[Any], type]] = {
            "states": (self.states, Component),
            "actions": (self.actions, Component),
            "initial": ((self.initial,), Gaussian),
            "cost": ((self.cost,), Cost),
            "sensors": (self.sensors, Sensor),
            "references": (self.references, Reference),
            "limits": (self.limits, Limit),
            "recover_from": (self.recover_from, Start),
            "bursts": (() if self.bursts is None else (self.bursts,), Bursts),
        }
        for name, (parts, kind) in made_of.items():
            if other := [part for part in parts if not isinstance(part, kind)]:
                raise ValueError(f"Task {self.name!r}: {name} must be of type {kind.__name__}; given {other[0]!r}.")
        if _different(self.names + LOG_COLUMNS):
            self._check_names()
        n, m = len(self.states), len(self.actions)
        noise, limits, measured = self.sensor_std, self.action_limits, len(self.sensed)
        per = "state" if not self.sensors else "sensor"
        held = getattr(self.plant, "dt", self.dt)
        checks = {
            "names must differ, also from a log's columns, episode and time": _different(self.names + LOG_COLUMNS),
            f"initial must be a Gaussian over the {n} states": self.initial.size == n,
            "sensor_std is needed for a simulation": noise is not None or isinstance(self.plant, RealPlant),
            f"sensor_std must have one entry per {per} ({measured})": noise is None or noise.shape == (measured,),
            "sensor_std must be positive and finite (perfect sensors: say 1e-4 of the range)": noise is None
            or _positive(noise),
            f"action_limits must have one entry per action ({m}), or a pair (lowest, highest) per action": limits.shape
            in ((m,), (m, 2)),
            "action_limits must be positive and finite": limits.ndim == 2 or _positive(limits),
            "action_limits must be finite pairs, lowest below highest": limits.ndim == 1
            or not is_concrete(limits)
            or bool((np.isfinite(limits).all() & (limits[:, 0] < limits[:, 1])).all()),
            "steps must be at least 1, and an integer": _counts(self.steps),
            "dt must be positive and finite": 0 < self.dt < np.inf,
            f"dt must be as long as the plant holds an action, {held} s": bool(np.isclose(held, self.dt)),
            f"angles must be different indices of states, 0 to {n - 1}": _different(self.angles)
            and _indices(self.angles, n),
            f"action_delay must be a whole number from 0 to the episode's {self.steps} steps": isinstance(
                self.action_delay, Integral
            )
            and 0 <= self.action_delay < self.steps,
            f"sensors must not be delayed by as many steps as the episode has ({self.steps})": all(
                sensor.delay < self.steps for sensor in self.sensors
            ),
            f"cost.features must be of states, 0 to {n - 1}": _indices(self.cost.indices, self.row_count + m),
            f"policy_kind must be one of {', '.join(POLICIES)}": self.policy_kind in POLICIES,
            "centroids must be at least 1, and an integer": _counts(self.centroids),
            "discount must be above 0 and at most 1": 0 < self.discount <= 1,
            f"bursts must be at least a step apart, and last at least a step ({self.dt:g} s)": self.bursts is None
            or min(self.bursts.apart, self.bursts.lasting) >= self.dt * (1 - 1e-9),
            "auto_structure must be second-order, free or None": self.auto_structure in ("second-order", "free", None),
            f"recover_from must be starts of {n} states": all(len(start.mean) == n for start in self.recover_from),
            "recover_from must leave some weight to the initial state": sum(s.weight for s in self.recover_from) < 1,
            f"logged must be episodes of {measured} {per}s and {m} actions": all(
                (e.observations.shape[1], e.actions.shape[1]) == (measured, m) for e in self.logged
            ),
        }
        features = self.policy_features.size
        for name in ("policy_spread", "policy_length_scales"):
            value = getattr(self, name)
            checks[f"{name} must be positive, and one or one per policy feature ({features})"] = value is None or (
                _positive(value) and value.shape in ((), (1,), (features,), (features - self._extra_features,))
            )
        for sentence, holds in checks.items():
            if not holds:
                name = sentence.split()[0]
                found = " ".join(str(self.cost).split()) if name == "cost.features" else operator.attrgetter(name)(self)
                raise ValueError(f"Task {self.name!r}: {sentence}; given {name} = {found}.")

    def _check_names(self) -> None:
        """What is declared by a state's name must be the name of a state."""
        names = [state.name for state in self.states]
        for sensor in self.sensors:
            for name, _ in sensor.of:
                if name not in names:
                    raise unknown_name(name, names, f"state measured by the sensor {sensor.name!r} of {self.name!r}:")
            for name, _, _ in sensor.best_at:
                if name not in names:
                    raise unknown_name(name, names, f"state in best_at of the sensor {sensor.name!r} of {self.name!r}:")
        for pair in self.rates:
            for name in pair:
                if name not in names:
                    raise unknown_name(name, names, f"state in the rates of {self.name!r}:")
        for pair in self.rates:
            if self.mirror and len({name in self.mirror for name in pair}) > 1:
                raise ValueError(
                    f"Task {self.name!r}: in a mirror a state and its rate change sign together, or neither does; of "
                    f"{' and '.join(map(repr, pair))} only one is in mirror={self.mirror}."
                )
        for limit in self.limits:
            if limit.name not in names:
                raise unknown_name(limit.name, names, f"state in the limits of {self.name!r}:")
        for name in self.mirror:
            if name not in (known := [*names, *(action.name for action in self.actions)]):
                raise unknown_name(name, known, f"state or action in the mirror of {self.name!r}:")
        if not _different(tuple(limit.name for limit in self.limits)):
            raise ValueError(f"Task {self.name!r}: limits must name each state once; given {self.limits}.")
        of, rate = ([pair[side] for pair in self.rates] for side in (0, 1))
        if not _different((*of, *rate)):
            raise ValueError(
                f"Task {self.name!r}: rates must pair different states, each position with one rate; given "
                f"{self.rates}."
            )

    @property
    def sensed(self) -> tuple[Sensor, ...]:
        """All sensors: those declared, or one per state."""
        return self.sensors or tuple(map(Sensor.measuring, self.states))

    @property
    def sensor_names(self) -> tuple[str, ...]:
        """Names with units: a log's columns."""
        return tuple(map(str, self.sensed))

    @property
    def action_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.actions))

    @property
    def names(self) -> tuple[str, ...]:
        """What sensors, actions and references are called, without units."""
        components = (*self.sensed, *self.actions, *self.references)
        return tuple(str(component).partition(" [")[0] for component in components)

    @property
    def hidden(self) -> tuple[Component, ...]:
        """States that one observation alone does not tell."""
        measured = np.zeros((len(self.sensed), len(self.states)))
        places = by_name(self.states)
        for row, sensor in enumerate(self.sensed):
            for name, weight in sensor.of if sensor.delay == 0 else ():
                measured[row, places[name]] += weight
        _, values, vectors = np.linalg.svd(measured)
        unseen = vectors[int((values > 1e-12).sum()) :]
        return tuple(s for i, s in enumerate(self.states) if len(unseen) and np.abs(unseen[:, i]).max() > 1e-9)

    # The actuators.

    @property
    def action_low(self) -> Float[Array, " action"]:
        return -self.action_limits if self.action_limits.ndim == 1 else self.action_limits[:, 0]

    @property
    def action_high(self) -> Float[Array, " action"]:
        return self.action_limits if self.action_limits.ndim == 1 else self.action_limits[:, 1]

    @property
    def action_middle(self) -> Float[Array, " action"]:
        return (self.action_low + self.action_high) / 2

    @property
    def action_reach(self) -> Float[Array, " action"]:
        """From the middle to the limits."""
        return (self.action_high - self.action_low) / 2

    @property
    def rest(self) -> Float[Array, " action"]:
        """The action of an actuator that is switched off: zero, or what is nearest to it."""
        return jnp.clip(0.0, self.action_low, self.action_high)

    # The rows of the state: the plant's own, past actions, what slow sensors will report, references.

    def structure(self, kind: Kind = "free", symmetry: bool = False) -> Structure:
        """What is known of the dynamics: see `model.structure`. With `symmetry`, also the mirror, if there is one."""
        n, m = len(self.states), len(self.actions)
        if kind == "second-order":
            if not self.rates:
                raise ValueError(
                    f"Task {self.name!r} does not say which state is the rate of which, so its structure cannot be "
                    'second-order. Give rates={"position": "velocity"}, or use the structure "free".'
                )
            places = by_name(self.states)
            made = second_order(n, m, [(places[p], places[v]) for p, v in self.rates], float(self.dt))
        else:
            made = free(n, m)
        if symmetry and self.mirror:
            made = made.with_mirror([-1 if part.name in self.mirror else 1 for part in (*self.states, *self.actions)])
        made = made.with_action_delay(self.action_delay)
        if self.remember_action and not self.action_delay:
            made = made.with_last_action()
        for sensor, row in zip(self.sensed, self._sensor_rows(), strict=True):
            if sensor.delay:
                made = made.with_sensor_delay(row[None], sensor.delay)
        return made.with_references(len(self.references), self._drift()) if self.references else made

    @property
    def row_count(self) -> int:
        """All rows of the state, the plant's own and those behind them."""
        kept = self.action_delay or int(self.remember_action)
        delays = sum(sensor.delay for sensor in self.sensors)
        return len(self.states) + kept * len(self.actions) + delays + len(self.references)

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names with units of all rows of the state."""
        kept = self.action_delay or int(self.remember_action)
        actions = [f"{a.name} {k} steps ago [{a.unit}]" for k in range(1, kept + 1) for a in self.actions]
        late = [f"{s.name} {k} steps ago [{s.unit}]" for s in self.sensed for k in range(1, s.delay + 1)]
        return (*map(str, self.states), *actions, *late, *map(str, self.references))

    @property
    def last_action_rows(self) -> tuple[int, ...]:
        """Where in the state the last action is, if it is there (`remember_action`, or a delay)."""
        n = len(self.states)
        return tuple(range(n, n + len(self.actions))) if self.action_delay or self.remember_action else ()

    @property
    def reference_rows(self) -> tuple[int, ...]:
        return tuple(range(self.row_count - len(self.references), self.row_count))

    def _sensor_rows(self) -> np.ndarray:
        """What each sensor measures of the plant's own states."""
        places, rows = by_name(self.states), np.zeros((len(self.sensed), len(self.states)))
        for row, sensor in zip(rows, self.sensed, strict=True):
            for name, weight in sensor.of:
                row[places[name]] += weight
        return rows

    def _drift(self) -> np.ndarray | None:
        """How references move from step to step."""
        paths = np.array([np.pad(r.path, (0, max(self.steps + 1 - len(r.path), 0)), "edge") for r in self.references])
        moves = np.diff(paths[:, : self.steps + 1], axis=1).T
        return moves if moves.any() else None

    @float64
    def sensors_with(self, noise: Any) -> Sensors:
        """The sensors over all rows of the state, with these noise variances."""
        n, place = len(self.states), len(self.states) + len(self.last_action_rows) * max(self.action_delay, 1)
        C = np.zeros((len(self.sensed), self.row_count))
        for number, (sensor, row) in enumerate(zip(self.sensed, self._sensor_rows(), strict=True)):
            if sensor.delay:
                place += sensor.delay
                C[number, place - 1] = 1.0
            else:
                C[number, :n] = row
        return Sensors(
            noise,
            as_rows(C),
            tuple(sensor.offset for sensor in self.sensed),
            tuple(sensor.dropout for sensor in self.sensed),
            tuple(sensor.period for sensor in self.sensed),
            bursts=None if self.bursts is None else self.bursts.chain(float(self.dt)),
            **self._noise_growth(),
        )

    def _noise_growth(self) -> dict[str, Any]:
        """How the noise depends on the state, if it does: `growth` and `best_at` of `Sensors`."""
        growth = np.zeros((len(self.sensed), self.row_count))
        best_at, places = np.zeros_like(growth), by_name(self.states)
        for number, sensor in enumerate(self.sensed):
            for name, place, distance in sensor.best_at:
                growth[number, places[name]], best_at[number, places[name]] = distance**-2.0, place
        return {"growth": growth, "best_at": as_rows(best_at)} if growth.any() else {}

    @property
    def true_sensors(self) -> Sensors:
        """The sensors with the noise that a simulation adds."""
        if self.sensor_std is None:
            raise ValueError(f"Task {self.name!r} has a real plant, whose sensor noise is not known.")
        return self.sensors_with(self.sensor_std**2)

    @property
    def embedding(self) -> np.ndarray:
        """From the plant's first state to all rows: past actions are zero, slow sensors have seen the first state."""
        n = len(self.states)
        rows = [np.eye(n), np.zeros((len(self.last_action_rows) * max(self.action_delay, 1), n))]
        for sensor, row in zip(self.sensed, self._sensor_rows(), strict=True):
            rows.append(np.tile(row, (sensor.delay, 1)))
        return np.concatenate([*rows, np.zeros((len(self.references), n))])

    @property
    @float64
    def start(self) -> Gaussian:
        """The distribution of all rows at the first step."""
        if self.row_count == len(self.states):
            return self.initial
        E, places = jnp.asarray(self.embedding), np.array(self.reference_rows, dtype=int)
        levels = np.array([reference.path[0] for reference in self.references])
        spread = np.array([reference.std for reference in self.references])
        mean = (E @ self.initial.mean).at[places].set(levels)
        return Gaussian(mean, (E @ self.initial.cov @ E.T).at[places, places].set(spread**2))

    @float64
    def beginning_at(self, start: Start) -> "Task":
        """The same task with another first state, one of `recover_from`."""
        return dataclasses.replace(self, initial=Gaussian(as_float64(start.mean), diagonal(*start.std)))

    def unrevealed(self, kind: Kind) -> tuple[Component, ...]:
        """States that no sensor reveals, however long one looks, as far as the known linear rows tell.

        A learned row counts as `x' = x`, its prior mean: what else it depends on is not known before learning.
        """
        rows = self.structure(kind)
        A = rows.L.copy()
        for output, state in enumerate(rows.outputs):
            A[:, state] += rows.B[:, output]
        hidden = unobservable(A, self.sensors_with(np.ones(len(self.sensed))).C)
        return tuple(self.states[i] for i in hidden if i < len(self.states))

    # Features.

    def features(self, kind: Kind = "free") -> AngleFeatures:
        """From `[x, u]` to the model's input: states, acting actions, sines and cosines.

        With known positions a raw angle is not needed: the model is exactly periodic.
        """
        structure = self.structure(kind)
        kept = [i for i in range(len(self.states)) if i not in self.angles or i in structure.outputs]
        return AngleFeatures(self.angles, (*kept, *structure.acting))

    @property
    def dynamics_features(self) -> AngleFeatures:
        """From `[x, u]` to the free model's input `[x, u, sin, cos]`."""
        return self.features("free")

    @property
    def policy_features(self) -> AngleFeatures:
        """From `x` to what the policy sees: states and references, with sin and cos in place of angles; with a delay,
        also the actions that are on their way."""
        plant = [i for i in range(len(self.states)) if i not in self.angles]
        n, pending = len(self.states), self.action_delay * len(self.actions)
        return AngleFeatures(self.angles, (*plant, *range(n, n + pending), *self.reference_rows))

    @float64
    def random_policy(
        self, key: Array, states: Float[np.ndarray, "points row"] | None = None
    ) -> RBFPolicy | LinearPolicy:
        """Where policy search starts when it knows nothing.

        Args:
            states: Where the plant has been, to choose spreads and length-scales from where the task gives none.
        """
        if self.policy_kind == "linear":
            return _random_linear(key, self.policy_features, self.action_reach, self.action_middle)
        spread, scales = self._policy_sizes(states)
        centre = self.policy_features(self.start.mean)
        features, limits, middle = self.policy_features, self.action_reach, self.action_middle
        return _random_rbf(key, features, limits, middle, centre, spread, scales, self.centroids)

    @property
    def _extra_features(self) -> int:
        """How many policy features are not of the plant's own states: actions on their way, and references."""
        return self.action_delay * len(self.actions) + len(self.references)

    def _policy_sizes(self, states: Float[np.ndarray, "points row"] | None) -> tuple[Array, Array]:
        """Spread and length-scales of a first policy: as the task says, or from where the plant has been.

        A policy meets states beyond those of the first data, hence the factors. Sines and cosines are of size one.
        What the task says may leave out actions on their way and references.
        """
        features = self.policy_features
        kept, extra = list(features.keep), self._extra_features
        seen = np.sqrt(np.diagonal(np.asarray(self.start.cov)))
        if states is not None:
            seen = np.maximum(seen, np.std(states, axis=0))
        seen = np.where(seen[kept] > 0, seen[kept], 1.0)
        own = len(kept) - extra
        on_their_way = np.tile(np.asarray(self.action_reach), self.action_delay) / 2
        seen[own : own + len(on_their_way)] = on_their_way
        trig = np.ones(features.size - len(kept))
        sizes = []
        for given, factor, of_trig in ((self.policy_spread, 1.5, 0.8), (self.policy_length_scales, 2.5, 1.0)):
            usual = np.concatenate([factor * seen, of_trig * trig])
            if given is not None and extra and given.shape == (features.size - extra,):
                usual[:own], usual[own + extra :] = given[:own], given[own:]
            elif given is not None:
                usual = np.broadcast_to(np.asarray(given), usual.shape)
            sizes.append(as_float64(usual))
        return sizes[0], sizes[1]

    def without_plant(self) -> "Task":
        """What of a task can always be sent to another process: all but code and data."""
        return dataclasses.replace(self, plant=MissingPlant(), pose=None, logged=())

    # The same plant with other sensors or delays.

    def varied(
        self,
        sensors: Sequence[str] | None = None,
        delay: int | None = None,
        dropout: float | None = None,
        noise: float | None = None,
        bursts: Bursts | None = None,
    ) -> "Task":
        """The task with other sensors, delay, dropouts, sensor noise or bursts; None leaves things as they are."""
        task = self if sensors is None else self.with_sensors(sensors)
        task = task if delay is None else task.with_delay(delay)
        task = task if dropout is None else task.with_dropout(dropout)
        task = task if bursts is None else dataclasses.replace(task, bursts=bursts)._on_its_plant()
        return task if noise is None else task.with_noise(noise)

    def with_sensors(self, names: Sequence[str]) -> "Task":
        """The task with only these of its sensors."""
        available = [sensor.name for sensor in self.sensed]
        for name in names:
            if name not in available:
                raise unknown_name(name, available, f"sensor of {self.name!r}:")
        if not names or not _different(tuple(names)):
            raise ValueError(f"Task {self.name!r} needs at least one sensor, each named once; given {list(names)}.")
        kept = [available.index(name) for name in available if name in names]
        noise = None if self.sensor_std is None else as_float64(np.asarray(self.sensor_std)[kept])
        return self._changed(sensors=tuple(self.sensed[i] for i in kept), sensor_std=noise)

    def with_delay(self, steps: int) -> "Task":
        """The task with a plant that feels actions `steps` sampling periods late."""
        return self._changed(action_delay=steps)

    def with_dropout(self, probability: float) -> "Task":
        """The task with sensors that lose samples at random, each on its own."""
        lossy = tuple(dataclasses.replace(sensor, dropout=float(probability)) for sensor in self.sensed)
        return dataclasses.replace(self, sensors=lossy)._on_its_plant()

    def with_noise(self, factor: float) -> "Task":
        """The task with this many times the sensor noise."""
        if self.sensor_std is None:
            raise ValueError(f"Task {self.name!r} has a real plant: its sensors' noise cannot be changed.")
        if not 0 < factor < np.inf:
            raise ValueError(f"The sensor noise can be multiplied by a positive number; given {factor}.")
        return dataclasses.replace(self, sensor_std=as_float64(factor * np.asarray(self.sensor_std)))._on_its_plant()

    def with_limits(self, limits: Mapping[str, Any] | Sequence[Any]) -> "Task":
        """The task with other limits of its states."""
        return dataclasses.replace(self, limits=as_limits(limits))

    def _changed(self, **changes: Any) -> "Task":
        """The task with other fields. Its cost stays one of the same components, wherever their rows are then."""
        old, new = self._components({}), self._components(changes)
        places = {place: new.index(label) for place, label in enumerate(old) if label in new}
        try:
            cost = reindexed(self.cost, places)
        except KeyError as gone:
            what = old[int(gone.args[0])]
            raise ValueError(f"Task {self.name!r}: its cost is of {what!r}, which would be gone.") from None
        return dataclasses.replace(self, cost=cost, **changes)._on_its_plant()

    def _on_its_plant(self) -> "Task":
        """The task on a plant that does what it declares, if the plant is one that can (an environment)."""
        if not isinstance(self.plant, RealPlant) or not hasattr(self.plant, "as_declared"):
            return self
        return dataclasses.replace(self, plant=self.plant.as_declared(self))

    def _components(self, changes: dict[str, Any]) -> list[str]:
        """What each component of `[x, u]` is, in a word, after changes of fields."""
        now = {name: changes.get(name, getattr(self, name)) for name in ("action_delay", "sensors", "references")}
        kept = now["action_delay"] or int(self.remember_action)
        late = [f"{s.name} {k} steps ago" for s in now["sensors"] for k in range(1, s.delay + 1)]
        before = [f"{action.name} {k} steps ago" for k in range(1, kept + 1) for action in self.actions]
        references = [f"reference {reference.name}" for reference in now["references"]]
        return [
            *(s.name for s in self.states),
            *before,
            *late,
            *references,
            *(f"action {a.name}" for a in self.actions),
        ]


@compiled
def _random_linear(key: Array, features: AngleFeatures, limits: Array, middle: Array) -> LinearPolicy:
    return LinearPolicy.random(key, features, limits, middle)


@compiled
def _random_rbf(
    key: Array,
    features: AngleFeatures,
    limits: Array,
    middle: Array,
    centre: Array,
    spread: Array,
    length_scales: Array,
    centroids: int,
) -> RBFPolicy:
    return RBFPolicy.random(
        key,
        features,
        limits,
        middle,
        centre=centre,
        spread=spread,
        length_scales=length_scales,
        centroids=centroids,
    )


def _positive(value: Array) -> bool:
    """Positive and finite, as far as can be known: while JAX traces, an array has a shape but no numbers."""
    return not is_concrete(value) or bool(((np.asarray(value) > 0) & np.isfinite(value)).all())


def _counts(value: object) -> bool:
    return isinstance(value, Integral) and int(value) >= 1


def _different(values: tuple[object, ...]) -> bool:
    return len(set(values)) == len(values)


def _indices(values: tuple[int, ...], size: int) -> bool:
    return all(0 <= value < size for value in values)


def diagonal(*std: float) -> Array:
    """A diagonal covariance from standard deviations."""
    return jnp.asarray(np.diag(np.square(std)))


__all__ = ["Bursts", "Component", "Limit", "Pose", "Reference", "Sensor", "Start", "Task", "diagonal", "hold"]
