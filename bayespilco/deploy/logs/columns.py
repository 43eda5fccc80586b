"""Which column is which: by name, with or without its unit, in any order."""

import difflib
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from bayespilco.deploy.logs.table import Table

COLUMNS = ("episode", "time")
"""The columns beside states and actions."""

HEALTH = ("surprise in sigma", "rejected sensors", "restarts so far")
"""What a rig adds behind the actions: what its agent thought of the observation (`Controller.health`). Nothing is
learned from these columns."""

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
"""What `time [ms]` means. Without a unit the time is in seconds."""


class Places(NamedTuple):
    """Where the columns stand."""

    order: list[int]
    """Of episode, time, states, actions."""
    time_unit: float
    """In seconds."""


def places(table: Table, components: Sequence[str]) -> Places:
    """Find the columns. One that is missing is an error; those that nobody asked for are left out, with a warning."""
    where, header = f"{table.name}, {table.header.place}", table.header.cells
    wanted = [*COLUMNS, *components]
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise ValueError(
            f"{where}: columns must be separated by commas, and numbers have a decimal point; given {header[0]!r}."
        )
    known = {alias: name for name in wanted for alias in (name, name.partition(" [")[0])}
    known |= {f"time [{unit}]": "time" for unit in TIME_UNITS}
    found: dict[str, int] = {}
    for place, cell in enumerate(header):
        if known.get(cell) in found:
            raise ValueError(f"{where}: the column {cell!r} is there twice.")
        if cell in known:
            found[known[cell]] = place
    others = [cell for cell in header if cell not in known]
    for name in wanted:
        if name not in found:
            raise _missing(where, name, wanted, others)
    if named := [cell for cell in others if cell and cell not in HEALTH]:  # without a name: the index of a data frame
        warnings.warn(f"{where}: these columns are not used: {', '.join(named)}.", stacklevel=4)
    unit = header[found["time"]].partition(" [")[2].removesuffix("]")
    return Places([found[name] for name in wanted], TIME_UNITS[unit or "s"])


def _missing(where: str, name: str, wanted: list[str], others: list[str]) -> ValueError:
    """The error for a column that is not there. The nearest of the other columns is probably a misspelling of it."""
    if near := difflib.get_close_matches(name, others, n=1):
        listed = ", ".join(wanted)
        return ValueError(f"{where}: unknown column {near[0]!r}; there are: {listed}. Did you mean {name!r}?")
    rest = f" Columns that are not known: {', '.join(others)}." if others else ""
    return ValueError(f"{where}: there is no column {name!r}.{rest}")
