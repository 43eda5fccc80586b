"""The controller: from observations to actions, one step at a time. It carries the belief from step to step."""

import contextlib
import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bayespilco.deploy.controller import filter, format
from bayespilco.deploy.controller.filter import Array
from bayespilco.deploy.controller.format import Description
from bayespilco.deploy.controller.gate import FIRST_CREDIT, judge
from bayespilco.deploy.controller.health import Health


class Controller:
    """An agent for a `Rig`, or for a loop of your own. Only the belief and the counters change from step to step."""

    def __init__(self, description: Description, arrays: Mapping[str, Array]) -> None:
        """Check and keep the contents of a file (see `format.SHAPES`). To read a file use `load`."""
        self.description = description
        self.arrays = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
        self.filters = "inputs" in self.arrays
        format.check(self.description, self.arrays, self.filters)
        middle, limits = self.arrays["middle"], self.arrays["limits"]
        self.limits = np.maximum(np.abs(middle - limits), np.abs(middle + limits))
        self.low, self.high, self.rest = middle - limits, middle + limits, self.arrays["rest"]
        self.required = () if self.filters else tuple(np.flatnonzero(self.arrays["estimate"].any(axis=0)).tolist())
        """The sensors that a rig must not lose for long. A filter predicts what is missing."""
        self.gate, self.patience = description.gate, description.patience
        """See `gate`. They may be changed before an episode."""
        self.reset()

    @property
    def fingerprint(self) -> str:
        """Of all numbers of the controller: a certificate says by it which controller it is about."""
        found = hashlib.sha256()
        for name, array in sorted(self.arrays.items()):
            found.update(f"{name}{array.shape}".encode() + array.tobytes())
        return found.hexdigest()

    def reset(self) -> None:
        """Forget the last episode: the belief is that before the first observation."""
        self.mean, self.cov = self.arrays["initial_mean"].copy(), self.arrays["initial_cov"].copy()
        self.latest = np.full(len(self.description.sensors), np.nan)
        """The last value of each sensor."""
        self.steps, self.last_seconds, self.worst_seconds, self.total_seconds = 0, 0.0, 0.0, 0.0
        self.restarts = 0
        """How often since `reset` the belief had to be widened, because it explained a sensor no longer, or to start
        again, because its numbers were no longer finite."""
        none = np.zeros(len(self.latest), dtype=int)
        self.credit = np.minimum(none + FIRST_CREDIT, self.patience)
        """How many samples of each sensor may still be rejected (`gate`)."""
        self.rejections, self.last_good = none, none - 1
        self.rejected, self.surprise = none > 0, np.full(len(none), np.nan)

    def act(self, observation: Any, references: Any = None) -> Array:
        """The action for an observation, within the actuators' limits. NaN is an entry that is missing.

        Args:
            observation: What the sensors say now.
            references: New values of the targets to follow; without, they move as the task says.
        """
        begin = time.perf_counter()
        z = np.asarray(observation, dtype=np.float64)
        if z.shape != self.latest.shape:
            raise ValueError(
                f"The observation must have {len(self.latest)} entries ({', '.join(self.description.sensors)}), NaN "
                f"for what is missing; given shape {z.shape}."
            )
        if references is not None:
            self._follow(references)
        with np.errstate(all="ignore"):  # an overflow is caught below
            action = self._act_on_belief(z) if self.filters else self._act_on_observation(z)
        self.steps += 1
        self.last_seconds = time.perf_counter() - begin
        self.worst_seconds = max(self.worst_seconds, self.last_seconds)
        self.total_seconds += self.last_seconds
        return action

    @property
    def health(self) -> Health:
        """How well the controller and the sensors get along, after the last action."""
        return Health(
            sensors=self.description.sensors,
            surprise=self.surprise.copy(),
            rejected=self.rejected.copy(),
            rejections=self.rejections.copy(),
            since_good=self.description.dt * np.maximum(self.steps - 1 - self.last_good, 0),
            restarts=self.restarts,
        )

    @property
    def expected(self) -> Array:
        """What the sensors will say next, as far as the controller knows."""
        offset = self.arrays["sensor_offset"]
        if self.filters:
            return self.arrays["sensor_matrix"] @ self.mean + offset
        n = len(self.arrays["estimate"])
        return np.linalg.pinv(self.arrays["estimate"]) @ self.mean[:n] + offset

    def _follow(self, references: Any) -> None:
        rows, targets = list(self.description.references), np.asarray(references, dtype=np.float64)
        if targets.shape != (len(rows),) or not filter.is_seen(targets).all():
            names = ", ".join(self.description.states[row] for row in rows) or "none"
            raise ValueError(f"references must be finite, one per target ({names}); given {references}.")
        self.mean[rows] = targets

    def _act_on_observation(self, z: Array) -> Array:
        """The policy sees what the last observation alone says, and the rows that are known."""
        estimate, n = self.arrays["estimate"], len(self.arrays["estimate"])
        seen = filter.is_seen(z)
        self.latest = np.where(seen, z, self.latest)
        self.last_good = np.where(seen, self.steps, self.last_good)
        there = filter.is_seen(self.latest)
        if there.all():
            self.mean[:n] = estimate @ (self.latest - self.arrays["sensor_offset"])
        else:  # before its first sample a sensor says what is expected: the states it measures stay as they were
            known = ~(estimate[:, ~there].any(axis=1))
            told = np.where(there, self.latest - self.arrays["sensor_offset"], 0.0)
            self.mean[:n] = np.where(known, estimate @ told, self.mean[:n])
        u = self._policy(self.mean, 0 * self.cov)
        self.mean[n:] = filter.known_rows(self.arrays, self.mean, u, self.steps)[n:]
        return u

    def _act_on_belief(self, z: Array) -> Array:
        """Update, act, predict (Section 3.1)."""
        d = self.description
        try:
            m, V = self._update(self.mean, self.cov, z)
        except np.linalg.LinAlgError:
            m, V = self._restart(self.mean)
            with contextlib.suppress(np.linalg.LinAlgError):
                m, V = filter.update(self.arrays, m, V, filter.innovation(self.arrays, m, V, z)[0])
        u = self._policy(m, V)
        try:
            self.mean, self.cov = filter.predict(self.arrays, m, V, u, self.steps, d.model_angles, d.model_keep)
        except np.linalg.LinAlgError:
            self.mean, self.cov = self._restart(filter.known_rows(self.arrays, m, u, self.steps))
        return u

    def _update(self, m: Array, V: Array, z: Array) -> tuple[Array, Array]:
        """Combine the belief with those entries of an observation that pass the gate."""
        C, wide = self.arrays["sensor_matrix"], self.arrays["wide_cov"]
        innovation, variance = filter.innovation(self.arrays, m, V, z)
        wider = variance + np.sum((C @ wide) * C, axis=1)
        if "sensor_growth" in self.arrays:
            wider += filter.sensor_noise(self.arrays, m, V + wide) - filter.sensor_noise(self.arrays, m, V)
        repeated = z == self.latest
        self.latest = np.where(filter.is_seen(z), z, self.latest)
        verdict = judge(innovation, variance, wider, repeated, self.credit, self.gate, self.patience)
        self.surprise = innovation / np.sqrt(variance)
        self.rejected, self.credit = verdict.rejected, verdict.credit
        self.rejections = self.rejections + verdict.rejected
        self.last_good = np.where(verdict.accepted, self.steps, self.last_good)
        if verdict.widen:
            self.restarts += 1
            V = V + wide
        return filter.update(self.arrays, m, V, np.where(verdict.accepted, innovation, np.nan))

    def _policy(self, m: Array, V: Array) -> Array:
        x, _ = filter.features(m, V, self.description.policy_angles, self.description.policy_keep)
        return filter.policy(self.arrays, x, V)

    def _restart(self, rows: Array) -> tuple[Array, Array]:
        """The way out after an overflow, which happens when the plant is far from everything in the data.

        The first mean, with a covariance that covers all of the data. Of `rows`, those that are known are kept.
        """
        self.restarts += 1
        mean, known = self.arrays["initial_mean"].copy(), list(self.description.known)
        mean[known] = np.where(filter.is_seen(rows[known]), rows[known], mean[known])
        return mean, self.arrays["initial_cov"] + self.arrays["wide_cov"]

    def to_bytes(self) -> bytes:
        """The content of a file that `load` reads."""
        return format.to_bytes(self.description, self.arrays)

    @classmethod
    def load(cls, path: Path | str) -> "Controller":
        """Load a controller from its file. If that is not possible, a `ValueError` says why."""
        try:
            with open(path, "rb") as file:
                content = file.read(format.LARGEST_FILE + 1)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
        try:
            return cls(*format.parse(content))
        except format.Malformed as error:
            raise ValueError(f"{path} is not a controller of bayespilco, or is damaged: {error}") from None
