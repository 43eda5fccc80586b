"""Other processes that help one process compute: the starts of a policy search, or the shares of one prediction.

Threads would help less: the optimiser around each computation is Python, of which one thread runs at a time. So a
helper is a process of its own, which compiles for itself, or finds compiled code in the cache. What comes out does not
depend on who helps.
"""

import contextlib
import multiprocessing
import threading
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, TypeVar

from bayespilco import interrupts
from bayespilco.core.precision import float64
from bayespilco.startup import available_cores as available_cores
from bayespilco.startup import end_with_parent, one_blas_thread

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool:
    """This process and its helpers. A context manager: leaving it ends the helpers, whatever they are doing."""

    def __init__(self, size: int = 1) -> None:
        """A pool of `size` processes, this one included. Helpers start when there is something to do for them."""
        if size < 1:
            raise ValueError(f"A pool needs at least one worker; given {size}.")
        self.size = size
        self._helpers: list[_Helper] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for helper in self._helpers:
            helper.end()
        self._helpers = []

    @float64
    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        here: Callable[[Item], Result] | None = None,
    ) -> list[Result]:
        """The function's results, in the order of the items.

        Args:
            function: What a helper imports by its name, so defined in a module.
            items: What can be sent to another process.
            here: Like `function`, but reports progress: used for the items of this process.
        """
        here = here or function
        waiting = list(enumerate(items))
        found: dict[int, Result] = {}
        busy: dict[int, _Helper] = {}
        idle = self._ready(len(items) - 1)
        while waiting or busy:
            while idle and len(waiting) > 1:  # one is for this process
                number, item = waiting.pop()
                idle[-1].ask(function, item)
                busy[number] = idle.pop()
            if waiting:
                number, item = waiting.pop(0)
                found[number] = here(item)
            for number, helper in list(busy.items()):
                if waiting and not helper.has_answered:
                    continue
                del busy[number]
                try:
                    found[number] = helper.answer()
                    idle.append(helper)
                except EOFError:  # killed, perhaps for want of memory: its item is done here
                    if not helper.began:
                        self._go_on_alone()
                    helper.end()
                    self._helpers.remove(helper)
                    waiting.append((number, items[number]))
        return [found[number] for number in range(len(items))]

    def _go_on_alone(self) -> None:
        """What keeps one helper from beginning keeps the next one too."""
        if self.size > 1:
            self.size = 1
            warnings.warn(
                "A helper process ended before it could begin, so this process goes on alone: the result will be the "
                'same, but later. A script with workers needs `if __name__ == "__main__":` around what it does.',
                stacklevel=2,
            )

    def _ready(self, wanted: int) -> "list[_Helper]":
        while len(self._helpers) < min(self.size - 1, wanted):
            self._helpers.append(_Helper())
        return list(self._helpers)


_CACHE = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


class _Helper:
    def __init__(self) -> None:
        import jax

        context = multiprocessing.get_context("spawn")  # a fork would inherit threads of JAX that are no longer there
        self._pipe, theirs = context.Pipe()
        cache = {name: getattr(jax.config, name) for name in _CACHE}
        self._hello, their_hello = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(theirs, their_hello, cache), name="helper", daemon=True)
        with interrupts.withheld():
            self._process.start()
        theirs.close()
        their_hello.close()

    def ask(self, function: Callable[[Any], Any], item: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended: asking for its answer will say so
            self._pipe.send((function, item))

    @property
    def began(self) -> bool:
        """Whether it ever got as far as to wait for work: asked of one that has ended."""
        try:
            return bool(self._hello.recv())
        except (EOFError, ConnectionResetError):
            return False

    @property
    def has_answered(self) -> bool:
        return self._pipe.poll()

    def answer(self) -> Any:
        """What it found, or the error that it met; EOFError if it has ended."""
        try:
            error, found = self._pipe.recv()
        except ConnectionResetError as reset:
            raise EOFError from reset
        if error is not None:
            raise error
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._hello.close()


@float64
def _serve(pipe: Connection, hello: Connection, cache: dict[str, Any]) -> None:
    import jax

    with contextlib.suppress(BrokenPipeError):  # whoever it was to help has ended
        hello.send(True)
    threading.Thread(target=end_with_parent, daemon=True).start()
    for name, value in cache.items():
        jax.config.update(name, value)
    one_blas_thread()  # for as long as the helper lives
    while True:
        try:
            function, item = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[Exception | None, Any] = (None, function(item))
        except Exception as error:
            answer = (error, None)
        pipe.send(answer)
