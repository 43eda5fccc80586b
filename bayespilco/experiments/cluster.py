"""Jobs on a Dask cluster, for when one machine is not enough.

Workers read and write the study's own directory, so they have to see it under the same path; and they need the same
version of this library. Start them with one thread each, and let a nanny restart those that die:

    dask scheduler
    NPROC=1 dask worker tcp://head:8786 --nworkers 8 --nthreads 1
"""

import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

from bayespilco.experiments.jobs import Ended, Job, explain, perform
from bayespilco.version import VERSION

CONNECTING = 10.0
"""Seconds to find the scheduler in."""
PATIENCE = 60.0
"""Seconds until a file that another machine has written must be seen: network file systems remember what was not
there."""


class Cluster:
    """The workers of a Dask scheduler, a job for each."""

    def __init__(self, address: str, directory: Path) -> None:
        """Connect. `directory` is the one that all workers must see."""
        try:
            from distributed import Client
        except ImportError:
            raise ValueError("A Dask cluster needs Dask here too: pip install 'bayespilco[dask]'.") from None
        self.directory, self.address, self._size = directory.resolve(), address, 0
        try:
            self.client = Client(address, timeout=CONNECTING, set_as_default=False)
        except (OSError, TimeoutError) as error:
            raise ValueError(f"There is no Dask scheduler at {address}: {error}") from error

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.client.close()

    @property
    def size(self) -> int:
        """As many as there are workers; what it was last, while the scheduler cannot be asked."""
        self.check()
        try:
            self._size = len(self.client.scheduler_info(n_workers=-1)["workers"])
        except (OSError, TimeoutError, RuntimeError):
            self.check()
        return self._size

    def check(self) -> None:
        """Refuse to wait for a scheduler that is gone for good. For one that comes back, Dask waits by itself."""
        if self.client.status in ("closed", "closing"):
            raise ValueError(
                f"The Dask scheduler at {self.address} is gone: it was stopped, or cannot be reached any more. Start "
                "it again with its workers, and run the same command: what is finished is kept."
            )

    def start(self, job: Job) -> "_Remote":
        key = f"{job.name} {uuid.uuid4()}"
        future = self.client.submit(_on_a_worker, job, VERSION, self.directory, key=key, pure=False)
        return _Remote(job, future, self)


class _Remote:
    def __init__(self, job: Job, future: Any, cluster: Cluster) -> None:
        self.job, self.future, self.cluster = job, future, cluster
        self.until: float | None = None

    def poll(self) -> Ended | None:
        self.cluster.check()
        if not self.future.done():
            return None
        if self.future.status == "finished":
            self.until = self.until or time.monotonic() + PATIENCE
            if not self.job.finished and time.monotonic() < self.until:
                return None
            return Ended(None if self.job.finished else f"its worker ended, but {self.job.result} cannot be seen here")
        if self.future.status in ("cancelled", "lost"):  # a scheduler that was restarted has forgotten it
            return Ended("the Dask scheduler forgot it: was it restarted?", lost=True)
        error = self.future.exception(timeout=10)
        # Dask has started it several times by then, each time on another worker if there was one.
        return Ended(explain(error) if error is not None else "it failed without saying why")

    def stop(self) -> None:
        self.future.cancel()


def _on_a_worker(job: Job, version: str, directory: Path) -> None:
    if version != VERSION:
        raise ValueError(f"the worker has bayespilco {VERSION}, and was asked by {version}: install the same there")
    if not directory.is_dir():
        raise ValueError(f"the worker does not see {directory}: the directory has to be on a shared file system")
    until = time.monotonic() + PATIENCE
    while not all(need.exists() for need in job.needs) and time.monotonic() < until:
        time.sleep(0.5)
    perform(job)
