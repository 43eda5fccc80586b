"""What did the plant do? Executed states and actions against the predicted ones."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure

from bayespilco.model.episode import Episode
from bayespilco.report.style import EXECUTED, PREDICTED, band, new_figure
from bayespilco.runs import Run
from bayespilco.tasks import Component

COLUMNS = 2


def draw_states(run: Run, executed: Episode, count: int = 5) -> Figure:
    """Every state and action over time: predicted mean and two standard deviations, and a few executions."""
    if executed.states is None:
        raise ValueError("These executions have no latent states to draw: they were not simulated.")
    task, predicted = run.task, run.prediction()
    panels = [
        (str(component), np.asarray(mean), np.asarray(cov), np.asarray(values)[:count])
        for components, mean, cov, values in (
            (task.states, predicted.state_mean, predicted.state_cov, executed.states),
            (task.actions, predicted.action_mean, predicted.action_cov, executed.actions),
        )
        for component, mean, cov, values in _by_component(components, mean, cov, values)
    ]
    rows = -(-len(panels) // COLUMNS)
    figure, axes = new_figure(rows, COLUMNS, 9.6, 2.4 * rows)
    for ax, (label, mean, variance, values) in zip(axes.flat, panels, strict=False):
        time = task.dt * np.arange(len(mean))
        band(ax, time, mean, 2 * np.sqrt(np.maximum(variance, 0)), PREDICTED, "predicted ± 2 standard deviations", True)
        for number, each in enumerate(values):
            ax.plot(time, each, color=EXECUTED, linewidth=0.8, alpha=0.8, label="executed" if number == 0 else None)
        ax.set(ylabel=label, xlim=(0, task.steps * task.dt))
        ax.margins(y=0.08)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax in axes.flat[max(len(panels) - COLUMNS, 0) : len(panels)]:
        ax.set_xlabel("time [s]")
    figure.suptitle(f"{task.name}, {run.method}: final policy", x=0.01, ha="left", fontsize=11)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return figure


def _by_component(
    components: Sequence[Component], mean: Array, cov: Array, values: Array
) -> Iterator[tuple[Component, Array, Array, Array]]:
    """Split arrays over steps into one triple per component."""
    for index, component in enumerate(components):
        yield component, mean[:, index], cov[:, index, index], values[..., index]
