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
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

TOLERANCE = 0.5
"""How far a row's time may be from where it should be, in sampling periods: what a rig lets pass, its log may have."""


class Log(NamedTuple):
    """One logged episode."""

    observations: np.ndarray
    """Of shape (steps + 1, state), NaN where a sample is missing."""
    actions: np.ndarray
    """Of shape (steps, action)."""


def read(path: Path | str, states: Sequence[str], actions: Sequence[str], dt: float) -> list[Log]:
    """The episodes in a file, or a `ValueError` that says in which line what is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    # Rows with the number of the line that each ends on; empty ones are skipped.
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error
    if not rows:
        raise ValueError(f"{path} is empty: its first line must name the columns.")
    order = _columns(f"{path}, line {rows[0][0]}", [cell.strip() for cell in rows[0][1]], [*states, *actions])
    episodes: dict[str, list[tuple[int, list[float]]]] = {}
    for line, row in rows[1:]:
        if len(row) != len(order):
            raise ValueError(f"{path}, line {line}: {len(row)} cells under {len(order)} columns.")
        cells = [row[index].strip() for index in order]
        if cells[0] in episodes and cells[0] != list(episodes)[-1]:
            raise ValueError(f"{path}, line {line}: episode {cells[0]!r} goes on here, after another one.")
        names = [rows[0][1][index] for index in order]
        values = [_number(cell, f"{path}, line {line}", name) for cell, name in zip(cells[1:], names[1:], strict=True)]
        episodes.setdefault(cells[0], []).append((line, values))
    if not episodes:
        raise ValueError(f"{path} has no rows below its first line.")
    return [_episode(str(path), name, rows, len(states), dt) for name, rows in episodes.items()]


def _columns(where: str, header: list[str], components: list[str]) -> list[int]:
    """The place of each column: episode, time, states, actions."""
    wanted = ["episode", "time", *components]
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
        raise ValueError(f"{where}: {cell!r} under {column.strip()!r} is not a number.") from None
    if np.isinf(value):
        raise ValueError(f"{where}: {cell!r} under {column.strip()!r} is infinite; leave a missing sample empty.")
    return value


def _episode(path: str, name: str, rows: list[tuple[int, list[float]]], states: int, dt: float) -> Log:
    table = np.array([values for _, values in rows])
    if len(table) < 2:
        raise ValueError(f"{path}, line {rows[0][0]}: episode {name!r} has one row; a transition needs two.")
    for k, (line, (time, *_)) in enumerate(rows):
        due = table[0, 0] + k * dt
        if not abs(time - due) <= TOLERANCE * dt:  # true of NaN
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
    """Add an episode to a file, which is made if there is none yet."""
    added = text(states, actions, times, observations, applied, next_episode(path, states, actions))
    with open(path, "a", encoding="utf-8", newline="") as file:
        file.write(added)


def next_episode(path: Path | str, states: Sequence[str], actions: Sequence[str]) -> int:
    """The number of the episode that would be added to a file. One with other columns is refused."""
    path = Path(path)
    if not path.exists() or not path.stat().st_size:
        return 0
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        if next(reader) != _header(states, actions):
            raise ValueError(f"{path} is a log with other columns. Give another name, or move it away.")
        return 1 + max((int(row[0]) for row in reader if row), default=-1)


def text(
    states: Sequence[str],
    actions: Sequence[str],
    times: Sequence[float] | np.ndarray,
    observations: Sequence[np.ndarray] | np.ndarray,
    applied: Sequence[np.ndarray] | np.ndarray,
    episode: int,
) -> str:
    """The rows of one episode, below a header if it is the first. Numbers come back to the last digit."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    if episode == 0:
        writer.writerow(_header(states, actions))
    for k, (time, z) in enumerate(zip(times, observations, strict=True)):
        u = applied[k] if k < len(applied) else [np.nan] * len(actions)
        numbers = ["" if np.isnan(value) else repr(float(value)) for value in (*z, *u)]
        writer.writerow([episode, f"{time:.6f}", *numbers])
    return content.getvalue()


def _header(states: Sequence[str], actions: Sequence[str]) -> list[str]:
    return ["episode", "time", *states, *actions]
