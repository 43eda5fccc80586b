"""Our training: the evidence of the trajectory model, with the function integrated out along the filter.

Sensors report `z_t = x_t + e_t`, so regressing `z_{t+1}` on `z_t` is biased, the more so the noisier the velocities.
The paper's Direct method repairs that with a filter, but fits the function as a point: with little data it explains
noise as signal, and it never knows how uncertain it is. Here the function keeps a distribution. To first order the
whitened innovations `e` of the filter (see `trajectory`) are linear in the weights `w ~ N(0, I)`, with Jacobian `J`; so
the weights have the posterior `N(w*, (I + J'J)^-1)`, and the data the evidence (Laplace's method)

    -log p(z) = 1/2 |e|^2 + sum_t log |S_t|^1/2 + 1/2 |w*|^2 + 1/2 log |I + J'J| + constants

minimised over weights, kernel and both noises together. The complexity term is that of the filter itself: a velocity
counts as well known as the positions around it make it. And the same matrix `(I + J'J)^-1` becomes the model's
predictive uncertainty, so what was optimised is what is used.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float

from bayespilco.compilation import compiled
from bayespilco.crew import ALONE, Crew
from bayespilco.dynamics import Dynamics
from bayespilco.episode import Trials
from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian, symmetrise
from bayespilco.gp import GaussianProcess
from bayespilco.precision import float64
from bayespilco.training.minimise import Minimum, minimise
from bayespilco.training.trajectory import Frame, Parameters, filter_trials, work_out

STARTS = (
    {"length_scale": 2.0, "signal": 0.3, "sensor": 0.2, "process": 0.05},
    {"length_scale": 2.0, "signal": 0.3, "sensor": 0.05, "process": 0.2},
)
"""Where hyperparameters start, in units of the data's spread: with doubt in the sensors, or with trust in them. A
sensor that is doubted may stay so: the model finds a state of its own that explains the others, and calls all that the
sensor says noise."""

PRIOR = {"length_scale": (2.0, 1.0), "signal": (0.3, 1.5), "sensor": (0.1, 2.0), "process": (0.01, 2.0)}
"""Weak log-normal priors (median in units of the data's spread, standard deviation of the logarithm): what the data say
nothing about stays within reason. Two standard deviations of the noises span a factor of 50 each way."""

FRESH_UNTIL = 4
"""With up to this many trials a fit also starts from scratch: an early explanation may be wrong altogether."""


class EvidenceFit(eqx.Module):
    """A trained model: as the rest of the library uses it, and with the joint posterior of its weights."""

    dynamics: Dynamics
    objective: float
    """-log evidence at the end."""
    evaluations: int
    stopped: str
    parameters: Parameters
    frame: Frame
    root: Float[Array, "weights weights"]
    """Lower Cholesky factor of `I + J'J`, the inverse of the weights' posterior covariance, all outputs jointly."""

    def __check_init__(self) -> None:
        p, frame = self.parameters, self.frame
        kernel_inputs, n = len(frame.kernel_inputs), frame.states
        expected = {
            "centre": (frame.centre, (frame.features.size,)),
            "scale": (frame.scale, (frame.features.size,)),
            "points": (frame.points, (frame.points.shape[0], frame.features.size)),
            "log_length_scales": (p.log_length_scales, (n, kernel_inputs)),
            "log_signal": (p.log_signal, (n,)),
            "log_sensor": (p.log_sensor, (n,)),
            "log_process": (p.log_process, (n,)),
            "weights": (p.weights, (n, frame.basis_size)),
            "root": (self.root, (n * frame.basis_size,) * 2),
        }
        for name, (value, shape) in expected.items():
            if value.shape != shape:
                raise ValueError(f"{name} of an EvidenceFit must have shape {shape}; given {value.shape}.")

    @float64
    def draw(self, key: Array) -> Dynamics:
        """One plant that the data leave possible, all outputs jointly: see `training.drawn`."""
        chance = jax.random.normal(key, self.root.shape[:1])
        away = jsl.solve_triangular(self.root, chance, lower=True, trans=1).reshape(self.parameters.weights.shape)
        drawn = eqx.tree_at(lambda p: p.weights, self.parameters, self.parameters.weights + away)
        states, size = away.shape
        return _dynamics(drawn, self.frame, jnp.zeros((states, size, size)))


@float64
def fit_evidence(
    trials: Trials,
    features: AngleFeatures,
    initial: Gaussian,
    *,
    points: int = 50,
    evaluations: int = 60,
    rounds: int = 3,
    previous: EvidenceFit | None = None,
    crew: Crew = ALONE,
    on_progress: Callable[[float], object] | None = None,
) -> EvidenceFit:
    """Train a model of the plant on noisy trials.

    Args:
        trials: The data.
        features: From `[x, u]` to `[x, u, sin, cos]`; its angles are kept out of the kernel.
        initial: The distribution of first states.
        points: Inducing points.
        evaluations: Values and gradients per round.
        rounds: How often the inducing points are placed anew, on what the filter then believes the states were.
        previous: An earlier fit whose hyperparameters to start from. With few trials fresh starts are tried as well,
            and the best evidence wins.
        crew: Who computes; the starts are independent of each other.
        on_progress: Called with the fraction done.
    """
    _check(trials, points)
    frame = _place(trials, features, initial, points)
    starts: list[_Start] = []
    if previous is not None:
        carried = _carry_over(previous.parameters, previous.frame, frame)
        starts.append(_Start(carried, frame, trials, points, evaluations, max(rounds - 1, 1)))
    if previous is None or int(np.sum(np.asarray(trials.observed)[:, 0])) <= FRESH_UNTIL:
        starts += [_Start(_start(frame, start), frame, trials, points, evaluations, rounds) for start in STARTS]
    total, before = sum(start.rounds for start in starts), 0

    def watched(start: _Start) -> EvidenceFit:
        nonlocal before
        fit = _fit(start, lambda done: on_progress((before + done) / total) if on_progress is not None else None)
        before += start.rounds
        return fit

    return min(crew.map(_fit, starts, watched), key=lambda fit: fit.objective)


class _Start(NamedTuple):
    """Where a fit starts, and how far it may go."""

    parameters: Parameters
    frame: Frame
    trials: Trials
    points: int
    evaluations: int
    rounds: int


def _fit(start: _Start, tell: Callable[[float], object] = lambda done: None) -> EvidenceFit:
    p, frame, trials, points, evaluations, rounds = start
    count = 0
    for n in range(rounds):

        def report(done: float, n: int = n) -> None:
            tell(n + done)

        p, best = _descend(_settle(p, frame, trials), frame, trials, evaluations, report)
        count += best.evaluations
        if n < rounds - 1:
            # What the filter now believes is a better place for the inducing points than what the sensors said.
            believed = _linearise(p, frame, trials).states
            lengths = np.full((frame.states, frame.features.size), np.inf)
            lengths[:, frame.kernel_inputs] = np.exp(p.log_length_scales)
            moved = _place(trials, frame.features, frame.initial, points, believed, lengths * np.asarray(frame.scale))
            p, frame = _carry_over(p, frame, moved), moved
    root = _linearise(p, frame, trials).root
    dynamics = _dynamics(p, frame, _posterior(root, p.weights.shape))
    if not all(np.isfinite(np.asarray(part)).all() for part in (dynamics.gp.precision, dynamics.gp.weights, root)):
        raise ValueError(
            "Training ended with a model that is not finite. Look at the data: are the units sensible, is a sensor "
            "stuck, is an angle cut at +-pi (angles must be continuous: np.unwrap)?"
        )
    return EvidenceFit(dynamics, best.value, count, best.stopped, p, frame, root)


@compiled
def negative_log_evidence(p: Parameters, frame: Frame, trials: Trials) -> Float[Array, ""]:
    """-log p(z), approximately, with the priors of the hyperparameters."""
    found = filter_trials(work_out(p, frame), trials)
    root = jnp.linalg.cholesky(jnp.eye(p.weights.size) + found.gram)
    constant = jnp.sum(trials.observed) * frame.states * jnp.log(2 * jnp.pi) / 2
    fit = jnp.sum(found.white**2) / 2 + found.log_det + constant
    complexity = jnp.sum(p.weights**2) / 2 + jnp.sum(jnp.log(jnp.diag(root)))
    return fit + complexity + _prior(p)


def _prior(p: Parameters) -> Float[Array, ""]:
    values = {
        "length_scale": p.log_length_scales,
        "signal": p.log_signal,
        "sensor": p.log_sensor,
        "process": p.log_process,
    }
    return sum(
        (jnp.sum(((value - np.log(PRIOR[name][0])) / PRIOR[name][1]) ** 2) / 2 for name, value in values.items()),
        jnp.zeros(()),
    )


class _Linear(eqx.Module):
    """The problem linearised at given weights."""

    value: Float[Array, ""]
    """1/2 |e|^2 + sum log |S|^1/2 + 1/2 |w|^2."""
    step: Float[Array, "state basis"]
    """The Gauss-Newton step."""
    root: Float[Array, "weights weights"]
    states: Float[Array, "trials times state"]


@compiled
def _linearise(p: Parameters, frame: Frame, trials: Trials) -> _Linear:
    found = filter_trials(work_out(p, frame), trials)
    J, w = found.jacobian, p.weights.reshape(-1)
    root = jnp.linalg.cholesky(jnp.eye(w.shape[0]) + found.gram)
    step = -jsl.cho_solve((root, True), J.T @ found.white + w)
    value = jnp.sum(found.white**2) / 2 + found.log_det + jnp.sum(w**2) / 2
    return _Linear(value, step.reshape(p.weights.shape), root, found.states)


def _settle(p: Parameters, frame: Frame, trials: Trials) -> Parameters:
    """The best weights for given hyperparameters, by Gauss-Newton.

    First with noises at least those of a fresh start: the more noise is allowed, the more the filter follows the data
    and the nearer the problem is to a linear regression, whatever the weights it begins with.
    """
    easy = _start(frame)
    with_noise = eqx.tree_at(
        lambda q: (q.log_sensor, q.log_process),
        p,
        (jnp.maximum(p.log_sensor, easy.log_sensor), jnp.maximum(p.log_process, easy.log_process)),
    )
    rough = _gauss_newton(with_noise, frame, trials)
    return _gauss_newton(eqx.tree_at(lambda q: q.weights, p, rough.weights), frame, trials)


def _gauss_newton(p: Parameters, frame: Frame, trials: Trials, iterations: int = 10) -> Parameters:
    here = _linearise(p, frame, trials)
    for _ in range(iterations):
        for length in (1.0, 0.3, 0.1, 0.03, 0.01):
            tried = eqx.tree_at(lambda q: q.weights, p, p.weights + length * here.step)
            there = _linearise(tried, frame, trials)
            if float(there.value) < float(here.value):
                break
        else:
            return p
        gain = float(here.value) - float(there.value)
        p, here = tried, there
        if gain < 0.05:  # nats
            break
    return p


HYPER_STEP = 0.3
"""A unit step of the optimiser in a log hyperparameter."""


def _descend(
    p: Parameters, frame: Frame, trials: Trials, evaluations: int, on_progress: Callable[[float], object]
) -> tuple[Parameters, Minimum]:
    """L-BFGS over weights and hyperparameters together.

    The weights move in the coordinates that their own posterior suggests, `w + (I + J'J)^-1/2 y`: the objective is then
    about as steep in every direction, which raw weights are far from.
    """
    root = _linearise(p, frame, trials).root

    def objective(y: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _value_and_gradient(jnp.asarray(y), p, root, frame, trials)
        return float(value), np.asarray(gradient)

    start = np.zeros(p.weights.size + p.log_length_scales.size + 3 * frame.states)
    best = minimise(objective, start, evaluations=evaluations, memory=60, on_progress=on_progress)
    return _moved(jnp.asarray(best.x), p, root), best


def _moved(y: Float[Array, " all"], p: Parameters, root: Float[Array, "weights weights"]) -> Parameters:
    weights = p.weights.size
    w = p.weights + jsl.solve_triangular(root, y[:weights], lower=True, trans=1).reshape(p.weights.shape)
    l, s, r, q = jnp.split(
        HYPER_STEP * y[weights:],
        np.cumsum([p.log_length_scales.size, p.log_signal.size, p.log_sensor.size]),
    )
    return Parameters(
        p.log_length_scales + l.reshape(p.log_length_scales.shape),
        p.log_signal + s,
        p.log_sensor + r,
        p.log_process + q,
        w,
    )


@compiled
def _value_and_gradient(y: Array, p: Parameters, root: Array, frame: Frame, trials: Trials) -> tuple[Array, Array]:
    return jax.value_and_grad(lambda y: negative_log_evidence(_moved(y, p, root), frame, trials))(y)


def _start(frame: Frame, start: dict[str, float] = STARTS[0]) -> Parameters:
    states, inputs = frame.states, len(frame.kernel_inputs)

    def full(shape: tuple[int, ...], name: str) -> Array:
        return jnp.asarray(np.full(shape, np.log(start[name])))

    return Parameters(
        full((states, inputs), "length_scale"),
        full((states,), "signal"),
        full((states,), "sensor"),
        full((states,), "process"),
        jnp.asarray(np.zeros((states, frame.basis_size))),
    )


def _carry_over(p: Parameters, old: Frame, new: Frame) -> Parameters:
    """Hyperparameters in the units of another frame. Weights belong to their inducing points and start anew."""
    ratio = jnp.log(old.scale / new.scale)
    states = ratio[: new.states]
    return Parameters(
        p.log_length_scales + ratio[new.kernel_inputs],
        p.log_signal + states,
        p.log_sensor + states,
        p.log_process + states,
        jnp.asarray(np.zeros((new.states, new.basis_size))),
    )


def _place(
    trials: Trials,
    features: AngleFeatures,
    initial: Gaussian,
    points: int,
    states: Float[Array, "trials times state"] | None = None,
    lengths: np.ndarray | None = None,
) -> Frame:
    """Units from the data, and inducing points among the inputs (as observed, or at the `states` believed)."""
    seen = np.asarray(trials.transitions)
    observed = np.asarray(trials.observations)[:, :-1][seen]
    actions = np.asarray(trials.actions)[seen]
    believed = observed if states is None else np.asarray(states)[:, :-1][seen]
    h = np.asarray(jax.vmap(features)(jnp.asarray(np.concatenate([observed, actions], axis=1))))
    at = np.asarray(jax.vmap(features)(jnp.asarray(np.concatenate([believed, actions], axis=1))))
    centre, spread = h.mean(axis=0), h.std(axis=0)
    scale = np.where(spread > 1e-9 * np.maximum(np.abs(centre), 1e-3), spread, 1.0)  # a constant input has no spread
    frame = Frame(features, jnp.asarray(centre), jnp.asarray(scale), jnp.zeros((points, features.size)), initial)
    used = frame.kernel_inputs
    scaled = (at - centre) / scale
    lengths = np.full((1, len(used)), STARTS[0]["length_scale"]) if lengths is None else (lengths / scale)[:, used]
    chosen = scaled[_spread_out(scaled[:, used], lengths, points)]
    # Too few distinct inputs: the rest of the points go where no data are, each on its own, and say nothing.
    far = 1e3 * (1 + np.arange(points - len(chosen)))[:, None] * np.ones(features.size)
    return eqx.tree_at(lambda frame: frame.points, frame, jnp.asarray(np.concatenate([chosen, far])))


def _spread_out(inputs: np.ndarray, lengths: np.ndarray, points: int) -> list[int]:
    """Greedily, each point where those before it explain the kernel least (pivoted Cholesky, summed over outputs)."""
    left = np.ones((len(lengths), len(inputs)))
    factors = np.zeros((len(lengths), len(inputs), points))
    chosen: list[int] = []
    while len(chosen) < min(points, len(inputs)):
        pivot, k = int(np.argmax(left.sum(axis=0))), len(chosen)
        if left[:, pivot].max() < 1e-8:
            break
        chosen.append(pivot)
        for output, length in enumerate(lengths):
            column = np.exp(-np.sum(((inputs - inputs[pivot]) / length) ** 2, axis=1) / 2)
            column -= factors[output, :, :k] @ factors[output, pivot, :k]
            factors[output, :, k] = column / np.sqrt(max(left[output, pivot], 1e-12))
            left[output] = np.maximum(left[output] - factors[output, :, k] ** 2, 0)
        left[:, pivot] = 0
    return chosen


@compiled
def _posterior(root: Float[Array, "weights weights"], shape: tuple[int, int]) -> Float[Array, "state basis basis"]:
    """The covariance of each output's weights."""
    states, size = shape
    posterior = jsl.cho_solve((root, True), jnp.eye(states * size)).reshape(states, size, states, size)
    return jnp.stack([posterior[a, :, a] for a in range(states)])


@compiled
def _dynamics(p: Parameters, frame: Frame, P: Float[Array, "state basis basis"]) -> Dynamics:
    """The model in state units, as points, weights and matrices, with covariance `P` of each output's weights."""
    model, states, points = work_out(p, frame), p.weights.shape[0], frame.points.shape[0]
    W = jnp.einsum("oqp,oqr,ors->ops", model.half, jnp.eye(points) - P[:, :points, :points], model.half)
    H = jnp.einsum("oqp,oql->opl", model.half, P[:, :points, points:])

    # From [1, input] to the scaled linear features [x, u, 1].
    used = frame.linear_inputs
    row, per_unit = np.arange(len(used)), 1 / frame.scale[used]
    linear = jnp.zeros((len(used) + 1, 1 + frame.features.size)).at[-1, 0].set(1.0)
    linear = linear.at[row, 1 + used].set(per_unit).at[row, 0].set(-frame.centre[used] * per_unit)

    s = frame.state_scale
    mean = s[:, None] * (p.weights[:, points:] @ linear)
    gp = GaussianProcess(
        inputs=frame.centre + frame.scale * frame.points,
        length_scales=model.length_scales * frame.scale,
        signal_variance=model.signal_variance * s**2,
        weights=model.coefficients[:, :points] / s[:, None],
        precision=symmetrise(W) / s[:, None, None] ** 2,
        slope=mean[:, 1:] + jnp.eye(states, frame.features.size),
        offset=mean[:, 0],
        cross_cov=H @ linear,
        linear_cov=s[:, None, None] ** 2 * symmetrise(linear.T @ P[:, points:, points:] @ linear),
    )
    return Dynamics(gp, frame.features, model.R, model.Q)


def _check(trials: Trials, points: int) -> None:
    if points < 1:
        raise ValueError(f"A model needs at least one inducing point; given {points}.")
    transitions = int(np.sum(np.asarray(trials.transitions)))
    if transitions < 2:
        raise ValueError(
            f"Training needs at least two transitions; the data have {transitions}. Record longer episodes, or more."
        )
    observed = np.asarray(trials.observations)[np.asarray(trials.observed)]
    still = np.flatnonzero(np.ptp(observed, axis=0) == 0)
    if len(still):
        raise ValueError(
            f"State {', '.join(map(str, still))} never changes in the data, so nothing can be learned about it: is the "
            "sensor connected? Leave the state out, or excite it."
        )
