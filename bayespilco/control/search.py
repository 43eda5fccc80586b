"""Policy search: follow the exact gradient of the predicted cost, with a budget, and get out of local optima.

BFGS finds the bottom of the valley that it starts in (`improve`). With a narrow cost and the plant far from its goal
most valleys are bad ones, because almost every gradient vanishes. The strategy against that (`search`) has three parts:

- Several searches start from different policies, and the one with the lowest predicted cost is kept.
- A search may start in a wider version of the problem, which has fewer valleys, and then narrow it.
- At the end the search continues on split predictions, which take many times as long and are much more accurate.

Moments can be wrong about which of two policies is better: what they describe is not Gaussian. So a judge may be handed
in, such as the cost on plants drawn from the model. Then moments say which way to go, and the judge says which of the
policies found is kept.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from bayespilco.control.policy import Policy
from bayespilco.control.prediction import MostLikely
from bayespilco.control.problem import Problem
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.optimise import NotFiniteError, Reason, minimise
from bayespilco.core.parallel import SERIAL, Mapper
from bayespilco.core.precision import float64

SPLITS = 3
"""How many splits of the first state a search uses, one after the other. A policy with hundreds of parameters learns a
single one by heart."""

WIDENING = 3.0
"""How much wider the cost of the wider problem is: about 0.3 m instead of 0.1 m on the cart-pole."""

WORTH_REFINING = 0.6
"""A policy is refined only if the judge puts it below this share of the highest cost. As long as the
model knows of no way to the goal, there is nothing to refine."""

HOPEFUL_SHARE = 0.25
"""As long as no policy is worth refining, policies are compared by their costs on this share of the plants: those where
they cost least. The mean prefers policies that are not bad anywhere, and nothing is learned from these."""

PRECARIOUS = 1.1
"""A policy fails now and then if its mean cost over the plants is more than this many times its median cost. Then a
fresh policy gets the same chance: refined from where the valley is another one, it may not fail."""

Curvature = Float[np.ndarray, "parameters parameters"]
Judge = Callable[[Sequence[Policy]], Sequence[Sequence[float]] | np.ndarray]
"""What each of some policies costs on each of some plants, the same plants for all: a row per policy."""


class Recovery(NamedTuple):
    """What a policy should cope with beside the first state of its problem."""

    starts: Sequence[tuple[float, Gaussian]]
    """Further first states, each with its weight."""
    judge: Judge | None = None
    """What policies cost over all starts, weighted; None: the prediction says it."""


class Improvement(eqx.Module):
    """The result of a search, and why it ended."""

    policy: Policy
    problem: Problem
    """The problem that `cost` belongs to: the last one that was searched."""
    cost: float
    evaluations: int
    stopped: Reason
    history: Float[np.ndarray, " evaluations"]
    """The best predicted cost after each evaluation."""
    curvature: Curvature
    """BFGS's estimate of the inverse Hessian at the end. A search of a similar problem can start with it."""

    def on(self, problem: Problem) -> "Improvement":
        """The same policy, with what it costs on another problem."""
        return dataclasses.replace(self, problem=problem, cost=problem.value(self.policy))


@float64
def improve(
    policy: Policy,
    problem: Problem,
    *,
    evaluations: int = 300,
    curvature: Curvature | None = None,
    workers: Mapper = SERIAL,
    on_evaluation: Callable[[int, float], object] | None = None,
) -> Improvement:
    """Improve a policy with BFGS, with at most `evaluations` values and gradients (Algorithm 1, line 8).

    The best policy seen is returned, not the last. If the first prediction is not finite, the policy is returned as it
    is, at the highest cost there can be. `curvature` is that of an earlier `Improvement`.
    """
    if evaluations < 1:
        raise ValueError(f"A policy search needs at least one evaluation; given {evaluations}.")
    flat, unravel = ravel_pytree(policy)

    def function(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = problem.value_and_gradient(unravel(jnp.asarray(parameters)), workers)
        return float(value), np.asarray(ravel_pytree(gradient)[0])

    try:
        found = minimise(
            function,
            np.asarray(flat),
            evaluations=evaluations,
            method="BFGS",
            curvature=curvature,
            on_evaluation=on_evaluation,
        )
    except NotFiniteError:
        if on_evaluation is not None:
            on_evaluation(1, problem.rejected)
        start = np.eye(flat.size) if curvature is None else curvature
        return Improvement(policy, problem, problem.rejected, 1, Reason.NOT_FINITE, np.full(1, problem.rejected), start)
    assert found.curvature is not None, "BFGS returns one"
    improved = unravel(jnp.asarray(found.x))
    return Improvement(improved, problem, found.value, found.evaluations, found.reason, found.history, found.curvature)


@float64
def search(
    problem: Problem,
    earlier: Sequence[Policy],
    random: Sequence[Policy],
    *,
    evaluations: int = 150,
    split_evaluations: int = 0,
    refined: Sequence[Policy] = (),
    judge: Judge | None = None,
    recovery: "Recovery | None" = None,
    round_number: int = 0,
    workers: Mapper = SERIAL,
    on_progress: Callable[[float, float], object] | None = None,
) -> Improvement:
    """The best of several searches, refined on split predictions.

    1. The best earlier policy, by the new model, is improved as it is.
    2. The random policies are improved on the wide problem along the most likely trajectory, which takes milliseconds
       per evaluation. The best of them continues with the full prediction, first wide, then narrow.
    3. The latest policy is improved on the wide and then on the narrow problem. That may lead it into a better valley.

    With a judge, the policy of 2. is refined as well if the best one fails now and then.

    Without `random` policies only the first search is done. If `split_evaluations` > 0 and the predictor can split, the
    best policy is then refined on split predictions. Earlier `refined` policies compete.

    Args:
        earlier: The policies of earlier episodes, the latest last.
        random: Policies to start from anew.
        evaluations: The budget of each search in the narrow problem. In the wide problem it is a third of that.
        split_evaluations: The budget on each of the `SPLITS` splits; 0: no split predictions.
        refined: Earlier policies that were refined on split predictions.
        judge: Says which policies are refined, and which one is kept; None: the predicted cost does.
        recovery: Further starts that the refined policy is at last refined for as well; None: there are none.
        round_number: Every round has splits of its own, so that policies do not learn the same ones by heart.
        on_progress: Called with the fraction done and the best cost so far.

    Returns:
        The best policy. `cost` and `problem` are those of the last search, so with splits those of the last split.
    """
    if not earlier and not random:
        raise ValueError("A policy search needs a policy to start from: give `earlier` or `random` ones.")
    # Whoever is judged needs half the budget to show what it is worth. The winner gets the other half, or the splits.
    contest = evaluations if judge is None else max(evaluations // 2, 1)
    can_split = split_evaluations > 0 and problem.predictor.can_split
    numbers = range(SPLITS * round_number, SPLITS * (round_number + 1))
    splits = [problem.split(number) for number in numbers] if can_split else []
    if not splits:
        recovery = None
    challenged = judge is not None and bool(earlier) and bool(random)
    refinements = 1 + challenged + (recovery is not None)
    descents = bool(earlier) + bool(random) + bool(earlier and random)
    progress = _Progress(descents + refinements * len(splits), on_progress)
    found = _first_descents(problem, earlier, random, evaluations, contest, workers, progress)
    progress.finished = len(found)
    if judge is not None:
        others = evaluations - contest
        fresh = found[1] if challenged else None
        best = _judged(problem, found, fresh, splits, refined, (others, split_evaluations), judge, workers, progress)
    else:
        best = min(found, key=lambda each: each.cost)
        best = _refine(best, splits, refined, split_evaluations, workers, progress)
    if recovery is None or float(best.problem.prediction(best.policy).total_cost) > WORTH_REFINING * problem.worst:
        return best
    return _recovering(best, splits, recovery, split_evaluations, workers, progress)


def _first_descents(
    problem: Problem,
    earlier: Sequence[Policy],
    random: Sequence[Policy],
    evaluations: int,
    narrow: int,
    workers: Mapper,
    progress: "_Progress",
) -> list[Improvement]:
    """The searches on one Gaussian: see the list in `search`. Each has `narrow` evaluations of the narrow problem."""

    def watched(descent: _Descent) -> Improvement:
        if descent.stages[-1][0] is not problem:
            return _descend(descent)
        found = _descend(descent, progress.within(narrow))
        progress.finished += 1
        return found

    wide, third = problem.widened(WIDENING), max(evaluations // 3, 1)
    easy = wide._replace(predictor=MostLikely())
    # While the random policies are tried, the best earlier one is improved: no process waits.
    at_once = [_Descent(min(earlier, key=problem.value), [(problem, narrow)])] if earlier else []
    begun = workers.map(_descend, [*at_once, *(_Descent(policy, [(easy, evaluations)]) for policy in random)], watched)
    found, tried = begun[: len(at_once)], begun[len(at_once) :]
    if not random:
        return found
    starts = [min((each.policy for each in tried), key=wide.value), *earlier[-1:]]
    return found + workers.map(
        _descend, [_Descent(each, [(wide, third), (problem, narrow)]) for each in starts], watched
    )


def _judged(
    problem: Problem,
    found: Sequence[Improvement],
    fresh: Improvement | None,
    splits: Sequence[Problem],
    earlier: Sequence[Policy],
    budgets: tuple[int, int],
    judge: Judge,
    workers: Mapper,
    progress: "_Progress",
) -> Improvement:
    """Refine the policy that the judge puts first, of those found and of earlier ones.

    `budgets` are the evaluations that are left on one Gaussian, and those on each split. A policy that is not worth
    refining on splits is improved on one Gaussian.

    What a refinement gains is often less than the judge can tell. So the refined policy is kept unless it is clearly
    worse: then it has overfitted the few splits that it has seen.

    Where no policy leads to the goal on most plants, one is kept that does on some: if the plant is one of these, it is
    learned at once, and if not, that is learned (optimism in the face of uncertainty).

    Where the policy that is kept fails on some plants, the `fresh` one is refined as well, and takes its place if it
    costs less. Such a valley is seldom left otherwise: a policy that has just been found cannot compete with one that
    was refined for episodes.
    """
    # The curvature around one good policy is a better guess for another than none: see `_refine`.
    candidates = [*found, *(_as_found(policy, problem, found[0].curvature) for policy in earlier)]
    costs = np.asarray(judge([each.policy for each in candidates]))
    worth_refining = costs.mean(axis=1).min() < WORTH_REFINING * problem.worst
    scores = costs.mean(axis=1) if worth_refining else np.array([_hopeful(row).mean() for row in costs])
    first = int(np.argmin(scores))
    best = candidates[first]
    on_one_gaussian, on_each_split = budgets
    if splits and worth_refining:
        tried = _refine(best, splits, (), on_each_split, workers, progress)
    elif on_one_gaussian > 0:
        goes_on = _Descent(best.policy, [(problem, on_one_gaussian)], best.curvature)
        tried = _descend(goes_on, progress.within(on_one_gaussian))
    else:
        tried = best
    kept = costs[first]
    if tried is not best:
        after = np.asarray(judge([tried.policy]))[0]
        loss = after - kept if worth_refining else _hopeful(after) - _hopeful(kept)
        if loss.mean() <= loss.std() / np.sqrt(len(loss)):
            best, kept = tried, after
    if splits and worth_refining and fresh is not None and candidates[first] is not fresh and _precarious(kept):
        other = _refine(fresh, splits, (), on_each_split, workers, progress)
        if np.mean(judge([other.policy])) < kept.mean():
            best = other
    if splits and best.problem is not splits[-1]:  # its prediction should be as accurate as that of refined policies
        return best.on(splits[-1])
    return best


def _precarious(costs: np.ndarray) -> bool:
    """Whether a policy fails on some plants that it should not fail on: see `PRECARIOUS`."""
    return bool(costs.mean() > PRECARIOUS * np.median(costs))


def _hopeful(costs: np.ndarray) -> np.ndarray:
    """The lowest of some costs: on those plants that a policy is best for."""
    return np.sort(costs)[: max(round(HOPEFUL_SHARE * len(costs)), 1)]


def _recovering(
    best: Improvement,
    splits: Sequence[Problem],
    recovery: Recovery,
    evaluations: int,
    workers: Mapper,
    progress: "_Progress",
) -> Improvement:
    """Refine the best policy for further starts as well, and keep it if it is better over all starts."""
    joint = [split.also_from(recovery.starts, number) for number, split in enumerate(splits)]
    tried = _refine(best, joint, (), evaluations, workers, progress)
    if recovery.judge is None:
        better = tried.cost <= joint[-1].value(best.policy)
    else:
        before, after = np.asarray(recovery.judge([best.policy, tried.policy]))
        better = after.mean() <= before.mean()
    return tried.on(splits[-1]) if better else best


def _as_found(policy: Policy, problem: Problem, curvature: Curvature) -> Improvement:
    """An earlier policy as the result of a search that has not begun."""
    return Improvement(policy, problem, problem.value(policy), 0, Reason.BUDGET, np.zeros(0), curvature)


def _refine(
    best: Improvement,
    splits: Sequence[Problem],
    refined: Sequence[Policy],
    evaluations: int,
    workers: Mapper,
    progress: "_Progress",
) -> Improvement:
    """Improve the best policy on one split after the other. An earlier refined policy may take its place.

    A policy that is worse on a split at first may soon be better. So if an earlier one starts lower on the first split,
    both are improved there, and the better one continues. Only refined policies may compete: a few evaluations tell too
    little about any other. Such a policy may look good on a split because it does little, and cannot be improved.

    BFGS continues with the curvature that it knows. Otherwise a third of so few evaluations is spent on finding out how
    far to step.
    """
    if not splits:
        return best
    first = splits[0]
    competitors = [best.policy]
    if refined and first.value(rival := min(refined, key=first.value)) < first.value(best.policy):
        competitors.append(rival)
    if len(competitors) > 1:
        descents = [_Descent(each, [(first, evaluations)], best.curvature) for each in competitors]
        best = min(workers.map(_descend, descents), key=lambda each: each.cost)
        splits = splits[1:]
        progress.finished += 1
    for split in splits:
        best = improve(
            best.policy,
            split,
            evaluations=evaluations,
            curvature=best.curvature,
            workers=workers,
            on_evaluation=progress.within(evaluations),
        )
        progress.finished += 1
    return best


class _Descent(NamedTuple):
    """Problems to improve a policy on, one after the other, each with its budget."""

    policy: Policy
    stages: list[tuple[Problem, int]]
    curvature: Curvature | None = None
    """For the last stage."""


def _descend(descent: _Descent, on_evaluation: Callable[[int, float], object] | None = None) -> Improvement:
    """Improve through all stages. Progress is reported for the last one."""
    policy, stages, curvature = descent
    for problem, evaluations in stages[:-1]:
        policy = improve(policy, problem, evaluations=evaluations).policy
    problem, evaluations = stages[-1]
    return improve(policy, problem, evaluations=evaluations, curvature=curvature, on_evaluation=on_evaluation)


class _Progress:
    """How much of a search is done, and the best cost so far."""

    def __init__(self, stages: int, on_progress: Callable[[float, float], object] | None) -> None:
        self.stages, self.finished, self.lowest = stages, 0, np.inf
        self._on_progress = on_progress

    def within(self, budget: int) -> Callable[[int, float], None]:
        """Reports the evaluations of one stage with this budget."""

        def report(count: int, cost: float) -> None:
            self.lowest = min(self.lowest, cost)
            if self._on_progress is not None:
                self._on_progress(min((self.finished + count / budget) / self.stages, 1.0), self.lowest)

        return report
