"""Each sample is checked before the episode goes on: its shape, the limits, and whether the rig still sees anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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

    def _as_array(self, sample: Any, size: int | None) -> np.ndarray:
        if sample is None and size is None:
            raise Stop("failed", "the first sample is None, so that the number of states is not known: give `states`")
        z = np.full(size or 0, np.nan) if sample is None else np.array(sample, dtype=np.float64)
        if z.ndim != 1 or (size is not None and len(z) != size):
            known = "" if size is None else f" ({size})"
            raise Stop("failed", f"an observation must have one entry per state{known}; the plant gave shape {z.shape}")
        return z

    def _require_within_limits(self, z: np.ndarray) -> None:
        for limit, beyond, side in ((self.low, np.less, "below"), (self.high, np.greater, "above")):
            if limit is not None and beyond(z, limit).any():  # NaN is neither
                i = int(np.argmax(beyond(z, limit)))
                raise Stop("limit", f"{self._name(i)} was {z[i]:.4g}, {side} its limit of {limit[i]:.4g}")

    def _require_sight(self, observations: list[np.ndarray]) -> None:
        """A limit says nothing while its sensor is dead, so blindness is counted per state that has one."""
        if len(observations) < self.blind:
            return
        missing = np.all(np.isnan(observations[-self.blind :]), axis=0)
        if missing.all():
            raise Stop("blind", f"{self.blind} samples in a row were missing")
        limited: np.ndarray = np.zeros(len(missing), dtype=bool)
        for limit in (self.low, self.high):
            limited |= limit is not None and np.isfinite(limit)
        required: np.ndarray = np.isin(np.arange(len(missing)), self.required)
        for states, need in ((limited, "which has a limit"), (required, "which the agent cannot do without")):
            lost = np.flatnonzero(missing & states)
            if lost.size:
                raise Stop(
                    "blind", f"{self._name(int(lost[0]))}, {need}, was missing from {self.blind} samples in a row"
                )

    def _name(self, i: int) -> str:
        return self.names[i] if self.names else f"state {i}"
