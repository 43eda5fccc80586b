"""How fast was it learned? Total cost over episodes, and the sensor noise as it became known."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bayespilco.model.episode import Episode
from bayespilco.report.style import EXECUTED, PREDICTED, QUIET, new_figure
from bayespilco.runs import Run


def draw_learning(run: Run, executed: Episode, promises: Mapping[int, Mapping[str, Any]] | None = None) -> Figure:
    """Total cost of each episode against what was predicted before it, with executions of the final policy last.

    Args:
        promises: What was promised before each episode (`runs.read_promises`), to be shown as bands.
    """
    costs = np.asarray(executed.costs).sum(axis=1)
    count, worst = len(run.records), run.task.cost.worst * (run.task.steps + 1)
    figure, axes = new_figure(1, 2, 9.6, 4.0)
    ax = axes[0, 0]
    # A record's policy is the one that the next episode executes.
    predicted, once = ([getattr(r, name) for r in run.records] for name in ("predicted_cost", "executed_cost"))
    ax.plot(np.arange(count) + 2, predicted, "s--", color=PREDICTED, label="predicted before it")
    _draw_bands(promises or {}, ax)
    ax.plot(np.arange(count) + 1, once, "o-", color=EXECUTED, label="executed once")
    label = f"final policy, {len(costs)} times (mean ± std)"
    ax.errorbar(count + 1, costs.mean(), costs.std(), fmt="D", color=EXECUTED, mfc="white", capsize=4, label=label)
    if np.isfinite(worst):
        ax.axhline(worst, color=QUIET, linewidth=0.8, linestyle=":")
        ax.annotate("never at the goal", (1, worst), (0, 3), textcoords="offset points", color=QUIET, fontsize=8)
    ax.set(xlabel=f"episode of {run.task.steps * run.task.dt:g} s (the first is random)", ylabel="total cost")
    ax.set_ylim(0, 1.08 * worst if np.isfinite(worst) else None)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.legend(frameon=False, fontsize=9)
    ax.set_title(f"{run.task.name}, {run.method}", loc="left", fontsize=11)

    _draw_noise(run, axes[0, 1])
    return figure


def _draw_bands(promises: Mapping[int, Mapping[str, Any]], ax: Axes) -> None:
    """The 90 % bands of sampled totals, beside the episodes that they were promised for."""
    made = {
        n: each["promised"] for n, each in promises.items() if None not in each.get("promised", {}).get("band", [None])
    }
    if made:
        low, high = np.array([each["band"] for each in made.values()]).T
        middle = np.array([each["total"] for each in made.values()])
        error = np.abs([middle - low, high - middle])
        x, label = np.array(list(made)) + 1.12, "promised: 90 % of sampled plants"
        ax.errorbar(x, middle, error, fmt="none", color=PREDICTED, capsize=3, alpha=0.6, label=label)


def _draw_noise(run: Run, ax: Axes) -> None:
    """The learned sensor noise relative to the true one, which a simulation knows; or else to the last."""
    learned = np.sqrt([np.asarray(record.dynamics.sensor_noise) for record in run.records])
    known = run.task.sensor_std is not None
    true = np.asarray(run.task.sensor_std) if known else learned[-1]
    colours = ["#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"]
    for index, sensor in enumerate(run.task.sensed):
        colour, marker = colours[index % len(colours)], "osD^vP"[index % 6]
        label = f"{sensor.name} ({true[index]:.3g} {sensor.unit})"
        ax.plot(np.arange(len(learned)) + 1, learned[:, index] / true[index], label=label, color=colour, marker=marker)
    ax.axhline(1, color=QUIET, linewidth=0.8, linestyle=":")
    ax.set(xlabel="episodes learned from", ylabel=f"learned / {'true' if known else 'last'} standard deviation")
    ax.set_ylim(0, 1.15 * max(1.0, float((learned / true).max())))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.legend(frameon=False, fontsize=9)
    ax.set_title("sensor noise", loc="left", fontsize=11)
