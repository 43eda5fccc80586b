"""What every cost offers, costs of features, and weighted sums of them.

A `Cost` is a function of `a = [x, u]`. There are two kinds. A `FeatureCost` is a function of features `y` of `a`, whose
moments are taken as if `y` were Gaussian with the moments that it has. For components kept as they are this is exact.
For sines and cosines of uncertain angles it is the approximation that PILCO makes everywhere. A `SumOfCosts` is a
weighted sum of costs, with the covariances between its parts.

At the last step of an episode there is a state but no action. What is charged there is `terminal(states)`.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.control.cost.between import covariance
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, Moments, symmetrise
from bayespilco.core.precision import float64
from bayespilco.core.registry import Registry


class Cost(eqx.Module):
    """A number to keep small at every step, as a function of state and action `a = [x, u]`."""

    @abstractmethod
    def __call__(self, a: Float[Array, " joint"]) -> Float[Array, ""]:
        """The cost at a point."""

    @abstractmethod
    def moments(self, gaussian: Gaussian) -> Moments:
        """Mean, variance and gain of the cost of `a ~ N(m, S)`. Shapes (1,), (1, 1) and (joint, 1)."""

    @abstractmethod
    def belief_moments(
        self, gaussian: Gaussian, cov: Float[Array, "joint joint"]
    ) -> tuple[Moments, Float[Array, "1 1"]]:
        """Moments of the cost that a belief expects, and the expected variance of the cost within the belief.

        The belief is `N(M, V)` with `M ~ N(mu, S)`: `gaussian` is `N(mu, S)` and `cov` is `V`. The two variances add
        up to that of `moments` at `N(mu, S + V)`. With `V = 0` the second is 0.
        """

    @property
    @abstractmethod
    def worst(self) -> float:
        """The most that a step can cost; `inf` if there is no such number."""

    @abstractmethod
    def at_goal(self, a: Float[Array, " joint"]) -> Bool[Array, ""]:
        """Whether the goal is reached there, by this cost's own measure.

        For a state without an action ask `terminal(states)`.
        """

    @abstractmethod
    def widened(self, factor: float) -> "Cost":
        """An easier problem to search in first: a valley wider by `factor`. Costs without a valley stay as they are."""

    @property
    @abstractmethod
    def parts(self) -> tuple["Part", ...]:
        """The costs of features that this is a weighted sum of."""

    @property
    @final
    def indices(self) -> tuple[int, ...]:
        """The components of `a = [x, u]` that the cost reads, in order."""
        return tuple(sorted({i for part in self.parts for i in part.features.angles + part.features.keep}))

    @property
    @final
    def highest_index(self) -> int:
        """The last component that the cost reads; -1 if it reads none."""
        return max(self.indices, default=-1)

    @final
    def uses_actions(self, states: int) -> bool:
        """Whether the cost reads actions, which follow `states` components of state."""
        return self.highest_index >= states

    @final
    def terminal(self, states: int) -> "Cost":
        """What is charged at the last step, where there is a state but no action: the parts that read no action."""
        kept = [part for part in self.parts if not part.cost.uses_actions(states)]
        if len(kept) == len(self.parts):
            return self
        return SumOfCosts(tuple(part.cost for part in kept), tuple(part.weight for part in kept))

    @final
    def __add__(self, other: "Cost") -> "SumOfCosts":
        return SumOfCosts((self, other))

    @final
    def __rmul__(self, weight: float | int) -> "SumOfCosts":
        return SumOfCosts((self,), (float(weight),))


def reindexed(cost: Cost, places: Mapping[int, int]) -> Cost:
    """The same cost where the components of `[x, u]` have moved, as they do when rows are added to a state.

    Args:
        places: The new index of every old one.
    """
    if isinstance(cost, SumOfCosts):
        return SumOfCosts(tuple(reindexed(part, places) for part in cost.costs), cost.weights)
    if isinstance(cost, FeatureCost):
        old = cost.features
        new = AngleFeatures(tuple(places[i] for i in old.angles), tuple(places[i] for i in old.keep))
        return dataclasses.replace(cost, features=new)
    raise ValueError(f"A {type(cost).__name__} does not say which components of [x, u] it is of.")


class FeatureCost(Cost):
    """A function of features `y` of `a = [x, u]`.

    A new kind of cost has to say what it is as a function of `y`: the four methods below. Moments in terms of `a`
    follow from these.
    """

    features: eqx.AbstractVar[AngleFeatures]
    """From `a` to `y`: what is kept of it, and the sines and cosines of its angles."""

    @abstractmethod
    def value(self, y: Float[Array, " feature"]) -> Float[Array, ""]:
        """The cost of features at a point."""

    @abstractmethod
    def feature_moments(self, y: Gaussian) -> Moments:
        """Mean, variance and gain of the cost of Gaussian features."""

    @abstractmethod
    def curvature(self, y: Gaussian) -> Float[Array, "feature feature"]:
        """The expected second derivative of the cost of Gaussian features."""

    @abstractmethod
    def covariance_with(
        self, other: "FeatureCost", y: Gaussian, z: Gaussian, cross: Float[Array, "feature others"]
    ) -> Float[Array, ""] | None:
        """`Cov[self(y), other(z)]` for `y` and `z` that are jointly Gaussian, with `Cov[y, z] = cross`.

        None if this cost knows no closed form with the other one (which may know one).
        """

    @final
    @float64
    def __call__(self, a: Float[Array, " joint"]) -> Float[Array, ""]:
        check_size(self, a.shape[0])
        return self.value(self.features(a))

    @final
    @float64
    @jax.jit
    def moments(self, gaussian: Gaussian) -> Moments:
        check_size(self, gaussian.size)
        inner = self.features.moments(gaussian)
        return inner.then(self.feature_moments(inner.output))

    @final
    @float64
    def belief_moments(
        self, gaussian: Gaussian, cov: Float[Array, "joint joint"]
    ) -> tuple[Moments, Float[Array, "1 1"]]:
        moments, variance = _belief_moments(self.parts, gaussian, cov)
        return moments, variance

    @property
    @final
    def parts(self) -> "tuple[Part, ...]":
        return (Part(1.0, self, self.features),)


class Part(NamedTuple):
    """One term of a sum of costs."""

    weight: float
    cost: FeatureCost
    features: AngleFeatures
    """Those of the cost; shifted where the cost reads the second of two states."""


COSTS: Registry[type[Cost]] = Registry("cost")
"""The kinds of cost, by name."""


def _as_floats(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(float(value) for value in values)


@final
@COSTS.register("sum")
class SumOfCosts(Cost):
    """A weighted sum of costs. `SumOfCosts((near, smooth), (1.0, 0.1))` is also `near + 0.1 * smooth`.

    Its variance has the covariances between the parts. All of them are in closed form, except that of two hinges
    on different features, which is a one-dimensional integral by quadrature; between two costs of kinds unknown to
    each other (your own, say), terms beyond the second order of the Hermite expansion are neglected. Without parts,
    it is a cost of zero.
    """

    costs: tuple[Cost, ...] = eqx.field(converter=tuple)
    weights: tuple[float, ...] | None = eqx.field(static=True, default=None, converter=_as_floats)
    """One weight per cost, not negative; all 1 by default. Plain numbers, so that `worst` is one too."""

    def __check_init__(self) -> None:
        for cost in self.costs:
            if not isinstance(cost, Cost):
                raise ValueError(f"A SumOfCosts takes costs; given {cost!r}. For a factor use its weights.")
        weights = self._weights
        if len(weights) != len(self.costs) or not all(np.isfinite(w) and w >= 0 for w in weights):
            raise ValueError(
                f"A SumOfCosts of {len(self.costs)} costs needs as many finite weights of at least 0; given {weights}."
            )

    @property
    def _weights(self) -> tuple[float, ...]:
        return (1.0,) * len(self.costs) if self.weights is None else self.weights

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(
            Part(weight * part.weight, part.cost, part.features)
            for weight, cost in zip(self._weights, self.costs, strict=True)
            for part in cost.parts
        )

    @float64
    def __call__(self, a: Float[Array, " joint"]) -> Float[Array, ""]:
        return sum((weight * cost(a) for weight, cost, _ in self.parts), jnp.zeros(()))

    @float64
    @jax.jit
    def moments(self, gaussian: Gaussian) -> Moments:
        check_size(self, gaussian.size)
        union = _union(self.parts)
        inner = union.moments(gaussian)
        return inner.then(_sum_moments(self.parts, union, inner.output))

    @float64
    def belief_moments(
        self, gaussian: Gaussian, cov: Float[Array, "joint joint"]
    ) -> tuple[Moments, Float[Array, "1 1"]]:
        moments, variance = _belief_moments(self.parts, gaussian, cov)
        return moments, variance

    @property
    def worst(self) -> float:
        """The sum of the parts' worst. (It may not be reached: the parts need not be worst at the same place.)"""
        return sum((weight * part.worst for weight, part, _ in self.parts if weight), 0.0)

    @float64
    def at_goal(self, a: Float[Array, " joint"]) -> Bool[Array, ""]:
        """Where each part is at its goal. (Those of `effort` and `smoothness` always are.)"""
        return jnp.asarray([cost.at_goal(a) for cost in self.costs], dtype=bool).all()

    def widened(self, factor: float) -> "SumOfCosts":
        """The sum of the parts widened."""
        return SumOfCosts(tuple(cost.widened(factor) for cost in self.costs), self.weights)


@float64
def cost_covariance(
    cost: Cost, joint: Gaussian, other: Cost | None = None, split: int | None = None
) -> Float[Array, ""]:
    """The covariance of the costs of two jointly Gaussian states: of two steps, for example.

    Args:
        cost: The cost of the first state.
        joint: Of both states (with or without their actions), one after the other.
        other: The cost of the second state; by default the same cost.
        split: The size of the first state; by default it is half of the joint's.
    """
    other = cost if other is None else other
    size = joint.size // 2 if split is None else split
    check_size(cost, size)
    check_size(other, joint.size - size)
    return _cost_covariance(cost, other, joint, size)


@eqx.filter_jit
def _cost_covariance(cost: Cost, other: Cost, joint: Gaussian, size: int) -> Float[Array, ""]:
    second = tuple(part._replace(features=_shifted(part.features, size)) for part in other.parts)
    union = _union(cost.parts + second)
    y = union.moments(joint).output
    return sum(
        (
            left.weight * right.weight * _part_covariance(left, right, union, y, y.cov)
            for left in cost.parts
            for right in second
        ),
        jnp.zeros(()),
    )


def check_size(cost: Cost, size: int) -> None:
    """Refuse a point or Gaussian that lacks components which the cost reads."""
    if cost.highest_index >= size or min(cost.indices, default=0) < 0:
        raise ValueError(
            f"This cost reads the components {cost.indices} of [state, action], but was given {size} components. A "
            f"cost of actions needs both; for a state alone (the last step) use `cost.terminal(states)`."
        )


def _sum_moments(parts: tuple[Part, ...], union: AngleFeatures, y: Gaussian) -> Moments:
    """The moments of the sum of costs of Gaussian features, which are the union of those of the parts."""
    mean, variance, gain = jnp.zeros(1), jnp.zeros((1, 1)), jnp.zeros((union.size, 1))
    for number, part in enumerate(parts):
        pick = _selection(union, part.features)
        one = part.cost.feature_moments(_picked(y, pick))
        mean += part.weight * one.mean
        gain += part.weight * pick.T @ one.gain
        variance += part.weight**2 * one.cov
        for other in parts[:number]:
            variance += 2 * part.weight * other.weight * _part_covariance(part, other, union, y, y.cov)
    return Moments(mean, variance, gain)


@jax.jit
def _belief_moments(
    parts: tuple[Part, ...], gaussian: Gaussian, cov: Float[Array, "joint joint"]
) -> tuple[Moments, Float[Array, "1 1"]]:
    """See `Cost.belief_moments`.

    Two draws from one belief, `y` and `z`, have the belief's expectation in common and are otherwise independent. So
    the variance of what the belief expects is the covariance of their costs, with `Cov[y, z]` the spread of the mean.
    """
    for part in parts:
        check_size(part.cost, gaussian.size)
    union = _union(parts)
    inner, V = union.belief_moments(gaussian, cov)
    y = Gaussian(inner.mean, symmetrise(inner.cov + V))
    total = _sum_moments(parts, union, y)
    of_mean = jnp.zeros((1, 1))
    for number, part in enumerate(parts):
        of_mean += part.weight**2 * _part_covariance(part, part, union, y, inner.cov)
        for other in parts[:number]:
            of_mean += 2 * part.weight * other.weight * _part_covariance(part, other, union, y, inner.cov)
    return Moments(total.mean, of_mean, inner.gain @ total.gain), total.cov - of_mean


def _part_covariance(
    left: Part, right: Part, union: AngleFeatures, y: Gaussian, cross: Float[Array, "feature feature"]
) -> Float[Array, ""]:
    """The covariance of two parts, given `y`, their features, and what of its covariance the two have in common."""
    of_left, of_right = _selection(union, left.features), _selection(union, right.features)
    return covariance(left.cost, right.cost, _picked(y, of_left), _picked(y, of_right), of_left @ cross @ of_right.T)


def _union(parts: tuple[Part, ...]) -> AngleFeatures:
    """The features of all parts, each once, in the order in which they first appear."""
    angles = dict.fromkeys(i for part in parts for i in part.features.angles)
    keep = dict.fromkeys(i for part in parts for i in part.features.keep)
    return AngleFeatures(tuple(angles), tuple(keep))


def _selection(union: AngleFeatures, features: AngleFeatures) -> np.ndarray:
    """The matrix that picks `features` from their union with others."""
    kept = [union.keep.index(i) for i in features.keep]
    sines = [len(union.keep) + 2 * union.angles.index(i) for i in features.angles]
    return np.eye(union.size)[kept + [place for sine in sines for place in (sine, sine + 1)]].reshape(-1, union.size)


def _picked(y: Gaussian, pick: np.ndarray) -> Gaussian:
    A = jnp.asarray(pick)
    return Gaussian(A @ y.mean, A @ y.cov @ A.T)


def _shifted(features: AngleFeatures, by: int) -> AngleFeatures:
    return AngleFeatures(tuple(i + by for i in features.angles), tuple(i + by for i in features.keep))
