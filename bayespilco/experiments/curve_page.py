"""A page that shows a study of learning curves: seconds until it works, how sure that is, and every seed.

Made from `results.json` and `task.json` alone, so that it can be made again from what is stored.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bayespilco.deploy.files import write
from bayespilco.experiments.curve_results import LEVELS, SETTLED
from bayespilco.experiments.page import as_html, interval, table
from bayespilco.experiments.results import Numbers
from bayespilco.experiments.studies import RESULTS
from bayespilco.report.curves import draw_curve_promises, draw_curves
from bayespilco.runs.directory import read_stored_task
from bayespilco.tasks import TASKS, Task


def write_page(directory: Path) -> list[Path]:
    """Draw the figures and write `results.md` and `index.html`, from the stored results."""
    found = json.loads((directory / RESULTS).read_text())
    stored = read_stored_task(directory)
    task = stored.task if stored is not None else TASKS[found["study"]["task"]]()
    worst = task.cost.worst * (task.steps + 1)
    figures = {
        "curves.png": draw_curves(found["summary"], found["curves"], found["thresholds"], worst),
        "promises.png": draw_curve_promises(found["summary"], LEVELS),
    }
    for name, figure in figures.items():
        figure.savefig(directory / name)
    text = page(found, task)
    write(directory / "results.md", text.encode())
    write(directory / "index.html", as_html(text).encode())
    return [directory / "index.html", directory / "results.md", *(directory / name for name in figures)]


def page(found: Numbers, task: Task) -> str:
    """The page in Markdown."""
    study, summary, limits = found["study"], found["summary"], found["thresholds"]
    worst = task.cost.worst * (task.steps + 1)
    highest = f' {worst:g} is "never at the goal".' if np.isfinite(worst) else ""
    sections = [
        f"# Learning curves: {task.name}",
        f"Made by `{found['command']}` (version {found['version']}). {_task_sentence(study)} Each run starts from one "
        f"episode of {task.steps * task.dt:.3g} s with random actions and collects its own data, {found['episodes']} "
        f"episodes in all. After every episode the policy learned then is executed {study['executions']} times, scored "
        f"on the latent state. Costs are sums over {task.steps + 1} steps.{highest}",
        "## Seconds until it works",
        _until_table(summary, limits),
        "Seconds of interaction after which the mean executed cost is at most the threshold, and stays so until the "
        "last episode: median over seeds with its 95 % bootstrap interval, and the number of seeds that came so far. "
        "*Failed*: seeds whose last policy costs more than the highest threshold.",
        "![Executed cost and success over seconds of interaction](curves.png)",
        "## Over seconds of interaction",
        *(f"### `{method}`\n\n{_curve_table(numbers)}" for method, numbers in summary.items()),
        "Median over seeds with its 95 % bootstrap interval. *Predicted* is by moments; *sampled* the mean cost of the "
        f"controller on {study['samples']} plants drawn from the model; *success* the share of executions at the goal "
        "at every step of the last half second; *covered* the share of executed totals within the 90 % band of the "
        "sampled ones.",
        "## Do predictions keep their promise?",
        _coverage_table(summary),
        "The share of executed totals within the bands of the sampled totals, over all seeds and episodes. "
        f"*Executions* are all {study['executions']} of each policy; *next episode* is the one that the run went on "
        f"with. Late: with the data of at least {SETTLED} episodes ({SETTLED * task.steps * task.dt:.3g} s).",
        "![Predicted, sampled and executed cost](promises.png)",
        "## Sensor noise, learned / true at the end",
        _noise_table(summary, task),
        "## Seeds",
        *(_seeds_table(found["curves"], method, limits) for method in summary),
        "Executed cost (mean and its standard error) after the last episode, and the course of it.",
        "## What it took",
        _seconds_table(summary),
        "Seconds of a whole run, evaluations apart: median, lowest and highest. With other runs at the same time on "
        "the same machine, wall time says little.",
    ]
    return "\n\n".join(sections) + "\n"


def _task_sentence(study: Numbers) -> str:
    changed = []
    if study["sensors"] is not None:
        changed.append(f"only the sensors {', '.join(study['sensors'])}")
    if study["delay"] is not None:
        changed.append(f"actions {study['delay']} step{'s' if study['delay'] != 1 else ''} late")
    if study["dropout"] is not None:
        changed.append(f"{study['dropout']:.0%} of the samples lost")
    if study["noise"] != 1:
        changed.append(f"{study['noise']:g} times the sensor noise")
    return f"The task has {', '.join(changed)}." if changed else "The task is as it comes."


def _until_table(summary: Numbers, limits: Sequence[float]) -> str:
    rows = []
    for method, numbers in summary.items():
        row = [f"`{method}`", _seeds(numbers)]
        for limit in limits:
            until = numbers["until"][f"{limit:g}"]
            row.append(f"{_until(until)}, {until['kept_in']} of {until['of']}")
        failed = numbers["failed"]
        share = "" if failed is None or failed["share"] is None else f"{failed['share']:.0%}"
        rows.append([*row, share + (f" (seeds {', '.join(map(str, failed['seeds']))})" if failed["seeds"] else "")])
    return table(["method", "seeds", *(f"at most {limit:g}" for limit in limits), "failed"], rows)


def _seeds(numbers: Numbers) -> str:
    more = f" (+ {len(numbers['incomplete'])} not finished)" if numbers["incomplete"] else ""
    return f"{len(numbers['seeds'])}{more}"


def _until(until: Numbers) -> str:
    text, around = _time(until["median"]), until["median_95"]
    return text if around is None else f"{text} ({_time(around[0])} to {_time(around[1])})"


def _time(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.3g} s"


def _curve_table(numbers: Numbers) -> str:
    rows = [
        [
            f"{point['seconds']:.3g}",
            str(point["seeds"]),
            interval(point["executed"], ".1f"),
            f"{point['executed']['lowest']:.1f} to {point['executed']['highest']:.1f}",
            f"{point['predicted']['median']:.1f}",
            f"{point['sampled']['median']:.1f}",
            interval(point["success"], ".0%"),
            f"{point['coverage']['90']:.0%}",
        ]
        for point in numbers["curve"]
    ]
    head = ["seconds", "seeds", "executed", "all seeds", "predicted", "sampled", "success", "covered"]
    return table(head, rows)


def _coverage_table(summary: Numbers) -> str:
    rows = []
    for method, numbers in summary.items():
        for when, name in (("early", "early"), ("settled", "late")):
            found = numbers["coverage"][when]
            for what, count in (("executions", "policies"), ("next", "episodes")):
                shares = [found[what][str(level)] for level in LEVELS]
                said = ["" if share is None else f"{share:.0%}" for share in shares]
                label = "executions" if what == "executions" else "next episode"
                rows.append([f"`{method}`", name, f"{label} ({found[count]})", *said])
    return table(["method", "data", "of", *(f"{level} %" for level in LEVELS)], rows)


def _noise_table(summary: Numbers, task: Task) -> str:
    rows = [
        [f"`{method}`", str(sensor), *(f"{ratio[key][n]:.3f}" for key in ("median", "lowest", "highest"))]
        for method, numbers in summary.items()
        if (ratio := numbers["noise_ratio"]) is not None
        for n, sensor in enumerate(task.sensed)
    ]
    return table(["method", "sensor", "median", "lowest", "highest"], rows)


def _seeds_table(curves: Sequence[Numbers], method: str, limits: Sequence[float]) -> str:
    rows = []
    for curve in (each for each in curves if each["method"] == method):
        last = curve["episodes"][-1]
        error = "" if last["executed_error"] is None else f" ± {last['executed_error']:.1f}"
        course = ", ".join(f"{entry['executed']:.1f}" for entry in curve["episodes"])
        until = [_time(curve["until"][f"{limit:g}"]["stays"]) for limit in limits]
        rows.append(
            [str(curve["seed"]), f"**{last['executed']:.1f}**{error}", f"{last['success']:.0%}", *until, course]
        )
    head = ["seed", "executed", "success", *(f"at most {limit:g}" for limit in limits), "after each episode"]
    return f"### `{method}`, every seed\n\n{table(head, rows)}"


def _seconds_table(summary: Numbers) -> str:
    rows = []
    for method, numbers in summary.items():
        times = [numbers["wall_s"], numbers["cpu_s"]]
        said = ["" if t is None else f"{t['median']:.0f} ({t['lowest']:.0f} to {t['highest']:.0f})" for t in times]
        rows.append([f"`{method}`", *said])
    return table(["method", "wall", "CPU"], rows)
