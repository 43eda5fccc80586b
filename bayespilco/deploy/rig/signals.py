"""Signals that end a process: they end its episodes first, so that the plants are stopped.

Python receives signals in its main thread only. An episode there is ended by an exception: `KeyboardInterrupt` for
Ctrl-C, otherwise `SystemExit` with the code that a shell reports. While its plant is stopped and its log is written,
further signals wait. An episode in another thread is asked to end, and the main thread waits until its plant has
stopped. For that the main thread must be prepared:

    with plants.signals_end_episodes():
        thread = threading.Thread(target=work)  # calls rig.run
        thread.start()
        thread.join()

A signal that is ignored, as under `nohup`, stays ignored. One with a handler of the user's keeps that handler, which
can call `end_episodes`.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError, wait
from types import TracebackType

from bayespilco.deploy.rig.pacing import monotonic, sleep_until
from bayespilco.deploy.rig.recording import Stop

ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
"""The signals that end a process, as far as the system has them. (Nothing can be done about SIGKILL.)"""

LONGEST = 5.0
"""Seconds that the main thread waits for episodes in other threads to end."""


class Ending:
    """How one episode is ended from outside. Used as a context around the episode and its safe end."""

    def __init__(self, realtime: bool) -> None:
        self.asked: Future[str] | None = None if _in_main_thread() else Future()
        """Done as soon as the episode has to end. None in the main thread, where exceptions are raised."""
        self.over = threading.Event()
        if realtime and self.asked is not None and not _process.guards:
            raise RuntimeError(
                "A rig in real time cannot run in this thread: a signal that ends the process, such as Ctrl-C, would "
                "leave the actuators on, because Python receives signals in the main thread only. Run the rig there, "
                "or put `with bayespilco.plants.signals_end_episodes():` in the main thread around what this one does."
            )

    def check(self) -> None:
        """End the episode if somebody has asked for that."""
        if self.asked is not None and self.asked.done():
            raise Stop("interrupted", self.asked.result())

    def sleep_until(self, due: float) -> None:
        if self.asked is None:
            sleep_until(due)
        else:
            wait([self.asked], timeout=max(0.0, due - monotonic()))

    def hold(self) -> None:
        """From now on until the context ends, signals wait."""
        if self.asked is None:
            _process.holds = True

    def __enter__(self) -> "Ending":
        self._handlers = contextlib.ExitStack()
        if self.asked is None:
            _process.in_main_thread += 1
            self._handlers.enter_context(_handlers())
        else:
            _process.episodes.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _process.episodes.discard(self)
        self.over.set()
        self._handlers.close()
        if self.asked is None:
            _process.in_main_thread -= 1
            held = _process.release()
            if held is not None and error is None:
                raise _exception(held)


@contextlib.contextmanager
def signals_end_episodes() -> Iterator[None]:
    """For the main thread: signals end the episodes that other threads run in the meantime, before the process ends.

    At its end this waits for such episodes. If it ends by an exception, they are ended, too.
    """
    if not _in_main_thread():
        raise RuntimeError("signals_end_episodes must be called in the main thread: only there Python gets signals.")
    with _handlers():
        _process.guards += 1
        try:
            yield
            for episode in list(_process.episodes):
                episode.over.wait()
        except BaseException:
            end_episodes("the main thread ended")
            raise
        finally:
            _process.guards -= 1


def end_episodes(reason: str = "interrupted") -> None:
    """End the episodes that other threads run, and wait until their plants have stopped."""
    episodes = list(_process.episodes)
    for episode in episodes:
        if episode.asked is not None:
            with contextlib.suppress(InvalidStateError):  # it was asked before
                episode.asked.set_result(reason)
    until = monotonic() + LONGEST
    for episode in episodes:
        episode.over.wait(max(0.0, until - monotonic()))


class _Process:
    """What this process knows of its signals and episodes: signals belong to a process, not to an object."""

    def __init__(self) -> None:
        self.episodes: set[Ending] = set()
        """Those in other threads than the main one."""
        self.in_main_thread = 0
        """How many run in the main thread."""
        self.guards = 0
        """How often the main thread has entered `signals_end_episodes`."""
        self.holds = False
        """Whether signals have to wait."""
        self.held: int | None = None
        """A signal that came in the meantime."""

    def release(self) -> int | None:
        """Signals no longer wait. Returns the one that has waited."""
        held, self.held, self.holds = self.held, None, False
        return held


_process = _Process()


@contextlib.contextmanager
def _handlers() -> Iterator[None]:
    """Handle the signals that would end the process. Others keep their handlers."""
    ours = {}
    wakeup: int | None = None
    try:
        for name in ENDING:
            number = getattr(signal, name, None)
            if number is not None and _gives_way(signal.getsignal(number)):
                ours[number] = signal.getsignal(number)
                if getattr(ours[number], "gives_way", False):
                    # Otherwise the command's thread would hear of this signal too, and might end the process later.
                    wakeup = signal.set_wakeup_fd(-1)
                signal.signal(number, _handle)
        yield
    finally:
        for number, before in ours.items():
            signal.signal(number, before)
        if wakeup is not None:
            signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)


def _gives_way(handler: object) -> bool:
    """Whether a handler is Python's own, or the one of our command (`bayespilco.interrupts`)."""
    return handler in (signal.SIG_DFL, signal.default_int_handler) or getattr(handler, "gives_way", False)


def _handle(number: int, _: object) -> None:
    if _process.holds:
        _process.held = number
        return
    _process.holds = True  # the safe end begins here, and an episode in this thread ends it
    end_episodes(f"the process received {signal.Signals(number).name}")
    if not _process.in_main_thread:
        _process.release()
    raise _exception(number)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
