"""The playground of a study: its methods side by side, each with the policy that was optimised for it."""

import json
from pathlib import Path

import numpy as np

from bayespilco.algorithm import METHODS
from bayespilco.execution import Filtered
from bayespilco.experiments.comparison import PARTS, Study, read_model, read_outcome, read_run
from bayespilco.experiments.results import finished
from bayespilco.experiments.studies import STUDY
from bayespilco.report import playground
from bayespilco.report.playground import Choice


def is_study(directory: Path) -> bool:
    return (directory / STUDY).exists()


def of_study(directory: Path, seed: int | None = None) -> str:
    """The page of one data set of a study: the first that is finished, if none is asked for."""
    settings = json.loads((directory / STUDY).read_text())
    study = Study(**settings)
    seeds = finished(directory)
    if not seeds:
        raise ValueError(f"The study in {directory} has no finished data set yet: run `bayespilco reproduce` again.")
    if seed is not None and seed not in seeds:
        raise ValueError(f"The study in {directory} has the finished seeds {', '.join(map(str, seeds))}; given {seed}.")
    seed = min(seeds) if seed is None else seed
    where, task = seeds[seed], study.make_task()
    dynamics = read_model(study, where, "evidence").fit.dynamics
    chosen = {}
    for part in PARTS:
        policy = read_outcome(study, where, part).policy
        for method in part.methods:
            filters = isinstance(METHODS[method].executor(policy, dynamics), Filtered)
            chosen[method] = Choice(method, policy, dynamics, filters)
    choices = [chosen[method] for method in reversed(list(METHODS))]  # what this library is about comes first
    last = read_run(where).records[-1].episode
    seconds = study.episodes * task.steps * task.dt
    lead = f"Four methods, each with a policy learned from the same {seconds:.3g} s of noisy data (seed {seed})."
    return playground.make(task, choices, np.asarray(last.observations), f"{task.name}, live", lead)
