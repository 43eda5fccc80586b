"""The programs of the examples folder run, and learn what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def said_by(program: str, *arguments: str, directory: Path) -> str:
    """What a program prints in a process of its own, with JAX as users have it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NPROC": "1"}
    command = [sys.executable, "-W", "error", ROOT / "examples" / program, *arguments]
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(said: str) -> list[float]:
    return [float(number) for number in re.findall(r"[\d.]+", said.splitlines()[-1])]


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    said = said_by("tanks.py", directory=tmp_path)
    random, learned, _ = numbers(said)
    assert "Episode 2 of 2" in said and learned < 0.8 * random


def test_a_moving_target(tmp_path: Path) -> None:
    random, learned, most = numbers(said_by("tracking.py", directory=tmp_path))
    assert learned < 0.5 * random < most


def test_data_of_ones_own(tmp_path: Path) -> None:
    predicted, executed, most = numbers(said_by("own_data.py", directory=tmp_path))
    assert executed < 0.5 * most and abs(predicted - executed) < 0.3 * executed


def test_a_plant_in_another_process(tmp_path: Path) -> None:
    said = said_by("real_plant.py", directory=tmp_path)
    random, learned, most = numbers(said)
    assert learned < random <= most
    assert re.search(r"samples=[1-9]\d+, missing=\d+, duplicates_or_late=[1-9]", said), said


def test_an_environment_of_gymnasium(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    small = ("--episodes", "1", "--points", "8", "--evaluations", "3")
    said = said_by("inverted_pendulum.py", *small, "--out", "run", directory=tmp_path)
    assert re.match(r"episode 1: \d+ samples; then up for \[\d+", said)
    assert (tmp_path / "run" / "returns.json").exists()


def test_every_example_is_tested() -> None:
    tested = set(re.findall(r"\w+\.py", Path(__file__).read_text()))
    assert {file.name for file in (ROOT / "examples").glob("*.py")} <= tested
