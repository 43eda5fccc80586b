"""Objectives: what they come to, their gradients, and a second one through the same door."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bayespilco.control.objective import OBJECTIVES, ExpectedCost, Objective
from bayespilco.control.prediction import Filtered, Prediction
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


@pytest.mark.parametrize("objective", [ExpectedCost(), ExpectedCost(0.8), WithSpread()], ids=str)
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
    assert {name: entry.value for name, entry in OBJECTIVES.items()} == {"expected-cost": ExpectedCost}
    assert OBJECTIVES["expected-cost"].description.startswith("The sum of the expected costs")
    with pytest.raises(TypeError):
        Objective()  # type: ignore[abstract]
