"""Units from the data, and inducing points among the inputs that the data visit."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.model.episode import Trials
from bayespilco.model.sensors import Sensors
from bayespilco.model.structure import Structure
from bayespilco.training.guesses import Guesses
from bayespilco.training.trajectory import Layout

FIRST_LENGTH_SCALE = 2.0
"""Of the kernel that the first points are placed with, in units of the inputs' spread."""


def place(
    trials: Trials,
    guesses: Guesses,
    features: AngleFeatures,
    structure: Structure,
    sensors: Sensors,
    initial: Gaussian,
    points: int,
    states: Float[Array, "trials times state"] | None = None,
    lengths: Float[np.ndarray, "output input"] | None = None,
) -> Layout:
    """Units from the guessed states, and inducing points at these, or at the `states` that a filter believes.

    Args:
        lengths: The kernel's length-scales, in the data's units, to place the points by.
    """
    h = guesses.inputs(trials, features)
    n = structure.plant_states
    at = h if states is None else guesses.inputs_at(np.asarray(states)[..., :n], trials, features)
    centre, scale = h.mean(axis=0), _spread(h)
    mirror = structure.mirrored_inputs(features)
    if mirror is not None:  # what it turns is centred at zero, so that it changes the signs of scaled inputs
        scale = np.where(mirror < 0, np.sqrt(np.where(scale == 1.0, 1.0, np.mean(h**2, axis=0))), scale)
        centre = np.where(mirror < 0, 0.0, centre)
        points = -(-points // 2)
    visited = guesses.rows[:, :-1][guesses.usable]
    state_scale = _spread(visited[:, :n])
    layout = Layout(
        features,
        structure,
        sensors.with_noise(_sensor_spread(trials, guesses) ** 2 / sensors.mean_relative_noise(visited)),
        initial,
        jnp.asarray(centre),
        jnp.asarray(scale),
        jnp.asarray(state_scale),
        jnp.zeros((points, features.size)),
    )
    used = layout.kernel_inputs
    scaled = (at - centre) / scale
    lengths = np.full((1, len(used)), FIRST_LENGTH_SCALE) if lengths is None else (lengths / scale)[:, used]
    chosen = scaled[spread_out(scaled[:, used], lengths, points, None if mirror is None else mirror[used])]
    # Too few distinct inputs: the rest of the points go where no data are, each on its own, and say nothing.
    far = 1e3 * (1 + np.arange(points - len(chosen)))[:, None] * np.ones(features.size)
    return layout.with_points(jnp.asarray(np.concatenate([chosen, far])))


def _spread(values: Float[np.ndarray, "points dim"]) -> Float[np.ndarray, " dim"]:
    """Standard deviations; 1 for what is constant."""
    centre, spread = values.mean(axis=0), values.std(axis=0)
    return np.where(spread > 1e-9 * np.maximum(np.abs(centre), 1e-3), spread, 1.0)


def _sensor_spread(trials: Trials, guesses: Guesses) -> Float[np.ndarray, " sensor"]:
    """The spread of each sensor's readings, at the steps that are learned from."""
    z, seen = np.asarray(trials.observations)[:, :-1], np.asarray(trials.observed)[:, :-1] & guesses.usable[..., None]
    return np.array([_spread(z[..., k][seen[..., k]][:, None])[0] for k in range(z.shape[-1])])


def spread_out(
    inputs: Float[np.ndarray, "inputs dim"],
    lengths: Float[np.ndarray, "output dim"],
    points: int,
    mirror: np.ndarray | None = None,
) -> list[int]:
    """Greedily, each point where those before it explain the kernel least (pivoted Cholesky, summed over outputs).

    With a `mirror`, each point comes with its mirror image.
    """
    count = len(inputs)
    if mirror is not None:
        inputs = np.concatenate([inputs, mirror * inputs])
    left = np.ones((len(lengths), len(inputs)))
    factors = np.zeros((len(lengths), len(inputs), points if mirror is None else 2 * points))
    chosen: list[int] = []
    k = 0
    while len(chosen) < min(points, count):
        pivot = int(np.argmax(left[:, :count].sum(axis=0)))
        if left[:, pivot].max() < 1e-8:
            break
        chosen.append(pivot)
        for place in (pivot,) if mirror is None else (pivot, count + pivot):
            for output, length in enumerate(lengths):
                column = np.exp(-np.sum(((inputs - inputs[place]) / length) ** 2, axis=1) / 2)
                column -= factors[output, :, :k] @ factors[output, place, :k]
                factors[output, :, k] = column / np.sqrt(max(left[output, place], 1e-12))
                left[output] = np.maximum(left[output] - factors[output, :, k] ** 2, 0)
            left[:, place] = 0
            k += 1
    return chosen
