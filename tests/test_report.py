"""Figures show the numbers of the run, with units, and are drawn without pyplot."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from bayespilco import Episode, Task, report, tasks
from tests.small_run import small_run


def executions() -> Episode:
    """Three executions to draw, made from the one that was recorded."""
    recorded = small_run().records[1].episode
    return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 0.1, leaf - 0.1]), recorded)


def test_costs_per_step_are_those_of_the_run() -> None:
    run, executed = small_run(), executions()
    (ax,) = report.draw_costs(run, executed).axes
    predicted, mean = ax.get_lines()
    time = run.task.dt * np.arange(run.task.steps + 1)
    assert np.allclose(predicted.get_xydata(), np.stack([time, run.prediction().cost_mean], axis=1))
    assert np.allclose(mean.get_xydata(), np.stack([time, np.asarray(executed.costs).mean(axis=0)], axis=1))
    assert "[s]" in ax.get_xlabel()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels[0] == f"predicted: total {run.records[-1].predicted_cost:.1f}"
    assert labels[1].startswith("executed 3 times")
    assert report.draw_costs(run, executed)._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"


def test_a_prediction_is_drawn_at_the_episode_that_it_was_made_for() -> None:
    run = small_run()
    costs, noise = report.draw_learning(run, executions()).axes
    predicted, executed, *_ = costs.get_lines()
    assert predicted.get_xdata().tolist() == [2, 3]
    assert np.allclose(predicted.get_ydata(), [record.predicted_cost for record in run.records])
    assert executed.get_xdata().tolist() == [1, 2]
    assert np.allclose(executed.get_ydata(), [record.executed_cost for record in run.records])
    assert np.allclose(noise.get_lines()[1].get_ydata(), 0.09 / 0.1)


def test_every_state_and_action_has_its_panel_and_unit() -> None:
    run, executed = small_run(), executions()
    figure = report.draw_states(run, executed, count=2)
    axes = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_ylabel() for ax in axes] == ["position [m]", "velocity [m/s]", "force [N]"]
    predicted, *each = axes[1].get_lines()
    assert np.allclose(predicted.get_ydata(), run.prediction().state_mean[:, 1])
    assert len(each) == 2
    assert np.allclose(each[1].get_ydata(), executed.states[1, :, 1])


def test_files_are_pictures(tmp_path: Path) -> None:
    before = "matplotlib.pyplot" in sys.modules
    paths = report.save_figures(small_run(), executions(), tmp_path)
    assert [path.name for path in paths] == ["costs.png", "learning.png", "states.png", "poses.png", "motion.gif"]
    kinds = {".png": b"\x89PNG", ".gif": b"GIF89a"}
    assert all(path.read_bytes().startswith(kinds[path.suffix]) for path in paths)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_poses_show_the_plant_over_time(tmp_path: Path) -> None:
    task = tasks.spring()
    states = np.column_stack([np.linspace(0, 0.5, 11), np.zeros(11)])
    figure = report.draw_poses(task, states, count=3)
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["0 s", "1 s", "2 s"]
    for ax, position in zip(figure.axes, (0.0, 0.25, 0.5), strict=True):
        drawn = [np.column_stack(line.get_data()) for line in ax.lines]
        assert any(np.allclose(line, [[position, 0.0]]) for line in drawn), "the mass is where it was"
        assert any(np.allclose(line, [[0.5, 0.0]]) for line in drawn), "and the goal where it is"
    report.animate(task, states, tmp_path / "moving.gif")
    with Image.open(tmp_path / "moving.gif") as moving:
        assert moving.n_frames > 5 and moving.info["duration"] == 200
    plain = Task(**(vars(task) | {"pose": None}))
    with pytest.raises(ValueError, match="does not say what it looks like"):
        report.draw_poses(plain, states)
