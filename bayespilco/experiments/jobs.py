"""Independent jobs, some of which need others' results: one small interface, and two places to run them.

A job writes its result as one file, whole or not at all. So a job is finished when its file is there, and that is all
that has to be known to go on after an interruption; nothing that is finished is computed again. `Local` runs each job
in a process of its own; `Cluster` hands them to Dask, whose workers must see the same directory. A job whose process
or worker dies is started again; one that raises an error is not, and the others go on without it.
"""

import dataclasses
import multiprocessing
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bayespilco import interrupts, startup
from bayespilco.startup import available_cores, end_with_parent

ATTEMPTS = 3
"""How often a job is started before its place is taken to be at fault."""
POLL = 0.1
"""Seconds between looks at what is running."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """Something to compute."""

    name: str
    result: Path
    """The file that is there when the job is finished, and not before."""
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    needs: tuple[Path, ...] = ()
    """Results of other jobs that this one reads."""
    pieces: tuple[Path, str, int] | None = None
    """Where its work can be seen to grow: files in a directory, of a pattern, how many in the end."""

    @property
    def finished(self) -> bool:
        return self.result.exists()

    def __str__(self) -> str:
        if self.pieces is None:
            return self.name
        directory, pattern, total = self.pieces
        return f"{self.name} {len(list(directory.glob(pattern)))}/{total}"


class Ended(NamedTuple):
    """How a started job ended: with an error, or lost because whoever ran it died; or neither."""

    error: str | None = None
    lost: bool = False


@runtime_checkable
class Started(Protocol):
    def poll(self) -> Ended | None:
        """How it ended; None while it runs."""

    def stop(self) -> None: ...


@runtime_checkable
class Place(Protocol):
    """Where jobs run. A context manager: leaving it stops what still runs."""

    @property
    def size(self) -> int:
        """How many jobs can run at a time."""

    def start(self, job: Job) -> Started: ...


class Status(NamedTuple):
    """For a progress display."""

    finished: int
    total: int
    running: dict[str, float]
    """What they are, and seconds since they were started."""
    failed: dict[str, str]
    """Names, and the errors."""


def run(
    jobs: Sequence[Job],
    place: Place,
    *,
    on_status: Callable[[Status], None] = lambda status: None,
    on_finished: Callable[[Job], None] = lambda job: None,
) -> dict[str, str]:
    """Run all jobs that are not finished, those listed first as early as possible.

    Returns:
        The errors of those that failed, by name; those that needed them are not started.
    """
    waiting = [job for job in jobs if not job.finished]
    running: dict[Job, tuple[Started, float]] = {}
    attempts: Counter[Job] = Counter()
    failed: dict[Job, str] = {}

    def status() -> Status:
        now = time.monotonic()
        return Status(
            sum(job.finished for job in jobs),
            len(jobs),
            {str(job): now - since for job, (_, since) in running.items()},
            {job.name: error for job, error in failed.items()},
        )

    try:
        while waiting or running:
            for job in list(waiting):
                if any(other.result in job.needs for other in failed):
                    failed[job] = "not started, as what it needs failed"
                    waiting.remove(job)
                elif len(running) < place.size and all(need.exists() for need in job.needs):
                    running[job] = (place.start(job), time.monotonic())
                    attempts[job] += 1
                    waiting.remove(job)
            on_status(status())
            time.sleep(POLL)
            for job, (started, _) in list(running.items()):
                ended = started.poll()
                if ended is None:
                    continue
                del running[job]
                if job.finished:  # even if its worker died right afterwards
                    on_finished(job)
                elif ended.lost and attempts[job] < ATTEMPTS:
                    waiting.insert(0, job)
                else:
                    failed[job] = ended.error or f"its process died, {attempts[job]} times"
        on_status(status())
    finally:
        for started, _ in running.values():
            started.stop()
    return {job.name: error for job, error in failed.items()}


class Local:
    """A process for each job, as many at a time as there are cores, each with one thread of XLA."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size or available_cores()
        # "spawn": a fork would inherit threads of JAX that are no longer there.
        self._context = multiprocessing.get_context("spawn")

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        pass

    def start(self, job: Job) -> "_Process":
        receiving, sending = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(job, sending), name=job.name)
        with interrupts.withheld():
            process.start()
        sending.close()
        return _Process(process, receiving)


class _Process:
    def __init__(self, process: Any, errors: Connection) -> None:
        self.process, self.errors = process, errors

    def poll(self) -> Ended | None:
        if self.process.exitcode is None:
            return None
        self.process.join()
        try:
            error = self.errors.recv() if self.errors.poll() else None
        except EOFError:
            error = None
        self.errors.close()
        return Ended(error, lost=error is None)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()


def _work(job: Job, errors: Connection) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        perform(job)
    except Exception as error:
        errors.send(explain(error))
        raise SystemExit(1) from None


_one_at_a_time = threading.Lock()


def perform(job: Job) -> None:
    """Do a job in this process, unless it is done already. A process does one at a time."""
    with _one_at_a_time:
        startup.single_thread()
        startup.collect_rarely()
        if not os.environ.get(startup.NO_CACHE):
            startup.keep_compiled_code()
        if not job.finished:
            job.function(*job.arguments)


def explain(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
