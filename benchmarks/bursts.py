"""Does it pay to look at the belief's covariance? `python benchmarks/bursts.py --task pendulum --out bursts`.

Now and then all samples are lost for half a second. Each seed learns a model and a policy of the belief's mean, as
ever. From there two searches go on, with the same budget on the same drawn bursts: of policies of the mean, and of
policies of the whole belief, which start as the same policy. Both are executed on the true plant with the same random
numbers, so that their difference is seen through little noise. A third row, `before`, is the policy that both go on
from.

Each seed is a line of `results.jsonl`, which is written as soon as it is there: an interrupted study goes on where it
was. What came of it is printed at the end.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bayespilco import startup, tasks
from bayespilco.algorithm import METHODS, Settings, learn, make_problem, random_policy
from bayespilco.control.policy import BeliefPolicy, Policy
from bayespilco.control.problem import Problem
from bayespilco.control.search import SPLITS, improve
from bayespilco.core.precision import float64
from bayespilco.execution import execute_many
from bayespilco.experiments.studies import rounded
from bayespilco.tasks import Bursts, Task

FIRST_SPLIT = 1000
"""Splits, and patterns of bursts, that learning has not seen."""
JUDGING_SPLITS = range(2000, 2004)
"""Those that predicted costs are of, which no search has seen."""


def refined(policy: Policy, problem: Problem, evaluations: int) -> tuple[Policy, float]:
    """Improved on one split after the other; and the predicted cost on the last."""
    curvature = None
    for number in range(FIRST_SPLIT, FIRST_SPLIT + SPLITS):
        found = improve(policy, problem.split(number), evaluations=evaluations, curvature=curvature)
        policy, curvature = found.policy, found.curvature
    return policy, found.cost


@float64
def row(task: Task, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One seed: what the three policies cost, and the difference of the two that were refined."""
    begin = time.process_time()
    settings = Settings(seed=seed, episodes=options.episodes, points=options.points, evaluations=options.evaluations)
    record = learn(task, settings)[-1]
    learned = time.process_time() - begin
    problem = make_problem(task, settings, record.dynamics)
    blank = random_policy(task, Settings(sees="belief"), record.dynamics, jax.random.key(0))
    assert isinstance(blank, BeliefPolicy)
    policies: dict[str, Policy] = {"before": record.policy}
    found: dict[str, Any] = {"task": task.name, "bursts": [options.apart, options.lasting], "seed": seed}
    for name, start in (("mean", record.policy), ("belief", BeliefPolicy(record.policy, blank.caution))):
        policies[name], found[f"{name}_own"] = refined(start, problem, options.refining)
    keys = jax.random.split(jax.random.key(1_000 + seed), options.executions)
    totals = {}
    for name, policy in policies.items():
        executor = METHODS[settings.method].executor(policy, record.dynamics)
        totals[name] = np.asarray(execute_many(task, executor, keys).costs).sum(axis=1)
        found[f"{name}_executed"] = float(totals[name].mean())
        found[f"{name}_predicted"] = float(np.mean([problem.split(n).value(policy) for n in JUDGING_SPLITS]))
    gain = totals["mean"] - totals["belief"]
    found |= {"gain": float(gain.mean()), "gain_error": float(gain.std(ddof=1) / np.sqrt(len(gain)))}
    caution = policies["belief"].caution  # type: ignore[attr-defined]
    found |= {"scale": np.asarray(caution.scale).tolist(), "shift": np.asarray(caution.shift).tolist()}
    found |= {"executions": options.executions, "learning_seconds": learned}
    return rounded(found | {"seconds": time.process_time() - begin})


def summary(rows: list[dict[str, Any]]) -> str:
    names = ("before", "mean", "belief")
    lines = ["seed  " + "  ".join(f"{name:>8}" for name in names) + "      gain of looking (executed; predicted)"]
    for each in rows:
        costs = "  ".join(f"{each[f'{name}_executed']:8.2f}" for name in names)
        promised = each["mean_predicted"] - each["belief_predicted"]
        lines.append(f"{each['seed']:4d}  {costs}  {each['gain']:+8.2f} +- {each['gain_error']:.2f}; {promised:+.2f}")
    gains = np.array([each["gain"] for each in rows])
    if len(gains) > 1:
        lines.append(f"mean gain {gains.mean():+.2f} +- {gains.std(ddof=1) / np.sqrt(len(gains)):.2f} over seeds")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bursts"))
    parser.add_argument("--task", default="cart-pole")
    parser.add_argument("--apart", type=float, default=2.0, help="mean seconds between bursts")
    parser.add_argument("--lasting", type=float, default=0.5, help="mean seconds of a burst")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--points", type=int, default=50)
    parser.add_argument("--evaluations", type=int, default=100, help="of each search while learning")
    parser.add_argument("--refining", type=int, default=25, help="evaluations on each of the last splits")
    parser.add_argument("--executions", type=int, default=1000)
    options = parser.parse_args()
    startup.keep_compiled_code()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    task = tasks.TASKS[options.task]().varied(bursts=Bursts(options.apart, options.lasting))
    for seed in sorted(set(range(options.seeds)) - {each["seed"] for each in rows}):
        rows.append(row(task, seed, options))
        with file.open("a") as log:
            log.write(json.dumps(rows[-1]) + "\n")
        print(summary(rows[-1:]), flush=True)
    print(summary(sorted(rows, key=lambda each: each["seed"])))


if __name__ == "__main__":
    main()
