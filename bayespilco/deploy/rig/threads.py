"""Where the plant's methods are called: here, or in a thread, so that a call that does not return can be given up."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from bayespilco.deploy.rig.pacing import monotonic
from bayespilco.deploy.rig.recording import Stop
from bayespilco.deploy.rig.signals import Ending

Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]
"""A function to call with its arguments, and where what it returns is wanted."""


class Here:
    """Calls functions in the current thread."""

    busy = False

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class Thread:
    """Calls functions in a thread of its own."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.last: Future[Any] | None = None
        threading.Thread(target=self._work, args=(self.jobs,), daemon=True).start()

    @staticmethod
    def _work(jobs: queue.SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            future, function, arguments = job
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

    @property
    def busy(self) -> bool:
        return self.last is not None and not self.last.done()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self.last = Future()
        self.jobs.put((self.last, function, arguments))
        return self.last

    def __del__(self) -> None:
        self.jobs.put(None)


Caller = Here | Thread


def call(
    caller: Caller,
    function: Callable[..., Any],
    *arguments: Any,
    ending: Ending,
    until: float | None = None,
    what: str = "the first sample",
) -> Any:
    """What a function returns or raises, if it does so in time and nobody ends the episode. Otherwise a `Stop`."""
    future = caller.submit(function, *arguments)
    if not future.done():
        either = [future] if ending.asked is None else [future, ending.asked]
        timeout = None if until is None else max(0.0, until - monotonic())
        wait(either, timeout=timeout, return_when=FIRST_COMPLETED)
    ending.check()
    if not future.done():
        raise Stop("late", f"the plant did not answer in time: {what} did not come")
    return future.result()
