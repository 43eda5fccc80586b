"""Algorithm 1 from end to end on the task that takes seconds, and the table of methods."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bayespilco import METHODS, Progress, Run, algorithm, execution, learn, resume, tasks
from bayespilco.control import prediction
from bayespilco.control.policy import Policy
from bayespilco.control.search import Improvement, Problem, Recovery, search
from bayespilco.settings import Settings
from bayespilco.tasks import Start
from bayespilco.training.direct import fit_direct
from tests.small_run import assert_same, replace_training, small_run


def _learn(**changes: object) -> Run:
    return learn(**{"task": "spring", "episodes": 2, "points": 15, "evaluations": 40, **changes})  # type: ignore[arg-type]


def test_the_whole_loop_learns_and_keeps_its_promise() -> None:
    seen: list[Progress] = []
    run = _learn(on_progress=seen.append)
    random, first = run.records[0].executed_cost, run.records[1].executed_cost
    assert first < 0.4 * random  # one episode of 4 s is enough for the spring
    costs = np.asarray(run.evaluate(executions=50).costs).sum(axis=1)
    error = costs.std() / np.sqrt(len(costs))
    predicted = run.records[-1].predicted_cost
    assert abs(costs.mean() - predicted) < 5 * error + 0.15 * predicted
    noise = np.sqrt(np.asarray(run.dynamics.sensor_noise)) / np.asarray(run.task.sensor_std)
    assert (np.abs(noise - 1) < 0.35).all()  # 42 observations: 11 % at best

    assert [p.stage for p in seen if p.fraction == 0] == ["execute", "train", "improve"] * 2
    assert all(0 <= p.fraction <= 1 for p in seen)
    again = _learn()
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(run.policy), jax.tree.leaves(again.policy), strict=True)
    )


def test_methods_are_a_table_of_predictors_and_executors() -> None:
    expected = {
        "pilco": (prediction.Unfiltered, execution.unfiltered),
        "dallaire": (prediction.MostLikely, execution.filtered),
        "deisenroth": (prediction.Unfiltered, execution.filtered),
        "bayes-filter": (prediction.Filtered, execution.filtered),
    }
    assert {name: (type(m.predictor), m.executor) for name, m in METHODS.items()} == expected


@pytest.mark.parametrize("method", [name for name in METHODS if name != "bayes-filter"])
def test_every_method_runs(method: str) -> None:
    run = _learn(method=method, episodes=1)
    assert np.isfinite(np.asarray(run.evaluate(executions=5).costs)).all()
    assert run.prediction().cost_mean.shape == (run.task.steps + 1,)


def test_direct_training_runs_in_the_loop_and_is_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replace_training(monkeypatch, "direct", functools.partial(fit_direct, evaluations=10))
    run = _learn(training="direct", method="pilco", episodes=2, evaluations=5, out=tmp_path / "run")
    assert np.isfinite(run.records[-1].predicted_cost) and run.settings.training == "direct"
    (tmp_path / "run" / "episode-01.safetensors").unlink()
    assert_same(resume(tmp_path / "run"), run)


def test_a_search_that_is_stuck_starts_afresh_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(2)
    settings = dataclasses.replace(run.settings, evaluations=1, in_parts=False, selection="prediction")
    started: list[int] = []

    def searched(problem: Problem, earlier: list[Policy], fresh: list[Policy], **named: object) -> object:
        started.append(len(fresh))
        return search(problem, earlier, fresh, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(algorithm, "search", searched)
    replace_training(monkeypatch, "evidence", lambda *_, **__: run.records[-1].fit)
    predicted = run.records[-1].predicted_cost / (run.task.steps + 1)
    for early, hopeless, expected in ((3, 1.0, 4), (2, 1.0, 0), (2, predicted + 0.01, 0), (2, predicted - 0.01, 4)):
        monkeypatch.setattr(algorithm, "EXPLORATION_EPISODES", early)
        monkeypatch.setattr(algorithm, "RESTART_THRESHOLD", hopeless)
        algorithm.learn_episode(run.task, settings, run.records)
        assert started.pop() == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "bayes-filtre"}, ["Unknown method 'bayes-filtre'", "Did you mean 'bayes-filter'?", "pilco"]),
        ({"task": "cartpole"}, ["Unknown task 'cartpole'", "Did you mean 'cart-pole'?"]),
        ({"training": "magic"}, ["Unknown training 'magic'", "evidence, direct"]),
        ({"episodes": 0}, ["episodes must be at least 1", "given 0"]),
        ({"points": -3}, ["points must be at least 1", "given -3"]),
    ],
)
def test_mistakes_are_met_with_a_sentence(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        _learn(**changes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_tasks_are_checked() -> None:
    task = tasks.spring()
    with pytest.raises(ValueError, match="action_limits must be positive"):
        tasks.Task(**{**vars(task), "action_limits": [-2.0]})
    with pytest.raises(ValueError, match="sensor_std must be positive"):
        tasks.Task(**{**vars(task), "sensor_std": [0.1, 0.0]})
    with pytest.raises(ValueError, match="steps must be at least 1"):
        tasks.Task(**{**vars(task), "steps": 0})


def test_recovery_is_on_request_and_for_the_last_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    task = dataclasses.replace(tasks.spring(), recover_from=(Start("pushed", (0.0, 2.0), (0.1, 0.5), 0.3),))
    asked: list[Recovery | None] = []

    def watched(*arguments: Any, recovery: Recovery | None, **others: Any) -> Improvement:
        asked.append(recovery)
        return search(*arguments, recovery=None, **others)

    monkeypatch.setattr(algorithm, "search", watched)
    few = {"episodes": 2, "points": 4, "evaluations": 1}
    algorithm.learn(task, Settings(**few))
    algorithm.learn(task, Settings(recover=True, **few))
    assert asked[:3] == [None] * 3 and asked[3] is not None
    assert [weight for weight, _ in asked[3].starts] == [0.3]
    with pytest.raises(ValueError, match="does not say from what"):
        algorithm.learn(tasks.spring(), Settings(recover=True, **few))
