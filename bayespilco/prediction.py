"""Predictors: the distribution of trajectories that a policy will cause, step by step, without running it.

Three ways to predict, which together with two ways to execute make the four methods: `Unfiltered` (the policy
will see raw observations), `Filtered` (it will see the filter's belief) and `MostLikely` (one deterministic
trajectory, no uncertainty at all). Each is a start and a step; `predict` is the one scan over them, and
`predict_in_parts` does it from each part of a first state that is spread too widely for one Gaussian (`parts`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayespilco import parts
from bayespilco.belief import BeliefDistribution, Update
from bayespilco.cost import SaturatingCost
from bayespilco.dynamics import Dynamics
from bayespilco.gaussian import Gaussian, diagonal, joint
from bayespilco.policy import Policy, PolicyMap
from bayespilco.precision import float64

DIVERGED = 1e3
"""A predicted mean or standard deviation beyond this has left every plausible range: the prediction diverged."""


class Unfiltered(eqx.Module):
    """The policy acts on the observation `z = x + e` (PILCO, Figure 1)."""

    def start(self, initial: Gaussian) -> Gaussian:
        return initial

    def starts(self, initial: Gaussian, dynamics: Dynamics, points: Float[Array, "parts state"]) -> Gaussian:
        """The start in parts: arrays with a leading axis."""
        within = parts.WITHIN * initial.cov
        return jax.vmap(lambda shift: Gaussian(initial.mean + shift, within))(parts.shifts(initial.cov, points))

    def state(self, carry: Gaussian) -> Gaussian:
        return carry

    def step(self, carry: Gaussian, policy: PolicyMap, dynamics: Dynamics) -> tuple[Gaussian, Gaussian]:
        observed = Gaussian(carry.mean, carry.cov + dynamics.R)
        # Cov[X, U] = S_x gain: the sensor's noise moves the action, but not with the state.
        state_action = joint(carry, policy.moments(observed))
        return dynamics.moments(state_action).output, state_action


class Filtered(eqx.Module):
    """The policy acts on the belief of the filter that will run beside it (the paper's method, Figure 2)."""

    update: Update = eqx.field(static=True, default="conserving")

    def start(self, initial: Gaussian) -> BeliefDistribution:
        return BeliefDistribution(Gaussian(initial.mean, jnp.zeros_like(initial.cov)), initial.cov)

    def starts(self, initial: Gaussian, dynamics: Dynamics, points: Float[Array, "parts state"]) -> BeliefDistribution:
        """The start in parts: arrays with a leading axis.

        The filter does not know which part its plant starts in, only what its sensors tell. So what is cut is the
        spread of the belief's mean after the first observation, which adds all of it to the start's. Here the share
        that is between the parts is taken off in advance: until then that spread is "negative".
        """
        told = self.start(initial).update(dynamics.R).mean.cov
        taken_off = (parts.WITHIN - 1) * told
        return jax.vmap(lambda shift: BeliefDistribution(Gaussian(initial.mean + shift, taken_off), initial.cov))(
            parts.shifts(told, points)
        )

    def state(self, carry: BeliefDistribution) -> Gaussian:
        return carry.state

    def step(
        self, carry: BeliefDistribution, policy: PolicyMap, dynamics: Dynamics
    ) -> tuple[BeliefDistribution, Gaussian]:
        updated = carry.update(dynamics.R, self.update)
        mean_action = updated.act(policy)
        return updated.predict(dynamics, mean_action), mean_action


class MostLikely(eqx.Module):
    """One trajectory through the model's mean, from the mean of the initial state (MAP, Dallaire et al. 2009)."""

    def start(self, initial: Gaussian) -> Gaussian:
        return Gaussian(initial.mean, jnp.zeros_like(initial.cov))

    def state(self, carry: Gaussian) -> Gaussian:
        return carry

    def step(self, carry: Gaussian, policy: PolicyMap, dynamics: Dynamics) -> tuple[Gaussian, Gaussian]:
        u = policy(carry.mean)
        following = Gaussian(dynamics(carry.mean, u), jnp.zeros_like(carry.cov))
        return following, Gaussian(jnp.concatenate([carry.mean, u]), jnp.zeros((carry.size + u.shape[0],) * 2))


Predictor = Unfiltered | Filtered | MostLikely


class Prediction(eqx.Module):
    """A predicted run: latent states and costs at steps 0..T, actions at steps 0..T-1."""

    state_mean: Float[Array, "times state"]
    state_cov: Float[Array, "times state state"]
    action_mean: Float[Array, "steps action"]
    action_cov: Float[Array, "steps action action"]
    cost_mean: Float[Array, " times"]
    cost_variance: Float[Array, " times"]
    diverged: Array
    """Whether the prediction left every plausible range; from then on it stands still and costs 1 per step."""

    @property
    @float64
    def total_cost(self) -> Float[Array, ""]:
        """J (Eq. 6 with gamma = 1): the sum of the expected costs, the first state's included."""
        return jnp.sum(self.cost_mean)


@float64
def predict(
    predictor: Predictor, policy: Policy, dynamics: Dynamics, initial: Gaussian, cost: SaturatingCost, steps: int
) -> Prediction:
    """Predict `steps` steps from the initial state (Algorithm 1, lines 6 and 7)."""
    return _predict_from(predictor.start(initial), predictor, policy.map(), dynamics, cost, steps)


@float64
def predict_in_parts(
    predictor: Predictor,
    policy: Policy,
    dynamics: Dynamics,
    initial: Gaussian,
    cost: SaturatingCost,
    steps: int,
    points: Float[Array, "parts state"],
) -> Prediction:
    """The same from each part of the initial state by itself, and what it comes to over all parts.

    Args:
        points: Where the parts of `N(0, I)` have their means (`parts.standard_points`).
    """
    if isinstance(predictor, MostLikely):
        raise ValueError("A most likely trajectory starts from one state: predict it with `predict`.")
    ready = policy.map()

    def one(start: Any) -> Prediction:
        return _predict_from(start, predictor, ready, dynamics, cost, steps)

    return _mixture(jax.lax.map(one, predictor.starts(initial, dynamics, points)))


def can_be_cut(predictor: Predictor) -> bool:
    """Whether a prediction can be made in parts: one trajectory has none, and the update as printed loses them."""
    return isinstance(predictor, Unfiltered) or (isinstance(predictor, Filtered) and predictor.update == "conserving")


def _mixture(each: Prediction) -> Prediction:
    """Mean and covariance over predictions of equal weight, which are along the first axis."""

    def moments(mean: Array, cov: Array) -> tuple[Array, Array]:
        whole = jnp.mean(mean, axis=0)
        away = mean - whole
        return whole, jnp.mean(cov, axis=0) + jnp.einsum("kti,ktj->tij", away, away) / len(away)

    cost, variance = moments(each.cost_mean[..., None], each.cost_variance[..., None, None])
    return Prediction(
        *moments(each.state_mean, each.state_cov),
        *moments(each.action_mean, each.action_cov),
        cost[:, 0],
        variance[:, 0, 0],
        each.diverged.any(),
    )


def _predict_from(
    start: Any,  # what each predictor carries is its own affair
    predictor: Predictor,
    ready: PolicyMap,
    dynamics: Dynamics,
    cost: SaturatingCost,
    steps: int,
) -> Prediction:
    first = predictor.state(start)
    states = first.size

    def out_of_range(state: Gaussian) -> Array:
        inside = (jnp.abs(state.mean) < DIVERGED).all() & (diagonal(state.cov) < DIVERGED**2).all()
        return ~(inside & jnp.isfinite(state.cov).all())

    def step(carry, _):  # type: ignore[no-untyped-def]
        current, diverged = carry
        following, state_action = predictor.step(current, ready, dynamics)
        diverged = diverged | out_of_range(predictor.state(following))
        # After a divergence the start is propagated again and again: finite values, and no gradient from them.
        following = jax.tree.map(lambda new, safe: jnp.where(diverged, safe, new), following, start)
        state = predictor.state(following)
        of_state = cost.moments(state)
        cost_mean = jnp.where(diverged, 1.0, of_state.mean[0])
        cost_variance = jnp.where(diverged, 0.0, of_state.cov[0, 0])
        action = (state_action.mean[states:], state_action.cov[states:, states:])
        return (following, diverged), (state.mean, state.cov, *action, cost_mean, cost_variance)

    (_, diverged), (means, covs, *actions, costs, variances) = jax.lax.scan(
        step, (_depending_on(ready, start), jnp.asarray(False)), length=steps
    )
    first_cost = cost.moments(first)

    def with_first(value: Array, rest: Array) -> Array:
        return jnp.concatenate([value[None], rest])

    return Prediction(
        with_first(first.mean, means),
        with_first(first.cov, covs),
        actions[0],
        actions[1],
        with_first(first_cost.mean[0], costs),
        with_first(first_cost.cov[0, 0], variances),
        diverged,
    )


@jax.custom_vjp
def _depending_on(ready: PolicyMap, start: Any) -> Any:
    """`start`, as if the policy had a part in it.

    The derivative of a scan is traced anew until it is known which parts of its carry have one. From the second step on
    all have. Told so about the first, JAX has it right at once.
    """
    return start


_depending_on.defvjp(lambda ready, start: (start, None), lambda _, along_start: (None, along_start))
