"""Which delay do the data have? The evidence for each, and a sentence that says how sure that is.

A plant that feels actions late is, to a model without delay, a plant with unexplained noise. So a model is trained for
each delay on the same data, and the delay whose model makes the data most likely is the best guess. The difference of
two log evidences is in nats: 5 nats are odds of 150 to 1, below 3 nats nobody should decide.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bayespilco.core.parallel import SERIAL, Mapper
from bayespilco.core.precision import float64
from bayespilco.model.episode import Episode, batch
from bayespilco.tasks import Task
from bayespilco.tasks.task import Kind
from bayespilco.training.evidence import fit_evidence

CLEAR, UNSURE = 5.0, 3.0
"""Nats between the best and the second: from here on it is clear, below that it is open."""


class DelayEvidence(NamedTuple):
    """How well each delay explains the data."""

    delays: tuple[int, ...]
    """In steps."""
    log_evidence: tuple[float, ...]
    """log p(data), one for each, in nats."""
    dt: float

    @property
    def best(self) -> int:
        return self.delays[int(np.argmax(self.log_evidence))]

    @property
    def margin(self) -> float:
        """Nats between the best and the second best."""
        ranked = sorted(self.log_evidence, reverse=True)
        return ranked[0] - ranked[1] if len(ranked) > 1 else float("inf")

    @property
    def sentence(self) -> str:
        second = self.delays[int(np.argsort(self.log_evidence)[-2])] if len(self.delays) > 1 else None
        steps = f"{self.best} step{'s' if self.best != 1 else ''} ({1e3 * self.best * self.dt:.3g} ms)"
        if second is None:
            return f"Only a delay of {steps} was tried."
        found = f"a delay of {steps} explains the data best, by {self.margin:.1f} nats over {second}"
        if self.margin >= CLEAR:
            return f"Clear: {found}."
        if self.margin >= UNSURE:
            return f"Likely: {found}. More data would settle it."
        return f"Too close to tell: {found}. Record more episodes, with actions that change often."


@float64
def delay_evidence(
    task: Task,
    episodes: Sequence[Episode],
    delays: Sequence[int] = range(6),
    *,
    kind: Kind | None = None,
    points: int = 30,
    evaluations: int = 60,
    workers: Mapper = SERIAL,
    on_done: Callable[[int, float], object] | None = None,
) -> DelayEvidence:
    """Train a model for each delay of the actions, and compare their evidence.

    Args:
        task: What was recorded: names, sensors and sampling period. Its own delay does not matter.
        episodes: The data, at least two episodes if possible.
        delays: In steps.
        kind: The structure of the dynamics; by default second-order if the task declares rates.
        points: Inducing points of each model.
        evaluations: Values and gradients per round of training.
        workers: Who computes; the delays are independent of each other.
        on_done: Called with each delay and its log evidence.
    """
    chosen: Kind = kind or ("second-order" if task.rates else "free")
    jobs = [_Job(task.with_delay(delay), tuple(episodes), chosen, points, evaluations) for delay in delays]

    def watched(job: _Job) -> float:
        found = _log_evidence(job)
        if on_done is not None:
            on_done(job.task.action_delay, found)
        return found

    found = workers.map(_log_evidence, jobs, watched)
    return DelayEvidence(tuple(delays), tuple(found), task.dt)


class _Job(NamedTuple):
    task: Task
    episodes: tuple[Episode, ...]
    kind: Kind
    points: int
    evaluations: int


def _log_evidence(job: _Job) -> float:
    task = job.task
    fit = fit_evidence(
        batch(job.episodes),
        task.features(job.kind),
        task.start,
        structure=task.structure(job.kind),
        sensors=task.sensors_with(np.ones(len(task.sensed))),
        points=job.points,
        evaluations=job.evaluations,
    )
    return -fit.objective
