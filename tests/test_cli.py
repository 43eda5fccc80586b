"""The command: what it writes, what it says, and how it fails."""

import contextlib
import dataclasses
import errno
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from bayespilco import METHODS, Progress, Record, Run, Settings, Task, learn, runs, tasks
from bayespilco.cli import main, with_settings
from bayespilco.console import Display
from bayespilco.core.optimise import Reason
from bayespilco.settings import setting
from bayespilco.version import VERSION
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

    def learn_episode(_: Task, settings: Settings, records: Sequence[Record], on_progress: Any, *__: Any) -> Record:
        number = len(records)
        if settings.seed == 99 and number == 2:
            raise KeyboardInterrupt
        on_progress(Progress(number, settings.episodes, "execute", 0.0, None))
        on_progress(Progress(number, settings.episodes, "improve", 0.5, 3.21))
        return small_run(4).records[number]

    monkeypatch.setattr("bayespilco.algorithm.learn_episode", learn_episode)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures, which take seconds."""
    monkeypatch.setattr("bayespilco.report.save_figures", lambda *_: [])
    monkeypatch.setattr("bayespilco.report.page", lambda *_: "")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.mark.usefixtures("quick")
def test_learning_leaves_a_run_and_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("learn", "spring", "--episodes", "2", "--executions", "2", "--out", "first") == 0
    files = sorted(file.name for file in Path("first").iterdir())
    assert files == [
        "certificate.json",
        "config.toml",
        "costs.png",
        "episode-00.safetensors",
        "episode-01.safetensors",
        "evaluation.json",
        "evaluation.safetensors",
        "learning.png",
        "metrics.jsonl",
        "motion.gif",
        "poses.png",
        "report.html",
        "states.png",
        "task.json",
    ]
    assert len(Run.load("first").records) == 2
    executed = runs.load_evaluation("first")
    assert executed is not None
    costs = np.asarray(executed.costs).sum(axis=1)
    shown = capsys.readouterr().out
    first, second = small_run().records
    assert f"cost {first.executed_cost:.2f} of at most 21" in " ".join(shown.split())
    assert f"predicted cost {second.predicted_cost:.2f}" in shown
    assert "velocity [m/s]" in shown
    assert f"search stopped after 11 evaluations: {Reason.CONVERGED.sentence}." in " ".join(shown.split())
    error = costs.std(ddof=1) / np.sqrt(2)
    assert f"executed 2 times: cost {costs.mean():.2f} ± {error:.2f}" in " ".join(shown.split())
    assert "first/costs.png" in shown


@pytest.mark.usefixtures("quick")
@pytest.mark.usefixtures("undrawn")
def test_an_earlier_run_is_replaced_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    again = ("learn", "spring", "--executions", "2", "--episodes", "2")
    assert run(*again) == 0
    assert Path("runs/spring-bayes-filter-0/evaluation.json").exists()
    capsys.readouterr()
    assert run(*again) == 2
    assert "not empty" in capsys.readouterr().err
    assert run(*again, "--force") == 0


@pytest.mark.usefixtures("quick")
def test_an_interruption_keeps_what_was_learned(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("learn", "spring", "--seed", "99", "--episodes", "5", "--out", "cut") == 130
    said = capsys.readouterr().err
    assert said == "Interrupted. 2 of 5 episodes are saved in cut; go on with: bayespilco resume cut\n"
    assert len(Run.load("cut").records) == 2


def test_an_interruption_that_python_drops_is_not_lost() -> None:
    """As it does with exceptions from JAX's callback of the garbage collector."""
    before = signal.getsignal(signal.SIGINT)
    with Display(Console(quiet=True), small_run()) as display:
        display.on_progress(Progress(0, 2, "execute", 0.0, None))
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            display.on_progress(Progress(0, 2, "train", 0.0, None))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("quick")
def test_an_interrupted_run_is_resumed_and_a_finished_one_left_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("learn", "spring", "--seed", "99", "--executions", "2", "--out", "cut")
    assert run(*options, "--episodes", "4", "--tensorboard") == 130
    monkeypatch.setattr("bayespilco.algorithm.learn_episode", lambda *given: small_run(4).records[len(given[2])])
    capsys.readouterr()
    assert run("resume", "cut") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Resuming spring with bayes-filter, seed 99 after 2 of 4 episodes, into cut" in shown
    assert "Episode 2 of 4" not in shown and "Episode 3 of 4" in shown and "executed 2 times" in shown
    assert np.array_equal(Run.load("cut").policy.offset, small_run(4).policy.offset)
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in Path("cut").iterdir() if file.is_file()}
    assert {"costs.png", "learning.png", "states.png"} <= {file.name for file in before}
    assert run("resume", "cut") == 0
    assert capsys.readouterr().out == "Nothing to do: the run in cut is finished, with 4 episodes.\n"
    after = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in Path("cut").iterdir() if file.is_file()}
    assert after == before


@pytest.mark.usefixtures("quick")
def test_a_picture_that_is_missing_is_drawn_by_resuming() -> None:
    assert run("learn", "spring", "--episodes", "1", "--executions", "2", "--out", "first") == 0
    executed = Path("first/evaluation.safetensors").read_bytes()
    for name in ("states.png", "evaluation.json"):
        Path("first", name).unlink()
    assert run("resume", "first") == 0
    assert Path("first/states.png").exists() and Path("first/evaluation.json").exists()
    assert Path("first/evaluation.safetensors").read_bytes() == executed


@pytest.mark.usefixtures("quick")
def test_a_run_can_be_given_more_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("learn", "spring", "--episodes", "1", "--executions", "2", "--out", "first") == 0
    assert run("resume", "first", "--episodes", "3") == 0
    assert run("learn", "spring", "--episodes", "3", "--executions", "2", "--out", "second") == 0
    for file in Path("second").iterdir():
        assert Path("first", file.name).read_bytes() == file.read_bytes(), file.name
    capsys.readouterr()
    assert run("resume", "first", "--episodes", "2") == 2
    assert "has 3 episodes already; given 2" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
@pytest.mark.usefixtures("undrawn")
def test_a_run_is_repeated_from_its_configuration() -> None:
    assert run("learn", "spring", "--episodes", "2", "--points", "7", "--executions", "2", "--out", "first") == 0
    assert run("learn", "first/config.toml", "--seed", "5", "--training", "direct") == 0
    config = runs.Config.read(Path("runs/spring-bayes-filter-5/config.toml"))
    assert config == runs.Config(
        "spring", Settings(episodes=2, points=7, seed=5, training="direct", structure="second-order"), executions=2
    )


@pytest.mark.usefixtures("quick")
@pytest.mark.usefixtures("undrawn")
def test_a_run_of_another_version_is_used_with_a_note(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("learn", "spring", "--seed", "99", "--episodes", "3", "--executions", "2", "--out", "cut") == 130
    text = Path("cut/config.toml").read_text().replace(f'"{runs.Config("").version}"', '"0.0.7"')
    Path("cut/config.toml").write_text(text)
    monkeypatch.setattr("bayespilco.algorithm.learn_episode", lambda *given: small_run(4).records[len(given[2])])
    capsys.readouterr()
    note = f"bayespilco: The run in cut was begun by bayespilco 0.0.7; this is {VERSION}, and may differ.\n"
    assert run("resume", "cut") == 0
    assert capsys.readouterr().err == note
    monkeypatch.setattr("warnings.filters", [])  # not an error here, but as for a user
    assert run("export", "cut", "--out", "cut.controller") == 0
    assert capsys.readouterr().err == note


@pytest.mark.usefixtures("quick")
@pytest.mark.usefixtures("undrawn")
def test_a_refused_command_replaces_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("learn", "spring", "--episodes", "1", "--executions", "2", "--out", "first") == 0
    before = {file: file.read_bytes() for file in Path("first").iterdir()}
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    for bad in (("--tensorboard",), ("--seed", str(2**63)), ("--from-data", "none.csv"), ("--points", "0")):
        capsys.readouterr()
        assert run("learn", "spring", "--out", "first", "--force", *bad) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert {file: file.read_bytes() for file in Path("first").iterdir()} == before, bad


@pytest.mark.usefixtures("quick")
@pytest.mark.usefixtures("undrawn")
def test_the_same_again_begins_with_the_same_data() -> None:
    rows = [f"0,{0.2 * k:.1f},{0.1 * k},{0.3 - 0.01 * k},{0.5}" for k in range(6)]
    Path("log.csv").write_text("\n".join(["episode,time,position,velocity,force", *rows]) + "\n")
    options = ("--episodes", "1", "--executions", "2")
    assert run("learn", "spring", *options, "--from-data", "log.csv", "--out", "first") == 0
    Path("log.csv").unlink()
    assert run("learn", "first/config.toml", "--out", "second") == 0
    for name in ("logged.csv", "episode-00.safetensors"):
        assert Path("second", name).read_bytes() == Path("first", name).read_bytes()
    Path("first/logged.csv").unlink()
    with pytest.raises(ValueError, match=r"episode-00\.safetensors is not of this run: .*check sum of logged\.csv"):
        Run.load("first")


@pytest.mark.usefixtures("quick")
@pytest.mark.usefixtures("undrawn")
def test_a_path_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("odd [bold]x[1]", "[/b]"):
        assert run("learn", "spring", "--episodes", "1", "--executions", "2", "--out", path) == 0
        assert f"into {path}" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
@pytest.mark.usefixtures("undrawn")
def test_a_full_disk_ends_with_a_sentence_and_the_last_good_state(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []

    def fsync(descriptor: int) -> None:
        """Room for task, configuration, an episode, its line, and its certificate with the line anew; each is followed
        by the directory's own."""
        written.append(descriptor)
        if len(written) > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("os.fsync", fsync)
        assert run("learn", "spring", "--episodes", "3", "--executions", "2", "--out", "full") == 2
    assert capsys.readouterr().err == (
        "bayespilco: Cannot write full/episode-01.safetensors: No space left on device. "
        "1 of 3 episodes are saved in full; go on with: bayespilco resume full\n"
    )
    names = ["certificate.json", "config.toml", "episode-00.safetensors", "metrics.jsonl", "task.json"]
    assert sorted(file.name for file in Path("full").iterdir()) == names
    assert run("resume", "full") == 0
    assert len(Run.load("full").records) == 3


@pytest.mark.usefixtures("quick")
def test_a_file_size_limit_is_met_in_the_middle_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel itself refuses to write on: what a full disk does, without one."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        assert run("learn", "spring", "--episodes", "2", "--out", "full") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = capsys.readouterr().err
    assert error.startswith("bayespilco: Cannot write full/episode-00.safetensors: File too large.")
    assert error.count("\n") == 1
    assert sorted(file.name for file in Path("full").iterdir()) == ["config.toml", "task.json"]


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a directory that even root cannot write to")
def test_a_directory_that_cannot_be_written_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("learn", "spring", "--out", "/sys/run") == 2
    assert re.match(r"bayespilco: Cannot write to /sys/run: [\w ]+\.\n$", capsys.readouterr().err)


@pytest.mark.usefixtures("quick")
@pytest.mark.usefixtures("undrawn")
def test_a_run_on_a_disk_that_became_read_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the refusal is put in the kernel's place."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "first/evaluation.json")

    assert run("learn", "spring", "--episodes", "1", "--executions", "2", "--out", "first") == 0
    before = {file: file.read_bytes() for file in Path("first").iterdir()}
    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", refuse)
        read_only.setattr("tempfile.mkstemp", refuse)
        for command in (("resume", "first", "--episodes", "2"), ("learn", "spring", "--out", "first", "--force")):
            capsys.readouterr()
            assert run(*command) == 2
            error = capsys.readouterr().err
            assert re.match(r"bayespilco: Cannot delete first/[\w.]+: Read-only file system\.\n$", error), error
    assert {file: file.read_bytes() for file in Path("first").iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["learn", "cartpole"], "Unknown task 'cartpole'; there are: cart-pole, "),
        (["learn", "cartpole"], "Did you mean 'cart-pole'?"),
        (["learn", "spring", "--from-data", "file"], "file is empty: its first line must name the columns."),
        (["learn", "spring", "--method", "pilko"], "Did you mean 'pilco'?"),
        (["learn", "spring", "--training", "indirect"], "Did you mean 'direct'?"),
        (["learn", "spring", "--episodes", "0"], "episodes must be at least 1; given 0."),
        (["learn", "spring", "--executions", "-1"], "executions must be at least 1; given -1."),
        (["learn", "spring", "--seed", "-1"], "seed must be at least 0; given -1."),
        (["learn", "spring", "--seed", str(2**63)], f"seed must be at most {2**63 - 1}; given {2**63}."),
        (["learn", "spring", "--episodes", "many"], "--episodes"),
        (["learn"], "task"),
        (["learn", "spring", "--outt", "x"], "--out"),
        (["lern"], "lern"),
        (["learn", "spring", "--out", "file"], "file is a file; give a directory."),
        (["learn", "missing.toml"], "missing.toml cannot be read"),
        (["resume", "nowhere"], "nowhere is not the directory of a run: it has no config.toml."),
        (["resume", "file"], "file is not the directory of a run"),
        (["resume"], "directory"),
        (["learn", "spring", "--out", "file/below"], "Cannot write to file/below: Not a directory."),
        (["reproduce"], "--out"),
        (["reproduce", "--out", "x", "--seeds", "0"], "--seeds must be at least 1; given 0."),
        (["reproduce", "--out", "x", "--workers", "0"], "--workers must be at least 1; given 0."),
        (["reproduce", "--out", "x", "--task", "spirng"], "Did you mean 'spring'?"),
        (["reproduce", "--out", "file"], "file is neither empty nor the directory of a study"),
        (["learning-curves"], "--out"),
        (["learning-curves", "--out", "x", "--seeds", "0"], "--seeds must be at least 1; given 0."),
        (["learning-curves", "--out", "x", "--episodes", "0"], "--episodes must be at least 1; given 0."),
        (["learning-curves", "--out", "x", "--methods", "pilco, bayes-fliter"], "Did you mean 'bayes-filter'?"),
        (["learning-curves", "--out", "x", "--noise", "0"], "multiplied by a positive number; given 0.0."),
        (["learning-curves", "--out", "x", "--thresholds", "20;10"], "numbers with commas between them"),
        (["learning-curves", "--out", "x", "--sensors", "lean"], "Unknown sensor of 'cart-pole': 'lean'"),
        (["learning-curves", "--out", "file"], "file is neither empty nor the directory of a study"),
        (["evaluate", "nowhere"], "nowhere is not the directory of a run: it has no config.toml."),
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
    words = " ".join(shown.replace("│", " ").split())
    for name, value in runs.Config("").entries().items():
        flag, default = name.replace("_", "-"), value
        if isinstance(value, bool):
            no = "whole" if name == "in_parts" else f"no-{flag}"
            flag, default = f"{flag} --{no}", flag if value else no
        pattern = rf"--{flag} (?:(?!--).)*\[default: \({default}\)\]"
        if name == "stop_unless_go":  # its opposite is too long for the column
            pattern = r"--stop-unless-go --whatever-happ"
        assert name in ("task", "version") or re.search(pattern, words), name
    assert run("resume", "--help") == 0
    assert "kill -9" in capsys.readouterr().out
    assert run("learning-curves", "--help") == 0
    shown = capsys.readouterr().out
    settings = [field.name.replace("_", "-") for field in dataclasses.fields(Settings)]
    assert all(f"--{name}" in shown for name in settings if name not in ("method", "seed"))
    assert "--seed " not in shown and "--method " not in shown


def options_of(command: Any) -> list[str]:
    return [each.name for each in get_command(command).params]


def test_a_setting_is_one_line() -> None:
    """Its option, its argument of `learn`, its entry of config.toml and its help are all made from it."""
    names = [field.name for field in dataclasses.fields(Settings)]
    assert names == list(inspect.signature(learn).parameters)[1:2] + [
        name for name in inspect.signature(learn).parameters if name in names[1:]
    ]
    assert all(
        f"{field.name}: {field.metadata['help']}" in (learn.__doc__ or "") for field in dataclasses.fields(Settings)
    )

    kind = dataclasses.make_dataclass(
        "More", [("patience", int, setting(7, "How long to wait.", lowest=2))], bases=(Settings,), frozen=True
    )
    given: dict[str, Any] = {}

    @with_settings(kind)
    def command(task: str, force: bool = False, **settings: Any) -> None:
        given.update(settings)

    app = typer.Typer()
    app.command()(command)
    assert options_of(app)[: len(names) + 2] == ["task", *names, "patience"]
    assert CliRunner().invoke(app, ["x", "--patience", "9", "--whole"]).exit_code == 0
    assert (given["patience"], given["in_parts"], given["seed"]) == (9, False, None)
    shown = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert "How long to wait." in shown and "(7)" in shown
    with pytest.raises(ValueError, match="patience must be at least 2; given 1"):
        kind(patience=1)
    with pytest.raises(ValueError, match="in_parts must be True or False; given 3"):
        kind(in_parts=3)
    with pytest.raises(ValueError, match=r"Unknown setting 'pionts'.*Did you mean 'points'\?"):
        learn("spring", pionts=3)


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
from bayespilco.runs.workers import WorkerPool
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
    """The cores are used by processes: see `startup`."""
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


@pytest.mark.usefixtures("quick", "undrawn")
def test_lines_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("learn", "spring", "--episodes", "2", "--executions", "2", "--out", "first", "--json", "--live") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == [
        "live",
        "stage",
        "stage",
        "episode",
        "stage",
        "stage",
        "episode",
        "end",
    ]
    assert lines[0]["address"].startswith("http://localhost:")
    assert lines[3]["predicted_cost"] == small_run(4).records[0].predicted_cost
    assert lines[-1]["directory"] == "first" and lines[-1]["evaluation"]["executions"] == 2
