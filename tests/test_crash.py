"""Whatever fails while files are written, and whenever: nothing is lost that was there, and going on ends the same.

The process dies, or the disk is full, at every system call in turn; afterwards the disk shows everything that it may.
"""

import functools
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Controller, Run
from bayespilco.deploy import export, logs
from bayespilco.model.episode import Episode
from bayespilco.runs.config import Config
from bayespilco.runs.directory import RunDirectory
from tests.faulty_disk import AFTERWARDS, Died, Disk
from tests.small_run import assert_same, small_run


@functools.cache
def executed() -> Episode:
    """Executions of the final policy: the last episode, twice."""
    last = small_run().records[-1].episode
    twice: Episode = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), last)
    return twice


def go_on(directory: Path) -> None:
    """What learning does to the directory of a run: begin it, or go on with what is there, to the end."""
    run = small_run()
    begun = (directory / "config.toml").exists()
    opened = RunDirectory.open(directory, run.task) if begun else None
    with opened or RunDirectory.create(directory, Config(run.task.name, run.settings), run.task) as kept:
        kept.keep(run.records)
        if not kept.finished:
            kept.keep_evaluation(executed())
            kept.conclude(executed())


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], int]:
    """The files of a run that nothing happened to, and the number of its system calls."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    with Disk().used() as disk:
        go_on(directory)
    return contents(directory), disk.calls


def moments(calls: int, every: int) -> range:
    return range(0, calls, every)


EVERY = [9, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
"""In the everyday run every ninth moment, which meets each kind of call; otherwise all."""


@pytest.mark.parametrize("every", EVERY)
def test_a_run_whose_process_dies_at_any_system_call_ends_the_same(
    every: int, whole: tuple[dict[str, bytes], int], tmp_path: Path
) -> None:
    expected, calls = whole
    assert calls > 50
    count = 0
    for moment in moments(calls, every):
        for afterwards in AFTERWARDS:
            directory, disk = tmp_path / "run", Disk(moment)
            with disk.used(), pytest.raises(Died):
                go_on(directory)
            disk.leave(afterwards)
            there = list(directory.glob("episode-*.safetensors"))
            if there:  # what can be loaded is right, to the bit
                for number, record in enumerate(Run.load(directory, small_run().task).records):
                    assert_same(record, small_run().records[number])
            go_on(directory)
            assert contents(directory) == expected, f"died at call {moment}, {afterwards}"
            shutil.rmtree(directory)
            count += 1
    print(f"{count} crashes of a run, and all ended identically")


@pytest.mark.parametrize("every", EVERY)
def test_a_run_on_a_full_disk_says_so_and_goes_on(
    every: int, whole: tuple[dict[str, bytes], int], tmp_path: Path
) -> None:
    """An error that names the file, or none where nothing is lost (the sync of a directory); and no rubbish."""
    expected, calls = whole
    refused = 0
    for moment in moments(calls, every):
        directory = tmp_path / "run"
        with Disk(moment, full=True).used():
            try:
                go_on(directory)
            except OSError as error:
                refused += 1
                assert "Cannot write" in str(error) or "Cannot delete" in str(error), error
                assert "No space left on device" in str(error)
                assert not list(directory.glob(".*")), "a file that was not finished is deleted"
        go_on(directory)
        assert contents(directory) == expected
        shutil.rmtree(directory)
    assert refused > len(moments(calls, every)) / 2
    print(f"the disk was full {refused} times")


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("what", ["log", "controller", "c"])
def test_a_file_is_the_old_one_or_the_new_one(what: str, full: bool, tmp_path: Path) -> None:
    """At every system call of adding an episode to a log, and of exporting a controller."""
    file = tmp_path / ("file.c" if what == "c" else "file")
    agents = [small_run().controller_after(number) for number in (0, 1)]

    def write(number: int) -> None:
        if what == "log":
            logs.append(file, ["x"], ["u"], [0.0, 0.1], np.full((2, 1), number), np.zeros((1, 1)))
        elif what == "controller":
            export.save(agents[number], file, force=True)
        else:
            export.save_c(agents[number], file, force=True)

    write(0)
    old = file.read_bytes()
    with Disk().used() as disk:
        write(1)
    new, calls = file.read_bytes(), disk.calls
    assert old != new and calls >= 7
    met = set()
    for moment in range(calls):
        for afterwards in ("kept",) if full else AFTERWARDS:
            file.write_bytes(old)
            disk = Disk(moment, full)
            with disk.used():
                try:
                    write(1)
                except Died:
                    disk.leave(afterwards)
                except OSError as error:
                    assert "No space left on device" in str(error)
            found = file.read_bytes()
            met.add(found)
            assert found in (old, new), f"call {moment}, {afterwards}"
            if what == "controller":
                assert isinstance(Controller.load(file), Controller)
    assert met == {old, new}


def test_the_disk_is_as_bad_as_it_says(tmp_path: Path) -> None:
    """Without the sync of its data, a file may be cut: this is what the other tests would find."""
    from bayespilco.deploy import files

    disk = Disk(4)
    with disk.used():
        files.os.fsync = lambda descriptor: disk.call()  # type: ignore[method-assign, assignment]
        with pytest.raises(Died):
            files.write(tmp_path / "a", b"0123456789")
            files.write(tmp_path / "b", b"0123456789")
    disk = Disk()
    with disk.used():
        files.os.fsync = lambda descriptor: disk.call()  # type: ignore[method-assign, assignment]
        files.write(tmp_path / "c", b"0123456789")
    disk.leave("torn")
    assert (tmp_path / "c").read_bytes() == b"01234"
