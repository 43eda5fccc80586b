"""Is the model right about data that it has not seen? The surprises of its filter, against those that it expects.

Along an episode the filter foretells every observation, `z_t ~ N(C m_t + d, S_t)` with `S_t = C V_t C' + R`. The
normalised innovation `(z_t - C m_t - d)' S_t^-1 (z_t - C m_t - d)` is then about as large as there are sensors, chi
square for a linear plant. A learned model errs persistently (it has one function, not a new one per step), so chi
square is not quite what an honest model should meet. The expected range is sampled instead: the same statistics of runs
on plants drawn from the model itself, with the same policy. A model that is right is contradicted as often as the level
of the test says, whatever its filter approximates.
"""

from typing import NamedTuple

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
from bayespilco.model.episode import Episode

SMALLEST_SPREAD = 1e-9
"""Below this the samples of a statistic are all the same: nothing can be said about it."""


class Trace(NamedTuple):
    """What a filter says along an episode."""

    squared: Float[Array, " times"]
    """The normalised innovation squared at each step; 0 where nothing was observed."""
    standardised: Float[Array, "times sensor"]
    """Each sensor's innovation in its own standard deviations; NaN where it was not observed."""
    belief_std: Float[Array, "times state"]
    """What the filter does not know after each observation."""
    belief_mean: Float[Array, "times state"]
    """What it then believes."""


@float64
def filter_trace(dynamics: Dynamics, initial: Gaussian, episode: Episode) -> Trace:
    """Run a model's filter along an episode, or along each of a batch of them (arrays with a leading axis).

    Args:
        initial: The distribution of all rows of the state at the first step, before the first observation.
    """
    if episode.observations.ndim == 2:
        return _trace(dynamics, initial, episode.observations, episode.actions)
    return _traces(dynamics, initial, episode.observations, episode.actions)


@compiled
def _trace(dynamics: Dynamics, initial: Gaussian, observations: Array, actions: Array) -> Trace:
    sensors = dynamics.sensors
    prior = Belief(initial.mean, start(initial, dynamics.structure.known).cov)

    def look(belief: Belief, z: Array) -> tuple[Array, Array, Belief]:
        seen: Bool[Array, " sensor"] = jnp.isfinite(z)
        S = sensors.of_cov(belief.cov) + sensors.at(belief.mean, belief.cov).R
        innovation = jnp.where(seen, z - sensors(belief.mean), 0.0)
        H = inverse_root(jnp.where(seen[:, None] & seen[None, :], S, jnp.eye(sensors.count)))
        alone = jnp.where(seen, innovation / jnp.sqrt(diagonal(S)), jnp.nan)
        return jnp.sum((H @ innovation) ** 2), alone, belief.update(z, sensors)

    def step(belief: Belief, now: tuple[Array, Array, Array]) -> tuple[Belief, tuple[Array, ...]]:
        z, u, t = now
        squared, alone, updated = look(belief, z)
        return updated.predict(dynamics, u, t), (squared, alone, jnp.sqrt(diagonal(updated.cov)), updated.mean)

    times = jnp.arange(actions.shape[0])
    last, (squared, alone, spread, means) = jax.lax.scan(step, prior, (observations[:-1], actions, times))
    squared_last, alone_last, updated = look(last, observations[-1])
    return Trace(
        jnp.concatenate([squared, squared_last[None]]),
        jnp.concatenate([alone, alone_last[None]]),
        jnp.concatenate([spread, jnp.sqrt(diagonal(updated.cov))[None]]),
        jnp.concatenate([means, updated.mean[None]]),
    )


@compiled
def _traces(dynamics: Dynamics, initial: Gaussian, observations: Array, actions: Array) -> Trace:
    return jax.vmap(lambda z, u: _trace(dynamics, initial, z, u))(observations, actions)


class ModelTest(NamedTuple):
    """A model against an episode that it has not seen."""

    p: float
    """How often a model that is right meets surprises as odd as these, or odder."""
    normalised: float
    """The mean of the normalised innovations squared per observed value: about 1 if the model is right."""
    expected: tuple[float, float]
    """Where 95 % of these means are if the model is right."""
    oddest: str
    """The statistic that differs most from its expected range, in words."""
    by_sensor: dict[str, float]
    """Each sensor's mean squared innovation, in units of what the model expects of it."""

    @property
    def sentence(self) -> str:
        low, high = self.expected
        return (
            f"normalised innovations {self.normalised:.2f}, expected {low:.2f} to {high:.2f}; p = {self.p:.3f}"
            f" (most unusual: {self.oddest})"
        )


def statistics(squared: np.ndarray, standardised: np.ndarray) -> np.ndarray:
    """What is compared, for one episode or a batch: shape (..., 1 + 3 sensors).

    The mean normalised innovation squared per observed value; and of each sensor's standardised innovations the mean
    square, the mean and the correlation of neighbours, which is about 0 if they are white.
    """
    seen = np.isfinite(standardised)
    count = np.maximum(seen.sum(axis=-2), 1)
    v = np.where(seen, standardised, 0.0)
    square = (v**2).sum(axis=-2) / count
    neighbours = (v[..., 1:, :] * v[..., :-1, :]).sum(axis=-2) / count / np.maximum(square, 1e-300)
    whole = squared.sum(axis=-1) / np.maximum(seen.sum(axis=(-2, -1)), 1)
    # A ratio of squares varies on a logarithmic scale.
    parts = [np.log(np.maximum(whole, 1e-300))[..., None], np.log(np.maximum(square, 1e-300))]
    return np.concatenate([*parts, v.sum(axis=-2) / count, neighbours], axis=-1)


def compare_innovations(executed: Trace, sampled: Trace, names: tuple[str, ...]) -> ModelTest:
    """Test an episode's innovations against those of runs on plants drawn from the model.

    Every statistic is measured in the samples' own spread around their median, and the largest such distance is the
    test's statistic. Its distribution is that of the samples' own largest distances.

    Args:
        names: Of the sensors.
    """
    one = statistics(np.asarray(executed.squared), np.asarray(executed.standardised))
    many = statistics(np.asarray(sampled.squared), np.asarray(sampled.standardised))
    usable = np.isfinite(many).all(axis=1)  # a sampled run that left every range tells nothing
    if not usable.any():
        raise ValueError("None of the sampled runs stayed within the range of numbers: the model cannot be tested.")
    many = many[usable]
    middle = np.median(many, axis=0)
    spread = 1.4826 * np.median(np.abs(many - middle), axis=0)  # as a standard deviation, if they were normal
    known = spread > SMALLEST_SPREAD
    away = np.where(known, np.abs(one - middle) / np.where(known, spread, 1.0), 0.0)
    away = np.where(np.isfinite(away), away, np.inf)
    away_many = np.where(known, np.abs(many - middle) / np.where(known, spread, 1.0), 0.0)
    odder = int((away_many.max(axis=1) >= away.max()).sum())
    labels = ["all innovations", *(f"{what} of {name}" for what in ("size", "mean", "correlation") for name in names)]
    low, high = np.exp(np.quantile(many[:, 0], (0.025, 0.975)))
    expected = np.exp(middle[1 : 1 + len(names)])
    return ModelTest(
        p=(1 + odder) / (1 + len(many)),
        normalised=float(np.exp(one[0])),
        expected=(float(low), float(high)),
        oddest=labels[int(np.argmax(away))],
        by_sensor={name: float(np.exp(one[1 + i]) / expected[i]) for i, name in enumerate(names)},
    )
