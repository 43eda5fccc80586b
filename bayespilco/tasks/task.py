"""What a task is: the plant as the learner meets it, and what is wanted of it."""

import dataclasses
import difflib
import operator
from collections.abc import Callable
from numbers import Integral

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco import logs
from bayespilco.compilation import compiled
from bayespilco.cost import SaturatingCost
from bayespilco.episode import Episode
from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian
from bayespilco.plants import Rig
from bayespilco.policy import LinearPolicy, Policy, RBFPolicy
from bayespilco.precision import as_float64, float64, is_concrete, optional_float64

Simulation = Callable[[Float[Array, " state"], Float[Array, " action"]], Float[Array, " state"]]


class Component(eqx.Module):
    """One entry of a state or action vector: its name and its unit."""

    name: str = eqx.field(static=True)
    unit: str = eqx.field(static=True)

    def __str__(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@dataclasses.dataclass(frozen=True)
class Pose:
    """What a plant looks like in one state: lines in a plane, in metres, for `bayespilco.report` to draw."""

    lines: tuple[np.ndarray, ...]
    """Each of shape (points, 2)."""
    goal: tuple[float, float] | None = None
    """Where the last line's last point should be."""


class Task(eqx.Module):
    """A plant and what is wanted of it. Everything is in the units of its components.

    Which plant this is, the learner does not know: of `plant` and `sensor_std` it sees only what episodes show.
    """

    name: str = eqx.field(static=True)
    states: tuple[Component, ...] = eqx.field(static=True)
    actions: tuple[Component, ...] = eqx.field(static=True)
    angles: tuple[int, ...] = eqx.field(static=True)
    """Which states are angles in radians: models, policies and costs see their sine and cosine."""
    dt: float = eqx.field(static=True)
    """Sampling period in seconds; actions are held in between."""
    steps: int = eqx.field(static=True)
    """Actions per episode."""
    plant: Simulation | Rig = eqx.field(static=True)
    """The next state from a state and an action; or a plant that is there, with how to run it."""
    action_limits: Float[Array, " action"] = eqx.field(converter=as_float64)
    """Actions lie between minus and plus this."""
    initial: Gaussian
    """The distribution of first states, and so the belief before the first observation."""
    sensor_std: Float[Array, " state"] | None = eqx.field(converter=optional_float64)
    """What a simulation adds to its observations. None if the plant has sensors of its own."""
    cost: SaturatingCost
    policy_kind: str = eqx.field(static=True, default="rbf")
    centroids: int = eqx.field(static=True, default=100)
    policy_spread: Float[Array, " feature"] = eqx.field(converter=as_float64, default=1.0)
    """How far a first policy's centroids reach around the initial state, per policy feature."""
    policy_length_scales: Float[Array, " feature"] = eqx.field(converter=as_float64, default=1.0)
    logged: tuple[Episode, ...] = ()
    """Episodes recorded before: what learning starts from, in place of an episode with random actions."""
    pose: Callable[[np.ndarray], Pose] | None = eqx.field(static=True, default=None)
    """What the plant looks like in a state, if it can be drawn."""

    def __check_init__(self) -> None:
        made_of = {
            "states": (self.states, Component),
            "actions": (self.actions, Component),
            "initial": ((self.initial,), Gaussian),
            "cost": ((self.cost,), SaturatingCost),
        }
        for name, (parts, kind) in made_of.items():
            if other := [part for part in parts if not isinstance(part, kind)]:
                raise ValueError(f"Task {self.name!r}: {name} must be of type {kind.__name__}; given {other[0]!r}.")
        n, m, features = len(self.states), len(self.actions), self.policy_features.size
        noise, spread, scales = self.sensor_std, self.policy_spread, self.policy_length_scales
        of_cost = self.cost.features.angles + self.cost.features.keep
        one_or_each = ((), (1,), (features,))
        held = getattr(self.plant, "dt", self.dt)
        checks = {
            "names must differ, also from a log's columns, episode and time": _different(self.names + logs.COLUMNS),
            f"initial must be a Gaussian over the {n} states": self.initial.size == n,
            "sensor_std is needed for a simulation": noise is not None or isinstance(self.plant, Rig),
            f"sensor_std must have one entry per state ({n})": noise is None or noise.shape == (n,),
            "sensor_std must be positive and finite (perfect sensors: say 1e-4 of the range)": noise is None
            or _positive(noise),
            f"action_limits must have one entry per action ({m})": self.action_limits.shape == (m,),
            "action_limits must be positive and finite": _positive(self.action_limits),
            "steps must be at least 1, and an integer": _counts(self.steps),
            "dt must be positive and finite": 0 < self.dt < np.inf,
            f"dt must be as long as the plant holds an action, {held} s": bool(np.isclose(held, self.dt)),
            f"angles must be different indices of states, 0 to {n - 1}": _different(self.angles)
            and _indices(self.angles, n),
            f"cost.features must be of states, 0 to {n - 1}": _indices(of_cost, n),
            "policy_kind must be 'rbf' or 'linear'": self.policy_kind in ("rbf", "linear"),
            "centroids must be at least 1, and an integer": _counts(self.centroids),
            f"policy_spread must be positive, and one or one per policy feature ({features})": _positive(spread)
            and spread.shape in one_or_each,
            f"policy_length_scales must be positive, and one or one per policy feature ({features})": _positive(scales)
            and scales.shape in one_or_each,
            f"logged must be episodes of {n} states and {m} actions": all(
                (e.observations.shape[1], e.actions.shape[1]) == (n, m) for e in self.logged
            ),
        }
        for sentence, holds in checks.items():
            if not holds:
                name = sentence.split()[0]
                raise ValueError(f"Task {self.name!r}: {sentence}; given {name} = {operator.attrgetter(name)(self)}.")

    @property
    def names(self) -> tuple[str, ...]:
        """What states and actions are called, without units: a log's columns are found by these."""
        return tuple(str(component).partition(" [")[0] for component in self.states + self.actions)

    @property
    def dynamics_features(self) -> AngleFeatures:
        """From `[x, u]` to the model's input `[x, u, sin, cos]`."""
        return AngleFeatures(self.angles, tuple(range(len(self.states) + len(self.actions))))

    @property
    def policy_features(self) -> AngleFeatures:
        """From `x` to what the policy sees: the states that are not angles, and sin and cos of those that are."""
        return AngleFeatures(self.angles, tuple(i for i in range(len(self.states)) if i not in self.angles))

    @float64
    @compiled
    def random_policy(self, key: Array) -> Policy:
        """Where policy search starts when it knows nothing."""
        if self.policy_kind == "linear":
            return LinearPolicy.random(key, self.policy_features, self.action_limits)
        return RBFPolicy.random(
            key,
            self.policy_features,
            self.action_limits,
            centre=self.policy_features(self.initial.mean),
            spread=self.policy_spread,
            length_scales=self.policy_length_scales,
            centroids=self.centroids,
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


def hold(derivative: Callable[[Array, Array], Array], dt: float, substeps: int) -> Simulation:
    """The plant that follows an ODE while the action is held for `dt`: `substeps` Runge-Kutta steps of order 4."""
    h = dt / substeps

    def slope(x: Array, u: Array) -> Array:
        change = jnp.asarray(derivative(x, u))
        if change.shape != x.shape:  # it would be broadcast, and move every state alike
            raise ValueError(
                f"The derivative must be one number per state, of shape {x.shape}; given shape {change.shape}. "
                "(For one state, too: jnp.stack([...]).)"
            )
        return change

    def plant(x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
        def step(x: Array, _: None) -> tuple[Array, None]:
            k1 = slope(x, u)
            k2 = slope(x + h / 2 * k1, u)
            k3 = slope(x + h / 2 * k2, u)
            k4 = slope(x + h * k3, u)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return jax.lax.scan(step, x, length=substeps)[0]

    plant.dt = dt  # type: ignore[attr-defined]
    return plant


def suggest(name: str, known: list[str], what: str) -> ValueError:
    """The error for a name that is not known, with the nearest one that is."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"Unknown {what} {name!r}; there are: {', '.join(known)}.{hint}")


def diagonal(*std: float) -> Array:
    """A diagonal covariance from standard deviations."""
    return jnp.asarray(np.diag(np.square(std)))
