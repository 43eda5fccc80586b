"""Objectives: from a prediction to the number that policy search minimises.

The paper minimises the expected total cost. Three others also look at the variance of the total, to try what may turn
out well: `ConfidenceBound`, `ProbabilityOfImprovement`, `ExpectedImprovement`. That variance has the covariances of the
costs between steps, which a prediction has only if its objective asks for them. `WithinLimits` goes around any of them.

Another objective is another class in this file: `Prediction` keeps the beliefs, actions and costs of every step for it.
"""

import abc
from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jax.scipy.stats.norm import logpdf
from jaxtyping import Array, Float

from bayespilco import settings
from bayespilco.control.prediction import Prediction
from bayespilco.core.precision import float64, optional_float64
from bayespilco.core.registry import Registry


class Objective(eqx.Module):
    """What policy search minimises. It has to be differentiable by the prediction."""

    averages: eqx.AbstractClassVar[bool]
    """Whether the objective of a mixture of predictions is the mean of their objectives. If so, a split prediction can
    be computed in several processes."""

    @property
    def surcharge(self) -> float:
        """The most that it can add to the total cost; infinite if there is no such number."""
        return 0.0

    @property
    def between_steps(self) -> bool:
        """Whether it asks for the covariances of the costs between steps (`Prediction.cost_cov`)."""
        return False

    @abc.abstractmethod
    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        """The number to minimise."""


OBJECTIVES: Registry[type[Objective]] = settings.OBJECTIVES
"""What policy search may minimise, by name: classes that take the task's `discount`, and, if they have such fields,
`kappa` (a setting) and `best`, the lowest expected cost of the earlier policies by the model at hand."""


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
        _check_discount(self.discount)

    @float64
    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        if self.discount == 1.0:
            return prediction.total_cost
        return jnp.sum(_weights(prediction, self.discount) * prediction.cost_mean)


def _check_discount(discount: float) -> None:
    if not 0 < discount <= 1:
        raise ValueError(f"discount must be above 0 and at most 1 (no discount); given {discount}.")


def _weights(prediction: Prediction, discount: float) -> Float[Array, " times"]:
    return discount ** jnp.arange(prediction.cost_mean.shape[0])


@float64
def total_variance(prediction: Prediction, discount: float = 1.0) -> Float[Array, ""]:
    """The variance of the total cost of a run: of all steps' costs, and of how they vary together."""
    if prediction.cost_cov is None:
        raise ValueError(
            "This prediction was made without covariances between steps: use predict(..., between_steps=True)."
        )
    weights = _weights(prediction, discount)
    return weights @ prediction.cost_cov @ weights


SMALLEST_VARIANCE = 1e-30
"""Below this a variance counts as zero where its root is taken, and has no gradient. (The most likely trajectory has no
variance at all.)"""


@OBJECTIVES.register("confidence-bound")
@final
class ConfidenceBound(Objective):
    """The expected total cost less `kappa` of its standard deviations: optimism, or caution with a negative `kappa`."""

    averages: ClassVar[bool] = False
    discount: float = eqx.field(static=True, default=1.0, converter=float)
    """See `ExpectedCost`."""
    kappa: float = eqx.field(static=True, default=1.0, converter=float)

    def __check_init__(self) -> None:
        _check_discount(self.discount)
        if not np.isfinite(self.kappa):
            raise ValueError(f"kappa must be a finite number of standard deviations; given {self.kappa}.")

    @property
    def surcharge(self) -> float:
        return 0.0 if self.kappa >= 0 else float("inf")

    @property
    def between_steps(self) -> bool:
        return True

    @float64
    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        variance = total_variance(prediction, self.discount)
        std = jnp.sqrt(jnp.where(variance > SMALLEST_VARIANCE, variance, SMALLEST_VARIANCE))
        return ExpectedCost(self.discount)(prediction) - self.kappa * std


NEGLIGIBLE_SPREAD = 0.01
"""Improvements are blurred by this share of the best cost: without any variance (along the most likely trajectory)
there would be no gradient."""


class _Improvement(Objective):
    """Of what a policy may improve on: the lowest cost so far. The total cost is taken to be Gaussian.

    What is minimised is a negative logarithm. Far from any improvement, where its probability is 1e-20, that still has
    a gradient.
    """

    averages: ClassVar[bool] = False
    discount: float = eqx.field(static=True, default=1.0, converter=float)
    """See `ExpectedCost`."""
    best: Float[Array, ""] | None = eqx.field(default=None, converter=optional_float64)
    """The lowest cost so far. None: there is nothing to improve on yet, and the expected cost is minimised."""

    def __check_init__(self) -> None:
        _check_discount(self.discount)

    @property
    def surcharge(self) -> float:
        return 0.0 if self.best is None else float("inf")

    @property
    def between_steps(self) -> bool:
        return self.best is not None

    @float64
    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        expected = ExpectedCost(self.discount)(prediction)
        if self.best is None:
            return expected
        variance = total_variance(prediction, self.discount)
        blur = (NEGLIGIBLE_SPREAD * self.best) ** 2 + SMALLEST_VARIANCE
        std = jnp.sqrt(jnp.where(variance > 0, variance, 0.0) + blur)
        return -self.log_of(self.best - expected, std)

    @abc.abstractmethod
    def log_of(self, gain: Float[Array, ""], std: Float[Array, ""]) -> Float[Array, ""]:
        """The logarithm of what is wanted of an improvement that is distributed `N(gain, std^2)`."""


@OBJECTIVES.register("probability-of-improvement")
@final
class ProbabilityOfImprovement(_Improvement):
    """How probable it is that a run costs less than the best policy so far is expected to; `-log` of it."""

    def log_of(self, gain: Float[Array, ""], std: Float[Array, ""]) -> Float[Array, ""]:
        log_probability: Array = log_ndtr(gain / std)
        return log_probability


@OBJECTIVES.register("expected-improvement")
@final
class ExpectedImprovement(_Improvement):
    """How much less than the best policy so far a run may cost, on average, if worse counts as zero; `-log` of it."""

    def log_of(self, gain: Float[Array, ""], std: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.log(std) + log_ramp(gain / std)


FAR_BELOW = -20.0
"""Where the expectation of a positive part is better computed from an asymptotic series."""


@float64
def log_ramp(z: Float[Array, ""]) -> Float[Array, ""]:
    """`log E[max(z + e, 0)] = log(phi(z) + z Phi(z))` for `e ~ N(0, 1)`, also where it is 1e-1000."""
    near, far = jnp.maximum(z, FAR_BELOW), jnp.minimum(z, FAR_BELOW)
    # For negative z the two terms cancel: their ratio tends to -1.
    low = jnp.minimum(near, 0.0)
    below = logpdf(low) + jnp.log1p(low * jnp.exp(log_ndtr(low) - logpdf(low)))
    high = jnp.maximum(near, 0.0)
    above = jnp.log(jnp.exp(logpdf(high)) + high * jnp.exp(log_ndtr(high)))
    q = far**-2
    series = logpdf(far) + jnp.log(q) + jnp.log1p(q * (-3 + q * (15 + q * (-105 + q * 945))))
    value: Array = jnp.where(z > 0, above, jnp.where(z > FAR_BELOW, below, series))
    return value


SMOOTHING = 0.5
"""How gradually the penalty of limits begins, in factors of e of the probability."""
NEGLIGIBLE = 1e-3
"""Probabilities below this share of the allowed one count alike."""


@final
class WithinLimits(Objective):
    """Another objective, plus a penalty where a run is more likely to exceed a limit than allowed: a chance constraint.

    `P` is the sum over steps of the probabilities that a state is beyond a limit (`limits`), which is at least the
    probability that a run ever is. The first step does not count: where an episode starts is not the policy's doing,
    and a constant in the logarithm would only weaken its pull. The penalty is `weight log(P / allowed)` above the
    allowed probability and, but for a smooth transition, zero below it. On the logarithm it pulls as strongly at 1 % as
    at 10 %.
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

    @property
    def between_steps(self) -> bool:
        return self.objective.between_steps

    @float64
    def __call__(self, prediction: Prediction) -> Float[Array, ""]:
        return self.objective(prediction) + self.penalty(prediction)

    @float64
    def penalty(self, prediction: Prediction) -> Float[Array, ""]:
        """What the limits alone add."""
        if prediction.outside is None:
            raise ValueError("This prediction was made without limits: give them to its Problem.")
        nats = jnp.log(jnp.sum(prediction.outside[1:]) / self.allowed + NEGLIGIBLE)
        return self.weight * SMOOTHING * jax.nn.softplus(nats / SMOOTHING)
