"""Each sample is checked before the episode goes on: its shape, the limits, whether the rig still sees anything, and
what the agent thinks of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayespilco.deploy.controller.health import Health
from bayespilco.deploy.rig.recording import Recording, Stop


@dataclass(frozen=True)
class Watch:
    """What samples must look like for an episode to go on."""

    low: Sequence[float] | np.ndarray | None
    high: Sequence[float] | np.ndarray | None
    blind: int
    names: Sequence[str]
    """The states. Empty if nobody named them."""
    size: int | None
    """How many states there are, if that is known before the first sample."""
    required: Sequence[int] = ()
    """The states that the agent cannot do without."""
    lost: int = 0
    """The episode ends at so many restarts of the agent's belief. 0: never."""

    def take(self, recording: Recording, came: float, sample: Any, truth: Any) -> np.ndarray:
        """Add a sample to the recording, and return it as the agent sees it. A `Stop` ends the episode."""
        z = self._as_array(sample, len(recording.observations[0]) if recording.observations else self.size)
        seen = np.where(np.isfinite(z), z, np.nan)  # infinity is missing for a controller, but beyond every limit
        recording.times.append(came)
        recording.observations.append(seen)
        if truth is not None:
            recording.states.append(np.array(truth, dtype=np.float64))
        self._require_within_limits(z)
        self._require_sight(recording.observations)
        return seen

    def judge(self, recording: Recording, agent: Any) -> None:
        """Record what the agent thinks of the sample that it has just acted on. A `Stop` ends the episode."""
        health = getattr(agent, "health", None)
        if not isinstance(health, Health):
            return
        recording.health.append(health)
        if self.lost and health.restarts >= self.lost:
            raise Stop("lost", f"the agent gave up its belief {health.restarts} times; the last time: {health}")
        rejected = [each.rejected for each in recording.health[-self.blind :]]
        self._require_sight(recording.observations, rejected)

    def _as_array(self, sample: Any, size: int | None) -> np.ndarray:
        if sample is None and size is None:
            raise Stop("failed", "the first sample is None, so that the number of states is not known: give `states`")
        if isinstance(sample, np.ma.MaskedArray):  # what is masked is missing, whatever number is below
            sample = np.where(np.ma.getmaskarray(sample), np.nan, sample.data)
        z = np.full(size or 0, np.nan) if sample is None else np.array(sample, dtype=np.float64)
        if z.ndim != 1 or (size is not None and len(z) != size):
            known = "" if size is None else f" ({size})"
            raise Stop(
                "failed", f"an observation must have one entry per sensor{known}; the plant gave shape {z.shape}"
            )
        return z

    def _require_within_limits(self, z: np.ndarray) -> None:
        for limit, beyond, side in ((self.low, np.less, "below"), (self.high, np.greater, "above")):
            if limit is not None and beyond(z, limit).any():  # NaN is neither
                i = int(np.argmax(beyond(z, limit)))
                raise Stop("limit", f"{self._name(i)} was {z[i]:.4g}, {side} its limit of {limit[i]:.4g}")

    def _require_sight(self, observations: list[np.ndarray], rejected: list[np.ndarray] | None = None) -> None:
        """A limit says nothing while its sensor is dead, so blindness is counted per state that has one.

        What the agent rejected counts as missing, if it has said so of as many samples.
        """
        if len(observations) < self.blind:
            return
        gone, was = np.isnan(observations[-self.blind :]), "missing"
        if rejected is not None and len(rejected) == len(gone) and np.shape(rejected) == gone.shape:
            gone, was = gone | np.array(rejected), "missing or rejected"
        missing = np.all(gone, axis=0)
        if missing.all():
            raise Stop("blind", f"{self.blind} samples in a row were {was}")
        limited: np.ndarray = np.zeros(len(missing), dtype=bool)
        for limit in (self.low, self.high):
            limited |= limit is not None and np.isfinite(limit)
        required: np.ndarray = np.isin(np.arange(len(missing)), self.required)
        for states, need in ((limited, "which has a limit"), (required, "which the agent cannot do without")):
            lost = np.flatnonzero(missing & states)
            if lost.size:
                name = self._name(int(lost[0]))
                raise Stop("blind", f"{name}, {need}, was {was} from {self.blind} samples in a row")

    def _name(self, i: int) -> str:
        return self.names[i] if self.names else f"state {i}"
