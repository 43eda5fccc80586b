"""How soon does it work? Curves over seconds of interaction, from the numbers of a study of learning curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bayespilco.algorithm import METHODS
from bayespilco.report.style import EXECUTED, PREDICTED, QUIET, new_figure

Numbers = Mapping[str, Any]


def draw_curves(
    summary: Mapping[str, Numbers], curves: Sequence[Numbers], thresholds: Sequence[float], worst: float
) -> Figure:
    """Executed cost and success over seconds of interaction: the median, its 95 % interval, and every seed."""
    figure, axes = new_figure(1, 2, 11.0, 4.4)
    for ax, name in zip(axes[0], ("executed", "success"), strict=True):
        for method, numbers in summary.items():
            colour, marker = METHODS[method].colour, METHODS[method].marker
            for curve in (each for each in curves if each["method"] == method):
                rows = np.array([(entry["seconds"], entry[name]) for entry in curve["episodes"]])
                ax.plot(*rows.T, color=colour, linewidth=0.7, alpha=0.35)
            seconds, median, low, high = _spread(numbers["curve"], name)
            ax.fill_between(seconds, low, high, color=colour, alpha=0.2, linewidth=0)
            seeds = max(point["seeds"] for point in numbers["curve"])
            label = f"{method}, {seeds} seed{'s' if seeds > 1 else ''}"
            ax.plot(seconds, median, marker=marker, markersize=4, color=colour, linewidth=2, label=label)
        ax.set(xlabel="seconds of interaction", xlim=(0, None))
    cost, share = axes[0]
    for limit in thresholds:
        cost.axhline(limit, color=QUIET, linewidth=0.8, linestyle=":")
        cost.annotate(f"{limit:g}", (0, limit), (2, 2), textcoords="offset points", color=QUIET, fontsize=8)
    cost.set(ylabel="executed total cost", ylim=(0, 1.05 * worst if np.isfinite(worst) else None))
    cost.set_title("median over seeds, its 95 % interval, and each seed", loc="left", fontsize=11)
    cost.legend(frameon=False, fontsize=9)
    share.set(ylabel="share of executions that succeed", ylim=(-0.03, 1.03))
    share.set_title("success", loc="left", fontsize=11)
    return figure


def draw_curve_promises(summary: Mapping[str, Numbers], levels: Sequence[int]) -> Figure:
    """Did predictions keep their promise? Medians of predicted, sampled and executed costs, and how much was covered.

    Args:
        levels: The bands' per cent.
    """
    figure, axes = new_figure(len(summary), 2, 11.0, 4.0 * len(summary))
    lines = (
        ("predicted", QUIET, "s:", "predicted by moments"),
        ("sampled", PREDICTED, "^--", "predicted by sampling"),
        ("executed", EXECUTED, "o-", "executed"),
    )
    for (cost, covered), (method, numbers) in zip(axes, summary.items(), strict=True):
        points = numbers["curve"]
        for name, colour, style, label in lines:
            seconds, median, low, high = _spread(points, name)
            cost.fill_between(seconds, low, high, color=colour, alpha=0.15, linewidth=0)
            cost.plot(seconds, median, style, color=colour, markersize=4, label=label)
        cost.set(
            xlabel="seconds of interaction", ylabel="total cost, median over seeds", xlim=(0, None), ylim=(0, None)
        )
        cost.set_title(method, loc="left", fontsize=11)
        cost.legend(frameon=False, fontsize=9)
        for number, level in enumerate(levels):
            shade = 0.3 + 0.7 * (number + 1) / len(levels)
            shares = [point["coverage"][str(level)] for point in points]
            covered.plot(seconds, shares, "o-", color=EXECUTED, alpha=shade, markersize=3, label=f"{level} % band")
            covered.axhline(level / 100, color=QUIET, linewidth=0.8, linestyle=":")
        covered.set(xlabel="seconds of interaction", ylabel="executions within it", xlim=(0, None), ylim=(-0.03, 1.03))
        covered.set_title("bands of sampled totals; dotted: as promised", loc="left", fontsize=11)
        covered.legend(frameon=False, fontsize=9, ncols=2)
    return figure


def _spread(points: Sequence[Numbers], name: str) -> tuple[np.ndarray, ...]:
    """Seconds, medians, and the ends of their intervals; a single seed has none."""
    rows = []
    for point in points:
        median, interval = point[name]["median"], point[name]["median_95"]
        rows.append((point["seconds"], median, *(interval or (median, median))))
    return tuple(np.array(rows).T)
