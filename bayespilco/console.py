"""What the command prints beside the progress of a run: tables, sentences, and the progress of many jobs."""

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayespilco import interrupts
from bayespilco.algorithm import METHODS, Progress
from bayespilco.experiments.jobs import Status
from bayespilco.model.episode import Episode
from bayespilco.runs import Run
from bayespilco.runs.directory import metrics, summary
from bayespilco.runs.display import Display as Display
from bayespilco.runs.display import moving_bar
from bayespilco.tasks import Task
from bayespilco.trust.sensors import Worths
from bayespilco.trust.spread import Spread


def evaluation_sentence(run: Run, executed: Episode) -> str:
    """How the final policy did, in one sentence."""
    costs = np.asarray(executed.costs)
    totals, count = costs.sum(axis=1), len(costs)
    error = totals.std(ddof=1) / np.sqrt(count) if count > 1 else float("nan")
    reached = np.mean(np.asarray(executed.reached)[:, -1]) if executed.reached is not None else float("nan")
    return (
        f"Final policy, executed {count} times: cost [bold]{totals.mean():.2f} ± {error:.2f}[/] (mean and its standard "
        f"error) against {run.records[-1].predicted_cost:.2f} predicted; [bold]{reached:.0%}[/] ended at the goal."
    )


class JobsDisplay:
    """Progress over many jobs: how many are finished, which are running, and what failed."""

    def __init__(self, console: Console) -> None:
        self.console, self.said = console, (-1, 0)
        self.stack = ExitStack()
        self.bar = moving_bar(console)
        self.line = self.bar.add_task("starting", total=None)

    def __enter__(self) -> "JobsDisplay":
        self.stack.enter_context(interrupts.tidying(self.bar.stop))
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.bar.stop()
        self.stack.close()

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


def curve_line(curve: dict[str, Any]) -> str:
    """A finished run of a study of learning curves, in one line."""
    course = ", ".join(f"{entry['executed']:.1f}" for entry in curve["episodes"])
    last = curve["episodes"][-1]
    return (
        f"seed {curve['seed']}, {curve['method']}: executed {course} after each episode; "
        f"[bold]{last['success']:.0%}[/] of the last policy's executions succeed"
    )


def holding_table(found: dict[str, Any]) -> Table:
    """How a controller did in long runs, and after pushes."""
    long, pushed = found["long"], found.get("pushes")
    runs, falls = long["runs"], f"{long['falls']} fall{'s' if long['falls'] != 1 else ''}"
    rows = {
        "[bold]in use[/]": f"{runs} runs of {long['minutes']:g} minutes",
        "reached the goal": f"{long['reached']} of {runs}"
        + ("" if long["reached_s"] is None else f", after {long['reached_s']:.3g} s in the median"),
        "at the goal from then on": f"{long['at_goal']:.1%} of the time",
        "fell": f"{long['fell']} of {runs} runs ({falls})",
        "fell and never got up again": f"{long['stayed_down']} of {runs} runs",
    }
    if pushed is not None:
        size = f"{pushed['size']:g} {pushed['unit']}".rstrip()
        rows["[bold]pushed[/]"] = f"{pushed['given']} pushes of {size} to the {pushed['state']}"
        rows["left the goal"] = f"{pushed['left_the_goal']} of {pushed['given']}"
        said = f"{pushed['recovered']} of {pushed['given']}"
        if pushed["share"] is not None:
            said += f" ({pushed['share']:.0%})"
        if pushed["median_s"] is not None:
            said += f", after {pushed['median_s']:.3g} s in the median"
        rows[f"back at the goal within {pushed['within_s']:g} s"] = said
        if pushed["given"] < pushed["wanted"]:
            missing = pushed["wanted"] - pushed["given"]
            rows["pushes not given, as the plant was not up"] = f"{missing} of {pushed['wanted']}"
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for what, value in rows.items():
        table.add_row(what, escape(value))
    return table


def tasks_table(tasks: dict[str, Task]) -> Table:
    table = Table("task", "states", "actions", "episode", box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for name, task in tasks.items():
        components = [escape(", ".join(map(str, part))) for part in (task.states, task.actions)]
        table.add_row(f"[bold]{name}[/]", *components, f"{task.steps} steps of {task.dt:.3g} s")
    return table


def spread_table(found: Spread) -> Table:
    """The belief's standard deviation of each state: predicted, met on average, and how far runs differ in it."""
    table = Table("state", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("predicted", "met", "predicted / met - 1", "from run to run", "at most"):
        table.add_column(heading, justify="right")
    most = np.divide(found.std, found.mean, out=np.zeros_like(found.std), where=found.mean > 0).max(axis=0)
    for n, name in enumerate(found.names):
        if found.mean[:, n].any():
            shares = f"{100 * found.bias[n]:+.0f} %", f"{100 * found.relative[n]:.0f} %", f"{100 * most[n]:.0f} %"
            table.add_row(name, f"{found.predicted[:, n].mean():.3g}", f"{found.mean[:, n].mean():.3g}", *shares)
    return table


def sensors_table(found: Worths) -> Table:
    """What a change of each sensor's noise does to the total cost."""
    columns = {"halved": "halved", "doubled": "doubled", "without": "without it", "added": "added"}
    shown = [what for what in columns if any(what in worth.changes for worth in found.sensors)]
    table = Table("sensor", "noise (std)", box=SIMPLE_HEAD, pad_edge=False)
    for what in shown:
        table.add_column(columns[what], justify="right", no_wrap=True)
    for worth in found.sensors:
        name = escape(worth.name) + (" (new)" if "added" in worth.changes else "")
        noise = f"{worth.std:.3g} {worth.unit}".strip()
        table.add_row(name, noise, *(str(worth.changes[what]) if what in worth.changes else "-" for what in shown))
    return table


def methods_table() -> Table:
    table = Table("method", "predicts with", "executes with", "from", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, method in METHODS.items():
        table.add_row(f"[bold]{name}[/]", method.predicts, method.executes, method.source)
    return table


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


class JsonLines:
    """What happens while a run is learned, for machines: one JSON object per line on standard output."""

    def __init__(self) -> None:
        self.finished, self.stage = 0, ""

    def say(self, event: str, **what: Any) -> None:
        print(json.dumps({"event": event, **what}), flush=True)

    def on_progress(self, progress: Progress) -> None:
        """When a stage begins."""
        if progress.stage != self.stage:
            self.say("stage", episode=progress.episode, episodes=progress.episodes, stage=progress.stage)
        self.stage = progress.stage

    def on_run(self, run: Run) -> None:
        for number in range(self.finished, len(run.records)):
            self.say("episode", episode=number, **metrics(run.records[number]))
        self.finished = len(run.records)

    def end(self, directory: Path, executed: Episode | None) -> None:
        self.say("end", directory=str(directory), evaluation=None if executed is None else summary(executed))
