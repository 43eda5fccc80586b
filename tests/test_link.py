"""A plant in another process, over UDP and a serial line that lose, double and reorder samples; and driven by C."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bayespilco.deploy import export
from bayespilco.deploy.link import Message, RemotePlant, Serial, Udp, decode, encode
from bayespilco.deploy.rig import RandomAgent, Rig
from tests.small_run import small_run

ROOT = Path(__file__).parents[1]
BAD = ("--drop", "0.1", "--duplicate", "0.2", "--reorder", "0.1")


@contextmanager
def simulator(log: Path, *options: str) -> Iterator[str]:
    """A simulated plant in a process of its own. Yields where it listens."""
    command = [sys.executable, "-m", "bayespilco.deploy.link.simulator", *options, "--log", str(log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def samples(log: Path) -> dict[int, dict[str, list[float]]]:
    return {entry["number"]: entry for entry in map(json.loads, log.read_text().splitlines())}


@pytest.mark.parametrize("kind", ["udp", "serial"])
def test_what_arrives_is_right_or_missing(kind: str, tmp_path: Path) -> None:
    """Every sample is that of its own step, whatever happens on the line; and the plant is left at rest."""
    where = ("--udp", "0") if kind == "udp" else ("--serial",)
    steps = 40
    with simulator(tmp_path / "log", "spring", *where, *BAD, "--seed", "3") as place:
        plant = RemotePlant(Udp("127.0.0.1", int(place)) if kind == "udp" else Serial(place), dt=0.2, wait=0.1)
        rig = Rig(plant, realtime=False, blind=30)
        agent = RandomAgent(np.ones(1), np.random.default_rng(0))
        recording = rig.run(agent, dt=0.2, steps=steps)
        plant.close()
    assert recording.ended == "finished" and len(recording.observations) == steps + 1
    sent = samples(tmp_path / "log")
    seen = [not np.isnan(z).any() for z in recording.observations]
    assert all(np.array_equal(z, sent[k]["z"]) for k, z in enumerate(recording.observations) if seen[k])
    assert 0 < steps + 1 - sum(seen) == plant.counts.missing < steps / 2
    assert plant.counts.duplicates_or_late > 0 and plant.counts.damaged == 0
    # The plant felt each action for its step: it moved as the actions say.
    assert all(sent[k + 1]["u"] == recording.actions[k].tolist()[0] for k in range(steps) if k + 1 in sent)


def test_the_controller_in_c_over_udp(tmp_path: Path) -> None:
    """The same plant, driven by C: its actions are those of the controller in NumPy for the samples that it got."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed, so there is no controller in C")
    agent = small_run().controller
    export.save_c(agent, tmp_path / "controller.c")
    files = [str(ROOT / "examples" / "udp_controller.c"), str(tmp_path / "controller.c")]
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-D_POSIX_C_SOURCE=200112L", "-DWAIT_MS=300"]
    program = tmp_path / "udp_controller"
    subprocess.run([gcc, *strict, f"-I{tmp_path}", *files, "-o", str(program), "-lm"], check=True)
    with simulator(tmp_path / "log", "spring", "--udp", "0", *BAD, "--seed", "5") as port:
        done = subprocess.run([program, "127.0.0.1", port, "30"], capture_output=True, text=True, check=True)
    rows = np.array([[float(word) for word in line.split()] for line in done.stdout.splitlines()])
    z, u = rows[:, :2], rows[:, 2]
    assert len(rows) == 30 and 0 < np.isnan(z[:, 0]).sum() < 15
    sent = samples(tmp_path / "log")
    assert all(np.array_equal(each, sent[k]["z"]) for k, each in enumerate(z) if not np.isnan(each[0]))
    assert np.abs([agent.act(each)[0] for each in z] - u).max() < 1e-9
    assert np.array_equal([sent[k + 1]["u"] for k in range(29)], u[:29])


def test_a_plant_with_a_clock_and_jitter(tmp_path: Path) -> None:
    """In real time. A computer that is busy may be late, which is no failure of the link."""
    options = ("--realtime", "--jitter", "0.1", "--duplicate", "0.3")
    with simulator(tmp_path / "log", "slide", "--udp", "0", *options) as port:
        plant = RemotePlant(Udp("127.0.0.1", int(port)), dt=0.1)
        rig = Rig(plant, low=[-2.0], high=[2.0])
        recording = rig.run(RandomAgent(np.ones(1), np.random.default_rng(0)), dt=0.1, steps=15)
        plant.close()
    assert recording.ended in ("finished", "late") and recording.stopped
    sent = [entry["z"] for entry in samples(tmp_path / "log").values()]
    assert all(z.tolist() in sent for z in recording.observations if not np.isnan(z).any())
    assert len(recording.observations) > 1


def test_nobody_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayespilco.deploy.link.driver.HOMING", 0.3)
    plant = RemotePlant(Udp("127.0.0.1", 1), dt=0.1)
    with pytest.raises((TimeoutError, ConnectionRefusedError)):
        plant.reset()
    plant.close()


def test_messages_survive_and_damage_shows() -> None:
    message = Message("z", 3, 18, (0.1, -1e-300, 2.0**60, float("inf")))
    assert decode(encode(message)) == message and decode(encode(Message("h", 7))) == Message("h", 7)
    assert np.isnan(decode(encode(Message("a", 1, 2, (float("nan"),)))).values[0])  # type: ignore[union-attr]
    line = encode(message)
    for place in range(len(line) - 1):
        for bit in (1, 16, 64):
            damaged = bytearray(line)
            damaged[place] ^= bit
            assert decode(bytes(damaged)) is None
    for nonsense in (b"", b"*", b"z*7a", b"q 1 2*00", b"z 1 x*" + b"11", b"\xff\xfe*00"):
        assert decode(nonsense) is None
