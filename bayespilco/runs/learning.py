"""Learning as a user asks for it: Algorithm 1 with files, helper processes, callbacks and a display around it.

The command and programs call the same two functions, `learn` and `resume`.
"""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bayespilco import algorithm, execution, interrupts
from bayespilco.algorithm import OnProgress, Progress, Records, Settings
from bayespilco.core.checks import unknown_name
from bayespilco.deploy import bridge as deployment
from bayespilco.deploy.rig.permission import require_main
from bayespilco.runs.certifying import Certifier
from bayespilco.runs.config import Config
from bayespilco.runs.directory import RunDirectory
from bayespilco.runs.own_tasks import FoundTask, find_task
from bayespilco.runs.run import Run
from bayespilco.runs.workers import WorkerPool
from bayespilco.settings import EXECUTIONS, Thresholds, describe
from bayespilco.startup import one_blas_thread
from bayespilco.tasks import Task

Callback = Callable[[Run], object]
"""Called with the run so far after each episode; what returns True ends the run."""
OnEnd = Callable[[Run, RunDirectory], object]
"""Called when all is learned, while the run's directory is still reserved."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while something was learned: says what is saved, and how to go on."""

    def __init__(self, saved: str, command: str, path: Path) -> None:
        super().__init__(f"{saved}; go on with: {command}. In Python: resume({str(path)!r}).")
        self.sentence = f"{saved}; go on with: {command}"


def learn(
    task: Task | str | FoundTask,
    method: str = Settings.method,
    *,
    out: Path | str | None = None,
    force: bool = False,
    from_data: Path | str | None = None,
    executions: int = EXECUTIONS,
    callbacks: Sequence[Callback] = (),
    on_progress: OnProgress | None = None,
    on_end: OnEnd | None = None,
    progress: bool = False,
    workers: int = 1,
    thresholds: Thresholds | None = None,
    **settings: Any,
) -> Run:
    """Learn to control a plant (Algorithm 1).

    Args:
        task: The plant and what is wanted of it: a `Task`, the name of a built-in one, or `file.py:name` for a task, or
            a function that returns one, in a file of your own.
        **settings: Everything that `Settings` has, by its name.
        out: A directory to keep the run in, episode by episode; `resume` goes on from there.
        force: Whether an earlier run in that directory may be replaced.
        from_data: A file of logged episodes (see `bayespilco.logs`) to start from, in place of random actions.
        executions: How often the command executes the final policy; stored with the run.
        callbacks: Called after each episode with the run so far. If one returns True, learning ends.
        on_progress: Called often, with where learning is.
        on_end: Called when all is learned with the run and its directory, if there is one (`report.conclude`, say).
        progress: Whether to show in a terminal or a notebook what the command shows.
        workers: Processes to search policies with, this one included: the same result, sooner. With more than one,
            a script needs `if __name__ == "__main__":` around what it does.
        thresholds: When a trial is a GO. With `Thresholds(stop_unless_go=True)` learning stops before one that is not.
    """
    require_main("learn")
    thresholds = Thresholds() if thresholds is None else thresholds
    found = find_task(task)
    if from_data is not None:
        found = found._replace(task=deployment.with_logged(found.task, from_data))
    known = [field.name for field in dataclasses.fields(Settings)]
    for name in settings:
        if name not in known:
            raise unknown_name(name, known, "setting")
    run = Run(found.task, algorithm.resolved(found.task, Settings(method=method, **settings)), ())
    with ExitStack() as stack:
        directory = None
        if out is not None:
            config = Config(found.task.name, run.settings, executions, thresholds)
            directory = stack.enter_context(RunDirectory.create(out, config, found, force=force))
        return _run_loop(run, directory, callbacks, on_progress, on_end, progress, workers, "Learning", thresholds)


def resume(
    path: Path | str,
    task: Task | str | FoundTask | None = None,
    *,
    episodes: int | None = None,
    callbacks: Sequence[Callback] = (),
    on_progress: OnProgress | None = None,
    on_end: OnEnd | None = None,
    progress: bool = False,
    workers: int = 1,
    thresholds: Thresholds | None = None,
) -> Run:
    """Go on with an interrupted run where it was: the result is, bit for bit, that of a run that was not.

    Args:
        path: The directory that was `out`.
        task: The task, if it is not a built-in one: a `Task`, or `file.py:name`.
        episodes: How many in all, if not as many as at first.
        callbacks: Those that `learn` had. They first see the episodes already learned.
        on_progress: Called often, with where learning is.
        on_end: As for `learn`; not called if the run was finished already.
        progress: As for `learn`.
        workers: As for `learn`.
        thresholds: When a trial is a GO; by default as at first.
    """
    require_main("resume a run")
    with RunDirectory.open(path, find_task(task) if task is not None else None) as directory:
        if other := directory.config.other_version(directory.path):
            warnings.warn(other, stacklevel=2)
        if episodes is not None:
            directory.extend(episodes)
        run = Run(directory.task, directory.config.settings, directory.records)
        if directory.finished:
            _stops(callbacks, run)
            return run
        asked = directory.config.thresholds if thresholds is None else thresholds
        return _run_loop(run, directory, callbacks, on_progress, on_end, progress, workers, "Resuming", asked)


def _run_loop(
    run: Run,
    directory: RunDirectory | None,
    callbacks: Sequence[Callback],
    on_progress: OnProgress | None,
    on_end: OnEnd | None,
    progress: bool,
    workers: int,
    doing: str,
    thresholds: Thresholds,
) -> Run:
    """Learn the episodes that a run still lacks, with everything around it."""
    # Certificates are made where somebody can see them: in files, on a display, or by being stopped.
    certifier = Certifier(thresholds, directory) if directory or progress or thresholds.stop_unless_go else None
    first: list[Callback] = [checkpoint(directory)] if directory is not None else []
    callbacks = [*first, *([certifier] if certifier else []), *callbacks]
    watching = [] if on_progress is None else [on_progress]
    with _naming_resume(run, directory):
        with ExitStack() as stack:
            if progress:
                display = stack.enter_context(_display(run, directory, doing))
                display.certifier = certifier
                callbacks.append(display.on_run)
                watching.append(display.on_progress)
            stack.enter_context(one_blas_thread())
            pool = stack.enter_context(WorkerPool(workers))
            if not (run.records and _stops(callbacks, run)):
                run = _loop(run, callbacks, watching, pool)
        refused = certifier is not None and certifier.stopped
        if on_end is not None and directory is not None and not refused:
            on_end(run, directory)
    return run


def _loop(run: Run, callbacks: Sequence[Callback], watching: Sequence[OnProgress], pool: WorkerPool) -> Run:
    def on_record(records: Records) -> bool:
        return _stops(callbacks, Run(run.task, run.settings, records))

    def on_progress(progress: Progress) -> None:
        for each in watching:
            each(progress)

    records = algorithm.learn(
        run.task,
        run.settings,
        run.records,
        execute=execution.execute,
        workers=pool,
        on_progress=on_progress,
        on_record=on_record,
    )
    return Run(run.task, run.settings, records)


def _display(run: Run, directory: RunDirectory | None, doing: str) -> Any:
    from rich.console import Console

    from bayespilco.runs.display import Display, heading

    console = Console(highlight=False)
    console.print(heading(run, doing, directory.path if directory is not None else None))
    return Display(console, run)


@contextmanager
def _naming_resume(run: Run, directory: RunDirectory | None) -> Iterator[None]:
    """Whatever ends learning early, a user is told what is saved and how to go on."""
    if directory is None:
        yield
        return

    def saved() -> str:
        return f"{len(directory.records)} of {run.settings.episodes} episodes are saved in {directory.path}"

    try:
        with interrupts.saying(lambda: f"{saved()}; go on with: {directory.resume_command}"):
            yield
    except (KeyboardInterrupt, OSError) as end:
        if not directory.path.is_dir():
            raise OSError(
                f"The directory {directory.path} is gone: it was deleted or moved while the run was learned. Put it "
                f"back and go on with: {directory.resume_command}; or learn again."
            ) from end
        if isinstance(end, OSError):
            raise OSError(f"{end} {saved()}; go on with: {directory.resume_command}") from end
        raise Interrupted(saved(), directory.resume_command, directory.path) from None


def _stops(callbacks: Sequence[Callback], run: Run) -> bool:
    """Call them all, then say whether one wants to stop. Only True counts: a callback may return a length by chance."""
    answers = [callback(run) for callback in callbacks]
    return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)


def checkpoint(directory: RunDirectory) -> Callback:
    """A callback that saves every new record."""
    return lambda run: directory.keep(run.records)


def stop_below(predicted_cost: float) -> Callback:
    """A callback that ends a run when its policy is good enough, by prediction."""
    return lambda run: run.records[-1].predicted_cost < predicted_cost


def _show_settings(function: Callable[..., Any]) -> None:
    """Let `help(learn)` show the settings one by one, as if they were written there."""
    *parameters, _ = inspect.signature(function).parameters.values()
    have = [parameter.name for parameter in parameters]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(field.name, kind, default=field.default, annotation=field.type)
        for field in dataclasses.fields(Settings)
        if field.name not in have
    ]
    function.__signature__ = inspect.Signature([*parameters, *more])  # type: ignore[attr-defined]
    line = next(line for line in (function.__doc__ or "").splitlines() if line.lstrip().startswith("**settings:"))
    function.__doc__ = (function.__doc__ or "").replace(line, describe(Settings, " " * 8))


_show_settings(learn)
