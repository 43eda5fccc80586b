"""What the noisy series themselves say of a model: one filter pass per trial, and the likelihood of what it met.

The state is never seen, only `z_t = x_t + e_t`. So a model of the plant is judged by how well it foresees each
observation from those before it: update the belief with `z_t`, predict through the model, compare with `z_{t+1}`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Bool, Float

from bayespilco.belief import Belief
from bayespilco.dynamics import Dynamics
from bayespilco.episode import Trials
from bayespilco.gaussian import Gaussian
from bayespilco.precision import float64
from bayespilco.training.likelihood import LOG_2PI


@float64
def negative_log_evidence(dynamics: Dynamics, trials: Trials, initial: Gaussian) -> Float[Array, ""]:
    """`sum over trials and t of -log N(z_t; mu_t, Sig_t + R)`, with `(mu_t, Sig_t)` the filter's predictions.

    `initial` is the prior of a trial's first state, before its first observation. For a linear model this is the
    Kalman filter's likelihood, exactly.
    """
    one = eqx.Partial(_one_trial, dynamics, initial)
    return jnp.sum(jax.vmap(one)(trials.observations, trials.actions, trials.observed, trials.lasting))


def _one_trial(
    dynamics: Dynamics,
    initial: Gaussian,
    observations: Float[Array, "times state"],
    actions: Float[Array, "steps action"],
    observed: Bool[Array, " times"],
    lasting: Bool[Array, " times"],
) -> Float[Array, ""]:
    R = dynamics.R
    prior = Belief(initial.mean, initial.cov)

    def surprise(belief: Belief, z: Array) -> Array:
        L = jnp.linalg.cholesky(belief.cov + R)
        whitened = jsl.solve_triangular(L, z - belief.mean, lower=True)
        return jnp.sum(whitened**2) / 2 + jnp.sum(jnp.log(jnp.diag(L))) + z.shape[0] * LOG_2PI / 2

    def step(belief: Belief, now: tuple[Array, ...]) -> tuple[Belief, Array]:
        z, u, real, lasts = now
        # Padding starts from the prior again and again, so that a belief running away there cannot spoil the gradient.
        # A sample that is missing before that is bridged by prediction.
        belief = jax.tree.map(lambda b, p: jnp.where(lasts, b, p), belief, prior)
        cost = jnp.where(real, surprise(belief, z), 0.0)
        return belief.update(jnp.where(real, z, jnp.nan), R).predict(dynamics, u), cost

    last, costs = jax.lax.scan(step, prior, (observations[:-1], actions, observed[:-1], lasting[:-1]))
    last = jax.tree.map(lambda b, p: jnp.where(observed[-1], b, p), last, prior)
    return jnp.sum(costs) + jnp.where(observed[-1], surprise(last, observations[-1]), 0.0)
