"""The learned plant: a GP on `[x, u, sin, cos]`, and the two noises that belong to it.

`R` is what the sensors add to a state when they report it; `Q` is what the plant adds to a state when it moves.
The GP's own pseudo-noise has done its work in `GaussianProcess.precision` and appears nowhere else.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian, Moments, diagonal_matrix
from bayespilco.gp import GaussianProcess
from bayespilco.moments import belief_moments, gp_moments
from bayespilco.precision import as_float64, float64, is_concrete


class Dynamics(eqx.Module):
    """The next state as a function of `[x, u]`, under uncertainty of the input, of the function, and of the plant."""

    gp: GaussianProcess
    features: AngleFeatures
    """From `[x, u]` to the GP's input `[x, u, sin, cos]`."""
    sensor_noise: Float[Array, " state"] = eqx.field(converter=as_float64)
    """The diagonal of R: variances of the observation's noise."""
    process_noise: Float[Array, " state"] = eqx.field(converter=as_float64)
    """The diagonal of Q."""

    def __check_init__(self) -> None:
        inputs = self.gp.inputs.shape[1]
        if self.features.size != inputs:
            raise ValueError(
                f"The features of a Dynamics must be the GP's inputs, [x, u, sin, cos]: they have {self.features.size} "
                f"components, and the GP has {inputs} inputs."
            )
        states = (self.gp.offset.shape[0],)
        for name, lowest in (("sensor_noise", "positive"), ("process_noise", "not negative")):
            value = getattr(self, name)
            if value.shape != states:
                raise ValueError(f"{name} must have one variance per state, shape {states}; given {value.shape}.")
            if is_concrete(value):
                good = np.asarray(value) > 0 if lowest == "positive" else np.asarray(value) >= 0
                if not (good & np.isfinite(np.asarray(value))).all():
                    raise ValueError(f"{name} must be finite and {lowest}; given {np.asarray(value)}.")

    @property
    def R(self) -> Float[Array, "state state"]:
        return diagonal_matrix(self.sensor_noise)

    @property
    def Q(self) -> Float[Array, "state state"]:
        return diagonal_matrix(self.process_noise)

    @float64
    def __call__(self, x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
        """The expected next state from a known one."""
        return self.gp(self.features(jnp.concatenate([x, u])))

    @float64
    def moments(self, state_action: Gaussian) -> Moments:
        """The next state from a Gaussian over `[x, u]`, process noise included."""
        inputs = self.features.moments(state_action)
        outputs = inputs.then(gp_moments(self.gp, inputs.output))
        return Moments(outputs.mean, outputs.cov + self.Q, outputs.gain)

    @float64
    def belief_moments(
        self, mean_action: Gaussian, cov: Float[Array, "state state"]
    ) -> tuple[Moments, Float[Array, "state state"]]:
        """The next belief's mean and expected covariance, from the joint of a belief's mean and its action.

        `cov` is the belief's covariance; the action is known to the filter, so its rows and columns are zero.
        """
        actions = mean_action.size - cov.shape[0]
        inputs, inputs_cov = self.features.belief_moments(mean_action, jnp.pad(cov, (0, actions)))
        outputs, outputs_cov = belief_moments(self.gp, inputs.output, inputs_cov)
        return inputs.then(outputs), outputs_cov + self.Q
