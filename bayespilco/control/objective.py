"""Objectives: from a prediction to the number that policy search minimises.

The paper minimises the expected total cost. Another objective (of risk, of exploration) is another class in this file:
`Prediction` keeps the beliefs, actions and costs of every step for it.
"""

import abc
from typing import ClassVar, final

import equinox as eqx
import jax.numpy as jnp
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
