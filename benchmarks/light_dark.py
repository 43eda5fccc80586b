"""Does it go and look? The methods on light-dark: `python benchmarks/light_dark.py --out docs/results/light-dark`.

A vehicle sees where it is only near a light, off the way to its goal (`bayespilco.tasks.light_dark`). Each method
plans with the same model, and is executed with the same filter, many times on the true plant. Two models:

    known      the plant's equation and the true noise: what is planned, if nothing has to be learned
    learned    from the method's own episodes, the first with random actions

With the known model there is a fourth row, `constant`: `bayes-filter`, planned as if the camera were everywhere as it
is at the start. It is executed with the same filter as the others, so it tells what it is worth to know what looking is
worth.

Each seed is a row of `results.jsonl`, which is written as soon as it is there: an interrupted study goes on where it
was. `results.md` and `paths.png` are made from the rows, at the end or with `--page`.
"""

import argparse
import dataclasses
import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bayespilco import startup, tasks
from bayespilco.algorithm import METHODS, RANDOM_STARTS, Settings, learn, make_problem
from bayespilco.control.policy import Policy
from bayespilco.control.search import search
from bayespilco.core.gp import GaussianProcess
from bayespilco.core.precision import float64
from bayespilco.execution import execute_many
from bayespilco.experiments.studies import rounded
from bayespilco.model.dynamics import Dynamics
from bayespilco.report import save
from bayespilco.report.poses import ellipse
from bayespilco.report.style import QUIET, new_figure
from bayespilco.tasks import Task
from bayespilco.trust.innovations import filter_trace

light_dark = importlib.import_module("bayespilco.tasks.light_dark")
MODELS = ("known", "learned")
COMPARED = ("bayes-filter", "deisenroth", "dallaire")
CONSTANT = "constant"
"""The method `bayes-filter`, planned with a noise that does not depend on the state."""
ROWS = {"known": (*COMPARED, CONSTANT), "learned": COMPARED}
INTRODUCTION = """
A vehicle sees where it is only near a light, which is off the way to its goal (`bayespilco.tasks.light_dark`). Each
method plans with its own way to predict. All are executed with the Bayes filter, on the true plant. This page was made
by `python benchmarks/light_dark.py`; every row of its tables is in `results.jsonl`."""
EXPLANATION = """
Total costs are over {steps} steps, so {steps} is never at the goal: means over seeds, with their standard errors over
seeds, each seed by {count} executions. Of the executions of a seed, the median is taken of the smallest distance from
the light, and at the last step of the belief's standard deviation (per axis) and of the distance from the goal; shown
are means over seeds. `constant` is `bayes-filter` planned as if the camera were everywhere as it is at the start. It
shares the filter and the way to predict, so the difference is what it is worth to know what looking is worth."""
PLACE = [0, 1]
"""The states that are places in the plane."""


@float64
def known_model(task: Task) -> Dynamics:
    """The plant itself, which is linear: nothing about it is uncertain but the state."""
    A, B = jax.jacfwd(task.plant, argnums=(0, 1))(task.initial.mean, jnp.zeros(len(task.actions)))
    slope, n = np.concatenate([A, B], axis=1), len(task.states)
    nothing = np.zeros((1, slope.shape[1])), np.ones(slope.shape), np.ones(n), np.zeros((n, 1)), None
    gp = GaussianProcess(*nothing, slope, np.zeros(n))
    return Dynamics(gp, task.features("free"), task.true_sensors, np.zeros(n), task.structure("free"))


@float64
def planned(task: Task, method: str, seed: int, evaluations: int, split: bool) -> tuple[Policy, Dynamics, float]:
    """With the known model: the best policy of a search from as many random ones as learning starts from."""
    model = known_model(task)
    problem = make_problem(task, Settings(method=named(method)), model)
    if method == CONSTANT:
        still = model.sensors.at(task.start.mean, task.start.cov)
        problem = problem._replace(dynamics=dataclasses.replace(model, sensors=still))
    keys = jax.random.split(jax.random.key(seed), RANDOM_STARTS)
    starts = [task.random_policy(key) for key in keys]
    at_last = max(evaluations // 8, 1) if split else 0
    found = search(problem, [], starts, evaluations=evaluations, split_evaluations=at_last, refined=[])
    return found.policy, model, float(found.cost)


def named(method: str) -> str:
    return COMPARED[0] if method == CONSTANT else method


@float64
def learned(task: Task, method: str, seed: int, settings: dict[str, Any]) -> tuple[Policy, Dynamics, float]:
    records = learn(task, Settings(method=method, seed=seed, **settings))
    return records[-1].policy, records[-1].dynamics, records[-1].predicted_cost


@float64
def row(model: str, method: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One policy, and what came of it."""
    task, begin = tasks.light_dark(), time.process_time()
    if model == "known":
        policy, dynamics, predicted = planned(task, method, seed, options.evaluations, options.split)
    else:
        settings = {name: getattr(options, name) for name in ("episodes", "points", "evaluations")}
        policy, dynamics, predicted = learned(task, method, seed, settings)
    seconds = time.process_time() - begin
    keys = jax.random.split(jax.random.key(1_000 + seed), options.executions)
    executed = execute_many(task, METHODS[named(method)].executor(policy, dynamics), keys)
    believed = filter_trace(dynamics, task.start, executed)
    x, totals = np.asarray(executed.states)[..., PLACE], np.asarray(executed.costs).sum(axis=1)
    from_light = np.linalg.norm(x - np.array(light_dark.LIGHT), axis=-1).min(axis=1)
    from_goal = np.linalg.norm(x[:, -1] - np.array(light_dark.GOAL), axis=-1)
    std = np.sqrt(np.mean(np.square(np.asarray(believed.belief_std)[:, -1, PLACE]), axis=-1))
    found: dict[str, Any] = {
        "model": model,
        "method": method,
        "seed": seed,
        "predicted": predicted,
        "executed": float(totals.mean()),
        "error": float(totals.std(ddof=1) / np.sqrt(len(totals))),
        "from_light": float(np.median(from_light)),
        "from_goal": float(np.median(from_goal)),
        "belief_std": float(np.median(std)),
        "seconds": seconds,
        "executions": options.executions,
    }
    if seed == 0:  # for the picture
        found["paths"] = x[:5].round(3).tolist()
        found["believed"] = np.asarray(believed.belief_mean)[0][..., PLACE].round(3).tolist()
        found["spreads"] = np.asarray(believed.belief_std)[0][..., PLACE].round(3).tolist()
    return rounded(found)


def read(directory: Path) -> list[dict[str, Any]]:
    file = directory / "results.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def study(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    for model in options.models:
        for seed in range(options.seeds):
            for method in ROWS[model]:
                done = [(each["model"], each["method"], each["seed"]) for each in read(options.out)]
                if (model, method, seed) in done:
                    continue
                found = row(model, method, seed, options)
                with (options.out / "results.jsonl").open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(model, method, seed, *(f"{k} {v:.3g}" for k, v in found.items() if type(v) is float), flush=True)


# The page.


def mean_and_error(rows: Sequence[dict[str, Any]], name: str) -> tuple[float, float]:
    """Over seeds."""
    values = np.array([each[name] for each in rows])
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    head = "method | seeds | predicted | executed | closest to the light [m] | belief's std [m] | from the goal [m]"
    lines = [f"| {head} |", "|---|---|---|---|---|---|---|"]
    for method in ROWS["known"]:
        of = [each for each in rows if each["method"] == method]
        if not of:
            continue
        predicted, (executed, error) = mean_and_error(of, "predicted")[0], mean_and_error(of, "executed")
        light, std, goal = (mean_and_error(of, name)[0] for name in ("from_light", "belief_std", "from_goal"))
        cells = f"{predicted:.1f} | **{executed:.1f}** ± {error:.1f} | {light:.2f} | {std:.2f} | {goal:.2f}"
        lines.append(f"| `{method}` | {len(of)} | {cells} |")
    return lines


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How sure it is that looking pays: the difference of the means over seeds, in its standard errors."""
    ours = mean_and_error([each for each in rows if each["method"] == COMPARED[0]], "executed")
    lines = []
    for method in ROWS[rows[0]["model"]][1:]:
        of = [each for each in rows if each["method"] == method]
        if not of:
            continue
        theirs = mean_and_error(of, "executed")
        error = float(np.hypot(ours[1], theirs[1]))
        saved = theirs[0] - ours[0]
        lines.append(f"- `{method}` costs {saved:.1f} ± {error:.1f} more than `{COMPARED[0]}`.")
    return lines


def page(directory: Path) -> None:
    """Write `results.md` and `paths.png`."""
    rows, steps = read(directory), tasks.light_dark().steps + 1
    lines = ["# Light-dark: does it go and look?", "", *INTRODUCTION.strip().splitlines(), ""]
    for model in MODELS:
        of = [each for each in rows if each["model"] == model]
        if of:
            lines += [f"## The model {model}", "", *table(of), "", *verdicts(of), ""]
    explained = EXPLANATION.strip().format(steps=steps, count=rows[0]["executions"])
    lines += [*explained.splitlines(), "", "![Paths](paths.png)", ""]
    lines += [
        "Five executions of the first seed. The ellipses are what is believed along the bold one, at every fourth step:"
    ]
    lines += ["two standard deviations.", ""]
    (directory / "results.md").write_text("\n".join(lines))
    draw(rows, directory)


def draw(rows: Sequence[dict[str, Any]], directory: Path) -> None:
    """The paths of the first seed, with the beliefs of one of them as ellipses."""
    models = [model for model in MODELS if any(each["model"] == model for each in rows)]
    figure, axes = new_figure(len(models), len(ROWS["known"]), 13, 3.2 * len(models))
    for line, model in zip(axes, models, strict=True):
        for ax, method in zip(line, ROWS["known"], strict=True):
            of = [each for each in rows if (each["model"], each["method"]) == (model, method)]
            ax.set_title(f"{method}, model {model}", loc="left", fontsize=10)
            ax.plot(*light_dark.LIGHT, marker="*", markersize=16, color="#F0E442", markeredgecolor=QUIET)
            ax.plot(*light_dark.GOAL, marker="+", markersize=12, color="black")
            ax.set(xlim=(-4.5, 9), ylim=(-5, 5.5), aspect="equal")
            if not of:
                ax.set_visible(False)
                continue
            colour, first = METHODS[named(method)].colour, of[0]
            for number, path in enumerate(np.array(first["paths"])):
                ax.plot(*path.T, color=colour, linewidth=1.6 if number == 0 else 0.8, alpha=1 if number == 0 else 0.5)
            mean, spread = np.array(first["believed"]), np.array(first["spreads"])
            for t in range(0, len(mean), 4):
                ax.plot(*ellipse(mean[t], np.diag(spread[t] ** 2), (0, 1)).T, color=QUIET, linewidth=0.7)
    save(figure, directory / "paths.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/light-dark"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--executions", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=4, help="of a learned model")
    parser.add_argument("--points", type=int, default=10, help="of a learned model")
    parser.add_argument("--evaluations", type=int, default=80)
    parser.add_argument("--split", action="store_true", help="with a known model, end with predictions from parts")
    parser.add_argument("--page", action="store_true", help="only write results.md and paths.png")
    options = parser.parse_args()
    startup.single_thread()
    if not options.page:
        study(options)
    page(options.out)


if __name__ == "__main__":
    main()
