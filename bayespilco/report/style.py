"""What all figures share: colours that everybody can tell apart, and plain axes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette: distinguishable with every common kind of colour blindness, and in print.
PREDICTED = "#0072B2"
EXECUTED = "#D55E00"
QUIET = "#666666"


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, an array of shape (rows, columns)."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
    return figure, axes


def band(
    ax: Axes,
    x: np.ndarray,
    mean: np.ndarray,
    spread: np.ndarray,
    colour: str,
    label: str,
    dashed: bool = False,
    alpha: float = 0.2,
) -> None:
    """A line with a band of `spread` around it; dashes tell the lines apart where colours do not."""
    ax.fill_between(x, mean - spread, mean + spread, color=colour, alpha=alpha, linewidth=0)
    ax.plot(x, mean, color=colour, linewidth=1.8, linestyle="--" if dashed else "-", label=label)
