"""Ordinary GP training: each output's hyperparameters by marginal likelihood.

The inputs are assumed exact, and all noise is noise of the targets. For observed series that is wrong, because the
inputs are observations too. So this is only where training starts.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from bayespilco.core.compilation import compiled
from bayespilco.core.gp import GaussianProcess, condition_sparse
from bayespilco.core.optimise import Minimum, Reason, minimise
from bayespilco.core.parallel import SERIAL, Mapper
from bayespilco.core.precision import as_float64, float64
from bayespilco.training.likelihood import (
    Hyperparameters,
    Points,
    covariance_matrix,
    curb_penalty,
    negative_log_likelihood,
    snr_penalty,
    sparse_negative_log_likelihood,
)

Kind = Literal["full", "fitc", "vfe"]
Penalty = Literal["snr", "curb"]

SIZES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Data are padded to these numbers of points, so that growing data seldom needs a new compilation."""
STARTS = ((1.0, 0.1), (3.0, 0.5), (0.3, 0.03), (1.0, 1.0), (3.0, 0.05))
"""Where searches start: length-scales over the inputs' spread, and noise over signal. The first is the usual one."""
JITTERS = (0.0, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
"""Shares of the signal variance tried as extra noise, in this order, when a covariance is numerically singular."""


class MarginalFit(eqx.Module):
    """A trained GP and how its training went; lists have one entry per output."""

    gp: GaussianProcess
    noise_variance: Float[Array, " output"]
    """sn^2, jitter included."""
    objective: Float[Array, " output"]
    """Negative log marginal likelihood plus penalty, in the units of the data."""
    evaluations: int = eqx.field(static=True)
    jitter: float = eqx.field(static=True)
    """The largest share of a signal variance that had to be added to make a covariance invertible; mostly 0."""
    stopped: tuple[Reason, ...] = eqx.field(static=True)
    """Why the search of each output ended."""


class _Units(eqx.Module):
    """Inputs and residuals scaled to unit size: where the search happens."""

    centre: np.ndarray
    spread: np.ndarray
    middle: np.ndarray
    size: np.ndarray

    def raw(self, hyper: Hyperparameters) -> Hyperparameters:
        slope = hyper.slope * self.size[:, None] / self.spread
        return Hyperparameters(
            hyper.log_length_scales + np.log(self.spread),
            hyper.log_signal + np.log(self.size),
            hyper.log_noise + np.log(self.size),
            slope,
            hyper.offset * self.size + self.middle - slope @ self.centre,
        )


@float64
def fit_marginal(
    inputs: ArrayLike,
    targets: ArrayLike,
    *,
    kernel_inputs: tuple[bool, ...] | None = None,
    linear_inputs: tuple[bool, ...] | None = None,
    kind: Kind = "full",
    inducing: ArrayLike | None = None,
    penalty: Penalty = "snr",
    snr: float = 500.0,
    evaluations: int = 150,
    starts: int = 1,
    workers: Mapper = SERIAL,
    on_progress: Callable[[float], object] | None = None,
) -> MarginalFit:
    """Train one GP per output on `targets = f(inputs) + noise`, with a linear mean, and condition it on the data.

    The outputs are trained independently, in units in which inputs and residuals have size one. The linear mean starts
    from least squares.

    Args:
        inputs: Of shape (points, input).
        targets: Of shape (points, output).
        kernel_inputs: Which inputs the kernel sees; the others get a length-scale of infinity. Default: all.
        linear_inputs: Which inputs the linear mean has weights on. Default: all.
        kind: The full GP, or a sparse one over fixed `inducing` points.
        penalty: `"snr"` for `(SNR / snr)^30`, `"curb"` for PILCO v0.9's, which limits the length-scales too.
        evaluations: At most this many per output and start.
        starts: How many different starts to search from; the best result is kept.
        workers: Who computes; the searches are independent of each other.

    Returns:
        The conditioned GP. If the points are too few to learn more than a line, the starting values are kept and
        `stopped` is `TOO_FEW_DATA`.
    """
    x, y = _checked(inputs, targets)
    n, size = x.shape
    outputs = y.shape[1]
    in_kernel, in_mean = _mask(kernel_inputs, size, "kernel_inputs"), _mask(linear_inputs, size, "linear_inputs")
    if (kind == "full") != (inducing is None):
        raise ValueError(f'Give inducing points with kind "fitc" or "vfe" and only then; given kind "{kind}".')
    if evaluations < 1:
        raise ValueError(f"evaluations must be at least 1; given {evaluations}.")
    if not 1 <= starts <= len(STARTS):
        raise ValueError(f"starts must be between 1 and {len(STARTS)}; given {starts}.")

    enough = n > int(in_mean.sum()) + 2
    units, slope = _units(x, y, in_mean, enough)
    scaled, residual = (x - units.centre) / units.spread, (y - units.middle) / units.size
    points = [_padded(scaled, residual[:, a], in_kernel, in_mean) for a in range(outputs)]
    z = None if inducing is None else jnp.asarray((np.asarray(inducing) - units.centre) / units.spread)
    searches = []
    for a in range(outputs):
        for length, noise in STARTS[:starts]:
            start = np.concatenate([np.full(size, np.log(length)), [0.0, np.log(noise)], slope[a], [0.0]])
            searches.append(_Search(start, points[a], z, kind, penalty, snr, evaluations if enough else 0))
    done = 0

    def watched(search: _Search) -> Minimum:
        nonlocal done

        def report(fraction: float) -> None:
            if on_progress is not None:
                on_progress((done + fraction) / len(searches))

        minimum = _search(search, report)
        done += 1
        return minimum

    minima = workers.map(_search, searches, watched)
    spent = sum(minimum.evaluations for minimum in minima)
    found = [min(minima[a * starts : (a + 1) * starts], key=lambda minimum: minimum.value) for a in range(outputs)]

    hyper = _unpack(np.stack([m.x for m in found]))
    gp, noise_variance, jitter = _conditioned(x, y, units, hyper, points, in_kernel, in_mean, kind, inducing)
    objective = np.array([m.value for m in found]) + n * np.log(units.size)
    return MarginalFit(
        gp, as_float64(noise_variance), as_float64(objective), spent, jitter, tuple(m.reason for m in found)
    )


class _Search(NamedTuple):
    """A search for one output's hyperparameters. With 0 evaluations it keeps the start."""

    start: np.ndarray
    data: Points
    inducing: Array | None
    kind: Kind
    penalty: Penalty
    snr: float
    evaluations: int


def _search(search: _Search, on_progress: Callable[[float], None] | None = None) -> Minimum:
    start, data, inducing, kind, penalty, snr, evaluations = search
    size = data.inputs.shape[1]
    bounds = [(-3.0, 7.0)] * size + [(-9.0, 9.0)] + [(-9.0, 5.0)] + [(-1e9, 1e9)] * (size + 1)

    def function(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _value_and_gradient(jnp.asarray(vector), data, inducing, kind, penalty, snr)
        return float(value), np.asarray(gradient)

    if evaluations == 0:
        value = function(start)[0]
        return Minimum(start, value, 1, Reason.TOO_FEW_DATA, np.array([value]))
    return minimise(function, start, evaluations=evaluations, bounds=bounds, on_progress=on_progress)


@compiled
def _value_and_gradient(
    vector: Array, data: Points, inducing: Array | None, kind: Kind, penalty: Penalty, snr: float
) -> tuple[Array, Array]:
    def objective(vector: Array) -> Array:
        hyper = _unpack(vector)
        if inducing is None:
            value = negative_log_likelihood(hyper, data)
        else:
            value = sparse_negative_log_likelihood(hyper, data, inducing, "fitc" if kind == "fitc" else "vfe")
        if penalty == "curb":
            return value + curb_penalty(hyper, jnp.ones_like(hyper.slope), snr)  # spreads are one in these units
        return value + snr_penalty(hyper.log_signal, hyper.log_noise, snr)

    return jax.value_and_grad(objective)(vector)


def _unpack(vector: Array | np.ndarray) -> Hyperparameters:
    """The hyperparameters of one output, or with a leading axis of several."""
    size = (vector.shape[-1] - 3) // 2
    return Hyperparameters(
        vector[..., :size], vector[..., size], vector[..., size + 1], vector[..., size + 2 : -1], vector[..., -1]
    )


def _checked(inputs: object, targets: object) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(inputs, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    if x.ndim != 2 or y.ndim != 2 or x.shape[0] != y.shape[0]:
        raise ValueError(
            "Training needs inputs of shape (points, input) and targets of shape (points, output), with equally many "
            f"points; given {x.shape} and {y.shape}. For one output use targets[:, None]."
        )
    if x.shape[0] == 0:
        raise ValueError("Training needs at least one data point; given none. Record an episode first.")
    for name, value in (("inputs", x), ("targets", y)):
        if not np.isfinite(value).all():
            row = int(np.argwhere(~np.isfinite(value))[0, 0])
            raise ValueError(f"{name} must be finite; row {row} is {value[row]}. Leave such rows out of the training.")
    return x, y


def _mask(given: tuple[bool, ...] | None, size: int, name: str) -> np.ndarray:
    mask = np.ones(size, dtype=bool) if given is None else np.asarray(given, dtype=bool)
    if mask.shape != (size,):
        raise ValueError(f"{name} must say true or false for each of the {size} inputs; given {given}.")
    return mask


def _units(x: np.ndarray, y: np.ndarray, in_mean: np.ndarray, enough: bool) -> tuple[_Units, np.ndarray]:
    """The units of the search, and in them the slope of the least-squares line."""
    centre, spread = x.mean(axis=0), x.std(axis=0)
    spread = np.where(spread > 1e-12 * np.maximum(np.abs(centre), 1e-300), spread, np.maximum(np.abs(centre), 1.0))
    middle, deviation = y.mean(axis=0), y.std(axis=0)
    constant = deviation <= 1e-12 * np.abs(middle)
    deviation = np.where(constant, np.where(middle == 0, 1.0, np.abs(middle)), deviation)
    design = np.where(in_mean & enough, (x - centre) / spread, 0.0)
    slope = np.linalg.lstsq(design, y - middle, rcond=1e-10)[0].T
    # What a line leaves is the size of the kernel's part; data on a line exactly still need some size.
    left = (y - middle - design @ slope.T).std(axis=0)
    size = np.maximum(left, (1e-4 if enough else 1.0) * deviation)
    return _Units(centre, spread, middle, size), slope / size[:, None]


def _padded(x: np.ndarray, y: np.ndarray, in_kernel: np.ndarray, in_mean: np.ndarray) -> Points:
    n = len(x)
    extra = next((size for size in SIZES if size >= n), n) - n
    return Points(
        jnp.asarray(np.pad(x, ((0, extra), (0, 0)))),
        jnp.asarray(np.pad(y, (0, extra))),
        jnp.asarray(np.arange(n + extra) < n),
        jnp.asarray(in_kernel),
        jnp.asarray(in_mean),
    )


def _conditioned(
    x: np.ndarray,
    y: np.ndarray,
    units: _Units,
    hyper: Hyperparameters,
    points: list[Points],
    in_kernel: np.ndarray,
    in_mean: np.ndarray,
    kind: Kind,
    inducing: object,
) -> tuple[GaussianProcess, np.ndarray, float]:
    """The GP of these hyperparameters (in scaled units) given the data, its noise variances, and the jitter needed."""
    raw = units.raw(hyper._replace(slope=np.where(in_mean, hyper.slope, 0.0)))
    lengths = np.where(in_kernel, np.exp(raw.log_length_scales), np.inf)
    signal, n = np.exp(2 * raw.log_signal), len(x)
    for jitter in JITTERS:
        noise = np.exp(2 * raw.log_noise) + jitter * signal
        if inducing is None:
            # On the padded data, in scaled units: y = size y' makes W = W' / size^2 and beta = beta' / size.
            log_noise = np.log(noise) / 2 - np.log(units.size)
            solved = [_solve(_unpack(row), d) for row, d in zip(_packed(hyper, log_noise), points, strict=True)]
            W = np.stack([np.asarray(w)[:n, :n] for w, _ in solved]) / units.size[:, None, None] ** 2
            beta = np.stack([np.asarray(b)[:n] for _, b in solved]) / units.size[:, None]
            parts = (x, beta, W)
        else:
            model = condition_sparse(
                *map(jnp.asarray, (x, y, inducing, lengths, signal, noise, raw.slope, raw.offset)),
                kind="fitc" if kind == "fitc" else "vfe",
                ridge=jnp.asarray(max(1e-6, jitter) * signal),
            )
            parts = (np.asarray(inducing), np.asarray(model.weights), np.asarray(model.precision))
        if all(np.isfinite(part).all() for part in parts):
            where, beta, W = parts
            fields = (where, lengths, signal, beta, W, raw.slope, raw.offset)
            return GaussianProcess(*map(as_float64, fields)), noise, jitter
    raise ValueError(
        f"The GP's covariance is singular even with {JITTERS[-1]:g} of its signal variance added as noise. "
        f"Signal {np.sqrt(signal)}, noise {np.exp(raw.log_noise)}: try a lower snr, or remove inputs that repeat."
    )


def _packed(hyper: Hyperparameters, log_noise: np.ndarray) -> np.ndarray:
    lengths, signal, _, slope, offset = hyper
    return np.concatenate([lengths, signal[:, None], log_noise[:, None], slope, offset[:, None]], axis=1)


@compiled
def _solve(hyper: Hyperparameters, data: Points) -> tuple[Array, Array]:
    """`W = (K + sn^2 I)^-1` and `beta = W r`, zero on padding."""
    scaled = jnp.where(data.kernel_inputs, data.inputs * jnp.exp(-hyper.log_length_scales), 0.0)
    noise = jnp.exp(2 * hyper.log_noise)
    L = jnp.linalg.cholesky(
        covariance_matrix(scaled, hyper.log_signal, data.real) + jnp.diag(jnp.where(data.real, noise, 1.0))
    )
    W = jsl.cho_solve((L, True), jnp.eye(data.real.shape[0]))
    slope = jnp.where(data.linear_inputs, hyper.slope, 0.0)
    residual = jnp.where(data.real, data.targets - data.inputs @ slope - hyper.offset, 0.0)
    return W, W @ residual
