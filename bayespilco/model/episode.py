"""Recorded experience: one `Episode` per run of the plant, and `Trials`, many of them as one batch to train on."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.core.precision import as_float64, is_concrete, optional_float64


class Episode(eqx.Module):
    """What happened in one run: observations at steps 0..T, actions at 0..T-1, and in simulation the truth as well."""

    observations: Float[Array, "times sensor"] = eqx.field(converter=as_float64)
    """NaN where a sample is missing. An incomplete sample contributes what it has."""
    actions: Float[Array, "steps action"] = eqx.field(converter=as_float64)
    states: Float[Array, "times state"] | None = eqx.field(converter=optional_float64, default=None)
    """The latent states, known only in simulation; no learner looks at them."""
    costs: Float[Array, " times"] | None = eqx.field(converter=optional_float64, default=None)
    """The costs of the latent states; on a real plant, of the observations."""
    reached: Bool[Array, " times"] | None = None
    """Whether the state was at the goal, by the cost's own measure."""

    def __check_init__(self) -> None:
        z, u = self.observations, self.actions
        if z.ndim != 2 or u.ndim != 2 or z.shape[0] != u.shape[0] + 1:
            raise ValueError(
                "An Episode needs observations of shape (steps + 1, sensor) and actions of shape (steps, action): one "
                f"more observation than actions; given {z.shape} and {u.shape}."
            )
        if u.shape[0] < 1:
            raise ValueError("An Episode needs at least one action and two observations; this one has no transition.")
        for name, extra, axes in (("states", self.states, 2), ("costs", self.costs, 1)):
            if extra is not None and (extra.ndim != axes or extra.shape[0] != z.shape[0]):
                raise ValueError(
                    f"{name} of an Episode must have {axes} axes and as many rows as its observations, {z.shape[0]}; "
                    f"given shape {extra.shape}."
                )
        for name, value, bad in (("observations", z, np.isinf), ("actions", u, lambda u: ~np.isfinite(u))):
            if is_concrete(value) and bad(np.asarray(value)).any():
                row = int(np.argwhere(bad(np.asarray(value)))[0, 0])
                raise ValueError(
                    f"{name} of an Episode must be finite; row {row} is {np.asarray(value)[row]}. Cut the episode "
                    "there, or drop it; an observation that is missing is NaN."
                )

    @property
    def steps(self) -> int:
        return self.actions.shape[0]


class Trials(eqx.Module):
    """Episodes as one batch, padded with zeros to common sizes so that compiled code is reused as data grows."""

    observations: Float[Array, "trials times sensor"]
    """Zero where there is nothing."""
    actions: Float[Array, "trials steps action"]
    observed: Bool[Array, "trials times sensor"]
    """Which entries are there: false where a sample is missing, and on padding."""

    @property
    def active(self) -> Bool[Array, "trials times"]:
        """Where something was observed, or still will be: false on the padding behind the last sample."""
        some = jnp.any(self.observed, axis=2).astype(jnp.int32)
        return jnp.flip(jax.lax.cummax(jnp.flip(some, 1), axis=1), 1) > 0

    @property
    def complete(self) -> Bool[Array, "trials times"]:
        """Which samples have all their entries."""
        return jnp.all(self.observed, axis=2)

    @property
    def transitions(self) -> Bool[Array, "trials steps"]:
        """Which steps are known completely from both their ends."""
        return self.complete[:, :-1] & self.complete[:, 1:]


TRIAL_SIZES = (2, 6, 12, 24, 48, 96)


def batch(episodes: Sequence[Episode]) -> Trials:
    """Stack episodes of any length into one padded batch."""
    if not episodes:
        raise ValueError("No episodes to learn from: give at least one.")
    shapes = {(e.observations.shape[1], e.actions.shape[1]) for e in episodes}
    if len(shapes) > 1:
        raise ValueError(f"All episodes must have the same numbers of sensors and actions; given {sorted(shapes)}.")
    steps = max(e.steps for e in episodes)
    trials = next((size for size in TRIAL_SIZES if size >= len(episodes)), len(episodes))
    (sensors, actions), *_ = shapes
    z = np.zeros((trials, steps + 1, sensors))
    u = np.zeros((trials, steps, actions))
    observed = np.zeros((trials, steps + 1, sensors), dtype=bool)
    for k, episode in enumerate(episodes):
        there = np.isfinite(np.asarray(episode.observations))
        z[k, : episode.steps + 1] = np.where(there, episode.observations, 0.0)
        u[k, : episode.steps] = episode.actions
        observed[k, : episode.steps + 1] = there
    return Trials(as_float64(z), as_float64(u), jnp.asarray(observed))
