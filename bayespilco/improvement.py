"""Policy search: down the exact gradient of the predicted total cost, with a budget, and out of local optima.

BFGS finds the bottom of the valley it starts in. With a narrow cost and the plant far from its goal most valleys are
bad ones: almost every gradient vanishes. So a search may start in a wider version of the problem, whose valleys are
few, and narrow it down; and several searches may start from different policies, and the best by prediction is kept.
At the end the search goes on with predictions in parts, which cost many times as much and are much truer.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bayespilco.compilation import compiled
from bayespilco.cost import SaturatingCost
from bayespilco.crew import ALONE, Crew
from bayespilco.dynamics import Dynamics
from bayespilco.gaussian import Gaussian
from bayespilco.parts import standard_points
from bayespilco.policy import Policy
from bayespilco.precision import as_float64, float64
from bayespilco.prediction import MostLikely, Prediction, Predictor, can_be_cut, predict, predict_in_parts

LINE_SEARCH_LIMIT = 20
"""Evaluations that one line search may take (as in the original programs)."""


class Problem(NamedTuple):
    """What a policy is to be good at: a model, predicted in one way, from a first state, at a cost."""

    predictor: Predictor
    dynamics: Dynamics
    initial: Gaussian
    cost: SaturatingCost
    steps: int
    parts: Float[Array, "parts state"] | None = None
    """Which parts the first state is predicted from (`parts.standard_points`); None: from the whole."""

    def cut(self, way: int = 0) -> "Problem":
        """The same in parts, if it can be cut."""
        if not can_be_cut(self.predictor):
            return self
        return self._replace(parts=as_float64(standard_points(self.initial.size, way)))

    def widened(self, factor: float) -> "Problem":
        return self._replace(cost=self.cost.widened(factor))

    @float64
    def value(self, policy: Policy) -> float:
        """The predicted total cost J of a policy."""
        return float(self.prediction(policy).total_cost)

    @float64
    def prediction(self, policy: Policy) -> Prediction:
        """How a policy will do, step by step."""
        return _prediction(policy, self)

    @float64
    def value_and_gradient(self, policy: Policy, crew: Crew = ALONE) -> tuple[Float[Array, ""], Policy]:
        """J and its exact gradient, a policy-shaped tree (Appendix C, by automatic differentiation)."""
        return _mean(crew.map(_solve_share, [(policy, share) for share in self.shares()]))

    @float64
    def shares(self) -> "list[Problem]":
        """Problems that can be solved apart: J is the mean of theirs. Always the same ones, whoever solves them."""
        if self.parts is None:
            return [self]
        return [self._replace(parts=some) for some in jnp.split(self.parts, 2)]


def _solve_share(share: tuple[Policy, Problem]) -> tuple[Float[Array, ""], Policy]:
    return _value_and_gradient(*share)


def _mean(values_and_gradients: Sequence[tuple[Float[Array, ""], Policy]]) -> tuple[Float[Array, ""], Policy]:
    """The mean of the values, and of the gradients."""
    if len(values_and_gradients) == 1:
        return values_and_gradients[0]
    return jax.tree.map(lambda *each: sum(each) / len(each), *values_and_gradients)


# Compiled once per predictor, policy kind and number of points; episodes change only the numbers inside.
@compiled
def _prediction(policy: Policy, problem: Problem) -> Prediction:
    predictor, dynamics, initial, cost, steps, parts = problem
    if parts is None:
        return predict(predictor, policy, dynamics, initial, cost, steps)
    return predict_in_parts(predictor, policy, dynamics, initial, cost, steps, parts)


@compiled
@eqx.filter_value_and_grad
def _value_and_gradient(policy: Policy, problem: Problem) -> Float[Array, ""]:
    return _prediction(policy, problem).total_cost


class Improvement(eqx.Module):
    """The result of a search, and why it ended."""

    policy: Policy
    problem: Problem
    """What it is good at, as far as the search came."""
    cost: float
    evaluations: int
    stopped: str
    history: Float[np.ndarray, " evaluations"]
    """The best predicted cost after each evaluation."""
    curvature: Float[np.ndarray, "parameters parameters"]
    """BFGS's estimate of the inverse Hessian at the end: a search of a similar problem need not begin without one."""


class _Stop(Exception):
    """Ends a search from inside its objective: SciPy's own limits overshoot."""


@float64
def improve(
    policy: Policy,
    problem: Problem,
    *,
    evaluations: int = 300,
    curvature: Float[np.ndarray, "parameters parameters"] | None = None,
    crew: Crew = ALONE,
    on_evaluation: Callable[[int, float], None] | None = None,
) -> Improvement:
    """Improve a policy with BFGS, with at most `evaluations` values and gradients (Algorithm 1, line 8).

    The best policy seen is returned, not the last, and the budget is kept to the letter. A policy for which the
    prediction has no finite value counts as the worst there is. `curvature` is that of an earlier `Improvement`.
    """
    if evaluations < 1:
        raise ValueError(f"A policy search needs at least one evaluation; given {evaluations}.")
    flat, unravel = ravel_pytree(policy)
    best = (np.inf, np.asarray(flat))
    history: list[float] = []
    estimate = _Curvature(np.asarray(flat), curvature)

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        if len(history) >= evaluations:
            raise _Stop(f"the budget of {evaluations} evaluations is used up")
        if len(estimate.tried) >= LINE_SEARCH_LIMIT:
            raise _Stop(f"a line search took more than {LINE_SEARCH_LIMIT} evaluations: no further descent")
        predicted, slope = problem.value_and_gradient(unravel(jnp.asarray(parameters)), crew)
        value, gradient = float(predicted), np.asarray(ravel_pytree(slope)[0])
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            value, gradient = float(problem.steps + 1), np.zeros_like(parameters)
        if value < best[0]:
            best = (value, np.array(parameters))
        estimate.tried.append((np.array(parameters), gradient))
        history.append(best[0])
        if on_evaluation is not None:
            on_evaluation(len(history), best[0])
        return value, gradient

    try:
        result = scipy.optimize.minimize(
            objective,
            np.asarray(flat),
            jac=True,
            method="BFGS",
            callback=estimate.accept,
            options={"gtol": 1e-4, "hess_inv0": curvature},
        )
        stopped = "the gradient vanished" if result.success else "no further descent along the gradient"
    except _Stop as reason:
        stopped = str(reason)
    return Improvement(
        unravel(jnp.asarray(best[1])), problem, best[0], len(history), stopped, np.asarray(history), estimate.positive
    )


class _Curvature:
    """The inverse Hessian as BFGS sees it. SciPy keeps its own, but tells it only if it ends of its own accord."""

    def __init__(self, start: np.ndarray, inverse: np.ndarray | None) -> None:
        self.inverse = np.eye(len(start)) if inverse is None else inverse
        self.tried: list[tuple[np.ndarray, np.ndarray]] = []
        """Points and gradients of the current line search."""
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def positive(self) -> np.ndarray:
        """The estimate, symmetric to the bit, and without what rounding has made of its smallest eigenvalues."""
        values, vectors = np.linalg.eigh(self.inverse)
        inverse = (vectors * np.maximum(values, 1e-9 * values[-1])) @ vectors.T
        return (inverse + inverse.T) / 2

    def accept(self, x: np.ndarray) -> None:
        """A line search has ended at a point that it tried."""
        here = next(pair for pair in reversed(self.tried) if np.array_equal(pair[0], x))
        before = self.tried[0] if self._last is None else self._last
        step, change = here[0] - before[0], here[1] - before[1]
        self._last = here
        self.tried.clear()
        if (along := step @ change) > 0:
            turned = self.inverse @ change
            mixed = np.outer(step, turned)
            self.inverse = (
                self.inverse + ((1 + change @ turned / along) * np.outer(step, step) - mixed - mixed.T) / along
            )


CUTS = 3
"""In how many ways the first state is cut, one after the other."""

WIDE = 3.0
"""How much wider the cost of the wider problem is: about 0.3 m instead of 0.1 m on the cart-pole."""


@float64
def search(
    problem: Problem,
    earlier: Sequence[Policy],
    fresh: Sequence[Policy],
    *,
    evaluations: int = 150,
    in_parts: int = 0,
    made_in_parts: Sequence[Policy] = (),
    crew: Crew = ALONE,
    on_progress: Callable[[float, float], None] | None = None,
) -> Improvement:
    """The best of several searches: from the best earlier policy, from a random one, and from the last one widened.

    - An earlier policy is improved as it is. It is the one that the new model, not the old, thinks best of.
    - Random policies are first improved in the wide problem along the most likely trajectory, which takes
      milliseconds per evaluation; the most promising one goes on with the full prediction, wide and then narrow.
    - The latest policy is widened and narrowed again, which may carry it over into a better valley.

    Without `fresh` policies only the first is done. Then, if it is asked for and can be done, the best goes on with
    predictions in parts, cut in one way after the other; or one of `made_in_parts`, the earlier policies that were
    made for them, if it comes further. `cost` and `problem` of the result are the last one's.

    `evaluations` is the budget of each search in the narrow problem; in the wide one it is a third of that, and in
    each way of cutting it is `in_parts`. `on_progress` is called with the fraction done and the best cost so far.
    """
    if not earlier and not fresh:
        raise ValueError("A policy search needs a policy to start from: give `earlier` or `fresh` ones.")
    wide, third = problem.widened(WIDE), max(evaluations // 3, 1)
    starts: list[_Descent] = []
    if earlier:
        starts.append(_Descent(min(earlier, key=problem.value), [(problem, evaluations)]))
    if fresh:
        easy = wide._replace(predictor=MostLikely())
        begun = crew.map(_descend, [_Descent(policy, [(easy, evaluations)]) for policy in fresh])
        best_begun = min((each.policy for each in begun), key=wide.value)
        starts.append(_Descent(best_begun, [(wide, third), (problem, evaluations)]))
        if earlier:
            starts.append(_Descent(earlier[-1], [(wide, third), (problem, evaluations)]))
    cuts = [problem.cut(way) for way in range(CUTS)] if in_parts and can_be_cut(problem.predictor) else []
    lowest, stages, over = np.inf, len(starts) + len(cuts), 0

    def report(count: int, cost: float, budget: int = evaluations) -> None:
        nonlocal lowest
        lowest = min(lowest, cost)
        if on_progress is not None:
            on_progress(min((over + count / budget) / stages, 1.0), lowest)

    def watched(descent: _Descent) -> Improvement:
        nonlocal over
        found = _descend(descent, report)
        over += 1
        return found

    best = min(crew.map(_descend, starts, watched), key=lambda each: each.cost)
    if not cuts:
        return best
    over = len(starts)
    goes_on = [best.policy]
    if made_in_parts and cuts[0].value(made := min(made_in_parts, key=cuts[0].value)) < cuts[0].value(best.policy):
        goes_on.append(made)
    # What is worse in parts at first may soon be better: who comes further on the first cut is seen by trying. Only
    # those made in parts may try, as a few evaluations tell too little about any other: it may be good in parts by
    # doing little, and have nowhere to go from there.
    # BFGS goes on with what it knows of the curvature: else a third of so few evaluations finds out how far to step.
    if len(goes_on) > 1:
        tries = [_Descent(each, [(cuts[0], in_parts)], best.curvature) for each in goes_on]
        best = min(crew.map(_descend, tries), key=lambda each: each.cost)
        cuts, over = cuts[1:], over + 1
    for cut in cuts:
        best = improve(
            best.policy,
            cut,
            evaluations=in_parts,
            curvature=best.curvature,
            crew=crew,
            on_evaluation=lambda n, J: report(n, J, in_parts),
        )
        over += 1
    return best


class _Descent(NamedTuple):
    """Problems to improve a policy on, one after the other, and how long each."""

    policy: Policy
    stages: list[tuple[Problem, int]]
    curvature: Float[np.ndarray, "parameters parameters"] | None = None
    """For the last stage."""


def _descend(descent: _Descent, on_evaluation: Callable[[int, float], None] | None = None) -> Improvement:
    """Through all stages. The last one is watched."""
    policy, stages, curvature = descent
    for problem, evaluations in stages[:-1]:
        policy = improve(policy, problem, evaluations=evaluations).policy
    problem, evaluations = stages[-1]
    return improve(policy, problem, evaluations=evaluations, curvature=curvature, on_evaluation=on_evaluation)
