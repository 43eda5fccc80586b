"""The paper's experiment from nothing, over many seeds: a directory that ends with numbers, figures and a page.

study.json       what is compared (adding seeds later is fine; another study needs another directory)
task.json        the task, without its code
seed-00/ ...     the parts of each seed (see `comparison`)
results.json     all numbers, per seed and over seeds; written again whenever a seed is complete
curves.csv       cost per step of every seed and method
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bayespilco.deploy.files import write
from bayespilco.experiments import comparison, results, studies
from bayespilco.experiments.comparison import ABLATIONS, PARTS, Part, Study, find_study_task
from bayespilco.experiments.jobs import Job, Local, Place, Status, run
from bayespilco.experiments.page import write_page
from bayespilco.experiments.studies import RESULTS, rounded, seed_directory
from bayespilco.version import VERSION

CURVES = "curves.csv"


def seed_jobs(study: Study, seed: int, directory: Path, *, ablations: bool, workers: int = 1) -> list[Job]:
    """What has to be computed for a seed: the data, a model of them, then everything else in any order."""
    where = seed_directory(directory, seed)
    data = comparison.data_file(where)
    episodes = (where / "data", "episode-*.safetensors", study.episodes)
    collect = Job(f"seed {seed}: data", data, comparison.collect, (study, seed, where, workers), pieces=episodes)

    def train(training: str) -> Job:
        result = comparison.model_file(where, training)
        return Job(f"seed {seed}: {training} training", result, comparison.train, (study, training, where), (data,))

    def compare(part: Part) -> Job:
        needs = (data, comparison.model_file(where, part.training))
        result = comparison.part_file(where, part)
        return Job(f"seed {seed}: {part.name}", result, comparison.compare, (study, seed, part, where, workers), needs)

    # Of the parts that can run at the same time, the longest first.
    jobs = [collect, train("evidence"), *map(compare, reversed(PARTS))]
    return [*jobs, train("direct"), *map(compare, ABLATIONS)] if ablations else jobs


def reproduce(
    study: Study,
    directory: Path,
    seeds: Sequence[int],
    place: Place,
    *,
    ablations: int = 1,
    command: str = "",
    on_status: Callable[[Status], None] = lambda status: None,
    on_seed: Callable[[int, dict[str, Any]], None] = lambda seed, numbers: None,
) -> dict[str, str]:
    """Compute what is missing of a study, and write its results.

    Args:
        seeds: Which data sets.
        ablations: For how many of them, the first ones, the ablations too.
        command: What to call this in the results.
        on_seed: Called with the numbers of each seed when it is complete.

    Returns:
        Errors by job, if there were any; the results are of the seeds that are complete.
    """
    claim(study, directory)
    directory = directory.resolve()
    # With fewer data sets than cores, some would have nothing to do while data are collected, or the longest part ends.
    workers = max(1, place.size // len(seeds)) if isinstance(place, Local) else 1
    each = {
        seed: seed_jobs(study.anywhere(), seed, directory, ablations=n < ablations, workers=workers)
        for n, seed in enumerate(seeds)
    }
    seed_of = {job.name: seed for seed, jobs in each.items() for job in jobs}

    def one_more(job: Job) -> None:
        seed = seed_of[job.name]
        if comparison.is_complete(seed_directory(directory, seed)):
            found = write_results(study, directory, command)
            if all(job.finished for job in each[seed]):
                on_seed(seed, next(entry for entry in found["seeds"] if entry["seed"] == seed))

    jobs = [job for jobs in each.values() for job in jobs]
    failed = run(jobs, place, on_status=on_status, on_finished=one_more)
    if results.finished(directory):
        write_results(study, directory, command)
        write_page(directory)
    return failed


def claim(study: Study, directory: Path) -> None:
    """Make the directory this study's, or find that it is."""
    studies.claim(dataclasses.asdict(study), find_study_task(study.task), directory)


def write_results(study: Study, directory: Path, command: str = "") -> dict[str, Any]:
    """The numbers of all complete seeds, as `results.json` and `curves.csv`."""
    each = [_seed(study, seed, path, _parts_in(path)) for seed, path in results.finished(directory).items()]
    seeds = [numbers for numbers, _ in each]
    found = {
        "version": VERSION,
        "command": command,
        "study": dataclasses.asdict(study),
        "seeds": seeds,
        "summary": results.summarise(seeds),
    }
    lines = [results.CURVES_HEAD, *(line for _, lines in each for line in lines)]
    write(directory / RESULTS, (json.dumps(rounded(found), indent=1) + "\n").encode())
    write(directory / CURVES, ("\n".join(lines) + "\n").encode())
    return found


def _parts_in(directory: Path) -> tuple[str, ...]:
    return tuple(part.name for part in (*PARTS, *ABLATIONS) if comparison.part_file(directory, part).exists())


@functools.cache
def _seed(study: Study, seed: int, directory: Path, parts: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """Numbers and curves of a seed, read once for the parts that are there: results are written after every seed."""
    return results.seed_numbers(study, seed, directory), results.curve_lines(study, seed, directory)
