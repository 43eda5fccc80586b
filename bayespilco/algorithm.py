"""Algorithm 1: execute, learn the dynamics, predict, improve, repeat; with the tables of methods and trainings.

`learn` is the whole loop and `learn_episode` its body. Neither knows of files, processes or displays: they come in as
callbacks, and as the `workers` that share out what can be computed apart. `bayespilco.runs` puts them together.
"""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bayespilco import execution
from bayespilco import settings as tables
from bayespilco.control import exploration, prediction
from bayespilco.control.limits import Bounds, outside
from bayespilco.control.objective import OBJECTIVES, Objective, WithinLimits
from bayespilco.control.policy import BeliefPolicy, Caution, Policy
from bayespilco.control.prediction import Prediction, Predictor
from bayespilco.control.problem import Problem
from bayespilco.control.search import Improvement, Judge, Recovery, search
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.optimise import Reason
from bayespilco.core.parallel import SERIAL, Mapper
from bayespilco.core.precision import float64
from bayespilco.core.registry import Registry
from bayespilco.execution import Executor, PolicyExecutor, RandomActions
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode, batch
from bayespilco.model.posterior_samples import OnePlant, draw_many, mean_function
from bayespilco.model.structure import Structure
from bayespilco.settings import Settings as Settings
from bayespilco.tasks import Task
from bayespilco.tasks.checking import check_episode
from bayespilco.tasks.task import Kind
from bayespilco.training.direct import DirectFit, fit_direct
from bayespilco.training.evidence import EvidenceFit, fit_evidence
from bayespilco.training.guesses import guess_states


class Method(NamedTuple):
    """A way to predict and a way to execute: all that the four methods differ in. The rest is for lists and figures."""

    predictor: Predictor
    executor: Callable[[Policy, Dynamics], PolicyExecutor]
    predicts: str
    """What it predicts with, in words."""
    executes: str
    """What it executes with, in words."""
    source: str
    """Where it was published."""
    colour: str
    marker: str


METHODS: Registry[Method] = tables.METHODS
"""The four methods. Colours are from Okabe and Ito's palette."""
for _name, _method in {
    "pilco": Method(
        predictor=prediction.Unfiltered(),
        executor=execution.unfiltered,
        predicts="all trajectories, raw observations",
        executes="raw observations",
        source="Deisenroth & Rasmussen 2011",
        colour="#E69F00",
        marker="o",
    ),
    "dallaire": Method(
        predictor=prediction.MostLikely(),
        executor=execution.filtered,
        predicts="the most likely trajectory only",
        executes="the Bayes filter",
        source="Dallaire et al. 2009",
        colour="#CC79A7",
        marker="^",
    ),
    "deisenroth": Method(
        predictor=prediction.Unfiltered(),
        executor=execution.filtered,
        predicts="all trajectories, raw observations",
        executes="the Bayes filter",
        source="Deisenroth & Peters 2012",
        colour="#009E73",
        marker="s",
    ),
    "bayes-filter": Method(
        predictor=prediction.Filtered(),
        executor=execution.filtered,
        predicts="all trajectories, with the filter",
        executes="the Bayes filter",
        source="McAllister & Rasmussen 2016",
        colour="#0072B2",
        marker="D",
    ),
}.items():
    METHODS.add(_name, _method, f"Predicts {_method.predicts}; executes with {_method.executes}.")

Fit = EvidenceFit | DirectFit
"""What training ends with: a model, and all that the next training starts from."""


class Training(NamedTuple):
    """A way to train the dynamics, and the class of its result."""

    fit: Callable[..., Any]
    result: type[eqx.Module]


TRAININGS: Registry[Training] = tables.TRAININGS
"""How the dynamics may be trained."""
TRAININGS.add("evidence", Training(fit_evidence, EvidenceFit), "By the evidence of all data, with a filter (ours).")
TRAININGS.add("direct", Training(fit_direct, DirectFit), "By the Direct method (the paper's).")


RANDOM_STARTS = 4
"""Random policies that a search starts from, if policies are selected by prediction."""

JUDGED_STARTS = 8
"""The same, if they are selected on drawn plants. Many stay where they are (three of four on a learned cart-pole), and
it takes a tenth of a second to find that out."""

SPLIT_SHARE = 8
"""Each split gets 1/8 of the evaluation budget, if policies are selected by prediction. Such an evaluation takes as
long as sixteen others, and the next episode goes on from there."""

JUDGED_SPLIT_SHARE = 4
"""The same, if they are selected on drawn plants. On one final model twice the budget took a fresh policy's runs that
fail from 44 to 2 %."""

JUDGED_EARLIER = 3
"""Policies of earlier episodes that compete where they are selected on drawn plants."""

DRAWN_PLANTS = 150
"""Plants drawn from the model that policies are compared on. With 60 of them, runs that fail in one of ten were seen
too rarely."""

JUDGED_SHARES = 2
"""Shares of these plants that are run apart. They do not depend on the number of workers, so neither do the costs."""

EXPLORATION_EPISODES = 5
"""If policies are selected by prediction: in the first episodes policy search also starts from random policies, and
predicts from one Gaussian. Later the valley is found, a warm start is enough, and what remains is to get every first
state right."""

RESTART_THRESHOLD = 2 / 3
"""If policies are selected by prediction: the share of the highest possible cost above which later searches start from
random policies too. A policy that, say, spins the pole for ever leads nowhere: new data are of spinning again, and the
next policy spins better."""


def model_structure(task: Task, settings: Settings) -> Kind:
    """The structure of the dynamics that a task is learned with, or a ValueError if it cannot be."""
    if settings.structure == "auto":
        usual: Kind = "second-order" if task.rates else "free"
        kind: Kind = usual if task.hidden or task.auto_structure is None else task.auto_structure
    else:
        kind = "second-order" if settings.structure == "second-order" else "free"
    if hidden := task.unrevealed(kind):
        names = ", ".join(repr(state.name) for state in hidden)
        remedy = "measure the position it belongs to"
        if kind == "free":
            remedy = 'use the structure "second-order"'
        if not task.rates:
            remedy = 'say which state it is the rate of (rates={"position": "velocity"})'
        raise ValueError(
            f"No sensor reveals {names} of the task {task.name!r} with the structure {kind!r}. Give it a sensor, or "
            f"{remedy}."
        )
    if METHODS[settings.method].predictor.needs_raw_states and task.hidden:
        names = ", ".join(repr(state.name) for state in task.hidden)
        raise ValueError(
            f"{settings.method} feeds observations to the policy, and {names} of the task {task.name!r} is not among "
            "them. Use bayes-filter, or give the state a sensor."
        )
    return kind


def known_structure(task: Task, settings: Settings) -> Structure:
    """What the model knows of the dynamics before any data."""
    return task.structure(model_structure(task, settings), settings.symmetry)


def resolved(task: Task, settings: Settings) -> Settings:
    """The settings with the structure that `auto` means: what is stored must not depend on later defaults."""
    return dataclasses.replace(settings, structure=model_structure(task, settings))


class Progress(NamedTuple):
    """Where learning is: for a progress bar."""

    episode: int
    episodes: int
    stage: Literal["execute", "train", "improve"]
    fraction: float
    """How much of the stage is done."""
    cost: float | None
    """The best predicted cost so far, while improving."""


OnProgress = Callable[[Progress], object]
Execute = Callable[[Task, Executor, Array], Episode]
"""Runs an executor on a task's plant, with a random key: one episode."""


class Record(eqx.Module):
    """One round of Algorithm 1: what was executed, and what was then learned from all data so far."""

    episode: Episode
    fit: Fit
    policy: Policy
    prediction: Prediction
    """How the new policy will do, according to the new model."""
    evaluations: int
    stopped: Reason = eqx.field(converter=Reason)
    """Why the policy search ended."""

    @property
    def dynamics(self) -> Dynamics:
        return self.fit.dynamics

    @property
    def predicted_cost(self) -> float:
        return float(self.prediction.total_cost)

    @property
    def executed_cost(self) -> float:
        """The cost of this round's episode (executed with the policy of the round before; the first is random)."""
        return float(np.sum(np.asarray(self.episode.costs)))


Records = tuple[Record, ...]


def learn(
    task: Task,
    settings: Settings,
    records: Sequence[Record] = (),
    *,
    execute: Execute = execution.execute,
    workers: Mapper = SERIAL,
    on_progress: OnProgress | None = None,
    on_record: Callable[[Records], object] | None = None,
) -> Records:
    """Algorithm 1: learn until there are as many episodes as asked for.

    Args:
        records: The rounds that were learned before.
        execute: What runs an episode on the plant. The default simulates it.
        workers: Who computes what can be computed apart.
        on_progress: Called often, with where learning is.
        on_record: Called with all records after each round. If it returns True, learning ends.
    """
    model_structure(task, settings)  # what cannot be learned is refused before the plant moves
    warn_of_first_states(task, settings)
    check_sees(task, settings)
    check_recover(task, settings)
    found = tuple(records)
    while len(found) < settings.episodes:
        found = (*found, learn_episode(task, settings, found, on_progress, workers, execute))
        if on_record is not None and on_record(found) is True:
            break
    return found


@float64
def learn_episode(
    task: Task,
    settings: Settings,
    records: Sequence[Record] = (),
    on_progress: OnProgress | None = None,
    workers: Mapper = SERIAL,
    execute: Execute = execution.execute,
) -> Record:
    """One round of Algorithm 1: what comes after `records`.

    It knows the earlier rounds by their records alone, and takes its random numbers from the seed and its own number.
    So a run can stop after any round, and go on from its records to the same result.
    """

    def stage(name: Literal["execute", "train", "improve"]) -> Callable[..., None]:
        def report(fraction: float, cost: float | None = None) -> None:
            if on_progress is not None:
                on_progress(Progress(len(records), settings.episodes, name, fraction, cost))

        report(0.0)
        return report

    on_plant, on_start = jax.random.split(jax.random.fold_in(jax.random.key(settings.seed), len(records)))
    stage("execute")
    episode = _experience(task, settings, records, execute, on_plant)  # lines 1 to 4: a random policy at first
    fit = _train(task, settings, records, episode, workers, stage("train"))  # line 5
    given = task, settings, records, episode
    found = _improve(*given, fit, on_start, workers, stage("improve"))  # lines 6 to 8
    if settings.exploration != "none":
        found = _explore(*given, fit, found, jax.random.fold_in(on_start, 1), workers, stage("improve"))
    predicted = found.problem.prediction(found.policy)
    return Record(episode, fit, found.policy, predicted, found.evaluations, found.stopped)


def _experience(task: Task, settings: Settings, records: Sequence[Record], execute: Execute, key: Array) -> Episode:
    """The next episode: with the last policy; at first with random actions, or what was logged before."""
    if not records and task.logged:
        return task.logged[-1]
    executor: Executor = RandomActions(task.action_limits)
    if records:
        executor = METHODS[settings.method].executor(records[-1].policy, records[-1].dynamics)
    episode = execute(task, executor, key)
    check_episode(task, episode)
    return episode


def _train(
    task: Task,
    settings: Settings,
    records: Sequence[Record],
    episode: Episode,
    workers: Mapper,
    on_progress: Callable[..., None],
) -> Fit:
    """A model of all data so far; training goes on from the last model."""
    fit: Fit = TRAININGS[settings.training].fit(
        batch([*task.logged[:-1], *(record.episode for record in records), episode]),
        task.features(model_structure(task, settings)),
        task.start,
        structure=known_structure(task, settings),
        sensors=task.sensors_with(np.ones(len(task.sensed))),
        points=settings.points,
        previous=records[-1].fit if records else None,
        names=[sensor.name for sensor in task.sensed],
        workers=workers,
        on_progress=on_progress,
    )
    return fit


def _improve(
    task: Task,
    settings: Settings,
    records: Sequence[Record],
    episode: Episode,
    fit: Fit | OnePlant,
    key: Array,
    workers: Mapper,
    on_progress: Callable[..., None],
) -> Improvement:
    """The best policy by prediction with the new model, from the earlier policies and from random ones."""
    problem = make_problem(task, settings, fit.dynamics, best_so_far(task, settings, records, fit.dynamics))
    visited = _visited(task, settings, [*(record.episode for record in records), episode])
    earlier = [record.policy for record in records]
    judge = recovery = None
    if settings.recover and task.recover_from and len(records) + 1 >= settings.episodes:
        recovery = Recovery([(start.weight, task.beginning_at(start).start) for start in task.recover_from])
    if settings.selection != "prediction" and problem.predictor.can_split:
        starts, share, refined, in_parts = JUDGED_STARTS, JUDGED_SPLIT_SHARE, earlier[-JUDGED_EARLIER:], True
        key, of_judge = jax.random.split(key)

        def judge_of(task: Task) -> Judge:
            return _judge(task, settings, records, fit, problem, of_judge, workers)

        judge = judge_of(task)
        if recovery is not None:
            recovery = recovery._replace(judge=_judge_of_all_starts(task, judge_of))
    else:
        exploring = len(records) < EXPLORATION_EPISODES
        stuck = bool(records) and records[-1].predicted_cost > RESTART_THRESHOLD * problem.worst
        starts, share = RANDOM_STARTS if exploring or stuck else 0, SPLIT_SHARE
        refined, in_parts = earlier[EXPLORATION_EPISODES:], not exploring
    return search(
        problem,
        earlier,
        [random_policy(task, settings, fit.dynamics, start, visited) for start in jax.random.split(key, starts)],
        evaluations=settings.evaluations,
        split_evaluations=max(settings.evaluations // share, 1) if in_parts and settings.in_parts else 0,
        refined=refined,
        judge=judge,
        recovery=recovery,
        round_number=0 if settings.selection == "prediction" else len(records),
        workers=workers,
        on_progress=on_progress,
    )


def _judge_of_all_starts(task: Task, judge_of: Callable[[Task], Judge]) -> Judge:
    """The same over all starts that a policy should cope with, weighted."""
    rest = 1 - sum(start.weight for start in task.recover_from)
    others = [(start.weight, judge_of(task.beginning_at(start))) for start in task.recover_from]
    judges = [(rest, judge_of(task)), *others]

    def judge(policies: Sequence[Policy]) -> np.ndarray:
        totals: np.ndarray = np.sum([weight * np.asarray(each(policies)) for weight, each in judges], axis=0)
        return totals

    return judge


def _judge(
    task: Task,
    settings: Settings,
    records: Sequence[Record],
    fit: Fit | OnePlant,
    problem: Problem,
    key: Array,
    workers: Mapper,
) -> Judge:
    """The cost on plants drawn from the model: the same plants and the same noise for every policy.

    So few plants say nothing about rare events. What limits cost is taken from the prediction. For the index, each
    plant is run twice, and less is charged where there is more to learn (`control.exploration`).
    """
    of_plants, of_runs = jax.random.split(key)
    plants, keys = jax.random.split(of_plants, DRAWN_PLANTS), jax.random.split(of_runs, DRAWN_PLANTS)
    again = jax.random.split(jax.random.fold_in(of_runs, 1), DRAWN_PLANTS)
    executor = METHODS[settings.method].executor
    left = settings.episodes - 1 - len(records)
    elsewhere = task.without_plant()

    def judge(policies: Sequence[Policy]) -> np.ndarray:
        ready = [executor(policy, fit.dynamics) for policy in policies]

        def run(keys: Array) -> np.ndarray:
            shares = zip(*(np.split(jax.random.key_data(each), JUDGED_SHARES) for each in (plants, keys)), strict=True)
            found = workers.map(_run_share, [_Share(elsewhere, fit, ready, *share) for share in shares])
            return np.concatenate(found, axis=1)

        totals = run(keys)
        if settings.selection == "index":
            pairs = [(each, run_again) for each, run_again in zip(totals, run(again), strict=True)]
            worths = [exploration.worth(exploration.spread(*pair), left) for pair in pairs]
            totals = np.mean(pairs, axis=1) - np.array(worths)[:, None]
        if isinstance(problem.objective, WithinLimits):
            predictions = [problem.split().prediction(policy) for policy in policies]
            totals += np.array([[float(problem.objective.penalty(each))] for each in predictions])
        return totals

    return judge


class _Share(NamedTuple):
    """Policies, and some of the plants that they are judged on."""

    task: Task
    fit: Fit | OnePlant
    executors: list[PolicyExecutor]
    plants: np.ndarray
    """The keys to draw them with, as data: keys themselves cannot be sent."""
    runs: np.ndarray
    """The keys to run them with."""


def _run_share(share: _Share) -> np.ndarray:
    """What each policy costs on each plant, discounted."""
    task, fit, executors = share.task, share.fit, share.executors
    plants, runs = (jax.random.wrap_key_data(jnp.asarray(each)) for each in (share.plants, share.runs))
    drawn = draw_many(fit, plants)
    costs = [execution.simulate_samples(task, each, drawn, runs).costs for each in executors]
    totals: np.ndarray = np.asarray(costs) @ task.discount ** np.arange(task.steps + 1)
    return totals


def _explore(
    task: Task,
    settings: Settings,
    records: Sequence[Record],
    episode: Episode,
    fit: Fit,
    found: Improvement,
    key: Array,
    workers: Mapper,
    on_progress: Callable[..., None],
) -> Improvement:
    """What was found, unless that is hopeless: then the best policy for one of the plants that are possible.

    Where ignorance makes every policy cost nearly the worst there is, the model has no gradient to offer. One plant
    has, and to try a policy that would be good there is the way to learn whether it is the real one. What is predicted
    of it is by the whole model, as ever.
    """
    problem = found.problem
    if not float(problem.prediction(found.policy).total_cost) > RESTART_THRESHOLD * problem.worst:
        return found
    of_plant, of_search, of_judge = jax.random.split(key, 3)
    plant = fit.draw(of_plant) if settings.exploration == "thompson" else mean_function(fit.dynamics)
    tried = _improve(task, settings, records, episode, OnePlant(plant), of_search, workers, on_progress)
    if settings.selection == "index":
        greedy, other = _judge(task, settings, records, fit, problem, of_judge, workers)([found.policy, tried.policy])
        if np.mean(greedy) <= np.mean(other):
            return found
    return dataclasses.replace(tried.on(problem), evaluations=found.evaluations + tried.evaluations)


LIMIT_WEIGHT = 0.05
"""What a probability of exceeding a limit that is e times as high as allowed costs, relative to the worst run."""


@float64
def make_problem(task: Task, settings: Settings, dynamics: Dynamics, best: float | None = None) -> Problem:
    """What a policy for a task should be good at, according to a model.

    Args:
        best: The cost to improve on, for objectives that ask for it (`best_so_far`).
    """
    known = {"discount": task.discount, "kappa": settings.kappa, "best": best}
    objective: Objective = OBJECTIVES[settings.objective].value(**{name: known[name] for name in _asked(settings)})
    limits: tuple[Bounds, ...] = ()
    if settings.limit_probability > 0:
        limits = check_limits(task, settings)
        worst = float(task.cost.worst) * (task.steps + 1)
        if not np.isfinite(worst):  # of a cost without bound, what it costs to stay where an episode starts
            rest = jnp.asarray(task.rest)
            start = Gaussian(jnp.concatenate([task.start.mean, rest]), jnp.pad(task.start.cov, (0, len(rest))))
            worst = max(float(task.cost.moments(start).mean[0]) * (task.steps + 1), 1e-6)
        count = task.steps * len(limits)
        objective = WithinLimits(objective, settings.limit_probability, LIMIT_WEIGHT * worst, count)
    predictor = METHODS[settings.method].predictor
    return Problem(predictor, dynamics, task.start, task.cost, task.steps, objective, limits=limits).drawn()


@float64
def random_policy(
    task: Task, settings: Settings, dynamics: Dynamics, key: Array, states: np.ndarray | None = None
) -> Policy:
    """Where policy search starts when it knows nothing (`Task.random_policy`).

    A policy of the whole belief starts as the same policy of its mean.
    """
    policy = task.random_policy(key, states)
    if settings.sees == "mean":
        return policy
    first = jnp.diagonal(task.start.cov)
    noise = dynamics.sensors.noise_of_states(jnp.where(first > 0, first, 1.0))
    return BeliefPolicy(policy, Caution.none(noise, len(task.actions)))


def check_sees(task: Task, settings: Settings) -> None:
    """A ValueError if the policy is to see the whole belief, and a prediction could not know what that is worth."""
    if settings.sees == "mean":
        return
    if not METHODS[settings.method].predictor.predicts_beliefs:
        raise ValueError(
            f"{settings.method} does not predict what its filter will believe, so it cannot learn a policy of the "
            "whole belief (sees = belief). Use bayes-filter, or a policy of the belief's mean."
        )
    if task.bursts is None:
        raise ValueError(
            f"The task {task.name!r} has no bursts of lost samples. Without them a prediction has one covariance of "
            "the belief per step, and a policy that sees it (sees = belief) would learn to tell the time by it. "
            "Declare them: bursts=Bursts(apart=2, lasting=0.5) in the task, or --bursts 2,0.5; or use sees = mean."
        )
    share = 1 - (1 - task.bursts.chain(float(task.dt)).begin) ** task.steps
    if share < LEAST_BURSTS:
        raise ValueError(
            f"Of the episodes of {task.name!r} only {share:.0%} have a burst of lost samples. The few patterns that a "
            "prediction draws would be alike, and a policy of the whole belief (sees = belief) would learn to tell the "
            "time. Use sees = mean, longer episodes, or bursts that are less far apart."
        )


def check_recover(task: Task, settings: Settings) -> None:
    """A ValueError if a policy should recover from what the task does not say."""
    if settings.recover and not task.recover_from:
        raise ValueError(
            f"recover is set, but the task {task.name!r} does not say from what. Declare further starts, "
            f'recover_from=(Start("pushed", mean=..., std=..., weight=0.1),), or leave recover out.'
        )


LEAST_BURSTS = 0.25
"""The share of episodes with a burst that a policy of the whole belief needs. With at least four drawn patterns, spread
evenly, one has a burst then."""


def _asked(settings: Settings) -> list[str]:
    """What the objective wants to know."""
    fields = {field.name for field in dataclasses.fields(OBJECTIVES[settings.objective].value)}
    return [name for name in ("discount", "kappa", "best") if name in fields]


@float64
def best_so_far(task: Task, settings: Settings, records: Sequence[Record], dynamics: Dynamics) -> float | None:
    """The lowest expected cost of the earlier policies, by the model at hand: what there is to improve on.

    By the model at hand, as earlier ones may have promised too much; and in parts, if policies are predicted so. None
    if the objective does not ask for it, or there is no earlier policy.
    """
    if not records or "best" not in _asked(settings):
        return None
    plain = dataclasses.replace(settings, objective="expected-cost", limit_probability=0.0)
    problem = make_problem(task, plain, dynamics)
    problem = problem.split() if settings.in_parts else problem
    return min(problem.value(record.policy) for record in records)


def check_limits(task: Task, settings: Settings) -> tuple[Bounds, ...]:
    """The limits that policy search respects, or a ValueError if there are none and some are asked for."""
    if settings.limit_probability > 0 and not task.limits:
        name = task.states[0].name
        raise ValueError(
            f"limit_probability is {settings.limit_probability:g}, but the task {task.name!r} has no limits. Declare "
            f'them: limits={{"{name}": (-1, 1)}} in the task, or --limit "{name}=-1:1".'
        )
    places = {state.name: place for place, state in enumerate(task.states)}
    return tuple(Bounds(places[limit.name], limit.low, limit.high) for limit in task.limits)


@float64
def warn_of_first_states(task: Task, settings: Settings) -> None:
    """Warn where the first states alone exceed limits more often than the policy may: no policy can help that."""
    asked, beyond = settings.limit_probability, float(outside(check_limits(task, settings), task.initial))
    if 0 < asked < beyond:
        warnings.warn(
            f"No policy can keep limit_probability = {asked:g}: {100 * beyond:.2g} % of the first states are beyond a "
            "limit already. What the policy adds to it is kept small. Wider limits would help, or first states that "
            "vary less.",
            stacklevel=2,
        )


def _visited(task: Task, settings: Settings, episodes: Sequence[Episode]) -> np.ndarray:
    """Where the plant has been, roughly: what a first policy takes its sizes from if the task does not say them."""
    trials, structure = batch([*task.logged[:-1], *episodes]), known_structure(task, settings)
    guesses = guess_states(trials, structure, task.sensors_with(np.ones(len(task.sensed))), task.start)
    visited: np.ndarray = guesses.rows[:, :-1][guesses.usable]
    return visited
