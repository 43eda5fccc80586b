"""Are promises kept? What `docs/howto/trust.md` says, measured on stored runs. Results are printed as JSON lines.

    python benchmarks/trust.py promises RUN ...       each certificate of a run against executions on its true plant
    python benchmarks/trust.py study STUDY --out FILE the same of every finished run of a study, from 10 s of data on
    python benchmarks/trust.py summary FILE ...       what such lines come to; --figure FILE draws the calibration curve
    python benchmarks/trust.py wrong RUN --count 20   wrong models, and honest ones: how many get GO?
    python benchmarks/trust.py limits RUN --limit "cart position=-0.5:0.5" --ask 0.005 --executions 1000
    python benchmarks/trust.py sensors RUN            predicted and executed worth of each sensor

RUN is the directory of a finished run of a simulated task, STUDY one of `bayespilco learning-curves` or of
`bayespilco reproduce`. Nothing is written into them. With `--out` lines are appended to a file; of a study, those that
are in it already are not computed again.
"""

import argparse
import dataclasses
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from trust_study import curve_figure, promises, read_lines, run_policy, study, summary

from bayespilco import startup
from bayespilco.algorithm import METHODS, TRAININGS, Record, make_problem, model_structure
from bayespilco.cli import _limits
from bayespilco.control.search import SPLITS, improve
from bayespilco.core.precision import as_float64, float64
from bayespilco.execution import RandomActions, exceeded, execute, execute_many
from bayespilco.experiments.studies import rounded
from bayespilco.model.episode import Episode, batch
from bayespilco.runs import Run
from bayespilco.settings import Thresholds
from bayespilco.tasks import Task
from bayespilco.tasks.task import hold
from bayespilco.trust.certificate import certify
from bayespilco.trust.promises import outcome
from bayespilco.trust.sensors import FACTORS, scaled, sensor_worths, told

CASES = ("honest", "shifted", "heavier", "stuck", "short")
SHIFTED = 0.3
"""The share of samples that are one step late in the data."""
EVALUATIONS = 30
"""To improve the policy on each model of a case."""


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
        executed = run_policy(task, METHODS[run.method].executor(policy, fit.dynamics), 100, number)
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


def limits(run: Run, executions: int, asked: float, evaluations: int, control: bool) -> Iterator[dict[str, Any]]:
    """Promised and executed exits of the last policy; then of it refined on its model, without limits and with."""
    yield {"policy": "as learned", **_exits(run, executions)}
    if not asked:
        return
    refined = (("refined", 0.0), (f"{asked:g} asked", asked))
    for name, probability in refined if control else refined[1:]:
        settings = dataclasses.replace(run.settings, limit_probability=probability)
        problem, policy = make_problem(run.task, settings, run.dynamics), run.policy
        for number in range(SPLITS):
            policy = improve(policy, problem.split(number), evaluations=evaluations).policy
        last = eqx.tree_at(lambda record: record.policy, run.records[-1], policy)
        changed = dataclasses.replace(run, settings=settings, records=(*run.records[:-1], last))
        yield {"policy": name, "evaluations": evaluations, **_exits(changed, executions)}


def _exits(run: Run, executions: int) -> dict[str, Any]:
    made = run.certificate()
    executor = METHODS[run.method].executor(run.policy, run.dynamics)
    executed = run_policy(run.task, executor, executions, 13)
    states = np.asarray(executed.states)
    left, at_first = exceeded(run.task, states), exceeded(run.task, states[:, :1])
    return {
        "limits": {
            limit.name: {
                "promised": share.probability,
                "at_most": share.upper,
                "executed": float(left[:, n].mean()),
                "beyond_at_first": float(at_first[:, n].mean()),
                "executed_from_within": float(left[~at_first[:, n], n].mean()),
            }
            for n, (limit, share) in enumerate(zip(run.task.limits, made.limits.values(), strict=True))
        },
        "executions": executions,
        "executed_total": float(np.asarray(executed.costs).sum(axis=1).mean()),
        "success": float(outcome(run.task, executed).success.mean()),
    }


def main() -> None:
    startup.single_thread()
    startup.keep_compiled_code()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("promises", "study", "summary", "wrong", "limits", "sensors"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="append the lines to this file, and do not repeat those of a study")
    parser.add_argument("--figure", type=Path, help="of a summary: where to draw the calibration curve")
    parser.add_argument("--executions", type=int, default=300)
    parser.add_argument("--from-seconds", type=float, default=10.0, help="of data: the first policies of a study")
    parser.add_argument("--limit", action="append", default=[])
    parser.add_argument("--ask", type=float, default=0.0, help="also refine the policy with this limit_probability")
    parser.add_argument("--evaluations", type=int, default=40, help="on each split, to refine it")
    parser.add_argument("--no-control", action="store_true", help="do not refine it without limits, to compare")
    parser.add_argument("--count", type=int, default=20, help="models of each case")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--trials", type=int, default=2, help="trials on the true plant before the verdict")
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--last", action="store_true", help="only the last certificate of each run")
    given = parser.parse_args()
    if given.what == "summary":
        lines = read_lines(given.paths)
        for line in summary(lines, CASES):
            print(json.dumps(rounded(line)))
        if given.figure:
            curve_figure(lines).savefig(given.figure)
        return
    for path in given.paths:
        for line in _lines(given, path):
            text = json.dumps(rounded({"what": given.what, "run": str(path), **line}))
            if given.out is None:
                print(text, flush=True)
            else:
                with given.out.open("a") as file:
                    file.write(f"{text}\n")


def _lines(given: argparse.Namespace, path: Path) -> Iterator[dict[str, Any]]:
    if given.what == "study":
        known = read_lines([given.out] if given.out else [])
        done = {(f"{line['seed']}/{line['method']}", line["episodes"]) for line in known if "episodes" in line}
        return study(path, given.executions, given.from_seconds, done)
    run = Run.load(path)
    if given.limit:
        run = dataclasses.replace(run, task=run.task.with_limits(_limits(given.limit)))
    if given.what == "promises":
        episodes = len(run.records)
        return promises(run, given.executions, [episodes] if given.last else range(1, episodes + 1))
    if given.what == "wrong":
        numbers = range(given.first, given.first + given.count)
        return (wrong(run, case, n, given.trials, given.points) for n in numbers for case in given.cases)
    if given.what == "limits":
        return limits(run, given.executions, given.ask, given.evaluations, not given.no_control)
    return sensors(run, given.executions)


if __name__ == "__main__":
    main()
