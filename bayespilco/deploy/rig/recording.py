"""What is known of an episode after it has ended, and why it ended."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from bayespilco.deploy.controller.health import Health

Ended = Literal["finished", "limit", "blind", "lost", "late", "failed", "interrupted"]
"""As planned; at a limit; without samples for too long; with an agent that no longer knows where the plant is; late; by
an error; by Ctrl-C or another signal."""


OVERRUN = 0.1
"""A sample that comes later than this, in sampling periods, is counted as an overrun."""


@dataclass(frozen=True)
class Timing:
    """How well an episode kept its sampling period, in seconds."""

    period: float
    """The sampling period that was asked for."""
    samples: int
    jitter: float
    """The standard deviation of the time between two samples."""
    latest: float
    """How late the latest sample came."""
    overruns: int
    """How many samples came later than `OVERRUN` sampling periods."""
    mean_delay: float
    """How long the agent took to answer a sample: the delay of the action."""
    worst_delay: float

    def __str__(self) -> str:
        ms = [f"{1e3 * value:.3g}" for value in (self.period, self.jitter, self.latest, self.mean_delay)]
        return (
            f"{self.samples} samples, one every {ms[0]} ms with a jitter of {ms[1]} ms, the latest {ms[2]} ms late, "
            f"overruns: {self.overruns}; the agent took {ms[3]} ms, at most {1e3 * self.worst_delay:.3g} ms"
        )


@dataclass
class Recording:
    """What happened in one episode. If it ended in the middle of a step, that step's action is the last entry."""

    times: list[float] = field(default_factory=list)
    """When each observation came, in seconds after the first."""
    observations: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)
    """The true states, if the plant has a `true_state`, as only a simulation does."""
    ended: Ended = "finished"
    reason: str = ""
    """The same as a sentence."""
    stopped: bool = True
    """Whether the plant took the rest action at the end. If not, the reason says why."""
    log: Path | None = None
    """The file that this episode was added to."""
    dt: float = 0.0
    """The sampling period that was asked for."""
    lateness: list[float] = field(default_factory=list)
    """How late each sample after the first came, in seconds. One that was too late to be recorded is the last entry."""
    delays: list[float] = field(default_factory=list)
    """How long the agent took for each action, in seconds."""
    health: list[Health] = field(default_factory=list)
    """What the agent thought of each observation, if it has a `health`. Nothing is acted on after the last one."""

    @property
    def timing(self) -> Timing:
        """How well the sampling period was kept."""
        late, delays = np.array([0.0, *self.lateness]), np.array(self.delays or [0.0])
        intervals = np.diff(self.dt * np.arange(len(late)) + late) if self.lateness else np.zeros(1)
        return Timing(
            period=self.dt,
            samples=len(self.observations),
            jitter=float(intervals.std()),
            latest=float(late.max()),
            overruns=int(np.sum(late > OVERRUN * self.dt)),
            mean_delay=float(delays.mean()),
            worst_delay=float(delays.max()),
        )


class PlantStopped(ValueError):
    """An episode that cannot be learned from, and after which the user has to look at the plant."""

    def __init__(self, recording: Recording) -> None:
        place = "this error's `recording`" if recording.log is None else recording.log
        super().__init__(
            f"The episode on the plant ended after {len(recording.observations)} samples: {recording.reason}. "
            f"What was recorded is in {place}."
        )
        self.recording = recording


class Stop(Exception):
    """Ends an episode, for a reason. A plant may raise it too."""

    def __init__(self, ended: Ended, reason: str) -> None:
        super().__init__(reason)
        self.ended: Ended = ended
