"""A run killed at any moment and resumed is, byte for byte, the run that was not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import pytest
from jax import tree

from bayespilco import Settings, runs
from tests.killed import MOMENTS_OF_A_FILE
from tests.small_run import small_run

SMALL = ("--episodes", "2", "--points", "5", "--evaluations", "3", "--executions", "3")
"""A run that takes seconds."""


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "BAYESPILCO_NO_CACHE": "1"}
    command = [sys.executable, "-m", "tests.killed", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def next_command(directory: Path) -> list[str]:
    """What a user would do after a kill: begin again if nothing was begun, and go on otherwise."""
    if (directory / "config.toml").exists():
        return ["resume", str(directory)]
    return ["learn", "spring", *SMALL, "--out", str(directory)]


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_a_run_killed_at_random_moments_ends_the_same(tmp_path: Path, kills: int) -> None:
    begin = time.monotonic()
    assert start("never", "no", *next_command(tmp_path / "whole")).wait() == 0
    took = (time.monotonic() - begin) / 2  # the first one compiles
    expected, chance, killed, run = files(tmp_path / "whole"), random.Random(0), 0, 0
    while killed < kills:
        directory, finished = tmp_path / f"run-{run}", False
        while not finished:
            command, begin = next_command(directory), time.monotonic()
            process = start("never", "no", *command)
            try:
                finished = process.wait(chance.uniform(0, took) if killed < kills else None) == 0
                assert finished
                took = time.monotonic() - begin if command[0] == "learn" else took
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
                saved = len(list(directory.glob("*")))
                print(f"kill {killed}: run {run}, after {time.monotonic() - begin:.1f} s, {saved} files saved")
        assert files(directory) == expected
        run += 1
    print(f"{killed} kills, {run} runs ended identically")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run that need not be learned again: only its writing is tried."""
    directory = tmp_path_factory.mktemp("recorded") / "run"
    run = small_run(2)
    config = runs.Config("spring", Settings(episodes=2), executions=3)
    with runs.RunDirectory.create(directory, config, run.task) as opened:
        opened.keep(run.records)
        opened.keep_evaluation(tree.map(lambda leaf: jnp.stack([leaf] * 3), run.records[0].episode))
    assert start("never", directory, "resume", directory).wait() == 0
    return directory


FILES_WRITTEN = 1 + 2 * 2 + 2 + 3
"""Configuration; two episodes with their metrics; evaluation and summary; pictures."""
MOMENTS = list(range(FILES_WRITTEN * MOMENTS_OF_A_FILE))


def _moments(few: list[int]) -> list[object]:
    return [moment if moment in few else pytest.param(moment, marks=pytest.mark.slow) for moment in MOMENTS]


@pytest.mark.parametrize("moment", _moments([6, 32]))
def test_a_run_killed_while_it_writes_a_file_ends_the_same(recorded: Path, tmp_path: Path, moment: int) -> None:
    directory = tmp_path / "run"
    begin = ("learn", str(recorded / "config.toml"), "--out", str(directory))
    assert start(moment, recorded, *begin).wait() == -signal.SIGKILL
    found = files(directory)
    expected = files(recorded)
    assert all(found[name] == expected[name] for name in found.keys() & expected.keys() - {"metrics.jsonl"})
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
