"""Policy search: the budget to the letter, the best policy kept, and what happens when a prediction diverges."""

from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bayespilco.control.objective import Objective
from bayespilco.control.policy import LinearPolicy, Policy
from bayespilco.control.prediction import Filtered, MostLikely, Prediction
from bayespilco.control.problem import Problem
from bayespilco.control.search import Recovery, improve, search
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.optimise import Reason
from tests.small_run import small_run

RUN = small_run(1)
TASK = RUN.task
PROBLEM = Problem(Filtered(), RUN.dynamics, TASK.initial, TASK.cost, TASK.steps)


def _policy(gain: float = 0.0) -> LinearPolicy:
    return LinearPolicy([[gain, 0.0]], [0.1], TASK.policy_features, TASK.action_limits)


def test_budget_is_hard_and_the_best_is_kept() -> None:
    calls: list[tuple[int, float]] = []
    found = improve(_policy(), PROBLEM, evaluations=4, on_evaluation=lambda n, cost: calls.append((n, cost)))
    assert [n for n, _ in calls] == [1, 2, 3, 4] and found.evaluations == 4
    assert found.stopped is Reason.BUDGET
    assert found.cost == min(cost for _, cost in calls)
    assert np.isclose(PROBLEM.value(found.policy), found.cost, rtol=1e-12)
    assert (np.diff(found.history) <= 0).all()
    assert np.array_equal(found.policy.limits, TASK.action_limits)  # a bound is not a parameter


def test_search_ends_at_a_flat_place_and_says_so() -> None:
    found = improve(_policy(), PROBLEM, evaluations=200)
    assert found.cost < 0.5 * PROBLEM.value(_policy())
    assert found.stopped is Reason.CONVERGED
    slope = PROBLEM.value_and_gradient(found.policy)[1]
    assert isinstance(slope, LinearPolicy) and np.abs(slope.matrix).max() < 1e-3


def test_curvature_is_the_inverse_hessian_and_worth_evaluations() -> None:
    """By differences of the gradient at the end; a search nearby that begins with it needs fewer evaluations."""
    found = improve(_policy(), PROBLEM, evaluations=200)
    flat, unravel = ravel_pytree(found.policy)

    def slope(parameters: np.ndarray) -> np.ndarray:
        return np.asarray(ravel_pytree(PROBLEM.value_and_gradient(unravel(jnp.asarray(parameters)))[1])[0])

    learned = slice(0, 3)  # the rest are the action's limits
    rows = 1e-4 * np.eye(flat.size)[learned]
    hessian = np.array([slope(flat + row) - slope(flat - row) for row in rows])[:, learned] / 2e-4
    inverse = np.linalg.inv(hessian)
    assert np.allclose(found.curvature[learned, learned], inverse, rtol=0, atol=0.1 * np.abs(inverse).max())

    nearby = unravel(ravel_pytree(found.policy)[0] * 1.1)
    without = improve(nearby, PROBLEM, evaluations=4)
    knowing = improve(nearby, PROBLEM, evaluations=4, curvature=found.curvature)
    assert knowing.cost - found.cost < 0.5 * (without.cost - found.cost)


def test_search_starts_from_the_earlier_policy_that_the_model_thinks_best_of() -> None:
    good = improve(_policy(), PROBLEM, evaluations=30).policy
    progress: list[float] = []
    found = search(PROBLEM, [good, _policy(3.0)], [], evaluations=1, on_progress=lambda done, _: progress.append(done))
    assert np.isclose(found.cost, PROBLEM.value(good), rtol=1e-12) and progress == [1.0]


def test_several_searches_are_no_worse_than_one() -> None:
    one = search(PROBLEM, [_policy(3.0)], [], evaluations=6)
    several = search(PROBLEM, [_policy(3.0)], [_policy(-0.5), _policy()], evaluations=6)
    assert several.cost <= one.cost


def test_a_judge_decides_whatever_moments_say() -> None:
    good = improve(_policy(), PROBLEM, evaluations=30).policy
    for liked in (good, _policy(3.0)):
        seen: list[int] = []

        def judge(policies: Sequence[Policy], liked: Policy = liked, seen: list[int] = seen) -> list[list[float]]:
            seen.append(len(policies))
            return [[0.0, 1.0] if policy is liked else [1.0, 2.0] for policy in policies]

        found = search(PROBLEM, [_policy()], [], evaluations=2, refined=[good, _policy(3.0), liked], judge=judge)
        assert found.policy is liked and found.cost == PROBLEM.value(liked)
        assert seen == [4, 1], "the winner is improved, and judged again"


@pytest.mark.parametrize(("failing", "worth", "calls", "taken"), [(0, 0.1, 2, 0), (1, 0.1, 3, 1), (1, 0.9, 3, 0)])
def test_a_policy_that_fails_now_and_then_is_challenged(failing: int, worth: float, calls: int, taken: int) -> None:
    """By the refined fresh one, which is taken if it costs less. A policy that never fails is left alone."""
    low = 0.2 * PROBLEM.worst
    asked: list[Sequence[Policy]] = []

    def judge(policies: Sequence[Policy]) -> np.ndarray:
        asked.append(policies)
        best = [low] * 3 + [low * (1 + failing)]
        if len(asked) == 1:  # the earlier policy, the fresh one, the earlier one widened
            return np.array([best, [2 * low] * 4, [2 * low] * 4])
        if len(asked) == 2:
            return np.array([best])
        return np.array([[2 * worth * low] * 4])

    found = search(PROBLEM, [_policy()], [_policy(-0.5)], evaluations=2, split_evaluations=2, judge=judge)
    assert len(asked) == calls
    refined = [policies[0] for policies in asked[1:]]
    assert found.policy is refined[taken]


@pytest.mark.parametrize(
    ("share", "loss", "calls", "kept"),
    [(0.9, 0.0, 1, False), (0.3, 0.0, 2, True), (0.3, 0.4, 2, True), (0.3, 0.6, 2, False)],
)
def test_a_refined_policy_is_kept_unless_it_is_clearly_worse(share: float, loss: float, calls: int, kept: bool) -> None:
    """Clearly: by more than the standard error of the difference. Where nothing leads to the goal none is refined."""
    asked: list[int] = []

    def judge(policies: Sequence[Policy]) -> np.ndarray:
        asked.append(len(policies))
        away = np.array([-1.0, 1.0, -1.0, 1.0]) if len(asked) > 1 else np.zeros(4)
        return np.tile(share * PROBLEM.worst + (away + loss) / 2 * (len(asked) > 1), (len(policies), 1))

    first = _policy(0.3)
    found = search(PROBLEM, [first], [], evaluations=1, split_evaluations=6, refined=[first], judge=judge)
    assert asked == [2, 1][:calls]
    same = all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(found.policy), jax.tree.leaves(first), strict=True))
    assert same is not kept
    # Refined or not, what is returned is predicted from a split first state.
    assert found.problem.components is not None
    assert np.isclose(found.cost, found.problem.value(found.policy), rtol=1e-12)


def test_widened_cost_has_a_gradient_where_the_narrow_one_has_none() -> None:
    state = jnp.array([3.0, 0.0])
    assert 1 - TASK.cost(state) < 1e-12 < 1e-3 < 1 - TASK.cost.widened(3.0)(state)


def test_diverging_prediction_costs_one_per_step_and_keeps_finite_gradients() -> None:
    """An unstable model: after a few steps the prediction has left every plausible range."""
    gp = RUN.dynamics.gp
    unstable = eqx.tree_at(lambda d: d.gp.slope, RUN.dynamics, gp.slope.at[0, 0].set(50.0))
    problem = PROBLEM._replace(predictor=MostLikely(), dynamics=unstable)
    value, gradient = problem.value_and_gradient(_policy())
    assert TASK.steps * 0.8 < float(value) <= TASK.steps + 1
    assert np.isfinite(np.asarray(gradient.offset)).all()
    filtered = float(problem._replace(predictor=Filtered()).value(_policy()))
    assert TASK.steps * 0.8 < filtered <= TASK.steps + 1


class _Vanishing(Objective):
    """Not finite when the last action is pushed above 0.3."""

    averages: ClassVar[bool] = True

    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        return prediction.total_cost + jnp.where(prediction.action_mean[-1, 0] > 0.3, jnp.nan, 0.0)


def test_a_policy_whose_prediction_is_not_finite_keeps_its_place_at_the_worst_cost() -> None:
    calls: list[tuple[int, float]] = []
    problem = PROBLEM._replace(objective=_Vanishing())
    policy = LinearPolicy([[0.0, 0.0]], [1.0], TASK.policy_features, TASK.action_limits)
    found = improve(policy, problem, evaluations=5, on_evaluation=lambda *call: calls.append(call))
    assert found.stopped is Reason.NOT_FINITE and found.evaluations == 1
    assert found.cost == problem.worst == TASK.steps + 1 and calls == [(1, found.cost)]
    assert found.policy is policy and np.array_equal(found.curvature, np.eye(4))
    other = improve(_policy(), problem, evaluations=5).cost
    assert search(problem, [policy, _policy()], [], evaluations=5).cost <= other, "it does not spoil the search"


def test_a_search_turns_back_where_predictions_are_not_finite() -> None:
    """From a finite policy the search has to pass the forbidden ones, and ends at a finite policy that is better."""
    problem = PROBLEM._replace(objective=_Vanishing())
    found = improve(_policy(), problem, evaluations=30)
    assert np.isfinite(found.history).all() and found.cost < problem.value(_policy())
    assert np.isclose(found.cost, problem.value(found.policy), rtol=1e-12)


def test_nothing_to_start_from() -> None:
    with pytest.raises(ValueError, match="policy to start from"):
        search(PROBLEM, [], [])
    with pytest.raises(ValueError, match=r"at least one evaluation; given 0"):
        improve(_policy(), PROBLEM, evaluations=0)


def test_further_starts_count_with_their_weights() -> None:
    """J is the weighted mean over all starts, and so is its gradient; the prediction is from the first alone."""
    pushed = Gaussian(PROBLEM.initial.mean + 1.0, 2.0 * PROBLEM.initial.cov)
    policy, split = _policy(0.3), PROBLEM.split()
    joint = split.also_from([(0.3, pushed)])
    (rest, own), (weight, other) = joint.weighted()
    assert np.isclose(rest, 0.7) and weight == 0.3
    assert other.components is not None and split.components is not None
    assert len(other.components) * 2 == len(split.components)
    expected = 0.7 * split.value(policy) + 0.3 * other.value(policy)
    assert np.isclose(joint.value(policy), expected, rtol=1e-12)
    value, gradient = joint.value_and_gradient(policy)
    assert np.isclose(float(value), expected, rtol=1e-12)
    apart = [problem.value_and_gradient(policy)[1] for problem in (own, other)]
    mixed = jax.tree.map(lambda one, two: 0.7 * one + 0.3 * two, *apart)
    for found, wanted in zip(jax.tree.leaves(gradient), jax.tree.leaves(mixed), strict=True):
        assert np.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert np.array_equal(joint.prediction(policy).state_mean[0], split.prediction(policy).state_mean[0])


@pytest.mark.parametrize("kept", [True, False])
def test_a_policy_that_recovers_is_kept_if_it_is_better_over_all_starts(kept: bool) -> None:
    first = improve(_policy(), PROBLEM, evaluations=20).policy
    pushed = Gaussian(PROBLEM.initial.mean + 1.0, PROBLEM.initial.cov)

    def judge(policies: Sequence[Policy]) -> list[list[float]]:
        return [[1.0], [0.5 if kept else 1.5]]

    plain = search(PROBLEM, [first], [], evaluations=2, split_evaluations=3)
    recovery = Recovery([(0.4, pushed)], judge)
    found = search(PROBLEM, [first], [], evaluations=2, split_evaluations=3, recovery=recovery)
    same = jax.tree.all(jax.tree.map(np.array_equal, plain.policy, found.policy))
    assert same is not kept
    assert not found.problem.others, "what is predicted is from where episodes begin"
    assert np.isclose(found.cost, found.problem.value(found.policy), rtol=1e-12)
