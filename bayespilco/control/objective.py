"""Objectives: from a prediction to the number that policy search minimises.

The paper minimises the expected total cost. Another objective (of risk, of exploration) is another class in this file:
`Prediction` keeps the beliefs, actions and costs of every step for it. `WithinLimits` goes around any of them.
"""

import abc
from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco import settings
from bayespilco.control.prediction import Prediction
from bayespilco.core.precision import float64
from bayespilco.core.registry import Registry


class Objective(eqx.Module):
    """What policy search minimises. It has to be differentiable by the prediction."""

    averages: eqx.AbstractClassVar[bool]
    """Whether the objective of a mixture of predictions is the mean of their objectives. If so, a split prediction can
    be computed in several processes."""

    @property
    def surcharge(self) -> float:
        """The most that it can add to the total cost."""
        return 0.0

    @abc.abstractmethod
    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        """The number to minimise."""


OBJECTIVES: Registry[type[Objective]] = settings.OBJECTIVES
"""What policy search may minimise, by name: classes that take the task's discount."""


@OBJECTIVES.register("expected-cost")
@final
class ExpectedCost(Objective):
    """The sum of the expected costs over all steps, each later step discounted once more.

    It is the paper's J: `sum_t discount^t E[cost_t]`, the first state's cost included. With the default discount of 1
    it is `Prediction.total_cost`.
    """

    averages: ClassVar[bool] = True
    discount: float = eqx.field(static=True, default=1.0, converter=float)
    """Between 0 and 1. What comes later counts less, by this factor per step."""

    def __check_init__(self) -> None:
        if not 0 < self.discount <= 1:
            raise ValueError(f"discount must be above 0 and at most 1 (no discount); given {self.discount}.")

    @float64
    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        if self.discount == 1.0:
            return prediction.total_cost
        return jnp.sum(self.discount ** jnp.arange(prediction.cost_mean.shape[0]) * prediction.cost_mean)


SMOOTHING = 0.5
"""How gradually the penalty of limits begins, in factors of e of the probability."""
NEGLIGIBLE = 1e-3
"""Probabilities below this share of the allowed one count alike."""


@final
class WithinLimits(Objective):
    """Another objective, plus a penalty where a run is more likely to exceed a limit than allowed: a chance constraint.

    `P` is the sum over steps of the probabilities that a state is beyond a limit (`limits`), which is at least the
    probability that a run ever is. The penalty is `weight log(P / allowed)` above the allowed probability and, but for
    a smooth transition, zero below it. On the logarithm it pulls as strongly at 1 % as at 10 %.
    """

    averages: ClassVar[bool] = False
    objective: Objective
    allowed: float = eqx.field(static=True, converter=float)
    weight: float = eqx.field(static=True, converter=float)
    """In units of cost: what a probability e times as high as allowed adds to the objective."""
    count: int = eqx.field(static=True)
    """How many probabilities are added: steps times limits."""

    def __check_init__(self) -> None:
        if not 0 < self.allowed < 1:
            raise ValueError(f"limit_probability must be above 0 and below 1; given {self.allowed}.")
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"The weight of limits must be positive and finite; given {self.weight}.")

    @property
    def surcharge(self) -> float:
        return self.objective.surcharge + self.weight * float(np.log(self.count / self.allowed) + 1)

    @float64
    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        return self.objective(prediction) + self.penalty(prediction)

    @float64
    def penalty(self, prediction: Prediction) -> Float[Array, ""]:
        """What the limits alone add."""
        if prediction.outside is None:
            raise ValueError("This prediction was made without limits: give them to its Problem.")
        nats = jnp.log(jnp.sum(prediction.outside) / self.allowed + NEGLIGIBLE)
        return self.weight * SMOOTHING * jax.nn.softplus(nats / SMOOTHING)
