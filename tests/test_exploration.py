"""Exploration: the reducible variance, the index, and one plant instead of all, for a search that knows no way."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from bayespilco import METHODS, LinearPolicy, Run, Settings, algorithm
from bayespilco.algorithm import best_so_far, make_problem
from bayespilco.control.exploration import Spread, spread, worth
from bayespilco.control.objective import ExpectedImprovement
from bayespilco.control.policy import Policy
from bayespilco.control.problem import Problem
from bayespilco.control.search import search
from bayespilco.core.parallel import SERIAL
from bayespilco.execution import simulate_samples
from bayespilco.model.posterior_samples import OnePlant, draw_many, mean_function
from tests import systems
from tests.small_run import replace_training, small_run

RUN = small_run(2)
FIT = RUN.records[-1].fit


def test_the_reducible_part_is_what_two_runs_share() -> None:
    rng = np.random.default_rng(0)
    plant = 20 + 2 * rng.normal(size=4000)
    found = spread(*(plant + 3 * rng.normal(size=4000) for _ in range(2)))
    assert abs(found.reducible - 4) < 5 * found.error and found.error < 0.3
    assert abs(found.rest - 9) < 0.8 and abs(found.mean - 20) < 0.3
    assert spread(np.array([1.0, 2.0]), np.array([2.0, 1.0])).reducible == 0.0, "an estimate below zero"
    with pytest.raises(ValueError, match=r"two runs on each of at least two plants; given totals of shapes \(1,\)"):
        spread(np.zeros(1), np.zeros(1))


def test_on_drawn_plants_it_is_the_variance_of_the_plants_means() -> None:
    """Many runs on each plant tell each plant's mean, and how these vary; two tell as much, on average."""
    plants, runs = 40, 30
    executor = METHODS["bayes-filter"].executor(RUN.policy, RUN.dynamics)
    keys = jax.random.split(jax.random.key(1), plants * runs)

    def totals(fit: object) -> np.ndarray:
        drawn = draw_many(fit, jax.random.split(jax.random.key(0), plants))  # type: ignore[arg-type]
        many = jax.tree.map(lambda leaf: jnp.repeat(leaf, runs, axis=0), drawn)
        costs = simulate_samples(RUN.task, executor, many, keys).costs
        return np.asarray(costs).sum(axis=1).reshape(plants, runs)

    each = totals(FIT)
    between = each.mean(axis=1).var(ddof=1) - each.var(axis=1, ddof=1).mean() / runs
    pairs = [spread(each[:, i], each[:, i + 1]) for i in range(0, runs, 2)]
    found = np.mean([pair.reducible for pair in pairs])
    error = np.std([pair.reducible for pair in pairs], ddof=1) / np.sqrt(len(pairs))
    assert between > 0 and abs(found - between) < 5 * error + 0.1 * between
    one = totals(OnePlant(FIT.dynamics))
    known = [spread(one[:, i], one[:, i + 1]) for i in range(0, runs, 2)]
    assert np.mean([pair.reducible - 2 * pair.error for pair in known]) < 0, "on a known plant nothing is left to learn"


def test_an_index_is_worth_what_can_still_be_used() -> None:
    found = Spread(20.0, 4.0, 9.0, 0.1)
    values = [worth(found, left) for left in (0, 1, 3, 10)]
    assert values[0] == 0 and (np.diff(values) > 0).all() and values[-1] < 2 * 2.0
    assert worth(found._replace(reducible=0.0), 10) == 0
    assert np.isclose(worth(Spread(20.0, 16.0, 36.0, 0.1), 3), 2 * values[2]), "in units of cost"
    assert worth(found._replace(rest=90.0), 3) < values[2], "noise hides what one wants to know"
    # Two episodes and no noise: after one run the mean is known, and is used once more if it is good.
    normal = scipy.stats.norm
    by_hand = scipy.optimize.brentq(lambda c: normal.pdf(c) - c * normal.sf(c) - c, 0, 1)
    assert np.isclose(worth(Spread(0.0, 1.0, 0.0, 0.1), 1), by_hand, rtol=5e-3)


def test_a_mean_function_is_certain_and_the_same() -> None:
    model = systems.dynamics("uncertain")
    plant = mean_function(model)
    x, u = jnp.array([0.3, 0.4]), jnp.array([0.2])
    np.testing.assert_allclose(plant(x, u), model(x, u), rtol=1e-14)
    assert not np.asarray(plant.gp.variance(plant.features(jnp.concatenate([x, u])))).any()
    np.testing.assert_array_equal(plant.process_noise, model.process_noise)


def _learned(monkeypatch: pytest.MonkeyPatch, **changes: object) -> tuple[list[Problem], algorithm.Record]:
    """The problems that one more round of learning searches, with a training that is there already."""
    problems: list[Problem] = []

    def searched(problem: Problem, earlier: Sequence[Policy], fresh: Sequence[Policy], **named: object) -> object:
        problems.append(problem)
        return search(problem, earlier[-1:], fresh[:0], **named)  # type: ignore[arg-type]

    monkeypatch.setattr(algorithm, "search", searched)
    replace_training(monkeypatch, "evidence", lambda *_, **__: FIT)
    words: dict[str, object] = {"evaluations": 2, "in_parts": False, "selection": "prediction", "episodes": 5}
    settings = Settings(**(words | changes))  # type: ignore[arg-type]
    return problems, algorithm.learn_episode(RUN.task, settings, RUN.records)


@pytest.mark.parametrize("exploration", ["thompson", "mean-function"])
def test_hopeless_searches_continue_on_one_plant(monkeypatch: pytest.MonkeyPatch, exploration: str) -> None:
    monkeypatch.setattr(algorithm, "RESTART_THRESHOLD", 0.0)
    (whole, one), record = _learned(monkeypatch, exploration=exploration)
    assert whole.dynamics is FIT.dynamics
    if exploration == "thompson":
        x, u = jnp.array([0.3, 0.4]), jnp.array([0.2])
        assert not np.allclose(one.dynamics(x, u), FIT.dynamics(x, u))
    else:
        assert one.dynamics.gp.precision is None
        np.testing.assert_array_equal(one.dynamics.gp.weights, FIT.dynamics.gp.weights)
    by_model = whole.prediction(record.policy).total_cost
    assert np.isclose(record.predicted_cost, by_model), "what is promised is by the whole model"
    assert record.evaluations > 2


def test_where_there_is_hope_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    problems, explored = _learned(monkeypatch, exploration="thompson")
    assert RUN.records[-1].predicted_cost < algorithm.RESTART_THRESHOLD * problems[0].worst
    assert len(problems) == 1
    _, plain = _learned(monkeypatch)
    for a, b in zip(jax.tree.leaves(explored.policy), jax.tree.leaves(plain.policy), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_index_lowers_the_cost_of_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(selection="index", episodes=9)
    problem = make_problem(RUN.task, settings, FIT.dynamics)
    policies = [RUN.policy, LinearPolicy([[0.0, 0.0]], [0.0], RUN.task.policy_features, RUN.task.action_limits)]

    def judged(fit: object, **changes: object) -> np.ndarray:
        asked = dataclasses.replace(settings, **changes)  # type: ignore[arg-type]
        key = jax.random.key(3)
        return np.asarray(algorithm._judge(RUN.task, asked, RUN.records, fit, problem, key, SERIAL)(policies))  # type: ignore[arg-type]

    index, last, samples = judged(FIT), judged(FIT, episodes=3), judged(FIT, selection="samples")
    assert index.shape == samples.shape
    lowered = (last - index).mean(axis=1)
    assert (lowered >= 0).all() and lowered.max() > 0, "before the last episode there is something to try for"
    assert np.allclose(lowered[:, None], last - index), "by the same on every plant"
    error = samples.std(axis=1) / np.sqrt(samples.shape[1])
    assert (np.abs(last.mean(axis=1) - samples.mean(axis=1)) < 5 * error).all(), "at the end it is the mean"


def test_the_best_so_far_is_by_the_model_at_hand() -> None:
    settings = Settings(objective="expected-improvement", in_parts=False)
    best = best_so_far(RUN.task, settings, RUN.records, FIT.dynamics)
    plain = make_problem(RUN.task, Settings(in_parts=False), FIT.dynamics)
    assert best == min(plain.value(record.policy) for record in RUN.records)
    objective = make_problem(RUN.task, settings, FIT.dynamics, best).objective
    assert isinstance(objective, ExpectedImprovement) and objective.best == best
    assert best_so_far(RUN.task, settings, (), FIT.dynamics) is None, "nothing to improve on yet"
    assert best_so_far(RUN.task, Settings(), RUN.records, FIT.dynamics) is None, "not asked for"
    bound = make_problem(RUN.task, Settings(objective="confidence-bound", kappa=-2.0), FIT.dynamics).objective
    assert bound.kappa == -2  # type: ignore[attr-defined]


def test_what_an_objective_asks_for_is_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, record = _learned(monkeypatch, objective="confidence-bound")
    cov = record.prediction.cost_cov
    assert cov is not None and cov.shape == (RUN.task.steps + 1,) * 2
    settings = dataclasses.replace(RUN.settings, objective="confidence-bound", episodes=3)
    Run(RUN.task, settings, (*RUN.records, record)).save(tmp_path / "run")
    first, *_, last = Run.load(tmp_path / "run").records
    assert first.prediction.cost_cov is None
    np.testing.assert_array_equal(last.prediction.cost_cov, cov)
