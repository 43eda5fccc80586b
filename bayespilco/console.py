"""What the terminal shows while a run is learned: a line that moves, and a table for every episode that is finished."""

import signal
from types import TracebackType
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from bayespilco.algorithm import METHODS, Progress, Record
from bayespilco.episode import Episode
from bayespilco.experiments.jobs import Status
from bayespilco.runs import Run
from bayespilco.tasks import Task

STAGES = {
    "execute": ("executing", 0.0, 0.05),
    "train": ("learning the dynamics", 0.05, 0.4),
    "improve": ("improving the policy", 0.4, 1.0),
}
"""What each stage is called, and from where to where it fills an episode's part of the bar."""
REACHED = 0.5
"""A run whose last cost is below this has ended at the goal: nearer to it than to anywhere far."""


def _bar(console: Console) -> Bar:
    columns = SpinnerColumn(), BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}")
    return Bar(*columns, console=console, transient=True)


class Display:
    """Progress of one run. Use it as a context manager, and its `on_` methods as the callables of `learn`."""

    def __init__(self, console: Console, run: Run) -> None:
        self.console, self.task, self.episodes = console, run.task, run.settings.episodes
        self.finished = len(run.records)
        self.stage = ""
        self.interrupted = False
        self.bar = _bar(console)
        self.line = self.bar.add_task("starting", total=self.episodes, completed=self.finished)

    def __enter__(self) -> "Display":
        self.before = signal.signal(signal.SIGINT, self._interrupt)
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.bar.stop()
        signal.signal(signal.SIGINT, self.before)

    def _interrupt(self, *_: object) -> None:
        """Ctrl-C. If it comes while JAX collects garbage, Python drops the exception; it is then raised again later."""
        self.interrupted = True
        raise KeyboardInterrupt

    def on_progress(self, progress: Progress) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        name, start, end = STAGES[progress.stage]
        text = f"episode {progress.episode + 1} of {progress.episodes}: {name}"
        if progress.stage != self.stage and not self.console.is_terminal:
            self.console.print(text)  # a log cannot show what moves
        self.stage = progress.stage
        if progress.cost is not None and progress.stage == "improve":
            text += f", predicted cost {progress.cost:.2f}"
        completed = progress.episode + start + (end - start) * min(progress.fraction, 1.0)
        self.bar.update(self.line, description=text, completed=completed)

    def on_run(self, run: Run) -> None:
        """Show the records that are new."""
        for record in run.records[self.finished :]:
            self._show(record)

    def _show(self, record: Record) -> None:
        self.finished += 1
        self.bar.update(self.line, completed=self.finished)
        logged = len(self.task.logged)
        whole = "the log" if logged == 1 else f"the log, the last of {logged}"
        first = f"taken from {whole}" if logged else "executed with random actions"
        how = first if self.finished == 1 else "executed with the policy"
        self.console.print(
            f"\n[bold]Episode {self.finished} of {self.episodes}[/] {how}: cost {record.executed_cost:.2f} of "
            f"at most {record.episode.steps + 1}. Next policy: [bold]predicted cost {record.predicted_cost:.2f}[/]; "
            f"search stopped after {record.evaluations} evaluations: {record.stopped}."
        )
        self.console.print(noise_table(self.task, record))

    def say(self, what: str) -> None:
        self.bar.update(self.line, description=what)


def noise_table(task: Task, record: Record) -> Table:
    """The noise that was learned, beside the sensors' true one, which a simulation knows."""
    table = Table("noise (std)", box=SIMPLE_HEAD, pad_edge=False)
    for state in task.states:
        table.add_column(escape(str(state)), justify="right")
    learned = np.sqrt(np.asarray(record.dynamics.sensor_noise))
    process = np.sqrt(np.asarray(record.dynamics.process_noise))
    table.add_row("sensors, learned", *(f"{value:.3g}" for value in learned))
    if task.sensor_std is not None:
        table.add_row("sensors, true", *(f"{value:.3g}" for value in np.asarray(task.sensor_std)))
    table.add_row("process, learned", *(f"{value:.3g}" for value in process))
    return table


def evaluation_sentence(run: Run, executed: Episode) -> str:
    """How the final policy did, in one sentence."""
    costs = np.asarray(executed.costs)
    totals, count = costs.sum(axis=1), len(costs)
    error = totals.std(ddof=1) / np.sqrt(count) if count > 1 else float("nan")
    reached = np.mean(costs[:, -1] < REACHED)
    return (
        f"Final policy, executed {count} times: cost [bold]{totals.mean():.2f} ± {error:.2f}[/] (mean and its standard "
        f"error) against {run.records[-1].predicted_cost:.2f} predicted; [bold]{reached:.0%}[/] ended at the goal "
        f"(last cost below {REACHED})."
    )


class JobsDisplay:
    """Progress over many jobs: how many are finished, which are running, and what failed."""

    def __init__(self, console: Console) -> None:
        self.console, self.said = console, (-1, 0)
        self.bar = _bar(console)
        self.line = self.bar.add_task("starting", total=None)

    def __enter__(self) -> "JobsDisplay":
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.bar.stop()

    def on_status(self, status: Status) -> None:
        running = ", ".join(f"{name} ({seconds:.0f} s)" for name, seconds in status.running.items())
        waiting = "" if status.finished + len(status.failed) == status.total else "; waiting for a worker"
        text = f"{status.finished} of {status.total} jobs finished" + (f"; running {running}" if running else waiting)
        self.bar.update(self.line, description=escape(text), completed=status.finished, total=status.total)
        if (status.finished, len(status.failed)) != self.said and not self.console.is_terminal:
            self.said = (status.finished, len(status.failed))
            self.console.print(escape(text), soft_wrap=True)  # a log cannot show what moves


def comparison_table(seed: dict[str, Any]) -> Table:
    """The four methods on one data set."""
    head = ("predicted", "sampled", "executed", "last step", "success", "gain", "covered")
    table = Table(f"seed {seed['seed']}", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in head:
        table.add_column(name, justify="right")
    for method, n in seed["methods"].items():
        costs = [f"{n[name]:.2f}" for name in ("predicted", "sampled", "executed")]
        shares = [f"{n['success']:.0%}", f"{n['gain']:.1f}", f"{n['coverage']:.0%}"]
        table.add_row(method, *costs, f"{n['final_cost']:.3f}", *shares)
    return table


def tasks_table(tasks: dict[str, Task]) -> Table:
    table = Table("task", "states", "actions", "episode", box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for name, task in tasks.items():
        components = [escape(", ".join(map(str, part))) for part in (task.states, task.actions)]
        table.add_row(f"[bold]{name}[/]", *components, f"{task.steps} steps of {task.dt:.3g} s")
    return table


def methods_table() -> Table:
    table = Table("method", "predicts with", "executes with", "from", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for method in METHODS.values():
        predicts, executes = DESCRIPTIONS[method.name]
        table.add_row(f"[bold]{method.name}[/]", predicts, executes, method.source)
    return table


DESCRIPTIONS = {
    "pilco": ("all trajectories, raw observations", "raw observations"),
    "dallaire": ("the most likely trajectory only", "the Bayes filter"),
    "deisenroth": ("all trajectories, raw observations", "the Bayes filter"),
    "bayes-filter": ("all trajectories, with the filter", "the Bayes filter"),
}
"""What each method predicts and executes with, in words."""


def bench_row(figures: dict[str, Any] | None = None) -> str:
    """One measurement as a line of a table; without figures, the table's head."""
    if figures is None:
        head = f"{'what':<76}{'CPU s':>9}{'wall s':>9}{'compile s':>11}{'again s':>9}{'peak MB':>9}"
        return f"{head}{'floor s':>9}{'ratio':>7}"
    columns = {"cpu_s": "9.4f", "wall_s": "9.4f", "compile_s": "11.1f", "warm_compile_s": "9.1f", "peak_mb": "9.0f"}
    case = {key: value for key, value in figures.items() if key not in (*columns, "floor_cpu_s")}
    what = " ".join(str(v) if key in ("name", "predictor") else f"{key}={v}" for key, v in case.items())
    line = f"{what:<76}" + "".join(
        format(figures[key], style) if key in figures else " " * int(style.split(".")[0])
        for key, style in columns.items()
    )
    floor = figures.get("floor_cpu_s")
    return line if floor is None else f"{line}{floor:9.4f}{figures['cpu_s'] / floor:7.1f}"
