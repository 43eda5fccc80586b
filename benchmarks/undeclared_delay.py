"""What a delay costs that nobody declares. `python benchmarks/undeclared_delay.py --delay 1 --out FILE.jsonl`.

The cart-pole feels every action some steps late, and the task does not say so: model, filter and prediction believe
that it feels them at once. The same plant with its delay declared is `bayespilco learning-curves --delay 1`. A line is
written per seed and episode; what is there already is not repeated, but a run that was interrupted begins anew.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from bayespilco import startup, tasks
from bayespilco.algorithm import METHODS, Records, Settings, learn
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import float64
from bayespilco.execution import Executor, execute_many
from bayespilco.model.episode import Episode
from bayespilco.tasks import Task

EXECUTIONS = 100


class Unaware(Executor):
    """An executor that is not told of the actions on their way."""

    executor: Executor
    states: int = eqx.field(static=True)

    def start(self, initial: Gaussian) -> Any:
        n = self.states
        return self.executor.start(Gaussian(initial.mean[:n], initial.cov[:n, :n]))

    def step(self, carry: Any, observation: Array, t: Array, key: Array) -> tuple[Any, Array]:
        return self.executor.step(carry, observation, t, key)


@float64
def many(plant: Task, executor: Executor, keys: Array) -> Episode:
    """Episodes on the late plant."""
    return execute_many(plant, Unaware(executor, len(plant.states)), keys)


@float64
def measure(records: Records, plant: Task, settings: Settings) -> dict[str, Any]:
    """What the newest policy promises, and costs on the late plant."""
    record = records[-1]
    executor = METHODS[settings.method].executor(record.policy, record.dynamics)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(settings.seed), 10**6 + len(records)), EXECUTIONS)
    executed = many(plant, executor, keys)
    assert executed.costs is not None and executed.reached is not None
    totals = np.asarray(executed.costs).sum(axis=1)
    return {
        "seed": settings.seed,
        "delay": plant.action_delay,
        "seconds": round(len(records) * plant.steps * float(plant.dt), 6),
        "predicted": round(record.predicted_cost, 3),
        "executed": round(float(totals.mean()), 3),
        "error": round(float(totals.std() / np.sqrt(EXECUTIONS)), 3),
        "at_the_end": round(float(np.mean(executed.reached[:, -1])), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=int, default=1, help="how many steps late the plant is")
    parser.add_argument("--seeds", type=int, default=3, help="how many runs, from seed 0 on")
    parser.add_argument("--episodes", type=int, default=8, help="of each run")
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines")
    given = parser.parse_args()
    task = tasks.cart_pole()
    plant = task.with_delay(given.delay)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    whole = round(given.episodes * plant.steps * float(plant.dt), 6)
    finished = {json.loads(line)["seed"] for line in lines if json.loads(line)["seconds"] >= whole}
    given.out.write_text("".join(f"{line}\n" for line in lines if json.loads(line)["seed"] in finished))
    for seed in sorted(set(range(given.seeds)) - finished):
        settings = Settings(episodes=given.episodes, seed=seed)

        def note(records: Records, settings: Settings = settings) -> None:
            line = json.dumps(measure(records, plant, settings))
            print(line, flush=True)
            with given.out.open("a") as file:
                file.write(line + "\n")

        learn(
            task,
            settings,
            execute=lambda _, executor, key: jax.tree.map(lambda leaf: leaf[0], many(plant, executor, key[None])),
            on_record=note,
        )


if __name__ == "__main__":
    startup.single_thread()
    main()
