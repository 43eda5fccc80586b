"""Our training: the evidence of the trajectory model, with the function integrated out along the filter.

Sensors report `z_t = C x_t + e_t`, so regressing `z_{t+1}` on `z_t` is biased, the more so the noisier the velocities.
The paper's Direct method repairs that with a filter, but fits the function as a point: with little data it explains
noise as signal, and it never knows how uncertain it is. Here the function keeps a distribution (`laplace`), and its
evidence is minimised over weights, kernel and both noises together. The complexity term is that of the filter itself: a
velocity counts as well known as the positions around it make it. And the same matrix `(I + J'J)^-1` becomes the model's
predictive uncertainty, so what was optimised is what is used.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.compilation import compiled
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.optimise import Minimum, Reason, minimise
from bayespilco.core.parallel import SERIAL, Mapper
from bayespilco.core.precision import float64
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Trials
from bayespilco.model.sensors import Sensors, complete
from bayespilco.model.structure import Structure, free
from bayespilco.training.conversion import dynamics, posterior
from bayespilco.training.guesses import Guesses, guess_states
from bayespilco.training.laplace import PRIOR, linearise, negative_log_evidence, settle
from bayespilco.training.outliers import Explanation, sensor_name, train_robustly
from bayespilco.training.placement import place
from bayespilco.training.trajectory import Layout, Parameters

STARTS = (
    {"length_scale": 2.0, "signal": 0.3, "sensor": 0.2, "process": 0.05},
    {"length_scale": 2.0, "signal": 0.3, "sensor": 0.05, "process": 0.2},
)
"""Where hyperparameters start, in units of the data's spread: with doubt in the sensors, or with trust in them. A
sensor that is doubted may stay so: the model finds a state of its own that explains the others, and calls all that the
sensor says noise."""

FRESH_UNTIL = 4
"""With up to this many trials a fit also starts from scratch: an early explanation may be wrong altogether."""


class EvidenceFit(eqx.Module):
    """A trained model: as the rest of the library uses it, and with the joint posterior of its weights."""

    dynamics: Dynamics
    objective: float
    """-log evidence at the end."""
    evaluations: int
    stopped: Reason = eqx.field(converter=Reason)
    parameters: Parameters
    layout: Layout
    root: Float[Array, "weights weights"]
    """Lower Cholesky factor of `I + J'J`, the inverse of the weights' posterior covariance, all outputs jointly."""

    def __check_init__(self) -> None:
        p, layout = self.parameters, self.layout
        inputs, n = len(layout.kernel_inputs), layout.outputs
        expected = {
            "centre": (layout.centre, (layout.features.size,)),
            "scale": (layout.scale, (layout.features.size,)),
            "points": (layout.points, (layout.points.shape[0], layout.features.size)),
            "log_length_scales": (p.log_length_scales, (n, inputs)),
            "log_signal": (p.log_signal, (n,)),
            "log_sensor": (p.log_sensor, (layout.sensors.count,)),
            "log_process": (p.log_process, (layout.structure.plant_states,)),
            "weights": (p.weights, (n, layout.basis_size)),
            "root": (self.root, (n * layout.basis_size,) * 2),
        }
        for name, (value, shape) in expected.items():
            if value.shape != shape:
                raise ValueError(f"{name} of an EvidenceFit must have shape {shape}; given {value.shape}.")

    @float64
    def draw(self, key: Array) -> Dynamics:
        """One plant that the data leave possible, all outputs jointly: see `model.posterior_samples`."""
        chance = jax.random.normal(key, self.root.shape[:1])
        away = jsl.solve_triangular(self.root, chance, lower=True, trans=1).reshape(self.parameters.weights.shape)
        drawn = eqx.tree_at(lambda p: p.weights, self.parameters, self.parameters.weights + away)
        outputs, size = away.shape
        return dynamics(drawn, self.layout, jnp.zeros((outputs, size, size)))


@float64
def fit_evidence(
    trials: Trials,
    features: AngleFeatures,
    initial: Gaussian,
    *,
    structure: Structure | None = None,
    sensors: Sensors | None = None,
    points: int = 50,
    evaluations: int = 60,
    rounds: int = 3,
    previous: EvidenceFit | None = None,
    names: Sequence[str] = (),
    workers: Mapper = SERIAL,
    on_progress: Callable[[float], object] | None = None,
) -> EvidenceFit:
    """Train a model of the plant on noisy trials. Gross outliers count as missing, with a warning (`outliers`).

    Args:
        trials: The data.
        features: From `[x, u]` to the GP's input; raw angles are kept out of the kernel.
        initial: The distribution of first states, over all rows.
        structure: What is known of the dynamics; by default nothing.
        sensors: What is measured (their noise is learned); by default every state.
        points: Inducing points.
        evaluations: Values and gradients per round.
        rounds: How often the inducing points are placed anew, on what the filter then believes the states were.
        previous: An earlier fit whose hyperparameters to start from. With few trials fresh starts are tried as well,
            and the best evidence wins.
        names: Of the sensors, for warnings and errors.
        workers: Who computes; the starts are independent of each other.
        on_progress: Called with the fraction done.
    """
    structure = free(initial.size, trials.actions.shape[2]) if structure is None else structure
    sensors = complete(np.ones(trials.observations.shape[2])) if sensors is None else sensors
    declared = features, initial, structure, sensors

    def train(trials: Trials) -> EvidenceFit:
        check_data(trials, points, names)
        return _fit_trials(trials, *declared, points, evaluations, rounds, previous, workers, on_progress)

    return train_robustly(trials, sensors, names, train, _explain)


def _explain(fit: EvidenceFit, trials: Trials) -> Explanation:
    states = linearise(fit.parameters, fit.layout, trials).states
    return np.asarray(states), np.asarray(fit.dynamics.sensor_noise)


def _fit_trials(
    trials: Trials,
    features: AngleFeatures,
    initial: Gaussian,
    structure: Structure,
    sensors: Sensors,
    points: int,
    evaluations: int,
    rounds: int,
    previous: EvidenceFit | None,
    workers: Mapper,
    on_progress: Callable[[float], object] | None,
) -> EvidenceFit:
    """Train on these trials as they are."""
    guesses = guess_states(trials, structure, sensors, initial)
    layout = place(trials, guesses, features, structure, sensors, initial, points)
    starts: list[_Start] = []
    if previous is not None:
        carried = _carry_over(previous.parameters, previous.layout, layout)
        starts.append(_Start(carried, layout, trials, guesses, points, evaluations, max(rounds - 1, 1)))
    if previous is None or int(np.asarray(trials.observed)[:, 0].any(axis=1).sum()) <= FRESH_UNTIL:
        fresh = [_start(layout, start) for start in STARTS]
        starts += [_Start(p, layout, trials, guesses, points, evaluations, rounds) for p in fresh]
    total, before = sum(start.rounds for start in starts), 0

    def watched(start: _Start) -> EvidenceFit:
        nonlocal before
        fit = _fit(start, lambda done: on_progress((before + done) / total) if on_progress is not None else None)
        before += start.rounds
        return fit

    return min(workers.map(_fit, starts, watched), key=lambda fit: fit.objective)


class _Start(NamedTuple):
    """Where a fit starts, and how far it may go."""

    parameters: Parameters
    layout: Layout
    trials: Trials
    guesses: Guesses
    points: int
    evaluations: int
    rounds: int


def _fit(start: _Start, report_to: Callable[[float], object] = lambda done: None) -> EvidenceFit:
    p, layout, trials, guesses, points, evaluations, rounds = start
    count = 0
    for n in range(rounds):

        def report(done: float, n: int = n) -> None:
            report_to(n + done)

        p, best = _descend(settle(p, layout, trials), layout, trials, evaluations, report)
        count += best.evaluations
        if n < rounds - 1:
            # What the filter now believes is a better place for the inducing points than what the sensors said.
            believed = linearise(p, layout, trials).states
            lengths = np.full((layout.outputs, layout.features.size), np.inf)
            lengths[:, layout.kernel_inputs] = np.exp(p.log_length_scales)
            lengths = lengths * np.asarray(layout.scale)
            declared = layout.features, layout.structure, layout.sensors, layout.initial
            moved = place(trials, guesses, *declared, points, believed, lengths)
            p, layout = _carry_over(p, layout, moved), moved
    root = linearise(p, layout, trials).root
    outputs, size = p.weights.shape
    model = dynamics(p, layout, posterior(root, (outputs, size)))
    if not all(np.isfinite(np.asarray(part)).all() for part in (model.gp.precision, model.gp.weights, root)):
        raise ValueError(
            "Training ended with a model that is not finite. Look at the data: are the units sensible, is a sensor "
            "stuck, is an angle cut at +-pi (angles must be continuous: np.unwrap)?"
        )
    return EvidenceFit(model, best.value, count, best.reason, p, layout, root)


HYPER_STEP = 0.3
"""A unit step of the optimiser in a log hyperparameter."""


def _descend(
    p: Parameters, layout: Layout, trials: Trials, evaluations: int, on_progress: Callable[[float], object]
) -> tuple[Parameters, Minimum]:
    """L-BFGS over weights and hyperparameters together.

    The weights move in the coordinates that their own posterior suggests, `w + (I + J'J)^-1/2 y`: the objective is then
    about as steep in every direction, which raw weights are far from.
    """
    root = linearise(p, layout, trials).root

    def objective(y: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _value_and_gradient(jnp.asarray(y), p, root, layout, trials)
        return float(value), np.asarray(gradient)

    start = np.zeros(sum(part.size for part in jax.tree.leaves(p)))
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
def _value_and_gradient(y: Array, p: Parameters, root: Array, layout: Layout, trials: Trials) -> tuple[Array, Array]:
    return jax.value_and_grad(lambda y: negative_log_evidence(_moved(y, p, root), layout, trials))(y)


def _start(layout: Layout, start: dict[str, float] = STARTS[0]) -> Parameters:
    outputs, inputs = layout.outputs, len(layout.kernel_inputs)

    def full(shape: tuple[int, ...], name: str) -> Array:
        return jnp.asarray(np.full(shape, np.log(start[name])))

    process = full((layout.structure.plant_states,), "process")
    known = jnp.log(PRIOR["process"][0] * layout.known_row_scale)
    return Parameters(
        full((outputs, inputs), "length_scale"),
        full((outputs,), "signal"),
        full((layout.sensors.count,), "sensor"),
        process.at[layout.known_rows].set(known),
        jnp.asarray(np.zeros((outputs, layout.basis_size))),
    )


def _carry_over(p: Parameters, old: Layout, new: Layout) -> Parameters:
    """Hyperparameters in the units of another layout. Weights belong to their inducing points and start anew."""
    return Parameters(
        p.log_length_scales + jnp.log(old.scale / new.scale)[new.kernel_inputs],
        p.log_signal + jnp.log(old.output_scale / new.output_scale),
        p.log_sensor + jnp.log(old.sensor_scale / new.sensor_scale),
        p.log_process + jnp.log(old.state_scale / new.state_scale),
        jnp.asarray(np.zeros((new.outputs, new.basis_size))),
    )


def check_data(trials: Trials, points: int, names: Sequence[str] = ()) -> None:
    """Refuse data that nothing can be learned from."""
    if points < 1:
        raise ValueError(f"A model needs at least one inducing point; given {points}.")
    active = np.asarray(trials.active)
    transitions = int(np.sum(active[:, :-1] & active[:, 1:]))
    if transitions < 2:
        raise ValueError(
            f"Training needs at least two transitions; the data have {transitions}. Record longer episodes, or more."
        )
    z, seen = np.asarray(trials.observations), np.asarray(trials.observed)
    still = [k for k in range(z.shape[2]) if not seen[..., k].any() or np.ptp(z[..., k][seen[..., k]]) == 0]
    if len(still):
        what = ", ".join(f"The {sensor_name(names, k)}" if names else f"State {k}" for k in still)
        raise ValueError(
            f"{what} never changes in the data, so nothing can be learned about it: is the "
            "sensor connected? Leave the state out, or excite it."
        )
