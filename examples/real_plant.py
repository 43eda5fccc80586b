"""A plant in another process: learned on over UDP, in real time, within limits, on a line that loses samples.

    python examples/real_plant.py

starts the plant, a slide that creeps as it is pushed, as a program of its own, and then learns to bring it to 0.2 m.
For a device of yours, drop `start`, and give its address to `Udp` or the name of its port to `Serial`. The messages are
lines of text (`bayespilco/deploy/link/messages.py`).
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bayespilco import AngleFeatures, Gaussian, Run, SaturatingCost, Task, learn, plants, resume
from bayespilco.deploy.link import RemotePlant, Udp
from bayespilco.tasks import Component
from bayespilco.tasks.task import diagonal

DT, STEPS = 0.1, 20
TRIES = 20
"""How often the plant is given another chance."""
LINE = ("--jitter", "0.05", "--drop", "0.02", "--duplicate", "0.1")
"""The plant's clock is not ours, and some of its samples are lost or come twice."""


def start() -> tuple[subprocess.Popen[str], RemotePlant]:
    """The plant's process, and the driver that speaks with it."""
    command = [sys.executable, "-m", "bayespilco.deploy.link.simulator", "slide", "--udp", "0", "--realtime", *LINE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, RemotePlant(Udp("127.0.0.1", int(process.stdout.readline())), DT)


def make(slide: RemotePlant) -> Task:
    return Task(
        name="slide",
        states=(Component("position", "m"),),
        actions=(Component("force", "N"),),
        angles=(),
        dt=DT,
        steps=STEPS,
        plant=plants.Rig(slide, low=[-2.0], high=[2.0]),
        action_limits=[1.0],
        initial=Gaussian([0.0], diagonal(0.02)),
        sensor_std=None,
        cost=SaturatingCost(AngleFeatures((), (0,)), [0.2], [[1 / 0.05**2]]),
        policy_kind="linear",
    )


def learn_on(task: Task, directory: Path) -> Run:
    """Learn; and after an episode that ended early, because the computer was busy and late, execute it again."""
    for _ in range(TRIES):
        try:
            if (directory / "config.toml").exists():
                return resume(directory, task)
            return learn(task, episodes=2, points=10, evaluations=30, out=directory)
        except plants.PlantStopped as stopped:
            print(f"{stopped} Once more.")
    raise SystemExit("This computer is too busy for the plant's sampling period.")


if __name__ == "__main__":
    process, slide = start()
    try:
        with TemporaryDirectory() as directory:
            run = learn_on(make(slide), Path(directory))
    finally:
        slide.close()
        process.kill()
        process.communicate()
    print(f"samples: {slide.counts}")
    random, learned = (record.executed_cost for record in run.records)
    print(f"random {random:.1f}, learned {learned:.1f} of at most {STEPS + 1}")
