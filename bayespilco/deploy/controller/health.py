"""What a controller says about itself: how surprised it is, what it rejects, and for how long it has seen nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bayespilco.deploy.controller.filter import Array


@dataclass(frozen=True, eq=False)
class Health:
    """After an action: what the controller thought of the observation that it was given. Arrays have one entry per
    sensor."""

    sensors: tuple[str, ...]
    surprise: Array
    """The last innovation in predicted standard deviations. NaN if the entry was missing, or without a filter."""
    rejected: Array
    """Whether the last entry was rejected."""
    rejections: Array
    """How many entries were rejected since `reset`."""
    since_good: Array
    """Seconds since the last entry that was used, or since `reset`."""
    restarts: int
    """How often since `reset` the belief had to be widened or started again."""

    @property
    def largest_surprise(self) -> float:
        """Of all sensors, without sign. 0 if nothing was seen."""
        return float(np.nan_to_num(np.abs(self.surprise)).max(initial=0.0))

    @property
    def rejected_names(self) -> list[str]:
        return [name for name, rejected in zip(self.sensors, self.rejected, strict=True) if rejected]

    def __str__(self) -> str:
        return "; ".join(
            [
                f"restarts: {self.restarts}",
                *(
                    f"{name}: {_sigmas(surprise)}{', rejected' if rejected else ''}, "
                    f"{count} rejected so far, good {seconds:.3g} s ago"
                    for name, surprise, rejected, count, seconds in _rows(self)
                ),
            ]
        )


def _rows(health: Health) -> Sequence[tuple[str, float, bool, int, float]]:
    arrays = (health.surprise, health.rejected, health.rejections, health.since_good)
    return list(zip(health.sensors, *(array.tolist() for array in arrays), strict=True))


def _sigmas(surprise: float) -> str:
    return "nothing" if np.isnan(surprise) else f"{surprise:+.1f} sigma"
