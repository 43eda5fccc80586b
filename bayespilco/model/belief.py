"""The filter: what is believed about the state, and, when predicting, what may come to be believed.

While a policy runs, a belief is `b ~ N(m, V)`; observations update it, the model predicts it forward (Section 3.1).
When the run is predicted, the observations are not known yet, so the belief's mean is itself uncertain,
`M ~ N(mu, S)`, with `V` a fixed matrix per step (Section 3.2). The order is the same in both: update with the
observation, act, predict. The initial distribution is the prior *before* the first observation.
"""

from typing import Literal, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.gaussian import Gaussian, Moments, joint, symmetrise
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.sensors import Sensors, as_sensors

Update = Literal["conserving", "literal"]


@runtime_checkable
class ActsOnBeliefs(Protocol):
    """A policy, as far as the filter knows it (`control.policy.PolicyMap`)."""

    def at_belief(self, belief: Gaussian) -> Float[Array, " action"]: ...
    def belief_moments(self, gaussian: Gaussian, cov: Float[Array, "state state"]) -> Moments: ...


class Belief(eqx.Module):
    """`b ~ N(m, V)`: one executed belief."""

    mean: Float[Array, " state"]
    cov: Float[Array, "state state"]

    @property
    def gaussian(self) -> Gaussian:
        return Gaussian(self.mean, self.cov)

    def update(self, observation: Float[Array, " sensor"], sensors: Sensors | Array) -> "Belief":
        """Combine with an observation (Eqs. 7-9), with those of its entries that are finite: NaN is a missing sample.

        `W_z = V (V + R)^-1` is the weight of the observation, and that of the prior, `W_m = I - W_z`, is `R (V + R)^-1`
        where there is one (below Eq. 9); with a sensor matrix C, `V C' (C V C' + R)^-1`.
        """
        return Belief(*as_sensors(sensors).condition(self.mean, self.cov, observation))

    def act(self, policy: ActsOnBeliefs) -> Float[Array, " action"]:
        return policy.at_belief(self.gaussian)

    def predict(self, dynamics: Dynamics, action: Float[Array, " action"], t: Array | int = 0) -> "Belief":
        """Appendix A on the joint of belief and action, whose action block is zero (Eqs. 11-14)."""
        known = Gaussian(jnp.concatenate([self.mean, action]), jnp.pad(self.cov, (0, action.shape[0])))
        following = dynamics.moments(known, t)
        return Belief(following.mean, following.cov)


class BeliefDistribution(eqx.Module):
    """`B ~ N(M, V)` with `M ~ N(mu, S)`: the beliefs that may be held at one step of a predicted run."""

    mean: Gaussian
    """`M ~ N(mu, S)`."""
    cov: Float[Array, "state state"]
    """`V`."""
    looked_from: Gaussian | None = None
    """The latent state as the next observation meets it, if that is not `state` (`control.prediction.Filtered.starts`).
    The noise of sensors may depend on it."""

    @property
    def state(self) -> Gaussian:
        """The latent state (Eq. 21): the distribution over beliefs, flattened."""
        return Gaussian(self.mean.mean, self.mean.cov + self.cov)

    def looking(self, sensors: Sensors | Array) -> Sensors:
        """The sensors, with the noise that they have where the state is expected."""
        where = self.state if self.looked_from is None else self.looked_from
        return as_sensors(sensors).at(where.mean, where.cov)

    def update(self, sensors: Sensors | Array, how: Update = "conserving", t: Array | int = 0) -> "BeliefDistribution":
        """What an observation not yet made will do to the belief (Eqs. 15-16, corrected).

        The observation `Z = C X + e` shares the latent state with the belief, so `Cov[M, Z] = S C'`. Then the spread of
        the mean gains exactly what the belief's covariance loses: `S + V` is conserved. The paper sets `Cov[M, Z] = 0`
        ("literal"), which loses variance at every step.
        """
        S, V, sensors = self.mean.cov, self.cov, self.looking(sensors)
        Wz, updated, learned = sensors.expected_update(V, t)
        if how == "conserving":
            spread = S + learned
        else:
            Wm = jnp.eye(V.shape[0]) - Wz @ sensors.C
            spread = symmetrise(Wm @ S @ Wm.T + Wz @ (sensors.of_cov(S + V) + sensors.R) @ Wz.T)
        return BeliefDistribution(Gaussian(self.mean.mean, spread), updated, self.looked_from)

    def act(self, policy: ActsOnBeliefs) -> tuple[Gaussian, Float[Array, "state action"]]:
        """The joint of belief mean and action (Eqs. 19-20), and the action's gain."""
        action = policy.belief_moments(self.mean, self.cov)
        return joint(self.mean, action), action.gain

    def predict(
        self, dynamics: Dynamics, mean_action: Gaussian, t: Array | int = 0
    ) -> "tuple[BeliefDistribution, Float[Array, 'both state']]":
        """Appendix B on that joint, and the gain from it to the next belief's mean."""
        moments, cov = dynamics.belief_moments(mean_action, self.cov, t)
        following = BeliefDistribution(moments.output, cov)
        if self.looked_from is not None:
            following = BeliefDistribution(moments.output, cov, following.state)
        return following, moments.gain


def start(initial: Gaussian, known: tuple[int, ...] = ()) -> BeliefDistribution:
    """The beliefs before the first observation: all at the initial mean, with all of its covariance.

    Except for `known` states, which the filter knows from the start: there the mean is spread instead.
    """
    seen = np.zeros(initial.size, dtype=bool)
    seen[list(known)] = True
    both = seen[:, None] | seen[None, :]
    spread = jnp.where(both, initial.cov, 0.0)
    return BeliefDistribution(Gaussian(initial.mean, spread), initial.cov - spread)
