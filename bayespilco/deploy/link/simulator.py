"""A simulated plant as a program of its own, on the other side of a bad line:

    python -m bayespilco.deploy.link.simulator pendulum --udp 9000 --drop 0.1 --duplicate 0.1 --reorder 0.1

prints where it listens (a port, or with `--serial` the name of a pseudo-terminal) and then serves for ever. By default
the plant waits for each action, so that nothing depends on how busy the computer is: sample k+1 is what action k
leads to. With `--realtime` it has a clock, sends a sample every sampling period (with `--jitter`), and holds the last
action, or none if no action has come for `HOLD` periods.
"""

import argparse
import contextlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np

from bayespilco.deploy.link.messages import Message, decode, encode

HOLD = 3
"""Without an action for so many sampling periods the actuator is switched off."""
SUBSTEPS = 20


def pendulum(x: np.ndarray, u: float) -> np.ndarray:
    """A rod of 1 m and 1 kg on a motor; the angle is 0 when it stands upright."""
    return np.array([x[1], 3 * (u - 0.01 * x[1] + 9.82 * np.sin(x[0]) / 2)])


def spring(x: np.ndarray, u: float) -> np.ndarray:
    """A mass of 1 kg on a spring of 1 N/m."""
    return np.array([x[1], u - x[0] - 0.4 * x[1]])


def slide(x: np.ndarray, u: float) -> np.ndarray:
    """It creeps as it is pushed."""
    return np.array([0.4 * u])


@dataclass(frozen=True)
class Simulated:
    """A plant: how it moves, where it starts, and the noise of its sensors."""

    derivative: Callable[[np.ndarray, float], np.ndarray]
    first: tuple[float, ...]
    spread: tuple[float, ...]
    noise: tuple[float, ...]
    dt: float


PLANTS = {
    "pendulum": Simulated(pendulum, (np.pi, 0.0), (0.1, 0.1), (0.05, 0.5), 0.1),
    "spring": Simulated(spring, (0.0, 0.0), (0.1, 0.1), (0.02, 0.1), 0.2),
    "slide": Simulated(slide, (0.0,), (0.01,), (0.005,), 0.1),
}


@dataclass
class Line:
    """What happens to a line on its way: lost, doubled, or overtaken by the next one."""

    send: Callable[[bytes], None]
    random: np.random.Generator
    drop: float
    duplicate: float
    reorder: float
    held: list[bytes] = field(default_factory=list)

    def write(self, line: bytes) -> None:
        chance = self.random.random(3)
        if chance[0] < self.drop:
            return
        if chance[1] < self.reorder and not self.held:
            self.held.append(line)
            return
        for each in [line, *self.held] + ([line] if chance[2] < self.duplicate else []):
            self.send(each)
        self.held.clear()


class Server:
    """The plant, and what it is told."""

    def __init__(self, plant: Simulated, line: Line, dt: float, seed: int, log: TextIO | None, reliable: int) -> None:
        self.plant, self.line, self.dt, self.log = plant, line, dt, log
        self.random, self.reliable = np.random.default_rng(seed), reliable
        self.episode, self.number, self.action, self.last_heard = -1, 0, 0.0, 0
        self.x = np.array(plant.first)

    def hear(self, line: bytes, realtime: bool) -> None:
        message = decode(line)
        if message is None:
            return
        if message.kind == "h":
            if message.episode != self.episode:  # a request that is repeated changes nothing
                self.episode, self.number, self.action, self.last_heard = message.episode, 0, 0.0, 0
                self.x = np.array(self.plant.first) + np.array(self.plant.spread) * self.random.normal(
                    size=len(self.plant.first)
                )
            if self.number == 0:
                self.tell()
        elif message.kind == "a" and message.episode == self.episode and len(message.values) == 1:
            if realtime:
                self.action, self.last_heard = message.values[0], self.number
            elif message.number >= self.number:
                while self.number < message.number:  # actions that were lost: the last one was held
                    self.move()
                self.action, self.last_heard = message.values[0], self.number
                self.move()
                self.tell()

    def move(self) -> None:
        u = self.action if self.number - self.last_heard < HOLD else 0.0
        h, f = self.dt / SUBSTEPS, self.plant.derivative
        for _ in range(SUBSTEPS):
            k1 = f(self.x, u)
            k2 = f(self.x + h / 2 * k1, u)
            k3 = f(self.x + h / 2 * k2, u)
            self.x = self.x + h / 6 * (k1 + 2 * k2 + 2 * k3 + f(self.x + h * k3, u))
        self.number += 1

    def tell(self) -> None:
        z = self.x + np.array(self.plant.noise) * self.random.normal(size=len(self.x))
        if self.log is not None:
            print(
                json.dumps({"number": self.number, "z": z.tolist(), "x": self.x.tolist(), "u": self.action}),
                file=self.log,
                flush=True,
            )
        line = encode(Message("z", self.episode, self.number, tuple(z.tolist())))
        if self.number < self.reliable:
            self.line.send(line)
        else:
            self.line.write(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plant", choices=PLANTS)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--udp", type=int, metavar="PORT", help="0: any that is free")
    where.add_argument("--serial", action="store_true", help="on a pseudo-terminal")
    parser.add_argument("--dt", type=float, help="sampling period in seconds (by default the plant's)")
    parser.add_argument("--realtime", action="store_true", help="with a clock of its own")
    parser.add_argument("--jitter", type=float, default=0.0, help="how irregular the clock is, in sampling periods")
    for name, what in (("drop", "lost"), ("duplicate", "sent twice"), ("reorder", "overtaken by the next")):
        parser.add_argument(f"--{name}", type=float, default=0.0, help=f"the share of samples that are {what}")
    parser.add_argument("--reliable", type=int, default=1, help="so many samples of an episode arrive in any case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="a file for the true states, one line per sample")
    asked = parser.parse_args()
    plant = PLANTS[asked.plant]
    dt = asked.dt or plant.dt
    log = asked.log.open("w") if asked.log else None
    descriptor, receive, send, name = _udp(asked.udp) if asked.udp is not None else _pseudo_terminal()
    line = Line(send, np.random.default_rng(asked.seed + 1), asked.drop, asked.duplicate, asked.reorder)
    server = Server(plant, line, dt, asked.seed, log, asked.reliable)
    print(name, flush=True)
    due = time.monotonic()
    while True:
        timeout = max(0.0, due - time.monotonic()) if asked.realtime else None
        ready, _, _ = select.select([descriptor], [], [], timeout)
        if ready:
            for text in receive():
                homed = server.episode
                server.hear(text, asked.realtime)
                if server.episode != homed:
                    due = time.monotonic() + dt
        elif server.episode >= 0:
            server.move()
            server.tell()
            due += dt * (1 + asked.jitter * float(server.random.uniform(-1, 1)))
        else:
            due = time.monotonic() + dt


Ends = tuple[int, Callable[[], list[bytes]], Callable[[bytes], None], str]


def _udp(port: int) -> Ends:
    """A socket that answers whoever spoke last."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", port))
    peer: list[tuple[str, int]] = []

    def receive() -> list[bytes]:
        line, sender = server.recvfrom(4096)
        peer[:] = [sender]
        return [line]

    def send(line: bytes) -> None:
        with contextlib.suppress(ConnectionRefusedError):  # nobody listens any more
            server.sendto(line, peer[0])

    return server.fileno(), receive, send, str(server.getsockname()[1])


def _pseudo_terminal() -> Ends:
    """A serial line whose other end can be opened by its name."""
    import pty
    import tty

    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    buffer = [b""]

    def receive() -> list[bytes]:
        buffer[0] += os.read(ours, 4096)
        *lines, buffer[0] = buffer[0].split(b"\n")
        return lines

    def send(line: bytes) -> None:
        os.write(ours, line)

    return ours, receive, send, os.ttyname(theirs)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
