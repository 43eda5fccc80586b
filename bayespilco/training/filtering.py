"""What the noisy series themselves say of a model: one filter pass per trial, and the likelihood of what it met.

The state is never seen, only `z_t = x_t + e_t`. So a model of the plant is judged by how well it foresees each
observation from those before it: update the belief with `z_t`, predict through the model, compare with `z_{t+1}`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.core.compilation import compiled
from bayespilco.core.gaussian import Gaussian, diagonal
from bayespilco.core.linalg import inverse_root
from bayespilco.core.precision import float64
from bayespilco.model.belief import Belief, start
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Trials
from bayespilco.training.likelihood import LOG_2PI


@float64
def negative_log_evidence(dynamics: Dynamics, trials: Trials, initial: Gaussian) -> Float[Array, ""]:
    """`sum over trials and t of -log N(z_t; mu_t, Sig_t + R)`, with `(mu_t, Sig_t)` the filter's predictions.

    `initial` is the prior of a trial's first state, before its first observation. For a linear model this is the
    Kalman filter's likelihood, exactly.
    """
    one = eqx.Partial(_one_trial, dynamics, initial)
    costs, _ = jax.vmap(one)(trials.observations, trials.actions, trials.observed, trials.active)
    return jnp.sum(costs)


@compiled
def filtered_states(dynamics: Dynamics, trials: Trials, initial: Gaussian) -> Float[Array, "trials times state"]:
    """Where the filter believes the plant was: its means after each observation."""
    one = eqx.Partial(_one_trial, dynamics, initial)
    _, means = jax.vmap(one)(trials.observations, trials.actions, trials.observed, trials.active)
    return means


def _one_trial(
    dynamics: Dynamics,
    initial: Gaussian,
    observations: Float[Array, "times sensor"],
    actions: Float[Array, "steps action"],
    observed: Bool[Array, "times sensor"],
    active: Bool[Array, " times"],
) -> tuple[Float[Array, ""], Float[Array, "times state"]]:
    """How surprising a trial was, and the means after each observation."""
    sensors = dynamics.sensors
    prior = Belief(initial.mean, start(initial, dynamics.structure.known).cov)

    def surprise(belief: Belief, z: Array, seen: Array) -> Array:
        """-log N of the entries that were seen; the others have no part in it."""
        both, here = seen[:, None] & seen[None, :], sensors.at(belief.mean, belief.cov)
        H = inverse_root(jnp.where(both, sensors.of_cov(belief.cov) + here.R, np.eye(sensors.count)))
        residual = jnp.where(seen, z - sensors(belief.mean), 0.0)
        whitened = H @ residual
        return jnp.sum(whitened**2) / 2 - jnp.sum(jnp.log(diagonal(H))) + jnp.sum(seen) * LOG_2PI / 2

    def step(belief: Belief, now: tuple[Array, ...]) -> tuple[Belief, tuple[Array, Array]]:
        z, u, seen, lasts, t = now
        # Padding starts from the prior again and again, so that a belief running away there cannot spoil the gradient.
        # A sample that is missing before that is bridged by prediction.
        belief = jax.tree.map(lambda b, p: jnp.where(lasts, b, p), belief, prior)
        cost = surprise(belief, z, seen)
        updated = belief.update(jnp.where(seen, z, jnp.nan), sensors)
        return updated.predict(dynamics, u, t), (cost, updated.mean)

    times = jnp.arange(actions.shape[0])
    last, (costs, means) = jax.lax.scan(step, prior, (observations[:-1], actions, observed[:-1], active[:-1], times))
    last = jax.tree.map(lambda b, p: jnp.where(active[-1], b, p), last, prior)
    z, seen = observations[-1], observed[-1]
    end = last.update(jnp.where(seen, z, jnp.nan), sensors)
    return jnp.sum(costs) + surprise(last, z, seen), jnp.concatenate([means, end.mean[None]])
