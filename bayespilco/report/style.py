"""What all figures share: colours that everybody can tell apart, and plain axes."""

from io import BytesIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

# Okabe and Ito's palette: distinguishable with every common kind of colour blindness, and in print.
PREDICTED = "#0072B2"
EXECUTED = "#D55E00"
QUIET = "#666666"


class Drawing(Figure):
    """A figure that a notebook shows, although it was made without pyplot."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.savefig(content, format="png", facecolor=self.get_facecolor())
        return content.getvalue()


def new_figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, an array of shape (rows, columns)."""
    figure = Drawing(figsize=(width, height), dpi=150, layout="constrained")
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


def darken(figure: Figure) -> Figure:
    """The same figure for a dark page. Colours that are too dark for it become their lighter neighbours."""
    ground, text = "#14171b", "#eceff3"
    lighter = {"#0072b2": "#56B4E9", "#000000": text, "#666666": "#a9b1bb", "#dddddd": "#3a414a"}
    figure.set_facecolor(ground)
    for ax in figure.axes:
        ax.set_facecolor(ground)
        ax.tick_params(colors=text)
        for spine in ax.spines.values():
            spine.set_edgecolor(text)
    for label in figure.findobj(Text):
        label.set_color(lighter.get(to_hex(label.get_color()), label.get_color()))
    for line in figure.findobj(Line2D):
        line.set_color(lighter.get(to_hex(line.get_color()), line.get_color()))
    for filled in figure.findobj(PolyCollection):
        colours = [to_hex(each) for each in np.asarray(filled.get_facecolor())]
        filled.set_facecolor([lighter.get(colour, colour) for colour in colours])
    return figure
