"""Objectives: what they come to, their gradients, and a second one through the same door."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bayespilco.control.objective import (
    OBJECTIVES,
    ConfidenceBound,
    ExpectedCost,
    ExpectedImprovement,
    Objective,
    ProbabilityOfImprovement,
    WithinLimits,
    log_ramp,
    total_variance,
)
from bayespilco.control.policy import LinearPolicy
from bayespilco.control.prediction import Filtered, MostLikely, Prediction
from bayespilco.control.problem import Problem
from bayespilco.control.search import improve
from tests.small_run import small_run

RUN = small_run(1)
TASK = RUN.task
PROBLEM = Problem(Filtered(), RUN.dynamics, TASK.initial, TASK.cost, TASK.steps)


class WithSpread(Objective):
    """The expected cost plus the root of the sum of the variances: not an average over a mixture."""

    averages: ClassVar[bool] = False

    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        return prediction.total_cost + jnp.sqrt(jnp.sum(prediction.cost_variance))


def test_the_default_is_the_total_cost_to_the_bit() -> None:
    predicted = PROBLEM.prediction(RUN.policy)
    assert float(PROBLEM.objective(predicted)) == float(predicted.total_cost) == PROBLEM.value(RUN.policy)
    assert float(predicted.total_cost) == float(jnp.sum(predicted.cost_mean))


def test_a_discount_weighs_later_steps_less() -> None:
    costs = np.asarray(PROBLEM.prediction(RUN.policy).cost_mean)
    by_hand = sum(0.9**t * cost for t, cost in enumerate(costs))
    problem = PROBLEM._replace(objective=ExpectedCost(0.9))
    assert np.isclose(problem.value(RUN.policy), by_hand, rtol=1e-13)
    value, _ = problem.value_and_gradient(RUN.policy)
    assert np.isclose(value, by_hand, rtol=1e-13)
    nearly = PROBLEM._replace(objective=ExpectedCost(1 - 1e-9)).value(RUN.policy)
    assert np.isclose(nearly, PROBLEM.value(RUN.policy), rtol=1e-7)


@pytest.mark.parametrize(
    "objective", [ExpectedCost(), ExpectedCost(0.8), WithSpread(), ConfidenceBound(0.9, 1.5)], ids=str
)
@pytest.mark.parametrize("split", [False, True])
def test_gradients_are_exact(objective: Objective, split: bool) -> None:
    problem = PROBLEM._replace(objective=objective)
    problem = problem.split() if split else problem
    value, gradient = problem.value_and_gradient(RUN.policy)
    assert np.isclose(value, problem.value(RUN.policy), rtol=1e-12), "value and gradient are of one function"
    flat, unravel = ravel_pytree(RUN.policy)
    direction, step = jax.random.normal(jax.random.key(0), flat.shape).at[-1].set(0.0), 1e-4  # the limit stays
    ahead, behind = (problem.value(unravel(flat + sign * step * direction)) for sign in (1, -1))
    assert np.isclose(ravel_pytree(gradient)[0] @ direction, (ahead - behind) / (2 * step), rtol=2e-6)


def test_only_an_objective_that_averages_is_computed_in_halves() -> None:
    assert len(PROBLEM.split().halves()) == 2 and len(PROBLEM.halves()) == 1
    assert len(PROBLEM.split()._replace(objective=WithSpread()).halves()) == 1
    halves = PROBLEM.split().halves()
    assert np.isclose(np.mean([half.value(RUN.policy) for half in halves]), PROBLEM.split().value(RUN.policy))


def test_a_search_minimises_the_objective_it_is_given() -> None:
    discounted = PROBLEM._replace(objective=ExpectedCost(0.7))
    found = improve(RUN.policy, discounted, evaluations=10)
    assert np.isclose(found.cost, discounted.value(found.policy), rtol=1e-12)
    assert found.cost < discounted.value(RUN.policy) < PROBLEM.value(RUN.policy)


@pytest.mark.parametrize("discount", [0.0, -0.5, 1.01, float("nan")])
def test_a_discount_is_a_share(discount: float) -> None:
    with pytest.raises(ValueError, match="discount must be above 0 and at most 1"):
        ExpectedCost(discount)


def test_objectives_are_registered_and_abstract_or_final() -> None:
    assert {name: entry.value for name, entry in OBJECTIVES.items()} == {
        "expected-cost": ExpectedCost,
        "confidence-bound": ConfidenceBound,
        "probability-of-improvement": ProbabilityOfImprovement,
        "expected-improvement": ExpectedImprovement,
    }
    assert OBJECTIVES["expected-cost"].description.startswith("The sum of the expected costs")
    with pytest.raises(TypeError):
        Objective()  # type: ignore[abstract]


def test_a_bound_is_the_mean_less_deviations_of_the_total() -> None:
    problem = PROBLEM._replace(objective=ConfidenceBound(kappa=2.0))
    predicted = problem.prediction(RUN.policy)
    expected = float(predicted.total_cost) - 2 * np.sqrt(float(total_variance(predicted)))
    assert np.isclose(problem.value(RUN.policy), expected, rtol=1e-12)
    averse = problem._replace(objective=ConfidenceBound(kappa=-2.0))
    assert averse.value(RUN.policy) > PROBLEM.value(RUN.policy) > problem.value(RUN.policy)
    assert problem.rejected == problem.worst and averse.rejected == np.inf
    neutral = problem._replace(objective=ConfidenceBound(kappa=0.0))
    assert np.isclose(neutral.value(RUN.policy), PROBLEM.value(RUN.policy), rtol=1e-12)
    limited = WithinLimits(ConfidenceBound(), 0.01, 1.0, 20)
    assert limited.between_steps and not WithinLimits(ExpectedCost(), 0.01, 1.0, 20).between_steps
    with pytest.raises(ValueError, match="kappa must be a finite number"):
        ConfidenceBound(kappa=float("nan"))


def test_improvements_are_those_of_a_normal_total() -> None:
    rng = np.random.default_rng(0)
    totals = 12 + 3 * rng.normal(size=400_000)
    gain, std = jnp.asarray(10.0 - 12.0), jnp.asarray(3.0)
    probability = np.exp(float(ProbabilityOfImprovement(best=10.0).log_of(gain, std)))
    assert abs(probability - np.mean(totals < 10)) < 5 * np.sqrt(probability / len(totals))
    less = np.maximum(10 - totals, 0)
    expected = np.exp(float(ExpectedImprovement(best=10.0).log_of(gain, std)))
    assert abs(expected - less.mean()) < 5 * less.std() / np.sqrt(len(totals))


def _log_ramp_by_hand(z: float) -> float:
    a = abs(z)
    log_density = -(a**2) / 2 - np.log(2 * np.pi) / 2
    ratio = np.sqrt(np.pi / 2) * scipy.special.erfcx(a / np.sqrt(2))  # of the tail to the density
    rest = 1 - a * ratio if a < 25 else a**-2.0 - 3 * a**-4.0 + 15 * a**-6.0
    return float(log_density + np.log(rest) if z < 0 else np.log(z + np.exp(log_density) * rest))


def test_the_logarithm_of_a_hopeless_improvement_is_right_and_has_a_slope() -> None:
    z = np.array([-300.0, -50.0, -20.001, -19.999, -5.0, -1.0, -1e-9, 1e-9, 2.0, 30.0])
    expected = [_log_ramp_by_hand(each) for each in z]
    found, slope = jax.vmap(jax.value_and_grad(log_ramp))(jnp.asarray(z))
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)
    assert (np.asarray(slope) > 0).all() and np.isfinite(np.asarray(slope)).all()
    np.testing.assert_allclose(slope[0], 300, rtol=1e-4)


def test_a_search_improves_on_the_best_also_where_nothing_varies() -> None:
    """The most likely trajectory, on which a search begins, has no variance: then less cost is more improvement."""
    at_random = LinearPolicy(jnp.array([[0.2, 0.1]]), jnp.array([0.1]), TASK.policy_features, [2.0])
    objective = ExpectedImprovement(best=PROBLEM.value(RUN.policy))
    easy = PROBLEM._replace(predictor=MostLikely(), objective=objective)
    found = improve(at_random, easy, evaluations=15)
    plain = PROBLEM._replace(predictor=MostLikely())
    assert plain.value(found.policy) < plain.value(at_random)
    assert np.isfinite(found.cost) and easy.rejected == np.inf
    nothing_yet = PROBLEM._replace(objective=ExpectedImprovement())
    assert nothing_yet.value(RUN.policy) == PROBLEM.value(RUN.policy) and not nothing_yet.objective.between_steps
