"""One table per kind of thing (methods, tasks, policies, costs): what there is, by name.

Whoever adds a second of something registers it where it is defined. The command, the files and the pictures read the
table, so no other list has to be kept up to date.

    COSTS: Registry[type[Cost]] = Registry("cost")

    @COSTS.register("quadratic")
    class QuadraticCost(Cost): ...

    COSTS["quadratic"].value is QuadraticCost
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from bayespilco.core.checks import unknown_name

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One thing of a registry."""

    name: str
    value: T
    """The thing itself: a class or a function."""
    description: str
    """A sentence for help texts and lists."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What else this kind of thing has, by name: the style of its curve, for example."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the thing: `TASKS["spring"]()` makes a task."""
        return self.value(*arguments, **named)  # type: ignore[operator]

    def __getattr__(self, name: str) -> Any:
        """An attribute of the thing: `METHODS["pilco"].predictor`."""
        if name == "value":  # not there yet: copy and pickle ask before the fields are set
            raise AttributeError(name)
        return getattr(self.value, name)


class Registry(Mapping[str, Entry[T]]):
    """The entries of one kind by name, in the order in which they were registered."""

    def __init__(self, kind: str) -> None:
        """`kind` is a singular noun, for error messages: "cost"."""
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def add(self, name: str, value: T, description: str | None = None, **extras: Any) -> Entry[T]:
        """Register `value`. The description is by default the first line of its docstring."""
        if name in self._entries:
            raise ValueError(f"There is a {self.kind} named {name!r} already; choose another name.")
        first_line = (inspect.getdoc(value) or "").partition("\n")[0] if description is None else description
        entry = Entry(name, value, first_line, MappingProxyType(extras))
        self._entries[name] = entry
        return entry

    def register(self, name: str, description: str | None = None, **extras: Any) -> Callable[[U], U]:
        """`add` as a decorator of a class or function."""

        def remember(value: U) -> U:
            self.add(name, value, description, **extras)  # type: ignore[arg-type]  # a decorator must keep the type
            return value

        return remember

    def name_of(self, value: Any) -> str:
        """The name under which a class or function is registered."""
        for entry in self._entries.values():
            if entry.value is value:
                return entry.name
        shown = getattr(value, "__qualname__", repr(value))
        raise ValueError(f"{shown} is not a registered {self.kind}; there are: {', '.join(self._entries)}.")

    def __getitem__(self, name: str) -> Entry[T]:
        """The entry of this name; an unknown name is a ValueError that lists the names there are."""
        if name not in self:
            raise unknown_name(name, list(self._entries), self.kind)
        return self._entries[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self._entries.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
