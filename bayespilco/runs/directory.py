"""The directory of a run: created, added to after every episode, opened again, and read."""

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bayespilco.algorithm import TRAININGS, Record, model_structure
from bayespilco.control.policy import POLICIES, BeliefPolicy
from bayespilco.deploy import bridge as deployment
from bayespilco.deploy.files import delete, reserved, unfinished, write
from bayespilco.model.episode import Episode
from bayespilco.runs import arrays, plain
from bayespilco.runs.arrays import read_module, read_provenance, write_module
from bayespilco.runs.config import Config, is_our_config
from bayespilco.runs.own_tasks import FoundTask, Source
from bayespilco.runs.plain import MissingPlant, StoredTask
from bayespilco.settings import before
from bayespilco.tasks import TASKS, Task
from bayespilco.tasks.task import Kind
from bayespilco.trust.certificate import Certificate

CONFIG, TASK, METRICS, LOGGED = "config.toml", "task.json", "metrics.jsonl", "logged.csv"
CERTIFICATE = "certificate.json"
EVALUATION, SUMMARY, HOLDING = "evaluation.safetensors", "evaluation.json", "holding.json"
EPISODES, EVENTS = "episode-[0-9]*.safetensors", "tensorboard/events.out.tfevents.*"
PICTURES = ("costs.png", "learning.png", "states.png", "poses.png", "motion.gif")
REPORT, PLAYGROUND = "report.html", "playground.html"
RESULTS = (SUMMARY, EVALUATION, HOLDING, *PICTURES, REPORT, PLAYGROUND)
"""What is made of the last policy, when all episodes are learned. The summary comes last, and is deleted first."""
OWN_FILES = (METRICS, CERTIFICATE, *RESULTS, EPISODES, EVENTS, LOGGED, TASK, CONFIG)
"""What a run's directory may contain: all that `force` ever deletes."""


class RunDirectory:
    """Where a run is written to, while one of its two context managers keeps other processes from writing there too."""

    def __init__(self, path: Path, config: Config, found: FoundTask, records: tuple[Record, ...] = ()) -> None:
        """Use `create` or `open`."""
        self.path, self.config, self.task, self.source, self.records = path, config, found.task, found.source, records
        self._promises = read_promises(path) if records else {}

    @classmethod
    @contextmanager
    def create(
        cls, path: Path | str, config: Config, task: Task | FoundTask, *, force: bool = False
    ) -> Iterator["RunDirectory"]:
        """Start a run in a new or empty directory; with `force`, in place of an earlier run.

        If what is then done is refused (a ValueError) before an episode is saved, there is no run: nothing is left.
        """
        path = Path(path)
        found = task if isinstance(task, FoundTask) else FoundTask(task)
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; give a directory.")
        made = not path.exists()
        occupied = path.is_dir() and set(path.iterdir()) - set(_of_a_false_start(path, found.task))
        if occupied and not force:
            hint = f", go on with it (`bayespilco resume {path}`)" if is_run(path) else ""
            raise ValueError(
                f"The directory {path} is not empty. Choose another{hint}, or replace the run in it with --force. "
                "(In Python: `resume`, and force=True.)"
            )
        if occupied and not is_run(path):
            raise ValueError(f"{path} is not empty and not a run of bayespilco: --force does not touch it.")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"Cannot write to {path}: {error.strerror or error}.") from error
        with reserved(path):
            for file in _own_files(path):  # the configuration last: until then it is a run, and can be forced again
                delete(file)
            if found.task.logged:
                write(path / LOGGED, deployment.log_text(found.task).encode())
            source = found.source._asdict() if found.source else None
            write(path / TASK, plain.task_text(found.task, source).encode())
            write(path / CONFIG, config.text().encode())
            directory = cls(path, config, found)
            try:
                yield directory
            except ValueError:
                if not directory.records:
                    directory._withdraw(made)
                raise

    def _withdraw(self, made: bool) -> None:
        for name in (CONFIG, TASK, LOGGED):
            delete(self.path / name)
        if made and not any(self.path.iterdir()):
            self.path.rmdir()

    @classmethod
    @contextmanager
    def open(cls, path: Path | str, task: Task | FoundTask | None = None) -> Iterator["RunDirectory"]:
        """Open the directory of an interrupted run, to go on with it; `task` if it is not a built-in one."""
        path = Path(path)
        given = FoundTask(task) if isinstance(task, Task) else task
        config, known = read_config(path, given.task if given else None)
        if isinstance(known.plant, MissingPlant):
            raise _not_built_in(path, config.task)
        source = given.source if given else None
        _compare_source(path, source)
        with reserved(path):
            directory = cls(path, config, FoundTask(known, source), read_records(path, config, known))
            for pattern in OWN_FILES:
                for file in unfinished(path, pattern):
                    delete(file)
            if directory.records and not directory.finished:
                directory._write_metrics()  # the line of the last episode may be missing
            yield directory

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: the summary is written last of all."""
        return is_finished(self.path, len(self.records), self.config)

    @property
    def has_tensorboard(self) -> bool:
        return bool(own_events(self.path))

    @property
    def resume_command(self) -> str:
        """What goes on with this run after an interruption."""
        return f"bayespilco resume {self.path}" + (f" --task {self.source.file}" if self.source else "")

    def keep(self, records: Sequence[Record]) -> None:
        """Save what is new among the records of the run."""
        for number in range(len(self.records), len(records)):
            context = _context(self.path, number, self.config, self.task)
            write_module(self.path / record_name(number), records[number], context)
            self.records += (records[number],)
            self._write_metrics()

    def _write_metrics(self) -> None:
        lines = (
            json.dumps({"episode": n, **metrics(record), **self._promises.get(n, {})}) + "\n"
            for n, record in enumerate(self.records)
        )
        write(self.path / METRICS, "".join(lines).encode())

    def is_certified(self, count: int) -> bool:
        """Whether the metrics say what the policy learned from the first `count` episodes promised."""
        return "go" in self._promises.get(count - 1, {})

    def keep_certificate(self, certificate: Certificate, number: int) -> None:
        """Save the certificate of an episode's policy, and what came of the promise before that episode."""
        found: dict[str, Any] = {"go": certificate.go}
        if certificate.kept:
            promised = certificate.promises[-2].numbers()
            found = {"promised": promised, "kept": certificate.kept[-1].numbers(), **found}
        self._promises[number] = found
        self._write_metrics()
        write_certificate(self.path, certificate)

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


def is_run(path: Path) -> bool:
    """Whether a directory holds a run of ours, whatever its version. Other programs have a config.toml too."""
    return is_our_config(path / CONFIG)


def is_finished(path: Path, records: int | None = None, config: Config | None = None) -> bool:
    """Whether nothing is left to do for the run in a directory."""
    config = Config.read(path / CONFIG) if config is None else config
    count = len(list(path.glob(EPISODES))) if records is None else records
    return count >= config.settings.episodes and (path / SUMMARY).exists()


def own_events(path: Path) -> list[Path]:
    """TensorBoard's files in a directory. What a symbolic link leads to is not ours."""
    if (path / EVENTS).parent.is_symlink():
        return []
    return [file for file in path.glob(EVENTS) if _is_plain_file(file)]


def _own_files(path: Path) -> Iterator[Path]:
    """What the run in a directory wrote, in the order in which it may be deleted; nothing, where there is no run."""
    if is_run(path):
        records = [file for file in path.glob(EPISODES) if file.is_file() and arrays.is_ours(file)]
        derived = (
            (METRICS, CERTIFICATE, *RESULTS) if records else ()
        )  # without an episode there is nothing to make them of
        yield from (path / name for name in derived if _is_plain_file(path / name))
        yield from records
        yield from own_events(path)
    for pattern in OWN_FILES:
        yield from unfinished(path, pattern)
    if is_run(path):
        yield from (path / name for name in (LOGGED, TASK, CONFIG) if _is_plain_file(path / name))


def _is_plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _of_a_false_start(path: Path, task: Task) -> list[Path]:
    """What was left by a process that was killed before the configuration, and so the run, was there."""
    begun = [file for name in (CONFIG, TASK, LOGGED) for file in unfinished(path, name)]
    if (path / CONFIG).exists():
        return begun
    if task.logged and (path / LOGGED).exists() and (path / LOGGED).read_text() == deployment.log_text(task):
        begun.append(path / LOGGED)
    if plain.is_ours(path / TASK):
        begun.append(path / TASK)
    return begun


PROMISES = ("promised", "kept", "go")
"""What an episode's line of metrics has of certificates: the promise made before it, what came of it, and whether the
next trial is a GO."""


def read_promises(path: Path) -> dict[int, dict[str, Any]]:
    """Promised against kept, by episode, as far as a run's metrics say it."""
    found = {}
    try:
        for line in (path / METRICS).read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            found[int(entry["episode"])] = {name: entry[name] for name in PROMISES if name in entry}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}  # derived from the episodes: made again where it is needed
    return found


def write_certificate(path: Path, certificate: Certificate) -> Path:
    """Write a certificate into the directory of its run."""
    write(path / CERTIFICATE, (json.dumps(certificate.as_json(), indent=2) + "\n").encode())
    return path / CERTIFICATE


def read_certificate(path: Path) -> dict[str, Any]:
    """The certificate in the directory of a run."""
    try:
        found = json.loads((path / CERTIFICATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path / CERTIFICATE} cannot be read: {error}. Make it again: bayespilco check {path}."
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("go"), bool):
        raise ValueError(f"{path / CERTIFICATE} is not a certificate. Make it again: bayespilco check {path}.")
    return found


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
        "reached": float(np.asarray(executed.reached)[:, -1].mean()) if executed.reached is not None else None,
    }


def read_config(path: Path, task: Task | None) -> tuple[Config, Task]:
    """The configuration in a run's directory, and its task: the one given, or what the run keeps of it."""
    if not (path / CONFIG).exists():
        raise ValueError(f"{path} is not the directory of a run: it has no {CONFIG}.")
    config = Config.read(path / CONFIG)
    if task is None:
        stored = read_stored_task(path)
        if stored is not None and stored.task.name == config.task:
            task = stored.task
        elif config.task in TASKS:
            task = TASKS[config.task]()
        else:
            raise _not_built_in(path, config.task)
    if task.name != config.task:
        raise ValueError(f"The run in {path} is of the task {config.task!r}; given {task.name!r}.")
    if (path / LOGGED).exists():
        task = deployment.with_logged(task, path / LOGGED)
    return config, task


def _not_built_in(path: Path, name: str) -> ValueError:
    stored = read_stored_task(path)
    where = stored.source["file"] if stored is not None and stored.source else "file.py:task"
    return ValueError(
        f"The run in {path} is of the task {name!r}, which is not built in: give --task {where} (in Python, `task=`). "
        "A run keeps everything of a task but its code."
    )


def read_stored_task(path: Path) -> StoredTask | None:
    """What a run keeps of its task; None of a run of an earlier version."""
    file = path / TASK
    if not file.exists():
        return None
    try:
        return plain.read_task(file.read_text(encoding="utf-8"))
    except plain.LeftOut as error:
        raise ValueError(f"{file}: {error}.") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}. Give the task again: --task file.py:task.") from error


def _compare_source(path: Path, source: Source | None) -> None:
    """Say so if the file of a task has changed since the run was begun."""
    stored = read_stored_task(path) if source is not None else None
    if source is not None and stored is not None and stored.source and stored.source["sha256"] != source.sha256:
        warnings.warn(
            f"{source.file} has changed since the run in {path} was begun (its check sum is another). What was learned "
            "until now is of the earlier one.",
            stacklevel=4,
        )


def read_records(path: Path, config: Config, task: Task) -> tuple[Record, ...]:
    """All records in a run's directory."""
    settings = config.settings
    kind = model_structure(task, settings)
    known = left_to_the_task(task, settings.training, kind, settings.symmetry, settings.sees)
    records: list[Record] = []
    while (file := path / record_name(len(records))).exists():
        records.append(read_module(file, Record, known))
        _check_context(file, _context(path, len(records) - 1, config, task))
    read = {record_name(number) for number in range(len(records))}
    if later := {file.name for file in path.glob(EPISODES)} - read:
        raise ValueError(f"{file} is missing, though {min(later)} is there. Delete the later ones to learn it again.")
    return tuple(records)


def left_to_the_task(
    task: Task, training: str, kind: Kind = "free", symmetry: bool = False, sees: str = "mean"
) -> dict[str, Any]:
    """What a record's file leaves to the task and the configuration: what is static in its modules."""
    sensors = task.sensors_with(np.ones(len(task.sensed)))
    static = [field.name for field in dataclasses.fields(sensors) if field.metadata.get("static")]
    shared = {
        "features": task.features(kind),
        "structure": task.structure(kind, symmetry),
        **{f"sensors/{name}": getattr(sensors, name) for name in static},
    }
    of_mean = "policy" if sees == "mean" else "policy/of_mean"
    return {
        "fit": TRAININGS[training].result,
        **{f"fit/{part}/{name}": value for part in ("dynamics", "layout") for name, value in shared.items()},
        "policy": BeliefPolicy,
        of_mean: POLICIES[task.policy_kind].value,
        f"{of_mean}/features": task.policy_features,
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
    earlier = before()
    for name, value in expected.items():
        if found.get(name, earlier.get(name)) == value:
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
