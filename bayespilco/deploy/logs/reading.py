"""Episodes from a table, and what is wrong with it otherwise: where, what, and what to try."""

import warnings
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayespilco.deploy.logs.columns import TIME_UNITS, places
from bayespilco.deploy.logs.table import Frame, table

TOLERANCE = 0.5
"""How far a sample may be from when it is due, in sampling periods: in a log, and on a rig, which writes logs.

With more than half of one, a missing row could not be told from a late one.
"""

ROUNDING = 1e-3
"""By how much of a sampling period a time may change by being written."""

CHANGE = 0.1
"""An action that changes by more than this within a sampling period, relative to its range, is reported."""


class Log(NamedTuple):
    """One logged episode."""

    observations: np.ndarray
    """Of shape (steps + 1, state), NaN where a sample is missing."""
    actions: np.ndarray
    """Of shape (steps, action)."""


def read(
    source: Path | str | Frame, states: Sequence[str], actions: Sequence[str], dt: float, *, every: int = 1
) -> list[Log]:
    """The episodes in a file or a data frame. A `ValueError` says what is wrong, and in which line.

    Args:
        source: A file, or a data frame with the same columns.
        states, actions: The names of the columns.
        dt: Sampling period in seconds.
        every: Keep every so many rows, of a log that was sampled so many times faster. The action of a sampling period
            is then the mean of its rows.
    """
    if not isinstance(every, Integral) or every < 1:
        raise ValueError(f"every must be a whole number from 1 on; given {every!r}.")
    given = table(source)
    order, unit = places(given, [*states, *actions])
    names = [given.header.cells[index] for index in order]
    episodes: dict[str, list[tuple[str, list[float]]]] = {}
    for place, row in given.rows:
        where = f"{given.name}, {place}"
        if len(row) != len(given.header.cells):
            raise ValueError(f"{where}: {len(row)} cells under {len(given.header.cells)} columns.")
        cells = [row[index] for index in order]
        episode = str(cells[0])
        if episode in episodes and episode != list(episodes)[-1]:
            raise ValueError(f"{where}: episode {episode!r} goes on here, after another one.")
        values = [number(cell, where, name) for cell, name in zip(cells[1:], names[1:], strict=True)]
        values[0] *= unit
        episodes.setdefault(episode, []).append((where, values))
    return [_episode(given.name, name, rows, len(states), dt, int(every)) for name, rows in episodes.items()]


def number(cell: Any, where: str, column: str) -> float:
    """The number in a cell, NaN if it is empty. Times may be those of Python or pandas."""
    for seconds in ("total_seconds", "timestamp"):
        if hasattr(cell, seconds):
            cell = getattr(cell, seconds)()
    if cell is None or type(cell).__name__ == "NAType" or (isinstance(cell, str) and not cell):
        return float("nan")
    try:
        value = float(cell if "_" not in str(cell) else "")  # Python would read 1_0 as 10
    except (TypeError, ValueError):
        raise ValueError(f"{where}: {cell!r} under {column!r} is not a number.") from None
    if np.isinf(value):
        raise ValueError(f"{where}: {cell!r} under {column!r} is infinite; leave a missing sample empty.")
    return value


def _episode(source: str, name: str, rows: list[tuple[str, list[float]]], states: int, dt: float, every: int) -> Log:
    values = np.array([values for _, values in rows])
    if len(values) < 2:
        raise ValueError(f"{rows[0][0]}: episode {name!r} has one row; a transition needs two.")
    _require_in_time([where for where, _ in rows], values[:, 0], dt / every, every)
    steps = (len(values) - 1) // every
    if steps < 1:
        raise ValueError(f"{rows[0][0]}: episode {name!r} is shorter than the sampling period of {dt:g} s.")
    observations, actions = values[:, 1 : 1 + states], values[: steps * every, 1 + states :]
    for (where, _), action in zip(rows, actions, strict=False):
        if np.isnan(action).any():
            raise ValueError(f"{where}: the action is missing; only an episode's last row needs none.")
    held = actions.reshape(steps, every, -1)
    if (np.ptp(held, axis=1) > CHANGE * np.ptp(actions, axis=0)).any():
        warnings.warn(
            f"{source}: in episode {name!r} an action changes within the sampling period of {dt:g} s. "
            "Its mean is used, as if it had been held.",
            stacklevel=4,
        )
    return Log(observations[: steps * every + 1 : every], held.mean(axis=1))


def _require_in_time(places: list[str], times: np.ndarray, dt: float, every: int) -> None:
    due = times[0] + dt * np.arange(len(times))
    wrong = ~(np.abs(times - due) <= (TOLERANCE + ROUNDING) * dt)  # true of NaN
    if not wrong.any():
        return
    k = int(np.argmax(wrong))
    if np.isnan(times[k]):
        raise ValueError(f"{places[k]}: there is no time. Every row needs one, also where samples are missing.")
    raise ValueError(
        f"{places[k]}: the time is {times[k]:g} s, and due is {due[k]:g} s, at a sampling period of {dt:g} s. "
        + _advice(times, k, dt, every)
    )


def _advice(times: np.ndarray, k: int, dt: float, every: int) -> str:
    """What is probably wrong with the times of an episode, of which that of row k is the first that does not fit."""
    if k > 0 and times[k] < times[k - 1]:
        return f"It goes back from {times[k - 1]:g} s. If another episode begins here, give it another name."
    if k > 0 and times[k] == times[k - 1]:
        return "That is the time of the row before. If a row is there twice, delete one of them."
    intervals = np.diff(times)
    ratio = float(np.median(intervals[np.isfinite(intervals)])) / dt if np.isfinite(intervals).any() else 1.0
    for unit, seconds in TIME_UNITS.items():
        if unit != "s" and abs(ratio * seconds - 1) < TOLERANCE:
            return f"If the times are in {unit}, name their column 'time [{unit}]'."
    faster = round(1 / ratio) if ratio > 0 else 1
    if faster > 1 and abs(faster * ratio - 1) < 0.1:
        return f"The rows are {faster} times as frequent. To keep some of them only, read with every={faster * every}."
    return "A sample that is missing needs a row too, with empty cells."
