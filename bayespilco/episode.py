"""Recorded experience: one `Episode` per run of the plant, and `Trials`, many of them as one batch to train on."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.precision import as_float64, is_concrete, optional_float64


class Episode(eqx.Module):
    """What happened in one run: observations at steps 0..T, actions at 0..T-1, and in simulation the truth as well."""

    observations: Float[Array, "times state"] = eqx.field(converter=as_float64)
    """NaN where a sample is missing. A model learns from complete samples, and bridges those with anything missing."""
    actions: Float[Array, "steps action"] = eqx.field(converter=as_float64)
    states: Float[Array, "times state"] | None = eqx.field(converter=optional_float64, default=None)
    """The latent states, known only in simulation; no learner looks at them."""
    costs: Float[Array, " times"] | None = eqx.field(converter=optional_float64, default=None)
    """The costs of the latent states; on a real plant, of the observations."""

    def __check_init__(self) -> None:
        z, u = self.observations, self.actions
        if z.ndim != 2 or u.ndim != 2 or z.shape[0] != u.shape[0] + 1:
            raise ValueError(
                "An Episode needs observations of shape (steps + 1, state) and actions of shape (steps, action): one "
                f"more observation than actions; given {z.shape} and {u.shape}."
            )
        if u.shape[0] < 1:
            raise ValueError("An Episode needs at least one action and two observations; this one has no transition.")
        for name, extra, shape in (("states", self.states, z.shape), ("costs", self.costs, z.shape[:1])):
            if extra is not None and extra.shape != shape:
                raise ValueError(
                    f"{name} of an Episode must have shape {shape}, like its observations; given {extra.shape}."
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

    observations: Float[Array, "trials times state"]
    actions: Float[Array, "trials steps action"]
    observed: Bool[Array, "trials times"]
    """Which observations are complete: false where an entry is missing, and on padding."""

    @property
    def lasting(self) -> Bool[Array, "trials times"]:
        """Where an observation is still to come, or there: false on the padding behind the last one."""
        return jnp.flip(jax.lax.cummax(jnp.flip(self.observed.astype(jnp.int32), 1), axis=1), 1) > 0

    @property
    def transitions(self) -> Bool[Array, "trials steps"]:
        """Which steps are known from both their ends."""
        return self.observed[:, :-1] & self.observed[:, 1:]


TRIAL_SIZES = (2, 6, 12, 24, 48, 96)


def batch(episodes: Sequence[Episode]) -> Trials:
    """Stack episodes of any length into one padded batch."""
    if not episodes:
        raise ValueError("No episodes to learn from: give at least one.")
    shapes = {(e.observations.shape[1], e.actions.shape[1]) for e in episodes}
    if len(shapes) > 1:
        raise ValueError(f"All episodes must have the same numbers of states and actions; given {sorted(shapes)}.")
    steps = max(e.steps for e in episodes)
    trials = next((size for size in TRIAL_SIZES if size >= len(episodes)), len(episodes))
    (states, actions), *_ = shapes
    z = np.zeros((trials, steps + 1, states))
    u = np.zeros((trials, steps, actions))
    observed = np.zeros((trials, steps + 1), dtype=bool)
    for k, episode in enumerate(episodes):
        complete = np.isfinite(np.asarray(episode.observations)).all(axis=1)
        z[k, : episode.steps + 1] = np.where(complete[:, None], episode.observations, 0.0)
        u[k, : episode.steps] = episode.actions
        observed[k, : episode.steps + 1] = complete
    return Trials(as_float64(z), as_float64(u), jnp.asarray(observed))
