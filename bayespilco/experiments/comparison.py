"""The paper's comparison on one data set, in parts that are each computed once and kept as a file.

    seed-00/
      data/                       a run of `learn` with PILCO: the common data
      evidence.safetensors        the dynamics model, trained on all of it
      unfiltered.safetensors      a policy re-optimised on that model, its prediction, and what its executions cost
      most-likely.safetensors
      filtered.safetensors
      literal.safetensors ...     ablations, where they are asked for; direct.safetensors is their model

Methods that predict alike share their policy: what was optimised once (`Part`) is executed in several ways. Every
part starts from the same policies, meets the same first states and the same sensor errors, and depends on nothing
but the study and the seed, so parts may be computed in any order, anywhere.
"""

import dataclasses
import functools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from bayespilco.algorithm import METHODS, RANDOM_STARTS, TRAININGS, Fit
from bayespilco.control import prediction
from bayespilco.control.policy import POLICIES, Policy
from bayespilco.control.prediction import Prediction, Predictor
from bayespilco.control.problem import Problem
from bayespilco.control.search import search
from bayespilco.core.checks import check_integer
from bayespilco.core.optimise import Reason
from bayespilco.core.precision import as_float64, float64
from bayespilco.deploy.files import write
from bayespilco.execution import execute_many, rehearse
from bayespilco.model.episode import batch
from bayespilco.model.posterior_samples import draw_many
from bayespilco.runs import Run, learn, resume
from bayespilco.runs.arrays import read_module, write_module
from bayespilco.runs.directory import left_to_the_task
from bayespilco.runs.own_tasks import FoundTask, absolute, find_task
from bayespilco.runs.workers import WorkerPool
from bayespilco.settings import LARGEST_COUNT
from bayespilco.tasks import Task
from bayespilco.tasks.task import Kind
from bayespilco.training.evidence import EvidenceFit

STRUCTURE: Kind = "free"
"""The paper's: every state is learned."""
SELECTION = "prediction"
"""The paper's: the policy with the lowest predicted cost is executed."""
COLLECTOR = "pilco"
"""The method that collects the common data, as in the paper (and from one Gaussian, as there)."""


@dataclasses.dataclass(frozen=True)
class Study:
    """What is compared, and with which budgets. The defaults are the paper's experiment."""

    task: str = "cart-pole"
    """A built-in task, or `file.py:name`."""
    episodes: int = 11
    """Of the common data, the first with random actions."""
    points: int = 100
    """Inducing points of the dynamics model. With 50, what they leave open of the function is most of its variance."""
    collecting: int = 150
    """Evaluations of each policy search while the data are collected."""
    collecting_points: int = 50
    """Inducing points of the models that the data are collected with."""
    evaluations: int = 150
    """Evaluations of each policy search of the comparison."""
    in_parts: int = 40
    """Then, in each way of predicting in parts. More than `learn` takes: here no later episode goes on from there."""
    executions: int = 100
    samples: int = 200
    """Drawn plants for the sampled prediction."""
    direct: int = 200
    """Evaluations of the Direct training (an ablation)."""

    def __post_init__(self) -> None:
        find_study_task(self.task)
        for name, value in dataclasses.asdict(self).items():
            if name != "task":
                check_integer(value, name, 3 if name == "direct" else 1, LARGEST_COUNT)

    def make_task(self) -> Task:
        return find_study_task(self.task).task

    def anywhere(self) -> "Study":
        """The same study for a process that may start in another directory."""
        return dataclasses.replace(self, task=absolute(self.task))


@functools.cache
def find_study_task(name: str) -> FoundTask:
    """The task of a study, found once per process."""
    return find_task(name)


class Part(NamedTuple):
    """One policy, optimised with one predictor on one model, and the methods it is executed with."""

    name: str
    predictor: Predictor
    methods: tuple[str, ...]
    training: str = "evidence"
    in_parts: bool = True
    """Whether the search ends with predictions in parts."""


def _sharing(predictor: Predictor) -> tuple[str, ...]:
    return tuple(name for name, method in METHODS.items() if method.predictor == predictor)


_PREDICTORS = {
    "unfiltered": prediction.Unfiltered(),
    "most-likely": prediction.MostLikely(),
    "filtered": prediction.Filtered(),
}
PARTS = tuple(Part(name, predictor, _sharing(predictor)) for name, predictor in _PREDICTORS.items())
"""The comparison: every method is in exactly one part."""

ABLATIONS = (
    Part("whole", prediction.Filtered(), ("bayes-filter",), in_parts=False),
    Part("literal", prediction.Filtered(update="literal"), ("bayes-filter",)),
    *(Part(f"direct-{part.name}", part.predictor, part.methods, "direct") for part in PARTS),
)
"""What of ours makes the difference: one Gaussian to start from, the paper's update as printed, and its training."""


class Taken(eqx.Module):
    """When a computation began (seconds since 1970), and what it took."""

    began: float
    wall_s: float
    cpu_s: float


class Clock:
    """Started when made. CPU seconds are those of this process, and of its helpers that have ended."""

    def __init__(self) -> None:
        self.began, self._wall, self._cpu = time.time(), time.monotonic(), self._cpu_seconds()

    def taken(self) -> Taken:
        return Taken(self.began, time.monotonic() - self._wall, self._cpu_seconds() - self._cpu)

    @staticmethod
    def _cpu_seconds() -> float:
        return sum(os.times()[:4])


class Outcome(eqx.Module):
    """What one part came to; the first axis of the costs is that of the part's methods."""

    policy: Policy
    predicted: Prediction
    executed: Float[Array, "methods executions times"] = eqx.field(converter=as_float64)
    """Costs of the latent state on the plant."""
    sampled: Float[Array, "methods samples times"] = eqx.field(converter=as_float64)
    """The same on plants drawn from the model, with its sensors."""
    evaluations: int
    stopped: Reason = eqx.field(converter=Reason)
    taken: Taken


class Model(eqx.Module):
    """A dynamics model of the common data."""

    fit: Fit
    taken: Taken


def collect(study: Study, seed: int, directory: Path, workers: int = 1) -> None:
    """The common data of a seed, episode by episode; an interrupted collection goes on where it was."""
    clock, marker, spent = Clock(), data_file(directory), directory / "data-seconds.json"
    directory.mkdir(parents=True, exist_ok=True)
    earlier: list[dict[str, float]] = json.loads(spent.read_text()) if spent.exists() else []

    def note(_: Run | None = None) -> None:
        write(spent, json.dumps([*earlier, dataclasses.asdict(clock.taken())]).encode())

    data = directory / "data"
    if (data / "config.toml").exists():
        resume(data, find_study_task(study.task), callbacks=[note], workers=workers)
    else:
        learn(
            find_study_task(study.task),
            COLLECTOR,
            episodes=study.episodes,
            seed=seed,
            points=study.collecting_points,
            evaluations=study.collecting,
            in_parts=False,
            selection=SELECTION,
            structure=STRUCTURE,
            symmetry=False,  # the paper knows of none
            out=data,
            callbacks=[note],
            workers=workers,
        )
    note()  # helpers have ended only now
    write(marker, spent.read_bytes())


def train(study: Study, training: str, directory: Path) -> None:
    """One model of all the data: by the evidence, from where the collection's last model is, or the paper's way."""
    clock, task, run = Clock(), study.make_task(), Run.load(directory / "data")
    data = batch([record.episode for record in run.records]), task.features(STRUCTURE), task.start
    declared = {"structure": task.structure(STRUCTURE), "sensors": task.sensors_with(np.ones(len(task.sensed)))}
    last = run.records[-1].fit
    assert isinstance(last, EvidenceFit), "the data are collected so"
    special: dict[str, dict[str, int | EvidenceFit]] = {
        "direct": {"evaluations": study.direct},
        "evidence": {"previous": last},
    }
    fit: Fit = TRAININGS[training].fit(*data, **declared, points=study.points, **special[training])
    write_module(model_file(directory, training), Model(fit, clock.taken()))


@float64
def compare(study: Study, seed: int, part: Part, directory: Path, workers: int = 1) -> None:
    """Optimise a part's policy on the model of the common data, predict it, execute it, and rehearse it."""
    clock, task, run = Clock(), study.make_task(), Run.load(directory / "data")
    fit = read_model(study, directory, part.training).fit
    dynamics = fit.dynamics
    problem = Problem(part.predictor, dynamics, task.start, task.cost, task.steps)
    earlier = [record.policy for record in run.records]
    fresh = fresh_policies(task, seed)
    in_parts = study.in_parts if part.in_parts else 0
    with WorkerPool(workers) as pool:
        found = search(problem, earlier, fresh, evaluations=study.evaluations, split_evaluations=in_parts, workers=pool)
    predicted = found.problem.prediction(found.policy)
    executions, samples, plants = (
        jax.random.split(study_key(seed, purpose), count)
        for purpose, count in (("execute", study.executions), ("rehearse", study.samples), ("draw", study.samples))
    )
    drawn = draw_many(fit, plants)
    executors = [METHODS[method].executor(found.policy, dynamics) for method in part.methods]
    executed = np.stack([np.asarray(execute_many(task, executor, executions).costs) for executor in executors])
    sampled = np.stack([np.asarray(rehearse(task, executor, drawn, samples).costs) for executor in executors])
    costs = as_float64(executed), as_float64(sampled)
    outcome = Outcome(found.policy, predicted, *costs, found.evaluations, found.stopped, clock.taken())
    write_module(part_file(directory, part), outcome)


def fresh_policies(task: Task, seed: int) -> list[Policy]:
    """The random policies that all methods start from beside those of the data's collection."""
    return [task.random_policy(key) for key in jax.random.split(study_key(seed, "start"), RANDOM_STARTS)]


_PURPOSES = ("start", "execute", "draw", "rehearse")


def study_key(seed: int, purpose: str) -> Array:
    """Chance of its own for each purpose, and none that the collection used (`learn` folds in its episodes)."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2**20), _PURPOSES.index(purpose))


def data_file(directory: Path) -> Path:
    """Written when the data are complete: what collecting them took."""
    return directory / "data.json"


def model_file(directory: Path, training: str) -> Path:
    return directory / f"{training}.safetensors"


def part_file(directory: Path, part: Part) -> Path:
    return directory / f"{part.name}.safetensors"


def read_run(directory: Path) -> Run:
    return Run.load(directory / "data")


def read_taken(directory: Path) -> list[Taken]:
    """What the collection took, an entry for each time it was begun."""
    return [Taken(**entry) for entry in json.loads(data_file(directory).read_text())]


def read_model(study: Study, directory: Path, training: str) -> Model:
    return read_module(model_file(directory, training), Model, left_to_the_task(study.make_task(), training))


def read_outcome(study: Study, directory: Path, part: Part) -> Outcome:
    task = study.make_task()
    known = {"policy": POLICIES[task.policy_kind].value, "policy/features": task.policy_features}
    return read_module(part_file(directory, part), Outcome, known)


def is_complete(directory: Path, parts: Sequence[Part] = PARTS) -> bool:
    return data_file(directory).exists() and all(part_file(directory, part).exists() for part in parts)
