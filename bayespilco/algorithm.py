"""Algorithm 1: execute, learn the dynamics, predict, improve, repeat; and the four methods as rows of a table."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import jax
import numpy as np

from bayespilco import execution, prediction
from bayespilco.dynamics import Dynamics
from bayespilco.episode import Episode, Trials, batch
from bayespilco.execution import Executor, Learned, RandomActions, execute, execute_many
from bayespilco.improvement import Improvement, Problem, search
from bayespilco.policy import Policy
from bayespilco.precision import float64
from bayespilco.prediction import Prediction, Predictor, predict
from bayespilco.tasks import TASKS, Task
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

EARLY = 5
"""Episodes in which policy search also starts afresh: later the valley is found, and a warm start is enough."""

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


class Run(eqx.Module):
    """A whole run of `learn`, and what can be asked of it."""

    task: Task
    method: str = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    training: str = eqx.field(static=True)
    records: tuple[Record, ...]

    @property
    def policy(self) -> Policy:
        return self.records[-1].policy

    @property
    def dynamics(self) -> Dynamics:
        return self.records[-1].dynamics

    @property
    def prediction(self) -> Prediction:
        return self.records[-1].prediction

    @float64
    def evaluate(self, executions: int = 100, seed: int = 1) -> Episode:
        """Execute the final policy many times on the simulated plant: an `Episode` with a leading axis."""
        executor = METHODS[self.method].executor(self.policy, self.dynamics)
        return execute_many(self.task, executor, jax.random.split(jax.random.key(seed), executions))


@float64
def learn(
    task: Task | str,
    method: str = "bayes-filter",
    *,
    episodes: int = 11,
    seed: int = 0,
    training: str = "evidence",
    points: int = 50,
    evaluations: int = 150,
    on_progress: Callable[[Progress], None] | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> Run:
    """Learn to control a plant (Algorithm 1).

    Args:
        task: The plant and what is wanted of it; a `Task`, or the name of a built-in one.
        method: One of `METHODS`.
        episodes: How many, the first with random actions included. The result has learned from all of them.
        seed: Two runs with the same seed are the same.
        training: "evidence" (ours) or "direct" (the paper's) training of the dynamics model.
        points: Inducing points of the dynamics model.
        evaluations: Budget of one policy search, in values and gradients.
        on_progress: Called often, with where learning is.
        on_record: Called after each episode, with what was learned.
    """
    task = find(TASKS, task, "task")() if isinstance(task, str) else task
    chosen = find(METHODS, method, "method")
    fit = find(TRAINING, training, "training")
    for name, value in (("episodes", episodes), ("points", points), ("evaluations", evaluations)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1; given {value}.")

    def report(n: int, stage: Literal["execute", "train", "improve"]) -> Callable[..., None]:
        def tell(fraction: float, cost: float | None = None) -> None:
            if on_progress is not None:
                on_progress(Progress(n, episodes, stage, fraction, cost))

        tell(0.0)
        return tell

    train = _trainer(fit, task, points)
    executor: Executor = RandomActions(task.action_limits)
    data: list[Episode] = []
    records: list[Record] = []
    for n in range(episodes):
        chance, start = jax.random.split(jax.random.fold_in(jax.random.key(seed), n))
        report(n, "execute")
        data.append(execute(task, executor, chance))  # line 4
        fitted = train(batch(data), report(n, "train"))  # line 5
        problem = Problem(chosen.predictor, fitted.dynamics, task.initial, task.cost, task.steps)
        earlier = [record.policy for record in records]
        fresh = [task.random_policy(key) for key in jax.random.split(start, FRESH)] if n < EARLY else []
        found = search(problem, earlier, fresh, evaluations=evaluations, on_progress=report(n, "improve"))  # 6-8
        executor = chosen.executor(found.policy, fitted.dynamics)
        records.append(_record(data[-1], fitted, problem, found))
        if on_record is not None:
            on_record(records[-1])
    return Run(task, method, seed, training, tuple(records))


def _record(episode: Episode, fit: Fit, problem: Problem, found: Improvement) -> Record:
    predicted = eqx.filter_jit(predict)(
        problem.predictor, found.policy, problem.dynamics, problem.initial, problem.cost, problem.steps
    )
    return Record(episode, fit, found.policy, predicted, found.evaluations, found.stopped)


def _trainer(fit: Callable[..., Any], task: Task, points: int) -> Callable[[Trials, Callable[..., None]], Fit]:
    """Training as a function of the data alone; it remembers the last fit, to start the next one from."""
    previous: Fit | None = None

    def train(trials: Trials, on_progress: Callable[..., None]) -> Fit:
        nonlocal previous
        previous = fit(
            trials, task.dynamics_features, task.initial, points=points, previous=previous, on_progress=on_progress
        )
        return previous

    return train


def find(table: dict[str, T], name: str, what: str) -> T:
    """Look a name up, or say which ones there are."""
    if name not in table:
        raise suggest(name, list(table), what)
    return table[name]
