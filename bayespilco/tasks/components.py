"""The named pieces that a task is made of: states and actions, sensors, references to follow, and a drawing."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np

from bayespilco.model.bursts import Chain


def _numbers(given: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in given)


class Component(eqx.Module):
    """One entry of a state or action vector: its name and its unit."""

    name: str = eqx.field(static=True)
    unit: str = eqx.field(static=True)

    def __str__(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name


def _weights(given: Mapping[str, float] | Sequence[tuple[str, float]] | str) -> tuple[tuple[str, float], ...]:
    if isinstance(given, str):
        return ((given, 1.0),)
    pairs = given.items() if isinstance(given, Mapping) else given
    return tuple((str(name), float(weight)) for name, weight in pairs)


def _places(given: Any) -> tuple[tuple[str, float, float], ...]:
    places = [(name, *pair) for name, pair in given.items()] if isinstance(given, Mapping) else list(given)
    if any(isinstance(each, str) or len(each) != 3 for each in places):
        raise ValueError(f"best_at of a Sensor must be {{state: (place, distance)}}; given {given!r}.")
    return tuple((str(name), float(place), float(distance)) for name, place, distance in places)


class Sensor(eqx.Module):
    """What one sensor reports: `offset + sum of weight * state + noise`, some steps late, now and then.

    Sensor("cart position", "m", of="cart position")
    Sensor("pole tip", "m", of={"cart position": 1.0, "lean": -0.2}, period=2, dropout=0.1, delay=1)
    Sensor("camera", "m", of="x", best_at={"x": (5.0, 0.2), "y": (0.0, 0.2)})
    """

    name: str = eqx.field(static=True)
    unit: str = eqx.field(static=True)
    of: tuple[tuple[str, float], ...] = eqx.field(static=True, converter=_weights)
    """The states it measures, by name, with their weights; a name alone is that state."""
    offset: float = eqx.field(static=True, default=0.0)
    """What it reports when these states are zero."""
    period: int = eqx.field(static=True, default=1)
    """Steps between its samples; the first is at the first step."""
    dropout: float = eqx.field(static=True, default=0.0)
    """The probability that a sample is lost."""
    delay: int = eqx.field(static=True, default=0)
    """How many steps old a sample is when it is reported."""
    best_at: tuple[tuple[str, float, float], ...] = eqx.field(static=True, default=(), converter=_places)
    """Where its noise is least, if it depends on the state: by the names of states, a place, and the distance from it
    at which the variance has doubled. The variance is the least one times `1 + sum of ((state - place) / distance)^2`.
    The least one is `sensor_std` of the task squared; it is learned, the distances are known."""

    def __check_init__(self) -> None:
        whole = isinstance(self.period, int) and isinstance(self.delay, int)
        if not whole or self.period < 1 or self.delay < 0:
            raise ValueError(
                f"Sensor {self.name!r}: period must be a whole number of at least 1 and delay one of at least 0; given "
                f"{self.period} and {self.delay}."
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"Sensor {self.name!r}: dropout must be at least 0 and below 1; given {self.dropout}.")
        if not self.of or not all(np.isfinite(weight) for _, weight in self.of) or not np.isfinite(self.offset):
            raise ValueError(f"Sensor {self.name!r} must measure at least one state, with finite weights: {self.of}.")
        names = [name for name, _, _ in self.best_at]
        if len(set(names)) < len(names) or any(not np.isfinite(p) or not d > 0 for _, p, d in self.best_at):
            raise ValueError(
                f"Sensor {self.name!r}: best_at must name each state once, with a finite place and a positive distance "
                f"at which the variance has doubled; given {self.best_at}."
            )
        if self.best_at and self.delay:
            raise ValueError(
                f"Sensor {self.name!r} reports late, so its noise cannot depend on the state (best_at): the state has "
                "moved on by then. Leave out delay or best_at."
            )

    def __str__(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name

    def measures_only(self, state: str) -> bool:
        """Whether it reports this state and no other."""
        return len(self.of) == 1 and self.of[0][0] == state and self.of[0][1] != 0

    @classmethod
    def measuring(cls, state: Component) -> "Sensor":
        """A sensor of one state, with its name."""
        return cls(state.name, state.unit, of=((state.name, 1.0),))


class Bursts(eqx.Module):
    """Now and then all sensors are silent for a while: a link breaks down, something stands before the camera.

    Bursts(apart=2.0, lasting=0.5)

    At each step with samples a burst may begin, and at each step without it may end, whatever was before: a two-state
    Markov chain. At the first step of an episode there are samples.
    """

    apart: float = eqx.field(static=True, converter=float)
    """Seconds from the end of a burst to the beginning of the next one, on average."""
    lasting: float = eqx.field(static=True, converter=float)
    """Seconds that a burst lasts, on average."""

    def __check_init__(self) -> None:
        if not (0 < self.apart < np.inf and 0 < self.lasting < np.inf):
            raise ValueError(
                f"Bursts must be positive, finite numbers of seconds apart, and last such a number; given {self.apart} "
                f"and {self.lasting}."
            )

    def __str__(self) -> str:
        return f"all samples lost for {self.lasting:g} s, {self.apart:g} s apart"

    def chain(self, dt: float) -> Chain:
        """The same in steps of `dt` seconds."""
        return Chain(dt / self.apart, dt / self.lasting)


class Reference(eqx.Module):
    """A target that the policy sees and follows: a set-point, or a path of one value per step.

    It is a known row of the state, behind the plant's own, so that costs can compare states with it
    (`control.cost.tracking`). With `std` above zero each episode draws its own level: the policy learns to follow any.
    """

    name: str = eqx.field(static=True)
    unit: str = eqx.field(static=True)
    path: tuple[float, ...] = eqx.field(
        static=True, converter=lambda given: tuple(float(value) for value in np.ravel(np.asarray(given, dtype=float)))
    )
    """The value at each step, 0 to the last; one value alone is a set-point that stays."""
    std: float = eqx.field(static=True, default=0.0)
    """How far the level of an episode may be from the path: a standard deviation."""

    def __check_init__(self) -> None:
        if not self.path or not np.isfinite(self.path).all() or not (np.isfinite(self.std) and self.std >= 0):
            raise ValueError(
                f"Reference {self.name!r} needs at least one finite value and a std of at least 0; given {self.path} "
                f"and {self.std}."
            )

    def __str__(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name


class Limit(eqx.Module):
    """What a state must not exceed: the end of a track, a speed."""

    name: str = eqx.field(static=True)
    """Of the state."""
    low: float = eqx.field(static=True, default=-np.inf, converter=lambda end: -np.inf if end is None else float(end))
    high: float = eqx.field(static=True, default=np.inf, converter=lambda end: np.inf if end is None else float(end))
    """The ends of the range. Infinite where there is none."""

    def __check_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"The limits of {self.name!r} must be a lowest below a highest; given {self}.")
        if not (np.isfinite(self.low) or np.isfinite(self.high)):
            raise ValueError(f"The limits of {self.name!r} are no limits; given {self}.")

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def as_limits(given: Any) -> tuple[Limit, ...]:
    """A converter: `{"cart position": (-0.5, 0.5)}`, or limits."""
    if not isinstance(given, Mapping):
        return tuple(given)
    limits = []
    for name, ends in given.items():
        if not isinstance(ends, Sequence | np.ndarray) or isinstance(ends, str) or len(ends) != 2:
            raise ValueError(f"The limits of {name!r} must be a pair, lowest and highest; given {ends!r}.")
        limits.append(Limit(str(name), *ends))
    return tuple(limits)


class Start(eqx.Module):
    """Where a run may begin beside `initial`, such as after a push: independent Gaussians, one per state."""

    name: str = eqx.field(static=True)
    mean: tuple[float, ...] = eqx.field(static=True, converter=_numbers)
    std: tuple[float, ...] = eqx.field(static=True, converter=_numbers)
    weight: float = eqx.field(static=True, converter=float)
    """How much it counts, as a share of the whole."""

    def __check_init__(self) -> None:
        if len(self.mean) != len(self.std) or not np.isfinite(self.mean).all():
            raise ValueError(f"The start {self.name!r} needs a finite mean and a std for every state; given {self}.")
        if not all(0 < std < np.inf for std in self.std):
            raise ValueError(f"The start {self.name!r} needs positive, finite std; given {self.std}.")
        if not 0 < self.weight < 1:
            raise ValueError(f"The weight of the start {self.name!r} must be above 0 and below 1; given {self.weight}.")

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Pose:
    """What a plant looks like in one state: lines in a plane, in metres, for `bayespilco.report` to draw."""

    lines: tuple[np.ndarray, ...]
    """Each of shape (points, 2)."""
    goal: tuple[float, float] | None = None
    """Where the last line's last point should be."""
    plane: tuple[int, int] | None = None
    """The two states that are places in this plane, if any: there a belief is drawn as an ellipse."""


def by_name(components: Sequence[Any]) -> dict[str, int]:
    """The place of each component, by its name."""
    return {component.name: place for place, component in enumerate(components)}
