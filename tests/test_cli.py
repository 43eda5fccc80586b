"""The command: what it writes, what it says, and how it fails."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bayespilco import METHODS, Progress, Run, runs, tasks
from bayespilco.cli import main
from tests.small_run import small_run


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a directory of its own, with output of known width, and without changing this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("BAYESPILCO_NO_CACHE", "1")
    monkeypatch.setenv("NPROC", os.environ.get("NPROC", "1"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning that takes no time: the records of the small run."""

    def learn(task, method, *, episodes, seed, on_progress, on_record, **_) -> Run:  # type: ignore[no-untyped-def]
        run = small_run()
        for number, record in enumerate(run.records):
            on_progress(Progress(number, episodes, "execute", 0.0, None))
            on_progress(Progress(number, episodes, "improve", 0.5, 3.21))
            on_record(record)
        if seed == 99:
            raise KeyboardInterrupt
        return run

    monkeypatch.setattr("bayespilco.algorithm.learn", learn)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.mark.usefixtures("quick")
def test_learning_leaves_a_run_and_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("learn", "spring", "--episodes", "2", "--executions", "5", "--out", "first") == 0
    files = sorted(file.name for file in Path("first").iterdir())
    assert files == [
        "config.toml",
        "costs.png",
        "episode-00.safetensors",
        "episode-01.safetensors",
        "evaluation.json",
        "evaluation.safetensors",
        "learning.png",
        "metrics.jsonl",
        "states.png",
    ]
    assert len(runs.load("first").records) == 2
    executed = runs.load_evaluation("first")
    assert executed is not None
    costs = np.asarray(executed.costs).sum(axis=1)
    shown = capsys.readouterr().out
    first, second = small_run().records
    assert f"cost {first.executed_cost:.2f} of at most 21" in " ".join(shown.split())
    assert f"predicted cost {second.predicted_cost:.2f}" in shown
    assert "velocity [m/s]" in shown
    assert "search stopped after 11 evaluations: the gradient vanished" in " ".join(shown.split())
    error = costs.std(ddof=1) / np.sqrt(5)
    assert f"executed 5 times: cost {costs.mean():.2f} ± {error:.2f}" in " ".join(shown.split())
    assert "first/costs.png" in shown


@pytest.mark.usefixtures("quick")
def test_an_earlier_run_is_replaced_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    again = ("learn", "spring", "--executions", "2")
    assert run(*again) == 0
    assert Path("runs/spring-bayes-filter-0/costs.png").exists()
    capsys.readouterr()
    assert run(*again) == 2
    assert "not empty" in capsys.readouterr().err
    assert run(*again, "--force") == 0


@pytest.mark.usefixtures("quick")
def test_an_interruption_keeps_what_was_learned(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("learn", "spring", "--seed", "99", "--episodes", "5", "--out", "cut") == 130
    assert capsys.readouterr().err == "Interrupted. 2 of 5 episodes are saved in cut.\n"
    assert len(runs.load("cut").records) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["learn", "cartpole"], "Unknown task 'cartpole'; there are: cart-pole, spring. Did you mean 'cart-pole'?"),
        (["learn", "spring", "--method", "pilko"], "Did you mean 'pilco'?"),
        (["learn", "spring", "--training", "indirect"], "Did you mean 'direct'?"),
        (["learn", "spring", "--episodes", "0"], "--episodes must be at least 1; given 0."),
        (["learn", "spring", "--executions", "-1"], "--executions must be at least 1; given -1."),
        (["learn", "spring", "--seed", "-1"], "--seed must be at least 0; given -1."),
        (["learn", "spring", "--episodes", "many"], "--episodes"),
        (["learn"], "task"),
        (["learn", "spring", "--outt", "x"], "--out"),
        (["lern"], "lern"),
        (["learn", "spring", "--out", "file"], "file is a file; give a directory."),
        (["learn", "spring", "--out", "file/below"], "Cannot write to file/below: Not a directory."),
    ],
)
def test_mistakes_get_one_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("bayespilco: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [path.name for path in Path().iterdir()] == ["file"], "nothing may be left behind"


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "bayespilco learn spring" in " ".join(capsys.readouterr().out.split())
    assert run("learn", "--help") == 0
    shown = capsys.readouterr().out
    for name in [*tasks.TASKS, *METHODS, "--seed", "--force", "costs.png"]:
        assert name in shown


def test_lists_are_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tasks") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in tasks.TASKS)
    assert run("methods") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in METHODS)
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("bayespilco 0.")


IN_A_PROCESS = """
import os, sys
from bayespilco.cli import main
try:
    main(sys.argv[1:])
finally:
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    print("threads:", sum("XLAEigen" in name for name in names))
"""


OF_THE_TESTS = ("NPROC", "BAYESPILCO_NO_CACHE", "JAX_COMPILATION_CACHE_DIR")
"""What `check` sets for the tests, and a user's environment does not have."""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads where Linux lists them")
def test_the_process_has_one_xla_thread_and_survives_without_a_home(tmp_path: Path) -> None:
    """Several threads can wait for each other forever: see `startup`."""
    nowhere = {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/proc/nonexistent"}
    environment = {k: v for k, v in os.environ.items() if k not in OF_THE_TESTS} | nowhere
    source = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_A_PROCESS, "tasks"],
        env=environment | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "threads: 1" in done.stdout


@pytest.mark.slow
def test_the_whole_command_learns(tmp_path: Path) -> None:
    """Nothing replaced: a real run, and the same numbers from the compiled code that it kept."""
    environment = {k: v for k, v in os.environ.items() if k not in OF_THE_TESTS}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(Path(__file__).parents[1])}
    seconds = []
    for name in ("one", "two"):
        begin = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS, "learn", "spring", "--episodes", "1", "--out", str(tmp_path / name)],
            env=environment,
            check=True,
        )
        seconds.append(time.monotonic() - begin)
    assert (tmp_path / "one" / "metrics.jsonl").read_text() == (tmp_path / "two" / "metrics.jsonl").read_text()
    assert any((tmp_path / "cache" / "bayespilco" / "compiled").iterdir())
