"""A page in which a learned controller runs live on its simulated plant, to be pushed, blinded and disturbed.

The controllers are embedded as the files that `export` writes, and the page's script runs them. It compares itself with
the Python controller on a recorded episode, whose actions are embedded as well. A built-in plant follows its equation
of motion. In the place of any other plant the page uses the learned model.
"""

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bayespilco.algorithm import METHODS
from bayespilco.control.policy import Policy
from bayespilco.core.precision import float64
from bayespilco.deploy import bridge
from bayespilco.deploy.controller import Controller
from bayespilco.execution import Filtered, filtered, unfiltered
from bayespilco.model.dynamics import Dynamics
from bayespilco.report.page import assemble
from bayespilco.runs import Run
from bayespilco.tasks import TASKS, Task
from bayespilco.version import VERSION

SCRIPTS = ("linalg.js", "controller.js", "plants.js", "canvas.js", "playground.js")
STYLES = ("style.css", "playground.css")
COMPARED = 60
"""Steps of the recorded episode that the page compares itself with Python on."""


class Choice(NamedTuple):
    """A policy that the page can run, as a method executes it."""

    label: str
    policy: Policy
    dynamics: Dynamics
    filters: bool
    """Whether the method executes with the filter. On the page that can be changed."""


def of_run(run: Run, episode: int = -1) -> str:
    """The playground of a run: the controller learned from the episodes up to this one, by default all."""
    record = run.record(episode)
    learned = run.records[: episode % len(run.records) + 1]
    filters = isinstance(METHODS[run.method].executor(record.policy, record.dynamics), Filtered)
    seconds = sum(each.episode.steps for each in learned) * run.task.dt
    lead = f"A controller that was learned from {seconds:.3g} s of noisy data with the method {run.method}."
    choice = Choice(run.method, record.policy, record.dynamics, filters)
    return make(run.task, [choice], np.asarray(record.episode.observations), f"{run.task.name}, live", lead)


@float64
def make(task: Task, choices: Sequence[Choice], observations: np.ndarray, title: str, lead: str) -> str:
    """The page.

    Args:
        choices: The policies to choose from, all for the same task.
        observations: Recorded ones, on which the page compares itself with Python.
    """
    content = setup(task, choices[0].dynamics)
    content["choices"] = [_embedded(task, choice, observations[:COMPARED]) for choice in choices]
    foot = f"Made with bayespilco {VERSION}. One file: it runs without a network."
    return assemble("playground.html", styles=STYLES, scripts=SCRIPTS, data=content, title=title, lead=lead, foot=foot)


def equation_of(task: Task) -> str | None:
    """The built-in plant that this task has, whatever its sensors; None if the page does not know it."""
    return next((name for name, make in TASKS.items() if make().plant is task.plant), None)


def setup(task: Task, dynamics: Dynamics) -> dict[str, Any]:
    """What the page knows of the task, beside the controllers."""
    n = len(task.states)
    unit = task.sensors_with(np.ones(len(task.sensed)))
    structure = task.structure()
    C = unit.C[:, :n]
    estimate, told = np.linalg.pinv(C), _told(C)
    drift, std = structure.drift, task.sensor_std
    noise = np.sqrt(np.asarray(dynamics.sensor_noise)) if std is None else np.asarray(std)
    hidden = ", ".join(state.name for state in task.hidden)
    angles = [i for i in task.angles if told[i]]
    return {
        "task": task.name,
        "equation": equation_of(task),
        "dt": task.dt,
        "steps": task.steps,
        "states": [str(state) for state in task.states],
        "shown": angles[0] if angles else 0,
        "actions": task.action_names,
        "low": task.action_low,
        "high": task.action_high,
        "acting": structure.acting,
        "embedding": task.embedding,
        "initial_mean": task.initial.mean,
        "initial_root": _root(np.asarray(task.initial.cov)),
        "references": [
            {"row": row, "level": reference.path[0], "std": reference.std}
            for row, reference in zip(task.reference_rows, task.references, strict=True)
        ],
        "loops": drift is not None and bool(np.abs(np.asarray(drift).sum(axis=0)).max() < 1e-6),
        "bursts": None if unit.bursts is None else unit.bursts._asdict(),
        "sensors": [
            {
                "of": row,
                "offset": sensor.offset,
                "std": std,
                "dropout": sensor.dropout,
                "period": sensor.period,
                "growth": [] if unit.growth is None else unit.growth[number],
                "best_at": [] if unit.growth is None else unit.best_at[number],
            }
            for number, (sensor, row, std) in enumerate(zip(task.sensed, unit.C, noise, strict=True))
        ],
        "estimate": [row if sensors else None for row, sensors in zip(estimate, told, strict=True)],
        "told": told,
        "no_raw": f"One observation alone does not tell: {hidden}." if hidden else "",
    }


def _embedded(task: Task, choice: Choice, observations: np.ndarray) -> dict[str, Any]:
    """The files of a policy's controllers, with the filter and without, and what they do in Python."""
    with_filter = bridge.controller(task, filtered(choice.policy, choice.dynamics), choice.label)
    without = None
    if choice.dynamics.sensors.sees_directly(len(task.states)):
        without = bridge.controller(task, unfiltered(choice.policy, choice.dynamics), choice.label)
    z = _with_gaps(observations)
    reference = {"observations": z, "filter": _run(with_filter, z)}
    if without is not None:
        reference["raw"] = _run(without, z)
    return {
        "label": choice.label,
        "sees": "filter" if choice.filters or without is None else "raw",
        "filtered": base64.b64encode(with_filter.to_bytes()).decode(),
        "raw": base64.b64encode(without.to_bytes()).decode() if without is not None else None,
        "reference": reference,
    }


def _run(controller: Controller, observations: np.ndarray) -> dict[str, list[list[float]]]:
    """Actions and beliefs, step by step."""
    controller.reset()
    actions, means = [], []
    for z in observations:
        actions.append(controller.act(z).tolist())
        means.append(controller.mean.tolist())
    return {"actions": actions, "means": means}


def _with_gaps(observations: np.ndarray) -> np.ndarray:
    """Recorded observations without some of their entries, so that the comparison includes missing samples."""
    z = np.array(observations)
    for t in range(len(z)):
        if t % 7 == 3:
            z[t, t % z.shape[1]] = np.nan
    z[len(z) // 2 : len(z) // 2 + 3] = np.nan
    return z


def _root(cov: np.ndarray) -> np.ndarray:
    """A matrix whose square, `C C'`, is a covariance, which may be singular."""
    values, vectors = np.linalg.eigh(cov)
    root: np.ndarray = vectors * np.sqrt(np.maximum(values, 0.0))
    return root


def _told(C: np.ndarray) -> list[list[int]]:
    """By which sensors each state is told directly; by none if one observation leaves it open."""
    known = np.isclose(np.linalg.pinv(C) @ C, np.eye(C.shape[1])).all(axis=1)
    weights = np.abs(np.linalg.pinv(C)) > 1e-12
    return [np.flatnonzero(row).tolist() if sure else [] for row, sure in zip(weights, known, strict=True)]
