"""The worth of a sensor: paired runs that differ in nothing but its noise."""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from bayespilco import cli
from bayespilco.execution import filtered, simulate_samples
from bayespilco.model.posterior_samples import draw_many
from bayespilco.trust.sensors import (
    BATCH,
    Change,
    NewSensor,
    Worth,
    Worths,
    _change,
    scaled,
    sensor_worths,
    told,
    with_sensor,
)
from tests.small_run import small_run
from tests.test_trust import honest_run

pytestmark = pytest.mark.xdist_group("trust")


@functools.cache
def worths() -> Worths:
    run = honest_run(2)
    new = [NewSensor("velocity", 0.01), NewSensor("position", 50.0)]
    return sensor_worths(run.task, run.settings, run.records, runs=BATCH, added=new)


def test_pairs_differ_in_the_noise_alone() -> None:
    """The same first states and plants; the errors of the changed sensor scaled, those of the others the same."""
    run = honest_run(2)
    record = run.records[-1]
    plants, keys = (jax.random.split(jax.random.key(seed), 4) for seed in (1, 2))
    drawn = draw_many(record.fit, plants)
    found = []
    for factor in (1.0, 0.5):
        sensors = scaled(record.dynamics.sensors, 1, factor)
        noise = jax.numpy.tile(sensors.noise, (4, 1))
        executor = filtered(record.policy, told(record.dynamics, sensors))
        found.append(simulate_samples(run.task, executor, told(drawn, sensors.with_noise(noise)), keys))
    first, second = found
    assert first.states is not None and second.states is not None
    assert np.array_equal(first.states[:, 0], second.states[:, 0])
    one, other = (np.asarray(each.observations[:, 0] - each.states[:, 0]) for each in (first, second))
    assert other[:, 0] == pytest.approx(one[:, 0], abs=1e-12) and other[:, 1] == pytest.approx(one[:, 1] / 2)
    assert not np.array_equal(first.actions, second.actions)  # the filter was told


def test_worths_are_means_of_paired_differences() -> None:
    found = worths()
    assert [each.name for each in found.sensors] == ["position", "velocity", "velocity", "position"]
    assert list(found.sensors[0].changes)[:2] == ["halved", "doubled"]
    for worth in found.sensors:
        for change in worth.changes.values():
            assert np.isfinite([change.mean, change.error]).all() and change.error >= 0
    # Pairs tell more than single runs would: a change is known better than the totals of plants differ.
    assert found.sensors[0].changes["halved"].error < found.error * np.sqrt(found.runs / 2)
    useless = found.sensors[3].changes["added"]
    assert abs(useless.mean) < 0.01 * found.total  # a sensor of 50 m says nothing


def test_the_error_includes_what_differs_from_plant_to_plant() -> None:
    """Each plant has a worth of its own, N(1, 0.5^2), seen through runs with noise of 2."""
    rng = np.random.default_rng(0)
    own = np.repeat(rng.normal(1.0, 0.5, size=4000), 2)
    found = _change(own + rng.normal(0.0, 2.0, size=8000), np.zeros(8000))
    assert found.mean == pytest.approx(1.0, abs=0.1)
    assert found.error == pytest.approx(0.5, rel=0.2)
    alike = _change(1.0 + rng.normal(0.0, 2.0, size=8000), np.zeros(8000))
    assert alike.error < 0.35  # the noise of runs averages out


def test_a_sensor_more() -> None:
    sensors = small_run(1).dynamics.sensors
    more = with_sensor(sensors, 1, 0.3)
    assert more.count == 3 and float(more.noise[2]) == pytest.approx(0.09)
    assert np.array_equal(more.C, [[1, 0], [0, 1], [0, 1]])


def test_the_sentence_says_what_to_do() -> None:
    changes = {"halved": Change(-0.5, 0.1), "doubled": Change(0.9, 0.1), "without": Change(4.0, 0.3)}
    nothing = {"halved": Change(0.01, 0.02), "doubled": Change(-0.01, 0.02), "without": Change(0.02, 0.03)}
    made = [Worth("angle", "rad", 0.03, changes), Worth("velocity", "m/s", 0.9, nothing)]
    found = Worths(20.0, 0.5, 300, tuple(made), False)
    assert found.sentence == ("Half the noise of angle saves 0.50 +- 0.10; velocity says next to nothing: leave out.")
    added = found._replace(sensors=(Worth("speed", "m/s", 0.1, {"added": Change(-1.0, 0.2)}),))
    assert added.sentence == "A new sensor of speed saves 1.00 +- 0.20."
    assert found._replace(sensors=()).sentence == "No change of one sensor pays."


def test_what_cannot_be_compared_is_refused() -> None:
    run = honest_run(1)
    with pytest.raises(ValueError, match="sped"):
        sensor_worths(run.task, run.settings, run.records, added=[NewSensor("sped", 0.1)])
    with pytest.raises(ValueError, match="positive"):
        sensor_worths(run.task, run.settings, run.records, added=[NewSensor("velocity", 0.0)])
    with pytest.raises(ValueError, match="at least two"):
        sensor_worths(run.task, run.settings, run.records, runs=1)


def test_the_command_shows_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayespilco.trust.sensors.sensor_worths", lambda *_, **__: worths())
    small_run(1).save(tmp_path / "run")
    with pytest.raises(SystemExit) as end:
        cli.main(["sensors", str(tmp_path / "run"), "--add", "velocity:0.01", "--no-cache"])
    shown = " ".join(capsys.readouterr().out.split())
    assert not end.value.code
    assert worths().sentence in shown and "halved doubled without it added" in shown
    with pytest.raises(SystemExit) as end:
        cli.main(["sensors", str(tmp_path / "run"), "--add", "velocity", "--no-cache"])
    assert end.value.code == 2 and "STATE:NOISE" in capsys.readouterr().err
