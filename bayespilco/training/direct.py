"""The paper's Direct method (McHutchon 2014): train the dynamics on the noisy series themselves.

One assumed-density filter pass per trial tells how well a model foresees each observation (`filtering`). The objective

    sum over trials, t of -log N(z_t; mu_t, Sig_t + R)
        + sum over outputs of (e^{s-n} / 2000)^30 + (e^{s-on} / 2000)^30 + (e^{s-pn} / 2000)^30

is minimised jointly over all outputs' length-scales, signal s, pseudo-noise n, linear mean, free weights `beta`, sensor
noise `on` and process noise `pn` (s, n, on, pn: logs of standard deviations). The pseudo-inputs stay fixed, and the
model's uncertainty is that of a GP with one observation of noise n at each: `W = (K + e^{2n} I)^-1`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from bayespilco.core.compilation import compiled
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess, kernel, per_output
from bayespilco.core.optimise import Reason, minimise
from bayespilco.core.parallel import SERIAL, Mapper
from bayespilco.core.precision import as_float64, float64
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Trials
from bayespilco.model.posterior_samples import draw
from bayespilco.model.sensors import Sensors, complete
from bayespilco.model.structure import Structure, free
from bayespilco.training.filtering import filtered_states, negative_log_evidence
from bayespilco.training.guesses import guess_states
from bayespilco.training.likelihood import snr_penalty
from bayespilco.training.marginal import fit_marginal
from bayespilco.training.outliers import Explanation, train_robustly
from bayespilco.training.transitions import input_masks, spread_out

SNR_LIMIT = 2000.0


class DirectParameters(NamedTuple):
    """What the Direct method learns; the first axis is the output. Logs are of standard deviations."""

    log_length_scales: Float[Array, "output input"]
    log_signal: Float[Array, " output"]
    log_pseudo_noise: Float[Array, " output"]
    log_sensor_noise: Float[Array, " output"]
    log_process_noise: Float[Array, " output"]
    slope: Float[Array, "output input"]
    offset: Float[Array, " output"]
    weights: Float[Array, "output points"]


class DirectModel(eqx.Module):
    """What the Direct method holds fixed: pseudo-inputs, and which inputs kernel and linear mean see."""

    points: Float[Array, "points input"] = eqx.field(converter=as_float64)
    features: AngleFeatures
    kernel_inputs: tuple[bool, ...] = eqx.field(static=True)
    linear_inputs: tuple[bool, ...] = eqx.field(static=True)
    structure: Structure | None = None
    """What is known of the dynamics; by default nothing."""
    sensors: Sensors | None = None
    """What is measured; by default every state."""

    def dynamics(self, parameters: DirectParameters) -> Dynamics:
        lengths = jnp.where(np.array(self.kernel_inputs), jnp.exp(parameters.log_length_scales), jnp.inf)
        signal, noise = jnp.exp(2 * parameters.log_signal), jnp.exp(2 * parameters.log_pseudo_noise)
        eye = jnp.eye(self.points.shape[0])

        def inverse(K: Array, noise: Array) -> Array:
            return jsl.cho_solve((jnp.linalg.cholesky(K + noise * eye), True), eye)

        W = per_output(inverse, kernel(self.points, self.points, lengths, signal), noise)
        slope = jnp.where(np.array(self.linear_inputs), parameters.slope, 0.0)
        gp = GaussianProcess(self.points, lengths, signal, parameters.weights, W, slope, parameters.offset)
        R, Q = jnp.exp(2 * parameters.log_sensor_noise), jnp.exp(2 * parameters.log_process_noise)
        if self.structure is None or self.sensors is None:
            return Dynamics(gp, self.features, complete(R), Q)
        Q = jnp.pad(Q, (0, self.structure.states - Q.shape[0]))
        return Dynamics(gp, self.features, self.sensors.with_noise(R), Q, self.structure)


@float64
def direct_objective(
    parameters: DirectParameters, model: DirectModel, trials: Trials, initial: Gaussian
) -> Float[Array, ""]:
    """The formula at the top of this file."""
    signal = parameters.log_signal
    R, Q, structure = parameters.log_sensor_noise, parameters.log_process_noise, model.structure
    if structure is not None and not structure.is_free:
        # The formula compares each output with its own noises. Process noise has one per state, of which the learned
        # ones count; sensors need not belong to an output, so each is compared with the largest signal.
        Q, R = Q[np.array(structure.outputs)], jnp.min(R)
    noises = (parameters.log_pseudo_noise, R, Q)
    penalties = sum(jnp.sum(snr_penalty(signal, noise, SNR_LIMIT)) for noise in noises)
    return negative_log_evidence(model.dynamics(parameters), trials, initial) + penalties


class _Frame(eqx.Module):
    """Constants that turn parameters into well-scaled variables. The objective is the same; its level sets are rounder.

    Slopes are measured in the data's units, offsets at the data's middle, and weights as `v = root' beta`, with
    `root root' = K + n^2 I` at the start, where every component of `v` moves the function about equally.
    """

    centre: Float[Array, " input"] = eqx.field(converter=as_float64)
    spread: Float[Array, " input"] = eqx.field(converter=as_float64)
    size: Float[Array, " output"] = eqx.field(converter=as_float64)
    root: Float[Array, "output points points"] = eqx.field(converter=as_float64)

    def parameters(self, v: DirectParameters) -> DirectParameters:
        slope = v.slope * self.size[:, None] / self.spread
        weights = per_output(lambda L, w: jsl.solve_triangular(L, w, lower=True, trans="T"), self.root, v.weights)
        return v._replace(slope=slope, offset=v.offset * self.size - slope @ self.centre, weights=weights)

    def variables(self, p: DirectParameters) -> DirectParameters:
        slope = p.slope * self.spread / self.size[:, None]
        weights = jnp.einsum("oij,oi->oj", self.root, p.weights)
        return p._replace(slope=slope, offset=(p.offset + p.slope @ self.centre) / self.size, weights=weights)


@compiled
def _value_and_gradient(
    variables: DirectParameters, frame: _Frame, model: DirectModel, trials: Trials, initial: Gaussian
) -> tuple[Array, DirectParameters]:
    def objective(variables: DirectParameters) -> Array:
        return direct_objective(frame.parameters(variables), model, trials, initial)

    return jax.value_and_grad(objective)(variables)


class DirectFit(eqx.Module):
    """A trained model of the plant, and how its training went."""

    dynamics: Dynamics
    objective: float
    evaluations: int
    stopped: Reason = eqx.field(converter=Reason)

    def draw(self, key: Array) -> Dynamics:
        """One plant that the data leave possible, each output on its own: see `training.drawn`."""
        return draw(self.dynamics, key)


@float64
def fit_direct(
    trials: Trials,
    features: AngleFeatures,
    initial: Gaussian,
    *,
    structure: Structure | None = None,
    sensors: Sensors | None = None,
    points: int = 50,
    evaluations: int = 200,
    previous: DirectFit | None = None,
    names: Sequence[str] = (),
    workers: Mapper = SERIAL,
    on_progress: Callable[[float], object] | None = None,
) -> DirectFit:
    """Train a model of the plant on noisy trials by the Direct method. Gross outliers count as missing (`outliers`).

    It starts from an ordinary GP on `(z_t, u_t) -> z_{t+1}`, half of whose noise variance is taken for `R` and 1 % for
    `Q`; or from `previous`, if that explains the trials better. The pseudo-inputs are centres of the observed inputs.

    Args:
        features: From `[x, u]` to the GP's input.
        initial: The distribution of a trial's first state, over all rows.
        structure: What is known of the dynamics; by default nothing.
        sensors: What is measured (their noise is learned); by default every state.
        points: How many pseudo-inputs.
        evaluations: At most this many filter passes over all trials, each with its gradient.
        previous: The fit to earlier data.
        names: Of the sensors, for warnings.
        workers: Who computes the ordinary GP's outputs; the search that follows is one.
        on_progress: Called with the fraction done.

    Returns:
        The model with the lowest objective seen.
    """
    sensors = complete(np.ones(trials.observations.shape[2])) if sensors is None else sensors
    structure = free(sensors.C.shape[1], trials.actions.shape[2]) if structure is None else structure
    _check(trials, features, structure, initial, points)
    if evaluations < 3:
        raise ValueError(f"evaluations must be at least 3: one for each start, and one to search; given {evaluations}.")
    declared = features, initial, structure, sensors

    def train(trials: Trials) -> DirectFit:
        return _fit_trials(trials, *declared, points, evaluations, previous, workers, on_progress)

    def explain(fit: DirectFit, trials: Trials) -> Explanation:
        states = filtered_states(fit.dynamics, trials, initial)
        return np.asarray(states), np.asarray(fit.dynamics.sensor_noise)

    return train_robustly(trials, sensors, names, train, explain)


def _fit_trials(
    trials: Trials,
    features: AngleFeatures,
    initial: Gaussian,
    structure: Structure,
    sensors: Sensors,
    points: int,
    evaluations: int,
    previous: DirectFit | None,
    workers: Mapper,
    on_progress: Callable[[float], object] | None,
) -> DirectFit:
    """Train on these trials as they are."""
    guesses = guess_states(trials, structure, sensors, initial)
    x, y = guesses.inputs(trials, features), guesses.outputs(structure)
    kernel_inputs, linear_inputs = input_masks(features)
    where = as_float64(spread_out(x, points))
    model = DirectModel(where, features, kernel_inputs, linear_inputs, structure, sensors)

    noisier = sensors.mean_relative_noise(guesses.rows[:, :-1][guesses.usable])
    starts = [_ordinary_start(x, y, model, workers, noisier)]
    if previous is not None:
        starts.append(_warm_start(x, previous.dynamics, model))
    tried = []
    for start in starts:
        frame = _frame(start, x, y, model)
        variables = frame.variables(start)
        value, _ = _value_and_gradient(variables, frame, model, trials, initial)
        tried.append((float(value) if np.isfinite(value) else np.inf, frame, variables))
    _, frame, variables = min(tried, key=lambda t: t[0])
    flat, unravel = ravel_pytree(variables)

    def function(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _value_and_gradient(unravel(jnp.asarray(vector)), frame, model, trials, initial)
        return float(value), np.concatenate([np.ravel(part) for part in gradient])

    remaining = evaluations - len(starts)
    best = minimise(function, np.asarray(flat), evaluations=remaining, memory=100, on_progress=on_progress)
    dynamics = model.dynamics(frame.parameters(unravel(jnp.asarray(best.x))))
    return DirectFit(dynamics, best.value, best.evaluations + len(starts), best.reason)


def _check(trials: Trials, features: AngleFeatures, structure: Structure, initial: Gaussian, points: int) -> None:
    if initial.size != structure.states:
        raise ValueError(f"initial must have one dimension per state, {structure.states}; given {initial.size}.")
    if missing := [i for i in structure.outputs if i not in features.keep]:
        raise ValueError(
            f"The features of a dynamics model must keep the states that are learned, and append sines and cosines; "
            f"given keep={features.keep}, without {missing[0]}."
        )
    if points < 1:
        raise ValueError(f"points must be at least 1; given {points}.")
    active = np.asarray(trials.active)
    if not (active[:, :-1] & active[:, 1:]).any():
        raise ValueError("There is no recorded step to learn from: every observation is marked as padding.")


def _frame(start: DirectParameters, x: np.ndarray, y: np.ndarray, model: DirectModel) -> _Frame:
    lengths = jnp.where(np.array(model.kernel_inputs), jnp.exp(start.log_length_scales), jnp.inf)
    K = kernel(model.points, model.points, lengths, jnp.exp(2 * start.log_signal))
    ridge = jnp.maximum(jnp.exp(2 * start.log_pseudo_noise), 1e-8 * jnp.exp(2 * start.log_signal))
    root = per_output(jnp.linalg.cholesky, K + ridge[:, None, None] * jnp.eye(K.shape[-1]))
    spread, size = (as_float64(np.where(each > 0, each, 1.0)) for each in (x.std(axis=0), y.std(axis=0)))
    return _Frame(as_float64(x.mean(axis=0)), spread, size, root)


def _ordinary_start(
    x: np.ndarray, y: np.ndarray, model: DirectModel, workers: Mapper, noisier: np.ndarray | float = 1.0
) -> DirectParameters:
    """The ordinary GP, moved onto the pseudo-inputs, with its noise divided among sensors and plant.

    Where the sensors' noise depends on the state, it is so many times `noisier` in the data than at its least.
    """
    fit = fit_marginal(
        x, y, kernel_inputs=model.kernel_inputs, linear_inputs=model.linear_inputs, snr=500.0, workers=workers
    )
    noise = fit.noise_variance
    R, Q = _divided(np.asarray(noise), model)
    residual = y - x @ np.asarray(fit.gp.slope).T - np.asarray(fit.gp.offset)
    return _onto_points(x, residual, fit.gp, noise, jnp.asarray(R / noisier), jnp.asarray(Q), model)


def _divided(noise: np.ndarray, model: DirectModel) -> tuple[np.ndarray, np.ndarray]:
    """The outputs' noise as sensor noise (half of it) and process noise (1 %); a position has that of its rate, moved.

    A sensor of a state that is no output starts with the noise that the known rows make of the outputs'.
    """
    assert model.structure is not None and model.sensors is not None, "set by fit_direct"
    if model.structure.is_free:
        return noise / 2, noise / 100
    n = model.structure.plant_states
    of_states = (model.structure.B[:n] ** 2) @ noise
    of_sensors = (model.sensors.C[:, :n] ** 2) @ of_states
    registers = model.sensors.C[:, n:].any(axis=1)
    of_sensors = np.where(registers, of_states.max(), of_sensors)
    return of_sensors / 2, of_states / 100


def _warm_start(x: np.ndarray, previous: Dynamics, model: DirectModel) -> DirectParameters:
    """An earlier model of any kind: its mean function fitted by the new pseudo-inputs, its noises kept."""
    gp = previous.gp
    if gp.length_scales.shape[1] != x.shape[1]:
        raise ValueError(f"previous has {gp.length_scales.shape[1]} inputs, these trials {x.shape[1]}.")
    K = np.asarray(kernel(jnp.asarray(x), gp.inputs, gp.length_scales, gp.signal_variance))
    nonlinear = np.einsum("onp,op->no", K, np.asarray(gp.weights))
    pseudo = jnp.full_like(gp.signal_variance, 1e-3) * gp.signal_variance
    if gp.precision is not None:
        # W = (K + n^2 I)^-1 gives n back, if that is what W is.
        inverse = per_output(jnp.linalg.inv, gp.precision)
        diagonal = jnp.diagonal(inverse, axis1=1, axis2=2).mean(axis=1) - gp.signal_variance
        pseudo = jnp.where(jnp.isfinite(diagonal) & (diagonal > 1e-6 * gp.signal_variance), diagonal, pseudo)
    assert model.structure is not None, "set by fit_direct"
    Q = previous.process_noise[: model.structure.plant_states]
    return _onto_points(x, nonlinear, gp, pseudo, previous.sensor_noise, Q, model)


def _onto_points(
    x: np.ndarray, residual: np.ndarray, gp: GaussianProcess, noise: Array, R: Array, Q: Array, model: DirectModel
) -> DirectParameters:
    """Weights at the pseudo-inputs by regularised least squares: `(Kmn Knm + n^2 Kmm) beta = Kmn r`."""
    # Where the ordinary GP found only a line, its kernel has vanished (no signal, or length-scales of any size), and
    # with it the gradient by which it could return.
    spread = np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
    lengths = np.where(model.kernel_inputs, np.clip(np.asarray(gp.length_scales), 0.3 * spread, 20 * spread), np.inf)
    signal = np.maximum(np.asarray(gp.signal_variance), 0.01 * np.asarray(noise))
    K = np.asarray(kernel(model.points, model.points, jnp.asarray(lengths), jnp.asarray(signal)))
    Kmn = np.asarray(kernel(model.points, jnp.asarray(x), jnp.asarray(lengths), jnp.asarray(signal)))
    ridge = np.maximum(np.asarray(noise), 1e-6 * signal)[:, None, None]
    gram = Kmn @ np.swapaxes(Kmn, 1, 2) + ridge * (K + 1e-6 * signal[:, None, None] * np.eye(K.shape[1]))
    weights = np.linalg.solve(gram, np.einsum("omn,no->om", Kmn, residual)[..., None])[..., 0]
    log_signal = np.log(signal) / 2

    def log_std(variance: Array) -> Array:
        """Clear of the penalty's wall, where a start with very little noise would be stuck."""
        lowest = np.exp(2 * (log_signal - np.log(SNR_LIMIT / 2)))
        if np.shape(variance) != np.shape(lowest):
            lowest = lowest.min()
        return jnp.asarray(np.log(np.maximum(np.asarray(variance), lowest)) / 2)

    log_lengths = np.where(model.kernel_inputs, np.log(lengths), 0.0)
    return DirectParameters(
        *map(
            jnp.asarray, (log_lengths, log_signal, log_std(noise), log_std(R), log_std(Q), gp.slope, gp.offset, weights)
        )
    )
