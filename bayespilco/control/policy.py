"""Policies: a function of state features, squashed into the actuator's range.

Both kinds are three maps in a row, features, a function with free parameters, and the squashing sine, so both
have closed-form moments, and both see a belief through the features it expects: `E_b[sin]`, not `sin` of the
mean, in prediction and in execution alike. `BeliefPolicy` is one of the two that also looks at how uncertain the belief
is.
"""

import abc
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.features import AngleFeatures, Saturation
from bayespilco.core.gaussian import Gaussian, Moments, diagonal
from bayespilco.core.gp import GaussianProcess, condition
from bayespilco.core.moments import gp_moments
from bayespilco.core.precision import as_float64, float64, is_concrete, optional_float64
from bayespilco.core.registry import Registry

PSEUDO_NOISE = 0.01
"""Noise of the pseudo-targets of an RBF policy, in units of its signal: keeps its weights from exploding."""


class Affine(eqx.Module):
    """`y = A x + b`."""

    matrix: Float[Array, "output input"]
    offset: Float[Array, " output"]

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        return self.matrix @ x + self.offset

    def moments(self, gaussian: Gaussian) -> Moments:
        A = self.matrix
        return Moments(self(gaussian.mean), A @ gaussian.cov @ A.T, A.T)


class Network(eqx.Module):
    """The mean of a GP."""

    gp: GaussianProcess

    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        return self.gp(x)

    def moments(self, gaussian: Gaussian) -> Moments:
        return gp_moments(self.gp, gaussian)


LARGEST_CAUTION = 20.0
"""Of the factor `exp(A d)`, either way: more is a mistake, and might overflow."""


class Caution(eqx.Module):
    """How an action depends on the belief's covariance V, before it is squashed: `exp(A d) y + B d`.

        d_j = log(1 + V_jj / r_j)

    `y` is what the mean alone would ask for. With a sensor of noise `r_j`, `d_j` is twice the information that one more
    sample of state `j` would bring. It is near zero while samples come, grows without them, and is zero where the state
    is known. So `exp(A d)` is a product of powers of `1 + V_jj / r_j`: in doubt the policy does less, or more.

    V is a number, not a random variable, in a belief as in a distribution over beliefs. So are the factor and the
    addend, and moments stay closed. With `A = B = 0` they do nothing, and their derivatives are not zero there.
    (Further inputs of the kernels that do nothing have no derivative.)
    """

    scale: Float[Array, "action state"] = eqx.field(converter=as_float64)
    """A."""
    shift: Float[Array, "action state"] = eqx.field(converter=as_float64)
    """B."""
    noise: Float[Array, " state"] = eqx.field(converter=as_float64)
    """r, which is not learned."""

    def __check_init__(self) -> None:
        expected = (self.scale.shape[0], *self.noise.shape)
        if self.scale.shape != expected or self.shift.shape != expected:
            raise ValueError(
                f"scale and shift of a Caution must have shape (actions, states), and its noise one entry per state; "
                f"given {self.scale.shape}, {self.shift.shape} and {self.noise.shape}."
            )
        for name in ("scale", "shift", "noise"):
            if is_concrete(value := getattr(self, name)) and not np.isfinite(np.asarray(value)).all():
                raise ValueError(f"{name} of a Caution must be finite; given {np.asarray(value)}.")
        if is_concrete(self.noise) and not (np.asarray(self.noise) > 0).all():
            raise ValueError(f"noise of a Caution must be positive; given {np.asarray(self.noise)}.")

    @classmethod
    def none(cls, noise: Any, actions: int) -> "Caution":
        """One that does nothing yet."""
        noise = as_float64(noise)
        nothing = as_float64(np.zeros((actions, noise.shape[0])))
        return cls(nothing, nothing, noise)

    def at(self, cov: Float[Array, "state state"]) -> tuple[Float[Array, " action"], Float[Array, " action"]]:
        """The factor `exp(A d)` and the addend `B d`."""
        doubt = jnp.log1p(jnp.maximum(diagonal(cov), 0.0) / jax.lax.stop_gradient(self.noise))
        return jnp.exp(jnp.clip(self.scale @ doubt, -LARGEST_CAUTION, LARGEST_CAUTION)), self.shift @ doubt


class PolicyMap(eqx.Module):
    """A policy with its parameters worked out: ready to be applied many times."""

    features: AngleFeatures
    function: Affine | Network
    squash: Saturation
    middle: Float[Array, " action"]
    """The middle of the actuator's range; zero for a range that is symmetric."""
    caution: Caution | None = None
    """What it makes of a belief's covariance; None: nothing. A state or an observation by itself leaves no doubt."""

    @float64
    def __call__(self, x: Float[Array, " state"]) -> Float[Array, " action"]:
        return self.middle + self.squash(self.function(self.features(x)))

    @float64
    def moments(self, gaussian: Gaussian) -> Moments:
        """The action under a Gaussian state (or observation)."""
        return self._after(self.features.moments(gaussian))

    @float64
    def at_belief(self, belief: Gaussian) -> Float[Array, " action"]:
        """The action for one belief (Eq. 10): the policy sees the features that the belief expects."""
        y = self.function(self.features.moments(belief).mean)
        if self.caution is not None:
            factor, addend = self.caution.at(belief.cov)
            y = factor * y + addend
        return self.middle + self.squash(y)

    @float64
    def belief_moments(self, gaussian: Gaussian, cov: Float[Array, "state state"]) -> Moments:
        """The action under a distribution over beliefs, with its gain on the belief's mean (Eqs. 17-18)."""
        return self._after(self.features.belief_moments(gaussian, cov)[0], cov)

    def _after(self, features: Moments, cov: Float[Array, "state state"] | None = None) -> Moments:
        preliminary = y = self.function.moments(features.output)
        if self.caution is not None and cov is not None:
            factor, addend = self.caution.at(cov)
            preliminary = Moments(factor * y.mean + addend, factor[:, None] * y.cov * factor, y.gain * factor)
        action = features.then(preliminary).then(self.squash.moments(preliminary.output))
        return Moments(self.middle + action.mean, action.cov, action.gain)


class Policy(eqx.Module):
    """A function of the state with free parameters, squashed into the actuator's range."""

    @abc.abstractmethod
    def map(self) -> PolicyMap:
        """The policy with its parameters worked out."""

    def __call__(self, x: Float[Array, " state"]) -> Float[Array, " action"]:
        return self.map()(x)

    def moments(self, gaussian: Gaussian) -> Moments:
        return self.map().moments(gaussian)


def _actuator(limits: Array, middle: Array | None) -> tuple[Saturation, Float[Array, " action"]]:
    """The actuator's range, of which nothing is learned."""
    limits = jax.lax.stop_gradient(limits)
    return Saturation(limits), jnp.zeros_like(limits) if middle is None else jax.lax.stop_gradient(middle)


class RBFPolicy(Policy):
    """The mean of a GP with pseudo-data: `y(x) = k(x, P) (k(P, P) + 0.01^2 I)^-1 t`, then squashed.

    Its parameters are the centroids `P`, the targets `t` and the log length-scales: 605 for the paper's 100 centroids.
    """

    centroids: Float[Array, "points feature"] = eqx.field(converter=as_float64)
    targets: Float[Array, "points action"] = eqx.field(converter=as_float64)
    log_length_scales: Float[Array, "action feature"] = eqx.field(converter=as_float64)
    features: AngleFeatures
    limits: Float[Array, " action"] = eqx.field(converter=as_float64)
    """How far actions reach from the middle of the actuator's range."""
    middle: Float[Array, " action"] | None = eqx.field(converter=optional_float64, default=None)
    """The middle of that range; None for zero."""

    def __check_init__(self) -> None:
        points, actions = self.targets.shape[:1], self.limits.shape
        expected = {
            "centroids": points + (self.features.size,),
            "targets": points + actions,
            "log_length_scales": actions + (self.features.size,),
        }
        _check_shapes(self, expected)

    @float64
    def map(self) -> PolicyMap:
        signal = jnp.ones_like(self.limits)
        scales = jnp.exp(self.log_length_scales)
        gp = condition(self.centroids, self.targets, scales, signal, PSEUDO_NOISE**2 * signal)
        mean_only = eqx.tree_at(lambda g: (g.precision, g.root), gp, (None, None))
        return PolicyMap(self.features, Network(mean_only), *_actuator(self.limits, self.middle))

    @classmethod
    @float64
    def random(
        cls,
        key: Array,
        features: AngleFeatures,
        limits: Any,
        middle: Any = None,
        *,
        centre: Any,
        spread: Any = 1.0,
        length_scales: Any = 1.0,
        centroids: int = 100,
    ) -> "RBFPolicy":
        """A start: centroids `~ N(centre, spread^2)`, targets `0.1 N(0, 1)`."""
        limits = as_float64(limits)
        where, what = jax.random.split(key)
        points = centre + spread * jax.random.normal(where, (centroids, features.size), dtype=jnp.float64)
        targets = 0.1 * jax.random.normal(what, (centroids, limits.shape[0]), dtype=jnp.float64)
        scales = jnp.broadcast_to(as_float64(length_scales), (limits.shape[0], features.size))
        return cls(points, targets, jnp.log(scales), features, limits, middle)


class LinearPolicy(Policy):
    """`y = A features + b`, then squashed."""

    matrix: Float[Array, "action feature"] = eqx.field(converter=as_float64)
    offset: Float[Array, " action"] = eqx.field(converter=as_float64)
    features: AngleFeatures
    limits: Float[Array, " action"] = eqx.field(converter=as_float64)
    """How far actions reach from the middle of the actuator's range."""
    middle: Float[Array, " action"] | None = eqx.field(converter=optional_float64, default=None)
    """The middle of that range; None for zero."""

    def __check_init__(self) -> None:
        actions = self.limits.shape
        _check_shapes(self, {"matrix": actions + (self.features.size,), "offset": actions})

    @float64
    def map(self) -> PolicyMap:
        return PolicyMap(self.features, Affine(self.matrix, self.offset), *_actuator(self.limits, self.middle))

    @classmethod
    @float64
    def random(cls, key: Array, features: AngleFeatures, limits: Any, middle: Any = None) -> "LinearPolicy":
        limits = as_float64(limits)
        matrix = 0.1 * jax.random.normal(key, (limits.shape[0], features.size), dtype=jnp.float64)
        return cls(matrix, jnp.zeros_like(limits), features, limits, middle)


class BeliefPolicy(Policy):
    """A policy of the whole belief: of its mean, as any policy, and of its covariance, with caution.

    A prediction with a single path of V has one V per step. There this would be a policy of time, and a search would
    use it as one. So predictions refuse it unless they draw several paths (`control.prediction`).
    """

    of_mean: RBFPolicy | LinearPolicy
    caution: Caution

    def __check_init__(self) -> None:
        actions = self.of_mean.limits.shape[0]
        if self.caution.scale.shape[0] != actions:
            raise ValueError(f"The caution of a policy of {actions} actions is for {self.caution.scale.shape[0]}.")

    @float64
    def map(self) -> PolicyMap:
        return dataclasses.replace(self.of_mean.map(), caution=self.caution)


POLICIES: Registry[type[Policy]] = Registry("policy")
"""The kinds of policy, by the names that a task's `policy_kind` may have."""
POLICIES.add("rbf", RBFPolicy, "A network of radial basis functions, for a plant that has to move far.")
POLICIES.add("linear", LinearPolicy, "A linear map of the features, for holding a plant where it is.")


def _check_shapes(policy: "RBFPolicy | LinearPolicy", expected: dict[str, tuple[int, ...]]) -> None:
    for name, shape in expected.items():
        given = getattr(policy, name).shape
        if given != shape:
            raise ValueError(f"{name} of a {type(policy).__name__} must have shape {shape}; given {given}.")
    for name in (*expected, "limits"):
        value = getattr(policy, name)
        if is_concrete(value) and not np.isfinite(np.asarray(value)).all():
            raise ValueError(f"{name} of a {type(policy).__name__} must be finite; given {np.asarray(value)}.")
    if policy.middle is not None and policy.middle.shape != policy.limits.shape:
        raise ValueError(f"middle must have one entry per action; given {policy.middle.shape}.")
    if is_concrete(policy.limits) and not (np.asarray(policy.limits) > 0).all():
        raise ValueError(f"limits are the largest actions, positive; given {np.asarray(policy.limits)}.")
