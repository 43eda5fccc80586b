"""Methods compared over several data sets, with the curves of the publication beside them."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bayespilco.algorithm import METHODS
from bayespilco.report.style import EXECUTED, PREDICTED, QUIET, band, new_figure

Curve = tuple[np.ndarray, np.ndarray]
"""Mean and standard deviation of the cost of a single run, at every step."""
Curves = Mapping[str, np.ndarray]
"""The columns of one method's curves, each of shape (seeds, steps)."""


def draw_methods(published: Mapping[str, Curve], ours: Mapping[str, Curve], dt: float, what: str, seeds: int) -> Figure:
    """The figure of the publication, and the same from our data sets: cost per step of all methods."""
    panels = {"McAllister & Rasmussen 2016, one data set": published} if published else {}
    panels[f"ours, mean of {seeds} data sets" if seeds > 1 else "ours, one data set"] = ours
    figure, axes = new_figure(1, len(panels), 5.4 * len(panels), 4.6)
    for ax, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for method, (mean, std) in curves.items():
            label = f"{method}: total {mean.sum():.1f}"
            band(
                ax, dt * np.arange(len(mean)), mean, std, METHODS[method].colour, label, method != "bayes-filter", 0.12
            )
        _cost_axis(ax, dt * (len(mean) - 1))
        ax.set_title(title, loc="left", fontsize=11)
        _legend_below(ax, f"{what} cost, mean ± std of one run")
    return figure


def draw_promises(curves: Mapping[str, Curves], dt: float) -> Figure:
    """Did the predictions keep their promise? Per method: predicted, sampled with its 90 % band, and executed."""
    figure, axes = new_figure(2, 2, 10.8, 8.6)
    for ax, (method, columns) in zip(axes.flat, curves.items(), strict=True):
        mean = {name: values.mean(axis=0) for name, values in columns.items()}
        time = dt * np.arange(len(mean["executed_mean"]))
        ax.fill_between(
            time,
            mean["sampled_5"],
            mean["sampled_95"],
            color=PREDICTED,
            alpha=0.18,
            linewidth=0,
            label="90 % of sampled runs",
        )
        lines = (
            ("predicted", QUIET, ":", "predicted by moments"),
            ("sampled", PREDICTED, "--", "predicted by sampling"),
            ("executed", EXECUTED, "-", "executed"),
        )
        for name, colour, style, label in lines:
            values = mean[f"{name}_mean"]
            ax.plot(time, values, style, color=colour, linewidth=1.8, label=f"{label}: total {values.sum():.1f}")
        _cost_axis(ax, time[-1])
        covered = columns["covered"].mean()
        ax.set_title(f"{method}: the band covers {covered:.0%} of executed costs", loc="left", fontsize=11)
        _legend_below(ax)
    return figure


def draw_seeds(
    executed: Mapping[str, Sequence[float]], published: Mapping[str, float], seeds: Sequence[int], worst: float
) -> Figure:
    """How much depends on the data? Executed total of every method and seed, beside the published one."""
    figure, axes = new_figure(1, 1, 7.2, 4.4)
    ax = axes[0, 0]
    for row, (method, values) in enumerate(executed.items()):
        colour, marker = METHODS[method].colour, METHODS[method].marker
        apart = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else np.zeros(1)
        ax.plot(row + apart, values, marker, color=colour, markersize=6, alpha=0.8)
        ax.hlines(np.median(values), row - 0.33, row + 0.33, color=colour, linewidth=2)
        ax.annotate(f"{np.median(values):.1f}", (row + 0.35, np.median(values)), va="center", fontsize=9, color=colour)
        if method in published:
            ax.plot(row, published[method], "x", color="black", markersize=9, markeredgewidth=2)
    if published:
        ax.plot([], [], "x", color="black", markersize=9, markeredgewidth=2, label="published (one data set)")
    ours = f"ours, seeds {min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"ours, seed {seeds[0]}"
    ax.plot([], [], "o", color=QUIET, label=ours)
    ax.plot([], [], "-", color=QUIET, linewidth=2, label="our median")
    ax.axhline(worst, color=QUIET, linewidth=0.8, linestyle=":")
    ax.annotate("never at the goal", (-0.45, worst), (0, 3), textcoords="offset points", color=QUIET, fontsize=8)
    ax.set(ylabel="executed total cost", ylim=(0, 1.1 * worst), xlim=(-0.5, len(executed) - 0.3))
    ax.set_xticks(range(len(executed)), list(executed))
    ax.grid(axis="x", visible=False)
    ax.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
    return figure


def _legend_below(ax: Axes, title: str | None = None) -> None:
    """Curves cross every corner."""
    place = (0.5, -0.14)
    ax.legend(
        title=title, frameon=False, fontsize=9, title_fontsize=9, loc="upper center", bbox_to_anchor=place, ncols=2
    )


def _cost_axis(ax: Axes, end: float) -> None:
    ax.set(xlabel="time [s]", ylabel="cost (0 at the goal, 1 far from it)", xlim=(0, end), ylim=(-0.03, 1.03))
