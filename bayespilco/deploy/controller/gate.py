"""The gate: which entries of an observation are believed, and when the belief itself has to be given up.

An entry whose innovation is more than `gate` of its own predicted standard deviations is rejected: it counts as
missing. So one absurd sample costs as much as one that is lost. An entry that repeats the last one to the bit is
rejected, too: noise does not repeat itself, but a sensor that is stuck does, and a packet that comes twice.

A belief that rejects everything may itself be what is wrong. So it has a credit with each sensor: every sample that it
explains earns one, up to `patience`, and every sample that is rejected costs one. Without credit a repetition is judged
like any other sample (a coarse sensor at rest repeats itself, too). And if a sample that is new is rejected without
credit, the belief is widened, by the spread of the data that the model was learned from, and the sample is judged once
more. What not even the wide belief explains stays rejected: then the sensor is broken, and what helps is somebody who
reads `Controller.health`.
"""

from dataclasses import dataclass

import numpy as np

from bayespilco.deploy.controller.filter import Array, is_seen

GATE = 5.0
"""In standard deviations. A sensor that works gives one such sample in two million."""
PATIENCE = 5
"""How many samples of a sensor may be rejected in a row."""
FIRST_CREDIT = 1
"""Before anything was seen. So a spike in the first sample is rejected; but a plant that starts somewhere else
altogether is believed at the second."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is to be done with one observation."""

    accepted: Array
    """Which entries are to be used. Missing ones are not."""
    rejected: Array
    """Which are there, but are not to be used."""
    widen: bool
    """Whether the belief has to be widened first."""
    credit: Array
    """What is left for the next observation."""


def judge(
    innovation: Array, variance: Array, wide_variance: Array, repeated: Array, credit: Array, gate: float, patience: int
) -> Verdict:
    """Judge every entry by its own predicted variance.

    Args:
        innovation: What was measured minus what was expected. NaN is missing.
        variance: Its predicted variance, per entry.
        wide_variance: The same under the widened belief.
        repeated: Which entries are those of the last observation, to the bit.
        credit: How many samples of each sensor may still be rejected.
        gate: In standard deviations. 0: everything is accepted.
        patience: The most credit that there is.
    """
    seen, size = is_seen(innovation), np.abs(innovation)
    if gate == 0:
        return Verdict(seen, np.zeros_like(seen), False, credit)
    doubtful = seen & (size > gate * np.sqrt(variance))
    absurd = seen & (size > gate * np.sqrt(wide_variance))
    widen = bool((doubtful & ~absurd & ~repeated & (credit == 0)).any())
    rejected = (absurd if widen else doubtful) | (seen & repeated & (credit > 0))
    earned = np.where(rejected, -1, 1) * seen
    credit = np.clip((0 if widen else credit) + earned, 0, patience)
    return Verdict(seen & ~rejected, rejected, widen, credit)
