"""A run killed at any moment and resumed is, byte for byte, the run that was not."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import METHODS, Record, Run, Settings, Task, learn, resume, runs, tasks
from bayespilco.core.checks import check_integer
from tests.killed import MOMENTS_OF_A_FILE
from tests.small_run import assert_same, small_run

SMALL = ("--points", "6", "--evaluations", "3", "--executions", "3")
"""A run that takes seconds."""


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "BAYESPILCO_NO_CACHE": "1"}
    command = [sys.executable, "-m", "tests.killed", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def next_command(directory: Path, episodes: int, workers: int = 1) -> list[str]:
    """What a user would do after a kill: begin again if nothing was begun, and go on otherwise."""
    several = ["--workers", str(workers)]
    if (directory / "config.toml").exists():
        return ["resume", str(directory), *several]
    return ["learn", "spring", "--episodes", str(episodes), *SMALL, *several, "--out", str(directory)]


def watch(process: subprocess.Popen[bytes], directory: Path) -> list[float]:
    """Let a run end, and measure how many seconds it took to its first file, and then from each to the next."""
    times = [time.monotonic()]
    while process.poll() is None:
        times += [time.monotonic()] * (len(saved(directory)) + 1 - len(times))
        time.sleep(0.002)
    assert process.returncode == 0
    return [float(gap) for gap in np.diff(times + [times[-1]] * (len(saved(directory)) + 1 - len(times)))]


def kill_at_random(
    process: subprocess.Popen[bytes], directory: Path, seconds: list[float], chance: random.Random
) -> bool:
    """Kill a process somewhere between one file of its run and the next. False if it ended before."""
    there = len(saved(directory))
    after = chance.randint(there, len(seconds) - 1)
    while len(saved(directory)) < after and process.poll() is None:
        time.sleep(0.002)
    # A process that goes on has to start first, which takes about as long as the first file takes.
    longest = seconds[after] + (seconds[0] if after == there > 0 else 0)
    try:
        assert process.wait(chance.uniform(0, longest)) == 0
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True


def saved(directory: Path) -> list[str]:
    return [file.name for file in directory.glob("[!.]*")]


KILLS_PER_RUN = 3
"""Then it is left to end, and another begins: late in a run all kills would fall into its last seconds."""
LONG = [pytest.mark.slow, pytest.mark.timeout(14400)]
MANY = pytest.param(36, 3, 1, False, marks=LONG)
AFTER_THE_FIRST_EPISODE = pytest.param(int(os.environ.get("KILLS", "200")), 3, 2, True, marks=LONG)
"""With several workers, and from where the first episode is saved: all kills are after that."""


@pytest.mark.parametrize(("kills", "episodes", "workers", "begun"), [(2, 2, 1, False), MANY, AFTER_THE_FIRST_EPISODE])
def test_a_run_killed_at_random_moments_ends_the_same(
    tmp_path: Path, kills: int, episodes: int, workers: int, begun: bool
) -> None:
    def go_on(directory: Path) -> subprocess.Popen[bytes]:
        return start("never", "no", *next_command(directory, episodes, workers))

    whole = tmp_path / "whole"
    # What is compiled for it is found by those that will be killed: they are faster.
    seconds = [gap / 2 for gap in watch(go_on(whole), whole)]
    expected = files(whole)
    if begun:
        process = go_on(tmp_path / "begun")
        while not (tmp_path / "begun" / "metrics.jsonl").exists():
            time.sleep(0.002)
        process.kill()
        process.wait()
        assert len(list((tmp_path / "begun").glob("episode-*"))) == 1
    chance, killed, run = random.Random(1), 0, 0
    while killed < kills:
        directory = tmp_path / f"run-{run}"
        if begun:
            shutil.copytree(tmp_path / "begun", directory)
        for _ in range(KILLS_PER_RUN):
            if killed == kills or len(saved(directory)) == len(expected):
                break
            if not kill_at_random(go_on(directory), directory, seconds, chance):
                break
            if len(saved(directory)) < len(expected):  # else it had nothing left to do
                killed += 1
            print(f"kill {killed}: run {run}, {len(saved(directory))} of {len(expected)} files saved", flush=True)
        assert go_on(directory).wait() == 0
        assert files(directory) == expected
        run += 1
        print(f"{killed} kills so far, and all {run} runs ended identically", flush=True)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Learning that takes no time, and the numbers of the episodes that were learned."""
    learned: list[int] = []

    def learn_episode(task: Task, settings: Settings, records: Sequence[Record], *_: object) -> Record:
        learned.append(len(records))
        return small_run(4).records[len(records)]

    monkeypatch.setattr("bayespilco.algorithm.learn_episode", learn_episode)
    return learned


def test_callbacks_see_the_run_so_far_and_can_stop_it(replayed: list[int]) -> None:
    seen: list[Run] = []
    run = learn("spring", episodes=4, callbacks=[seen.append, lambda run: len(run.records)])
    assert [len(each.records) for each in seen] == [1, 2, 3, 4], "only True stops, not a number"
    assert_same(seen[-1], run)
    for yes in (True, np.bool_(True)):
        told: list[int] = []
        run = learn(
            "spring",
            episodes=4,
            callbacks=[
                lambda run, yes=yes: yes if len(run.records) == 2 else None,
                lambda run, told=told: told.append(len(run.records)),
            ],
        )
        assert len(run.records) == 2 and told == [1, 2], "all are told, also of the last episode"
    costs = [record.predicted_cost for record in small_run(4).records]
    limit = (costs[0] + costs[1]) / 2
    stopped = learn("spring", episodes=4, callbacks=[runs.stop_below(limit)])
    assert len(stopped.records) == next(n for n, cost in enumerate(costs, 1) if cost < limit)


def test_resuming_in_python(replayed: list[int], tmp_path: Path) -> None:
    def interrupt(run: Run) -> None:
        if len(run.records) == 2:
            raise KeyboardInterrupt

    whole = learn("spring", episodes=4, seed=3, points=7)
    with pytest.raises(KeyboardInterrupt):
        learn("spring", episodes=4, seed=3, points=7, out=tmp_path / "run", callbacks=[interrupt])
    assert_same(Run.load(tmp_path / "run").records, whole.records[:2])
    with pytest.raises(ValueError, match=r"not empty\. Choose another, go on with it \(`bayespilco resume"):
        learn("spring", out=tmp_path / "run")
    replayed.clear()
    seen: list[Run] = []
    assert_same(resume(tmp_path / "run", callbacks=[seen.append]), whole)
    assert replayed == [2, 3]
    assert [len(each.records) for each in seen] == [2, 3, 4], "first asked about what there was"
    assert_same(resume(tmp_path / "run"), whole)
    assert replayed == [2, 3]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["episode"] for line in lines] == [0, 1, 2, 3]
    learn("spring", episodes=2, seed=3, points=7, out=tmp_path / "longer")
    assert_same(resume(tmp_path / "longer", episodes=4), whole)
    assert Run.load(tmp_path / "longer").settings == whole.settings


def test_what_wanted_to_stop_before_the_kill_still_does(replayed: list[int], tmp_path: Path) -> None:
    small_run(2).save(tmp_path / "run")
    with runs.RunDirectory.open(tmp_path / "run") as opened:
        opened.extend(4)
    run = resume(tmp_path / "run", callbacks=[lambda run: len(run.records) == 2])
    assert len(run.records) == 2 and replayed == []


def test_a_task_of_ones_own_is_given_again(replayed: list[int], tmp_path: Path) -> None:
    mine = eqx.tree_at(lambda task: task.sensor_std, tasks.spring(), jnp.array([0.1, 0.1]))
    mine = dataclasses.replace(mine, name="my spring")
    learn(mine, episodes=1, out=tmp_path / "run")
    with pytest.raises(ValueError, match="'my spring', which is not built in"):
        resume(tmp_path / "run")
    assert_same(resume(tmp_path / "run", mine).task, mine)
    assert_same(Run.load(tmp_path / "run", mine).task, mine)


def test_what_can_be_asked_of_a_run() -> None:
    run = small_run(3)
    assert run.prediction() is run.records[2].prediction and run.prediction(0) is run.records[0].prediction
    with pytest.raises(ValueError, match="episodes 0 to 2; given 3"):
        run.prediction(3)
    with pytest.raises(ValueError, match="episodes 0 to 2; given 3"):
        run.controller_after(3)
    executor, z = METHODS[run.method].executor(run.policy, run.dynamics), jnp.array([0.1, 0.2])
    _, expected = executor.step(executor.start(run.task.initial), z, jnp.asarray(0), jax.random.key(0))
    for _ in range(2):  # each is a new one, whose belief has seen nothing
        assert np.allclose(run.controller.act(np.asarray(z)), expected, rtol=1e-9, atol=0)


def test_executions_are_as_many_as_asked_for_and_repeatable() -> None:
    run = small_run(2)
    first, again, other = run.evaluate(3), run.evaluate(3), run.evaluate(3, seed=2)
    assert first.observations.shape == (3, run.task.steps + 1, 2)
    assert_same(first, again)
    assert not np.array_equal(first.costs, other.costs)
    for executions, seed, sentence in (
        (0, 1, "executions must be at least 1; given 0"),
        (-1, 1, "executions must be at least 1; given -1"),
        (1, -1, "seed must be at least 0"),
        (1, 2**70, "seed must be at most"),
    ):
        with pytest.raises(ValueError, match=sentence):
            run.evaluate(executions, seed)


def test_numbers_that_are_not_whole_are_refused() -> None:
    for bad in (2.5, float("nan"), "3", None):
        with pytest.raises(ValueError, match=f"points must be a whole number; given {bad!r}"):
            check_integer(bad, "points", 1)
    assert type(check_integer(np.int64(3), "points", 1)) is int, "as a configuration is written"


def events(directory: Path) -> list[tuple[int, str, float]]:
    """TensorBoard's file by hand: records of length, check sum, event, check sum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = (directory / "tensorboard").iterdir()
    content, at, found = file.read_bytes(), 0, []
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        event = Event.FromString(content[at + 12 : at + 12 + size])
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        at += 16 + size
    return found


def test_tensorboard_has_one_curve_after_an_interruption(replayed: list[int], tmp_path: Path) -> None:
    learn("spring", episodes=2, callbacks=[runs.TensorBoard(tmp_path)])
    learn("spring", episodes=3, callbacks=[runs.TensorBoard(tmp_path)])
    found = events(tmp_path)
    assert [step for step, name, _ in found if name == "predicted_cost"] == [0, 1, 2]
    values = {(step, name): value for step, name, value in found}
    assert np.isclose(values[1, "executed_cost"], small_run(3).records[1].executed_cost, rtol=1e-6)
    assert np.isclose(values[2, "sensor_std/velocity"], 0.09, rtol=1e-6)


def test_without_the_extra_tensorboard_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(ValueError, match=r"pip install 'bayespilco\[tensorboard\]'"):
        runs.TensorBoard(tmp_path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run that need not be learned again: only its writing is tried."""
    directory = tmp_path_factory.mktemp("recorded") / "run"
    run = small_run(2)
    config = runs.Config("spring", run.settings, executions=3)
    with runs.RunDirectory.create(directory, config, run.task) as opened:
        opened.keep(run.records)
        opened.keep_evaluation(jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), run.records[0].episode))
    assert start("never", directory, "resume", directory).wait() == 0
    return directory


FILES_WRITTEN = 2 + 2 * 4 + 1 + 5 + 1
"""Task and configuration; two episodes with their metrics, which a certificate adds to, and that; evaluation;
pictures; summary."""
MOMENTS = list(range(FILES_WRITTEN * MOMENTS_OF_A_FILE))


def _moments(few: list[int]) -> list[object]:
    return [moment if moment in few else pytest.param(moment, marks=pytest.mark.slow) for moment in MOMENTS]


@pytest.mark.parametrize("moment", _moments([51]))  # every system call, without a process of its own: test_crash.py
def test_a_run_killed_while_it_writes_a_file_ends_the_same(recorded: Path, tmp_path: Path, moment: int) -> None:
    directory = tmp_path / "run"
    begin = ("learn", str(recorded / "config.toml"), "--out", str(directory))
    assert start(moment, recorded, *begin).wait() == -signal.SIGKILL
    found = files(directory)
    expected = files(recorded)
    assert all(
        found[name] == expected[name] for name in found.keys() & expected.keys() - {"metrics.jsonl", "certificate.json"}
    )
    assert len(found.keys() - expected.keys()) <= 1, "at most one file was being written"
    again = ("resume", str(directory)) if "config.toml" in found else begin
    assert start("never", recorded, *again).wait() == 0
    assert files(directory) == expected


@pytest.mark.slow
def test_moments_are_all_moments(recorded: Path, tmp_path: Path) -> None:
    """One moment more than there are, and the command ends by itself."""
    directory = tmp_path / "run"
    assert start(len(MOMENTS), recorded, "learn", str(recorded / "config.toml"), "--out", str(directory)).wait() == 0
    assert files(directory) == files(recorded)


def test_tensorboard_in_the_runs_own_directory(replayed: list[int], tmp_path: Path) -> None:
    """It begins when there is something to write: the directory has to be empty for a run to start."""
    learn("spring", episodes=2, out=tmp_path / "run", callbacks=[runs.TensorBoard(tmp_path / "run")])
    assert [step for step, name, _ in events(tmp_path / "run") if name == "predicted_cost"] == [0, 1]
    resume(tmp_path / "run", episodes=3, callbacks=[runs.TensorBoard(tmp_path / "run")])
    assert [step for step, name, _ in events(tmp_path / "run") if name == "predicted_cost"] == [0, 1, 2]


def test_a_directory_that_is_deleted_while_learning_is_said(replayed: list[int], tmp_path: Path) -> None:
    def remove(run: Run) -> None:
        shutil.rmtree(tmp_path / "run")

    with pytest.raises(OSError, match=r"run is gone: it was deleted or moved .*bayespilco resume .*; or learn again"):
        learn("spring", episodes=3, out=tmp_path / "run", callbacks=[remove])


def test_ctrl_c_in_python_names_resume(replayed: list[int], tmp_path: Path) -> None:
    def interrupt(run: Run) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "run"
    with pytest.raises(runs.Interrupted) as end:
        learn("spring", episodes=3, out=path, callbacks=[interrupt])
    expected = (
        f"1 of 3 episodes are saved in {path}; go on with: bayespilco resume {path}. In Python: resume('{path}')."
    )
    assert str(end.value) == expected


def test_programs_can_show_what_the_command_shows(
    replayed: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    learn("spring", episodes=1)
    assert capsys.readouterr().out == ""
    learn("spring", episodes=2, out=tmp_path / "run", progress=True)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("Learning spring with bayes-filter, seed 0, into ")
    first = small_run(4).records[0]
    assert f"Episode 1 of 2 executed with random actions: cost {first.executed_cost:.2f} of at most 21" in shown
    assert "velocity [m/s]" in shown
    resume(tmp_path / "run", episodes=3, progress=True)
    assert "Resuming spring with bayes-filter, seed 0 after 2 of 3 episodes" in " ".join(
        capsys.readouterr().out.split()
    )
