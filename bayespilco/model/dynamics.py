"""The learned plant: known rows around a GP (`structure`), process noise, and the sensors that look at it.

    x' = L x + M u + B y + k_t + w,   y ~ GP of features of [x, u],   w ~ N(0, Q);      z = C x + d + e,   e ~ N(0, R)

With `a = [x, u] ~ N(m, S)`, `N = [L M]`, and the GP's moments there (mean `mu_y`, covariance `S_y`, gain `G`), so that
`Cov[a, y] = S G`:

    mean  N m + B mu_y + k        cov  N S N' + B S_y B' + N S G B' + (N S G B')' + Q        gain  N' + G B'

Where positions follow their rates, the slope `G` corrects `N` and `B` a little (`Structure.around`). The GP's own
pseudo-noise has done its work in `GaussianProcess.precision` and appears nowhere else.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, Moments, diagonal_matrix
from bayespilco.core.gp import GaussianProcess
from bayespilco.core.moments import belief_moments, cross_cov, gp_moments
from bayespilco.core.precision import as_float64, float64, is_concrete
from bayespilco.model.sensors import Sensors, as_sensors
from bayespilco.model.structure import Structure, free


class Dynamics(eqx.Module):
    """The next state as a function of `[x, u]`, under uncertainty of the input, of the function, and of the plant."""

    gp: GaussianProcess
    features: AngleFeatures
    """From `[x, u]` to the GP's input."""
    sensors: Sensors = eqx.field(converter=as_sensors)
    """Variances alone mean one sensor per state."""
    process_noise: Float[Array, " state"] = eqx.field(converter=as_float64)
    """The diagonal of Q."""
    structure: Structure = None  # type: ignore[assignment]
    """What is known beforehand; by default nothing: one GP output per state."""

    def __post_init__(self) -> None:
        if self.structure is None:
            states = self.gp.offset.shape[0]
            largest = max((*self.features.keep, *self.features.angles), default=states - 1)
            object.__setattr__(self, "structure", free(states, max(largest + 1 - states, 0)))

    def __check_init__(self) -> None:
        inputs, outputs = self.gp.inputs.shape[1], self.gp.offset.shape[0]
        if self.features.size != inputs:
            raise ValueError(
                f"The features of a Dynamics must be the GP's inputs: they have {self.features.size} "
                f"components, and the GP has {inputs} inputs."
            )
        if len(self.structure.outputs) != outputs:
            raise ValueError(
                f"The structure of a Dynamics has {len(self.structure.outputs)} learned rows, and the GP {outputs} "
                "outputs."
            )
        states = self.structure.states
        if self.sensors.C.shape[1] != states:
            raise ValueError(
                f"sensor_noise must have one variance per state, shape ({states},), or be Sensors of {states} states; "
                f"given ({self.sensors.C.shape[1]},)."
            )
        Q = self.process_noise
        if Q.shape != (states,):
            raise ValueError(f"process_noise must have one variance per state, shape {(states,)}; given {Q.shape}.")
        if is_concrete(Q) and not ((np.asarray(Q) >= 0) & np.isfinite(np.asarray(Q))).all():
            raise ValueError(f"process_noise must be finite and not negative; given {np.asarray(Q)}.")

    @property
    def sensor_noise(self) -> Float[Array, " sensor"]:
        """The diagonal of R: variances of the observation's noise."""
        return self.sensors.noise

    @property
    def R(self) -> Float[Array, "sensor sensor"]:
        return self.sensors.R

    @property
    def Q(self) -> Float[Array, "state state"]:
        return diagonal_matrix(self.process_noise)

    @float64
    def __call__(
        self, x: Float[Array, " state"], u: Float[Array, " action"], t: Array | int = 0
    ) -> Float[Array, " state"]:
        """The expected next state from a known one."""
        return self.known_part(x, u, t, self._learned(jnp.concatenate([x, u])))

    def _learned(self, both: Float[Array, " both"]) -> Float[Array, " output"]:
        return self.gp(self.features(both))

    def known_part(
        self, x: Float[Array, " state"], u: Float[Array, " action"], t: Array | int, y: Float[Array, " output"]
    ) -> Float[Array, " state"]:
        """`L x + M u + B y + H (E - G') D + k_t`: the next state, given what the GP says."""
        rows, both = self.structure, jnp.concatenate([x, u])
        if rows.is_free:
            return y
        following: Array = rows.L @ x + rows.M @ u + rows.B @ y + rows.drift_at(t)
        if not rows.correction:
            return following
        of_both, of_output = rows.moves
        moved = of_both @ both + of_output @ y
        _, slope = jax.jvp(self._learned, (both,), (jnp.pad(moved, (0, u.shape[0])),))
        following = following + rows.H @ (moved[np.array(rows.outputs)] - slope)
        return following

    @float64
    def moments(self, state_action: Gaussian, t: Array | int = 0) -> Moments:
        """The next state from a Gaussian over `[x, u]`, process noise included."""
        inputs = self.features.moments(state_action)
        outputs = inputs.then(gp_moments(self.gp, inputs.output))
        following = self._through_known_rows(outputs, state_action.mean, state_action.cov, t)
        return Moments(following.mean, following.cov + self.Q, following.gain)

    @float64
    def belief_moments(
        self, mean_action: Gaussian, cov: Float[Array, "state state"], t: Array | int = 0
    ) -> tuple[Moments, Float[Array, "state state"]]:
        """The next belief's mean and expected covariance, from the joint of a belief's mean and its action.

        `cov` is the belief's covariance; the action is known to the filter, so its rows and columns are zero. The
        known rows divide between the two as the GP's output does, by the same gain (Stein's lemma).
        """
        cov = jnp.pad(cov, (0, mean_action.size - cov.shape[0]))
        inputs, inputs_cov = self.features.belief_moments(mean_action, cov)
        outputs, outputs_cov = belief_moments(self.gp, inputs.output, inputs_cov)
        outputs = inputs.then(outputs)
        following = self._through_known_rows(outputs, mean_action.mean, mean_action.cov, t)
        within = Moments(outputs.mean, outputs_cov, outputs.gain)
        return following, self._through_known_rows(within, mean_action.mean, cov, t).cov + self.Q

    @float64
    def cross_cov(
        self,
        state_action: Gaussian,
        filter: "Dynamics",
        mean_action: Gaussian,
        cov: Float[Array, "state state"],
        cross: Float[Array, "both both"],
    ) -> Float[Array, "state state"]:
        """`Cov[x', m']`: of the next state, and of the mean that a filter with another model expects of its belief.

        Args:
            state_action: `[x, u]`.
            filter: The other model.
            mean_action: `[m, u]`.
            cov: The belief's covariance.
            cross: `Cov[[x, u], [m, u]]`.
        """
        cov = jnp.pad(cov, (0, mean_action.size - cov.shape[0]))
        of_x = self.features.moments(state_action)
        of_m, within = filter.features.belief_moments(mean_action, cov)
        inputs = self.features.cross_cov(state_action, mean_action, cross, cov)
        outputs = cross_cov(self.gp, of_x.output, filter.gp, of_m.output, within, inputs)
        gain_x = of_x.then(gp_moments(self.gp, of_x.output)).gain
        gain_m = of_m.then(belief_moments(filter.gp, of_m.output, within)[0]).gain
        (N, B), (filter_N, filter_B) = self.structure.around(gain_x), filter.structure.around(gain_m)
        return (
            N @ cross @ filter_N.T
            + B @ outputs @ filter_B.T
            + N @ cross @ gain_m @ filter_B.T
            + B @ gain_x.T @ cross @ filter_N.T
        )

    def _through_known_rows(
        self, y: Moments, mean: Float[Array, " both"], cov: Float[Array, "both both"], t: Array | int
    ) -> Moments:
        """The formulas at the top of this file, without Q."""
        rows = self.structure
        if rows.is_free:
            return y
        N, B = rows.around(y.gain)
        cross = N @ cov @ y.gain @ B.T
        return Moments(
            N @ mean + B @ y.mean + rows.drift_at(t),
            N @ cov @ N.T + B @ y.cov @ B.T + cross + cross.T,
            N.T + y.gain @ B.T,
        )
