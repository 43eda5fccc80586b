"""A plant in another process: learned on over a socket, in real time, within limits.

    python examples/real_plant.py

starts the plant, a slide that creeps as it is pushed, as a program of its own, and then learns to bring it to 0.2 m.
The plant knows nothing of this library: for yours, write a driver like `Slide` that speaks its language.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bayespilco import AngleFeatures, Gaussian, Run, SaturatingCost, Task, learn, plants, resume
from bayespilco.tasks import Component
from bayespilco.tasks.task import diagonal

DT, STEPS = 0.1, 20
TRIES = 20
"""How often the plant is given another chance."""

PLANT = """
import json, random, socket, time
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
position, force, then = 0.0, 0.0, time.monotonic()
while True:
    message, sender = server.recvfrom(1000)
    asked, now = json.loads(message), time.monotonic()
    position, then = position + 0.4 * force * (now - then), now
    if asked["do"] == "home":
        position, force = random.gauss(0, 0.01), 0.0
    if asked["do"] == "push":
        force = asked["force"]
    server.sendto(json.dumps(position + random.gauss(0, 0.005)).encode(), sender)
"""


class Slide:
    """The driver: asks the plant's process, and waits for its answer."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", PLANT], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = ("127.0.0.1", int(self.process.stdout.readline()))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(1.0)

    def ask(self, **message: object) -> float:
        self.socket.sendto(json.dumps(message).encode(), self.address)
        return float(json.loads(self.socket.recv(1000)))

    def home(self) -> None:
        self.ask(do="home")

    def push(self, action: np.ndarray) -> None:
        self.ask(do="push", force=float(action[0]))

    def read(self) -> np.ndarray:
        return np.array([self.ask(do="read")])

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.communicate()


def make(slide: Slide) -> Task:
    plant = plants.Paced(ready=slide.home, send=slide.push, read=slide.read, dt=DT)
    return Task(
        name="slide",
        states=(Component("position", "m"),),
        actions=(Component("force", "N"),),
        angles=(),
        dt=DT,
        steps=STEPS,
        plant=plants.Rig(plant, low=[-2.0], high=[2.0]),
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
    slide = Slide()
    try:
        with TemporaryDirectory() as directory:
            run = learn_on(make(slide), Path(directory))
    finally:
        slide.close()
    random, learned = (record.executed_cost for record in run.records)
    print(f"random {random:.1f}, learned {learned:.1f} of at most {STEPS + 1}")
