"""What would a better sensor be worth? The change of the total cost, by paired runs on sampled plants.

A sensor's noise is halved or doubled, the filter is told, and the same policy runs on the same plants, from the same
first states, with the same draws of process and sensor noise (scaled). The difference of two such runs is far less
noisy than either. Two shortcuts mislead. The derivative of the predicted cost by the noise says how the *prediction*
bends at this point, which is many times what executions show. A new prediction by moments is no better: it exaggerates
what a better filter does to one Gaussian.

There are two runs on each plant. How much their differences have in common says how much the worth differs from plant
to plant, which is part of the stated error: the plant that there is is one of these.

A sensor that does not exist yet is compared with itself so noisy that it says nothing, for the draws to be the same.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from bayespilco.algorithm import METHODS, Record, Settings, make_problem
from bayespilco.control.policy import Policy
from bayespilco.control.search import improve
from bayespilco.core.checks import unknown_name
from bayespilco.core.precision import as_float64, float64
from bayespilco.execution import simulate_samples
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode
from bayespilco.model.posterior_samples import draw_many
from bayespilco.model.sensors import Sensors
from bayespilco.model.structure import as_rows
from bayespilco.tasks import Task
from bayespilco.trust.promises import BATCH, PURPOSE

HALVED, DOUBLED, GONE = 0.5, 2.0, 1e3
"""Factors of a sensor's standard deviation. With the last it says nothing any more."""
FACTORS = {"halved": HALVED, "doubled": DOUBLED, "without": GONE}
RUNS = 300
PER_PLANT = 2
"""Runs on each sampled plant."""
CLEAR = 2.0
"""A change of so many standard errors is one."""
SMALL = 0.01
"""A change below this share of the total cost is next to nothing."""


class NewSensor(NamedTuple):
    """A sensor that does not exist yet: of one state, with the standard deviation of its noise."""

    state: str
    std: float


class Change(NamedTuple):
    """By how much the total cost changes."""

    mean: float
    error: float
    """Its standard error for the one plant that there is: of the mean over plants, and from plant to plant."""

    @property
    def is_clear(self) -> bool:
        return abs(self.mean) > CLEAR * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.2f} +- {self.error:.2f}"


class Worth(NamedTuple):
    """What changing one sensor does to the total cost."""

    name: str
    unit: str
    std: float
    """Of its noise, as it was learned; of a new sensor, as it would be."""
    changes: dict[str, Change]
    """By what is done: "halved", "doubled", "without"; of a new sensor "added"."""


class Worths(NamedTuple):
    """What every sensor is worth."""

    total: float
    """The mean total cost with the sensors as they are."""
    error: float
    runs: int
    sensors: tuple[Worth, ...]
    reoptimised: bool

    @property
    def sentence(self) -> str:
        """What to do about the sensors."""
        found = []
        better = [(w.name, w.changes["halved"]) for w in self.sensors if "halved" in w.changes]
        for name, change in sorted(better, key=lambda pair: pair[1].mean):
            if change.is_clear and change.mean < -SMALL * self.total:
                found.append(f"half the noise of {name} saves {-change.mean:.2f} +- {change.error:.2f}")
        for worth in self.sensors:
            if (added := worth.changes.get("added")) is not None:
                helps = added.is_clear and added.mean < 0
                saves = f"saves {-added.mean:.2f} +- {added.error:.2f}"
                found.append(f"a new sensor of {worth.name} {saves if helps else 'does not help measurably'}")
        idle = [
            worth.name
            for worth in self.sensors
            if (gone := worth.changes.get("without")) is not None
            and gone.mean + CLEAR * gone.error < SMALL * self.total
        ]
        if idle:
            found.append(f"{', '.join(idle)} {'say' if len(idle) > 1 else 'says'} next to nothing: leave out")
        if not found:
            found.append("no change of one sensor pays")
        text = "; ".join(found)
        return f"{text[0].upper()}{text[1:]}."


@float64
def sensor_worths(
    task: Task,
    settings: Settings,
    records: Sequence[Record],
    *,
    added: Sequence[NewSensor] = (),
    runs: int = RUNS,
    reoptimise: int = 0,
) -> Worths:
    """The worth of each sensor for the policy of the last record.

    Args:
        added: Sensors that do not exist yet.
        runs: Pairs of runs, two on each plant; rounded up to whole batches.
        reoptimise: Evaluations to improve the policy with for each variant, and for the sensors as they are, too.
    """
    if runs < 2:
        raise ValueError(f"Paired runs need at least two plants for a standard error; given {runs}.")
    record = records[-1]
    names = [state.name for state in task.states]
    for each in added:
        if each.state not in names:
            raise unknown_name(each.state, names, "state to measure:")
        if not 0 < each.std < np.inf:
            raise ValueError(f"The noise of a new sensor must be positive and finite; given {each.std}.")
    comparison = _Comparison(task, settings, record, runs, reoptimise)
    sensors = record.dynamics.sensors
    base = comparison.totals(sensors)
    std = np.sqrt(np.asarray(sensors.noise))
    found = []
    for number, sensor in enumerate(task.sensed):
        changes = {}
        for what, factor in FACTORS.items():
            if what == "without" and not _revealed_without(task, settings, record, number):
                continue
            changes[what] = _change(comparison.totals(scaled(sensors, number, factor)), base)
        found.append(Worth(sensor.name, sensor.unit, float(std[number]), changes))
    for new in added:
        place = names.index(new.state)
        more = with_sensor(sensors, place, new.std)
        silent = scaled(more, len(std), GONE * float(np.abs(_size(task, place)) / new.std + 1))
        change = _change(comparison.totals(more), comparison.totals(silent))
        found.append(Worth(new.state, task.states[place].unit, new.std, {"added": change}))
    error = float(base.reshape(-1, PER_PLANT).mean(axis=1).std(ddof=1) / np.sqrt(len(base) / PER_PLANT))
    return Worths(float(base.mean()), error, len(base), tuple(found), reoptimise > 0)


def _size(task: Task, place: int) -> float:
    return float(np.sqrt(np.asarray(task.initial.cov)[place, place]) + abs(float(task.initial.mean[place])) + 1.0)


def _revealed_without(task: Task, settings: Settings, record: Record, number: int) -> bool:
    """Whether the filter still knows all states without a sensor. If not, nobody would leave it out."""
    kept = [sensor.name for place, sensor in enumerate(task.sensed) if place != number]
    if not kept:
        return False
    if METHODS[settings.method].predictor.needs_raw_states:
        return False
    kind = "free" if record.dynamics.structure.is_free else "second-order"
    return kind == "free" or not task.with_sensors(kept).unrevealed("second-order")


def _change(totals: np.ndarray, base: np.ndarray) -> Change:
    """From runs that come in twos on the same plant. The covariance of the two is what differs from plant to plant."""
    twice = (totals - base).reshape(-1, PER_PLANT)
    of_mean = twice.mean(axis=1).var(ddof=1) / len(twice)
    between = max(float(np.cov(twice.T)[0, 1]), 0.0)
    return Change(float(twice.mean()), float(np.sqrt(of_mean + between)))


@float64
def scaled(sensors: Sensors, number: int, factor: float) -> Sensors:
    """The sensors, one of them with so many times the standard deviation."""
    noise = sensors.noise.at[number].multiply(factor**2)
    return sensors.with_noise(noise)


@float64
def with_sensor(sensors: Sensors, row: int, std: float) -> Sensors:
    """The sensors and one more, of one row of the state."""
    C = np.concatenate([sensors.C, np.eye(sensors.C.shape[1])[row][None]])
    noise = as_float64(np.append(np.asarray(sensors.noise), std**2))

    def more(values: tuple[float, ...], value: float) -> tuple[float, ...]:
        return (*values, value) if values else ()

    period = (*sensors.period, 1) if sensors.period else ()
    offset, dropout = more(sensors.offset, 0.0), more(sensors.dropout, 0.0)
    made = Sensors(noise, as_rows(C), offset, dropout, period, bursts=sensors.bursts)
    if sensors.growth is None:
        return made
    grown = [as_float64(np.pad(np.asarray(each), ((0, 1), (0, 0)))) for each in (sensors.growth, sensors.best_at)]
    return dataclasses.replace(made, growth=grown[0], best_at=as_rows(grown[1]))  # the new one's noise is constant


def told(dynamics: Dynamics, sensors: Sensors) -> Dynamics:
    """A model that knows other sensors."""
    changed: Dynamics = eqx.tree_at(lambda d: d.sensors, dynamics, sensors)
    return changed


class _Comparison:
    """Runs of one policy on the same plants, with the same draws, and whatever sensors."""

    def __init__(self, task: Task, settings: Settings, record: Record, runs: int, reoptimise: int) -> None:
        self.task, self.settings, self.record, self.reoptimise = task, settings, record, reoptimise
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.seed), PURPOSE), 2**20)
        count = -(-runs // BATCH)
        of_plants, of_runs = jax.random.split(key)
        plants = jax.numpy.repeat(jax.random.split(of_plants, count * BATCH // PER_PLANT), PER_PLANT)
        keys = jax.random.split(of_runs, count * BATCH)
        parts = [slice(n * BATCH, (n + 1) * BATCH) for n in range(count)]
        self.batches = [(draw_many(record.fit, plants[part]), keys[part]) for part in parts]

    def totals(self, sensors: Sensors) -> np.ndarray:
        """The total cost of each run, with these sensors: in the plant and in the filter."""
        dynamics = told(self.record.dynamics, sensors)
        executor = METHODS[self.settings.method].executor(self._policy(dynamics), dynamics)
        found = []
        for plants, keys in self.batches:
            each = jax.tree.map(lambda leaf, of=keys: jax.numpy.broadcast_to(leaf, (len(of), *leaf.shape)), sensors)
            seen = told(plants, each)
            runs: Episode = simulate_samples(self.task, executor, seen, keys)
            found.append(np.asarray(runs.costs).sum(axis=1))
        return np.concatenate(found)

    def _policy(self, dynamics: Dynamics) -> Policy:
        if not self.reoptimise:
            return self.record.policy
        problem = make_problem(self.task, self.settings, dynamics)
        split = problem.split(0) if problem.predictor.can_split else problem
        return improve(self.record.policy, split, evaluations=self.reoptimise).policy
