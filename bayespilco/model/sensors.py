"""Sensors: how a state becomes an observation, and what an observation says about a state.

    z = C x + d + e,      e ~ N(0, R(x)),      R diagonal,      R_i(x) = r_i (1 + sum_j g_ij (x_j - l_ij)^2)

The noise may depend on the state: a camera sees well near a light. Where the growth `g` is zero R is constant. There
may be fewer sensors than states (some are hidden), as many, or more. A sensor may be slow (a sample every
`period` steps) and may lose samples at random: one by one (`dropout`), or all sensors together for a while
(`bursts`). This is the only place that knows; prediction, execution,
training, the exported controller and logs all ask here. With `P = C' R^-1 C` over the sensors that were seen:

    executed    V+ = (V^-1 + P)^-1      m+ = m + V+ C' R^-1 (z - C m - d)
    predicted   V+ the same             S+ = S + (V - V+)                       (S + V is conserved)

Here R is what the filter, or the prediction, expects of it (`Sensors.at`). If the state is `N(m, V)` that is

    E[R_i(x)] = r_i (1 + sum_j g_ij ((m_j - l_ij)^2 + V_jj))

The noise has mean zero wherever the state is. So with this R the update is the best linear one, and `V+` is exactly the
covariance of its error. Under a distribution over beliefs the expectation is that of the latent state, `N(mu, S + V)`.
There `V+` is concave in R, so the V that is predicted with the expected R is, on average, above those that are met.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.core.gaussian import Gaussian, diagonal, diagonal_matrix, symmetrise
from bayespilco.core.linalg import inverse_root, shrink_diagonal
from bayespilco.core.precision import as_float64, is_concrete, optional_float64
from bayespilco.model.bursts import Chain
from bayespilco.model.structure import Rows, as_rows

MOST_SUBSETS = 64
"""Dropouts are averaged exactly over all subsets of the sensors that may be lost: at most this many, six sensors."""


def _floats(given: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in given)


class Sensors(eqx.Module):
    """What is measured, how well, and how often."""

    noise: Float[Array, " sensor"] = eqx.field(converter=as_float64)
    """The diagonal of R: variances."""
    matrix: Rows = eqx.field(static=True, converter=as_rows)
    """C, of shape (sensor, state)."""
    offset: tuple[float, ...] = eqx.field(static=True, default=(), converter=_floats)
    """d; empty for zero."""
    dropout: tuple[float, ...] = eqx.field(static=True, default=(), converter=_floats)
    """The probability that a sample is lost, per sensor; empty for none."""
    period: tuple[int, ...] = eqx.field(static=True, default=())
    """Steps between samples, per sensor, the first at step 0; empty for a sample at every step."""
    correlation: Float[Array, "sensor sensor"] | None = eqx.field(converter=optional_float64, default=None)
    """R without its diagonal, where the noise of sensors is correlated; None where it is not."""
    growth: Float[Array, "sensor state"] | None = eqx.field(converter=optional_float64, default=None)
    """g: how much the variances grow with the distance from `best_at`, relative to `noise`; None: they do not."""
    best_at: Rows = eqx.field(static=True, default=(), converter=as_rows)
    """l, where a sensor has its least noise, which is `noise`; of shape (sensor, state), empty without `growth`."""
    bursts: Chain | None = eqx.field(static=True, default=None)
    """How the samples of all sensors are lost together for a while; None: they are not."""
    lost: Bool[Array, " times"] | None = None
    """At which steps they are, where a pattern of bursts was drawn (`losing`); None where none was."""

    def __check_init__(self) -> None:
        p = len(self.matrix)
        if self.noise.shape != (p,) or any(len(row) != len(self.matrix[0]) for row in self.matrix):
            raise ValueError(
                f"Sensors need a matrix C with one row per sensor and one noise variance each; given a matrix of shape "
                f"{np.shape(self.matrix)} and noise of shape {self.noise.shape}."
            )
        for name in ("offset", "dropout", "period"):
            if len(getattr(self, name)) not in (0, p):
                raise ValueError(f"{name} must have one entry per sensor ({p}), or none; given {getattr(self, name)}.")
        if is_concrete(self.noise) and not (np.isfinite(self.noise) & (np.asarray(self.noise) > 0)).all():
            raise ValueError(f"sensor_noise must be finite and positive; given {np.asarray(self.noise)}.")
        if self.growth is not None:
            self._check_growth(self.growth)

    def _check_growth(self, growth: Array) -> None:
        shape = self.C.shape
        if growth.shape != shape or np.shape(self.best_at) != shape:
            raise ValueError(
                f"growth and best_at of Sensors must have one entry per sensor and state, shape {shape}; given "
                f"{growth.shape} and {np.shape(self.best_at)}."
            )
        if is_concrete(growth) and not (np.isfinite(growth) & (np.asarray(growth) >= 0)).all():
            raise ValueError(f"growth of Sensors must be finite and not negative; given {np.asarray(growth)}.")
        if not np.isfinite(self.best_at).all():
            raise ValueError(f"best_at of Sensors must be finite; given {self.best_at}.")
        if self.correlation is not None:
            raise ValueError("The noise of sensors may depend on the state or be correlated, not both.")

    @property
    def count(self) -> int:
        return len(self.matrix)

    @property
    def C(self) -> np.ndarray:
        return np.array(self.matrix)

    @property
    def d(self) -> np.ndarray:
        return np.array(self.offset) if self.offset else np.zeros(self.count)

    @property
    def R(self) -> Float[Array, "sensor sensor"]:
        R = diagonal_matrix(self.noise)
        return R if self.correlation is None else R + self.correlation

    @property
    def is_complete(self) -> bool:
        """Whether there is one sensor per state, in order, and nothing else: `C = I`, `d = 0`."""
        C = self.C
        return C.shape[0] == C.shape[1] and bool((np.eye(len(C)) == C).all()) and not self.d.any()

    def with_noise(self, noise: Any) -> "Sensors":
        """The same sensors with other variances."""
        changed: Sensors = eqx.tree_at(lambda sensors: sensors.noise, self, as_float64(noise))
        return changed

    def relative_noise(
        self, mean: Float[Array, " state"], cov: Float[Array, "state state"] | None = None
    ) -> Float[Array, " sensor"] | float:
        """How many times `noise` the variances are expected to be where the state is `mean`, or `N(mean, cov)`."""
        if self.growth is None:
            return 1.0
        squares = (mean - np.array(self.best_at)) ** 2
        squares = squares if cov is None else squares + diagonal(cov)
        return 1.0 + jnp.sum(self.growth * squares, axis=1)

    def at(self, mean: Float[Array, " state"], cov: Float[Array, "state state"] | None = None) -> "Sensors":
        """The sensors as they are where the state is `mean`, or on average where it is `N(mean, cov)`.

        Their noise is what is expected there, and depends on the state no longer.
        """
        if self.growth is None:
            return self
        noise = self.noise * self.relative_noise(mean, cov)
        return Sensors(noise, self.matrix, self.offset, self.dropout, self.period, bursts=self.bursts, lost=self.lost)

    def losing(self, lost: Bool[Array, " times"] | None) -> "Sensors":
        """The same sensors, for one pattern of bursts: no samples at these steps."""
        if lost is self.lost:
            return self
        changed: Sensors = eqx.tree_at(lambda s: s.lost, self, lost, is_leaf=lambda leaf: leaf is None)
        return changed

    def mean_relative_noise(self, states: Float[np.ndarray, "points state"]) -> Float[np.ndarray, " sensor"] | float:
        """`relative_noise`, on average over these states."""
        if self.growth is None:
            return 1.0
        means: np.ndarray = np.asarray(jax.vmap(self.relative_noise)(as_float64(states))).mean(axis=0)
        return means

    def __call__(self, x: Float[Array, " state"]) -> Float[Array, " sensor"]:
        """What the sensors would say without noise."""
        return x if self.is_complete else jnp.asarray(self.C) @ x + self.d

    def of_cov(self, V: Float[Array, "state state"]) -> Float[Array, "sensor sensor"]:
        """`C V C'`."""
        return V if self.is_complete else self.C @ V @ self.C.T

    def scheduled(self, t: Array | int) -> Bool[Array, " sensor"] | Bool[np.ndarray, " sensor"]:
        """Which sensors give a sample at step `t`."""
        due: Array | np.ndarray = np.ones(self.count, dtype=bool)
        if any(period != 1 for period in self.period):
            due = jnp.asarray(t) % jnp.asarray(self.period) == 0
        return due if self.lost is None else jnp.asarray(due) & ~self.lost[t]

    def condition(
        self, mean: Float[Array, " state"], cov: Float[Array, "state state"], z: Float[Array, " sensor"]
    ) -> tuple[Float[Array, " state"], Float[Array, "state state"]]:
        """Combine a belief with an observation (Eqs. 7-9), with its finite entries: NaN is a missing sample."""
        seen, here = jnp.isfinite(z), self.at(mean, cov)
        K, updated = here._update(cov, jnp.where(seen, 1 / here.noise, 0.0))
        return mean + K @ jnp.where(seen, z - self(mean), 0.0), updated

    def expected_update(
        self, cov: Float[Array, "state state"], t: Array | int = 0
    ) -> tuple[Float[Array, "state sensor"], Float[Array, "state state"], Float[Array, "state state"]]:
        """What an observation not yet made will do: its gain K, `V+`, and what is learned, `V - V+`.

        Averaged exactly over the samples that may be lost. If the noise depends on the state, ask `at` first.
        """
        if self.growth is not None:
            raise ValueError("The noise of these sensors depends on the state: say where it is, `sensors.at(...)`.")
        precision = jnp.where(self.scheduled(t), 1 / self.noise, 0.0)
        subsets, weights = self._subsets()
        if len(subsets) == 1:
            K, updated = self._update(cov, precision)
            return K, updated, self._learned(K, cov)
        Ks, each = jax.vmap(lambda kept: self._update(cov, precision * kept))(jnp.asarray(subsets))
        K, updated = (jnp.tensordot(jnp.asarray(weights), part, axes=1) for part in (Ks, each))
        return K, updated, self._learned(K, cov)

    def each_update(
        self, cov: Float[Array, "state state"], t: Array | int = 0
    ) -> tuple[Float[Array, "sets state sensor"], Float[Array, "sets state state"], Float[np.ndarray, " sets"]]:
        """The same without averaging: gain and `V+` for each set of samples that may be seen, and its probability."""
        precision = jnp.where(self.scheduled(t), 1 / self.noise, 0.0)
        subsets, weights = self._subsets()
        Ks, each = jax.vmap(lambda kept: self._update(cov, precision * kept))(jnp.asarray(subsets))
        return Ks, each, weights

    def _learned(self, K: Float[Array, "state sensor"], V: Float[Array, "state state"]) -> Float[Array, "state state"]:
        """`V - V+ = K C V`, without the cancellation."""
        return symmetrise(K @ V if self.is_complete else K @ self.C @ V)

    def _subsets(self) -> tuple[np.ndarray, np.ndarray]:
        """Which sensors may be seen together, and with which probability."""
        lossy = [i for i, p in enumerate(self.dropout) if p > 0]
        if 2 ** len(lossy) > MOST_SUBSETS:
            raise ValueError(
                f"At most {int(np.log2(MOST_SUBSETS))} sensors may lose samples at random; given {len(lossy)}."
            )
        kept, weights = [], []
        for lost in itertools.product((False, True), repeat=len(lossy)):
            row, weight = np.ones(self.count), 1.0
            for i, gone in zip(lossy, lost, strict=True):
                row[i] = not gone
                weight *= self.dropout[i] if gone else 1 - self.dropout[i]
            kept.append(row)
            weights.append(weight)
        return np.array(kept), np.array(weights)

    def _update(
        self, V: Float[Array, "state state"], precision: Float[Array, " sensor"]
    ) -> tuple[Float[Array, "state sensor"], Float[Array, "state state"]]:
        """The gain `K = V C' (C V C' + R)^-1` and the covariance left, given `1 / R`, 0 for a sensor not seen.

        The inverse is `(R + C V C')^-1`, zero in the rows of what was not seen, as if its noise were infinite.
        """
        beyond = self.of_cov(V) if self.correlation is None else self.of_cov(V) + self.correlation
        inverse, _ = shrink_diagonal(precision, beyond)
        if self.is_complete:
            # R (V + R)^-1 V has no cancellation. Unseen rows keep the prior: I - K there.
            K = V @ inverse
            kept = jnp.where(precision[:, None] > 0, self.R @ inverse, np.eye(V.shape[0]) - K)
            return K, symmetrise(kept @ V)
        K = V @ self.C.T @ inverse
        rest = np.eye(V.shape[0]) - K @ self.C
        return K, symmetrise(rest @ V @ rest.T + K @ self.R @ K.T)  # Joseph's form: no negative eigenvalue

    def sees_directly(self, states: int) -> bool:
        """Whether one observation alone tells the first `states` states: no hidden one, no delay."""
        C = self.C
        return bool(np.linalg.matrix_rank(C[:, :states]) == states and not C[:, states:].any())

    def noise_of_states(self, otherwise: Float[Array, " state"]) -> Float[Array, " state"]:
        """How well one observation alone tells each state, if the others are known: a variance, or `otherwise`."""
        precision = jnp.sum(self.C**2 / self.noise[:, None], axis=0)
        return jnp.where(precision > 0, 1 / jnp.where(precision > 0, precision, 1.0), otherwise)

    def raw_noise(self, states: int, where: Gaussian | None = None) -> Float[Array, "state state"]:
        """The error's covariance if the first `states` states are estimated from one observation alone.

        Rows behind them are known exactly.

        Args:
            where: The distribution of the state, on which the noise may depend.
        """
        C = self.C[:, :states]
        here = self if where is None else self.at(where.mean, where.cov)
        if C.shape == (states, states) and (np.eye(states) == C).all():
            noise = here.R
        elif here is not self:  # the weights of `raw_estimate` stay as they are
            A = jax.vmap(lambda z: self.raw_estimate(z + self.d, states))(jnp.eye(self.count)).T
            noise = (A * here.noise) @ A.T
        else:
            H = inverse_root(C.T @ (C / self.noise[:, None]))
            noise = H.T @ H
        return jnp.pad(noise, (0, self.C.shape[1] - states))

    def raw_estimate(self, z: Float[Array, " sensor"], states: int) -> Float[Array, " estimated"]:
        """The first `states` states as one observation alone tells them, by weighted least squares.

        Where the state is, is not known here: the weights are those of the least noise.
        """
        C = self.C[:, :states]
        if C.shape == (states, states) and (np.eye(states) == C).all():
            return z - self.d
        H = inverse_root(C.T @ (C / self.noise[:, None]))
        return H.T @ (H @ (C.T @ ((z - self.d) / self.noise)))


def complete(noise: Any) -> Sensors:
    """One sensor per state."""
    noise = as_float64(noise)
    return Sensors(noise, as_rows(np.eye(noise.shape[0])))


def as_sensors(given: Any) -> Sensors:
    """A converter: variances alone, or their covariance R, mean one sensor per state."""
    if isinstance(given, Sensors):
        return given
    noise = as_float64(given)
    if noise.ndim == 1:
        return complete(noise)
    variances = diagonal(noise)
    return Sensors(variances, as_rows(np.eye(noise.shape[0])), correlation=noise - diagonal_matrix(variances))


def unobservable(A: np.ndarray, C: np.ndarray) -> list[int]:
    """States that no sensor reveals, if a state moves as `x' = A x`: those with a part in the unobservable subspace.

    From the rank of `[C; C A; C A^2; ...]`, in units in which the rows have size one.
    """
    n = A.shape[0]
    blocks: list[np.ndarray] = [C]
    for _ in range(n - 1):
        blocks.append(blocks[-1] @ A)
    stacked = np.concatenate(blocks)
    size = np.linalg.norm(stacked, axis=1, keepdims=True)
    _, values, vectors = np.linalg.svd(stacked / np.where(size > 0, size, 1.0))
    rank = int((values > 1e-9 * max(values.max(initial=0.0), 1e-300)).sum())
    hidden = vectors[rank:]
    return [i for i in range(n) if len(hidden) and np.abs(hidden[:, i]).max() > 1e-6]


def selecting(indices: Sequence[int], states: int) -> np.ndarray:
    """The matrix C of sensors that each measure one state."""
    return np.eye(states)[list(indices)].reshape(-1, states)
