"""A moving target: an oven follows a temperature profile, with a heater that can only heat.

    bayespilco learn examples/tracking.py:task --episodes 3

learns it with the command; `python examples/tracking.py` does the same as a program, in a minute.
"""

import jax.numpy as jnp
import numpy as np

from bayespilco import Gaussian, Task, learn
from bayespilco.control.cost import effort, tracking
from bayespilco.tasks import Component, Reference
from bayespilco.tasks.task import diagonal, hold

DT, STEPS = 20.0, 30  # s


def derivative(x, u):
    """The heater warms the oven, which loses heat to the room, the more so the hotter it is."""
    return jnp.stack([0.5 * u[0] - 0.006 * x[0] - 2e-5 * x[0] ** 2])


def profile() -> np.ndarray:
    """Where the temperature should be at each step: up, hold, and half way down again."""
    return np.interp(DT * np.arange(STEPS + 1), [0, 200, 400, 600], [20, 80, 80, 50])


def task() -> Task:
    """Follow the profile, whose level differs from batch to batch, with little heating."""
    temperature, target, heat = 0, 1, 3  # components of [temperature, target, its slope, heat]
    return Task(
        name="oven",
        states=(Component("temperature", "K"),),
        actions=(Component("heat", "kW"),),
        angles=(),
        dt=DT,
        steps=STEPS,
        plant=hold(derivative, DT, substeps=10),
        action_limits=[(0.0, 3.0)],
        initial=Gaussian([20.0], diagonal(3.0)),
        sensor_std=[1.5],
        cost=tracking([temperature], [target], width=8.0) + 0.02 * effort([heat], width=1.0),
        policy_kind="linear",
        references=(
            Reference("target", "K", profile(), std=5.0),
            Reference("target's slope", "K/step", np.append(np.diff(profile()), 0.0)),
        ),
    )


if __name__ == "__main__":
    run = learn(task(), episodes=2, points=12, evaluations=40, progress=True)
    costs = np.asarray(run.evaluate(executions=20).costs).sum(axis=1)
    print(f"random {run.records[0].executed_cost:.1f}, learned {costs.mean():.1f} of about {run.task.steps + 1}")
