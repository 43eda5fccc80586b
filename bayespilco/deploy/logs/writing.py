"""Episodes into a file: a whole one is added, or nothing."""

import csv
import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bayespilco.deploy.files import write
from bayespilco.deploy.logs.columns import COLUMNS, HEALTH
from bayespilco.deploy.logs.reading import number
from bayespilco.deploy.logs.table import content, lines

Told = tuple[float, str, int]
"""The cells under `HEALTH` in one row."""


def append(
    path: Path | str,
    states: Sequence[str],
    actions: Sequence[str],
    times: Sequence[float] | np.ndarray,
    observations: Sequence[np.ndarray] | np.ndarray,
    applied: Sequence[np.ndarray] | np.ndarray,
    told: Sequence[Told] | None = None,
) -> None:
    """Add an episode to a file, which is made if it does not exist. A crash leaves the old file or the new one.

    With `told`, what the agent thought of each observation, a new file has the columns for it (`HEALTH`). A file keeps
    the columns that it has.

    A program that was killed may have left half a row at the end, or a single row of an episode. That is dropped: it
    says nothing, and with it the file could not be read.
    """
    kept, episode, has_health = _so_far(path, states, actions, told is not None)
    if len(observations) < 2:
        raise ValueError(f"An episode needs two samples or more, for a transition; given {len(observations)}.")
    added = text(states, actions, times, observations, applied, episode, (told or ()) if has_health else None)
    write(Path(path).resolve(), ("".join(kept) + added).encode())  # a link stays a link


def next_episode(path: Path | str, states: Sequence[str], actions: Sequence[str]) -> int:
    """The number of the episode that would be added to a file. A file with other columns is refused."""
    return _so_far(path, states, actions)[1]


def check_appendable(path: Path | str, states: Sequence[str], actions: Sequence[str]) -> None:
    """Refuse a file that no episode could be added to. Without names of states, columns are not compared."""
    folder = Path(path).resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "the directory cannot be written to" if folder.is_dir() else "there is no such directory"
        raise ValueError(f"{path} cannot be a log: {why}.")
    if states:
        next_episode(path, states, actions)
    else:
        _require_regular(path)


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
    told: Sequence[Told] | None = None,
) -> str:
    """The rows of one episode, for below a `heading`. Observations and actions are read back to the last digit."""
    rows = []
    for k, (time, z) in enumerate(zip(times, observations, strict=True)):
        u = applied[k] if k < len(applied) else [np.nan] * len(actions)
        if (len(z), len(u)) != (len(states), len(actions)):
            raise ValueError(
                f"A row needs {len(states)} states and {len(actions)} actions; sample {k} has {len(z)} and {len(u)}."
            )
        numbers = [repr(float(value)) if np.isfinite(value) else "" for value in (*z, *u)]
        rows.append(_line([str(episode), f"{time:.9g}", *numbers, *_health(told, k)]))
    return "".join(rows)


def _health(told: Sequence[Told] | None, k: int) -> list[str]:
    """The cells under `HEALTH` in row k: empty where the agent said nothing."""
    if told is None:
        return []
    if k >= len(told):
        return [""] * len(HEALTH)
    surprise, rejected, restarts = told[k]
    return [f"{surprise:.3g}", rejected, str(restarts)]


def _so_far(
    path: Path | str, states: Sequence[str], actions: Sequence[str], health: bool = False
) -> tuple[list[str], int, bool]:
    """The lines of a file that an episode is to be added to, that episode's number, and whether there is `HEALTH`."""
    _require_regular(path)
    before, header = content(path) if Path(path).exists() else "", _header(states, actions)
    if not before.strip():
        return [_line([*header, *HEALTH] if health else header)], 0, health
    there = lines(path, before)[0][1]
    if there not in (header, [*header, *HEALTH]):
        raise ValueError(f"{path} is a log with other columns. Give another name, or move it away.")
    first, *kept = [line + "\n" for line in before.rstrip().split("\n")]
    if kept and not before.endswith("\n") and not _is_complete(kept[-1], there):
        kept.pop()
    names = [cells[0] for _, cells in lines(path, "".join(kept))]
    if names and names.count(names[-1]) == 1:
        kept.pop()
        names.pop()
    taken = set(names)
    episode = next(number for number in itertools.count(len(taken)) if str(number) not in taken)
    return [first, *kept], episode, there != header


def _require_regular(path: Path | str) -> None:
    """A device may have no end, and a pipe no reader: neither can be a log."""
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path} cannot be a log: it is not a regular file.")


def _is_complete(line: str, header: list[str]) -> bool:
    """Whether a row has all its numbers. (The last may be cut: that action is not used, since no sample follows.)"""
    (cells,) = csv.reader([line])
    try:
        for cell, name in zip(cells[1:], header[1:], strict=True):
            if name not in HEALTH:
                number(cell.strip(), "", name)
    except ValueError:
        return False
    return True


def _header(states: Sequence[str], actions: Sequence[str]) -> list[str]:
    return [*COLUMNS, *states, *actions]


def _line(cells: list[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
