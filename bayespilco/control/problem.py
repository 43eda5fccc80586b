"""What a policy should be good at: a problem gives every policy a value, and the exact gradient of it.

A model of the plant, a way to predict, a first state, a cost and an objective make up a problem. Policy search
(`search`) needs nothing else.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.control.cost import Cost
from bayespilco.control.limits import Bounds
from bayespilco.control.objective import ExpectedCost, Objective
from bayespilco.control.policy import Policy
from bayespilco.control.prediction import Prediction, Predictor, predict, predict_split, refuse_clock
from bayespilco.core.compilation import compiled
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.parallel import SERIAL, Mapper
from bayespilco.core.precision import as_float64, float64
from bayespilco.model.bursts import PATHS
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.splitting import PER_DIMENSION, points_for, standard_points


class Problem(NamedTuple):
    """What a policy should be good at."""

    predictor: Predictor
    dynamics: Dynamics
    initial: Gaussian
    """The distribution of the first state."""
    cost: Cost
    steps: int
    objective: Objective = ExpectedCost()
    components: Float[Array, "components state"] | None = None
    """The components that the first state is split into (`splitting.standard_points`); None: it is not split."""
    again: Float[Array, "components state"] | None = None
    """Those that each component is split into once more, half-way; None: it is not. Such a value has no gradient."""
    limits: tuple[Bounds, ...] = ()
    """What rows of the state must not exceed, for an objective that asks for it."""
    others: "tuple[tuple[float, Problem], ...]" = ()
    """Further problems, each with its weight, such as the same one from another first state. The value of a policy is
    the weighted mean over all; this one has the weight that is left."""
    lost: Bool[Array, "paths times"] | None = None
    """Drawn patterns of bursts, if the sensors have them (`drawn`); with components, one for each."""

    @property
    def worst(self) -> float:
        """The highest total cost there can be."""
        return float(self.cost.worst) * (self.steps + 1)

    @property
    def rejected(self) -> float:
        """The objective of a policy whose prediction is not finite: as bad as can be."""
        return self.worst + self.objective.surcharge

    def split(self, number: int = 0) -> "Problem":
        """The same problem, predicted from a split first state, if the predictor can do that.

        Args:
            number: There are many ways to split a Gaussian; they are numbered. So are patterns of bursts.
        """
        if not self.predictor.can_split:
            return self
        return self._replace(components=as_float64(points_for(np.asarray(self.initial.cov), number))).drawn(number)

    def split_again(self, number: int = 0) -> "Problem":
        """The same split problem, but each of its components is split once more, half-way. A problem that is not split
        stays as it is.

        Args:
            number: Which of the many ways to split.
        """
        if self.components is None:
            return self
        size = self.components.shape[1]
        return self._replace(again=as_float64(standard_points(size, number, PER_DIMENSION // 2)))

    def drawn(self, number: int = 0) -> "Problem":
        """The same problem with patterns of bursts, if the sensors have bursts and the predictor a filter.

        Each component has a pattern. Where there are fewer components than `PATHS`, they are repeated.

        Args:
            number: Which ones. For the same number they are the same.
        """
        chain = self.dynamics.sensors.bursts
        if chain is None or not self.predictor.predicts_beliefs:
            return self._replace(lost=None)
        components, count = self.components, PATHS
        if components is not None:
            components = jnp.tile(components, (max(-(-PATHS // len(components)), 1), 1))
            count = len(components)
        return self._replace(components=components, lost=jnp.asarray(chain.paths(self.steps + 1, count, number)))

    @float64
    def also_from(self, starts: "Sequence[tuple[float, Gaussian]]", number: int = 0) -> "Problem":
        """The same problem, but policies have to cope with these starts as well, each with its weight.

        Their predictions are split as well, into half as many components: they count less.
        """
        others = []
        for weight, initial in starts:
            points = points_for(np.asarray(initial.cov), number, PER_DIMENSION // 2)
            components = as_float64(points) if self.predictor.can_split else None
            other = self._replace(initial=initial, components=components, others=())
            others.append((weight, other.drawn(number)))
        return self._replace(others=tuple(others))

    def widened(self, factor: float) -> "Problem":
        """The same problem with a wider cost, which is easier to search."""
        return self._replace(cost=self.cost.widened(factor))

    @float64
    def value(self, policy: Policy) -> float:
        """The objective of a policy: by default its predicted total cost J. Where it is not finite: the worst."""
        if self.others:
            return sum(weight * problem.value(policy) for weight, problem in self.weighted())
        value = float(self.objective(self.prediction(policy)))
        return value if math.isfinite(value) else self.rejected

    @float64
    def prediction(self, policy: Policy) -> Prediction:
        """How a policy will do, step by step, from this problem's own first state."""
        refuse_clock(self.predictor, policy, self.lost)
        return _prediction(policy, self)

    @float64
    def value_and_gradient(self, policy: Policy, workers: Mapper = SERIAL) -> tuple[Float[Array, ""], Policy]:
        """J and its exact gradient, a policy-shaped tree (Appendix C, by automatic differentiation)."""
        if self.again is not None:
            raise ValueError("A prediction that splits again half-way has no gradient: search on one that does not.")
        for _, problem in self.weighted():
            refuse_clock(problem.predictor, policy, problem.lost)
        weights, problems = zip(*self.pieces(), strict=True)
        return _weighted(weights, workers.map(_solve, [(policy, problem) for problem in problems]))

    def weighted(self) -> "list[tuple[float, Problem]]":
        """This problem without the others, and the others, with their weights."""
        rest = 1 - sum(weight for weight, _ in self.others)
        return [(rest, self._replace(others=())), *self.others]

    def pieces(self) -> "list[tuple[float, Problem]]":
        """Problems that can be solved apart, with their weights: J is the weighted sum of theirs."""
        found = []
        for weight, problem in self.weighted():
            halves = problem.halves()
            found += [(weight / len(halves), half) for half in halves]
        return found

    @float64
    def halves(self) -> "list[Problem]":
        """Problems that can be solved apart: J is the mean of theirs.

        They do not depend on the number of workers, so neither does the result.
        """
        parts = {name: part for name in ("components", "lost") if (part := getattr(self, name)) is not None}
        if not parts or not self.objective.averages:
            return [self]
        halves = zip(*(jnp.split(part, 2) for part in parts.values()), strict=True)
        return [self._replace(**dict(zip(parts, half, strict=True))) for half in halves]


def _solve(policy_and_problem: tuple[Policy, Problem]) -> tuple[Float[Array, ""], Policy]:
    return _value_and_gradient(*policy_and_problem)


def _weighted(
    weights: Sequence[float], values_and_gradients: Sequence[tuple[Float[Array, ""], Policy]]
) -> tuple[Float[Array, ""], Policy]:
    """The weighted sum of the values, and of the gradients."""
    if len(values_and_gradients) == 1:
        return values_and_gradients[0]

    def total(*each: Array) -> Array:
        return sum((weight * one for weight, one in zip(weights, each, strict=True)), jnp.zeros(()))

    value, gradient = jax.tree.map(total, *values_and_gradients)
    return value, gradient


# Compiled once per predictor, policy kind and number of points; episodes change only the numbers inside.
@compiled
def _prediction(policy: Policy, problem: Problem) -> Prediction:
    given = problem.predictor, policy, problem.dynamics, problem.initial, problem.cost, problem.steps
    asked: dict[str, Any] = {
        "limits": problem.limits,
        "between_steps": problem.objective.between_steps,
        "lost": problem.lost,
    }
    if problem.components is None:
        return predict(*given, **asked)
    return predict_split(*given, problem.components, again=problem.again, **asked)


@compiled
@eqx.filter_value_and_grad
def _value_and_gradient(policy: Policy, problem: Problem) -> Float[Array, ""]:
    return problem.objective(_prediction(policy, problem))
