"""Logged data are read as they were written, and a mistake is found with its line."""

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayespilco import Record, Run, Settings, Task, algorithm, tasks
from bayespilco.cli import main
from bayespilco.control.search import Improvement, Problem
from bayespilco.core.optimise import Reason
from bayespilco.deploy import bridge as deployment
from bayespilco.deploy import logs
from bayespilco.deploy.files import write
from bayespilco.deploy.rig import Rig
from tests.small_run import replace_training, small_run

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
    for late in (0.2 + 0.2 * Rig.tolerance, 0.2 - 0.2 * Rig.tolerance):
        assert len(read(GOOD.replace("0,0.2,", f"0,{late},"), tmp_path)) == 2
    # A row that is missing is found even if the first one was late.
    with pytest.raises(ValueError, match=r"line 4: the time is 0\.6 s, and due is 0\.43 s"):
        read(GOOD.replace("0,0.0,", "0,0.03,").replace("0,0.4,", "0,0.6,"), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("velocity [m/s]", "velocty [m/s]", r"line 1: unknown column 'velocty \[m/s\]'.*Did you mean 'velocity"),
        (",force [N]", "", "line 1: there is no column 'force"),
        ("time", "position", r"line 1: the column 'position \[m\]' is there twice"),
        (GOOD, GOOD.replace(",", ";"), "line 1: columns must be separated by commas.*given 'episode;time"),
        ("0.034", "0,034", "line 3: 6 cells under 5 columns"),
        ("0.034", "O.034", r"line 3: 'O.034' under 'position \[m\]' is not a number"),
        ("0.034", "inf", "line 3: 'inf' .* is infinite"),
        ("-0.27", "", "line 3: the action is missing"),
        ("0,0.4", "0,0.6", "line 4: the time is 0.6 s, and due is 0.4 s"),
        ("0,0.2", "0,", "line 3: there is no time. Every row needs one"),
        ("0,0.4", "0,0.2", "line 4: the time is 0.2 s.*the time of the row before. If a row is there twice, delete"),
        ("0.034", "0_034", r"line 3: '0_034' under 'position \[m\]' is not a number"),
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


def test_times_may_be_in_another_unit(tmp_path: Path) -> None:
    """The unit is in the header. Where it is not, the error names it."""
    expected = read(GOOD, tmp_path)
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)):
        rows = [line.split(",") for line in GOOD.splitlines() if line]
        times = [[row[0], repr(float(row[1]) * factor), *row[2:]] for row in rows[1:]]
        scaled = "\n".join(map(",".join, times))
        header = ",".join(rows[0])
        for log, other in zip(
            expected, read(header.replace("time", f"time [{unit}]") + "\n" + scaled, tmp_path), strict=True
        ):
            assert np.array_equal(log.observations, other.observations, equal_nan=True)
        if unit != "s":
            with pytest.raises(ValueError, match=rf"line 3: .*in {unit}, name their column 'time \[{unit}\]'"):
                read(header + "\n" + scaled, tmp_path)


def test_time_that_goes_back_is_named_as_that(tmp_path: Path) -> None:
    sentence = r"line 4: the time is 0 s, and due is 0\.4 s.*It goes back from 0\.2 s\. If another episode begins here"
    with pytest.raises(ValueError, match=sentence):
        read(GOOD.replace("0,0.4,", "0,0.0,"), tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_files_of_spreadsheets_are_read(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(GOOD.encode(encoding))
    assert lengths(file) == [3, 2]
    append(file)
    assert lengths(file) == [3, 2, 2]


def test_further_columns_are_not_used(tmp_path: Path) -> None:
    wider = "\n".join(
        f"{k},{line},{k}.5" if k else f",{line},battery [V]" for k, line in enumerate(filter(None, GOOD.splitlines()))
    )
    with pytest.warns(UserWarning, match=r"data\.csv, line 1: these columns are not used: battery \[V\]\.$"):
        found = read(wider, tmp_path)
    for log, other in zip(read(GOOD, tmp_path), found, strict=True):
        assert np.array_equal(log.observations, other.observations, equal_nan=True)
        assert np.array_equal(log.actions, other.actions)
    # One that is misspelt is not overlooked.
    with pytest.raises(ValueError, match=r"no column 'force \[N\]'\. Columns that are not known: torque"):
        read(GOOD.replace("force [N]", "torque"), tmp_path)


def faster(every: int, periods: int, held: bool) -> tuple[str, np.ndarray, np.ndarray]:
    """A log with several rows per sampling period, and a few rows more than whole periods."""
    random = np.random.default_rng(0)
    rows = every * periods + 1 + every // 2
    z, u = random.normal(size=(rows, 2)), random.normal(size=(rows, 1))
    if held:
        u = np.repeat(u[: periods + 2], every, axis=0)[:rows]
    return logs.heading(STATES, ACTIONS) + logs.text(STATES, ACTIONS, 0.2 / every * np.arange(rows), z, u, 0), z, u


def test_a_faster_log_is_thinned_out_on_request(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    text, z, u = faster(4, 5, held=True)
    file.write_text(text)
    with pytest.raises(ValueError, match=r"line 3: .*rows are 4 times as frequent.*read with every=4"):
        logs.read(file, STATES, ACTIONS, 0.2)
    with pytest.raises(ValueError, match="read with every=4"):
        logs.read(file, STATES, ACTIONS, 0.2, every=2)
    (log,) = logs.read(file, STATES, ACTIONS, 0.2, every=4)
    assert np.array_equal(log.observations, z[:21:4]) and np.allclose(log.actions, u[:20:4], rtol=1e-15)
    # An action that changes within a period is replaced by its mean, and the user is told.
    text, z, u = faster(4, 5, held=False)
    file.write_text(text)
    with pytest.warns(
        UserWarning, match=r"data\.csv: in episode '0' an action changes within the sampling period of 0\.2 s"
    ):
        (log,) = logs.read(file, STATES, ACTIONS, 0.2, every=4)
    assert np.allclose(log.actions[2], u[8:12].mean()) and log.actions.shape == (5, 1)
    with pytest.raises(ValueError, match=r"line 2: episode '0' is shorter than the sampling period"):
        logs.read(file, STATES, ACTIONS, 0.05 * 40, every=40)
    for every in (0, -1):
        with pytest.raises(ValueError, match="every must be a whole number from 1 on; given"):
            logs.read(file, STATES, ACTIONS, 0.2, every=every)


class Table:
    """What pandas and polars have in common."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = list(columns)
        self.cells = np.array([*zip(*columns.values(), strict=True)], dtype=object)

    def to_numpy(self) -> np.ndarray:
        return self.cells


class NAType:
    """What pandas has for a missing value. It cannot be compared, nor made a number."""

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    def __eq__(self, other: object) -> Any:
        return self


def test_data_frames_are_read_as_files_are(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "episode": [0, 0, 0, "one", "one"],
        "time [ms]": [0, 200, 400, 7000, 7210.0],
        "force": [1.31, -0.27, None, 3, NAType()],
        "position [m]": [0.012, np.float32(0.5), 0.041, 1, np.nan],
        "velocity": [-0.08, None, 0.11, np.int64(2), 5],
    }
    first, second = logs.read(Table(columns), STATES, ACTIONS, 0.2)
    expected = read(GOOD.replace("0.034", "0.5"), tmp_path)
    for log, other in zip((first, second), expected, strict=True):
        assert np.array_equal(log.observations, other.observations, equal_nan=True)
        assert np.array_equal(log.actions, other.actions)
    moments = [datetime.datetime(2024, 1, 1) + datetime.timedelta(milliseconds=t) for t in columns["time [ms]"]]
    for times in (moments, [moment - moments[0] for moment in moments]):
        renamed = {"time" if name == "time [ms]" else name: cells for name, cells in columns.items()}
        assert len(logs.read(Table(renamed | {"time": times}), STATES, ACTIONS, 0.2)) == 2
    for change, sentence in (
        ({"force": [1, None, 3, 4, 5]}, "The data frame, row 1: the action is missing"),
        ({"force": [1, "much", 3, 4, 5]}, "The data frame, row 1: 'much' under 'force' is not a number"),
        ({"force": [1, [2], 3, 4, 5]}, r"The data frame, row 1: \[2\] under 'force' is not a number"),
    ):
        with pytest.raises(ValueError, match=sentence):
            logs.read(Table(columns | change), STATES, ACTIONS, 0.2)
    with pytest.raises(ValueError, match="The data frame has no rows"):
        logs.read(Table({name: [] for name in columns}), STATES, ACTIONS, 0.2)


@pytest.mark.timeout(60)
def test_a_device_is_no_log(tmp_path: Path) -> None:
    """/dev/zero has no end, a pipe has no reader, and to replace /dev/null would be bad for everybody."""
    with pytest.raises(ValueError, match="/dev/zero cannot be read: it is a device"):
        logs.read("/dev/zero", STATES, ACTIONS, 0.2)
    os.mkfifo(tmp_path / "pipe")
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    for path in ("/dev/full", link, tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match=f"{path} cannot be a log: it is not a regular file"):
            append(Path(path))
    with pytest.raises(OSError, match=r"Cannot write .*pipe: it is not a regular file"):
        write(tmp_path / "pipe", b"something")
    assert Path("/dev/full").is_char_device() and (tmp_path / "pipe").is_fifo()


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
        observed = np.asarray(trials.complete)
        sizes.append((int(observed.any(axis=1).sum()), int(observed.sum())))
        return record.fit

    replace_training(monkeypatch, "evidence", train)

    def search(problem: Problem, *_: object, **__: object) -> Improvement:
        return Improvement(record.policy, problem, 1.0, 3, Reason.BUDGET, np.ones(3), np.eye(4))

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


def append(file: Path) -> None:
    logs.append(file, STATES, ACTIONS, 0.2 * np.arange(2), np.ones((2, 2)), np.ones((1, 1)))


def lengths(file: Path) -> list[int]:
    return [len(log.observations) for log in logs.read(file, STATES, ACTIONS, 0.2)]


HEADER, *ROWS = GOOD.splitlines(keepends=True)
FIRST = HEADER + "".join(ROWS[:3])


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", [2]),
        (HEADER, [2]),
        (HEADER.rstrip(), [2]),
        (FIRST, [3, 2]),
        ("\ufeff" + FIRST.replace("\n", "\r\n"), [3, 2]),
        (FIRST.rstrip(), [3, 2]),  # nothing is lost
        (FIRST + "1,0.0,0.0", [3, 2]),  # a program was killed while it wrote,
        (FIRST + "1,0.0,0.0,1.0,2.0\n", [3, 2]),  # after one row,
        (FIRST + "1,0.0,0.0,1.0,2.0\n1,0.2,0", [3, 2]),
        (FIRST + "1,0.0,0.0,1.0,2.0\n1,0.2,0.0,1.0,-", [3, 2]),
        (FIRST + "1,0.0,0.0,1.0,2.0\n1,0.2,0.0,1.0,", [3, 2, 2]),  # and where nothing was missing
        (GOOD, [3, 2, 2]),
    ],
)
def test_a_log_can_be_read_after_an_episode_was_added(before: str, expected: list[int], tmp_path: Path) -> None:
    """However it was begun, by a spreadsheet or by a program that was killed."""
    file = tmp_path / "log.csv"
    file.write_bytes(before.encode())
    append(file)
    assert lengths(file) == expected
    append(file)
    assert lengths(file) == [*expected, 2]


def test_an_episode_that_is_added_has_a_name_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    for names, expected in ((["monday"], 1), (["0", "1"], 2), (["3", "monday", "2"], 4), (["2", "1"], 3)):
        rows = [f"{name},{time},1,2,3\n" for name in names for time in (0.0, 0.2)]
        file.write_text("".join([HEADER, *rows]))
        assert logs.next_episode(file, STATES, ACTIONS) == expected
        append(file)
        assert lengths(file) == [2] * (len(names) + 1)


def test_a_log_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "log.csv", tmp_path / "link.csv"
    append(file)
    file.chmod(0o640)
    link.symlink_to(file)
    append(link)
    assert link.is_symlink() and lengths(file) == [2, 2] and file.stat().st_mode & 0o777 == 0o640

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    before = file.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        append(file)
    assert file.read_bytes() == before and sorted(tmp_path.iterdir()) == [link, file]


def test_only_what_can_be_read_is_added(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    with pytest.raises(ValueError, match=r"two samples or more.*given 1"):
        logs.append(file, STATES, ACTIONS, [0.0], np.zeros((1, 2)), [])
    with pytest.raises(ValueError, match="2 states and 1 actions; sample 0 has 3 and 1"):
        logs.append(file, STATES, ACTIONS, [0.0, 0.2], np.zeros((2, 3)), np.zeros((1, 1)))
    assert not file.exists()
    logs.append(file, STATES, ACTIONS, [0.0, 0.2], np.array([[0.0, np.inf], [-np.inf, 1.0]]), np.zeros((1, 1)))
    (log,) = logs.read(file, STATES, ACTIONS, 0.2)
    assert np.array_equal(log.observations, [[0.0, np.nan], [np.nan, 1.0]], equal_nan=True)


def test_actions_in_other_units_are_noticed(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    file, task = tmp_path / "log.csv", tasks.spring()
    z, u = np.zeros((3, 2)), np.array([[0.1], [-3.9]])  # the limit is 2 N
    logs.append(file, STATES, ACTIONS, 0.2 * np.arange(3), z, u)
    assert len(deployment.with_logged(task, file).logged) == 1 and not recwarn
    logs.append(file, STATES, ACTIONS, 0.2 * np.arange(3), z, 1000 * u)
    with pytest.warns(UserWarning, match=r"log.csv: force \[N\] reaches 3900, but the task's limit is 2.*units\?"):
        deployment.with_logged(task, file)


def test_the_command_starts_from_data(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def learn_episode(task: Task, settings: Settings, records: Sequence[Record], *_: Any) -> Record:
        seen.append(len(task.logged))
        return small_run().records[len(records)]

    monkeypatch.setattr("bayespilco.algorithm.learn_episode", learn_episode)
    monkeypatch.setattr("bayespilco.report.save_figures", lambda *_: [])
    monkeypatch.setattr("bayespilco.report.page", lambda *_: "")
    monkeypatch.setenv("BAYESPILCO_NO_CACHE", "1")
    monkeypatch.setenv("NPROC", os.environ.get("NPROC", "1"))
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as end:
        main(["learn", "spring", "--from-data", str(file), "--episodes", "2", "--executions", "2", "--out", str(out)])
    assert not end.value.code
    assert seen == [2, 2], "both episodes of the file, in every round"
    assert lengths(out / "logged.csv") == lengths(file) == [4, 6]
