"""What does it look like? The plant in its states: one after the other, or moving."""

from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from bayespilco.deploy.files import write
from bayespilco.report.style import EXECUTED, PREDICTED, QUIET, Drawing
from bayespilco.tasks import Pose, Task

MARGIN = 0.1
"""Around all that is drawn, relative to its size."""


def draw_poses(task: Task, states: np.ndarray, count: int = 9) -> Figure:
    """An executed episode as a strip of pictures, evenly spaced in time."""
    poses = _poses(task, states)
    steps = np.linspace(0, len(poses) - 1, count).round().astype(int)
    figure = Drawing(figsize=(1.3 * count, 1.9), dpi=150, layout="constrained")
    for ax, step in zip(figure.subplots(1, count, squeeze=False).flat, steps, strict=True):
        _draw(ax, poses[step], poses)
        ax.set_title(f"{step * task.dt:.2g} s", fontsize=9, color=QUIET)
    return figure


def picture(task: Task, state: np.ndarray, around: np.ndarray | None = None, size: int = 300) -> np.ndarray:
    """One state as an array of pixels, red, green and blue; framed to show the states `around` it as well."""
    canvas = FigureCanvasAgg(Figure(figsize=(1, 1), dpi=size))
    ax = canvas.figure.add_axes((0.0, 0.0, 1.0, 1.0))
    (pose,) = _poses(task, state[None])
    _draw(ax, pose, [pose] if around is None else _poses(task, around))
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def animate(task: Task, states: np.ndarray, path: Path | str) -> None:
    """An executed episode as a moving picture, a GIF, in the time that it took; at its end it rests for a second."""
    frames = [Image.fromarray(picture(task, state, around=states)) for state in states]
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
