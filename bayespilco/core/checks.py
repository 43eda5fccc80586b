"""Checks of what a user gave, with errors that say what was wrong, what was given and what to try."""

import difflib
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

LARGEST_SEED = 2**63 - 1


def check_integer(value: Any, name: str, lowest: int, highest: int | None = None) -> int:
    """A whole number within bounds, or a ValueError that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number; given {value!r}.") from None
    if number < lowest:
        raise ValueError(f"{name} must be at least {lowest}; given {number}.")
    if highest is not None and number > highest:
        raise ValueError(f"{name} must be at most {highest}; given {number}.")
    return number


def lookup(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry of this name, or a ValueError that lists the names there are."""
    if name not in table:
        raise unknown_name(name, list(table), what)
    return table[name]


def unknown_name(name: str, known: Sequence[str], what: str) -> ValueError:
    """The error for an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"Unknown {what} {name!r}; there are: {', '.join(known)}.{hint}")
