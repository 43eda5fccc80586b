"""A plant that is there is run in time, recorded, and left with zero action, whatever it does."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import METHODS, AngleFeatures, Belief, Episode, Gaussian, Task, tasks
from bayespilco.deploy import logs
from bayespilco.deploy.rig import (
    Paced,
    PlantStopped,
    RandomAgent,
    Recording,
    Rig,
    pacing,
    signals_end_episodes,
    stopping,
)
from bayespilco.execution import RandomActions, execute, execute_many
from bayespilco.model.episode import batch
from bayespilco.model.sensors import complete
from bayespilco.model.structure import free
from bayespilco.training.filtering import negative_log_evidence
from bayespilco.training.trajectory import Layout, Parameters, build, filter_trials
from tests.small_run import small_run

DT = 0.5
STATES, ACTIONS = ["position [m]", "velocity [m/s]"], ["force [N]"]
NAMES: dict[str, Any] = {"states": STATES, "actions": ACTIONS}


class Clock:
    """Time that passes only for who sleeps, so that a busy machine is never late."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pacing, "time", clock)
    return clock


def random_agent() -> RandomAgent:
    return RandomAgent(np.ones(1), np.random.default_rng(0))


class Scripted:
    """A plant of which it is said what each sample is: the first by `reset`, the others by `step`."""

    def __init__(self, *samples: Any) -> None:
        self.samples, self.sent = list(samples), list[float]()

    def reset(self) -> Any:
        return self.samples[0]

    def step(self, action: np.ndarray) -> Any:
        self.sent.append(float(action[0]))
        return self.samples[len(self.sent) % len(self.samples)]


IN_A_PROCESS = """
import json, math, sys, time
trouble, when, record = sys.argv[1], int(sys.argv[2]), open(sys.argv[3], "w")
x, v, step = 0.0, 0.0, 0
def answer(z):
    print(json.dumps(z), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request == "reset":
        x, v, step = 0.0, 0.0, 0
        answer([x, v])
        continue
    print(request[0], file=record, flush=True)
    step += 1
    v += 0.1 * (request[0] - x)
    x += 0.1 * v
    if step == when:
        if trouble == "stall":
            time.sleep(5)
        if trouble == "die":
            sys.exit(1)
        if trouble == "nonsense":
            answer("what?")
            continue
    answer([math.nan, v] if trouble == "drop" and step % 3 == 0 else [math.nan] * 2 if trouble == "blind" else [x, v])
"""


class Elsewhere:
    """A simulated plant in another process, which may stall, drop samples, talk nonsense or die at a given step."""

    def __init__(self, directory: Path, trouble: str = "none", when: int = 5) -> None:
        self.record = directory / "applied"
        command = [sys.executable, "-c", IN_A_PROCESS, trouble, str(when), str(self.record)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def reset(self) -> Any:
        return self.ask("reset")

    def step(self, action: np.ndarray) -> Any:
        return self.ask(action.tolist())

    def close(self) -> list[float]:
        """End the process, and say which actions reached it."""
        self.process.communicate()
        return [float(line) for line in self.record.read_text().split()]


class Push:
    """An agent that pushes with all its might, and remembers what it saw."""

    def __init__(self) -> None:
        self.limits = np.array([1.5])
        self.seen: list[np.ndarray] = []

    def reset(self) -> None:
        self.seen.clear()

    def act(self, observation: np.ndarray) -> np.ndarray:
        self.seen.append(observation)
        return np.array([9.0])


@pytest.mark.parametrize(
    ("trouble", "ended", "reason", "observations"),
    [
        ("none", "finished", "", 11),
        ("drop", "finished", "", 11),
        ("die", "failed", "JSONDecodeError", 5),
        ("nonsense", "failed", "ValueError", 5),
        ("stall", "late", "did not answer in time", 5),
        ("blind", "blind", "3 samples in a row were missing", 4),
        ("limit", "limit", "position [m] was 0.1478, above its limit of 0.1", 5),
    ],
)
def test_an_episode_ends_safely(
    trouble: str, ended: str, reason: str, observations: int, tmp_path: Path, clock: Clock
) -> None:
    plant, agent = Elsewhere(tmp_path, trouble), Push()
    high = [0.1, np.inf] if trouble == "limit" else None
    log = tmp_path / "log.csv"
    rig = Rig(plant, high=high, blind=3, realtime=trouble == "stall", log=log)
    begin = time.monotonic()
    recording = rig.run(agent, dt=DT, steps=10, **NAMES)
    assert time.monotonic() - begin < 4.5, "it should not have waited for the plant"
    assert recording.ended == ended
    assert reason in recording.reason
    assert len(recording.observations) == len(recording.times) == observations
    assert np.array_equal(recording.observations[: len(agent.seen)], agent.seen, equal_nan=True)
    applied = plant.close()
    sent = 5 if trouble in ("die", "nonsense", "stall") else observations - 1
    assert applied[:sent] == [1.5] * sent, "actions are clipped to the limits"
    if trouble != "die":
        assert set(applied[sent:]) == {0.0}, "zero is the last action"
    # What was recorded is on the disk.
    assert recording.log == log
    (kept,) = logs.read(log, STATES, ACTIONS, DT)
    assert np.array_equal(kept.observations, recording.observations, equal_nan=True)
    assert np.array_equal(kept.actions, recording.actions[: observations - 1])


@pytest.mark.parametrize("with_stop", [False, True])
def test_zero_is_last_even_if_a_step_wakes_up_later(with_stop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is stuck before it has sent its action will send that when it wakes up."""
    monkeypatch.setattr(stopping, "PATIENCE", 0.1)
    sent = list[float]()
    zero, wake, zero_again = threading.Event(), threading.Event(), threading.Event()

    class Radio:
        def reset(self) -> list[float]:
            return [0.0]

        def step(self, action: np.ndarray) -> list[float]:
            if action[0] != 0:
                wake.wait(60)
            return self.send(float(action[0]))

        def send(self, value: float) -> list[float]:
            sent.append(value)
            if value == 0:
                (zero_again if 1.5 in sent else zero).set()
            return [0.0]

    plant = Radio()
    if with_stop:
        plant.stop = lambda: plant.send(0.0)  # type: ignore[attr-defined]
    recording = Rig(plant).run(Push(), dt=0.1, steps=5)
    assert recording.ended == "late" and len(recording.observations) == 1
    assert zero.wait(60)
    wake.set()
    assert zero_again.wait(60), f"what was sent is {sent}"
    assert sent == [0.0, 1.5, 0.0]


class Bus:
    """A device that takes actions on some tries only, and whose sensor may be gone."""

    def __init__(self, fails: range, sensor: bool = True) -> None:
        self.fails, self.sensor, self.tries, self.force = fails, sensor, 0, 0.0

    def send(self, action: np.ndarray) -> None:
        self.tries += 1
        if self.tries in self.fails:
            raise OSError("bus busy")
        self.force = float(action[0])

    def read(self) -> list[float]:
        if not self.sensor and self.tries > 2:
            raise OSError("no sensor")
        return [0.0, 0.0]

    def rig(self) -> Rig:
        rig = Rig(Paced(ready=lambda: None, send=self.send, read=self.read, dt=0.01))
        object.__setattr__(rig, "tolerance", 1e4)  # a sample may be as late as it likes: that is not what is tried
        return rig

    def run(self) -> Recording:
        return self.rig().run(Push(), dt=0.01, steps=5)


def test_what_fails_to_stop_is_stopped_again() -> None:
    bus = Bus(fails=range(4, 7))
    recording = bus.run()
    assert (recording.ended, recording.reason, recording.stopped) == ("failed", "OSError: bus busy", True)
    assert (bus.tries, bus.force) == (7, 0.0), "the third try of zero arrives"


def test_a_plant_that_cannot_be_stopped_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "PATIENCE", 0.1)
    warning = "zero could not be sent (OSError: bus busy), look at the plant"
    for first, reason in ((4, f"OSError: bus busy; {warning}"), (6, warning)):
        bus = Bus(fails=range(first, 10**6))
        recording = bus.run()
        assert recording.reason == reason and not recording.stopped and bus.force == 1.5
    task = dataclasses.replace(task_on(Bus(fails=range(7, 10**6)).rig()), dt=0.01, steps=6)
    with pytest.raises(PlantStopped, match="after 7 samples: zero could not be sent"):
        execute(task, RandomActions(task.action_limits), jax.random.key(0))


def test_a_device_without_sensors_can_be_stopped() -> None:
    bus = Bus(fails=range(0), sensor=False)
    recording = bus.run()
    assert recording.reason == "OSError: no sensor" and recording.stopped and bus.force == 0.0


@pytest.fixture
def disposition() -> Iterator[Callable[[signal.Signals, Any], None]]:
    """Sets what a signal does, for one test: whoever runs the tests, `nohup` say, may have set something else."""
    before: dict[signal.Signals, Any] = {}

    def dispose(number: signal.Signals, handler: Any) -> None:
        before.setdefault(number, signal.getsignal(number))
        signal.signal(number, handler)

    yield dispose
    for number, handler in before.items():
        signal.signal(number, handler)


Dispose = Callable[[signal.Signals, Any], None]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_process_that_is_ended_stops_its_plant_first(name: str, tmp_path: Path, disposition: Dispose) -> None:
    number = getattr(signal, name)
    disposition(number, signal.SIG_DFL)
    plant, log = Scripted([0.0, 0.1]), tmp_path / "log.csv"

    class Ended(Push):
        def act(self, observation: np.ndarray) -> np.ndarray:
            if len(self.seen) == 3:
                signal.raise_signal(number)
            return super().act(observation)

    with pytest.raises(SystemExit) as end:
        Rig(plant, realtime=False, log=log).run(Ended(), dt=DT, steps=10, **NAMES)
    assert end.value.code == 128 + number
    assert plant.sent == [1.5, 1.5, 1.5, 0.0]
    assert len(logs.read(log, STATES, ACTIONS, DT)[0].observations) == 4
    assert signal.getsignal(number) is signal.SIG_DFL, "as before"


class Signalled(Push):
    """An agent whose process gets a signal before the fourth action."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number

    def act(self, observation: np.ndarray) -> np.ndarray:
        if len(self.seen) == 3:
            signal.raise_signal(self.number)
        return super().act(observation)


def test_a_signal_that_is_ignored_stays_ignored(disposition: Dispose) -> None:
    """As under `nohup`. And a handler of the user's is left alone."""
    disposition(signal.SIGHUP, signal.SIG_IGN)
    plant = Scripted([0.0, 0.1])
    recording = Rig(plant, realtime=False).run(Signalled(signal.SIGHUP), dt=DT, steps=10)
    assert recording.ended == "finished" and plant.sent == [1.5] * 10 + [0.0]
    received: list[int] = []
    disposition(signal.SIGTERM, lambda number, _: received.append(number))
    recording = Rig(plant, realtime=False).run(Signalled(signal.SIGTERM), dt=DT, steps=10)
    assert recording.ended == "finished" and received == [signal.SIGTERM]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_waits_while_the_plant_is_stopped(name: str, tmp_path: Path, disposition: Dispose) -> None:
    number = getattr(signal, name)
    disposition(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)

    class Slow(Scripted):
        def stop(self) -> None:
            signal.raise_signal(number)
            self.sent.append(0.0)

    plant, log = Slow([0.0, 0.1]), tmp_path / "log.csv"
    for first in (random_agent(), Signalled(number)):  # after an ordinary end, and after another signal
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            Rig(plant, realtime=False, log=log).run(first, dt=DT, steps=5, **NAMES)
        assert plant.sent[-1] == 0.0, "stopping was not interrupted"
        plant.sent.clear()
    assert [len(each.observations) for each in logs.read(log, STATES, ACTIONS, DT)] == [6, 4]


IN_A_THREAD = """
import signal, sys, threading, time
import numpy as np
from bayespilco.plants import Paced, RandomAgent, Rig, signals_end_episodes

def send(u):
    print(float(u[0]), flush=True)

def run():
    recording = rig.run(RandomAgent(np.ones(1), np.random.default_rng(0)), dt=DT, steps=10**6)
    print(recording.ended, recording.reason, flush=True)

DT, number = float(sys.argv[1]), int(sys.argv[2])
signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)  # as in a terminal
rig = Rig(Paced(ready=lambda: None, send=send, read=lambda: [0.0], dt=DT))
thread = threading.Thread(target=run, daemon=True)
try:
    with signals_end_episodes():
        thread.start()
        while thread.is_alive():
            time.sleep(0.01)
finally:
    thread.join(10)
"""


@pytest.mark.parametrize(
    ("name", "period", "code"),
    [("SIGINT", 0.2, 130), ("SIGTERM", 0.2, 143), ("SIGHUP", 0.2, 129), ("SIGQUIT", 0.2, 131), ("SIGTERM", 1e3, 143)],
)
def test_a_plant_in_another_thread_is_stopped_too(name: str, period: float, code: int) -> None:
    """Also while a step takes long: it is not waited for."""
    number = getattr(signal, name)
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", IN_A_THREAD, str(period), str(int(number))],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline().strip() != "0.0"
    begin = time.monotonic()
    process.send_signal(number)
    said, complaint = process.communicate(timeout=60)
    assert time.monotonic() - begin < 20, "it should not have waited for the plant"
    *_, force, end = said.splitlines()
    assert (force, end) == ("0.0", f"interrupted the process received {name}")
    assert process.returncode in (code, -number), complaint  # Python dies of SIGINT by sending it to itself


def test_a_thread_without_protection_is_refused_before_the_plant_moves() -> None:
    plant, errors = Scripted([0.0, 0.1]), list[BaseException]()

    def work(rig: Rig) -> None:
        try:
            errors.append(PlantStopped(rig.run(random_agent(), dt=0.01, steps=2)))
        except RuntimeError as error:
            errors.append(error)

    def run(rig: Rig) -> BaseException:
        thread = threading.Thread(target=work, args=(rig,))
        thread.start()
        thread.join()
        return errors.pop()

    real, simulated = Rig(plant, tolerance=0.5), Rig(plant, realtime=False)
    assert re.search(r"leave the actuators on.*with bayespilco\.plants\.signals_end_episodes", str(run(real)))
    assert not plant.sent
    assert isinstance(run(simulated), PlantStopped), "nothing can be left on in a simulation"
    with signals_end_episodes():
        assert isinstance(run(real), PlantStopped)
    assert isinstance(run(real), RuntimeError)


@pytest.mark.parametrize("fails", [False, True])
def test_other_threads_episodes_end_with_the_main_thread(fails: bool) -> None:
    """An exception in the block ends them, and an ordinary end waits for them."""
    plant, recordings, started = Scripted([0.0, 0.1]), list[Recording](), threading.Event()

    class Watched(Push):
        def act(self, observation: np.ndarray) -> np.ndarray:
            started.set()
            return super().act(observation)

    def work() -> None:
        rig = Rig(plant)
        object.__setattr__(rig, "tolerance", 1e4)  # a busy machine may be late
        recordings.append(rig.run(Watched(), dt=0.05, steps=10**6 if fails else 5))

    thread = threading.Thread(target=work)
    with contextlib.suppress(ValueError), signals_end_episodes():
        thread.start()
        assert started.wait(60)
        if fails:
            raise ValueError("something else")
    thread.join()
    assert (recordings[0].ended, plant.sent[-1]) == ("interrupted" if fails else "finished", 0.0)


def test_a_dead_sensor_does_not_disable_its_limit() -> None:
    """What has a limit, and what the agent cannot do without, must be seen; the rest may be missing for ever."""
    plant = Scripted([0.0, np.nan])
    for options, ended in (
        ({"high": [1.0, 2.0]}, "blind"),
        ({"low": [-np.inf, -2.0]}, "blind"),
        ({"high": [1.0, np.inf], "low": [-1.0, -np.inf]}, "finished"),
        ({}, "finished"),
    ):
        recording = Rig(plant, realtime=False, blind=4, **options).run(Push(), dt=DT, steps=10, **NAMES)
        assert recording.ended == ended
        if ended == "blind":
            assert recording.reason == "velocity [m/s], which has a limit, was missing from 4 samples in a row"
            assert len(recording.observations) == 4 and plant.sent[-1] == 0.0

    class Needy(Push):
        required = (1,)

    recording = Rig(plant, realtime=False, blind=4).run(Needy(), dt=DT, steps=10, **NAMES)
    assert recording.ended == "blind" and "which the agent cannot do without" in recording.reason
    # A sample now and then is enough.
    plant = Scripted([0.0, 0.1], [0.0, np.nan], [0.0, np.nan])
    recording = Rig(plant, realtime=False, blind=3, high=[1.0, 2.0]).run(Needy(), dt=DT, steps=10, **NAMES)
    assert recording.ended == "finished"


def test_a_recording_is_not_changed_by_driver_or_agent() -> None:
    class Scaling(Scripted):
        def step(self, action: np.ndarray) -> Any:
            action *= 100.0
            return super().step(action)

    class Careless(Push):
        def act(self, observation: np.ndarray) -> np.ndarray:
            observation += 7.0
            return super().act(observation)

    shared = np.array([0.0, 0.1])
    for plant, unit in (
        (Scaling(shared), 100.0),
        (Paced(ready=lambda: None, send=lambda u: np.multiply(u, 100.0, out=u), read=lambda: shared, dt=DT), 1.0),
    ):
        recording = Rig(plant, realtime=False).run(Careless(), dt=DT, steps=3)
        assert np.array_equal(recording.actions, [[1.5]] * 3)
        assert np.array_equal(recording.observations, [[0.0, 0.1]] * 4)
        assert np.array_equal(shared, [0.0, 0.1])
        if isinstance(plant, Scaling):
            assert plant.sent == [1.5 * unit] * 3 + [0.0]
        else:
            assert np.array_equal(plant.applied, [1.5])  # type: ignore[arg-type]


class Valve(Push):
    """An agent for an actuator that takes 2 to 10 V, and is safe at 3 V."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high, self.rest = np.array([2.0]), np.array([10.0]), np.array([3.0])
        self.wishes = [9.0, 11.0, -5.0]

    def act(self, observation: np.ndarray) -> np.ndarray:
        return np.array([self.wishes[len(self.seen) % 3]]) if super().act(observation) is not None else observation


def test_a_one_sided_actuator_is_left_at_rest() -> None:
    plant, sent = Scripted([0.0, 0.1]), list[float]()
    recording = Rig(plant, realtime=False).run(Valve(), dt=DT, steps=3)
    assert np.array_equal(np.ravel(recording.actions), [10.0, 2.0, 9.0]) and plant.sent == [10.0, 2.0, 9.0, 3.0]

    def send(u: np.ndarray) -> None:
        sent.append(float(u[0]))
        u *= 2.0

    paced = Paced(ready=lambda: None, send=send, read=lambda: [0.0], dt=DT)
    Rig(paced, realtime=False).run(Valve(), dt=DT, steps=3)
    Rig(paced, realtime=False).run(Push(), dt=DT, steps=1)
    assert sent == [10.0, 2.0, 9.0, 3.0, 1.5, 0.0], "each agent's own rest"
    # If it fails it is tried again, with the same action.
    bus = Bus(fails=range(4, 7))
    agent = Valve()
    agent.wishes = [4.0]
    assert bus.rig().run(agent, dt=0.01, steps=5).stopped and bus.force == 3.0


def test_a_rest_that_makes_no_sense_is_refused_before_the_plant_moves() -> None:
    plant = Scripted([0.0, 0.1])
    for change, sentence in (
        ({"rest": None}, r"Zero is not within .* from \[2\.\] to \[10\.\]\. Give the agent an attribute `rest`"),
        ({"rest": [1.0]}, r"rest must be an action from \[2\.\] to \[10\.\]; given \[1\.\]"),
        ({"rest": [np.nan]}, "rest must be an action"),
        ({"rest": [3.0, 3.0]}, "rest must be an action"),
        ({"low": [10.0]}, "low must be below its high"),
        ({"low": [np.nan]}, "low must be below its high"),
        ({"high": [10.0, 10.0]}, "low must be below its high, one entry per action"),
    ):
        agent = Valve()
        vars(agent).update(change)
        with pytest.raises(ValueError, match=sentence):
            Rig(plant, realtime=False).run(agent, dt=DT, steps=3)
    assert not plant.sent


def test_random_actions_fill_their_range() -> None:
    low, high = np.array([0.0, -1.0]), np.array([10.0, 3.0])
    agent = RandomAgent(high, np.random.default_rng(0), low, high)
    actions = np.array([agent.act(None) for _ in range(2000)])
    error = (high - low) / np.sqrt(12 * 2000)
    assert (np.abs(actions.mean(axis=0) - (low + high) / 2) < 5 * error).all()
    assert (actions >= low).all() and (actions <= high).all() and (np.ptp(actions, axis=0) > 0.99 * (high - low)).all()
    symmetric = RandomAgent(high, np.random.default_rng(1)).act(None)
    assert np.array_equal(symmetric, high * np.random.default_rng(1).uniform(-1, 1, 2)), "the same chance as ever"


def test_an_episode_says_how_well_it_kept_time(clock: Clock) -> None:
    class Thinking(RandomAgent):
        def act(self, observation: Any) -> np.ndarray:
            clock.sleep(0.02 * DT if clock.now < 100 + 5 * DT else 0.04 * DT)
            return super().act(observation)

    agent = Thinking(np.ones(1), np.random.default_rng(0))
    recording = Rig(Slow(clock, 1.18 * DT)).run(agent, dt=DT, steps=10)
    timing = recording.timing
    late = np.where(np.arange(11) == 3, 0.2 * DT, 0.0)
    assert np.allclose(recording.lateness, late[1:], atol=1e-12)
    assert (timing.samples, timing.overruns, timing.period) == (11, 1, DT)
    assert np.isclose(timing.jitter, np.diff(np.arange(11) * DT + late).std()) and np.isclose(timing.latest, 0.2 * DT)
    assert np.isclose(timing.mean_delay, 0.03 * DT) and np.isclose(timing.worst_delay, 0.04 * DT)
    assert str(timing) == (
        "11 samples, one every 500 ms with a jitter of 44.7 ms, the latest 100 ms late, overruns: 1; "
        "the agent took 15 ms, at most 20 ms"
    )
    # The sample that ended the episode counts, too. Without time nothing is late.
    late_end = Rig(Slow(clock, 1.6 * DT)).run(random_agent(), dt=DT, steps=10)
    assert late_end.ended == "late" and late_end.timing.overruns == 1 and np.isclose(late_end.timing.latest, 0.6 * DT)
    simulated = Rig(Scripted([0.0]), realtime=False).run(random_agent(), dt=DT, steps=3).timing
    assert (simulated.overruns, simulated.jitter, simulated.latest, simulated.samples) == (0, 0.0, 0.0, 4)
    assert Recording().timing.samples == 0


class Slow(Scripted):
    """A plant whose third sample takes so many seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__([0.0, 0.0])
        self.clock, self.seconds = clock, seconds

    def step(self, action: np.ndarray) -> Any:
        self.clock.sleep(self.seconds if len(self.sent) == 2 else 0.0)
        return super().step(action)


def test_a_late_sample_ends_the_episode_and_delays_do_not_add_up(clock: Clock) -> None:
    late = Rig(Slow(clock, 1.6 * DT)).run(random_agent(), dt=DT, steps=10)
    assert (late.ended, late.reason) == ("late", "sample 3 came 0.60 sampling periods late")
    assert len(late.observations) == 3
    # One sample comes late, within what is tolerated: the following ones are in time again.
    recording = Rig(Slow(clock, 1.4 * DT)).run(random_agent(), dt=DT, steps=10)
    assert recording.ended == "finished"
    lateness = np.array(recording.times) / DT - np.arange(11)
    assert np.allclose(lateness, np.where(np.arange(11) == 3, 0.4, 0.0), atol=1e-9)


def test_what_a_rig_lets_pass_its_log_may_have(clock: Clock, tmp_path: Path) -> None:
    """As late as is allowed, to rounding; a loop that is slow after that does not change the time."""
    log = tmp_path / "log.csv"

    class Dawdling(RandomAgent):
        def act(self, observation: Any) -> np.ndarray:
            clock.sleep(0.3 * DT)
            return super().act(observation)

    agent = Dawdling(np.ones(1), np.random.default_rng(0))
    recording = Rig(Slow(clock, (1.2 - 1e-9) * DT), log=log).run(agent, dt=DT, steps=10, **NAMES)
    assert recording.ended == "finished"
    assert np.isclose(recording.times[3] / DT, 3 + Rig.tolerance)
    (kept,) = logs.read(log, STATES, ACTIONS, DT)
    assert len(kept.observations) == 11


def test_a_device_is_paced(clock: Clock) -> None:
    sent: list[float] = []
    read: list[float] = []

    def sample() -> np.ndarray:
        read.append(clock.now)
        return np.array([float(len(sent))])

    plant = Paced(ready=sent.clear, send=lambda u: sent.append(float(u[0])), read=sample, dt=DT)
    recording = Rig(plant).run(random_agent(), dt=DT, steps=5)
    assert recording.ended == "finished"
    assert np.array_equal(np.ravel(recording.observations), np.arange(6))  # each was read after the action before it
    assert np.allclose(np.diff(read), DT)
    assert sent[-1] == 0.0
    sent.clear()
    with pytest.raises(ValueError, match=r"dt must be the plant's own sampling period, 0\.5 s; given 0\.6"):
        Rig(plant).run(random_agent(), dt=0.6, steps=5)
    assert not sent


def test_a_sample_that_is_lost_is_recorded_as_missing(tmp_path: Path) -> None:
    """None is a sample in which everything is missing, and so is what is infinite, as for a controller."""
    log, nan = tmp_path / "log.csv", np.nan
    expected = [[0.0, 0.1], [nan, nan], [nan, 0.2], [0.3, nan]]
    agent = Push()
    masked = np.ma.array([0.3, 7], mask=[False, True])
    plant = Scripted([0.0, 0.1], None, [np.inf, 0.2], masked)
    recording = Rig(plant, realtime=False, log=log).run(agent, dt=DT, steps=3, **NAMES)
    assert recording.ended == "finished"
    assert np.array_equal(recording.observations, expected, equal_nan=True)
    assert np.array_equal(agent.seen, expected[:3], equal_nan=True)
    (kept,) = logs.read(log, STATES, ACTIONS, DT)
    assert np.array_equal(kept.observations, expected, equal_nan=True)
    # The first one may be lost if it is known how many states there are.
    lost = Rig(Scripted(None, [0.0, 0.1]), realtime=False).run(agent, dt=DT, steps=1, **NAMES)
    assert lost.ended == "finished" and np.isnan(lost.observations[0]).all()
    unknown = Rig(Scripted(None, [0.0, 0.1]), realtime=False).run(agent, dt=DT, steps=1)
    assert unknown.ended == "failed" and "number of states is not known: give `states`" in unknown.reason


def test_infinity_is_beyond_any_limit() -> None:
    rig = Rig(Scripted([0.0, 0.1], [0.2, np.inf]), high=[np.inf, 1.0], realtime=False)
    recording = rig.run(Push(), dt=DT, steps=3, **NAMES)
    assert (recording.ended, recording.reason) == ("limit", "velocity [m/s] was inf, above its limit of 1")
    assert np.array_equal(recording.observations, [[0.0, 0.1], [0.2, np.nan]], equal_nan=True)


@pytest.mark.parametrize(
    ("samples", "names", "reason", "observations"),
    [
        (([0.0, 0.1], [0.0, 0.1], [0.0, 0.1, 0.2]), NAMES, "one entry per sensor (2); the plant gave shape (3,)", 2),
        (([0.0, 0.1], [0.0, 0.1], 0.0), {}, "one entry per sensor (2); the plant gave shape ()", 2),
        (([0.0, 0.1, 0.2],), NAMES, "one entry per sensor (2); the plant gave shape (3,)", 0),
        ((0.0,), {}, "one entry per sensor; the plant gave shape ()", 0),
    ],
)
def test_a_sample_of_another_shape_spoils_neither_recording_nor_log(
    samples: Any, names: dict[str, Any], reason: str, observations: int, tmp_path: Path
) -> None:
    plant, log = Scripted(*samples), tmp_path / "log.csv"
    recording = Rig(plant, realtime=False, log=log).run(Push(), dt=DT, steps=5, **names)
    assert recording.ended == "failed" and reason in recording.reason
    assert len(recording.observations) == len(recording.times) == observations
    assert plant.sent[-1] == 0.0
    if observations:
        states, actions = (STATES, ACTIONS) if names else (["state 0", "state 1"], ["action 0"])
        (kept,) = logs.read(log, states, actions, DT)
        assert np.array_equal(kept.observations, recording.observations)
    else:
        assert recording.log is None and not log.exists()


NAN, INF = np.nan, np.inf
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "low a number": ({"low": np.array(-1.0)}, {}, "low must be a list with one number per state, -inf .*; given -1"),
    "high NaN": ({"high": [1.0, NAN]}, {}, "high must be a list with one number per state, inf .*nan"),
    "high no number": ({"high": np.array(["a", "b"])}, {}, "high must be a list .*; given ..a. .b.."),
    "high too short": ({"high": [1.0]}, {}, r"high must be numbers, one per state \(position \[m\], .* given \[1"),
    "low too long": ({"low": [-1.0] * 3}, {}, "low must be numbers, one per state"),
    "low not below": ({"low": [0.0, 1.0], "high": [1.0, 1.0]}, {}, r"low must be below high.*low = \[0. 1.\] and high"),
    "other lengths": ({"low": [0.0], "high": [1.0, 1.0]}, {}, "with as many entries"),
    "blind 0": ({"blind": 0}, {}, "blind must be a whole number from 1 on; given 0"),
    "tolerance < 0": ({"tolerance": -0.1}, {}, "tolerance must be from 0 to 0.5 .*; given -0.1"),
    "tolerance NaN": ({"tolerance": NAN}, {}, "tolerance must be from 0"),
    "tolerance a period": ({"tolerance": 1.0}, {}, "tolerance must be .*choose a longer period.*; given 1.0"),
    "dt 0": ({}, {"dt": 0.0}, "dt must be a positive number of seconds; given 0.0"),
    "dt NaN": ({}, {"dt": NAN}, "dt must be a positive"),
    "dt infinite": ({}, {"dt": INF}, "dt must be a positive"),
    "steps 0": ({}, {"steps": 0}, "steps must be a whole number from 1 on; given 0"),
    "names of actions": ({}, {"actions": ["left", "right"]}, r"actions must be names, one per action \(1\); given"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused_before_the_plant_moves(name: str) -> None:
    options, run, sentence = REFUSED[name]
    plant = Scripted([0.0, 0.0])
    with pytest.raises(ValueError, match=sentence):
        Rig(plant, **options).run(random_agent(), **({"dt": DT, "steps": 3, **NAMES} | run))
    assert not plant.sent


def test_an_episode_that_ended_at_once_does_not_spoil_the_log(tmp_path: Path) -> None:
    """One sample is no transition, and `logs.read` refuses an episode without any."""
    plant = Paced(ready=lambda: None, send=lambda u: None, read=lambda: [0.5], dt=0.001)
    names: dict[str, Any] = {"states": STATES[:1], "actions": ACTIONS}
    for high in ([1.0], [0.1], [1.0]):
        rig = Rig(plant, high=high, tolerance=np.inf, realtime=False, log=tmp_path / "log.csv")
        recording = rig.run(random_agent(), dt=0.001, steps=3, **names)
        assert len(recording.observations) == (4 if high == [1.0] else 1)
    kept = logs.read(tmp_path / "log.csv", names["states"], names["actions"], 0.001)
    assert [len(each.observations) for each in kept] == [4, 4]


def test_a_log_that_cannot_be_written_costs_no_episode(tmp_path: Path) -> None:
    moved: list[np.ndarray] = []
    plant = Paced(ready=lambda: None, send=moved.append, read=lambda: [0.5], dt=0.001)
    agent, log = random_agent(), tmp_path / "log.csv"
    log.write_text("episode,time,angle [rad],torque [Nm]\n")
    rig = Rig(plant, realtime=False, log=log)
    with pytest.raises(ValueError, match=r"log\.csv is a log with other columns"):
        rig.run(agent, dt=0.001, steps=3, states=["position [m]"], actions=["force [N]"])
    assert not moved, "it should have been refused before the plant moved"
    with pytest.raises(ValueError, match=r"nowhere/log\.csv cannot be a log: there is no such directory"):
        Rig(plant, realtime=False, log=tmp_path / "nowhere" / "log.csv").run(agent, dt=0.001, steps=3)
    assert not moved
    with pytest.warns(UserWarning, match=r"not in the log: .*other columns"):
        recording = rig.run(agent, dt=0.001, steps=3)
    assert len(recording.observations) == 4 and recording.ended == "finished" and recording.log is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("names", [NAMES, {}])
def test_a_device_that_is_no_log_is_refused_before_the_plant_moves(names: dict[str, Any]) -> None:
    plant = Scripted([0.0, 0.1])
    with pytest.raises(ValueError, match="/dev/full cannot be a log: it is not a regular file"):
        Rig(plant, realtime=False, log="/dev/full").run(random_agent(), dt=DT, steps=3, **names)
    assert not plant.sent


def test_no_error_of_the_log_costs_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def append(*_: Any) -> None:
        raise TypeError("iteration over a 0-d array")

    monkeypatch.setattr(logs, "append", append)
    rig = Rig(Scripted([0.0, 0.1]), realtime=False, log=tmp_path / "log.csv")
    with pytest.warns(UserWarning, match="not in the log: iteration"):
        recording = rig.run(random_agent(), dt=DT, steps=3)
    assert len(recording.observations) == 4


@pytest.mark.usefixtures("clock")
def test_an_interruption_is_passed_on_after_a_safe_end(tmp_path: Path) -> None:
    class Impatient(Push):
        def act(self, observation: np.ndarray) -> np.ndarray:
            if len(self.seen) == 3:
                raise KeyboardInterrupt
            return super().act(observation)

    plant, log = Elsewhere(tmp_path), tmp_path / "log.csv"
    with pytest.raises(KeyboardInterrupt):
        Rig(plant, log=log).run(Impatient(), dt=DT, steps=10, **NAMES)
    assert plant.close() == [1.5, 1.5, 1.5, 0.0]
    assert len(logs.read(log, STATES, ACTIONS, DT)[0].observations) == 4


def test_a_second_interruption_does_not_cost_the_log(tmp_path: Path) -> None:
    class Stubborn(Scripted):
        def stop(self) -> None:
            raise KeyboardInterrupt  # while it is waited for

    log = tmp_path / "log.csv"
    with pytest.raises(KeyboardInterrupt):
        Rig(Stubborn([0.0, 0.1]), realtime=False, log=log).run(random_agent(), dt=DT, steps=3, **NAMES)
    assert len(logs.read(log, STATES, ACTIONS, DT)[0].observations) == 4


@pytest.mark.parametrize(
    ("action", "reason"),
    [([np.nan], "the action is [nan]"), ([1, 2], "the action is [1. 2.], and should have one entry per action (1)")],
)
def test_an_action_that_is_none_is_not_sent(action: list[float], reason: str) -> None:
    class Confused(Push):
        def act(self, observation: np.ndarray) -> np.ndarray:
            return np.array(action)

    plant = Scripted([0.0, 0.0])
    recording = Rig(plant, realtime=False).run(Confused(), dt=DT, steps=10)
    assert (recording.ended, recording.reason) == ("failed", reason)
    assert plant.sent == [0.0]


def test_a_driver_may_have_a_state_of_its_own() -> None:
    class Driver(Scripted):
        state = "READY"

    recording = Rig(Driver([0.0, 0.0]), realtime=False).run(random_agent(), dt=DT, steps=3)
    assert recording.ended == "finished" and recording.states == []


class Bench:
    """The spring as a plant that is there: stepped from outside, with a limit, or with samples that get lost."""

    def __init__(self, lost: float = 0.0, known: bool = False) -> None:
        self.task, self.lost, self.known = tasks.spring(), lost, known
        self.plant = jax.jit(self.task.plant)

    def seed(self, number: int) -> None:
        self.random = np.random.default_rng(number)

    def reset(self) -> np.ndarray:
        self.x = self.random.multivariate_normal(self.task.initial.mean, self.task.initial.cov)
        return self.observe()

    def step(self, action: np.ndarray) -> np.ndarray:
        self.x = np.asarray(self.plant(self.x, action))
        return self.observe()

    def observe(self) -> np.ndarray:
        z = self.x + np.asarray(self.task.sensor_std) * self.random.normal(size=2)
        return np.where(self.random.random() < self.lost, np.nan, z)

    def __getattr__(self, name: str) -> np.ndarray:
        if name == "true_state" and self.known:
            return self.x
        raise AttributeError(name)


def task_on(rig: Rig) -> Task:
    """The spring's task, on another plant, whose sensors nobody described."""
    return Task(**(vars(tasks.spring()) | {"plant": rig, "sensor_std": None}))


def test_a_plant_that_is_there_gives_episodes() -> None:
    task = task_on(Rig(Bench(known=True), realtime=False))
    record = small_run().records[-1]
    executor = METHODS["bayes-filter"].executor(record.policy, record.dynamics)
    keys = jax.random.split(jax.random.key(0), 10)
    many, simulated = execute_many(task, executor, keys), execute_many(tasks.spring(), executor, keys)
    ours, theirs = (np.asarray(episodes.costs).sum(axis=1) for episodes in (many, simulated))
    error = np.hypot(ours.std(), theirs.std()) / np.sqrt(10)
    assert abs(ours.mean() - theirs.mean()) < 4 * error, "the same plant and policy, so the same cost"
    again = execute(task, executor, keys[7])
    assert np.array_equal(again.observations, many.observations[7]), "the same key, the same chance"
    assert np.allclose(many.costs[0], jax.vmap(task.cost)(many.states[0]))  # type: ignore[index]


def test_an_episode_that_ends_at_a_limit_is_filled_up() -> None:
    rig = Rig(Bench(), high=[0.35, np.inf], realtime=False)
    task = task_on(rig)
    episode = execute(task, RandomActions(task.action_limits), jax.random.key(2))
    observed = np.isfinite(np.asarray(episode.observations)).all(axis=1)
    last = int(np.flatnonzero(observed)[-1])
    assert 0 < last < task.steps and observed[: last + 1].all(), "it should have ended early"
    assert np.asarray(episode.observations)[last, 0] > 0.35
    assert (np.asarray(episode.actions)[last:] == 0).all() and (np.asarray(episode.costs)[last + 1 :] == 1).all()
    assert (np.asarray(episode.costs)[: last + 1] < 1).all()
    assert episode.states is None


@pytest.mark.parametrize("place", ["log.csv", "nowhere/log.csv", None])
@pytest.mark.filterwarnings("ignore:The episode is not in the log")
def test_a_plant_that_fails_says_so_and_keeps_what_was_recorded(place: str | None, tmp_path: Path) -> None:
    class Unplugged(Scripted):
        def step(self, action: np.ndarray) -> Any:
            if len(self.sent) == 4:
                shutil.rmtree(tmp_path / "nowhere")
                raise OSError("no such port")
            return super().step(action)

    (tmp_path / "nowhere").mkdir()
    log = None if place is None else tmp_path / place
    task = task_on(Rig(Unplugged([0.0, 0.1]), realtime=False, log=log))
    with pytest.raises(PlantStopped, match="after 5 samples: OSError: no such port") as caught:
        execute(task, RandomActions(task.action_limits), jax.random.key(0))
    assert isinstance(caught.value, ValueError), "which the command prints as a sentence"
    where = str(log) if place == "log.csv" else "this error's `recording`"
    assert str(caught.value).endswith(f"What was recorded is in {where}.")
    assert (caught.value.recording.log is not None) == (place == "log.csv")
    assert len(caught.value.recording.observations) == len(caught.value.recording.actions) == 5


def test_an_episode_that_ended_early_does_not_spoil_training() -> None:
    """An unstable model runs away where nothing holds it, beyond all numbers; behind the last sample it must not."""
    layout = Layout(
        AngleFeatures((), (0, 1)),
        free(1, 1),
        complete(jnp.ones(1)),
        Gaussian([0.1], [[0.01]]),
        jnp.zeros(2),
        jnp.ones(2),
        jnp.ones(1),
        jnp.zeros((1, 2)),
    )
    weights = jnp.array([[0.0, 3.0, 0.0, 0.0]])  # x' = 4 x
    zero = jnp.zeros(1)
    parameters = Parameters(jnp.zeros((1, 2)), zero, zero - 2, zero - 2, weights)
    z = np.full((701, 1), np.nan)
    z[:4, 0] = [0.1, 0.4, 1.6, 6.4]
    trials = batch([Episode(z, np.zeros((700, 1)))])

    @jax.jit
    @jax.value_and_grad
    def surprise(parameters: Parameters) -> jax.Array:
        found = filter_trials(build(parameters, layout), trials)
        return jnp.sum(found.white**2) / 2 + found.log_det

    value, gradient = surprise(parameters)
    assert np.isfinite(value) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_training_bridges_missing_samples() -> None:
    """A model learned from series with gaps is as good as one from the rest; a gap is neither zero nor the start."""
    task = tasks.spring()
    whole = execute(task, RandomActions(task.action_limits), jax.random.key(1))
    z = np.array(whole.observations)
    z[5], z[9, 1], z[15:17] = np.nan, np.nan, np.nan
    gaps = batch([Episode(z, whole.actions)])
    assert np.asarray(gaps.complete)[0].sum() == task.steps + 1 - 4
    assert np.asarray(gaps.transitions)[0].sum() == task.steps - 7
    assert np.isfinite(np.asarray(gaps.observations)).all()
    # The evidence of what is left is the evidence with sensors that were worthless in the gaps.
    dynamics = small_run().records[-1].dynamics
    left = eqx.filter_jit(negative_log_evidence)(dynamics, gaps, task.initial)
    step = eqx.filter_jit(lambda belief, z, u: belief.update(z, dynamics.R).predict(dynamics, u))
    belief, expected = Belief(task.initial.mean, task.initial.cov), 0.0
    for t, observation in enumerate(z):
        seen = np.isfinite(observation)  # an incomplete sample contributes what it has
        S = np.asarray(belief.cov + dynamics.R)[np.ix_(seen, seen)]
        e = (observation - np.asarray(belief.mean))[seen]
        expected += (e @ np.linalg.solve(S, e) + np.linalg.slogdet(2 * np.pi * S)[1]) / 2
        if t < task.steps:
            belief = step(belief, jnp.asarray(observation), whole.actions[t])
    assert np.isclose(left, expected, rtol=1e-10)
