"""A model of trajectories that is linear in its weights, and a filter that knows how its mean depends on them.

Output `a` of the function, the next value of state `s(a)`, is

    y_a(x, u) = x_s(a) + scale_a omega_a' basis_a(x, u),  basis_a = [k_a(X, .); x, u; 1],  omega_a = [L_a^-T v_a; l_a]

with kernels at inducing points `X` (`L L' = k(X, X)`), and `w = [v, l] ~ N(0, I)`: a sparse GP with a linear mean, all
of it uncertain. Where the plant has a mirror, `k_a(X, .)` is `k_a(X, .) + s_a k_a(mirror X, .)` with the output's own
sign `s_a`, and the linear part keeps what has that sign: every function of the prior is odd, or even.

The known rows make the next state of it (`model.structure`). Along a trial an extended Kalman filter, conditional on
`w`, carries beside mean and covariance the sensitivity `G = dm/domega`. So the whitened innovations `e` of a trial come
with their Jacobian.

This is not the filter of execution, which matches moments (`model.belief`): it is linearised, and its covariance leaves
out what is uncertain about `w`. A test says how far apart the two are.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, diagonal, symmetrise
from bayespilco.core.gp import kernel, per_output
from bayespilco.core.linalg import inverse_root
from bayespilco.model.episode import Trials
from bayespilco.model.sensors import Sensors
from bayespilco.model.structure import Structure

RIDGE = 1e-6
"""Added to the diagonal of k(X, X), relative to the signal."""


class Layout(eqx.Module):
    """What stays fixed while a model is trained: units, inducing points, known rows, sensors and the first state."""

    features: AngleFeatures
    """From `[x, u]` to the GP's inputs."""
    structure: Structure
    sensors: Sensors
    """With noise of the size of the observations' spread: the unit that the noise is learned in."""
    initial: Gaussian
    """Of all rows of the state."""
    centre: Float[Array, " input"]
    scale: Float[Array, " input"]
    state_scale: Float[Array, " plant"]
    """The spread of each of the plant's states."""
    points: Float[Array, "points input"]
    """X, in scaled inputs."""

    def with_points(self, points: Float[Array, "points input"]) -> "Layout":
        moved: Layout = eqx.tree_at(lambda layout: layout.points, self, points)
        return moved

    @property
    def outputs(self) -> int:
        return len(self.structure.outputs)

    @property
    def output_scale(self) -> Float[Array, " output"]:
        return self.state_scale[np.array(self.structure.outputs)]

    @property
    def known_rows(self) -> np.ndarray:
        """The plant's states that are no outputs of the GP, such as positions that follow their rates."""
        states = range(self.structure.plant_states)
        return np.array([state for state in states if state not in self.structure.outputs], dtype=int)

    @property
    def known_row_scale(self) -> Float[Array, " known"]:
        """How far a step moves the known rows, in units of their spread."""
        moved = 2 * np.abs(self.structure.B[self.known_rows]) @ self.output_scale  # half of it is the rate's old value
        spread = self.state_scale[self.known_rows]
        return jnp.where(moved > 0, moved, spread) / spread

    @property
    def sensor_scale(self) -> Float[Array, " sensor"]:
        return jnp.sqrt(self.sensors.noise)

    @property
    def kernel_inputs(self) -> np.ndarray:
        """All but the raw angles."""
        raw = [place for place, index in enumerate(self.features.keep) if index in self.features.angles]
        return np.array([i for i in range(self.features.size) if i not in raw])

    @property
    def linear_inputs(self) -> np.ndarray:
        """All but the sines and cosines."""
        return np.arange(len(self.features.keep))

    @property
    def mirror(self) -> np.ndarray | None:
        """What a mirror makes of each input, 1 or -1; None if the plant has no symmetry."""
        return self.structure.mirrored_inputs(self.features)

    @property
    def linear_mask(self) -> np.ndarray:
        """Which of `[x, u, 1]` each output may be linear in: of an odd function, what the mirror turns."""
        if self.mirror is None:
            return np.ones((self.outputs, len(self.linear_inputs) + 1))
        signs = np.append(self.mirror[self.linear_inputs], 1)
        allowed: np.ndarray = (signs[None, :] == self.structure.mirrored_outputs[:, None]).astype(np.float64)
        return allowed

    @property
    def basis_size(self) -> int:
        return self.points.shape[0] + len(self.linear_inputs) + 1


class Parameters(eqx.Module):
    """What is trained; standard deviations and length-scales are logarithms, in scaled units."""

    log_length_scales: Float[Array, "output kernel_input"]
    log_signal: Float[Array, " output"]
    log_sensor: Float[Array, " sensor"]
    log_process: Float[Array, " plant"]
    weights: Float[Array, "output basis"]
    """w: standard normal before the data are seen."""


class Trajectory(eqx.Module):
    """The model built from its parameters."""

    layout: Layout
    length_scales: Float[Array, "output input"]
    signal_variance: Float[Array, " output"]
    half: Float[Array, "output points points"]
    """`L^-1`."""
    inverse: Float[Array, "output points points"]
    """`k(X, X)^-1`."""
    other_inverse: Float[Array, "output points points"] | None
    """With a mirror: the same for functions of the other parity, which the plant's is not."""
    coefficients: Float[Array, "output basis"]
    """omega."""
    R: Float[Array, " sensor"]
    Q: Float[Array, " state"]

    def basis(
        self, x: Float[Array, " state"], u: Float[Array, " action"]
    ) -> tuple[Float[Array, "output basis"], Float[Array, "output points"] | None]:
        """What the learned rows are linear in; with a mirror, also the kernel of the other parity."""
        layout = self.layout
        h = (layout.features(jnp.concatenate([x, u])) - layout.centre) / layout.scale
        linear = layout.linear_mask * jnp.concatenate([h[layout.linear_inputs], jnp.ones(1)])

        def at(h: Array) -> Array:
            return kernel(h[None], layout.points, self.length_scales, self.signal_variance)[:, 0]

        k, other = at(h), None
        if layout.mirror is not None:
            mirrored = layout.structure.mirrored_outputs[:, None] * at(jnp.asarray(layout.mirror) * h)
            k, other = k + mirrored, k - mirrored
        return jnp.concatenate([k, linear], axis=1), other

    def step(self, x: Float[Array, " state"], u: Float[Array, " action"], t: Array | int) -> "Step":
        """The next state, and how it depends on this one and on the coefficients.

        The slope of `y` is itself linear in the coefficients, and matters where positions are corrected by it.
        """
        rows, outputs = self.layout.structure, np.array(self.layout.structure.outputs)

        def basis_twice(x: Array) -> tuple[Array, tuple[Array, Array | None]]:
            found = self.basis(x, u)
            return found[0], found

        of_state, (basis, other) = jax.jacfwd(basis_twice, has_aux=True)(x)
        in_units = self.layout.output_scale[:, None] * basis
        y = x[outputs] + jnp.sum(in_units * self.coefficients, axis=1)
        slope = jnp.einsum("obs,ob->os", of_state, self.coefficients) * self.layout.output_scale[:, None]
        slope = slope + np.eye(rows.states)[outputs]
        unexplained = self._unexplained(basis, other)
        if rows.is_free:
            return Step(y, slope, np.eye(rows.states)[:, :, None] * in_units, jnp.diag(unexplained))
        N, B = rows.around(jnp.pad(slope.T, ((0, rows.actions), (0, 0))))
        following = N @ jnp.concatenate([x, u]) + B @ y + rows.drift_at(t)
        by_coefficients = B[:, :, None] * in_units
        if rows.correction:
            of_both, of_output = rows.moves
            moved = of_both @ jnp.concatenate([x, u]) + of_output @ y
            turned = jnp.einsum("obs,s->ob", of_state, moved) * self.layout.output_scale[:, None]
            by_coefficients = by_coefficients - rows.H[:, :, None] * turned
        return Step(following, N[:, : rows.states] + B @ slope, by_coefficients, (B * unexplained) @ B.T)

    def _unexplained(
        self, basis: Float[Array, "output basis"], other: Float[Array, "output points"] | None
    ) -> Float[Array, " output"]:
        """The variance that the inducing points cannot explain: zero among them, the signal's far away."""
        k = basis[:, : self.layout.points.shape[0]]
        explained = jnp.einsum("op,opq,oq->o", k, self.inverse, k)
        if other is not None:  # by the points and their mirror images: half by each parity
            explained = (explained + jnp.einsum("op,opq,oq->o", other, self.other_inverse, other)) / 2
        left = self.signal_variance - explained
        return self.layout.output_scale**2 * jnp.maximum(left, 0.0)


class Step(eqx.Module):
    """One step of a trajectory."""

    mean: Float[Array, " state"]
    by_state: Float[Array, "state state"]
    by_coefficients: Float[Array, "state output basis"]
    unexplained: Float[Array, "state state"]
    """The variance that the inducing points cannot explain."""


def build(parameters: Parameters, layout: Layout) -> Trajectory:
    """The model of these parameters."""
    p, points = parameters, layout.points.shape[0]
    length_scales = jnp.full((layout.outputs, layout.features.size), jnp.inf)
    length_scales = length_scales.at[:, layout.kernel_inputs].set(jnp.exp(p.log_length_scales))
    signal = jnp.exp(2 * p.log_signal)
    K = kernel(layout.points, layout.points, length_scales, signal) + RIDGE * signal[:, None, None] * jnp.eye(points)
    other = None
    if layout.mirror is not None:
        images = jnp.asarray(layout.mirror) * layout.points
        across = kernel(layout.points, images, length_scales, signal) * layout.structure.mirrored_outputs[:, None, None]
        K, other = K + across, K - across

    def invert_root(K: Array) -> Array:
        return jsl.solve_triangular(jnp.linalg.cholesky(K), jnp.eye(points), lower=True)

    half = per_output(invert_root, K)
    other_half = None if other is None else per_output(invert_root, other)
    beta = jnp.einsum("oqp,oq->op", half, p.weights[:, :points])
    Q = (layout.state_scale * jnp.exp(p.log_process)) ** 2
    return Trajectory(
        layout,
        length_scales,
        signal,
        half,
        jnp.swapaxes(half, 1, 2) @ half,
        None if other_half is None else jnp.swapaxes(other_half, 1, 2) @ other_half,
        jnp.concatenate([beta, p.weights[:, points:]], axis=1),
        (layout.sensor_scale * jnp.exp(p.log_sensor)) ** 2,
        jnp.pad(Q, (0, layout.structure.states - Q.shape[0])),
    )


class Innovations(eqx.Module):
    """What the filter did not expect, and how that depends on the weights."""

    white: Float[Array, " rows"]
    """e: all innovations, whitened; standard normal if the model is right. Zero where nothing was observed."""
    by_coefficients: Float[Array, "rows output basis"]
    """de/domega."""
    half: Float[Array, "output points points"]
    """That of the model: the kernel's coefficients are `L^-T v`."""
    log_det: Float[Array, ""]
    """Sum of `log |S_t|^1/2` over the innovations' covariances."""
    states: Float[Array, "trials times state"]
    """The filter's means after each observation."""

    @property
    def jacobian(self) -> Float[Array, "rows weights"]:
        """J = de/dw."""
        J = self._by_weights(self.by_coefficients)
        return J.reshape(J.shape[0], -1)

    @property
    def gram(self) -> Float[Array, "weights weights"]:
        """J'J, from the coefficients' own: there are many more rows than weights."""
        by = self.by_coefficients
        size = by.shape[1] * by.shape[2]
        half_way = self._by_weights(_gram(by.reshape(-1, size)).reshape(size, *by.shape[1:])).reshape(size, size)
        return self._by_weights(half_way.T.reshape(size, *by.shape[1:])).reshape(size, size)

    def _by_weights(self, by: Float[Array, "rows output basis"]) -> Float[Array, "rows output basis"]:
        points = self.half.shape[1]
        return jnp.concatenate([jnp.einsum("rop,oqp->roq", by[:, :, :points], self.half), by[:, :, points:]], axis=2)


@jax.custom_vjp
def _gram(J: Float[Array, "rows columns"]) -> Float[Array, "columns columns"]:
    """J'J. Its derivative is one product with J, of which automatic differentiation makes two."""
    return J.T @ J


_gram.defvjp(lambda J: (J.T @ J, J), lambda J, by: (J @ (by + by.T),))


def filter_trials(model: Trajectory, trials: Trials) -> Innovations:
    """Run the filter along all trials at once."""
    white, sensitivity, log_det, states = jax.vmap(lambda *trial: _filter(model, *trial))(
        trials.observations, trials.actions, trials.observed, trials.active
    )
    by_coefficients = sensitivity.reshape(-1, *model.coefficients.shape)
    return Innovations(white.reshape(-1), by_coefficients, model.half, jnp.sum(log_det), states)


def _filter(
    model: Trajectory,
    observations: Float[Array, "times sensor"],
    actions: Float[Array, "steps action"],
    observed: Bool[Array, "times sensor"],
    active: Bool[Array, " times"],
) -> tuple[Array, Array, Array, Array]:
    outputs, size = model.coefficients.shape
    sensors, initial = model.layout.sensors, model.layout.initial
    states, eye, constant = initial.size, np.eye(initial.size), jnp.diag(model.R)
    Carry = tuple[Array, Array, Array]

    def step(carry: Carry, inputs: tuple[Array, ...]) -> tuple[Carry, tuple[tuple[Array, Array], Array, Array]]:
        z, u, seen, lasts, t = inputs
        # Padding starts anew at every step: a state that runs away there would spoil the gradient.
        m, P, G = jax.tree.map(lambda now, first: jnp.where(lasts, now, first), carry, start)
        # Update, entry by entry: what was not seen has an innovation of zero with unit variance, and no gain. The
        # gain's own dependence on the weights is of second order and left out.
        R = constant if sensors.growth is None else jnp.diag(model.R * sensors.relative_noise(m, P))
        C = jnp.where(seen[:, None], sensors.C, 0.0)
        S = jnp.where(seen[:, None] & seen[None, :], sensors.of_cov(P) + R, np.eye(sensors.count))
        residual = jnp.where(seen, z - sensors(m), 0.0)
        whiten = inverse_root(S)
        white = whiten @ residual, -_mix(whiten @ C, G)
        log_det = -jnp.sum(jnp.log(diagonal(whiten)))
        K = P @ C.T @ whiten.T @ whiten
        rest = eye - K @ C
        m, P = m + K @ residual, symmetrise(rest @ P @ rest.T + K @ R @ K.T)
        updated = m
        # Predict.
        following = model.step(m, u, t)
        m, A = following.mean, following.by_state
        G = _mix(A @ rest, G) + following.by_coefficients
        P = A @ P @ A.T + jnp.diag(model.Q) + following.unexplained
        return (m, P, G), (white, log_det, updated)

    known = np.isin(np.arange(states), model.layout.structure.known)
    start = (
        initial.mean,
        jnp.where(known[:, None] | known[None, :], 0.0, initial.cov),
        jnp.zeros((states, outputs, size)),
    )
    held = jnp.concatenate([actions, jnp.zeros_like(actions[:1])])  # the last observation is followed by nothing
    # The gradient computes each step once more: to keep all of them takes 100 MB and longer, most of it in page faults.
    step = jax.checkpoint(step, prevent_cse=False)
    times = jnp.arange(observations.shape[0])
    _, (white, log_det, updated) = jax.lax.scan(step, start, (observations, held, observed, active, times))
    return *white, log_det, updated


def _mix(A: Float[Array, "new old"], G: Float[Array, "old state basis"]) -> Float[Array, "new state basis"]:
    """The product `A G`, as sums that XLA fuses with what is around them: it has no good product for so few rows."""
    return sum((A[:, j, None, None] * G[j] for j in range(1, G.shape[0])), A[:, 0, None, None] * G[0])
