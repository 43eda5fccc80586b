"""Logged data are read as they were written, and a mistake is found with its line."""

from pathlib import Path

import numpy as np
import pytest

from bayespilco import Run, Settings, algorithm, deployment, logs, tasks
from bayespilco.improvement import Improvement, Problem
from bayespilco.plants import Rig
from tests.small_run import small_run

STATES, ACTIONS = ["position [m]", "velocity [m/s]"], ["force [N]"]
GOOD = """episode,time,position [m],velocity [m/s],force [N]
0,0.0,0.012,-0.08,1.31
0,0.2,0.034,,-0.27
0,0.4,0.041,0.11,
one,7.0,1,2,3

one,7.21,nan,5,
"""


def read(text: str, tmp_path: Path) -> list[logs.Log]:
    file = tmp_path / "data.csv"
    file.write_text(text)
    return logs.read(file, STATES, ACTIONS, 0.2)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    first, second = read(GOOD, tmp_path)
    assert np.array_equal(first.observations, [[0.012, -0.08], [0.034, np.nan], [0.041, 0.11]], equal_nan=True)
    assert np.array_equal(first.actions, [[1.31], [-0.27]])
    assert np.array_equal(second.observations, [[1, 2], [np.nan, 5]], equal_nan=True)
    # In another order, without units, from a spreadsheet that marks its files and ends lines its own way.
    shuffled = "\ufeffforce, time, velocity,episode,position\r\n3,0,2,0,1\r\n,0.2,5,0,4\r\n"
    (other,) = read(shuffled, tmp_path)
    assert np.array_equal(other.observations, [[1, 2], [4, 5]]) and np.array_equal(other.actions, [[3]])


def test_a_sample_may_be_as_late_as_a_rig_allows(tmp_path: Path) -> None:
    late = GOOD.replace("0,0.2,", f"0,{0.2 + 0.19 * Rig.tolerance},")
    assert late != GOOD
    assert len(read(late, tmp_path)) == 2


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("velocity [m/s]", "velocty [m/s]", r"line 1: unknown column 'velocty \[m/s\]'.*Did you mean 'velocity"),
        (",force [N]", "", "line 1: there is no column 'force"),
        ("time", "position", r"line 1: the column 'position \[m\]' is there twice"),
        ("0.034", "0,034", "line 3: 6 cells under 5 columns"),
        ("0.034", "O.034", r"line 3: 'O.034' under 'position \[m\]' is not a number"),
        ("0.034", "inf", "line 3: 'inf' .* is infinite"),
        ("-0.27", "", "line 3: the action is missing"),
        ("0,0.4", "0,0.6", "line 4: the time is 0.6 s, and due is 0.4 s"),
        ("0,0.2", "0,", "line 3: the time is nan s"),
        ("one,7.21", "0,0.6", "line 7: episode '0' goes on here"),
        ("one,7.21,nan,5,\n", "", "line 5: episode 'one' has one row"),
        (GOOD, "", "is empty"),
        (GOOD, GOOD.splitlines()[0], "no rows"),
        ("0.034", '"0.034', "line"),
    ],
)
def test_mistakes_are_found_with_their_line(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises(ValueError, match=rf"data\.csv.*{sentence}"):
        read(GOOD.replace(old, new), tmp_path)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"data\.csv cannot be read"):
        logs.read(tmp_path / "data.csv", STATES, ACTIONS, 0.2)
    with pytest.raises(ValueError, match="nothing cannot be read"):
        logs.read(tmp_path / "nothing", STATES, ACTIONS, 0.2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two logged episodes of the spring, the second with a gap."""
    file = tmp_path / "spring.csv"
    random = np.random.default_rng(1)
    for length in (4, 6):
        z, u = random.normal(size=(length, 2)), random.normal(size=(length - 1, 1))
        z[2] = np.nan if length == 6 else z[2]
        logs.append(file, STATES, ACTIONS, 0.2 * np.arange(length), z, u)
    return file


def test_learning_starts_from_logged_episodes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take the place of the random episode, and are learned from in every round; nothing is executed for them."""
    task = deployment.with_logged(tasks.spring(), file)
    record = small_run().records[0]
    sizes: list[tuple[int, int]] = []

    def train(trials, *_, **__):  # type: ignore[no-untyped-def]
        observed = np.asarray(trials.observed)
        sizes.append((int(observed.any(axis=1).sum()), int(observed.sum())))
        return record.fit

    monkeypatch.setitem(algorithm.TRAINING, "evidence", train)

    def search(problem: Problem, *_: object, **__: object) -> Improvement:
        return Improvement(record.policy, problem, 1.0, 3, "enough", np.ones(3), np.eye(4))

    monkeypatch.setattr(algorithm, "search", search)
    first = algorithm.learn_episode(task, Settings(episodes=2))
    assert first.episode is task.logged[-1]
    second = algorithm.learn_episode(task, Settings(episodes=2), [first])
    assert second.episode.states is not None, "executed in simulation"
    assert sizes == [(2, 4 + 5), (3, 4 + 5 + 21)]
    assert 0 < first.executed_cost < 6


def test_a_run_keeps_what_it_started_from(file: Path, tmp_path: Path) -> None:
    run = small_run()
    Run(deployment.with_logged(run.task, file), run.settings, run.records).save(tmp_path / "run")
    back = Run.load(tmp_path / "run").task.logged
    for one, other in zip(back, deployment.with_logged(run.task, file).logged, strict=True):
        assert np.asarray(one.observations).tobytes() == np.asarray(other.observations).tobytes()
        assert np.asarray(one.actions).tobytes() == np.asarray(other.actions).tobytes()


def test_episodes_are_added_to_a_log_to_the_last_digit(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    random = np.random.default_rng(0)
    written = []
    for length in (3, 5):
        z, u = random.normal(size=(length, 2)), random.normal(size=(length - 1, 1))
        z[1, 0] = np.nan
        logs.append(file, STATES, ACTIONS, 0.2 * np.arange(length) + 1e-3, z, u)
        written.append((z, u))
    for (z, u), log in zip(written, logs.read(file, STATES, ACTIONS, 0.2), strict=True):
        assert np.array_equal(z, log.observations, equal_nan=True) and np.array_equal(u, log.actions)
    with pytest.raises(ValueError, match="other columns"):
        logs.append(file, STATES[:1], ACTIONS, [0.0], [np.zeros(1)], [])
