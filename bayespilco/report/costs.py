"""Did the prediction keep its promise? Predicted and executed cost at every step of the final policy."""

import numpy as np
from matplotlib.figure import Figure

from bayespilco.model.episode import Episode
from bayespilco.report.style import EXECUTED, PREDICTED, band, new_figure
from bayespilco.runs import Run


def draw_costs(run: Run, executed: Episode) -> Figure:
    """Mean cost per step and its standard deviation, of a single run: as predicted, and over many executions.

    Args:
        executed: Executions of the final policy, `run.evaluate()`.
    """
    costs = np.asarray(executed.costs)
    predicted = run.prediction()
    time = run.task.dt * np.arange(costs.shape[1])
    figure, axes = new_figure(1, 1, 6.4, 4.0)
    ax = axes[0, 0]
    mean, total = np.asarray(predicted.cost_mean), run.records[-1].predicted_cost
    band(ax, time, mean, np.sqrt(np.asarray(predicted.cost_variance)), PREDICTED, f"predicted: total {total:.1f}", True)
    label = f"executed {len(costs)} times: total {costs.sum(axis=1).mean():.1f}"
    band(ax, time, costs.mean(axis=0), costs.std(axis=0), EXECUTED, label)
    ax.set(xlabel="time [s]", ylabel="cost per step", xlim=(0, time[-1]))
    if run.task.cost.worst == 1:
        ax.set(ylabel="cost (0 at the goal, 1 far from it)", ylim=(-0.03, 1.03))
    ax.set_title(f"{run.task.name}, {run.method}, after {len(run.records)} episodes", loc="left", fontsize=11)
    ax.legend(title="mean ± standard deviation of one run", frameon=False, fontsize=9, title_fontsize=9)
    return figure
