"""A model of trajectories that is linear in its weights, and a filter that knows how its mean depends on them.

The next state of output `a` is

    f_a(x, u) = x_a + scale_a omega_a' basis_a(x, u),   basis_a = [k_a(X, .) ; x, u ; 1],   omega_a = [L_a^-T v_a ; l_a]

with kernels at inducing points `X` (`L L' = k(X, X)`), and `w = [v, l] ~ N(0, I)`: a sparse GP with a linear mean, all
of it uncertain. Along a trial an extended Kalman filter, conditional on `w`, carries beside mean and covariance the
sensitivity `G = dm/domega`. So the whitened innovations `e` of a trial come with their Jacobian.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.episode import Trials
from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian, symmetrise
from bayespilco.gp import kernel, per_output

RIDGE = 1e-6
"""Added to the diagonal of k(X, X), relative to the signal."""


class Frame(eqx.Module):
    """What stays fixed while a model is trained: units, inducing points and the first state's distribution."""

    features: AngleFeatures
    """From `[x, u]` to the inputs `[x, u, sin, cos]`."""
    centre: Float[Array, " input"]
    scale: Float[Array, " input"]
    points: Float[Array, "points input"]
    """X, in scaled inputs."""
    initial: Gaussian

    @property
    def states(self) -> int:
        return self.initial.size

    @property
    def state_scale(self) -> Float[Array, " state"]:
        return self.scale[: self.states]

    @property
    def kernel_inputs(self) -> np.ndarray:
        """All but the raw angles."""
        return np.array([i for i in range(self.features.size) if i not in self.features.angles])

    @property
    def linear_inputs(self) -> np.ndarray:
        """All but the sines and cosines."""
        return np.arange(len(self.features.keep))

    @property
    def basis_size(self) -> int:
        return self.points.shape[0] + len(self.linear_inputs) + 1


class Parameters(eqx.Module):
    """What is trained; standard deviations and length-scales are logarithms, in scaled units."""

    log_length_scales: Float[Array, "state kernel_input"]
    log_signal: Float[Array, " state"]
    log_sensor: Float[Array, " state"]
    log_process: Float[Array, " state"]
    weights: Float[Array, "state basis"]
    """w: standard normal before the data are seen."""


class Trajectory(eqx.Module):
    """The model with its parameters worked out."""

    frame: Frame
    length_scales: Float[Array, "state input"]
    signal_variance: Float[Array, " state"]
    half: Float[Array, "state points points"]
    """`L^-1`."""
    inverse: Float[Array, "state points points"]
    """`k(X, X)^-1`."""
    coefficients: Float[Array, "state basis"]
    """omega."""
    R: Float[Array, " state"]
    Q: Float[Array, " state"]

    def step(self, x: Float[Array, " state"], u: Float[Array, " action"]) -> tuple[Array, Array]:
        """The next state's mean, and the basis that it is linear in."""
        frame = self.frame
        h = (frame.features(jnp.concatenate([x, u])) - frame.centre) / frame.scale
        k = kernel(h[None], frame.points, self.length_scales, self.signal_variance)[:, 0]
        linear = jnp.concatenate([h[frame.linear_inputs], jnp.ones(1)])
        basis = jnp.concatenate([k, jnp.broadcast_to(linear, (k.shape[0], linear.shape[0]))], axis=1)
        return x + frame.state_scale * jnp.sum(basis * self.coefficients, axis=1), basis

    def unexplained(self, basis: Float[Array, "state basis"]) -> Float[Array, " state"]:
        """The function's variance that the inducing points leave open: zero among them, the signal far away."""
        k = basis[:, : self.frame.points.shape[0]]
        left = self.signal_variance - jnp.einsum("op,opq,oq->o", k, self.inverse, k)
        return self.frame.state_scale**2 * jnp.maximum(left, 0.0)


def work_out(parameters: Parameters, frame: Frame) -> Trajectory:
    p, points = parameters, frame.points.shape[0]
    length_scales = jnp.full((frame.states, frame.features.size), jnp.inf)
    length_scales = length_scales.at[:, frame.kernel_inputs].set(jnp.exp(p.log_length_scales))
    signal = jnp.exp(2 * p.log_signal)
    K = kernel(frame.points, frame.points, length_scales, signal) + RIDGE * signal[:, None, None] * jnp.eye(points)

    def invert_root(K: Array) -> Array:
        return jsl.solve_triangular(jnp.linalg.cholesky(K), jnp.eye(points), lower=True)

    half = per_output(invert_root, K)
    beta = jnp.einsum("oqp,oq->op", half, p.weights[:, :points])
    return Trajectory(
        frame,
        length_scales,
        signal,
        half,
        jnp.swapaxes(half, 1, 2) @ half,
        jnp.concatenate([beta, p.weights[:, points:]], axis=1),
        (frame.state_scale * jnp.exp(p.log_sensor)) ** 2,
        (frame.state_scale * jnp.exp(p.log_process)) ** 2,
    )


class Innovations(eqx.Module):
    """What the filter did not expect, and how that depends on the weights."""

    white: Float[Array, " rows"]
    """e: all innovations, whitened; standard normal if the model is right. Zero where nothing was observed."""
    by_coefficients: Float[Array, "rows state basis"]
    """de/domega."""
    half: Float[Array, "state points points"]
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

    def _by_weights(self, by: Float[Array, "rows state basis"]) -> Float[Array, "rows state basis"]:
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
        trials.observations, trials.actions, trials.observed, trials.lasting
    )
    by_coefficients = sensitivity.reshape(-1, *model.coefficients.shape)
    return Innovations(white.reshape(-1), by_coefficients, model.half, jnp.sum(log_det), states)


def _filter(
    model: Trajectory,
    observations: Float[Array, "times state"],
    actions: Float[Array, "steps action"],
    observed: Bool[Array, " times"],
    lasting: Bool[Array, " times"],
) -> tuple[Array, Array, Array, Array]:
    states, size = model.coefficients.shape
    eye, R = jnp.eye(states), jnp.diag(model.R)

    def step(carry, inputs):  # type: ignore[no-untyped-def]
        z, u, seen, lasts = inputs
        # Padding starts anew at every step: a state that runs away there would spoil the gradient.
        m, P, G = jax.tree.map(lambda now, first: jnp.where(lasts, now, first), carry, start)
        # Update. The gain's own dependence on the weights is of second order and left out.
        root = jnp.linalg.cholesky(P + R)
        whiten = jnp.where(seen, jsl.solve_triangular(root, eye, lower=True), 0.0)
        white = whiten @ (z - m), -_mix(whiten, G)
        log_det = jnp.where(seen, jnp.sum(jnp.log(jnp.diag(root))), 0.0)
        K = jnp.where(seen, jsl.cho_solve((root, True), P).T, 0.0)
        rest = eye - K
        m, P = m + K @ (z - m), symmetrise(rest @ P @ rest.T + K @ R @ K.T)
        updated = m
        # Predict.
        A, (m, basis) = jax.jacfwd(lambda x: (model.step(x, u)[0], model.step(x, u)), has_aux=True)(m)
        direct = eye[:, :, None] * (model.frame.state_scale[:, None] * basis)[None]
        G = _mix(A @ rest, G) + direct
        P = A @ P @ A.T + jnp.diag(model.Q + model.unexplained(basis))
        return (m, P, G), (white, log_det, updated)

    initial = model.frame.initial
    start = (initial.mean, initial.cov, jnp.zeros((states, states, size)))
    held = jnp.concatenate([actions, jnp.zeros_like(actions[:1])])  # the last observation is followed by nothing
    # The gradient computes each step once more: to keep all of them takes 100 MB and longer, most of it in page faults.
    step = jax.checkpoint(step, prevent_cse=False)
    _, (white, log_det, updated) = jax.lax.scan(step, start, (observations, held, observed, lasting))
    return *white, log_det, updated


def _mix(A: Float[Array, "new old"], G: Float[Array, "old state basis"]) -> Float[Array, "new state basis"]:
    """The product `A G`, as sums that XLA fuses with what is around them: it has no good product for so few rows."""
    return sum((A[:, j, None, None] * G[j] for j in range(1, G.shape[0])), A[:, 0, None, None] * G[0])
