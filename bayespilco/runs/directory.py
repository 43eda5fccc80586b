"""The directory of a run: created, added to after every episode, opened again, and read."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bayespilco import deployment
from bayespilco.algorithm import Record, find
from bayespilco.episode import Episode
from bayespilco.files import delete, reserved, unfinished, write
from bayespilco.policy import LinearPolicy, RBFPolicy
from bayespilco.runs.arrays import read_module, read_provenance, write_module
from bayespilco.runs.config import Config
from bayespilco.tasks import TASKS, Task
from bayespilco.training.direct import DirectFit
from bayespilco.training.evidence import EvidenceFit

CONFIG, METRICS, LOGGED = "config.toml", "metrics.jsonl", "logged.csv"
EVALUATION, SUMMARY = "evaluation.safetensors", "evaluation.json"
EPISODES, EVENTS = "episode-[0-9]*.safetensors", "tensorboard/events.out.tfevents.*"
POLICIES = {"rbf": RBFPolicy, "linear": LinearPolicy}
FITS = {"evidence": EvidenceFit, "direct": DirectFit}
PICTURES = ("costs.png", "learning.png", "states.png", "poses.png", "motion.gif")
RESULTS = (SUMMARY, EVALUATION, *PICTURES)
"""What is made of the last policy, when all episodes are learned. The summary comes last, and is deleted first."""
OWN_FILES = (METRICS, *RESULTS, EPISODES, EVENTS, LOGGED, CONFIG)
"""What a run's directory may contain: all that `force` ever deletes."""


class RunDirectory:
    """Where a run is written to, while one of its two context managers keeps other processes from writing there too."""

    def __init__(self, path: Path, config: Config, task: Task, records: tuple[Record, ...] = ()) -> None:
        """Use `create` or `open`."""
        self.path, self.config, self.task, self.records = path, config, task, records

    @classmethod
    @contextmanager
    def create(cls, path: Path | str, config: Config, task: Task, *, force: bool = False) -> Iterator["RunDirectory"]:
        """Start a run in a new or empty directory; with `force`, in place of an earlier run."""
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; give a directory.")
        found = path.is_dir() and set(path.iterdir()) - set(_of_a_false_start(path, task))
        if found and not force:
            hint = f", go on with it (`bayespilco resume {path}`)" if (path / CONFIG).exists() else ""
            raise ValueError(
                f"The directory {path} is not empty. Choose another{hint}, or replace the run in it with --force. "
                "(In Python: `resume`, and force=True.)"
            )
        if found and not (path / CONFIG).exists():
            raise ValueError(f"{path} is not empty and not a run of bayespilco: --force does not touch it.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"Cannot write to {path}: {error.strerror or error}.") from error
        with reserved(path):
            for pattern in OWN_FILES:  # the configuration last: until then it is a run, and can be forced again
                for file in (*path.glob(pattern), *unfinished(path, pattern)):
                    delete(file)
            if task.logged:
                write(path / LOGGED, deployment.log_text(task).encode())
            write(path / CONFIG, config.text().encode())
            yield cls(path, config, task)

    @classmethod
    @contextmanager
    def open(cls, path: Path | str, task: Task | None = None) -> Iterator["RunDirectory"]:
        """Open the directory of an interrupted run, to go on with it; `task` if it is not a built-in one."""
        path = Path(path)
        config, task = read_config(path, task)
        with reserved(path):
            directory = cls(path, config, task, read_records(path, config, task))
            for pattern in OWN_FILES:
                for file in unfinished(path, pattern):
                    delete(file)
            if directory.records and not directory.finished:
                directory._write_metrics()  # the line of the last episode may be missing
            yield directory

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: the summary is written last of all."""
        return len(self.records) >= self.config.settings.episodes and (self.path / SUMMARY).exists()

    @property
    def has_tensorboard(self) -> bool:
        return any(self.path.glob(EVENTS))

    def keep(self, records: Sequence[Record]) -> None:
        """Save what is new among the records of the run."""
        for number in range(len(self.records), len(records)):
            context = _context(self.path, number, self.config, self.task)
            write_module(self.path / record_name(number), records[number], context)
            self.records += (records[number],)
            self._write_metrics()

    def _write_metrics(self) -> None:
        lines = (json.dumps({"episode": n, **metrics(record)}) + "\n" for n, record in enumerate(self.records))
        write(self.path / METRICS, "".join(lines).encode())

    def keep_evaluation(self, executed: Episode) -> None:
        """Save executions of the final policy (`Run.evaluate`)."""
        write_module(self.path / EVALUATION, executed, {AFTER: _check_sum(self.path, len(self.records) - 1)})

    def conclude(self, executed: Episode) -> None:
        """Save what the executions came to. With that, when all else is there, the run is finished."""
        write(self.path / SUMMARY, (json.dumps(summary(executed), indent=2) + "\n").encode())

    def extend(self, episodes: int) -> None:
        """Ask for more episodes than at first."""
        if episodes < len(self.records):
            raise ValueError(f"The run in {self.path} has {len(self.records)} episodes already; given {episodes}.")
        settings = dataclasses.replace(self.config.settings, episodes=episodes)
        if settings == self.config.settings:
            return
        # First what was made of the last policy, which will not be the last: results are never those of another.
        for name in RESULTS:
            delete(self.path / name)
        self.config = dataclasses.replace(self.config, settings=settings)
        write(self.path / CONFIG, self.config.text().encode())


def _of_a_false_start(path: Path, task: Task) -> list[Path]:
    """What was left by a process that was killed before the configuration, and so the run, was there."""
    begun = [*unfinished(path, CONFIG), *unfinished(path, LOGGED)]
    same = task.logged and (path / LOGGED).exists() and (path / LOGGED).read_text() == deployment.log_text(task)
    return [*begun, path / LOGGED] if same and not (path / CONFIG).exists() else begun


def metrics(record: Record) -> dict[str, Any]:
    """The numbers of one episode that one would plot over episodes."""
    return {
        "executed_cost": record.executed_cost,
        "predicted_cost": record.predicted_cost,
        "training_objective": record.fit.objective,
        "sensor_std": np.sqrt(np.asarray(record.dynamics.sensor_noise)).tolist(),
        "process_std": np.sqrt(np.asarray(record.dynamics.process_noise)).tolist(),
        "evaluations": record.evaluations,
        "stopped": record.stopped,
        "training_stopped": record.fit.stopped,
    }


def summary(executed: Episode) -> dict[str, Any]:
    """What many executions of one policy cost."""
    if executed.costs is None:
        raise ValueError("These episodes have no costs: only simulated ones know them.")
    totals = np.asarray(executed.costs).sum(axis=1)
    return {
        "executions": len(totals),
        "executed_cost": float(totals.mean()),
        "standard_error": float(totals.std(ddof=1) / np.sqrt(len(totals))) if len(totals) > 1 else None,
        "quantiles": {str(q): float(np.quantile(totals, q)) for q in (0.05, 0.25, 0.5, 0.75, 0.95)},
        "last_cost": float(np.asarray(executed.costs)[:, -1].mean()),
    }


def read_config(path: Path, task: Task | None) -> tuple[Config, Task]:
    """The configuration in a run's directory, and the task that it names (`task` if it is not a built-in one)."""
    if not (path / CONFIG).exists():
        raise ValueError(f"{path} is not the directory of a run: it has no {CONFIG}.")
    config = Config.read(path / CONFIG)
    if task is None:
        if config.task not in TASKS:
            raise ValueError(
                f"The run in {path} is of the task {config.task!r}, which is not built in: in Python, give `task=`."
            )
        task = TASKS[config.task]()
    if task.name != config.task:
        raise ValueError(f"The run in {path} is of the task {config.task!r}; given {task.name!r}.")
    if (path / LOGGED).exists():
        task = deployment.with_logged(task, path / LOGGED)
    return config, task


def read_records(path: Path, config: Config, task: Task) -> tuple[Record, ...]:
    """All records in a run's directory."""
    known = left_to_the_task(task, config.settings.training)
    records: list[Record] = []
    while (file := path / record_name(len(records))).exists():
        records.append(read_module(file, Record, known))
        _check_context(file, _context(path, len(records) - 1, config, task))
    read = {record_name(number) for number in range(len(records))}
    if later := {file.name for file in path.glob(EPISODES)} - read:
        raise ValueError(f"{file} is missing, though {min(later)} is there. Delete the later ones to learn it again.")
    return tuple(records)


def left_to_the_task(task: Task, training: str) -> dict[str, Any]:
    """What a record's file leaves to the task and the configuration."""
    return {
        "fit": find(FITS, training, "training"),
        "fit/dynamics/features": task.dynamics_features,
        "fit/frame/features": task.dynamics_features,
        "policy": POLICIES[task.policy_kind],
        "policy/features": task.policy_features,
    }


AFTER = "after"
"""The entry of a context with the check sum of the file of the episode before."""


def _context(path: Path, number: int, config: Config, task: Task) -> dict[str, Any]:
    """What the record of an episode in this directory was made with, and what it goes on from.

    Of the task that is what the record's numbers mean, as two people who write the same task may round the rest of it
    differently. How many episodes there are to be is not part of it: a run may be given more.
    """
    settings = dataclasses.asdict(config.settings)
    del settings["episodes"]
    logged = hashlib.sha256(deployment.log_text(task).encode()).hexdigest() if task.logged else None
    made_with = {
        **settings,
        "states": [str(each) for each in task.states],
        "actions": [str(each) for each in task.actions],
        "angles": [int(each) for each in task.angles],
        "dt": float(task.dt),
        "steps": int(task.steps),
        "action_limits": np.asarray(task.action_limits).tolist(),
        "policy_kind": task.policy_kind,
        f"the check sum of {LOGGED}": logged,
    }
    return {**made_with, AFTER: _check_sum(path, number - 1)}


def _check_sum(path: Path, number: int) -> str | None:
    """Of an episode's file; None of the one before the first."""
    return read_provenance(path / record_name(number)).check_sum if number >= 0 else None


def _check_context(file: Path, expected: dict[str, Any]) -> None:
    """Refuse a file that is whole, but of another run."""
    found = read_provenance(file).context
    for name, value in expected.items():
        if found.get(name) == value:
            continue
        if name == AFTER:
            raise ValueError(
                f"{file} does not go on from the episodes before it: it, or one of those, is of another run. Put back "
                "what was there, or delete it and the later ones to learn them again."
            )
        raise ValueError(
            f"{file} is not of this run: it was made with {name} = {json.dumps(found.get(name))}, and here it is "
            f"{json.dumps(value)}. Put back what was changed ({CONFIG}, {LOGGED} or the task), or begin a new run."
        )


def load_evaluation(path: Path | str) -> Episode | None:
    """The executions of the final policy, if the run came that far."""
    file = Path(path) / EVALUATION
    if not file.exists():
        return None
    try:
        executed = read_module(file, Episode, {}, batched=True)
        wanted, count = Config.read(Path(path) / CONFIG).executions, executed.observations.shape[0]
        last = _check_sum(Path(path), len(list(Path(path).glob(EPISODES))) - 1)
        if count != wanted:
            raise ValueError(f"{file} has {count} executions, and {CONFIG} asks for {wanted}.")
        if read_provenance(file).context.get(AFTER) != last:
            raise ValueError(f"{file} is of another policy than that of the last episode.")
    except ValueError as error:
        raise ValueError(f"{error} Delete {file.name}, and resume the run to execute its policy again.") from error
    return executed


def record_name(number: int) -> str:
    return f"episode-{number:02d}.safetensors"
