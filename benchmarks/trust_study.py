"""Promises of stored runs and studies against many executions, and what all of them come to.

Each line is one policy: what its certificate promised, made of nothing that was learned later, and what executions of
the same policy on the true plant came to. `study` keeps its lines in a file and goes on where it was stopped.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from bayespilco.algorithm import METHODS
from bayespilco.core.precision import float64
from bayespilco.execution import execute_many
from bayespilco.experiments.comparison import PARTS, Study, part_file, read_outcome
from bayespilco.experiments.results import success
from bayespilco.model.episode import Episode
from bayespilco.report.style import EXECUTED, PREDICTED, QUIET, new_figure
from bayespilco.runs import Run
from bayespilco.tasks import Task
from bayespilco.trust.bounds import clopper_pearson
from bayespilco.trust.calibration import LEVELS, coverage, rank
from bayespilco.trust.certificate import Certificate, certify
from bayespilco.trust.promises import outcome

SEED = 7
"""Of the executions: none that learning or a study used."""


@float64
def run_policy(task: Task, executor: Any, executions: int, seed: int) -> Episode:
    return execute_many(task, executor, jax.random.split(jax.random.key(seed), executions))


def promises(run: Run, executions: int, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Certificates after so many episodes each, and what many executions of the same policy came to."""
    earlier: tuple[Any, ...] = ()
    for count in counts:
        begin, cpu = time.monotonic(), time.process_time()
        made = certify(run.task, run.settings, run.records[:count], earlier=earlier)
        seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
        earlier = made.promises
        yield {**compared(run, made, executions, count), "wall_s": seconds, "cpu_s": cpu}


def compared(run: Run, made: Certificate, executions: int, count: int) -> dict[str, Any]:
    """A certificate of the policy learned from so many episodes, against executions."""
    record = run.records[count - 1]
    executed = run_policy(run.task, METHODS[run.method].executor(record.policy, record.dynamics), executions, SEED)
    found, own = outcome(run.task, executed), made.promises[-1]
    sampled = {
        "totals": own.outcome.totals,
        "costs": np.concatenate([np.asarray(part.costs) for part in own.parts]),
        "states": np.concatenate([np.asarray(part.states) for part in own.parts]),
    }
    true = {"totals": found.totals, "costs": np.asarray(executed.costs), "states": np.asarray(executed.states)}
    succeeded = clopper_pearson(int(found.success.sum()), executions)
    return {
        "episodes": count,
        "seconds": made.seconds,
        "go": made.go,
        "reasons": list(made.reasons),
        "success_bound": made.success.lower,
        "success": succeeded.probability,
        "bound_holds": bool(succeeded.probability >= made.success.lower),
        # Executions are a sample, too: only where even their upper bound is below, the promise is surely broken.
        "bound_refuted": bool(succeeded.upper < made.success.lower),
        "sampled_runs": made.success.runs,
        "sampled_total": float(own.outcome.totals.mean()),
        "sampled_error": _error(own.outcome.totals),
        "by_moments": made.by_moments,
        "executed_total": float(found.totals.mean()),
        "executed_error": _error(found.totals),
        "band": list(made.band),
        "widened": list(made.widened),
        "scale": made.calibration.scale,
        "calibrated": made.calibrated,
        "within_widened": float(np.mean((made.widened[0] <= found.totals) & (found.totals <= made.widened[1]))),
        "coverage": {name: _named(coverage(sampled[name], true[name], LEVELS)) for name in sampled},
        "median_rank": float(np.median([rank(own.outcome.totals, total) for total in found.totals])),
        "exceeding": {
            limit.name: [share.upper, float(found.exceeded[:, n].mean())]
            for n, (limit, share) in enumerate(zip(run.task.limits, made.limits.values(), strict=True))
        },
        "p": None if made.model is None else made.model.p,
    }


def _error(totals: np.ndarray) -> float:
    return float(totals.std(ddof=1) / np.sqrt(len(totals)))


def _named(curve: dict[float, float]) -> dict[str, float]:
    """As JSON has it: names are text."""
    return {f"{level:g}": share for level, share in curve.items()}


def study(path: Path, executions: int, seconds: float, done: set[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Promises of every finished run of a study of learning curves; or of a comparison, if it is one.

    Args:
        seconds: Of data: the policies that were learned from less are left out.
        done: The seeds and numbers of episodes that are in the file already.
    """
    found = sorted(path.glob("seed-*/*/run"))
    if not found:
        yield from comparison(path)
        return
    episodes = json.loads((path / "results.json").read_text())["episodes"]
    for directory in found:
        if len(list(directory.glob("episode-*.safetensors"))) < episodes:
            continue  # still being learned
        run = Run.load(directory)
        each = f"{directory.parent.parent.name}/{directory.parent.name}"
        first = math.ceil(seconds / (run.task.dt * run.task.steps) - 1e-9)
        counts = [count for count in range(max(first, 1), episodes + 1) if (each, count) not in done]
        for line in promises(run, executions, counts):
            yield {"seed": directory.parent.parent.name, "method": directory.parent.name, **line}


def comparison(path: Path) -> Iterator[dict[str, Any]]:
    """Promises of a stored comparison: sampled and executed costs are in its files, so nothing is simulated."""
    made = Study(**json.loads((path / "study.json").read_text()))
    task = made.make_task()
    for directory in sorted(path.glob("seed-*")):
        for part in (part for part in PARTS if part_file(directory, part).exists()):
            stored = read_outcome(made, directory, part)
            for n, method in enumerate(part.methods):
                executed, sampled = np.asarray(stored.executed[n]), np.asarray(stored.sampled[n])
                succeeded = round(success(task, sampled) * len(sampled))
                bound = clopper_pearson(succeeded, len(sampled)).lower
                rate, totals = success(task, executed), executed.sum(axis=1)
                of_executed = clopper_pearson(round(rate * len(executed)), len(executed))
                yield {
                    "seed": directory.name,
                    "method": method,
                    "success_bound": bound,
                    "success": rate,
                    "bound_holds": bool(rate >= bound),
                    "bound_refuted": bool(of_executed.upper < bound),
                    "sampled_total": float(sampled.sum(axis=1).mean()),
                    "by_moments": float(stored.predicted.total_cost),
                    "executed_total": float(totals.mean()),
                    "coverage": {
                        "totals": _named(coverage(sampled.sum(axis=1), totals)),
                        "costs": _named(coverage(sampled, executed)),
                    },
                }


def summary(lines: Sequence[dict[str, Any]], cases: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Shares and medians over lines of `promises`, `study` (by method) and `wrong` (by case).

    Policies of one run are not independent of each other. So the first of each run is counted by itself, too.
    """
    promised = [line for line in lines if line["what"] in ("promises", "study")]
    for method in sorted({line.get("method", "") for line in promised}):
        group = [line for line in promised if line.get("method", "") == method]
        first: dict[str, dict[str, Any]] = {}
        for line in sorted(group, key=lambda line: line.get("episodes", 0)):
            first.setdefault(line.get("seed", line.get("run", "")), line)
        yield {"method": method, "policies": "the first of each run", **_summed(list(first.values()))}
        if len(group) > len(first):
            yield {"method": method, "policies": "all", **_summed(group)}
    for case in cases:
        group = [line for line in lines if line["what"] == "wrong" and line["case"] == case]
        if group:
            last = [line["certificates"][-1] for line in group]
            counted = Counter(_kind(reason) for each in last for reason in each["reasons"])
            works = sum(each["success"] >= 0.9 for each in last)
            yield {"case": case, "models": len(group), "go": sum(line["go"] for line in group),
                   "policy_succeeds_in_90_percent": works, "reasons": dict(counted)}  # fmt: skip


def _summed(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    away = {
        name: np.array([line[name] / line["executed_total"] - 1 for line in group])
        for name in ("sampled_total", "by_moments")
    }
    found = {
        "certificates": len(group),
        "bound_holds": float(np.mean([line["bound_holds"] for line in group])),
        "bound_refuted": float(np.mean([line["bound_refuted"] for line in group])),
        "median_off": {name: float(np.median(each)) for name, each in away.items()},
        "median_size_off": {name: float(np.median(np.abs(each))) for name, each in away.items()},
        "coverage": _pooled(group),
    }
    if "go" in group[0]:
        went = [line for line in group if line["go"]]
        found["go"] = len(went)
        found["success_of_go"] = [line["success"] for line in went]
        found["success_of_no_go"] = [line["success"] for line in group if not line["go"]]
        found["within_widened"] = float(np.mean([line["within_widened"] for line in group]))
    return found


def _pooled(group: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    curves = {name: [line["coverage"][name] for line in group] for name in group[0]["coverage"]}
    return {
        name: {level: float(np.mean([curve[level] for curve in each])) for level in each[0]}
        for name, each in curves.items()
    }


def _kind(reason: str) -> str:
    """A reason without its numbers."""
    return " ".join(reason.split(":")[0].split()[:6])


def curve_figure(lines: Sequence[dict[str, Any]]) -> Figure:
    """Nominal against empirical coverage, of each quantity: each policy by itself, and the mean of all."""
    group = [line for line in lines if line["what"] in ("promises", "study")]
    if not group:
        raise ValueError("There is no line of `promises` or `study` to draw a calibration curve of.")
    names = list(group[0]["coverage"])
    figure, axes = new_figure(1, len(names), 3.2 * len(names), 3.2)
    for ax, name, mean in zip(axes[0], names, _pooled(group).values(), strict=True):
        nominal = [100 * float(level) for level in mean]
        for line in group:
            each = [100 * share for share in line["coverage"][name].values()]
            ax.plot(nominal, each, color=PREDICTED, alpha=0.25, linewidth=0.8)
        ax.plot([45, 100], [45, 100], color=QUIET, linestyle="--", linewidth=1)
        ax.plot(nominal, [100 * share for share in mean.values()], color=EXECUTED, marker="o", linewidth=1.8)
        ax.set(title=name, xlabel="promised / %", xlim=(45, 100), ylim=(0, 102))
    axes[0, 0].set_ylabel("executed within the band / %")
    return figure


def read_lines(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The lines of files that there are. A last line that was not written completely is left out."""
    texts = [path.read_text() for path in paths if path.exists()]
    whole = [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]
    return [json.loads(line) for line in whole]
