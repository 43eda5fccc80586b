"""Ctrl-C in the command: one sentence and exit code 130, at any moment.

Python turns Ctrl-C into an exception in the main thread, wherever that is. Within a compilation, the exception travels
through C++ that does not expect it, and the process may crash. Within a callback whose exceptions are dropped, nothing
happens at all. So no exception is raised here. A thread that does nothing else waits for the signal,
says what is saved, and ends the process at once. That is safe because a run is safe against `kill -9`: its files are
written whole or not at all, and its helpers end when it ends.

    interrupts.guard()                  # first of all, before slow imports
    with interrupts.saying(sentence):   # a function; what it returns is said if Ctrl-C comes in here
        ...

A handler that replaces this one has its way: while an episode runs on a real plant, Ctrl-C stops the plant first
(`deploy.rig.signals`) and then raises `KeyboardInterrupt` as usual.

Only the command calls `guard`. A library must not take its user's signals: without it, everything here does nothing.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

EXIT_INTERRUPTED = 130
LONGEST = 2.0
"""Seconds that tidying up may take, before the process ends without it."""

_guarded = False
_pipe: list[int] = []
_begun = threading.Event()
_sentences: list[Callable[[], str]] = []
_tidying: list[Callable[[], object]] = []


def guard() -> None:
    """From now on Ctrl-C ends this process with a sentence. To be called once, in the main thread.

    A process that ignores Ctrl-C, as under `nohup` or in the background of a script, goes on ignoring it.
    """
    global _guarded
    if _guarded or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    # A thread, not a handler: Python runs handlers when the main thread is back from what it is doing in C.
    threading.Thread(target=_wait, args=(reading,), name="interrupts", daemon=True).start()
    _pipe.append(writing)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, _received)
    _guarded = True


def is_guarded() -> bool:
    """Whether Ctrl-C ends this process: then nobody needs a handler of their own to say something."""
    return _guarded and signal.getsignal(signal.SIGINT) is _received


@contextlib.contextmanager
def saying(sentence: Callable[[], str]) -> Iterator[None]:
    """What to say if Ctrl-C comes in this context. It is called in another thread, when it is needed."""
    _sentences.append(sentence)
    try:
        yield
    finally:
        _sentences.remove(sentence)


@contextlib.contextmanager
def tidying(action: Callable[[], object]) -> Iterator[None]:
    """What to do before the sentence if Ctrl-C comes in this context, such as giving the terminal its cursor back."""
    _tidying.append(action)
    try:
        yield
    finally:
        _tidying.remove(action)


@contextlib.contextmanager
def withheld() -> Iterator[None]:
    """Processes started in this context never see Ctrl-C: a terminal sends it to all, and the first decides what to do.

    This process still does, in its other threads.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would let the signals through again when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def finish() -> None:
    """At the end of the command: if it has been interrupted in the meantime, the sentence is the end."""
    if _begun.is_set():
        threading.Event().wait(2 * LONGEST)


def _received(number: int, frame: object) -> None:
    """The signal's handler. It only wakes the thread up, for the case that somebody else has taken the wakeup."""
    with contextlib.suppress(BlockingIOError):
        os.write(_pipe[0], bytes([number]))


_received.gives_way = True  # type: ignore[attr-defined]  # to the safe end of an episode on a real plant


def _wait(reading: int) -> None:
    while True:
        if signal.SIGINT in os.read(reading, 1) and signal.getsignal(signal.SIGINT) is _received:
            _end()


def _end() -> None:
    _begun.set()
    threading.Timer(LONGEST, os._exit, (EXIT_INTERRUPTED,)).start()
    for action in reversed(_tidying):
        with contextlib.suppress(Exception):
            action()
    sentence = ""
    with contextlib.suppress(Exception):
        sentence = _sentences[-1]() if _sentences else ""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, f"Interrupted. {sentence}".strip().encode() + b"\n")
    os._exit(EXIT_INTERRUPTED)
