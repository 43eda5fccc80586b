"""MuJoCo's InvertedPendulum-v5 with noise added to its sensors, learned in ten episodes of at most two seconds.

    pip install 'bayespilco[gym]'
    python examples/inverted_pendulum.py --seed 0 --out runs/inverted-pendulum-0
    python examples/inverted_pendulum.py --seed 0 --positions --out runs/by-positions-0

After each episode the controller is tried for the environment's whole length, 1000 steps, of which each is worth 1.
These trials are not learned from. When two controllers in a row stay up in all of them, learning ends. What they came
to is written to `returns.json` in the run's directory.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from bayespilco import Run, Settings, environments, learn, startup
from bayespilco.deploy.rig import Rig

TRIALS, STEPS = 5, 1000


def make(positions_only: bool = False) -> environments.Task:
    task = environments.task(
        "InvertedPendulum-v5",
        states={
            "cart position [m]": 0,
            "pole angle [rad]": 1,
            "cart velocity [m/s]": 2,
            "pole angular velocity [rad/s]": 3,
        },
        actions=["force [3 N]"],
        goal={"cart position [m]": (0.0, 0.5), "pole angle [rad]": (0.0, 0.1)},
        sensor_std=[0.01, 0.01, 0.1, 0.1],
        steps=50,
        policy_kind="linear",
        rates={"cart position": "cart velocity", "pole angle": "pole angular velocity"},
    )
    return task.with_sensors(["cart position", "pole angle"]) if positions_only else task


def trials(run: Run) -> list[int]:
    """For how many steps of 1000 the pole stays up, in some trials."""
    rig = run.task.plant
    assert isinstance(rig, Rig)
    return [
        len(rig.run(run.controller, dt=run.task.dt, steps=STEPS, seed=1000 + number).observations) - 1
        for number in range(TRIALS)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--points", type=int, default=Settings.points)
    parser.add_argument("--evaluations", type=int, default=Settings.evaluations)
    parser.add_argument("--positions", action="store_true", help="measure positions only, no velocities")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    startup.keep_compiled_code()
    returns: list[list[int]] = []

    def try_it(run: Run) -> bool:
        returns.append(trials(run))
        samples = int(np.isfinite(np.asarray(run.records[-1].episode.observations)).all(axis=1).sum())
        print(f"episode {len(returns)}: {samples} samples; then up for {returns[-1]} of {STEPS} steps", flush=True)
        (arguments.out / "returns.json").write_text(json.dumps(returns) + "\n")
        return all(each == STEPS for trials in returns[-2:] for each in trials) and len(returns) > 1

    settings = {name: getattr(arguments, name) for name in ("episodes", "seed", "points", "evaluations")}
    learn(make(arguments.positions), **settings, out=arguments.out, callbacks=[try_it])


if __name__ == "__main__":
    main()
