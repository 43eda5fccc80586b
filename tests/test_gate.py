"""The gate: an absurd sample costs no more than a missing one, a belief that is lost widens, and health says so."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayespilco import Controller
from bayespilco.deploy import bridge, logs
from bayespilco.deploy.controller import GATE, PATIENCE
from bayespilco.deploy.controller.gate import judge
from bayespilco.deploy.rig import Rig
from bayespilco.execution import filtered
from tests import systems
from tests.test_controller import task


@functools.cache
def made(gate: float = GATE) -> Controller:
    return bridge.controller(task(), filtered(systems.policy(), systems.dynamics()), gate=gate)


def controller(gate: float = GATE) -> Controller:
    """The small system with an angle: sensors of a position and an angle."""
    fresh = made(gate)
    return Controller(fresh.description, fresh.arrays)


def typical(agent: Controller, random: np.random.Generator) -> np.ndarray:
    """What the sensors would say if the belief were right."""
    C = agent.arrays["sensor_matrix"]
    spread = C @ agent.cov @ C.T + np.diag(agent.arrays["sensor_noise"])
    return agent.expected + random.multivariate_normal(np.zeros(len(C)), spread)


def test_nothing_is_rejected_where_the_model_is_right() -> None:
    """So with its gate the controller acts as the library does; and surprises are standard normal numbers."""
    with_gate, without, random = controller(), controller(gate=0.0), np.random.default_rng(0)
    surprises = []
    for _ in range(400):
        z = typical(with_gate, random)
        assert np.array_equal(with_gate.act(z), without.act(z))
        surprises.append(with_gate.health.surprise)
    assert with_gate.health.rejections.sum() == 0 and with_gate.restarts == 0
    error = np.sqrt(2 / 400)  # the standard error of a mean of squares
    assert np.abs(np.square(surprises).mean(axis=0) - 1).max() < 4 * error
    assert "restarts: 0; position [m]: " in str(with_gate.health)


@pytest.mark.parametrize("sensor", [0, 1])
def test_a_spike_costs_as_much_as_a_missing_sample(sensor: int) -> None:
    spiked, missing, random = controller(), controller(), np.random.default_rng(1)
    for step in range(30):
        z = typical(missing, random)
        lost = z.copy()
        if step == 10:
            z[sensor] += 2.5
            lost[sensor] = np.nan
        assert np.array_equal(spiked.act(z), missing.act(lost))
        assert spiked.health.rejected[sensor] == (step == 10)
        if step == 10:
            assert spiked.health.largest_surprise > GATE
            assert spiked.health.rejected_names == [task().sensor_names[sensor]]
            assert spiked.health.since_good[sensor] == pytest.approx(task().dt) == missing.health.since_good[sensor]
    assert spiked.health.rejections.tolist() == [sensor == 0, sensor == 1] and spiked.restarts == 0
    assert (spiked.health.since_good == 0).all()


def test_an_angle_may_wrap_and_a_position_may_not() -> None:
    plain, wrapping, random = controller(), controller(), np.random.default_rng(2)
    for step in range(20):
        z = typical(plain, random)
        turned = z + [0.0, 2 * np.pi * (step % 3 - 1)]
        assert np.abs(plain.act(z) - wrapping.act(turned)).max() < 1e-9
    assert wrapping.health.rejections.sum() == 0
    wrapping.act(plain.expected + [2 * np.pi, 0.0])
    assert wrapping.health.rejected.tolist() == [True, False]


@pytest.mark.parametrize("size", [1e8, 1e16, 1e17, 3e60])
def test_a_huge_angle_is_not_wrapped_into_a_plausible_one(size: float) -> None:
    """What is left of 1e17 rad after whole turns is rounding, often zero."""
    absurd, missing, random = controller(), controller(), np.random.default_rng(7)
    for step in range(12):
        z = typical(missing, random)
        lost = z.copy()
        if step % 3 == 2:  # many sizes: some of them leave less than the gate
            z[1] = size * (1 + random.random())
            lost[1] = np.nan
        assert np.array_equal(absurd.act(z), missing.act(lost))
    assert absurd.health.rejections.tolist() == [0, 4]


def test_a_sensor_that_is_stuck_is_not_believed() -> None:
    """A repetition to the bit is not a new sample, until there are too many of them: a coarse sensor repeats itself."""
    agent, missing, random = controller(), controller(), np.random.default_rng(3)
    for _ in range(PATIENCE + 2):
        z = typical(agent, random)
        agent.act(z)
        missing.act(z)
    for _ in range(PATIENCE):
        now = typical(agent, random)
        assert np.array_equal(agent.act([z[0], now[1]]), missing.act([np.nan, now[1]]))
    agent.act([agent.expected[0], np.nan])
    believed = []
    for _ in range(10):
        agent.act([agent.latest[0], np.nan])
        believed.append(not agent.health.rejected[0])
    assert 3 <= sum(believed) <= 7


def test_a_plant_that_is_elsewhere_is_believed_in_the_end() -> None:
    """After `patience` samples the belief widens, and then the sensors decide."""
    agent, random = controller(), np.random.default_rng(4)
    for _ in range(PATIENCE + 1):
        agent.act(typical(agent, random))
    there = agent.expected + [2.5, 0.0]
    for step in range(PATIENCE):
        assert agent.restarts == 0 and (step == 0 or agent.health.rejected[0])
        agent.act(there + 0.1 * random.normal(size=2))
    assert agent.restarts == 0 and agent.expected[0] < 1.0
    agent.act(there + 0.1 * random.normal(size=2))
    assert agent.restarts == 1 and not agent.health.rejected[0]
    assert agent.expected[0] > 1.5, "the belief went where the sensor is"


def test_a_first_sample_from_elsewhere_is_believed_at_the_second() -> None:
    """And a spike in the first sample is not believed at all."""
    agent = controller()
    there = agent.expected + [2.0, 0.0]
    agent.act(there)
    assert agent.health.rejected[0] and agent.restarts == 0
    agent.act(there + 0.01)
    assert not agent.health.rejected[0] and agent.restarts == 1


def test_a_restart_is_wide_and_covers_the_data() -> None:
    agent = controller()
    wide, first = np.diag(agent.arrays["wide_cov"]), np.diag(agent.arrays["initial_cov"])
    inputs = agent.arrays["inputs"]
    reach = np.abs(inputs[:, 0] - agent.arrays["initial_mean"][0]).max()
    assert np.sqrt(wide[0]) > reach / 3 and wide[1] == pytest.approx(np.pi**2 / 3)
    assert (wide > 3 * first).all()
    agent.cov[0, 0] = 1e300
    far = np.array([1.4, -1.0])
    agent.act(far)  # the belief that starts again does not know better than the sensors
    sure = controller()
    sure.mean, sure.cov = far, 0 * sure.cov
    sure.act([np.nan, np.nan])
    assert agent.restarts == 1 and np.abs(agent.mean - sure.mean).max() < 0.15


def test_what_not_even_a_wide_belief_explains_stays_rejected() -> None:
    """A broken sensor must not make the belief wide for ever."""
    agent, random = controller(), np.random.default_rng(5)
    for step in range(40):
        z = typical(agent, random)
        agent.act([1e6 + step, z[1]])
    assert agent.restarts == 0 and agent.health.rejections.tolist() == [40, 0]
    assert agent.health.since_good[0] == pytest.approx(40 * task().dt)


@pytest.mark.parametrize("gate", [3.0, 5.0])
def test_every_entry_is_judged_by_its_own_variance(gate: float) -> None:
    std = np.array([0.1, 1.0, 10.0, 1.0])
    innovation = np.array([1.01 * gate, 0.99 * gate, -1.01 * gate, np.nan]) * std
    verdict = judge(innovation, std**2, 100 * std**2, np.zeros(4, dtype=bool), np.array([2, 2, 0, 2]), gate, 3)
    assert verdict.widen, "the third sensor has no credit left"
    assert verdict.accepted.tolist() == [True, True, True, False] and verdict.credit.tolist() == [1, 1, 1, 0]
    verdict = judge(innovation, std**2, 100 * std**2, np.zeros(4, dtype=bool), np.array([2, 3, 1, 2]), gate, 3)
    assert verdict.rejected.tolist() == [True, False, True, False] and verdict.credit.tolist() == [1, 3, 0, 2]


class Imagined:
    """A plant that does what the controller expects, with a sensor that fails from some step on."""

    def __init__(self, agent: Controller, offset: float, begin: int) -> None:
        self.agent, self.offset, self.begin, self.steps = agent, offset, begin, 0
        self.random = np.random.default_rng(6)

    def reset(self) -> Any:
        self.steps = 0
        return typical(self.agent, self.random)

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        off = self.offset * self.random.normal() if self.steps >= self.begin else 0.0
        return typical(self.agent, self.random) + [off, 0.0]


def run(rig: Rig, agent: Controller, **more: Any) -> Any:
    about = agent.description
    return rig.run(agent, dt=about.dt, steps=60, states=about.sensors, actions=about.actions, **more)


def test_a_rig_stops_when_the_controller_is_lost_and_logs_what_it_thinks(tmp_path: Path) -> None:
    agent = controller()
    rig = Rig(Imagined(agent, 3.0, 10), realtime=False, log=tmp_path / "log.csv")
    recording = run(rig, agent)
    assert recording.ended == "lost" and "gave up its belief 3 times" in recording.reason
    assert agent.restarts == 3 and len(recording.health) == len(recording.actions)
    header, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert header.endswith(",surprise in sigma,rejected sensors,restarts so far")
    rejected = ["position [m]" in row for row in rows]
    assert rejected[: len(recording.health)] == [bool(health.rejected[0]) for health in recording.health]
    assert rows[-1].endswith(",3")
    # While learning it goes on, and so it does if asked.
    assert run(rig, agent, learning=True).ended == "finished" and agent.restarts > 3
    unbothered = Rig(Imagined(agent, 3.0, 10), realtime=False, lost=0)
    assert run(unbothered, agent).ended == "finished"
    with pytest.raises(ValueError, match="lost must be a whole number from 0 on; given -1"):
        Rig(Imagined(agent, 0.0, 0), lost=-1)


@pytest.mark.filterwarnings("error")
def test_a_log_with_health_is_read_and_added_to(tmp_path: Path) -> None:
    agent, file = controller(), tmp_path / "log.csv"
    rig = Rig(Imagined(agent, 0.0, 0), realtime=False, log=file)
    first = run(rig, agent)
    about = agent.description
    times = [0.0, about.dt]
    logs.append(file, about.sensors, about.actions, times, [np.zeros(2)] * 2, [np.zeros(1)])
    one, two = logs.read(file, about.sensors, about.actions, about.dt)
    assert np.array_equal(one.observations, first.observations) and len(two.actions) == 1
    assert file.read_text().splitlines()[-1].endswith(",,,")
    # A log from before keeps its columns.
    old = tmp_path / "old.csv"
    logs.append(old, about.sensors, about.actions, times, [np.zeros(2)] * 2, [np.zeros(1)])
    run(Rig(Imagined(agent, 0.0, 0), realtime=False, log=old), agent)
    assert "surprise" not in old.read_text() and len(old.read_text().splitlines()) == 3 + 61


def test_a_sensor_that_is_rejected_for_long_counts_as_blindness() -> None:
    agent = controller()

    class Broken(Imagined):
        def step(self, action: np.ndarray) -> Any:
            self.steps += 1
            return typical(self.agent, self.random) + [1e5 + self.steps, 0.0]

    rig = Rig(Broken(agent, 0.0, 0), realtime=False, high=[np.inf, 1e3], low=[-1e9, -np.inf])
    recording = run(rig, agent)
    assert recording.ended == "blind"
    assert "position [m], which has a limit, was missing or rejected from 10 samples in a row" in recording.reason
