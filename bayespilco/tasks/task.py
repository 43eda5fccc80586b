"""What a task is: the plant as the learner meets it, and what is wanted of it."""

import dataclasses
import difflib
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.compilation import compiled
from bayespilco.cost import SaturatingCost
from bayespilco.episode import Episode
from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian
from bayespilco.plants import Rig
from bayespilco.policy import LinearPolicy, Policy, RBFPolicy
from bayespilco.precision import as_float64, float64

Simulation = Callable[[Float[Array, " state"], Float[Array, " action"]], Float[Array, " state"]]


def _optional(value: object) -> Array | None:
    return None if value is None else as_float64(value)


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
    sensor_std: Float[Array, " state"] | None = eqx.field(converter=_optional)
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
        n, m = len(self.states), len(self.actions)
        checks = {
            f"initial must be a Gaussian over the {n} states": self.initial.size == n,
            f"sensor_std must have one entry per state ({n})": self.sensor_std is None or self.sensor_std.shape == (n,),
            "sensor_std is needed for a simulation": self.sensor_std is not None or isinstance(self.plant, Rig),
            f"action_limits must have one entry per action ({m})": self.action_limits.shape == (m,),
            "action_limits must be positive and finite": bool(
                (np.asarray(self.action_limits) > 0).all() and np.isfinite(np.asarray(self.action_limits)).all()
            ),
            "sensor_std must be positive and finite (perfect sensors: say 1e-4 of the range)": self.sensor_std is None
            or bool((np.asarray(self.sensor_std) > 0).all() and np.isfinite(np.asarray(self.sensor_std)).all()),
            "steps must be at least 1": self.steps >= 1,
            "dt must be positive": self.dt > 0,
            f"angles must be different indices of states, 0 to {n - 1}": len(set(self.angles)) == len(self.angles)
            and all(0 <= a < n for a in self.angles),
            "policy_kind must be 'rbf' or 'linear'": self.policy_kind in ("rbf", "linear"),
            f"logged must be episodes of {n} states and {m} actions": all(
                (e.observations.shape[1], e.actions.shape[1]) == (n, m) for e in self.logged
            ),
        }
        for sentence, holds in checks.items():
            if not holds:
                name = sentence.split()[0]
                raise ValueError(f"Task {self.name!r}: {sentence}; given {name} = {getattr(self, name)}.")

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


def hold(
    derivative: Callable[[Array, Array], Array], dt: float, substeps: int
) -> Callable[[Float[Array, " state"], Float[Array, " action"]], Float[Array, " state"]]:
    """The plant that follows an ODE while the action is held for `dt`: `substeps` Runge-Kutta steps of order 4."""
    h = dt / substeps

    def plant(x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
        def step(x: Array, _: None) -> tuple[Array, None]:
            k1 = derivative(x, u)
            k2 = derivative(x + h / 2 * k1, u)
            k3 = derivative(x + h / 2 * k2, u)
            k4 = derivative(x + h * k3, u)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return jax.lax.scan(step, x, length=substeps)[0]

    return plant


def suggest(name: str, known: list[str], what: str) -> ValueError:
    """The error for a name that is not known, with the nearest one that is."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"Unknown {what} {name!r}; there are: {', '.join(known)}.{hint}")


def diagonal(*std: float) -> Array:
    """A diagonal covariance from standard deviations."""
    return jnp.asarray(np.diag(np.square(std)))
