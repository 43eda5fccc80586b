"""How random is the belief's variance? `python benchmarks/belief.py STUDY --out docs/results/belief/FILE.jsonl`.

For the last policy of each run of a study of learning curves: how far V differs from run to run and from its
prediction, state by state; and the total cost as predicted by moments in three ways (from one Gaussian, from parts of
the first state, from parts that split again half-way), as sampled on plants drawn from the model, with V as it is and
with V held to its predicted path, and as executed on the true plant. A line is written as soon as it is there; an
interrupted study goes on.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from bayespilco import startup
from bayespilco.core.precision import float64
from bayespilco.experiments.studies import rounded
from bayespilco.runs import Run
from bayespilco.trust.spread import belief_spread

RUNS = 500


@float64
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines")
    parser.add_argument("--runs", type=int, default=RUNS, help="samples, and executions")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    kept = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {json.loads(line)["seed"] for line in kept}
    for directory in sorted(arguments.study.glob("seed-*/*/run")):
        run = Run.load(directory)
        if run.settings.seed in done:
            continue
        found = belief_spread(run.task, run.settings, run.records[-1], runs=arguments.runs)
        executed = np.asarray(run.evaluate(executions=arguments.runs).costs).sum(axis=1)
        row = {
            "task": run.task.name,
            "sensors": [sensor.name for sensor in run.task.sensed],
            "seed": run.settings.seed,
            "seconds": len(run.records) * run.task.steps * run.task.dt,
            "differs": dict(zip(found.names, found.relative.tolist(), strict=True)),
            "predicted_off": dict(zip(found.names, found.bias.tolist(), strict=True)),
            "one_gaussian": found.cost_predicted,
            "in_parts": found.cost_in_parts,
            "split_again": found.cost_split_again,
            "sampled_with_v_held": found.cost_held,
            "sampled": found.cost_executed,
            "error": found.error,
            "held_error": found.held_error,
            "executed": executed.mean(),
            "executed_error": executed.std(ddof=1) / np.sqrt(len(executed)),
        }
        line = json.dumps(rounded(row))
        print(line, flush=True)
        with arguments.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    startup.single_thread()
    main()
