"""Does it hold, and recover from pushes? `python benchmarks/recovery.py STUDY --out docs/results/recovery/FILE.jsonl`.

For each run of a study of learning curves: its last policy, and the one that it would have ended with under
`recover`, which repeats the last episode's training and search on the same data. Both are executed, pushed with two
strengths, and run for five minutes. A line is written as soon as it is there; an interrupted study goes on.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np

from bayespilco import startup, tasks
from bayespilco.algorithm import Record, learn_episode
from bayespilco.core.precision import float64
from bayespilco.experiments.holding import evaluate_holding
from bayespilco.experiments.results import Numbers
from bayespilco.experiments.studies import rounded
from bayespilco.runs import Run

EXECUTIONS = 600
PUSHES = (9.0, 12.0)
"""In rad/s: the smaller one knocks the balanced pole down."""


@float64
def measure(run: Run) -> Numbers:
    """What the last policy of a run costs, and what becomes of it when it is pushed."""
    totals = np.asarray(run.evaluate(executions=EXECUTIONS).costs).sum(axis=1)
    found: Numbers = {"executed": totals.mean(), "error": totals.std() / np.sqrt(EXECUTIONS)}
    for size in PUSHES:
        holding = evaluate_holding(run, minutes=5.0 if size == PUSHES[0] else 0.1, pushes=60, push_size=size)
        found[f"recovered_{size:g}"] = holding["pushes"]["share"]
        if size == PUSHES[0]:
            found["fell"] = holding["long"]["fell"]
    return found


def recovering(run: Run) -> Run:
    """The same run with a last policy that was refined for pushes as well."""
    declared = getattr(tasks, run.task.name.replace("-", "_"))().recover_from
    task = dataclasses.replace(run.task, recover_from=declared)
    settings = dataclasses.replace(run.settings, recover=True, episodes=len(run.records))
    earlier, last = run.records[:-1], run.records[-1]
    again: Record = learn_episode(task, settings, earlier, execute=lambda *_: last.episode)
    return dataclasses.replace(run, task=task, records=(*earlier, again))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines")
    arguments = parser.parse_args()
    done = (
        {json.loads(line)["seed"] for line in arguments.out.read_text().splitlines()} if arguments.out.exists() else []
    )
    for directory in sorted(arguments.study.glob("seed-*/*/run")):
        run = Run.load(directory)
        if run.settings.seed in done:
            continue
        before, after = measure(run), measure(recovering(run))
        row = {"seed": run.settings.seed, "seconds": len(run.records) * run.task.steps * run.task.dt}
        line = json.dumps(rounded(row | {"before": before, "after": after}))
        print(line, flush=True)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    startup.single_thread()
    main()
