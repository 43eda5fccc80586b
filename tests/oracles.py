"""Independent ways to the same numbers: Jacobians row by row, finite differences, sampling, and a Kalman filter."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree


def jacobian(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The value of `function`, and its derivative by reverse mode: leaves of shape `output + input`.

    With respect to its first argument. Others may be given too, and with equal shapes the compiled code is used again.
    One row after the other: `jax.jacrev` batches all rows, and on few cores XLA may then wait for itself forever.
    """

    def value_and_jacobian(argument: Any, *others: Any) -> tuple[Any, Any]:
        value, pull_back = jax.vjp(lambda given: function(given, *others), argument)
        flat, unravel = ravel_pytree(value)
        rows = jax.lax.map(lambda row: pull_back(unravel(row))[0], jnp.eye(flat.size))
        leaves, structure = jax.tree.flatten(value)
        ends = np.cumsum([leaf.size for leaf in leaves])

        def of_leaf(leaf: jax.Array, end: int) -> Any:
            return jax.tree.map(lambda all_: all_[end - leaf.size : end].reshape(leaf.shape + all_.shape[1:]), rows)

        parts = [of_leaf(leaf, end) for leaf, end in zip(leaves, ends, strict=True)]
        return value, jax.tree.unflatten(structure, parts)

    return eqx.filter_jit(value_and_jacobian)


def directional_difference(function: Callable[[Any], Any], at: Any, along: Any, step: float = 1e-4) -> float:
    """The derivative of a number along a direction, by central differences of fourth order."""

    def value(distance: float) -> float:
        return float(function(jax.tree.map(lambda x, d: x + distance * d, at, along)))

    return (8 * (value(step) - value(-step)) - (value(2 * step) - value(-2 * step))) / (12 * step)


class Sampled(NamedTuple):
    """An average over samples, and its standard error."""

    value: np.ndarray
    error: np.ndarray

    @classmethod
    def of(cls, samples: Any) -> "Sampled":
        samples = np.asarray(samples)
        return cls(samples.mean(axis=0), samples.std(axis=0, ddof=1) / np.sqrt(len(samples)))

    def assert_agrees(self, expected: Any, what: str, errors: float = 5.0, rounding: float = 1e-9) -> None:
        """Within `errors` standard errors everywhere; `rounding` is for what does not vary."""
        off = np.abs(np.asarray(expected) - self.value) / (self.error + rounding)
        assert off.max(initial=0.0) < errors, f"{what}: off by {off.max():.1f} standard errors"


def centred(samples: np.ndarray) -> np.ndarray:
    return samples - samples.mean(axis=0)


def products(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whose average is the covariance of `x` and `y`."""
    return centred(x)[:, :, None] * centred(y)[:, None, :]


class Kalman(NamedTuple):
    """A Kalman filter for `x' = A x + B u + w`, `z = x + e`, written the textbook's way."""

    A: np.ndarray
    B: np.ndarray
    Q: np.ndarray
    R: np.ndarray

    def update(self, m: np.ndarray, P: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        K = P @ np.linalg.inv(P + self.R)
        return m + K @ (z - m), (np.eye(len(P)) - K) @ P

    def predict(self, m: np.ndarray, P: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.A @ m + self.B @ u, self.A @ P @ self.A.T + self.Q

    def closed_loop(
        self, F: np.ndarray, m: np.ndarray, P: np.ndarray, steps: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Mean and covariance of the state under `u = F m`: those of the estimate, plus those of its error."""
        n = len(m)
        mean, estimate_cov = m, np.zeros((n, n))  # of the state; of the filter's mean
        path = [(mean, estimate_cov + P)]
        for _ in range(steps):
            K = P @ np.linalg.inv(P + self.R)
            estimate_cov = estimate_cov + K @ (P + self.R) @ K.T  # innovations are white
            P = (np.eye(n) - K) @ P
            loop = self.A + self.B @ F
            mean, estimate_cov, P = loop @ mean, loop @ estimate_cov @ loop.T, self.A @ P @ self.A.T + self.Q
            path.append((mean, estimate_cov + P))
        return path
