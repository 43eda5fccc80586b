"""The directory of a run: created, added to after every episode, and loaded again."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from bayespilco.algorithm import METHODS, Record, Run, find
from bayespilco.episode import Episode
from bayespilco.policy import LinearPolicy, RBFPolicy
from bayespilco.runs.arrays import read_module, write_module
from bayespilco.runs.files import write
from bayespilco.tasks import TASKS, Task
from bayespilco.training.direct import DirectFit
from bayespilco.training.evidence import EvidenceFit
from bayespilco.version import VERSION

CONFIG, METRICS = "config.toml", "metrics.jsonl"
EVALUATION, SUMMARY = "evaluation.safetensors", "evaluation.json"
POLICIES = {"rbf": RBFPolicy, "linear": LinearPolicy}
FITS = {"evidence": EvidenceFit, "direct": DirectFit}
PICTURES = ("costs.png", "learning.png", "states.png")
OWN_FILES = (CONFIG, METRICS, EVALUATION, SUMMARY, "episode-[0-9]*.safetensors", *PICTURES)
"""What a run's directory may contain: all that `force` ever deletes."""


@dataclasses.dataclass(frozen=True)
class Config:
    """What was asked for: enough to run it again."""

    task: str
    method: str
    seed: int
    training: str
    episodes: int
    points: int
    evaluations: int
    version: str = VERSION

    def text(self) -> str:
        # A JSON string or integer is a TOML one too.
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in dataclasses.asdict(self).items())

    @classmethod
    def read(cls, path: Path) -> "Config":
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{path.parent} is not the directory of a run: it has no {path.name}.") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        if values.keys() != kinds.keys() or any(type(values[name]) is not kind for name, kind in kinds.items()):
            raise ValueError(f"{path} must have exactly the entries {', '.join(kinds)}; it has {values}.")
        return cls(**values)


class RunDirectory:
    """Where a run is written to. Every file is complete at any time, so an interrupted run can be loaded too."""

    def __init__(self, path: Path | str, config: Config, *, force: bool = False) -> None:
        """Start a run in a new or empty directory; with `force`, in place of an earlier run."""
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give a directory.")
        if self.path.is_dir() and any(self.path.iterdir()):
            if not force:
                raise ValueError(
                    f"The directory {self.path} is not empty. Choose another, or replace the run in it with --force."
                )
            self._remove_earlier_run()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write(self.path / CONFIG, config.text().encode())
        except OSError as error:
            raise ValueError(f"Cannot write to {self.path}: {error.strerror or error}.") from error
        self._lines: list[str] = []

    @property
    def episodes(self) -> int:
        """How many records have been added."""
        return len(self._lines)

    def add(self, record: Record) -> None:
        """Save what one episode taught: an `on_record` for `learn`."""
        number = len(self._lines)
        write_module(self.path / _record_name(number), record)
        self._lines.append(json.dumps({"episode": number, **metrics(record)}) + "\n")
        write(self.path / METRICS, "".join(self._lines).encode())

    def add_evaluation(self, executed: Episode) -> None:
        """Save executions of the final policy (`Run.evaluate`), and what they come to."""
        write_module(self.path / EVALUATION, executed)
        write(self.path / SUMMARY, (json.dumps(summary(executed), indent=2) + "\n").encode())

    def _remove_earlier_run(self) -> None:
        if not (self.path / CONFIG).exists():
            raise ValueError(f"{self.path} is not empty and not a run of bayespilco: --force does not touch it.")
        for pattern in OWN_FILES:
            for file in self.path.glob(pattern):
                file.unlink()


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


def load(path: Path | str, task: Task | None = None) -> Run:
    """Load a run, finished or not; all arrays are those that were learned, to the bit.

    Args:
        task: The task that was learned, if it is not a built-in one.
    """
    path = Path(path)
    config = Config.read(path / CONFIG)
    find(METHODS, config.method, "method")
    task = task if task is not None else find(TASKS, config.task, "task")()
    if task.name != config.task:
        raise ValueError(f"The run in {path} is of the task {config.task!r}; given {task.name!r}.")
    known = _not_in_the_file(task, config.training)
    records: list[Record] = []
    while (file := path / _record_name(len(records))).exists():
        records.append(read_module(file, Record, known))
    if not records:
        raise ValueError(f"The run in {path} has no finished episode: there is no {_record_name(0)}.")
    return Run(task, config.method, config.seed, config.training, tuple(records))


def _not_in_the_file(task: Task, training: str) -> dict[str, Any]:
    """What a record's file leaves to the task and the configuration."""
    return {
        "fit": find(FITS, training, "training"),
        "fit/dynamics/features": task.dynamics_features,
        "fit/frame/features": task.dynamics_features,
        "policy": POLICIES[task.policy_kind],
        "policy/features": task.policy_features,
    }


def load_evaluation(path: Path | str) -> Episode | None:
    """The executions of the final policy, if the run came that far."""
    file = Path(path) / EVALUATION
    return read_module(file, Episode, {}, batched=True) if file.exists() else None


def _record_name(number: int) -> str:
    return f"episode-{number:02d}.safetensors"
