"""Algorithm 1: execute, learn the dynamics, predict, improve, repeat; and the four methods as rows of a table.

`learn_episode` is what it repeats, and `bayespilco.runs.learn` repeats it.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np

from bayespilco import execution, prediction
from bayespilco.crew import ALONE, Crew
from bayespilco.dynamics import Dynamics
from bayespilco.episode import Episode, batch
from bayespilco.execution import Executor, Learned, RandomActions, execute
from bayespilco.improvement import Problem, search
from bayespilco.policy import Policy
from bayespilco.precision import float64
from bayespilco.prediction import Prediction, Predictor
from bayespilco.tasks import Task
from bayespilco.tasks.task import suggest
from bayespilco.training.direct import DirectFit, fit_direct
from bayespilco.training.evidence import EvidenceFit, fit_evidence


class Method(NamedTuple):
    """A way to predict and a way to execute: all that the four methods differ in."""

    name: str
    predictor: Predictor
    executor: Callable[[Policy, Dynamics], Learned]
    source: str


METHODS = {
    method.name: method
    for method in (
        Method("pilco", prediction.Unfiltered(), execution.unfiltered, "Deisenroth & Rasmussen 2011"),
        Method("dallaire", prediction.MostLikely(), execution.filtered, "Dallaire et al. 2009"),
        Method("deisenroth", prediction.Unfiltered(), execution.filtered, "Deisenroth & Peters 2012"),
        Method("bayes-filter", prediction.Filtered(), execution.filtered, "McAllister & Rasmussen 2016"),
    )
}

TRAINING: dict[str, Callable[..., Any]] = {"evidence": fit_evidence, "direct": fit_direct}
"""How the dynamics may be trained: our way, and the paper's."""
Fit = EvidenceFit | DirectFit
"""What training ends with: a model, and all that the next training starts from."""
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to learn: together with the task, all that the result depends on."""

    method: str = "bayes-filter"
    """One of `METHODS`."""
    episodes: int = 11
    """How many, the first included: one with random actions, or what was logged before. All are learned from."""
    seed: int = 0
    """Two runs with the same seed are the same."""
    training: str = "evidence"
    """"evidence" (ours) or "direct" (the paper's) training of the dynamics model."""
    points: int = 50
    """Inducing points of the dynamics model."""
    evaluations: int = 150
    """Budget of one policy search, in values and gradients."""
    in_parts: bool = True
    """Whether policy search ends with predictions in parts, once the model is good enough for it to matter."""

    def __post_init__(self) -> None:
        find(METHODS, self.method, "method")
        find(TRAINING, self.training, "training")
        for name in ("episodes", "points", "evaluations"):
            object.__setattr__(self, name, whole(getattr(self, name), name, 1))
        object.__setattr__(self, "seed", whole(self.seed, "seed", 0, LARGEST_SEED))


LARGEST_SEED = 2**63 - 1


def whole(value: Any, name: str, lowest: int, highest: int | None = None) -> int:
    """A whole number within bounds; anything else is refused by its name."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number; given {value!r}.") from None
    if number < lowest:
        raise ValueError(f"{name} must be at least {lowest}; given {number}.")
    if highest is not None and number > highest:
        raise ValueError(f"{name} must be at most {highest}; given {number}.")
    return number


EARLY = 5
"""Episodes in which policy search starts afresh too, and is content with one Gaussian. Later the valley is found, a
warm start is enough, and what remains is to get every first state right."""

HOPELESS = 2 / 3
"""The share of the highest possible cost above which it starts afresh later too. Going on from a policy that, say,
spins the pole for ever leads nowhere: new data are of spinning again, and the next policy spins better."""

IN_PARTS = 8
"""One in this many evaluations of a search's budget is what each way of predicting in parts gets. Such an evaluation
takes as long as sixteen others, and the next episode goes on from there."""

FRESH = 4
"""Random policies to start afresh from."""


class Progress(NamedTuple):
    """Where learning is: for a progress bar."""

    episode: int
    episodes: int
    stage: Literal["execute", "train", "improve"]
    fraction: float
    """How much of the stage is done."""
    cost: float | None
    """The best predicted cost so far, while improving."""


class Record(eqx.Module):
    """One round of Algorithm 1: what was executed, and what was then learned from all data so far."""

    episode: Episode
    fit: Fit
    policy: Policy
    prediction: Prediction
    """How the new policy will do, according to the new model."""
    evaluations: int
    stopped: str
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


@float64
def learn_episode(
    task: Task,
    settings: Settings,
    records: Sequence[Record] = (),
    on_progress: Callable[[Progress], object] | None = None,
    crew: Crew = ALONE,
) -> Record:
    """One round of Algorithm 1: what comes after `records`.

    It knows the earlier rounds by their records alone, and takes its chance from the seed and its own number. So a run
    can stop after any round, and go on from its records to the same result.
    """

    def report(stage: Literal["execute", "train", "improve"]) -> Callable[..., None]:
        def tell(fraction: float, cost: float | None = None) -> None:
            if on_progress is not None:
                on_progress(Progress(n, settings.episodes, stage, fraction, cost))

        tell(0.0)
        return tell

    n, last = len(records), records[-1] if records else None
    method, train = METHODS[settings.method], TRAINING[settings.training]
    chance, start = jax.random.split(jax.random.fold_in(jax.random.key(settings.seed), n))

    report("execute")
    *before, first = task.logged or (None,)
    if last is None and first is not None:
        episode = first
    else:
        executor: Executor = (
            RandomActions(task.action_limits) if last is None else method.executor(last.policy, last.dynamics)
        )
        episode = execute(task, executor, chance)  # line 4
    fit: Fit = train(  # line 5
        batch([*before, *(record.episode for record in records), episode]),
        task.dynamics_features,
        task.initial,
        points=settings.points,
        previous=None if last is None else last.fit,
        crew=crew,
        on_progress=report("train"),
    )
    problem = Problem(method.predictor, fit.dynamics, task.initial, task.cost, task.steps)
    stuck = last is not None and last.predicted_cost > HOPELESS * (task.steps + 1)
    fresh = [task.random_policy(key) for key in jax.random.split(start, FRESH)] if n < EARLY or stuck else []
    found = search(  # lines 6 to 8
        problem,
        [record.policy for record in records],
        fresh,
        evaluations=settings.evaluations,
        in_parts=max(settings.evaluations // IN_PARTS, 1) if settings.in_parts and n >= EARLY else 0,
        made_in_parts=[record.policy for record in records[EARLY:]],
        crew=crew,
        on_progress=report("improve"),
    )
    predicted = found.problem.prediction(found.policy)
    return Record(episode, fit, found.policy, predicted, found.evaluations, found.stopped)


def find(table: dict[str, T], name: str, what: str) -> T:
    """Look a name up, or say which ones there are."""
    if name not in table:
        raise suggest(name, list(table), what)
    return table[name]
