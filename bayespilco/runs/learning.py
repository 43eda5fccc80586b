"""Learning as a user asks for it: Algorithm 1, kept on disk as it goes, watched and stopped by callbacks."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bayespilco.algorithm import Progress, Settings, find, learn_episode
from bayespilco.crew import ALONE, Crew
from bayespilco.runs.config import Config
from bayespilco.runs.directory import RunDirectory
from bayespilco.runs.run import Run
from bayespilco.tasks import TASKS, Task

Callback = Callable[[Run], object]
"""Called with the run so far after each episode; what returns True ends the run."""


def learn(
    task: Task | str,
    method: str = "bayes-filter",
    *,
    episodes: int = 11,
    seed: int = 0,
    training: str = "evidence",
    points: int = 50,
    evaluations: int = 150,
    in_parts: bool = True,
    out: Path | str | None = None,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[Progress], object] | None = None,
    workers: int = 1,
) -> Run:
    """Learn to control a plant (Algorithm 1).

    Args:
        task: The plant and what is wanted of it; a `Task`, or the name of a built-in one.
        method: One of `METHODS`.
        episodes: How many, the first with random actions included. The result has learned from all of them.
        seed: Two runs with the same seed are the same.
        training: "evidence" (ours) or "direct" (the paper's) training of the dynamics model.
        points: Inducing points of the dynamics model.
        evaluations: Budget of one policy search, in values and gradients.
        in_parts: Whether later searches end with predictions in parts: slower, and better where first states differ.
        out: A directory to keep the run in, episode by episode; `resume` goes on from there.
        force: Whether an earlier run in that directory may be replaced.
        callbacks: Called after each episode with the run so far. If one returns True, learning ends.
        on_progress: Called often, with where learning is.
        workers: Processes to search policies with, this one included: the same result, sooner. With more than one,
            a script needs `if __name__ == "__main__":` around what it does.
    """
    task = find(TASKS, task, "task")() if isinstance(task, str) else task
    if not isinstance(task, Task):
        raise ValueError(f"task must be a Task (`tasks.spring()`, say) or the name of a built-in one; given {task!r}.")
    run = Run(task, Settings(method, episodes, seed, training, points, evaluations, in_parts), ())
    with Crew(workers) as crew:
        if out is None:
            return go_on(run, callbacks, on_progress, crew)
        with RunDirectory.create(out, Config(task.name, run.settings), task, force=force) as directory:
            return go_on(run, [keep_in(directory), *callbacks], on_progress, crew)


def resume(
    path: Path | str,
    task: Task | None = None,
    *,
    episodes: int | None = None,
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[Progress], object] | None = None,
    workers: int = 1,
) -> Run:
    """Go on with an interrupted run where it was: the result is, bit for bit, that of a run that was not.

    Args:
        path: The directory that was `out`.
        task: The task, if it is not a built-in one.
        episodes: How many in all, if not as many as at first.
        callbacks: Those that `learn` had; they are first asked about the episodes that there are.
        on_progress: Called often, with where learning is.
        workers: As for `learn`.
    """
    with RunDirectory.open(path, task) as directory, Crew(workers) as crew:
        if other := directory.config.other_version(directory.path):
            warnings.warn(other, stacklevel=2)
        if episodes is not None:
            directory.extend(episodes)
        run = Run(directory.task, directory.config.settings, directory.records)
        return go_on(run, [keep_in(directory), *callbacks], on_progress, crew)


def go_on(
    run: Run,
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[Progress], object] | None = None,
    crew: Crew = ALONE,
) -> Run:
    """Learn the episodes that a run still lacks: the loop of Algorithm 1."""
    stop = bool(run.records) and _tell(callbacks, run)
    while len(run.records) < run.settings.episodes and not stop:
        record = learn_episode(run.task, run.settings, run.records, on_progress, crew)
        run = Run(run.task, run.settings, (*run.records, record))
        stop = _tell(callbacks, run)
    return run


def _tell(callbacks: Sequence[Callback], run: Run) -> bool:
    """Call them all, then say whether one wants to stop. Only True counts: a callback may return a length by chance."""
    answers = [callback(run) for callback in callbacks]
    return any(isinstance(answer, bool | np.bool_) and answer for answer in answers)


def keep_in(directory: RunDirectory) -> Callback:
    """A callback that saves every new record."""
    return lambda run: directory.keep(run.records)


def stop_below(predicted_cost: float) -> Callback:
    """A callback that ends a run when its policy is good enough, by prediction."""
    return lambda run: run.records[-1].predicted_cost < predicted_cost
