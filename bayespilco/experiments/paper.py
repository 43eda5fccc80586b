"""The paper's own numbers, to stand beside ours.

`paper_figures.csv` holds every point of its two result figures: the predicted and the executed cost per step of the
four methods, mean and standard deviation of a single run, read from the coordinates in the source of the figures of
McAllister & Rasmussen 2016. One data set, 100 executions.
"""

import csv
import functools
from importlib import resources
from typing import Literal

import numpy as np

NAMES = {
    "pilco": "pilco_2011",
    "dallaire": "dallaire_2009",
    "deisenroth": "deisenroth_2013",
    "bayes-filter": "bayes_filter_pilco",
}
"""What our methods are called in the file."""

TASK = "cart-pole"
ORDER = ("bayes-filter", "deisenroth", "pilco", "dallaire")
"""The methods from the lowest executed cost to the highest."""
GAIN = {"pilco": -39.1, "deisenroth": -39.1, "bayes-filter": -81.7}
"""The policies' gain at the goal with respect to the angle, in N/rad, from the paper's text."""


@functools.cache
def curve(figure: Literal["predicted", "executed"], method: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the cost at steps 0 to 60."""
    text = resources.files("bayespilco.experiments").joinpath("paper_figures.csv").read_text(encoding="utf-8")
    wanted = (figure, NAMES[method])
    rows = [row for row in csv.DictReader(text.splitlines()) if (row["figure"], row["method"]) == wanted]
    rows.sort(key=lambda row: int(row["timestep"]))
    mean, std = (np.array([float(row[name]) for row in rows]) for name in ("cost_mean", "cost_std"))
    return mean, std


def total(figure: Literal["predicted", "executed"], method: str) -> float:
    return float(curve(figure, method)[0].sum())
