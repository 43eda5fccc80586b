"""Jobs run everywhere alike: finished ones never again, killed ones once more, failed ones said so."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bayespilco.deploy.files import write
from bayespilco.experiments.cluster import Cluster
from bayespilco.experiments.jobs import ATTEMPTS, Job, Local, Place, Status, perform, run

PLACES = ["local", "dask"]


def work(directory: Path, name: str, reads: tuple[str, ...] = (), seconds: float = 0.0) -> None:
    """Note who works, take a while, and write what was read and one line more."""
    with (directory / f"{name}.log").open("a") as log:
        log.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    text = "".join((directory / read).read_text() for read in reads)
    write(directory / name, f"{text}{name}\n".encode())


def wrong(directory: Path) -> None:
    raise ValueError("the data are upside down")


def fatal(directory: Path) -> None:
    with (directory / "fatal.log").open("a") as log:
        log.write("once more\n")
    os.kill(os.getpid(), signal.SIGKILL)


def job(directory: Path, name: str, reads: tuple[str, ...] = (), seconds: float = 0.0) -> Job:
    needs = tuple(directory / read for read in reads)
    return Job(name, directory / name, work, (directory, name, reads, seconds), needs)


def pids(directory: Path, name: str) -> list[int]:
    file = directory / f"{name}.log"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@contextlib.contextmanager
def place(kind: str, directory: Path) -> Iterator[Place]:
    if kind == "local":
        with Local(2) as here:
            yield here
        return
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        Cluster(cluster.scheduler_address, directory) as there,
    ):
        yield there


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.xdist_group("jobs")
@pytest.mark.filterwarnings("default")  # of Dask's own, when a worker dies
def test_a_killed_worker_loses_only_its_job_which_is_done_again(kind: str, tmp_path: Path) -> None:
    """And results are the same as without, needed ones come first, finished ones are left alone."""
    write(tmp_path / "before", b"kept\n")
    jobs = [
        job(tmp_path, "last", ("long", "short", "before")),
        job(tmp_path, "long", seconds=3.0),
        job(tmp_path, "short"),
        job(tmp_path, "before"),
    ]
    killed, counts = [], []

    def kill_once(status: Status) -> None:
        counts.append((status.finished, len(status.running)))
        if (tmp_path / "short").exists() and pids(tmp_path, "long") and not killed:
            assert not (tmp_path / "long").exists()
            killed.append(pids(tmp_path, "long")[0])
            os.kill(killed[0], signal.SIGKILL)

    with place(kind, tmp_path) as here:
        assert run(jobs, here, on_status=kill_once) == {}
    assert (tmp_path / "last").read_text() == "long\nshort\nkept\nlast\n"
    first, second = pids(tmp_path, "long")
    assert killed == [first] != [second]
    assert len(pids(tmp_path, "short")) == len(pids(tmp_path, "last")) == 1
    assert not pids(tmp_path, "before")
    assert counts[0][0] == 1 and counts[-1] == (4, 0) and max(running for _, running in counts) == 2


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.xdist_group("jobs")
@pytest.mark.filterwarnings("default")
def test_an_error_stops_only_what_needs_the_job(kind: str, tmp_path: Path) -> None:
    needing = Job("needing", tmp_path / "needing", work, (tmp_path, "needing"), (tmp_path / "wrong",))
    jobs = [Job("wrong", tmp_path / "wrong", wrong, (tmp_path,)), needing, job(tmp_path, "other")]
    with place(kind, tmp_path) as here:
        failed = run(jobs, here)
    assert set(failed) == {"wrong", "needing"}
    assert failed["wrong"].startswith("ValueError: the data are upside down (test_jobs.py, line ")
    assert (tmp_path / "other").exists() and not pids(tmp_path, "needing")


def test_a_job_that_always_kills_its_process_is_given_up(tmp_path: Path) -> None:
    with Local(1) as here:
        failed = run([Job("fatal", tmp_path / "never", fatal, (tmp_path,))], here)
    assert failed == {"fatal": f"its process died, {ATTEMPTS} times"}
    assert len((tmp_path / "fatal.log").read_text().splitlines()) == ATTEMPTS


def test_leaving_stops_what_still_runs(tmp_path: Path) -> None:
    def interrupt(status: Status) -> None:
        if pids(tmp_path, "endless"):
            raise KeyboardInterrupt

    with Local(1) as here, pytest.raises(KeyboardInterrupt):
        run([job(tmp_path, "endless", seconds=600.0)], here, on_status=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(pids(tmp_path, "endless")[0], 0)


COMMAND = """
import sys
from pathlib import Path
from types import SimpleNamespace
from bayespilco.experiments.jobs import Local, run
from tests.test_jobs import job
if __name__ == "__main__":
    run([job(Path(sys.argv[1]), "endless", seconds=600.0)], Local(1))
"""


def test_a_killed_command_leaves_nobody_working(tmp_path: Path) -> None:
    """Who would still write where the next command begins."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    source = str(Path(__file__).parents[1])
    command = subprocess.Popen([sys.executable, script, tmp_path], env=os.environ | {"PYTHONPATH": source})
    while not pids(tmp_path, "endless"):
        assert command.poll() is None
        time.sleep(0.1)
    command.kill()
    command.wait()
    for _ in range(100):
        try:
            os.kill(pids(tmp_path, "endless")[0], 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the worker is still there")


def test_progress_shows_the_pieces(tmp_path: Path) -> None:
    one = Job("data", tmp_path / "data.json", work, (), pieces=(tmp_path, "episode-*", 3))
    assert str(one) == "data 0/3"
    (tmp_path / "episode-0").touch()
    assert str(one) == "data 1/3"


def test_a_cluster_that_is_not_there_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("bayespilco.experiments.cluster.CONNECTING", 0.5)
    with pytest.raises(ValueError, match=r"no Dask scheduler at tcp://127\.0\.0\.1:9"):
        Cluster("tcp://127.0.0.1:9", tmp_path)


def cluster(directory: Path, forgets: int) -> tuple[Cluster, list[str]]:
    """A cluster whose scheduler is restarted so many times, each time while a job runs; and what was submitted."""
    submitted: list[str] = []

    def submit(_: object, asked: Job, *given: object, key: str, pure: bool) -> SimpleNamespace:
        submitted.append(key)
        forgotten = len(submitted) <= forgets
        if not forgotten:
            perform(asked)
        status = "lost" if forgotten else "finished"
        return SimpleNamespace(done=lambda: True, status=status, cancel=lambda: None)

    there = Cluster.__new__(Cluster)
    there.directory, there.address, there._size = directory, "tcp://there:8786", 0
    there.client = SimpleNamespace(
        status="running", submit=submit, scheduler_info=lambda n_workers: {"workers": {"one": {}}}, close=lambda: None
    )
    return there, submitted


def test_what_a_restarted_scheduler_forgot_is_submitted_again(tmp_path: Path) -> None:
    there, submitted = cluster(tmp_path, forgets=1)
    assert run([job(tmp_path, "one")], there) == {}
    assert len(submitted) == 2 and len(set(submitted)) == 2 and len(pids(tmp_path, "one")) == 1
    there, submitted = cluster(tmp_path, forgets=100)
    assert run([job(tmp_path, "two")], there) == {"two": "the Dask scheduler forgot it: was it restarted?"}
    assert len(submitted) == ATTEMPTS


def test_a_scheduler_that_is_gone_for_good_is_not_waited_for(tmp_path: Path) -> None:
    there, _ = cluster(tmp_path, forgets=0)
    there.client.status = "closed"
    with pytest.raises(
        ValueError, match=r"tcp://there:8786 is gone: .* run the same command: what is finished is kept"
    ):
        run([job(tmp_path, "one")], there)
