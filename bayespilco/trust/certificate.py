"""Before you press start: what will happen, how sure that is, and whether the model deserves to be believed.

A certificate is about the policy that is about to be executed. It has four parts:

- The promise: runs on plants drawn from the model (`promises`). Bounds are Clopper and Pearson's; there are more runs
  where a bound needs them.
- A test of the model before the newest episode on that episode, which it had not seen (`innovations`).
- What became of earlier promises, and how much wider the bands have to be for it (`calibration`).
- A sentence: GO or NO GO, with the reason. The thresholds are settings (`bayespilco.settings.Thresholds`).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bayespilco.algorithm import METHODS, Record, Settings
from bayespilco.core.precision import float64
from bayespilco.deploy import bridge
from bayespilco.model.episode import Episode
from bayespilco.model.posterior_samples import CanDraw
from bayespilco.settings import Thresholds
from bayespilco.tasks import Task
from bayespilco.trust.bounds import Share, clopper_pearson
from bayespilco.trust.calibration import BAND, Calibration, calibrate, central_interval
from bayespilco.trust.innovations import ModelTest, Trace, compare_innovations, filter_trace
from bayespilco.trust.promises import (
    BATCH,
    RUNS,
    Kept,
    Outcome,
    Promise,
    finite,
    judged_as_observed,
    kept,
    outcome,
    promise,
    sample_runs,
)

FORMAT = "bayespilco certificate 1"
LOOKS = 4
"""How often the runs are counted while there are more of them: 200, 400, 800, 1600."""


class LeastCertain(NamedTuple):
    """Where the filter will know least: which state, when, and how well."""

    state: str
    unit: str
    time: float
    std: float


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What a policy promises, and why it may be believed or not."""

    task: str
    method: str
    episodes: int
    """From which it was learned."""
    seconds: float
    """Of data."""
    success: Share
    total: float
    """The median of the sampled totals."""
    band: tuple[float, float]
    """Where 90 % of the sampled totals are."""
    widened: tuple[float, float]
    """The same, widened by what earlier promises missed."""
    by_moments: float
    """The total that policy search predicted."""
    limits: dict[str, Share]
    """How often each limit was exceeded at any step of a run, by the state's name."""
    saturated: dict[str, float]
    """The share of time that each actuator is at its limit."""
    least_certain: LeastCertain
    model: ModelTest | None
    """The newest episode under the model before it; None if there is none."""
    calibration: Calibration
    kept: tuple[Kept, ...]
    """What came of the earlier promises, the oldest first."""
    reasons: tuple[str, ...]
    """Why it is a NO GO; empty for GO."""
    thresholds: Thresholds
    controller: str
    """The fingerprint of the controller that it is about."""
    promises: tuple[Promise, ...]
    """Those of all rounds, this one's last, which alone has its runs. They are not in the JSON."""

    @property
    def go(self) -> bool:
        return not self.reasons

    @property
    def calibrated(self) -> bool:
        return _is_calibrated(self.calibration, self.thresholds)

    @property
    def sentence(self) -> str:
        """GO or NO GO, and the reason."""
        if self.reasons:
            return f"NO GO: {'; '.join(self.reasons)}."
        low, high = self.widened
        parts = [
            f"success in at least {_percent(self.success.lower, -1)} of runs ({self.success.times} of "
            f"{self.success.runs} sampled plants)",
            f"total cost {low:.1f} to {high:.1f} ({BAND:.0%})",
            *(f"{name} beyond its limit in at most {_percent(each.upper, 1)}" for name, each in self.limits.items()),
        ]
        return f"GO: {', '.join(parts)}."

    @property
    def brief(self) -> str:
        """The same in one line: of several reasons the gravest."""
        if self.reasons:
            more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
            return f"NO GO: {self.reasons[0].split(' (')[0]}{more}"
        low, high = self.widened
        return f"GO: success in at least {_percent(self.success.lower, -1)}, total cost {low:.1f} to {high:.1f}"

    def lines(self) -> list[str]:
        """All of it in words."""
        low, high = self.band
        wide_low, wide_high = self.widened
        judged = "widened by what earlier promises missed" if self.calibrated else "not calibrated yet"
        found = [
            f"Policy learned from {self.episodes} episodes, {self.seconds:g} s of data; {self.success.runs} runs on "
            "plants drawn from the model.",
            f"Success: {self.success.times} of {self.success.runs} runs; at least {_percent(self.success.lower, -1)} "
            f"with {self.success.confidence:.0%} confidence ({self.thresholds.least_success:.0%} asked).",
            f"Total cost: {self.total:.2f}, {BAND:.0%} of runs {low:.2f} to {high:.2f}; {judged}: {wide_low:.2f} to "
            f"{wide_high:.2f}. By moments: {self.by_moments:.2f}.",
        ]
        for name, share in self.limits.items():
            found.append(
                f"Limit of {name}: exceeded in {share.times} of {share.runs} runs; at most {_percent(share.upper, 1)} "
                f"({_percent(self.thresholds.most_exceeding)} allowed)."
            )
        at_limit = ", ".join(f"{name} {share:.0%} of the time" for name, share in self.saturated.items())
        where = self.least_certain
        found += [
            f"Actuators at their limits: {at_limit}.",
            f"The belief is least certain about {where.state}, {where.time:.2f} s after the start: "
            f"+-{where.std:.3g} {where.unit}".rstrip()
            + ".",
        ]
        if self.model is None:
            found.append("The model has not been tested: there is one episode only.")
        else:
            found.append(f"The newest episode under the model before it: {self.model.sentence}.")
        if self.kept:
            inside = sum(each.within for each in self.kept)
            found.append(
                f"Earlier promises: {inside} of {len(self.kept)} totals within their {BAND:.0%} bands; recent misses "
                f"{self.calibration.scale:.2f} times as large as promised."
            )
        else:
            found.append("Earlier promises: none has been tested.")
        return found

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and words."""
        plain = {
            "format": FORMAT,
            "go": self.go,
            "sentence": self.sentence,
            "reasons": list(self.reasons),
            "task": self.task,
            "method": self.method,
            "episodes": self.episodes,
            "seconds": self.seconds,
            "success": _share(self.success),
            "total": {
                "median": self.total,
                "band": list(self.band),
                "widened": list(self.widened),
                "level": BAND,
                "by_moments": self.by_moments,
            },
            "limits": {name: _share(share) for name, share in self.limits.items()},
            "saturated": self.saturated,
            "least_certain": self.least_certain._asdict(),
            "model": None if self.model is None else self.model._asdict(),
            "calibration": {**self.calibration._asdict(), "calibrated": self.calibrated},
            "controller": self.controller,
            "kept": [each.numbers() for each in self.kept],
            "thresholds": dataclasses.asdict(self.thresholds),
        }
        found: dict[str, Any] = finite(plain)
        return found


def _share(share: Share) -> dict[str, float]:
    return {"probability": share.probability, **share._asdict()}


def _percent(probability: float, rounding: int = 0) -> str:
    """A probability in words, rounded down (-1) or up (1) where it is a bound."""
    tenths = 1000 * probability
    tenths = np.floor(tenths) if rounding < 0 else np.ceil(tenths - 1e-9) if rounding > 0 else np.round(tenths)
    return f"{tenths / 10:.3g} %"


@float64
def certify(
    task: Task,
    settings: Settings,
    records: Sequence[Record],
    thresholds: Thresholds | None = None,
    earlier: Sequence[Promise] = (),
) -> Certificate:
    """A certificate of the policy of the last record.

    Args:
        records: All rounds that were learned.
        thresholds: What is asked; by default `Thresholds()`.
        earlier: The promises of the earlier rounds, as far as they are known. What is missing is made again.
    """
    thresholds = Thresholds() if thresholds is None else thresholds
    if not records:
        raise ValueError("There is nothing to certify: no episode has been learned from.")
    if not isinstance(records[-1].fit, CanDraw):
        raise ValueError(f"Plants cannot be drawn from a {type(records[-1].fit).__name__}: there is no certificate.")
    last = len(records) - 1
    known = {each.number: each for each in earlier}
    if last and last - 1 in known and not known[last - 1].parts:
        del known[last - 1]  # the model before the newest episode is tested with its runs
    promises = [known.get(n) or promise(task, settings, records, n) for n in range(last)]
    found = [kept(task, each, record.episode) for each, record in zip(promises, records[1:], strict=True)]
    calibration = calibrate([each.miss for each in found])
    own = known.get(last) or promise(task, settings, records, last)
    counted, looks = _enough(task, settings, records, own, thresholds)
    success, limits = _shares(task, counted, thresholds.confidence, looks)
    model = _test(task, records, promises[-1]) if last else None
    low, high = central_interval(counted.totals, BAND)
    saturated = counted.saturated.mean(axis=0)
    episodes = [*task.logged[:-1], *(record.episode for record in records)]
    return Certificate(
        task=task.name,
        method=settings.method,
        episodes=len(episodes),
        seconds=float(task.dt * sum(episode.steps for episode in episodes)),
        success=success,
        total=float(np.median(counted.totals)),
        band=(float(low), float(high)),
        widened=_within_bounds(task, calibration.widened(counted.totals)),
        by_moments=records[-1].predicted_cost,
        limits=limits,
        saturated={action.name: float(share) for action, share in zip(task.actions, saturated, strict=True)},
        least_certain=_least_certain(task, records[-1], own),
        model=model,
        calibration=calibration,
        kept=tuple(found),
        reasons=_reasons(success, limits, model, calibration, thresholds),
        thresholds=thresholds,
        controller=_fingerprint(task, settings, records[-1]),
        promises=(*(each._replace(parts=()) for each in promises), own),
    )


def _fingerprint(task: Task, settings: Settings, record: Record) -> str:
    executor = METHODS[settings.method].executor(record.policy, record.dynamics)
    return bridge.controller(task, executor, settings.method).fingerprint


def _shares(task: Task, counted: Outcome, confidence: float, looks: int) -> tuple[Share, dict[str, Share]]:
    """The probabilities of success and of exceeding each limit, with their bounds."""
    runs = len(counted.totals)
    success = clopper_pearson(int(counted.success.sum()), runs, confidence, looks)
    times = counted.exceeded.sum(axis=0)
    names = [limit.name for limit in task.limits]
    return success, {
        name: clopper_pearson(int(count), runs, confidence, looks) for name, count in zip(names, times, strict=True)
    }


def _enough(
    task: Task, settings: Settings, records: Sequence[Record], own: Promise, thresholds: Thresholds
) -> tuple[Outcome, int]:
    """Runs until every bound is on one side of its threshold, or there have been `LOOKS` looks at them."""
    counted, unknown = own.outcome, judged_as_observed(records)
    for look in range(1, LOOKS):
        success, limits = _shares(task, counted, thresholds.confidence, LOOKS)
        open_questions = [
            success.lower < thresholds.least_success <= success.upper,
            *(each.lower <= thresholds.most_exceeding < each.upper for each in limits.values()),
        ]
        if not any(open_questions):
            break
        for part in range(RUNS // BATCH * 2 ** (look - 1), RUNS // BATCH * 2**look):
            more = sample_runs(task, settings, records[-1], len(records) - 1, part)
            counted = counted.and_then(outcome(task, more, as_observed=unknown))
    return counted, LOOKS


def _test(task: Task, records: Sequence[Record], promised: Promise) -> ModelTest:
    """The newest episode under the model before it."""
    before, newest = records[-2].dynamics, records[-1].episode
    # As many copies as a batch has runs: that program is needed anyway, and takes less time than to compile another.
    copies: Episode = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (BATCH, *leaf.shape)), newest)
    executed = Trace(*(each[0] for each in filter_trace(before, task.start, copies)))
    parts = [filter_trace(before, task.start, runs) for runs in promised.parts]
    sampled: Trace = jax.tree.map(lambda *each: np.concatenate(each), *parts)
    return compare_innovations(executed, sampled, tuple(sensor.name for sensor in task.sensed))


def _least_certain(task: Task, record: Record, own: Promise) -> LeastCertain:
    """The state and the time at which the belief is widest, relative to how far that state moves in these runs."""
    runs, n = own.parts[0], len(task.states)
    trace = filter_trace(record.dynamics, task.start, runs)
    std = np.asarray(trace.belief_std)[:, :, :n]
    states = np.asarray(runs.states)
    usable = np.isfinite(std).all(axis=(1, 2)) & np.isfinite(states).all(axis=(1, 2))
    if not usable.any():
        return LeastCertain(task.states[0].name, task.states[0].unit, 0.0, float("inf"))
    mean = std[usable].mean(axis=0)
    moves = states[usable].std(axis=(0, 1))
    time, state = np.unravel_index(np.argmax(mean / np.where(moves > 0, moves, np.inf)), mean.shape)
    component = task.states[int(state)]
    return LeastCertain(component.name, component.unit, float(time * task.dt), float(mean[time, state]))


def _within_bounds(task: Task, band: tuple[float, float]) -> tuple[float, float]:
    """A total is not below 0 (costs are not negative), nor above the worst there is."""
    worst = float(task.cost.worst) * (task.steps + 1)
    return max(band[0], 0.0), min(band[1], worst)


def _is_calibrated(calibration: Calibration, thresholds: Thresholds) -> bool:
    return calibration.promises >= thresholds.least_promises and calibration.scale <= thresholds.most_missed


def _reasons(
    success: Share,
    limits: dict[str, Share],
    model: ModelTest | None,
    calibration: Calibration,
    thresholds: Thresholds,
) -> tuple[str, ...]:
    """What speaks against the trial, the gravest first."""
    found = []
    for name, share in limits.items():
        if share.upper > thresholds.most_exceeding:
            found.append(
                f"{name} may exceed its limit in up to {_percent(share.upper, 1)} of runs ({share.times} of "
                f"{share.runs} sampled plants; {_percent(thresholds.most_exceeding)} allowed)"
            )
    if model is not None and model.p < thresholds.level:
        low, high = model.expected
        found.append(
            f"the newest episode contradicts the model (p = {model.p:.3f}, most in the {model.oddest}; normalised "
            f"innovations {model.normalised:.2f}, expected {low:.2f} to {high:.2f})"
        )
    if calibration.promises < thresholds.least_promises:
        found.append(
            f"not calibrated yet: {calibration.promises} of at least {thresholds.least_promises} promises were tested"
        )
    elif calibration.scale > thresholds.most_missed:
        found.append(
            f"not calibrated yet: earlier promises missed by {calibration.scale:.1f} times what they allowed "
            f"({thresholds.most_missed:g} accepted)"
        )
    if success.lower < thresholds.least_success:
        found.append(
            f"success can be promised in {_percent(success.lower, -1)} of runs only ({success.times} of {success.runs} "
            f"sampled plants; {_percent(thresholds.least_success)} asked)"
        )
    return tuple(found)
