"""The evidence of a trajectory model by Laplace's method, and the best weights for given hyperparameters.

To first order the whitened innovations `e` of the filter (see `trajectory`) are linear in the weights `w ~ N(0, I)`,
with Jacobian `J`. So the weights have the posterior `N(w*, (I + J'J)^-1)`, and the data the evidence

    -log p(z) = 1/2 |e|^2 + sum_t log |S_t|^1/2 + 1/2 |w*|^2 + 1/2 log |I + J'J| + constants
"""

import equinox as eqx
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float

from bayespilco.core.compilation import compiled
from bayespilco.model.episode import Trials
from bayespilco.training.trajectory import Layout, Parameters, build, filter_trials

PRIOR = {"length_scale": (2.0, 1.0), "signal": (0.3, 1.5), "sensor": (0.1, 2.0), "process": (0.01, 2.0)}
"""Weak log-normal priors (median in units of the data's spread, standard deviation of the logarithm): what the data say
nothing about stays within reason. Two standard deviations of the noises span a factor of 50 each way."""


@compiled
def negative_log_evidence(p: Parameters, layout: Layout, trials: Trials) -> Float[Array, ""]:
    """-log p(z), approximately, with the priors of the hyperparameters."""
    found = filter_trials(build(p, layout), trials)
    root = jnp.linalg.cholesky(jnp.eye(p.weights.size) + found.gram)
    constant = jnp.sum(trials.observed) * jnp.log(2 * jnp.pi) / 2
    fit = jnp.sum(found.white**2) / 2 + found.log_det + constant
    complexity = jnp.sum(p.weights**2) / 2 + jnp.sum(jnp.log(jnp.diag(root)))
    return fit + complexity + _prior(p, layout)


def _prior(p: Parameters, layout: Layout) -> Float[Array, ""]:
    # What is not known of a known row, such as a position, is small beside what a step moves it by: that is its unit.
    median, std = PRIOR["process"]
    unit = jnp.ones(p.log_process.shape).at[layout.known_rows].set(layout.known_row_scale)
    return (
        _away(p.log_length_scales, *PRIOR["length_scale"])
        + _away(p.log_signal, *PRIOR["signal"])
        + _away(p.log_sensor, *PRIOR["sensor"])
        + _away(p.log_process, median * unit, std)
    )


def _away(value: Array, median: float | Array, std: float) -> Float[Array, ""]:
    """-log of a log-normal prior, up to a constant."""
    return jnp.sum(((value - jnp.log(median)) / std) ** 2) / 2


class Linearised(eqx.Module):
    """The problem linearised at given weights."""

    value: Float[Array, ""]
    """1/2 |e|^2 + sum log |S|^1/2 + 1/2 |w|^2."""
    step: Float[Array, "output basis"]
    """The Gauss-Newton step."""
    root: Float[Array, "weights weights"]
    """Lower Cholesky factor of `I + J'J`."""
    states: Float[Array, "trials times state"]
    """What the filter believes."""


@compiled
def linearise(p: Parameters, layout: Layout, trials: Trials) -> Linearised:
    found = filter_trials(build(p, layout), trials)
    J, w = found.jacobian, p.weights.reshape(-1)
    root = jnp.linalg.cholesky(jnp.eye(w.shape[0]) + found.gram)
    step = -jsl.cho_solve((root, True), J.T @ found.white + w)
    value = jnp.sum(found.white**2) / 2 + found.log_det + jnp.sum(w**2) / 2
    return Linearised(value, step.reshape(p.weights.shape), root, found.states)


SETTLING = (0.5, 0.2, 0.05)
"""Process noises that weights are found with before those of the model itself, in units of the states' spread."""


def settle(p: Parameters, layout: Layout, trials: Trials) -> Parameters:
    """The best weights for given hyperparameters, by Gauss-Newton.

    First with much process noise: then the filter follows the data, and the problem is close to a linear regression,
    whatever the weights it begins with. Then with less and less. A model with little noise has to follow whole
    trajectories. Where the plant is unstable it cannot at first, and it would rather call the data noise.
    """
    for noise in SETTLING:
        noisy = eqx.tree_at(lambda q: q.log_process, p, jnp.maximum(p.log_process, jnp.log(noise)))
        p = eqx.tree_at(lambda q: q.weights, p, _gauss_newton(noisy, layout, trials).weights)
    return _gauss_newton(p, layout, trials)


def _gauss_newton(p: Parameters, layout: Layout, trials: Trials, iterations: int = 10) -> Parameters:
    here = linearise(p, layout, trials)
    for _ in range(iterations):
        for length in (1.0, 0.3, 0.1, 0.03, 0.01):
            tried = eqx.tree_at(lambda q: q.weights, p, p.weights + length * here.step)
            there = linearise(tried, layout, trials)
            if float(there.value) < float(here.value):
                break
        else:
            return p
        gain = float(here.value) - float(there.value)
        p, here = tried, there
        if gain < 0.05:  # nats
            break
    return p
