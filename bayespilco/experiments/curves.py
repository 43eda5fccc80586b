"""How many seconds of a plant's time until it works? Every method learns from its own data, seed by seed.

    study.json                  what is learned, and how (seeds, methods and episodes may be added later)
    task.json                   the task, without its code
    seed-00/bayes-filter/
      run/                      the run, as `bayespilco learn` makes it
      seconds.json              what each episode took
      after-00.json ...         the policy learned after each episode: executed, predicted, sampled
    results.json                all numbers, per seed and over seeds
    index.html, results.md      the page

A run starts from one random episode and collects its own data, as a user would run it. After each episode the new
policy is executed many times, and on plants drawn from the model: measurements that the learner does not see. They
have the same first states and sensor errors after every episode and in every method.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bayespilco import settings
from bayespilco.algorithm import METHODS, Record, model_structure, resolved
from bayespilco.control.cost import SaturatingCost
from bayespilco.core.checks import LARGEST_SEED, check_integer
from bayespilco.core.precision import float64
from bayespilco.deploy.files import write
from bayespilco.execution import execute_many, simulate_samples
from bayespilco.experiments import curve_results, results, studies
from bayespilco.experiments.comparison import Clock, find_study_task, study_key
from bayespilco.experiments.curve_page import write_page
from bayespilco.experiments.jobs import Job, Local, Place, Status, run
from bayespilco.experiments.results import HOLD, Numbers
from bayespilco.experiments.studies import RESULTS, rounded, seed_directory
from bayespilco.model.episode import Episode
from bayespilco.model.posterior_samples import draw_many
from bayespilco.runs import Run, learn, resume
from bayespilco.runs.directory import CONFIG, EPISODES, metrics
from bayespilco.runs.own_tasks import FoundTask, absolute
from bayespilco.settings import EXECUTIONS, LARGEST_COUNT, Settings
from bayespilco.tasks import Task
from bayespilco.tasks.task import RealPlant
from bayespilco.version import VERSION

SAMPLES = 100
"""Plants drawn from the model after each episode."""
LOOK = 20.0
"""Seconds between looks for new episodes, to write the results again while runs go on."""
_VARIED = ("method", "seed", "episodes")
"""Settings that are not the study's: each run has its own, and more of them may be asked for."""


@dataclasses.dataclass(frozen=True)
class CurveStudy:
    """What is learned, and how: all that the curve of a method and a seed depends on."""

    task: str = "cart-pole"
    """A built-in task, or `file.py:name`."""
    sensors: tuple[str, ...] | None = None
    """Only these sensors of the task; None: all."""
    delay: int | None = None
    """How many steps late the plant feels an action; None: the task's."""
    dropout: float | None = None
    """The probability that a sample is lost; None: the task's."""
    noise: float = 1.0
    """How many times the task's sensor noise."""
    settings: Settings = dataclasses.field(default_factory=Settings)
    """How to learn. Method, seed and episodes are those of each run."""
    executions: int = EXECUTIONS
    samples: int = SAMPLES

    def __post_init__(self) -> None:
        for name in ("executions", "samples"):
            check_integer(getattr(self, name), name, 1, LARGEST_COUNT)
        usual = {name: getattr(Settings(), name) for name in _VARIED}
        object.__setattr__(self, "settings", dataclasses.replace(self.settings, **usual))
        object.__setattr__(self, "sensors", None if self.sensors is None else tuple(self.sensors))
        object.__setattr__(self, "noise", float(self.noise))
        if isinstance(self.find().task.plant, RealPlant):
            raise ValueError(
                f"The task {self.task!r} has a real plant. A study of learning curves executes each policy "
                f"{self.executions} times after every episode, which takes a simulated one."
            )
        object.__setattr__(self, "settings", resolved(self.find().task, self.settings))

    def find(self) -> FoundTask:
        """The task with the sensors, delays and noise asked for."""
        return _varied_task(self.task, self.sensors, self.delay, self.dropout, self.noise)

    def entries(self) -> dict[str, Any]:
        """The study as plain data, without what may be added later."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "settings"}
        return own | _kept(self.settings)

    def anywhere(self) -> "CurveStudy":
        """The same study for a process that may start in another directory."""
        return dataclasses.replace(self, task=absolute(self.task))


def _kept(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in _VARIED}


@functools.cache
@float64
def _varied_task(
    name: str, sensors: tuple[str, ...] | None, delay: int | None, dropout: float | None, noise: float
) -> FoundTask:
    """Found once per process, so that code compiled for it is found again."""
    found = find_study_task(name)
    return found._replace(task=found.task.varied(sensors, delay, dropout, noise))


def claim(study: CurveStudy, directory: Path, methods: Sequence[str] = (Settings.method,)) -> None:
    """Make the directory this study's, or find that it is. What cannot be learned is refused first."""
    for method in methods:
        model_structure(study.find().task, dataclasses.replace(study.settings, method=method))
    studies.claim(study.entries(), study.find(), directory, settings.before())


def learning_curves(
    study: CurveStudy,
    directory: Path,
    seeds: Sequence[int],
    *,
    methods: Sequence[str] = (Settings.method,),
    episodes: int = 15,
    thresholds: Sequence[float] | None = None,
    place: Place | None = None,
    command: str = "",
    on_status: Callable[[Status], None] = lambda status: None,
    on_curve: Callable[[Numbers], None] = lambda curve: None,
) -> dict[str, str]:
    """Compute what is missing of a study, and write its results.

    Args:
        seeds: Which seeds of `learn`.
        methods: Which methods.
        episodes: How many in each run, the first with random actions. Runs that have fewer go on.
        thresholds: Costs to be below; None for those of the task (`curve_results.usual_thresholds`).
        place: Where to compute; by default a process per core.
        command: What to call this in the results.
        on_curve: Called with the numbers of each run when it is complete.

    Returns:
        Errors by job, if there were any; the results are of what there is.
    """
    check_integer(episodes, "episodes", 1, LARGEST_COUNT)
    for seed in seeds:
        check_integer(seed, "seed", 0, LARGEST_SEED)
    if not seeds or not methods:
        raise ValueError("A study needs at least one seed and one method.")
    claim(study, directory, methods)
    directory, place = directory.resolve(), place or Local()
    jobs = curve_jobs(study.anywhere(), directory, seeds, methods, episodes)
    missing = sum(not job.finished for job in jobs)
    if missing and isinstance(place, Local) and place.size > missing:  # cores that would have nothing to do
        jobs = curve_jobs(study.anywhere(), directory, seeds, methods, episodes, place.size // missing)
    of_job = {job.name: job.arguments[1:3] for job in jobs}
    looked, seen = time.monotonic(), _evaluated(directory)

    def look(status: Status) -> None:
        nonlocal looked, seen
        on_status(status)
        if time.monotonic() - looked > LOOK:
            looked, now = time.monotonic(), _evaluated(directory)
            if now != seen:
                seen = now
                write_results(study, directory, episodes, thresholds, command)

    def one_more(job: Job) -> None:
        found = write_results(study, directory, episodes, thresholds, command)
        write_page(directory)
        seed, method = of_job[job.name]
        on_curve(next(curve for curve in found["curves"] if (curve["seed"], curve["method"]) == (seed, method)))

    failed = run(jobs, place, on_status=look, on_finished=one_more)
    if _evaluated(directory):
        write_results(study, directory, episodes, thresholds, command)
        write_page(directory)
    return failed


def curve_jobs(
    study: CurveStudy,
    directory: Path,
    seeds: Sequence[int],
    methods: Sequence[str],
    episodes: int,
    workers: int = 1,
) -> list[Job]:
    """A job for each seed and method; it is finished when the policy of the last episode was evaluated."""
    jobs = []
    for seed in seeds:
        for method in methods:
            where = seed_directory(directory, seed) / method
            jobs.append(
                Job(
                    f"seed {seed}: {method}",
                    evaluation_file(where, episodes - 1),
                    learn_curve,
                    (study, seed, method, episodes, where, workers),
                    pieces=(where, "after-*.json", episodes),
                )
            )
    return jobs


def learn_curve(study: CurveStudy, seed: int, method: str, episodes: int, directory: Path, workers: int = 1) -> None:
    """Learn with one method and seed, and evaluate the policy after every episode; goes on where it was."""
    directory.mkdir(parents=True, exist_ok=True)
    path, found, clock = directory / "run", study.find(), Clock()
    known = len(list(path.glob(EPISODES)))

    def after(run: Run) -> None:
        nonlocal known, clock
        taken = clock.taken()
        if len(run.records) > known:
            known = len(run.records)
            # What helpers compute is not counted as CPU time of this process before they end.
            cpu = {"cpu_s": taken.cpu_s} if workers == 1 else {"cpu_s": None}
            _add_seconds(directory, known - 1, {"wall_s": taken.wall_s, **cpu})
        for episode, record in enumerate(run.records):
            if not evaluation_file(directory, episode).exists():
                numbers = evaluate_record(study, found.task, record, method, seed)
                numbers = {"episode": episode, "seconds": _interaction(found.task, run, episode), **numbers}
                write(evaluation_file(directory, episode), (json.dumps(rounded(numbers)) + "\n").encode())
        clock = Clock()

    if (path / CONFIG).exists():
        resume(path, found, episodes=max(episodes, known), callbacks=[after], workers=workers)
    else:
        given = _kept(study.settings)
        learn(found, method, out=path, seed=seed, episodes=episodes, callbacks=[after], workers=workers, **given)


def _interaction(task: Task, run: Run, episode: int) -> float:
    """Seconds of the plant's time that the policy after an episode was learned from."""
    logged = sum(each.steps for each in task.logged[:-1])
    return task.dt * (logged + sum(record.episode.steps for record in run.records[: episode + 1]))


def _add_seconds(directory: Path, episode: int, taken: dict[str, float | None]) -> None:
    write(seconds_file(directory), json.dumps(read_seconds(directory) | {str(episode): rounded(taken)}).encode())


@float64
def evaluate_record(study: CurveStudy, task: Task, record: Record, method: str, seed: int) -> Numbers:
    """How the policy of a record does: on the plant, as predicted by moments, and on plants drawn from the model."""
    executor = METHODS[method].executor(record.policy, record.dynamics)
    executions, samples, plants = (
        jax.random.split(study_key(seed, purpose), count)
        for purpose, count in (("execute", study.executions), ("rehearse", study.samples), ("draw", study.samples))
    )
    executed = execute_many(task, executor, executions)
    sampled = simulate_samples(task, executor, draw_many(record.fit, plants), samples)
    kept = metrics(record)
    return {
        "episode_cost": kept.pop("executed_cost"),
        "predicted": kept.pop("predicted_cost"),
        "executed_totals": np.asarray(executed.costs).sum(axis=1).tolist(),
        "sampled_totals": np.asarray(sampled.costs).sum(axis=1).tolist(),
        "success": success(task, executed),
        "sampled_success": success(task, sampled),
        "reached": float(np.mean(np.asarray(executed.reached)[:, -1])),
        "noise": {"learned": kept.pop("sensor_std"), "true": np.asarray(task.sensor_std).tolist()},
        **kept,
    }


def success(task: Task, executed: Episode) -> float:
    """The share of runs that are at the goal and stay there for the last half second.

    As `reproduce` measures it, within one width of the paper's cost; for other costs by their own measure.
    """
    if isinstance(task.cost, SaturatingCost):
        return results.success(task, np.asarray(executed.costs))
    last = int(np.floor(HOLD / task.dt + 1e-9)) + 1
    return float(np.mean(np.asarray(executed.reached)[:, -last:].all(axis=1)))


def evaluation_file(directory: Path, episode: int) -> Path:
    return directory / f"after-{episode:02d}.json"


def seconds_file(directory: Path) -> Path:
    return directory / "seconds.json"


def read_seconds(directory: Path) -> dict[str, Any]:
    """What each episode took, by its number; those that are missing were interrupted just when they were finished."""
    file = seconds_file(directory)
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def _evaluated(directory: Path) -> int:
    return sum(1 for _ in directory.glob("seed-*/*/after-*.json"))


def read_curves(directory: Path) -> list[Numbers]:
    """What was measured after each episode, for every seed and method that has any."""
    curves, order = [], list(METHODS)
    found = [path for path in directory.glob("seed-[0-9]*/*") if path.name in order]
    for where in sorted(found, key=lambda path: (_seed(path), order.index(path.name))):
        files, taken = sorted(where.glob("after-[0-9]*.json"), key=_episode), read_seconds(where)
        entries = [json.loads(file.read_text()) | {"taken": taken.get(str(_episode(file)))} for file in files]
        if entries:
            curves.append({"seed": _seed(where), "method": where.name, "episodes": entries})
    return curves


def _seed(path: Path) -> int:
    return int(path.parent.name.removeprefix("seed-"))


def _episode(file: Path) -> int:
    return int(file.stem.removeprefix("after-"))


def write_results(
    study: CurveStudy,
    directory: Path,
    episodes: int,
    thresholds: Sequence[float] | None = None,
    command: str = "",
) -> Numbers:
    """The numbers of all seeds and methods in the directory, as `results.json`."""
    measured, task = read_curves(directory), study.find().task
    chosen = list(thresholds) if thresholds is not None else curve_results.usual_thresholds(task, measured)
    curves = [curve_results.curve_numbers(curve, chosen, episodes) for curve in measured]
    found = {
        "version": VERSION,
        "command": command,
        "study": study.entries(),
        "episodes": episodes,
        "thresholds": chosen,
        "curves": curves,
        "summary": curve_results.summarise(curves, chosen),
    }
    write(directory / RESULTS, (json.dumps(rounded(found), indent=1) + "\n").encode())
    return found
