"""A `map` that the mathematics is handed, so that it need not know about processes.

The starts of a search and the halves of a split prediction are independent. Whoever calls the library may compute them
elsewhere (`runs.workers.WorkerPool`); without one they are computed here, one after the other, to the same result.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

Item = TypeVar("Item")
Result = TypeVar("Result")


@runtime_checkable
class Mapper(Protocol):
    """Applies a function to items that do not depend on each other."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        here: Callable[[Item], Result] | None = None,
    ) -> list[Result]:
        """The function's results, in the order of the items.

        Args:
            function: Defined in a module, so that another process can import it.
            items: Values that can be sent to another process.
            here: Like `function`, but reports progress; used for the items that this process computes.
        """
        ...


class Serial:
    """Computes everything here, in order."""

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        here: Callable[[Item], Result] | None = None,
    ) -> list[Result]:
        return [(here or function)(item) for item in items]


SERIAL = Serial()
