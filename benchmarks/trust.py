"""Are promises kept? What `docs/howto/trust.md` says, measured on stored runs. Results are printed as JSON lines.

    python benchmarks/trust.py promises RUN ...       each certificate of a run against executions on its true plant
    python benchmarks/trust.py wrong RUN --count 20   wrong models, and honest ones: how many get GO?
    python benchmarks/trust.py limits RUN --limit "cart position=-0.5:0.5" --ask 0.005 --executions 1000
    python benchmarks/trust.py sensors RUN            predicted and executed worth of each sensor
    python benchmarks/trust.py study STUDY            the same promises, of each method of a stored comparison
    python benchmarks/trust.py summary FILE ...       what such lines come to

RUN is the directory of a finished run of a simulated task (of learning curves: `study/seed-*/bayes-filter/run`), STUDY
one of `bayespilco reproduce`.
"""

import argparse
import dataclasses
import importlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from bayespilco import startup
from bayespilco.algorithm import METHODS, TRAININGS, Record, make_problem, model_structure
from bayespilco.cli import _limits
from bayespilco.control.search import SPLITS, improve
from bayespilco.core.precision import as_float64, float64
from bayespilco.execution import RandomActions, exceeded, execute, execute_many
from bayespilco.experiments.comparison import PARTS, Study, part_file, read_outcome
from bayespilco.experiments.results import success
from bayespilco.model.episode import Episode, batch
from bayespilco.runs import Run
from bayespilco.settings import Thresholds
from bayespilco.tasks import Task
from bayespilco.tasks.task import hold
from bayespilco.trust.bounds import clopper_pearson
from bayespilco.trust.calibration import LEVELS, coverage, rank
from bayespilco.trust.certificate import certify
from bayespilco.trust.promises import outcome
from bayespilco.trust.sensors import FACTORS, scaled, sensor_worths, told

CASES = ("honest", "shifted", "heavier", "stuck", "short")
SHIFTED = 0.3
"""The share of samples that are one step late in the data."""
EVALUATIONS = 30
"""To improve the policy on each model of a case."""


def promises(run: Run, executions: int, only_last: bool) -> Iterator[dict[str, Any]]:
    """Certificates, and what many executions of the same policy came to."""
    earlier: tuple[Any, ...] = ()
    for count in range(1, len(run.records) + 1):
        begin, cpu = time.monotonic(), time.process_time()
        made = certify(run.task, run.settings, run.records[:count], earlier=earlier)
        seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
        earlier = made.promises
        if only_last and count < len(run.records):
            continue
        record = run.records[count - 1]
        executed = _execute(run.task, METHODS[run.method].executor(record.policy, record.dynamics), executions, 7)
        found = outcome(run.task, executed)
        own = made.promises[-1]
        sampled = {
            "totals": own.outcome.totals,
            "costs": np.concatenate([np.asarray(part.costs) for part in own.parts]),
            "states": np.concatenate([np.asarray(part.states) for part in own.parts]),
        }
        true = {"totals": found.totals, "costs": np.asarray(executed.costs), "states": np.asarray(executed.states)}
        yield {
            "episodes": count,
            "seconds": made.seconds,
            "go": made.go,
            "reasons": list(made.reasons),
            "success_bound": made.success.lower,
            "success": float(found.success.mean()),
            "bound_holds": bool(found.success.mean() >= made.success.lower),
            "sampled_total": float(own.outcome.totals.mean()),
            "by_moments": made.by_moments,
            "executed_total": float(found.totals.mean()),
            "executed_error": float(found.totals.std(ddof=1) / np.sqrt(len(found.totals))),
            "within_widened": float(np.mean((made.widened[0] <= found.totals) & (found.totals <= made.widened[1]))),
            "coverage": {name: coverage(sampled[name], true[name], LEVELS) for name in sampled},
            "median_rank": float(np.median([rank(own.outcome.totals, total) for total in found.totals])),
            "exceeding": {
                limit.name: [share.upper, float(found.exceeded[:, n].mean())]
                for n, (limit, share) in enumerate(zip(run.task.limits, made.limits.values(), strict=True))
            },
            "p": None if made.model is None else made.model.p,
            "wall_s": seconds,
            "cpu_s": cpu,
        }


@float64
def _execute(task: Task, executor: Any, executions: int, seed: int) -> Episode:
    return execute_many(task, executor, jax.random.split(jax.random.key(seed), executions))


def wrong(run: Run, case: str, number: int, trials: int, points: int) -> dict[str, Any]:
    """A model trained on the data of a case, then trials with its policy on the true plant, each learned from."""
    task, key = run.task, jax.random.fold_in(jax.random.key(2**19 + number), CASES.index(case))
    episodes = _data(run, case, number, key)
    trials = 0 if case == "short" else trials
    records: list[Record] = []
    policy = run.policy
    goes: list[dict[str, Any]] = []
    logged = tuple(episodes)
    earlier: tuple[Any, ...] = ()
    for trial in range(trials + 1):
        if trial:
            executor = METHODS[run.method].executor(records[-1].policy, records[-1].dynamics)
            episodes.append(execute(task, executor, jax.random.fold_in(key, 100 + trial)))
        fit = _train(run, episodes, points, records[-1].fit if records else None)
        problem = make_problem(task, run.settings, fit.dynamics)
        found = improve(policy, problem, evaluations=EVALUATIONS)
        policy = found.policy
        prediction = problem.prediction(policy)
        records.append(Record(episodes[-1], fit, policy, prediction, found.evaluations, found.stopped))
        seen = dataclasses.replace(task, logged=logged)
        asked = Thresholds(least_promises=min(max(trial, 1), 2))
        made = certify(seen, run.settings, records, asked, earlier)
        earlier = made.promises
        executed = _execute(task, METHODS[run.method].executor(policy, fit.dynamics), 100, number)
        goes.append(
            {
                "trials": trial,
                "go": made.go,
                "reasons": [reason.split(" (")[0] for reason in made.reasons],
                "p": None if made.model is None else made.model.p,
                "scale": made.calibration.scale,
                "success_bound": made.success.lower,
                "success": float(outcome(task, executed).success.mean()),
            }
        )
    return {"case": case, "number": number, "go": goes[-1]["go"], "certificates": goes}


def _data(run: Run, case: str, number: int, key: jax.Array) -> list[Episode]:
    """Episodes with random actions and with the policies of the run, recorded as the case says."""
    task = dataclasses.replace(run.task, plant=heavier(run.task)) if case == "heavier" else run.task
    rng = np.random.default_rng(number)
    if case == "short":
        short = dataclasses.replace(task, steps=min(max(round(2.0 / task.dt), 2), task.steps))
        return [execute(short, RandomActions(task.action_limits), key)]
    executors: list[Any] = [RandomActions(task.action_limits)]
    executors += [METHODS[run.method].executor(each.policy, each.dynamics) for each in run.records[:-1]]
    episodes = []
    for n, executor in enumerate(executors):
        episode = execute(task, executor, jax.random.fold_in(key, n))
        z = np.array(episode.observations)
        if case == "shifted":
            late = np.flatnonzero(rng.random(len(z) - 1) < SHIFTED) + 1
            z[late] = np.asarray(episode.observations)[late - 1]
        if case == "stuck":
            sensor, since = number % z.shape[1], int(rng.integers(0, len(z) // 2))
            z[since:, sensor] = z[since, sensor]
        episodes.append(eqx.tree_at(lambda e: e.observations, episode, as_float64(z)))
    return episodes


def heavier(task: Task) -> Any:
    """The plant with twice the mass of its pole, or pendulum."""
    module = importlib.import_module(f"bayespilco.tasks.{task.name.replace('-', '_')}")
    name = "POLE_MASS" if hasattr(module, "POLE_MASS") else "MASS"

    def derivative(x: Any, u: Any) -> Any:
        before = getattr(module, name)
        setattr(module, name, 2 * before)
        try:
            return module.derivative(x, u)
        finally:
            setattr(module, name, before)

    return hold(derivative, task.dt, substeps=40)


def _train(run: Run, episodes: list[Episode], points: int, previous: Any) -> Any:
    task = run.task
    kind = model_structure(task, run.settings)
    return TRAININGS[run.settings.training].fit(
        batch(episodes),
        task.features(kind),
        task.start,
        structure=task.structure(kind),
        sensors=task.sensors_with(np.ones(len(task.sensed))),
        points=points,
        previous=previous,
    )


@float64
def sensors(run: Run, executions: int) -> Iterator[dict[str, Any]]:
    """What each sensor is worth, predicted on sampled plants, and by paired executions on the true one."""
    found = sensor_worths(run.task, run.settings, run.records, runs=executions)
    keys = jax.random.split(jax.random.key(11), executions)
    std = np.asarray(run.task.sensor_std)

    def totals(number: int, factor: float) -> np.ndarray:
        changed = std * np.where(np.arange(len(std)) == number, factor, 1.0)
        task = dataclasses.replace(run.task, sensor_std=as_float64(changed))
        dynamics = told(run.dynamics, scaled(run.dynamics.sensors, number, factor))
        executed = execute_many(task, METHODS[run.method].executor(run.policy, dynamics), keys)
        return np.asarray(executed.costs).sum(axis=1)

    base = totals(0, 1.0)
    for number, worth in enumerate(found.sensors):
        for what in ("halved", "doubled"):
            difference = totals(number, FACTORS[what]) - base
            error = float(difference.std(ddof=1) / np.sqrt(executions))
            said = worth.changes[what]
            both = float(np.hypot(error, said.error))
            yield {
                "sensor": worth.name,
                "change": what,
                "predicted": said.mean,
                "predicted_error": said.error,
                "executed": float(difference.mean()),
                "executed_error": error,
                "standard_errors_apart": float(abs(said.mean - difference.mean()) / both) if both else 0.0,
            }
    yield {"total": found.total, "executed_total": float(base.mean()), "sentence": found.sentence}


def limits(run: Run, executions: int, asked: float, evaluations: int) -> Iterator[dict[str, Any]]:
    """Promised and executed exits of the last policy; then of it refined on its model, without limits and with."""
    yield {"policy": "as learned", **_exits(run, executions)}
    if not asked:
        return
    for name, probability in (("refined", 0.0), (f"{asked:g} asked", asked)):
        settings = dataclasses.replace(run.settings, limit_probability=probability)
        problem, policy = make_problem(run.task, settings, run.dynamics), run.policy
        for number in range(SPLITS):
            policy = improve(policy, problem.split(number), evaluations=evaluations).policy
        last = eqx.tree_at(lambda record: record.policy, run.records[-1], policy)
        changed = dataclasses.replace(run, settings=settings, records=(*run.records[:-1], last))
        yield {"policy": name, **_exits(changed, executions)}


def _exits(run: Run, executions: int) -> dict[str, Any]:
    made = run.certificate()
    executor = METHODS[run.method].executor(run.policy, run.dynamics)
    executed = _execute(run.task, executor, executions, 13)
    left = exceeded(run.task, np.asarray(executed.states)).mean(axis=0)
    return {
        "limits": {
            limit.name: {"promised": share.probability, "at_most": share.upper, "executed": float(left[n])}
            for n, (limit, share) in enumerate(zip(run.task.limits, made.limits.values(), strict=True))
        },
        "executions": executions,
        "executed_total": float(np.asarray(executed.costs).sum(axis=1).mean()),
        "success": float(outcome(run.task, executed).success.mean()),
    }


def study(path: Path) -> Iterator[dict[str, Any]]:
    """Promises of a stored comparison: sampled and executed costs are in its files, so nothing is simulated."""
    made = Study(**json.loads((path / "study.json").read_text()))
    task = made.make_task()
    for directory in sorted(path.glob("seed-*")):
        for part in (part for part in PARTS if part_file(directory, part).exists()):
            stored = read_outcome(made, directory, part)
            for n, method in enumerate(part.methods):
                executed, sampled = np.asarray(stored.executed[n]), np.asarray(stored.sampled[n])
                predicted = float(stored.predicted.total_cost)
                succeeded = round(success(task, sampled) * len(sampled))
                bound = clopper_pearson(succeeded, len(sampled)).lower
                rate, total = success(task, executed), float(executed.sum(axis=1).mean())
                yield {
                    "seed": directory.name,
                    "method": method,
                    "success_bound": bound,
                    "success": rate,
                    "bound_holds": bool(rate >= bound),
                    "sampled_total": float(sampled.sum(axis=1).mean()),
                    "by_moments": predicted,
                    "executed_total": total,
                    "coverage": {
                        "totals": coverage(sampled.sum(axis=1), executed.sum(axis=1)),
                        "costs": coverage(sampled, executed),
                    },
                }


def summary(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Shares and medians over lines of `promises`, `study` (by method) and `wrong` (by case)."""
    promised = [line for line in lines if line["what"] in ("promises", "study")]
    for method in sorted({line.get("method", "") for line in promised}):
        group = [line for line in promised if line.get("method", "") == method]
        ratio = {
            name: float(np.median([line[name] / line["executed_total"] for line in group]))
            for name in ("sampled_total", "by_moments")
        }
        curves = {name: [line["coverage"][name] for line in group] for name in group[0]["coverage"]}
        yield {
            "method": method,
            "certificates": len(group),
            "bound_holds": float(np.mean([line["bound_holds"] for line in group])),
            "relative_to_executed": ratio,
            "coverage": {
                name: {level: float(np.mean([curve[level] for curve in each])) for level in each[0]}
                for name, each in curves.items()
            },
        }
    for case in CASES:
        group = [line for line in lines if line["what"] == "wrong" and line["case"] == case]
        if group:
            why = [reason for line in group for reason in line["certificates"][-1]["reasons"]]
            counted = dict(Counter(map(_kind, why)))
            yield {"case": case, "models": len(group), "go": sum(line["go"] for line in group), "reasons": counted}


def _kind(reason: str) -> str:
    """A reason without its numbers."""
    return " ".join(reason.split(":")[0].split()[:6])


def main() -> None:
    startup.single_thread()
    startup.keep_compiled_code()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("promises", "wrong", "limits", "sensors", "study", "summary"))
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--executions", type=int, default=300)
    parser.add_argument("--limit", action="append", default=[])
    parser.add_argument("--ask", type=float, default=0.0, help="also refine the policy with this limit_probability")
    parser.add_argument("--evaluations", type=int, default=40, help="on each split, to refine it")
    parser.add_argument("--count", type=int, default=20, help="models of each case")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--trials", type=int, default=2, help="trials on the true plant before the verdict")
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--last", action="store_true", help="only the last certificate of each run")
    given = parser.parse_args()
    if given.what == "summary":
        text = "".join(path.read_text() for path in given.runs)
        for line in summary([json.loads(line) for line in text.splitlines()]):
            print(json.dumps(line))
        return
    for path in given.runs:
        if given.what == "study":
            for line in study(path):
                print(json.dumps({"what": "study", "study": str(path), **line}), flush=True)
            continue
        run = Run.load(path)
        if given.limit:
            run = dataclasses.replace(run, task=run.task.with_limits(_limits(given.limit)))
        if given.what == "promises":
            lines: Any = promises(run, given.executions, given.last)
        elif given.what == "wrong":
            numbers = range(given.first, given.first + given.count)
            lines = (wrong(run, case, n, given.trials, given.points) for n in numbers for case in given.cases)
        elif given.what == "limits":
            lines = limits(run, given.executions, given.ask, given.evaluations)
        else:
            lines = sensors(run, given.executions)
        for line in lines:
            print(json.dumps({"what": given.what, "run": str(path), **line}), flush=True)


if __name__ == "__main__":
    main()
