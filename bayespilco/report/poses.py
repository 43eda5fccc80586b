"""What does it look like? The plant in its states: one after the other, or moving."""

from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from bayespilco.deploy.files import write
from bayespilco.report.style import EXECUTED, PREDICTED, QUIET, Drawing
from bayespilco.report.unseen import Beliefs
from bayespilco.tasks import Pose, Task

SIGMAS = 2.0
"""The size of a belief's ellipse, in standard deviations."""
MARGIN = 0.1
"""Around all that is drawn, relative to its size."""


def draw_poses(task: Task, states: np.ndarray, count: int = 9, beliefs: Beliefs | None = None) -> Figure:
    """An executed episode as a strip of pictures, evenly spaced in time.

    Args:
        beliefs: What a filter believed at each step. Where the plant is in a plane, that is drawn as an ellipse.
    """
    poses = _poses(task, states)
    steps = np.linspace(0, len(poses) - 1, count).round().astype(int)
    figure = Drawing(figsize=(1.3 * count, 1.9), dpi=150, layout="constrained")
    for ax, step in zip(figure.subplots(1, count, squeeze=False).flat, steps, strict=True):
        _draw(ax, poses[step], poses)
        if beliefs is not None:
            draw_belief(ax, poses[step], beliefs.mean[step], beliefs.cov[step])
        ax.set_title(f"{step * task.dt:.2g} s", fontsize=9, color=QUIET)
    return figure


def draw_belief(ax: Axes, pose: Pose, mean: np.ndarray, cov: np.ndarray) -> None:
    """What is believed about where a plant is: an ellipse of two standard deviations, if it is in a plane."""
    if pose.plane is not None:
        ax.plot(*ellipse(mean, cov, pose.plane).T, color=EXECUTED, linewidth=1)


def ellipse(
    mean: np.ndarray, cov: np.ndarray, plane: tuple[int, int], sigmas: float = SIGMAS
) -> Float[np.ndarray, "points 2"]:
    """The line of so many standard deviations of two states of a Gaussian."""
    places = list(plane)
    values, vectors = np.linalg.eigh(cov[np.ix_(places, places)])
    turns = np.linspace(0, 2 * np.pi, 61)
    circle = np.column_stack([np.cos(turns), np.sin(turns)])
    line: np.ndarray = mean[places] + sigmas * circle * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    return line


def picture(
    task: Task,
    state: np.ndarray,
    around: np.ndarray | None = None,
    size: int = 300,
    belief: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """One state as an array of pixels, red, green and blue; framed to show the states `around` it as well.

    Args:
        belief: A mean and a covariance, to draw as an ellipse.
    """
    canvas = FigureCanvasAgg(Figure(figsize=(1, 1), dpi=size))
    ax = canvas.figure.add_axes((0.0, 0.0, 1.0, 1.0))
    (pose,) = _poses(task, state[None])
    _draw(ax, pose, [pose] if around is None else _poses(task, around))
    if belief is not None:
        draw_belief(ax, pose, *belief)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def animate(task: Task, states: np.ndarray, path: Path | str, beliefs: Beliefs | None = None) -> None:
    """An executed episode as a moving picture, a GIF, in the time that it took; at its end it rests for a second."""
    believed = [None] * len(states) if beliefs is None else list(zip(beliefs.mean, beliefs.cov, strict=True))
    pairs = zip(states, believed, strict=True)
    frames = [Image.fromarray(picture(task, state, around=states, belief=belief)) for state, belief in pairs]
    content = BytesIO()
    milliseconds = max(20, round(1000 * task.dt))  # browsers slow down what is faster
    duration = [milliseconds] * (len(frames) - 1) + [1000]
    frames[0].save(content, "GIF", save_all=True, append_images=frames[1:], duration=duration, loop=0)
    write(Path(path), content.getvalue())


def _poses(task: Task, states: np.ndarray) -> list[Pose]:
    if task.pose is None:
        raise ValueError(f"The task {task.name!r} does not say what it looks like: give it a `pose`.")
    return [task.pose(state) for state in np.asarray(states)]


def _draw(ax: Axes, pose: Pose, frame: list[Pose]) -> None:
    for line in pose.lines:
        ax.plot(*line.T, color=PREDICTED, linewidth=2, solid_capstyle="round", marker="o", markersize=2)
    if pose.goal is not None:
        ax.plot(*pose.goal, color=EXECUTED, marker="+", markersize=10, linestyle="none")
    goals = [np.array([each.goal]) for each in frame if each.goal is not None]
    points = np.concatenate([*goals, *(line for each in frame for line in each.lines)])
    low, high = points.min(axis=0), points.max(axis=0)
    middle, reach = (low + high) / 2, (0.5 + MARGIN) * (high - low).max()
    ax.set(xlim=(middle[0] - reach, middle[0] + reach), ylim=(middle[1] - reach, middle[1] + reach), aspect="equal")
    ax.set_axis_off()
