"""Pictures and pages of a run. The only part of the library that draws.

Figures are made without pyplot, so that drawing neither needs a display nor changes the caller's own plotting.
"""

from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from bayespilco.algorithm import METHODS
from bayespilco.core.checks import unknown_name
from bayespilco.deploy.files import write
from bayespilco.execution import Filtered
from bayespilco.model.episode import Episode
from bayespilco.report.costs import draw_costs as draw_costs
from bayespilco.report.learning import draw_learning as draw_learning
from bayespilco.report.poses import animate as animate
from bayespilco.report.poses import draw_poses as draw_poses
from bayespilco.report.run_page import page as page
from bayespilco.report.states import draw_states as draw_states
from bayespilco.report.style import darken as darken
from bayespilco.report.unseen import Beliefs, filter_of
from bayespilco.report.unseen import beliefs as beliefs_along
from bayespilco.runs import Run, RunDirectory, load_evaluation, read_promises
from bayespilco.runs.directory import REPORT

KINDS = ("costs", "learning", "states", "poses")
FORMATS = ("png", "pdf", "svg")


def figure(run: Run, executed: Episode, kind: str = "costs") -> Figure:
    """One of the figures of a run, by its name: what `bayespilco figure` writes.

    Args:
        executed: Executions of the final policy, `run.evaluate()`.
        kind: costs, learning, states or poses.
    """
    if kind not in KINDS:
        raise unknown_name(kind, list(KINDS), "kind of figure")
    if kind == "costs":
        return draw_costs(run, executed)
    if kind == "learning":
        return draw_learning(run, executed)
    if kind == "states":
        return draw_states(run, executed)
    if executed.states is None:
        raise ValueError("These executions have no latent states to draw: they were not simulated.")
    return draw_poses(run.task, np.asarray(executed.states)[0], beliefs=_beliefs(run, executed))


def _beliefs(run: Run, executed: Episode) -> Beliefs | None:
    """Of the filter along the first execution, if it can be drawn: the plant is in a plane."""
    assert run.task.pose is not None and executed.states is not None, "asked by the caller"
    record, first = run.records[-1], np.asarray(executed.states)[0, 0]
    filters = isinstance(METHODS[run.method].executor(record.policy, record.dynamics), Filtered)
    if run.task.pose(first).plane is None or not filters:
        return None
    controller = filter_of(run.task, record.policy, record.dynamics)
    return beliefs_along(controller, np.asarray(executed.observations)[0], np.asarray(executed.actions)[0])


def save(drawn: Figure, path: Path | str) -> None:
    """Write a figure, as its name's ending says: png, pdf or svg. The same figure gives the same file."""
    path = Path(path)
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"A figure can be written as {', '.join(FORMATS)}; given {path}.")
    content = BytesIO()
    dated: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    drawn.savefig(content, format=kind, facecolor=drawn.get_facecolor(), metadata=dated[kind])
    write(path, content.getvalue())


def save_figures(run: Run, executed: Episode, directory: Path | str) -> list[Path]:
    """Draw everything about a run and its executed policy.

    That is `costs.png`, `learning.png`, `states.png`, and an execution as `poses.png` and moving as `motion.gif`. Of a
    plant whose latent states are not known there are no states, and only what says how it looks has the last two.
    """
    figures = {
        "costs.png": draw_costs(run, executed),
        "learning.png": draw_learning(run, executed, read_promises(Path(directory))),
    }
    if executed.states is not None:
        figures["states.png"] = draw_states(run, executed)
        if run.task.pose is not None:
            beliefs = _beliefs(run, executed)
            figures["poses.png"] = draw_poses(run.task, np.asarray(executed.states)[0], beliefs=beliefs)
    paths = []
    for name, figure in figures.items():
        picture = BytesIO()
        figure.savefig(picture)
        paths.append(Path(directory) / name)
        write(paths[-1], picture.getvalue())
    if "poses.png" in figures:
        paths.append(Path(directory) / "motion.gif")
        animate(run.task, np.asarray(executed.states)[0], paths[-1], beliefs)
    return paths


def conclude(run: Run, directory: RunDirectory) -> list[Path]:
    """Execute the final policy, keep the executions, and draw: the `on_end` of the command.

    Returns the pictures, and last the report's page.
    """
    executed = load_evaluation(directory.path) or run.evaluate(directory.config.executions)
    directory.keep_evaluation(executed)
    pictures = save_figures(run, executed, directory.path)
    write(directory.path / REPORT, page(run, executed).encode())
    directory.conclude(executed)
    return [*pictures, directory.path / REPORT]
