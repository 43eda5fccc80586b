"""Gross outliers in the data: samples that no plant can have made are taken for missing, and named in a warning.

One absurd sample in forty sets the units, the noise and the length-scales of everything that is learned from them. Two
tests find such samples, neither of which touches data that are clean:

- before training, `without_spikes`: a sample that sticks out from both its neighbours, by many times what the series
  usually changes;
- after training, `without_misfits`: a sample that the trained filter cannot bring together with the others. Its
  residual is compared with the typical residual of its sensor (a median, which outliers do not move). Then the model is
  trained again without it.

Every training goes through `train_robustly`, which does both.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bayespilco.model.episode import Trials
from bayespilco.model.sensors import Sensors

SPIKE = 10.0
"""A spike is this many times as high as nine of ten steps of its series are."""
OF_RANGE = 0.5
"""And this share of the range in which nine of ten of the values lie."""
MISFIT = 8.0
"""A residual is this many times the typical one (its robust standard deviation)."""
OF_NOISE = 3.0
"""And this many times the learned standard deviation of the sensor's noise."""
MOST = 0.05
"""If a larger share of a sensor's samples would be dropped, they are not outliers: the noise is like that."""
FEWEST = 20
"""With fewer samples of a sensor nothing is known about what is typical."""
NAMED = 5
"""So many samples are named in a warning."""
REPEATS = 3
"""How often a model is trained at most, if samples turn out not to fit. The last time they stay."""

Marks = Bool[np.ndarray, "trials times sensor"]
Fit = TypeVar("Fit")
Explanation = tuple[Float[np.ndarray, "trials times state"], Float[np.ndarray, " sensor"]]
"""What a trained filter makes of the trials: its means after each observation, and the sensors' learned variances."""


def train_robustly(
    trials: Trials,
    sensors: Sensors,
    names: Sequence[str],
    train: Callable[[Trials], Fit],
    explain: Callable[[Fit, Trials], Explanation],
) -> Fit:
    """Train without the samples that no plant can have made.

    Args:
        names: Of the sensors, for warnings. Empty: they are counted.
        train: Trains on trials as they are.
        explain: What the result makes of the trials.
    """
    trials = without_spikes(trials, names)
    for _ in range(REPEATS):
        fit = train(trials)
        kept = without_misfits(trials, sensors, *explain(fit, trials), names)
        if kept is trials:
            break
        trials = kept
    return fit


def without_spikes(trials: Trials, names: Sequence[str] = ()) -> Trials:
    """The trials with isolated absurd samples taken for missing. If there are none: the same object."""
    z, seen = np.asarray(trials.observations), np.asarray(trials.observed)
    marks = np.zeros_like(seen)
    for k in range(z.shape[2]):
        series = [(trial, np.flatnonzero(seen[trial, :, k])) for trial in range(len(z))]
        series = [(trial, times) for trial, times in series if len(times) >= 3]
        if sum(len(times) for _, times in series) < FEWEST:
            continue
        values = np.concatenate([z[trial, times, k] for trial, times in series])
        steps = np.concatenate([np.abs(np.diff(z[trial, times, k])) for trial, times in series])
        low, high = np.quantile(values, [0.05, 0.95])
        least = max(SPIKE * float(np.quantile(steps, 0.9)), OF_RANGE * float(high - low))
        if least > 0:
            for trial, times in series:
                marks[trial, times[_height(z[trial, times, k]) > least], k] = True
    return _dropped(trials, marks, names, "sticks out from its neighbours")


def _height(values: Float[np.ndarray, " times"]) -> Float[np.ndarray, " times"]:
    """By how much each value is above both its neighbours, or below both; 0 if it lies between them."""
    before = np.concatenate([values[2:3], values[:-1]])  # at the ends, the next two
    after = np.concatenate([values[1:], values[-3:-2]])
    one, other = values - before, values - after
    return np.where(one * other > 0, np.minimum(np.abs(one), np.abs(other)), 0.0)


def without_misfits(
    trials: Trials,
    sensors: Sensors,
    states: Float[np.ndarray, "trials times state"],
    noise: Float[np.ndarray, " sensor"],
    names: Sequence[str] = (),
) -> Trials:
    """The trials without the samples that a trained filter cannot explain. If there are none: the same object.

    Args:
        states: The filter's means after each observation.
        noise: The learned variances of the sensors.
        names: Of the sensors.
    """
    z, seen = np.asarray(trials.observations), np.asarray(trials.observed)
    residuals = np.abs(z - states @ sensors.C.T - sensors.d)
    if sensors.growth is not None:  # as they would be where the sensors are at their best
        residuals /= np.sqrt(jax.vmap(jax.vmap(sensors.relative_noise))(jnp.asarray(states)))
    marks = np.zeros_like(seen)
    for k in range(z.shape[2]):
        there = residuals[..., k][seen[..., k]]
        if len(there) >= FEWEST:
            least = max(MISFIT * 1.4826 * float(np.median(there)), OF_NOISE * float(np.sqrt(noise[k])))
            marks[..., k] = seen[..., k] & (residuals[..., k] > least)
    return _dropped(trials, marks, names, "does not fit the others")


def _dropped(trials: Trials, marks: Marks, names: Sequence[str], why: str) -> Trials:
    """Without the samples that are marked, unless they are too many; and a warning that names them."""
    z, seen = np.asarray(trials.observations), np.asarray(trials.observed)
    marks = marks & (marks.sum(axis=(0, 1)) <= np.maximum(MOST * seen.sum(axis=(0, 1)), 1))
    if not marks.any():
        return trials
    places = np.argwhere(marks)
    named = [f"episode {e}, row {t}, {sensor_name(names, int(k))} ({z[e, t, k]:.4g})" for e, t, k in places[:NAMED]]
    more = f" and {len(places) - NAMED} more" if len(places) > NAMED else ""
    warnings.warn(
        f"What was measured in {'; '.join(named)}{more} {why}, and counts as missing. Look at the data (episodes"
        f"{' and rows' if names else ', rows and sensors'} are counted from 0).",
        stacklevel=5,
    )
    kept = jnp.asarray(seen & ~marks)
    left: Trials = eqx.tree_at(
        lambda t: (t.observations, t.observed), trials, (jnp.where(kept, trials.observations, 0.0), kept)
    )
    return left


def sensor_name(names: Sequence[str], number: int) -> str:
    """As it stands in a sentence."""
    return f"sensor {names[number]!r}" if names else f"sensor {number}"
