"""A plant that is there is run in time, recorded, and left with zero action, whatever it does."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import METHODS, AngleFeatures, Belief, Episode, Gaussian, Task, logs, tasks
from bayespilco.episode import batch
from bayespilco.execution import RandomActions, execute, execute_many
from bayespilco.plants import Paced, RandomAgent, Rig
from bayespilco.training.filtering import negative_log_evidence
from bayespilco.training.trajectory import Frame, Parameters, filter_trials, work_out
from tests.small_run import small_run

DT = 0.04
PATIENT = 20.0
"""A tolerance, in sampling periods, that a busy machine does not exceed."""

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
            time.sleep(4)
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
def test_an_episode_ends_safely(trouble: str, ended: str, reason: str, observations: int, tmp_path: Path) -> None:
    plant, agent = Elsewhere(tmp_path, trouble), Push()
    high = [0.1, np.inf] if trouble == "limit" else None
    log = tmp_path / "log.csv"
    rig = Rig(plant, high=high, tolerance=10.0, blind=3, log=log)
    begin = time.monotonic()
    recording = rig.run(agent, dt=DT, steps=10, states=["position [m]", "velocity [m/s]"], actions=["force [N]"])
    assert time.monotonic() - begin < 3.8, "it should not have waited for the plant"
    assert recording.ended == ended
    assert reason in recording.reason
    assert len(recording.observations) == len(recording.times) == observations
    assert np.array_equal(recording.observations[: len(agent.seen)], agent.seen, equal_nan=True)
    applied = plant.close()
    sent = 5 if trouble in ("die", "nonsense", "stall") else observations - 1
    assert applied[:sent] == [1.5] * sent, "actions are clipped to the limits"
    if trouble != "die":
        assert applied[sent:] == [0.0], "zero is the last action"
    # What was recorded is on the disk.
    (kept,) = logs.read(log, ["position [m]", "velocity [m/s]"], ["force [N]"], DT) if trouble == "none" else [None]
    rows = log.read_text().splitlines()
    assert len(rows) == 1 + observations
    if kept is not None:
        assert np.array_equal(kept.observations, recording.observations)
        assert np.array_equal(kept.actions, recording.actions)


def test_a_late_sample_ends_the_episode_and_delays_do_not_add_up() -> None:
    class Slow:
        def __init__(self, worst: float) -> None:
            self.steps, self.worst = 0, worst

        def reset(self) -> list[float]:
            return [0.0]

        def step(self, action: np.ndarray) -> list[float]:
            self.steps += 1
            time.sleep(self.worst if self.steps == 3 else 0.0)
            return [0.0]

    agent = RandomAgent(np.ones(1), np.random.default_rng(0))
    late = Rig(Slow(1.0), tolerance=1.0).run(agent, dt=DT, steps=10)
    assert late.ended == "late" and len(late.observations) == 3
    # One sample comes more than a period late, within what is tolerated: the following ones are in time again.
    recording = Rig(Slow(1.5 * DT), tolerance=PATIENT).run(agent, dt=DT, steps=20)
    lateness = np.array(recording.times) - DT * np.arange(21)
    assert recording.ended == "finished"
    assert lateness.min() > -1e-3 and lateness[3] > 0.4 * DT
    assert np.median(lateness[4:]) < 0.4 * DT


def test_a_device_is_paced() -> None:
    sent: list[float] = []
    read: list[float] = []

    def sample() -> np.ndarray:
        read.append(time.monotonic())
        return np.array([float(len(sent))])

    plant = Paced(ready=sent.clear, send=lambda u: sent.append(float(u[0])), read=sample, dt=DT)
    agent = RandomAgent(np.ones(1), np.random.default_rng(0))
    recording = Rig(plant, tolerance=PATIENT).run(agent, dt=DT, steps=5)
    assert recording.ended == "finished"
    assert np.array_equal(np.ravel(recording.observations), np.arange(6))  # each was read after the action before it
    assert np.diff(read).min() > 0.5 * DT
    assert sent[-1] == 0.0


def test_an_episode_that_ended_at_once_does_not_spoil_the_log(tmp_path: Path) -> None:
    """One sample is no transition, and `logs.read` refuses an episode without any."""
    plant = Paced(ready=lambda: None, send=lambda u: None, read=lambda: [0.5], dt=0.001)
    names: dict[str, Any] = {"states": ["position [m]"], "actions": ["force [N]"]}
    for high in ([1.0], [0.1], [1.0]):
        rig = Rig(plant, high=high, tolerance=np.inf, realtime=False, log=tmp_path / "log.csv")
        recording = rig.run(RandomAgent(np.ones(1), np.random.default_rng(0)), dt=0.001, steps=3, **names)
        assert len(recording.observations) == (4 if high == [1.0] else 1)
    kept = logs.read(tmp_path / "log.csv", names["states"], names["actions"], 0.001)
    assert [len(each.observations) for each in kept] == [4, 4]


def test_a_log_that_cannot_be_written_costs_no_episode(tmp_path: Path) -> None:
    moved: list[np.ndarray] = []
    plant = Paced(ready=lambda: None, send=moved.append, read=lambda: [0.5], dt=0.001)
    agent, log = RandomAgent(np.ones(1), np.random.default_rng(0)), tmp_path / "log.csv"
    log.write_text("episode,time,angle [rad],torque [Nm]\n")
    rig = Rig(plant, realtime=False, log=log)
    with pytest.raises(ValueError, match=r"log\.csv is a log with other columns"):
        rig.run(agent, dt=0.001, steps=3, states=["position [m]"], actions=["force [N]"])
    assert not moved, "it should have been refused before the plant moved"
    for names, cause in ((log, "other columns"), (tmp_path / "nowhere" / "log.csv", "No such file")):
        with pytest.warns(UserWarning, match=f"not in the log: .*{cause}"):
            recording = Rig(plant, realtime=False, log=names).run(agent, dt=0.001, steps=3)
        assert len(recording.observations) == 4 and recording.ended == "finished"


def test_an_interruption_is_passed_on_after_a_safe_end(tmp_path: Path) -> None:
    class Impatient(Push):
        def act(self, observation: np.ndarray) -> np.ndarray:
            if len(self.seen) == 3:
                raise KeyboardInterrupt
            return super().act(observation)

    plant = Elsewhere(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        Rig(plant, tolerance=PATIENT, log=tmp_path / "log.csv").run(Impatient(), dt=DT, steps=10)
    assert plant.close() == [1.5, 1.5, 1.5, 0.0]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + 4


def test_an_action_that_is_no_number_is_not_sent(tmp_path: Path) -> None:
    class Confused(Push):
        def act(self, observation: np.ndarray) -> np.ndarray:
            return np.array([np.nan])

    plant = Elsewhere(tmp_path)
    recording = Rig(plant, tolerance=PATIENT).run(Confused(), dt=DT, steps=10)
    assert (recording.ended, recording.reason) == ("failed", "the action is [nan]")
    assert plant.close() == [0.0]


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
        if name == "state" and self.known:
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


def test_a_plant_that_fails_says_so(tmp_path: Path) -> None:
    plant = Elsewhere(tmp_path, "die")
    task = task_on(Rig(plant, tolerance=PATIENT, log=tmp_path / "log.csv"))
    with pytest.raises(ValueError, match=r"after 5 samples: JSONDecodeError.*recorded is in .*log\.csv"):
        execute(task, RandomActions(task.action_limits), jax.random.key(0))
    plant.close()


def test_an_episode_that_ended_early_does_not_spoil_training() -> None:
    """An unstable model runs away where nothing holds it, beyond all numbers; behind the last sample it must not."""
    frame = Frame(AngleFeatures((), (0, 1)), jnp.zeros(2), jnp.ones(2), jnp.zeros((1, 2)), Gaussian([0.1], [[0.01]]))
    weights = jnp.array([[0.0, 3.0, 0.0, 0.0]])  # x' = 4 x
    zero = jnp.zeros(1)
    parameters = Parameters(jnp.zeros((1, 2)), zero, zero - 2, zero - 2, weights)
    z = np.full((701, 1), np.nan)
    z[:4, 0] = [0.1, 0.4, 1.6, 6.4]
    trials = batch([Episode(z, np.zeros((700, 1)))])

    @jax.jit
    @jax.value_and_grad
    def surprise(parameters: Parameters) -> jax.Array:
        found = filter_trials(work_out(parameters, frame), trials)
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
    assert np.asarray(gaps.observed)[0].sum() == task.steps + 1 - 4
    assert np.asarray(gaps.transitions)[0].sum() == task.steps - 7
    assert np.isfinite(np.asarray(gaps.observations)).all()
    # The evidence of what is left is the evidence with sensors that were worthless in the gaps.
    dynamics = small_run().records[-1].dynamics
    left = eqx.filter_jit(negative_log_evidence)(dynamics, gaps, task.initial)
    step = eqx.filter_jit(lambda belief, z, u: belief.update(z, dynamics.R).predict(dynamics, u))
    belief, expected = Belief(task.initial.mean, task.initial.cov), 0.0
    for t, observation in enumerate(z):
        if np.isfinite(observation).all():
            S = np.asarray(belief.cov + dynamics.R)
            e = observation - np.asarray(belief.mean)
            expected += (e @ np.linalg.solve(S, e) + np.linalg.slogdet(2 * np.pi * S)[1]) / 2
        else:
            observation = np.full(2, np.nan)  # incomplete samples are left out
        if t < task.steps:
            belief = step(belief, jnp.asarray(observation), whole.actions[t])
    assert np.isclose(left, expected, rtol=1e-10)
