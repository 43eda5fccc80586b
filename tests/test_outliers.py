"""Training bears gross outliers: they are named and count as missing. Clean data give the same model, bit for bit."""

import dataclasses
import functools
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Episode, algorithm, tasks
from bayespilco.core.parallel import SERIAL
from bayespilco.deploy import bridge, logs
from bayespilco.execution import RandomActions, execute_many
from bayespilco.model.episode import Trials, batch
from bayespilco.model.sensors import complete
from bayespilco.training.direct import DirectFit, fit_direct
from bayespilco.training.evidence import EvidenceFit, _fit_trials, fit_evidence
from bayespilco.training.outliers import without_misfits, without_spikes
from tests.small_run import assert_same, replace_training, small_run

SMALL: dict[str, Any] = {"points": 8, "evaluations": 15, "rounds": 1}


@functools.cache
def episodes(count: int = 3) -> tuple[Episode, ...]:
    """The mass on the spring, pushed at random."""
    task = tasks.spring()
    many = execute_many(task, RandomActions(task.action_limits), jax.random.split(jax.random.key(0), count))
    return tuple(Episode(many.observations[k], many.actions[k]) for k in range(count))


def spoiled(places: dict[tuple[int, int, int], float]) -> Trials:
    """The episodes with some samples that are off by these amounts."""
    made = []
    for number, episode in enumerate(episodes()):
        z = np.asarray(episode.observations).copy()
        for (e, row, sensor), off in places.items():
            if e == number:
                z[row, sensor] += off
        made.append(Episode(z, episode.actions))
    return batch(made)


def fit(trials: Trials, **more: Any) -> EvidenceFit:
    task = tasks.spring()
    return fit_evidence(trials, task.dynamics_features, task.initial, **SMALL, **more)


@functools.cache
def direct(places: tuple[tuple[tuple[int, int, int], float], ...] = ()) -> DirectFit:
    task = tasks.spring()
    return fit_direct(spoiled(dict(places)), task.dynamics_features, task.initial, points=8, evaluations=15)


@functools.cache
def clean() -> EvidenceFit:
    return fit(spoiled({}))


def test_clean_data_train_the_same_model_to_the_bit() -> None:
    task, trials = tasks.spring(), spoiled({})
    sensors, structure = complete(np.ones(2)), task.structure()
    plain = _fit_trials(trials, task.dynamics_features, task.initial, structure, sensors, 8, 15, 1, None, SERIAL, None)
    assert without_spikes(trials) is trials
    assert_same(clean().parameters, plain.parameters)
    assert_same(clean().dynamics, plain.dynamics)


@pytest.mark.parametrize("off", [1e6, -3.0])
def test_one_absurd_sample_is_named_and_left_out(off: float) -> None:
    """One that is absurd is found before training, one that is merely impossible after it."""
    sentence = (
        r"episode 1, row 7, sensor 'angle of the lid' \(.*counts as missing. Look at the data \(episodes and rows"
    )
    with pytest.warns(UserWarning, match=sentence):
        found = fit(spoiled({(1, 7, 0): off}), names=("angle of the lid", "its rate"))
    noise = np.sqrt(np.asarray(found.dynamics.sensor_noise) / np.asarray(clean().dynamics.sensor_noise))
    assert ((noise > 0.6) & (noise < 1.6)).all(), "as if the sample had been missing"


def test_one_in_a_hundred_samples_may_be_absurd() -> None:
    """Of 126 entries two, of either sensor, and not always high."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = fit(spoiled({(0, 12, 1): -40.0, (2, 0, 0): 25.0}))
    text = " ".join(str(each.message) for each in said)
    assert "episode 0, row 12, sensor 1" in text and "episode 2, row 0, sensor 0" in text
    noise = np.sqrt(np.asarray(found.dynamics.sensor_noise) / np.asarray(clean().dynamics.sensor_noise))
    assert ((noise > 0.6) & (noise < 1.6)).all()


@pytest.mark.parametrize("off", [1e6, -3.0])
def test_the_direct_method_bears_an_absurd_sample_as_well(off: float) -> None:
    with pytest.warns(UserWarning, match=r"episode 1, row 7, sensor 0 \(.*counts as missing. Look at the data"):
        found = direct((((1, 7, 0), off),))
    noise = np.sqrt(np.asarray(found.dynamics.sensor_noise) / np.asarray(direct().dynamics.sensor_noise))
    assert ((noise > 0.6) & (noise < 1.6)).all(), "as if the sample had been missing"


def test_learning_says_how_the_sensors_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(2)

    def fit(*_: object, names: list[str], **__: object) -> object:
        raise ValueError(f"told {names}")

    for training in ("evidence", "direct"):
        replace_training(monkeypatch, training, fit)
        with pytest.raises(ValueError, match=r"told \['position', 'velocity'\]"):
            algorithm.learn_episode(run.task, dataclasses.replace(run.settings, training=training), run.records)
    still = Episode(np.column_stack([np.arange(9.0), np.ones(9)]), np.ones((8, 1)))
    with pytest.raises(ValueError, match="The sensor 'velocity' never changes in the data"):
        fit_evidence(batch([still]), run.task.dynamics_features, run.task.initial, names=["position", "velocity"])


def test_what_moves_fast_or_rests_is_no_outlier() -> None:
    """Steps, ramps, oscillations and noise of heavy tails stay; so does everything if there is too much of it."""
    random, t = np.random.default_rng(0), np.arange(200)
    for series in (
        np.where(t < 100, 0.0, 1.0),
        np.sin(t),
        np.sin(0.02 * t**1.5),
        np.where(t > 150, np.sin(0.8 * t), 0.0) + 0.01 * random.normal(size=200),
        random.normal(size=200),
        random.standard_t(3, size=200),
        np.where(t % 10 == 0, 1e6, 0.0) + random.normal(size=200),
    ):
        trials = batch([Episode(series[:, None], np.zeros((199, 1)))])
        assert without_spikes(trials) is trials
    pendulum = tasks.pendulum()
    many = execute_many(pendulum, RandomActions(pendulum.action_limits), jax.random.split(jax.random.key(1), 20))
    trials = batch([Episode(z, u) for z, u in zip(many.observations, many.actions, strict=True)])
    assert without_spikes(trials) is trials


def test_misfits_are_judged_by_their_own_sensor() -> None:
    trials, random = spoiled({}), np.random.default_rng(1)
    sensors = tasks.spring().sensors_with([0.02**2, 0.1**2])
    exact = np.asarray(trials.observations) - random.normal(size=trials.observations.shape) * [0.02, 0.1]
    assert without_misfits(trials, sensors, exact, np.array([0.02**2, 0.1**2])) is trials
    exact[0, 5, 0] += 0.4  # twenty times the noise of the position, four times that of the velocity
    exact[0, 6, 1] += 0.4
    with pytest.warns(UserWarning, match=r"episode 0, row 5, sensor 0 \([^;]*\) does not fit"):
        kept = without_misfits(trials, sensors, exact, np.array([0.02**2, 0.1**2]))
    gone = np.asarray(trials.observed) & ~np.asarray(kept.observed)
    assert np.argwhere(gone).tolist() == [[0, 5, 0]] and float(jnp.abs(kept.observations[0, 5, 0])) == 0.0


def test_angles_that_a_sensor_cuts_are_put_together(tmp_path: Path) -> None:
    """What is learned from is a continuous series, which starts where the plant does. Others are not touched."""
    task = tasks.pendulum()
    angle = np.pi + np.array([-0.02, 0.03, -0.04, 0.05, np.nan, 0.3, 0.8, 1.5, 2.4, 3.4, 4.2, 5.0])
    whole = np.column_stack([angle, np.full(12, 1.2)])
    cut = np.column_stack([np.mod(angle + np.pi, 2 * np.pi) - np.pi, whole[:, 1]])
    assert cut[0, 0] > 3 and cut[1, 0] < -3, "around the cut the sensor goes to and fro"
    for name, z in (("cut", cut), ("late", cut[1:]), ("whole", whole)):
        times = task.dt * np.arange(len(z))
        logs.append(tmp_path / name, task.sensor_names, task.action_names, times, z, np.zeros((len(z) - 1, 1)))
        (episode,) = bridge.with_logged(task, tmp_path / name).logged
        assert np.allclose(episode.observations, whole[-len(z) :], atol=1e-12, equal_nan=True)
    assert np.array_equal(episode.observations, whole, equal_nan=True)
