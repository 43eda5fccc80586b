"""A controller from a run, and its file."""

from pathlib import Path

from bayespilco.algorithm import METHODS
from bayespilco.controller import Controller
from bayespilco.runs import Run
from bayespilco.runs.files import write


def controller(run: Run, episode: int | None = None) -> Controller:
    """What was learned after an episode (counted from 0, as in the run's directory), by default after the last."""
    if episode is not None and not 0 <= episode < len(run.records):
        raise ValueError(f"The run has the episodes 0 to {len(run.records) - 1}; given {episode}.")
    record = run.records[-1 if episode is None else episode]
    return METHODS[run.method].executor(record.policy, record.dynamics).controller(run.task, run.method)


def save(taken: Controller, path: Path | str, *, force: bool = False) -> None:
    """Write a controller's file, whole or not at all. An existing file is replaced only with `force`."""
    path = Path(path)
    if path.exists() and not force:
        raise ValueError(f"{path} exists already. Choose another name, or replace it with --force.")
    write(path, taken.to_bytes())
