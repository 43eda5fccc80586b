"""A whole run of `learn`, and what can be asked of it."""

import importlib
import warnings
from pathlib import Path

import equinox as eqx
import jax

from bayespilco.algorithm import METHODS, Record, Settings
from bayespilco.control.policy import Policy
from bayespilco.control.prediction import Prediction
from bayespilco.core.checks import LARGEST_SEED, check_integer
from bayespilco.core.precision import float64
from bayespilco.deploy import bridge
from bayespilco.deploy.controller import Controller
from bayespilco.execution import execute_many
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode
from bayespilco.runs.config import Config
from bayespilco.runs.directory import RunDirectory, read_config, read_records, record_name
from bayespilco.runs.own_tasks import find_task
from bayespilco.runs.plain import NO_PLANT, MissingPlant
from bayespilco.settings import Thresholds
from bayespilco.tasks import Task
from bayespilco.tasks.checking import describe_failure
from bayespilco.trust.certificate import Certificate, certify


class Run(eqx.Module):
    """What was asked for, and a record of every episode. The last one has the policy that was learned."""

    task: Task
    settings: Settings = eqx.field(static=True)
    records: tuple[Record, ...]

    @property
    def method(self) -> str:
        return self.settings.method

    @property
    def policy(self) -> Policy:
        return self.records[-1].policy

    @property
    def dynamics(self) -> Dynamics:
        return self.records[-1].dynamics

    def prediction(self, episode: int = -1) -> Prediction:
        """How the policy learned from the episodes up to this one (from 0; by default all) was predicted to do."""
        return self.record(episode).prediction

    def record(self, episode: int = -1) -> Record:
        """What was learned from the episodes up to this one, counted from 0; by default all."""
        count = len(self.records)
        if not -count <= episode < count:
            raise ValueError(f"This run has episodes 0 to {count - 1}; given {episode}.")
        return self.records[episode]

    @property
    def controller(self) -> Controller:
        """What was learned, to be taken away: a new one, with the belief before its first observation."""
        return self.controller_after(len(self.records) - 1)

    def controller_after(self, episode: int) -> Controller:
        """The controller that was learned from the episodes up to this one, counted from 0."""
        record = self.record(episode)
        return bridge.controller(self.task, METHODS[self.method].executor(record.policy, record.dynamics), self.method)

    @float64
    def evaluate(self, executions: int = 100, seed: int = 1) -> Episode:
        """Execute the final policy many times on the simulated plant: an `Episode` with a leading axis."""
        check_integer(executions, "executions", 1)
        check_integer(seed, "seed", 0, LARGEST_SEED)
        if isinstance(self.task.plant, MissingPlant):
            raise ValueError(f"The final policy cannot be executed: {NO_PLANT}")
        executor = METHODS[self.method].executor(self.policy, self.dynamics)
        executed = execute_many(self.task, executor, jax.random.split(jax.random.key(seed), executions))
        if failure := describe_failure(self.task, executed):
            warnings.warn(f"{failure} Such steps count as the worst there are.", stacklevel=3)
        return executed

    def certificate(self, thresholds: Thresholds | None = None) -> Certificate:
        """What the final policy promises, before it is executed: bounds, bands, a test of the model, GO or NO GO.

        Args:
            thresholds: What is asked of it; by default `Thresholds()`.
        """
        return certify(self.task, self.settings, self.records, thresholds)

    def _repr_html_(self) -> str:
        """The report, where a notebook shows the run."""
        # `bayespilco.report` draws runs, and so comes after this module: it is asked for by name when it is needed.
        drawn: str = importlib.import_module("bayespilco.report.run_page").inline(self)
        return drawn

    @classmethod
    def load(cls, path: Path | str, task: Task | str | None = None) -> "Run":
        """Load a run, finished or not; all arrays are those that were learned, to the bit.

        Args:
            path: The run's directory.
            task: The task that was learned, if its plant is needed and not built in: a Task, or `file.py:name`.
        """
        path = Path(path)
        config, task = read_config(path, find_task(task).task if isinstance(task, str) else task)
        if other := config.other_version(path):
            warnings.warn(other, stacklevel=2)
        records = read_records(path, config, task)
        if not records:
            raise ValueError(f"The run in {path} has no finished episode: there is no {record_name(0)}.")
        return cls(task, config.settings, records)

    def save(self, path: Path | str, *, force: bool = False) -> None:
        """Save the run in a directory, as `learn(..., out=path)` does while it learns."""
        with RunDirectory.create(path, Config(self.task.name, self.settings), self.task, force=force) as directory:
            directory.keep(self.records)
