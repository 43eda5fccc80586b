"""The filter: what is believed about the state, and, when predicting, what may come to be believed.

While a policy runs, a belief is `b ~ N(m, V)`; observations update it, the model predicts it forward (Section 3.1).
When the run is predicted, the observations are not known yet, so the belief's mean is itself uncertain,
`M ~ N(mu, S)`, with `V` a fixed matrix per step (Section 3.2). The order is the same in both: update with the
observation, act, predict. The initial distribution is the prior *before* the first observation.
"""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bayespilco.dynamics import Dynamics
from bayespilco.gaussian import Gaussian, diagonal, diagonal_matrix, joint, symmetrise
from bayespilco.policy import PolicyMap
from bayespilco.shrink import shrink

Update = Literal["conserving", "literal"]


def _innovation(
    V: Float[Array, "state state"], R: Float[Array, "state state"], seen: Bool[Array, " state"] | bool = True
) -> Float[Array, "state state"]:
    """`(V + R)^-1` over the sensors that were seen, and zero elsewhere, as if the noise of the others were infinite."""
    variances = diagonal(R)
    beyond = V + R - diagonal_matrix(variances)  # sensors may be correlated; what is not diagonal joins V
    precision = jnp.where(seen, 1 / variances, 0.0)
    return shrink(diagonal_matrix(precision), beyond, diagonal_matrix(jnp.sqrt(precision)))[0]


class Belief(eqx.Module):
    """`b ~ N(m, V)`: one executed belief."""

    mean: Float[Array, " state"]
    cov: Float[Array, "state state"]

    def update(self, observation: Float[Array, " state"], R: Float[Array, "state state"]) -> "Belief":
        """Combine with an observation (Eqs. 7-9), with those of its entries that are finite: NaN is a missing sample.

        `W_z = V (V + R)^-1` is the weight of the observation, and that of the prior, `W_m = I - W_z`, is `R (V + R)^-1`
        where there is one (below Eq. 9).
        """
        m, V, seen = self.mean, self.cov, jnp.isfinite(observation)
        inverse = _innovation(V, R, seen)
        Wz = V @ inverse
        Wm = jnp.where(seen[:, None], R @ inverse, jnp.eye(V.shape[0]) - Wz)
        return Belief(m + Wz @ jnp.where(seen, observation - m, 0.0), symmetrise(Wm @ V))

    def act(self, policy: PolicyMap) -> Float[Array, " action"]:
        return policy.at_belief(Gaussian(self.mean, self.cov))

    def predict(self, dynamics: Dynamics, action: Float[Array, " action"]) -> "Belief":
        """Appendix A on the joint of belief and action, whose action block is zero (Eqs. 11-14)."""
        known = Gaussian(jnp.concatenate([self.mean, action]), jnp.pad(self.cov, (0, action.shape[0])))
        following = dynamics.moments(known)
        return Belief(following.mean, following.cov)


class BeliefDistribution(eqx.Module):
    """`B ~ N(M, V)` with `M ~ N(mu, S)`: the beliefs that may be held at one step of a predicted run."""

    mean: Gaussian
    """`M ~ N(mu, S)`."""
    cov: Float[Array, "state state"]
    """`V`."""

    @property
    def state(self) -> Gaussian:
        """The latent state (Eq. 21): the distribution over beliefs, flattened."""
        return Gaussian(self.mean.mean, self.mean.cov + self.cov)

    def update(self, R: Float[Array, "state state"], how: Update = "conserving") -> "BeliefDistribution":
        """What an observation not yet made will do to the belief (Eqs. 15-16, corrected).

        The observation `Z = X + e` shares the latent state with the belief, so `Cov[M, Z] = S`. Then the spread of the
        mean gains exactly what the belief's covariance loses: `S + V` is conserved. The paper sets `Cov[M, Z] = 0`
        ("literal"), which loses variance at every step.
        """
        S, V = self.mean.cov, self.cov
        Wz = V @ _innovation(V, R)
        updated = symmetrise(R @ Wz.T)
        if how == "conserving":
            spread = S + symmetrise(Wz @ V)
        else:
            Wm = jnp.eye(V.shape[0]) - Wz
            spread = symmetrise(Wm @ S @ Wm.T + Wz @ (S + V + R) @ Wz.T)
        return BeliefDistribution(Gaussian(self.mean.mean, spread), updated)

    def act(self, policy: PolicyMap) -> Gaussian:
        """The joint of belief mean and action (Eqs. 19-20)."""
        return joint(self.mean, policy.belief_moments(self.mean, self.cov))

    def predict(self, dynamics: Dynamics, mean_action: Gaussian) -> "BeliefDistribution":
        """Appendix B on that joint."""
        moments, cov = dynamics.belief_moments(mean_action, self.cov)
        return BeliefDistribution(moments.output, cov)
