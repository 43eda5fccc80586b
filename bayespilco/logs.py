"""Logged episodes as a table: a CSV file with one row per sample, columns by name.

    episode,time,position [m],velocity [m/s],force [N]
    0,0.0,0.012,-0.08,1.31
    0,0.2,0.034,,-0.27
    0,0.4,0.041,0.11,

`time` is in seconds and advances by the sampling period. An action stands in the row of the observation that it answers
and is held until the next; an episode's last row needs none. An empty cell, or `nan`, is a sample that is missing.
Columns may be in any order, with or without units; others are not allowed, so that a misspelt one is not lost.
"""

import csv
import difflib
import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bayespilco.files import write

COLUMNS = ("episode", "time")
"""What stands beside states and actions."""

TOLERANCE = 0.5
"""How far a sample may be from when it is due, in sampling periods: in a log, and on a rig, which writes logs.

Were it more than half of one, a row that is missing could not be told from one that is late.
"""

ROUNDING = 1e-3
"""By how much of a sampling period a time may change by being written."""


class Log(NamedTuple):
    """One logged episode."""

    observations: np.ndarray
    """Of shape (steps + 1, state), NaN where a sample is missing."""
    actions: np.ndarray
    """Of shape (steps, action)."""


def read(path: Path | str, states: Sequence[str], actions: Sequence[str], dt: float) -> list[Log]:
    """The episodes in a file, or a `ValueError` that says in which line what is wrong."""
    rows = _rows(path, _content(path))
    if not rows:
        raise ValueError(f"{path} is empty: its first line must name the columns.")
    order = _columns(f"{path}, line {rows[0][0]}", rows[0][1], [*states, *actions])
    episodes: dict[str, list[tuple[int, list[float]]]] = {}
    for line, row in rows[1:]:
        if len(row) != len(order):
            raise ValueError(f"{path}, line {line}: {len(row)} cells under {len(order)} columns.")
        cells = [row[index] for index in order]
        if cells[0] in episodes and cells[0] != list(episodes)[-1]:
            raise ValueError(f"{path}, line {line}: episode {cells[0]!r} goes on here, after another one.")
        names = [rows[0][1][index] for index in order]
        values = [_number(cell, f"{path}, line {line}", name) for cell, name in zip(cells[1:], names[1:], strict=True)]
        episodes.setdefault(cells[0], []).append((line, values))
    if not episodes:
        raise ValueError(f"{path} has no rows below its first line.")
    return [_episode(str(path), name, rows, len(states), dt) for name, rows in episodes.items()]


def _content(path: Path | str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # spreadsheets mark their files
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _rows(path: Path | str, content: str) -> list[tuple[int, list[str]]]:
    """The rows that are not empty, each with the number of the line that it ends on."""
    reader = csv.reader(io.StringIO(content, newline=""), skipinitialspace=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error
    return [(line, row) for line, row in rows if any(row)]


def _columns(where: str, header: list[str], components: list[str]) -> list[int]:
    """The place of each column: episode, time, states, actions."""
    wanted = [*COLUMNS, *components]
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise ValueError(
            f"{where}: columns must be separated by commas, and numbers have a decimal point; given {header[0]!r}."
        )
    known = {alias: name for name in wanted for alias in (name, name.partition(" [")[0])}
    found: dict[str, int] = {}
    for place, cell in enumerate(header):
        if cell not in known:
            near = difflib.get_close_matches(cell, wanted, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{where}: unknown column {cell!r}; there are: {', '.join(wanted)}.{hint}")
        if known[cell] in found:
            raise ValueError(f"{where}: the column {cell!r} is there twice.")
        found[known[cell]] = place
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"{where}: there is no column {missing[0]!r}.")
    return [found[name] for name in wanted]


def _number(cell: str, where: str, column: str) -> float:
    try:
        value = float(cell or "nan")
    except ValueError:
        raise ValueError(f"{where}: {cell!r} under {column!r} is not a number.") from None
    if np.isinf(value):
        raise ValueError(f"{where}: {cell!r} under {column!r} is infinite; leave a missing sample empty.")
    return value


def _episode(path: str, name: str, rows: list[tuple[int, list[float]]], states: int, dt: float) -> Log:
    table = np.array([values for _, values in rows])
    if len(table) < 2:
        raise ValueError(f"{path}, line {rows[0][0]}: episode {name!r} has one row; a transition needs two.")
    for k, (line, (time, *_)) in enumerate(rows):
        due = table[0, 0] + k * dt
        if not abs(time - due) <= (TOLERANCE + ROUNDING) * dt:  # true of NaN
            raise ValueError(
                f"{path}, line {line}: the time is {time:g} s, and due is {due:g} s, at a sampling period of {dt:g} s. "
                "A sample that is missing needs a row too, with empty cells."
            )
    observations, actions = table[:, 1 : 1 + states], table[:-1, 1 + states :]
    for (line, _), action in zip(rows, actions, strict=False):
        if np.isnan(action).any():
            raise ValueError(f"{path}, line {line}: the action is missing; only an episode's last row needs none.")
    return Log(observations, actions)


def append(
    path: Path | str,
    states: Sequence[str],
    actions: Sequence[str],
    times: Sequence[float] | np.ndarray,
    observations: Sequence[np.ndarray] | np.ndarray,
    applied: Sequence[np.ndarray] | np.ndarray,
) -> None:
    """Add an episode to a file, which is made if there is none yet. A crash leaves the old file or the new one.

    What a program that was killed left at the end, half a row or a single one of an episode, is dropped: it says
    nothing, and the file could not be read.
    """
    lines, episode = _so_far(path, states, actions)
    if len(observations) < 2:
        raise ValueError(f"An episode needs two samples or more, for a transition; given {len(observations)}.")
    added = text(states, actions, times, observations, applied, episode)
    write(Path(path).resolve(), ("".join(lines) + added).encode())  # a link stays one


def next_episode(path: Path | str, states: Sequence[str], actions: Sequence[str]) -> int:
    """The number of the episode that would be added to a file. One with other columns is refused."""
    _, episode = _so_far(path, states, actions)
    return episode


def heading(states: Sequence[str], actions: Sequence[str]) -> str:
    """The first line of a file: the names of its columns."""
    return _line(_header(states, actions))


def text(
    states: Sequence[str],
    actions: Sequence[str],
    times: Sequence[float] | np.ndarray,
    observations: Sequence[np.ndarray] | np.ndarray,
    applied: Sequence[np.ndarray] | np.ndarray,
    episode: int,
) -> str:
    """The rows of one episode, to stand below a `heading`. Observations and actions come back to the last digit."""
    lines = []
    for k, (time, z) in enumerate(zip(times, observations, strict=True)):
        u = applied[k] if k < len(applied) else [np.nan] * len(actions)
        if (len(z), len(u)) != (len(states), len(actions)):
            raise ValueError(
                f"A row needs {len(states)} states and {len(actions)} actions; sample {k} has {len(z)} and {len(u)}."
            )
        numbers = [repr(float(value)) if np.isfinite(value) else "" for value in (*z, *u)]
        lines.append(_line([str(episode), f"{time:.9g}", *numbers]))
    return "".join(lines)


def _so_far(path: Path | str, states: Sequence[str], actions: Sequence[str]) -> tuple[list[str], int]:
    """The lines of a file that an episode is to be added to, and that episode's number."""
    content = _content(path) if Path(path).exists() else ""
    if not content.strip():
        return [heading(states, actions)], 0
    header = _header(states, actions)
    if _rows(path, content)[0][1] != header:
        raise ValueError(f"{path} is a log with other columns. Give another name, or move it away.")
    first, *lines = [line + "\n" for line in content.rstrip().split("\n")]
    if lines and not content.endswith("\n") and not _is_complete(lines[-1], header):
        lines.pop()
    names = [cells[0] for _, cells in _rows(path, "".join(lines))]
    if names and names.count(names[-1]) == 1:
        lines.pop()
        names.pop()
    taken = set(names)
    return [first, *lines], next(number for number in itertools.count(len(taken)) if str(number) not in taken)


def _is_complete(line: str, header: list[str]) -> bool:
    """Whether a row has all its numbers. (The last may be cut: that action is not used, since no sample follows.)"""
    (cells,) = csv.reader([line])
    try:
        for cell, name in zip(cells[1:], header[1:], strict=True):
            _number(cell.strip(), "", name)
    except ValueError:
        return False
    return True


def _header(states: Sequence[str], actions: Sequence[str]) -> list[str]:
    return [*COLUMNS, *states, *actions]


def _line(cells: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
