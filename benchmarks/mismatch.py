"""What a wrong filter costs, foreseen and executed: `python benchmarks/mismatch.py RUN --out FILE.jsonl`.

The last policy of a run is executed with filters that are wrong: R taken four times too small and too large, and the
model of four episodes before. For each: the total cost as predicted by moments from a split first state, as sampled on
plants drawn from the model, and as executed on the true plant. A line is written as soon as it is there.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from bayespilco import startup
from bayespilco.core.precision import float64
from bayespilco.execution import execute_many, filtered
from bayespilco.experiments.studies import rounded
from bayespilco.runs import Run
from bayespilco.trust.mismatch import foresee, with_wrong_noise

RUNS = 1000
FACTOR = 4.0
"""How many times too small or too large R is taken."""
EARLIER = 4
"""Episodes by which a model is stale."""


@float64
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines")
    parser.add_argument("--runs", type=int, default=RUNS, help="samples, and executions")
    arguments = parser.parse_args()
    run = Run.load(arguments.run)
    record = run.records[-1]
    filters = {"right": record.dynamics}
    filters |= {f"R / {FACTOR:g}": with_wrong_noise(record.dynamics, 1 / FACTOR)}
    filters |= {f"R * {FACTOR:g}": with_wrong_noise(record.dynamics, FACTOR)}
    if len(run.records) > EARLIER:
        filters |= {f"model of {EARLIER} episodes before": run.records[-1 - EARLIER].dynamics}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name, filter in filters.items():
        foreseen = foresee(run.task, run.settings, record, filter, runs=arguments.runs)
        keys = jax.random.split(jax.random.key(run.settings.seed + 1), arguments.runs)
        executed = execute_many(run.task, filtered(record.policy, filter), keys)
        totals = np.asarray(executed.costs) @ run.task.discount ** np.arange(run.task.steps + 1)
        row = {
            "task": run.task.name,
            "seed": run.settings.seed,
            "episodes": len(run.records),
            "filter": name,
            "predicted": foreseen.predicted,
            "sampled": foreseen.sampled,
            "error": foreseen.error,
            "missed": foreseen.missed,
            "executed": totals.mean(),
            "executed_error": totals.std(ddof=1) / np.sqrt(len(totals)),
        }
        line = json.dumps(rounded(row))
        print(line, flush=True)
        with arguments.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    startup.single_thread()
    main()
