"""A split first state: what the mixture keeps, what a prediction from it keeps, and what it gains."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

from bayespilco import METHODS, algorithm
from bayespilco.control.cost import SaturatingCost
from bayespilco.control.policy import LinearPolicy
from bayespilco.control.prediction import Filtered, MostLikely, Unfiltered, predict_in_parts
from bayespilco.control.problem import Problem
from bayespilco.control.search import SPLITS, Judge, improve, search
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess
from bayespilco.core.precision import as_float64
from bayespilco.execution import simulate_samples
from bayespilco.model import splitting as parts
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.posterior_samples import draw_many
from tests import systems
from tests.oracles import Sampled
from tests.small_run import replace_training, small_run
from tests.test_closed_loop import STEPS, execute_filter

WIDE = Gaussian(systems.INITIAL.mean, 12 * systems.INITIAL.cov)
POINTS = as_float64(parts.standard_points(2))
in_parts = eqx.filter_jit(predict_in_parts)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_points_are_standard_and_in_opposite_pairs(size: int) -> None:
    points = parts.standard_points(size)
    assert points.shape == (parts.PER_DIMENSION * size, size)
    assert np.allclose(points[: len(points) // 2], -points[len(points) // 2 :], atol=1e-12)
    assert np.allclose(points.T @ points / len(points), np.eye(size), atol=1e-12)


def test_parts_make_up_the_whole() -> None:
    each = Unfiltered().starts(systems.INITIAL, systems.dynamics(), POINTS)
    assert np.allclose(each.mean.mean(axis=0), systems.INITIAL.mean, atol=1e-12)
    between = np.cov(np.asarray(each.mean).T, bias=True)
    assert np.allclose(between + each.cov, systems.INITIAL.cov, atol=1e-12)
    assert np.allclose(each.cov, parts.WITHIN * systems.INITIAL.cov)


def test_the_filter_does_not_know_its_part() -> None:
    """After an observation the belief is as sure as in the whole, and over all parts its mean spreads as much."""
    R = systems.dynamics().R
    whole = Filtered().start(systems.INITIAL, systems.dynamics()).update(R)
    each = Filtered().starts(systems.INITIAL, systems.dynamics(), POINTS)
    updated = eqx.filter_vmap(lambda part: part.update(R))(each)
    assert np.allclose(updated.cov, whole.cov, atol=1e-12)
    assert np.allclose(updated.mean.cov, parts.WITHIN * whole.mean.cov, atol=1e-12)
    between = np.cov(np.asarray(updated.mean.mean).T, bias=True)
    assert np.allclose(between + updated.mean.cov, whole.mean.cov, atol=1e-12)


def test_a_first_state_that_is_known_in_part_is_not_cut_there() -> None:
    known = Gaussian([0.3, 0.4], [[0.09, 0.0], [0.0, 0.0]])
    assert np.allclose(Unfiltered().starts(known, systems.dynamics(), POINTS).mean[:, 1], 0.4, atol=1e-12)
    predicted = in_parts(Filtered(), systems.policy(), systems.dynamics(), known, systems.COST, 4, POINTS)
    assert np.isfinite(predicted.state_cov).all()


def linear_world() -> tuple[LinearPolicy, Dynamics, Gaussian, SaturatingCost, int]:
    """A linear plant and policy: what a prediction needs besides the predictor."""
    features = AngleFeatures((), (0, 1))
    policy = LinearPolicy([[-4e-6, -6e-6]], [1e-6], features, [1e5])  # far from its limits
    slope = np.array([[0.9, 0.2, 0.3], [-0.1, 0.8, 0.5]])
    gp = GaussianProcess(np.zeros((1, 3)), np.ones((2, 3)), np.ones(2), np.zeros((2, 1)), None, slope, np.zeros(2))
    dynamics = Dynamics(gp, AngleFeatures((), (0, 1, 2)), np.full(2, 0.02), np.full(2, 0.01))
    cost = SaturatingCost(features, np.zeros(2), np.eye(2))
    return policy, dynamics, systems.INITIAL, cost, 4


@pytest.mark.parametrize("predictor", [Unfiltered(), Filtered()])
def test_in_a_linear_world_nothing_changes(predictor: Unfiltered | Filtered) -> None:
    """Moment matching is exact there, so states and actions must come out the same, however the start is cut."""
    arguments = predictor, *linear_world()
    whole, cut = systems.run(*arguments), in_parts(*arguments, POINTS)
    for name in ("state_mean", "state_cov", "action_mean", "action_cov"):
        assert np.allclose(getattr(cut, name), getattr(whole, name), rtol=1e-7, atol=1e-9), name


def test_prediction_in_parts_is_closer_to_the_runs() -> None:
    """From a first state that is spread widely: the error of the expected cost, against 4000 runs of the filter."""
    _, costs = execute_filter(WIDE)
    sampled = Sampled.of(costs.sum(axis=1))
    arguments = Filtered(), systems.policy("linear"), systems.dynamics(), WIDE, systems.COST, STEPS
    whole, cut = systems.run(*arguments).total_cost, in_parts(*arguments, POINTS).total_cost
    assert abs(whole - sampled.value) > 10 * sampled.error, "one Gaussian is too good here to test anything"
    assert abs(cut - sampled.value) < 0.5 * abs(whole - sampled.value)


def test_a_search_ends_on_split_predictions_where_they_can_be_made() -> None:
    run = small_run(1)
    task, policy = run.task, run.policy
    problem = Problem(Filtered(), run.dynamics, task.initial, task.cost, task.steps)
    progress: list[float] = []
    budgets = {"evaluations": 16, "split_evaluations": 2}
    found = search(problem, [policy], [], **budgets, on_progress=lambda done, _: progress.append(done))
    last = problem.split(SPLITS - 1)
    assert found.evaluations == 2
    assert np.isclose(found.cost, last.value(found.policy), rtol=1e-12)
    assert np.isclose(found.cost, found.problem.value(found.policy), rtol=1e-12)
    assert found.cost <= last.value(policy)
    assert progress == sorted(progress) and progress[-1] == 1.0
    for predictor in (MostLikely(), Filtered("literal")):
        assert problem._replace(predictor=predictor).split().components is None


def test_learning_splits_predictions_when_the_first_episodes_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(2)
    settings = dataclasses.replace(run.settings, evaluations=3, points=4, selection="prediction")
    asked: list[bool] = []

    def searched(*arguments: object, split_evaluations: int, **named: object) -> object:
        asked.append(split_evaluations > 0)
        return search(*arguments, split_evaluations=split_evaluations, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(algorithm, "search", searched)
    replace_training(monkeypatch, "evidence", lambda *_, **__: run.records[-1].fit)
    for early, wanted, expected in ((3, True, False), (2, True, True), (2, False, False)):
        monkeypatch.setattr(algorithm, "EXPLORATION_EPISODES", early)
        record = algorithm.learn_episode(run.task, dataclasses.replace(settings, in_parts=wanted), run.records)
        problem = Problem(Filtered(), record.dynamics, run.task.initial, run.task.cost, run.task.steps)
        problem = problem.split(SPLITS - 1) if expected else problem
        assert np.isclose(record.predicted_cost, problem.value(record.policy), rtol=1e-12)
        assert asked.pop() is expected


def test_only_refined_policies_compete_on_split_predictions() -> None:
    """One that was not may look better for a few evaluations, and end worse."""
    run = small_run(1)
    problem = Problem(Filtered(), run.dynamics, run.task.initial, run.task.cost, run.task.steps)
    split = problem.split(0)
    policies = [run.policy, improve(run.policy, split, evaluations=12).policy]
    assert split.value(policies[1]) < split.value(policies[0])
    found = [
        search(problem, policies[:1], [], evaluations=1, split_evaluations=1, refined=refined)
        for refined in ([], policies[1:])
    ]
    last = problem.split(SPLITS - 1)  # with one evaluation, policies stay what they are
    assert np.isclose(found[0].cost, last.value(policies[0]), rtol=1e-12)
    assert np.isclose(found[1].cost, last.value(policies[1]), rtol=1e-12)


def test_learning_selects_policies_on_drawn_plants(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge that learning hands to the search knows the cost on plants drawn from the model, the same for all."""
    run = small_run(2)
    settings = dataclasses.replace(run.settings, evaluations=1, in_parts=False, selection="samples")
    asked: list[np.ndarray] = []

    def searched(*arguments: object, judge: Judge, **named: object) -> object:
        asked.append(np.asarray(judge([run.policy, run.policy, do_nothing])))
        return search(*arguments, judge=judge, **named)  # type: ignore[arg-type]

    do_nothing = LinearPolicy([[0.0, 0.0]], [0.0], run.task.policy_features, run.task.action_limits)
    monkeypatch.setattr(algorithm, "search", searched)
    replace_training(monkeypatch, "evidence", lambda *_, **__: run.records[-1].fit)
    algorithm.learn_episode(run.task, settings, run.records)
    good, same, bad = asked[0]
    assert np.array_equal(good, same) and good.mean() < bad.mean()
    executor = METHODS["bayes-filter"].executor(run.policy, run.dynamics)
    keys = jax.random.split(jax.random.key(5), 300)
    runs = simulate_samples(run.task, executor, draw_many(run.records[-1].fit, keys), keys)
    totals = np.asarray(runs.costs).sum(axis=1)
    error = totals.std() * np.sqrt(1 / len(totals) + 1 / len(good))
    assert abs(good.mean() - totals.mean()) < 5 * error


def test_learning_tells_the_search_which_policies_were_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(2)
    told: list[int] = []

    def searched(*arguments: object, refined: list[object], **named: object) -> object:
        told.append(len(refined))
        return search(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(algorithm, "search", searched)
    monkeypatch.setattr(algorithm, "EXPLORATION_EPISODES", 1)
    replace_training(monkeypatch, "evidence", lambda *_, **__: run.records[-1].fit)
    algorithm.learn_episode(
        run.task, dataclasses.replace(run.settings, evaluations=1, in_parts=False, selection="prediction"), run.records
    )
    assert told == [1], "the first one is early"


AGAIN = as_float64(parts.standard_points(2, 1, 2))


@pytest.mark.parametrize("predictor", [Unfiltered(), Filtered()])
def test_a_second_split_changes_nothing_in_a_linear_world(predictor: Unfiltered | Filtered) -> None:
    """Parts of parts are still parts of the same Gaussian, and V is the same for all."""
    arguments = predictor, *linear_world()
    once, twice = in_parts(*arguments, POINTS), in_parts(*arguments, POINTS, again=AGAIN)
    for name in ("state_mean", "state_cov", "action_mean", "action_cov", "belief_cov"):
        assert np.allclose(getattr(twice, name), getattr(once, name), rtol=1e-7, atol=1e-9), name
    assert twice.cost_mean.shape == once.cost_mean.shape


def test_a_second_split_is_closer_to_the_runs() -> None:
    """Before half-way nothing differs; there the states have the same moments, in more parts."""
    _, costs = execute_filter(WIDE)
    sampled = Sampled.of(costs.sum(axis=1))
    arguments = Filtered(), systems.policy("linear"), systems.dynamics(), WIDE, systems.COST, STEPS, POINTS
    once, twice = in_parts(*arguments), in_parts(*arguments, again=AGAIN)
    half = STEPS // 2
    assert np.allclose(twice.cost_mean[:half], once.cost_mean[:half], rtol=1e-12)
    assert np.allclose(twice.state_cov[: half + 1], once.state_cov[: half + 1], rtol=1e-9, atol=1e-12)
    assert abs(twice.total_cost - sampled.value) < abs(once.total_cost - sampled.value)


def test_a_second_split_is_for_predictions_only() -> None:
    run = small_run(1)
    problem = Problem(Filtered(), run.dynamics, run.task.initial, run.task.cost, run.task.steps)
    assert problem.split_again().again is None
    again = problem.split().split_again()
    assert np.isfinite(again.value(run.policy))
    with pytest.raises(ValueError, match="no gradient"):
        again.value_and_gradient(run.policy)
    given = Filtered(), run.policy, run.dynamics, run.task.initial, run.task.cost, 4
    with pytest.raises(ValueError, match="half-way"):
        in_parts(*given, again.components, again=again.again, between_steps=True)
