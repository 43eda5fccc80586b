"""First guesses of the states behind noisy, incomplete series: where training starts, and nothing else.

A state with a sensor of its own is guessed to be what the sensor says. A rate that no sensor sees comes from a smoother
of the position it belongs to: an integrated random walk, whose two noises are chosen by likelihood. What is missing in
between is filled in the same way, or by straight lines.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.model.episode import Trials
from bayespilco.model.sensors import Sensors
from bayespilco.model.structure import Structure

RATIOS = 10.0 ** np.arange(-4, 6.1, 0.5)
"""Variance of the walk's steps over that of the sensor: what the smoother chooses from."""


class Guesses(NamedTuple):
    """All rows of the state at every time of every trial, and which steps between them may be learned from."""

    rows: Float[np.ndarray, "trials times row"]
    usable: Bool[np.ndarray, "trials steps"]
    """Steps whose both ends were observed, or lie between observations if they were guessed."""

    def inputs(self, trials: Trials, features: AngleFeatures) -> Float[np.ndarray, "points input"]:
        """The model's inputs at the usable steps."""
        return _features(self.rows, trials, features, self.usable)

    def inputs_at(
        self, plant: Float[np.ndarray, "trials times state"], trials: Trials, features: AngleFeatures
    ) -> Float[np.ndarray, "points input"]:
        """The same with other plant states, such as a filter's."""
        rows = self.rows.copy()
        rows[..., : plant.shape[-1]] = plant
        return _features(rows, trials, features, self.usable)

    def outputs(self, structure: Structure) -> Float[np.ndarray, "points output"]:
        """The next values of the states that are learned, at the usable steps."""
        following: np.ndarray = self.rows[:, 1:][self.usable]
        return following[:, list(structure.outputs)]


def _features(rows: np.ndarray, trials: Trials, features: AngleFeatures, usable: np.ndarray) -> np.ndarray:
    both = np.concatenate([rows[:, :-1], np.asarray(trials.actions)], axis=2)[usable]
    return np.asarray(jax.vmap(features)(jnp.asarray(both)))


def guess_states(trials: Trials, structure: Structure, sensors: Sensors, initial: Gaussian) -> Guesses:
    """Guess all rows of the state from the observations."""
    n = structure.plant_states
    if sensors.is_complete and structure.states == n and np.asarray(trials.complete == trials.active).all():
        return Guesses(np.asarray(trials.observations), np.asarray(trials.transitions))
    measured = _measured(trials, structure, sensors)
    active = np.asarray(trials.active)
    plant = np.empty_like(measured)
    rates = _rates(structure)
    for i in range(n):
        plant[..., i] = _filled(measured[..., i], float(initial.mean[i]))
    for position, rate, dt in rates:
        if np.isfinite(measured[..., position]).any():
            smooth, slope = _smooth(measured[..., position], active, dt)
            gap = np.isnan(measured[..., position])
            plant[..., position][gap] = smooth[gap]
            unseen = np.isnan(measured[..., rate])
            plant[..., rate][unseen] = slope[unseen]
    rows = _known_rows(plant, trials, structure, initial)
    return Guesses(rows, active[:, :-1] & active[:, 1:])


def _rates(structure: Structure) -> list[tuple[int, int, float]]:
    """Positions with their rates, read off the known rows `p' = p + dt/2 (v + v')`."""
    found = []
    for position in range(structure.plant_states):
        if position not in structure.outputs:
            (rate,) = (i for i in np.flatnonzero(structure.L[position]) if i != position)
            found.append((position, int(rate), 2 * float(structure.L[position, rate])))
    return found


def _measured(trials: Trials, structure: Structure, sensors: Sensors) -> Float[np.ndarray, "trials times state"]:
    """Each plant state as the sensors alone tell it, NaN where they do not."""
    n, C, L = structure.plant_states, sensors.C.copy(), structure.L
    z = np.where(np.asarray(trials.observed), np.asarray(trials.observations) - sensors.d, np.nan)
    moved = np.full_like(z, np.nan)
    for k in range(sensors.count):
        delay = 0
        while C[k, n:].any():  # a register: what it holds was measured a step earlier
            C[k], delay = C[k] @ L, delay + 1
        moved[:, : z.shape[1] - delay, k] = z[:, delay:, k]
    plant = C[:, :n]
    inverse = np.linalg.pinv(plant)
    result = np.full((*z.shape[:2], n), np.nan)
    for i in range(n):
        if np.allclose(inverse[i] @ plant, np.eye(n)[i], atol=1e-9):
            used = np.abs(inverse[i]) > 1e-12
            result[..., i] = moved[..., used] @ inverse[i, used]
    return result


def _filled(values: Float[np.ndarray, "trials times"], default: float) -> Float[np.ndarray, "trials times"]:
    """With straight lines over what is missing."""
    filled = np.full_like(values, default)
    for row, given in zip(filled, values, strict=True):
        there = np.flatnonzero(np.isfinite(given))
        if len(there):
            row[:] = np.interp(np.arange(len(given)), there, given[there])
    return filled


def _known_rows(
    plant: Float[np.ndarray, "trials times state"], trials: Trials, structure: Structure, initial: Gaussian
) -> Float[np.ndarray, "trials times row"]:
    """With the rows behind the plant's own: past actions and the like follow from what is known."""
    n, times = structure.plant_states, plant.shape[1]
    rows = np.tile(np.asarray(initial.mean), (*plant.shape[:2], 1))
    rows[..., :n] = plant
    actions = np.asarray(trials.actions)
    for t in range(times - 1):
        following = rows[:, t] @ structure.L.T + actions[:, t] @ structure.M.T + np.asarray(structure.drift_at(t))
        rows[:, t + 1, n:] = following[:, n:]
    return rows


def _smooth(
    z: Float[np.ndarray, "trials times"], active: Bool[np.ndarray, "trials times"], dt: float
) -> tuple[np.ndarray, np.ndarray]:
    """Position and rate by the smoother whose noises explain the series best."""
    passes = [_kalman(z, active, dt, ratio) for ratio in RATIOS]
    best = min(passes, key=lambda each: each.cost)
    return _rts(best, dt)


class _Pass(NamedTuple):
    cost: float
    """-log likelihood, with the sensor's variance at its best value."""
    means: list[np.ndarray]
    covs: list[np.ndarray]
    predicted_means: list[np.ndarray]
    predicted_covs: list[np.ndarray]


def _kalman(z: np.ndarray, active: np.ndarray, dt: float, ratio: float) -> _Pass:
    """A Kalman filter for an integrated random walk, all trials at once, in units of the sensor's variance."""
    A = np.array([[1.0, dt], [0.0, 1.0]])
    Q = ratio * np.array([[1 / 3, 1 / (2 * dt)], [1 / (2 * dt), 1 / dt**2]])  # a walk of the rate, per step
    trials, times = z.shape
    first = _filled(z, 0.0)[:, 0]
    m = np.stack([first, np.zeros(trials)], axis=1)
    P = np.tile(np.diag([1e2, 1e4 / dt**2]), (trials, 1, 1))
    means, covs, predicted_means, predicted_covs = [], [], [], []
    squares = logs = count = 0.0
    for t in range(times):
        predicted_means.append(m)
        predicted_covs.append(P)
        seen = np.isfinite(z[:, t]) & active[:, t]
        S = P[:, 0, 0] + 1.0
        residual = np.where(seen, np.where(seen, z[:, t], 0.0) - m[:, 0], 0.0)
        if t > 1:  # the first two find the start
            squares += float(np.sum(residual**2 / S))
            logs += float(np.sum(np.where(seen, np.log(S), 0.0)))
            count += float(seen.sum())
        K = np.where(seen[:, None], P[:, :, 0] / S[:, None], 0.0)
        m = m + K * residual[:, None]
        P = P - K[:, :, None] * P[:, None, 0, :]
        means.append(m)
        covs.append(P)
        m, P = m @ A.T, A @ P @ A.T + Q
    cost = (count * np.log(max(squares, 1e-300) / max(count, 1.0)) + logs) / 2
    return _Pass(cost, means, covs, predicted_means, predicted_covs)


def _rts(forward: _Pass, dt: float) -> tuple[np.ndarray, np.ndarray]:
    A = np.array([[1.0, dt], [0.0, 1.0]])
    m = forward.means[-1]
    smooth = [m]
    for t in range(len(forward.means) - 2, -1, -1):
        gain = forward.covs[t] @ A.T @ np.linalg.inv(forward.predicted_covs[t + 1])
        m = forward.means[t] + np.einsum("kij,kj->ki", gain, m - forward.predicted_means[t + 1])
        smooth.append(m)
    path = np.stack(smooth[::-1], axis=1)
    return path[..., 0], path[..., 1]
