"""What a terminal or a notebook shows while a run is learned: a line that moves, and a table for each episode."""

import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from bayespilco import interrupts
from bayespilco.algorithm import Progress, Record
from bayespilco.runs.certifying import Certifier
from bayespilco.runs.run import Run
from bayespilco.tasks import Task
from bayespilco.trust.certificate import Certificate

STAGES = {
    "execute": ("executing", 0.0, 0.05),
    "train": ("learning the dynamics", 0.05, 0.4),
    "improve": ("improving the policy", 0.4, 1.0),
}
"""What each stage is called, and from where to where it fills an episode's part of the bar."""


def moving_bar(console: Console) -> Bar:
    columns = SpinnerColumn(), BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.description}")
    return Bar(*columns, console=console, transient=True)


class Display:
    """Progress of one run. Use it as a context manager, and its `on_` methods as the callables of `learn`."""

    def __init__(self, console: Console, run: Run) -> None:
        self.console, self.task, self.episodes = console, run.task, run.settings.episodes
        self.finished = len(run.records)
        self.stage = ""
        self.interrupted = False
        self.certifier: Certifier | None = None
        """Who certifies each policy before it is executed: what it says is shown."""
        self.before: Any = None
        self.stack = ExitStack()
        self.bar = moving_bar(console)
        self.line = self.bar.add_task("starting", total=self.episodes, completed=self.finished)

    def __enter__(self) -> "Display":
        # Other threads cannot be interrupted, and the command has its own way (`interrupts`).
        if threading.current_thread() is threading.main_thread() and not interrupts.is_guarded():
            self.before = signal.signal(signal.SIGINT, self._interrupt)
        self.stack.enter_context(interrupts.tidying(self.bar.stop))
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.bar.stop()
        self.stack.close()
        if self.before is not None:
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
        if progress.stage != self.stage and not self.console.is_terminal and not self.console.is_jupyter:
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
        if self.certifier is not None and self.certifier.latest is not None:
            self._show_certificate(self.certifier.latest)

    def _show(self, record: Record) -> None:
        self.finished += 1
        self.bar.update(self.line, completed=self.finished)
        logged = len(self.task.logged)
        whole = "the log" if logged == 1 else f"the log, the last of {logged}"
        first = f"taken from {whole}" if logged else "executed with random actions"
        how = first if self.finished == 1 else "executed with the policy"
        most = self.task.cost.worst * (record.episode.steps + 1)
        of = f" of at most {most:g}" if np.isfinite(most) else ""
        self.console.print(
            f"\n[bold]Episode {self.finished} of {self.episodes}[/] {how}: cost {record.executed_cost:.2f}{of}. "
            f"Next policy: [bold]predicted cost {record.predicted_cost:.2f}[/]; "
            f"search stopped after {record.evaluations} evaluations: {record.stopped.sentence}."
        )
        self.console.print(noise_table(self.task, record))

    def _show_certificate(self, certificate: Certificate) -> None:
        """What came of the promise before the last episode, and the certificate of the next."""
        if certificate.kept:
            last, (low, high) = certificate.kept[-1], certificate.promises[-2].band
            word = "kept" if last.within else "[bold]missed[/]"
            self.console.print(f"Promised {low:.2f} to {high:.2f} (90 %), executed {last.total:.2f}: {word}.")
        self.console.print(f"Next trial: {escape(certificate.sentence)}")


def heading(run: Run, doing: str, path: Path | None) -> str:
    """The first line: what is learned, how, and where to."""
    after = f" after {len(run.records)} of {run.settings.episodes} episodes" if run.records else ""
    into = f", into {escape(str(path))}" if path is not None else ""
    return f"{doing} [bold]{escape(run.task.name)}[/] with [bold]{run.method}[/], seed {run.settings.seed}{after}{into}"


def noise_table(task: Task, record: Record) -> Table:
    """The noise that was learned, beside the sensors' true one, which a simulation knows."""
    table = Table("noise (std)", box=SIMPLE_HEAD, pad_edge=False)
    sensors, states = list(task.sensor_names), [str(state) for state in task.states]
    names = states + [name for name in sensors if name not in states]
    for name in names:
        table.add_column(escape(name), justify="right")

    def row(title: str, of: list[str], variances: Any) -> None:
        found = dict(zip(of, np.sqrt(np.asarray(variances)), strict=False))
        table.add_row(title, *(f"{found[name]:.3g}" if name in found else "-" for name in names))

    row("sensors, learned", sensors, record.dynamics.sensor_noise)
    if task.sensor_std is not None:
        row("sensors, true", sensors, np.square(np.asarray(task.sensor_std)))
    row("process, learned", states, record.dynamics.process_noise)
    return table
