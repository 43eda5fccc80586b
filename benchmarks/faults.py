"""How a learned controller bears sensors that fail: `python benchmarks/faults.py RUN`, with the directory of a run.

    bayespilco learn pendulum --out runs/pendulum
    python benchmarks/faults.py runs/pendulum --json docs/results/faults/pendulum.json

Each row is a fault of the sensors, in many executions on the simulated plant: how many are at the goal throughout the
last steps, with the controller's gate and with a filter that believes everything. Both meet the same plants, noise and
faults. A fault begins at a random step of the first two thirds, so that some hit the swing-up and some the balancing.

The last rows are limits, not controllers: five samples are missing, and somebody who knows the truth helps. What is
lost between them and a row above is lost by flying blind with this model, and no gate can win it back.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayespilco import Controller, Run, Task
from bayespilco.core.precision import float64
from bayespilco.execution import at_goal

LONGER = 1.5
"""An execution lasts this many episodes, so that there is time to fall after a fault."""
HOLD = 5
"""How many of the last steps must be at the goal."""
LONG = 5
"""How many samples a longer fault lasts."""


class Drawn(NamedTuple):
    """What chance decides about one execution, the same for every fault and controller."""

    first: np.ndarray
    """The first state."""
    noise: np.ndarray
    """Of the sensors, of shape (times, sensor)."""
    begin: int
    """When a fault begins."""
    sign: float
    """Of a spike."""
    scale: np.ndarray
    """That makes noise heavy-tailed: a normal number times it has Student's t distribution, with two degrees."""


Fault = Callable[[np.ndarray, np.ndarray, int, Drawn], np.ndarray]
"""What the sensors say at a step: from what they would have said up to then, the exact outputs, and the step."""


def none(z: np.ndarray, exact: np.ndarray, t: int, drawn: Drawn) -> np.ndarray:
    return z[t]


def spike(size: float) -> Fault:
    """One sample of the first sensor is off."""

    def fault(z: np.ndarray, exact: np.ndarray, t: int, drawn: Drawn) -> np.ndarray:
        off = np.zeros(z.shape[1])
        off[0] = drawn.sign * size
        return z[t] + off if t == drawn.begin else z[t]

    return fault


def swapped(z: np.ndarray, exact: np.ndarray, t: int, drawn: Drawn) -> np.ndarray:
    """The entries are in the wrong order for a while."""
    return z[t, ::-1] if drawn.begin <= t < drawn.begin + LONG else z[t]


def stuck(sensors: slice) -> Fault:
    """Sensors repeat their last sample for a while."""

    def fault(z: np.ndarray, exact: np.ndarray, t: int, drawn: Drawn) -> np.ndarray:
        said = z[t].copy()
        if drawn.begin <= t < drawn.begin + LONG:
            said[sensors] = z[drawn.begin - 1, sensors]
        return said

    return fault


def lost(z: np.ndarray, exact: np.ndarray, t: int, drawn: Drawn) -> np.ndarray:
    """Nothing comes for a while: no filter can make more of samples that say nothing."""
    return np.full_like(z[t], np.nan) if drawn.begin <= t < drawn.begin + LONG else z[t]


def wrapped(z: np.ndarray, exact: np.ndarray, t: int, drawn: Drawn) -> np.ndarray:
    """The first sensor measures an angle between -pi and pi."""
    return np.array([np.mod(z[t, 0] + np.pi, 2 * np.pi) - np.pi, *z[t, 1:]])


def heavy(z: np.ndarray, exact: np.ndarray, t: int, drawn: Drawn) -> np.ndarray:
    """Noise of the same scale, but of infinite variance."""
    noisy: np.ndarray = exact[t] + drawn.noise[t] * drawn.scale[t]
    return noisy


FAULTS: dict[str, Fault] = {
    "none": none,
    "one spike of 2 rad": spike(2.0),
    "one spike of 0.5 rad": spike(0.5),
    "five samples swapped": swapped,
    "five angles stuck": stuck(slice(0, 1)),
    "five samples stuck": stuck(slice(None)),
    "five samples missing": lost,
    "angle wraps at +-pi": wrapped,
    "Student-t(2) noise": heavy,
}


Help = Literal["nothing", "the first state", "the equation"]
HELP: dict[str, Help] = {
    "five missing, told the first state": "the first state",
    "five missing, true equation": "the equation",
}
"""Where the plant is when the fault begins; or how the belief's mean moves during it, by the true equation."""


def draw(task: Task, steps: int, seed: int, run: int) -> Drawn:
    random = np.random.default_rng([seed, run])
    std = np.asarray(task.sensor_std)
    return Drawn(
        first=random.multivariate_normal(task.initial.mean, task.initial.cov),
        noise=std * random.normal(size=(steps + 1, len(std))),
        begin=int(random.integers(LONG, 2 * steps // 3)),
        sign=float(random.choice([-1.0, 1.0])),
        scale=np.sqrt(2 / random.chisquare(2, size=(steps + 1, len(std)))),
    )


@float64
def executions(
    task: Task, controller: Controller, fault: Fault, runs: int, seed: int = 0, told: Help = "nothing"
) -> dict[str, Any]:
    """Run a controller many times, on as many plants, with sensors that fail."""
    steps = int(LONGER * task.steps)
    plant = jax.jit(jax.vmap(task.plant))  # type: ignore[arg-type]
    reached = jax.jit(jax.vmap(lambda x: at_goal(task, x[None])[0]))
    C, d = task.true_sensors.C, task.true_sensors.d
    drawn = [draw(task, steps, seed, run) for run in range(runs)]
    agents = [Controller(controller.description, controller.arrays) for _ in drawn]
    for agent in agents:
        agent.gate, agent.patience = controller.gate, controller.patience
    x = np.array([each.first for each in drawn])
    exact, up = np.empty((runs, steps + 1, len(C))), []
    for t in range(steps + 1):
        exact[:, t] = x @ C.T + d
        up.append(np.asarray(reached(jnp.asarray(x))))
        u, blind = [], [each.begin <= t < each.begin + LONG for each in drawn]
        for agent, state, each in zip(agents, x, drawn, strict=True):
            if told == "the first state" and t == each.begin:
                agent.mean[:], agent.cov[:] = state, 0.0
        believed = np.array([agent.mean for agent in agents])
        for agent, outputs, each in zip(agents, exact, drawn, strict=True):
            z = outputs[: t + 1] + each.noise[: t + 1]
            u.append(agent.act(fault(z, outputs[: t + 1], t, each)))
        if told == "the equation":
            moved = np.asarray(plant(jnp.asarray(believed), jnp.asarray(u)))
            for agent, mean, unseen in zip(agents, moved, blind, strict=True):
                if unseen:
                    agent.mean[:] = mean
        x = np.asarray(plant(jnp.asarray(x), jnp.asarray(u)))
    healths = [agent.health for agent in agents]
    return {
        "up": int(np.all(up[-HOLD:], axis=0).sum()),
        "rejected": float(np.mean([health.rejections.sum() for health in healths])),
        "restarts": float(np.mean([health.restarts for health in healths])),
    }


def rows(only: str) -> dict[str, tuple[Fault, Help]]:
    """The rows of the table whose names contain a word."""
    table: dict[str, tuple[Fault, Help]] = {name: (fault, "nothing") for name, fault in FAULTS.items()}
    table |= {name: (lost, told) for name, told in HELP.items()}
    return {name: row for name, row in table.items() if only in name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the directory of a run")
    parser.add_argument("--runs", type=int, default=100, help="executions per row")
    parser.add_argument("--gate", type=float, help="in standard deviations (by default the controller's)")
    parser.add_argument("--patience", type=int, help="samples rejected in a row (by default the controller's)")
    parser.add_argument("--only", help="rows whose names contain this")
    parser.add_argument("--json", type=Path, help="a file to write the table to")
    asked = parser.parse_args()
    run = Run.load(asked.run)
    gated = run.controller
    never = np.zeros_like(gated.arrays["sensor_turn"])
    ungated = Controller(gated.description, gated.arrays | {"sensor_turn": never})  # angles do not wrap, either
    gated.gate = gated.gate if asked.gate is None else asked.gate
    gated.patience = gated.patience if asked.patience is None else asked.patience
    ungated.gate = 0.0
    print(f"{run.task.name}: {asked.runs} executions per row, gate {gated.gate:g}, patience {gated.patience}")
    print(f"{'fault':34}{'up, no gate':>12}{'up':>6}{'rejected':>10}{'restarts':>10}  per execution")
    table = []
    for name, (fault, told) in rows(asked.only or "").items():
        without, with_gate = (executions(run.task, each, fault, asked.runs, 0, told) for each in (ungated, gated))
        table.append({"fault": name, "runs": asked.runs, "up without gate": without["up"], **with_gate})
        shares = [f"{each['up'] / asked.runs:.0%}" for each in (without, with_gate)]
        counts = f"{with_gate['rejected']:>10.2f}{with_gate['restarts']:>10.2f}"
        print(f"{name:34}{shares[0]:>12}{shares[1]:>6}{counts}", flush=True)
    if asked.json is not None:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"gate": gated.gate, "patience": gated.patience, "rows": table}
        asked.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
