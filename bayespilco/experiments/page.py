"""A page that shows a study: the numbers in tables, the figures, and where it falls short of the paper.

Made from `results.json` and `curves.csv` alone, so that it can be made again from what is stored. The Markdown is the
page; the HTML is the same, for browsers.
"""

import csv
import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markdown_it import MarkdownIt

from bayespilco.deploy.files import write
from bayespilco.experiments import paper
from bayespilco.experiments.comparison import PARTS
from bayespilco.experiments.results import CURVES, OURS
from bayespilco.report.comparison import draw_methods, draw_promises, draw_seeds
from bayespilco.runs.directory import read_stored_task
from bayespilco.tasks import TASKS, Task

Numbers = dict[str, Any]
METHODS = tuple(reversed(paper.ORDER))
"""From the highest executed cost in the paper to the lowest."""


def write_page(directory: Path) -> list[Path]:
    """Draw the figures and write `results.md` and `index.html`, from the stored results."""
    found = json.loads((directory / "results.json").read_text())
    curves = _read_curves(directory / "curves.csv")
    stored = read_stored_task(directory)
    task = stored.task if stored is not None else TASKS[found["study"]["task"]]()
    seeds = [seed["seed"] for seed in found["seeds"]]
    compared = task.name == paper.TASK
    figures = {
        f"{what}.png": draw_methods(
            {method: paper.curve(what, method) for method in METHODS} if compared else {},
            {
                method: (curves[method][f"{what}_mean"].mean(axis=0), curves[method][f"{what}_std"].mean(axis=0))
                for method in METHODS
            },
            task.dt,
            what,
            len(seeds),
        )
        for what in ("predicted", "executed")
    }
    figures["promises.png"] = draw_promises({method: curves[method] for method in METHODS}, task.dt)
    figures["seeds.png"] = draw_seeds(
        {method: _column(found, method, "executed") for method in METHODS},
        {method: paper.total("executed", method) for method in METHODS} if compared else {},
        seeds,
        float(task.steps + 1),
    )
    for name, figure in figures.items():
        figure.savefig(directory / name)
    text = page(found, task)
    write(directory / "results.md", text.encode())
    write(directory / "index.html", as_html(text).encode())
    return [directory / "index.html", directory / "results.md", *(directory / name for name in figures)]


def page(found: Numbers, task: Task) -> str:
    """The page in Markdown."""
    seeds, summary, study = found["seeds"], found["summary"], found["study"]
    compared = task.name == paper.TASK
    title = "The paper's comparison, repeated" if compared else f"The four methods on the task {task.name}"
    count = f"{len(seeds)} data sets" if len(seeds) > 1 else "one data set"
    sections = [
        f"# {title}",
        f"Made by `{found['command']}` (version {found['version']}) on {count}. Per data set: {study['episodes']} "
        f"episodes of {task.steps * task.dt:.3g} s, the first with random actions, the others with `pilco`; one "
        "dynamics model of them; a policy for each way of predicting, optimised on that model from the same policies, "
        "in the end with predictions in parts of the first state's distribution; "
        f"{study['executions']} executions of each method, scored on the latent state. Costs are sums over "
        f'{task.steps + 1} steps: {task.steps + 1} is "never at the goal".',
        "## The methods",
        _methods_table(summary, compared),
        "Median over data sets, with its 95 % bootstrap interval. *Sampled* is the mean cost of the same controller on "
        f"{study['samples']} plants drawn from the model, one function for each run; *covered* the share of executed "
        "costs within the 90 % band of the sampled ones, at the same step; *success* the share of runs within one "
        "width of the cost from the goal at every step of the last half second; *gain* the derivative of the action "
        f"by the {'angle' if task.angles else 'first state'} at the goal.",
        _order_sentences(summary),
        "![Executed cost of every data set](seeds.png)",
        "## Cost per step",
        "![Predicted cost per step](predicted.png)",
        "![Executed cost per step](executed.png)",
        "## Do the predictions keep their promise?",
        "![Predicted, sampled and executed cost per step](promises.png)",
        _promise_table(summary),
        "How far the predicted totals are from the executed ones, as a share of these; and the gap, executed minus "
        "predicted.",
        "## The noise that was learned",
        _noise_table(summary, task),
        "Learned over true standard deviation of the sensors, from all data of each data set.",
        "## Every data set",
        _seeds_table(seeds),
    ]
    if ablations := [seed for seed in seeds if "ablations" in seed]:
        sections += [
            "## What makes the difference",
            _ablations_table(ablations),
            "Predicted / executed cost of each method on the same data: as above; without predictions in parts, "
            "from one Gaussian, and with the paper's update of the belief as printed (for `bayes-filter` only); and on "
            "a model trained by the paper's Direct method.",
        ]
    if compared:
        sections += ["## Where this falls short of the paper", _shortcomings(found)]
    sections += ["## What it took", _seconds_table(seeds)]
    return "\n\n".join(sections) + "\n"


def _methods_table(summary: Numbers, compared: bool) -> str:
    head = ["method", "predicted", "sampled", "executed", "covered", "last step", "success", "gain"]
    rows = []
    for method in METHODS:
        n = summary["methods"][method]
        name = f"**`{method}`**" if method == OURS else f"`{method}`"
        costs = [interval(n[key], ".1f") for key in ("predicted", "sampled", "executed")]
        rest = [interval(n["coverage"], ".0%"), interval(n["final_cost"], ".3f"), interval(n["success"], ".0%")]
        rows.append([name, *costs, *rest, interval(n["gain"], ".1f")])
        if compared:
            totals = [f"{paper.total(what, method):.1f}" for what in ("predicted", "executed")]
            last = f"{paper.curve('executed', method)[0][-1]:.3f}"
            rows.append(["in the paper", totals[0], "", totals[1], "", last, "", _optional(paper.GAIN.get(method))])
    return table(head, rows)


def _order_sentences(summary: Numbers) -> str:
    count = summary["seeds"]
    others = [method for method in METHODS if method != OURS]
    beaten = ", ".join(
        f"`{method}` in {summary['best_in'][method]} (largest p {summary['rank_sum_largest_p'][method]:.1g})"
        for method in others
    )
    order = " < ".join(f"`{method}`" for method in paper.ORDER)
    return (
        f"Of {count} data set{'s' if count > 1 else ''}, `{OURS}` costs less than {beaten}; Wilcoxon's rank-sum test "
        f"compares the executed costs of a data set. It is best of all in {summary['best_of_all_in']}; the whole "
        f"order of the paper ({order}) holds in {summary['paper_order_in']}."
    )


def _promise_table(summary: Numbers) -> str:
    rows = []
    for method in METHODS:
        n = summary["methods"][method]
        errors = [interval(n[key], ".1%") for key in ("predicted_error", "sampled_error")]
        rows.append([f"`{method}`", *errors, interval(n["gap"], "+.2f")])
    return table(["method", "predicted by moments, error", "predicted by sampling, error", "gap"], rows)


def _noise_table(summary: Numbers, task: Task) -> str:
    ratio = summary["noise_ratio"]
    rows = [
        [str(state), f"{true:.3g}", *(f"{ratio[key][n]:.3f}" for key in ("median", "lowest", "highest"))]
        for n, (state, true) in enumerate(zip(task.sensed, np.asarray(task.sensor_std), strict=True))
    ]
    return table(["sensor", "true", "median", "lowest", "highest"], rows)


def _seeds_table(seeds: Sequence[Numbers]) -> str:
    head = [
        "seed",
        *(f"`{method}`" for method in METHODS),
        f"success of `{OURS}`",
        "covered",
        "gain",
        "noise learned / true",
    ]
    rows = []
    for seed in seeds:
        costs = [_three(seed["methods"][method]) for method in METHODS]
        ours = seed["methods"][OURS]
        noise = np.array(seed["noise"]["learned"]) / np.array(seed["noise"]["true"])
        rest = [f"{ours['success']:.0%}", f"{ours['coverage']:.0%}", f"{ours['gain']:.1f}"]
        rows.append([str(seed["seed"]), *costs, *rest, ", ".join(f"{value:.2f}" for value in noise)])
    return "Predicted / sampled / executed.\n\n" + table(head, rows)


def _three(n: Numbers) -> str:
    return f"{n['predicted']:.1f} / {n['sampled']:.1f} / **{n['executed']:.1f}**"


def _ablations_table(seeds: Sequence[Numbers]) -> str:
    rows = []
    for seed in seeds:
        done = seed["ablations"]
        whole, literal = done.get("whole", {}), done.get("literal", {})
        direct = {method: n for part in PARTS for method, n in done.get(f"direct-{part.name}", {}).items()}
        rows += [
            [
                str(seed["seed"]),
                f"`{method}`",
                *(_pair(part.get(method)) for part in (seed["methods"], whole, literal, direct)),
            ]
            for method in METHODS
        ]
    return table(["seed", "method", "ours", "one Gaussian", "update as printed", "Direct training"], rows)


def _pair(n: Numbers | None) -> str:
    return "" if n is None else f"{n['predicted']:.1f} / **{n['executed']:.1f}**"


def _shortcomings(found: Numbers) -> str:
    """Found by comparing, not by hand."""
    summary, seeds = found["summary"], found["seeds"]
    said = []
    for method in METHODS:
        published = paper.total("executed", method)
        worse = [seed["seed"] for seed in seeds if seed["methods"][method]["executed"] > published]
        if worse:
            said.append(
                f"`{method}` executes worse than the paper's {published:.1f} in {len(worse)} of {len(seeds)} data sets "
                f"(seeds {', '.join(map(str, worse))})."
            )
        ours = summary["methods"][method]["gap"]["median"]
        theirs = published - paper.total("predicted", method)
        if abs(ours) > abs(theirs):
            said.append(
                f"The prediction of `{method}` is off by {ours:+.2f} in the median; the paper's was by {theirs:+.2f}."
            )
        last, published_last = (
            summary["methods"][method]["final_cost"]["median"],
            float(paper.curve("executed", method)[0][-1]),
        )
        if last > published_last:
            said.append(
                f"At the last step `{method}` costs {last:.3f} in the median; in the paper {published_last:.3f}."
            )
    if summary["paper_order_in"] < len(seeds):
        said.append(
            f"The paper's order of all four methods holds in {summary['paper_order_in']} of {len(seeds)} data sets."
        )
    if len(seeds) < 2:
        said.append("One data set, like the paper: how much depends on the data is not known.")
    return "\n".join(f"- {sentence}" for sentence in said) or "Nowhere that these numbers show."


def _seconds_table(seeds: Sequence[Numbers]) -> str:
    names = list(dict.fromkeys(name for seed in seeds for name in seed["seconds"]))
    rows = []
    for seed in seeds:
        each = [seed["seconds"].get(name) for name in names]
        times = [f"{part['wall_s']:.0f} ({part['cpu_s']:.0f})" if part else "" for part in each]
        rows.append([str(seed["seed"]), f"{seed['wall_s']:.0f} ({seed['cpu_s']:.0f})", *times])
    rendered = table(["seed", "the comparison", *names], rows)
    return f"{rendered}\n\nSeconds of wall time, and of CPU time in brackets. Ablations do not count as the comparison."


def interval(spread: Numbers, style: str) -> str:
    median, around = format(spread["median"], style), spread["median_95"]
    return median if around is None else f"{median} ({format(around[0], style)} to {format(around[1], style)})"


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _column(found: Numbers, method: str, name: str) -> list[float]:
    return [seed["methods"][method][name] for seed in found["seeds"]]


def _read_curves(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """By method, then by column: arrays of shape (seeds, steps). Ablations are left out."""
    parts = {part.name for part in PARTS}
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] in parts]
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    read: dict[str, dict[str, np.ndarray]] = {}
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method]
        read[method] = {
            name: np.array([[float(row[name]) for row in mine if row["seed"] == seed] for seed in seeds])
            for name in CURVES
        }
    return read


STYLE = """
body { max-width: 70em; margin: 2em auto; padding: 0 1em; font: 16px/1.5 system-ui, sans-serif; color: #222; }
table { border-collapse: collapse; margin: 1em 0; font-size: 0.9em; display: block; overflow-x: auto; }
th, td { padding: 0.25em 0.7em; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
img { max-width: 100%; }
code { background: #f3f3f3; padding: 0 0.2em; }
"""


def as_html(markdown: str) -> str:
    title = html.escape(markdown.splitlines()[0].removeprefix("# "))
    body = MarkdownIt("commonmark").enable("table").render(markdown)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}</body>\n</html>\n"
    )
