"""A task of your own: two tanks, one above the other. A pump fills the upper one, which drains into the lower one.

    bayespilco learn examples/tanks.py:task --episodes 4

learns it with the command; `python examples/tanks.py` does the same as a program, in half a minute.
"""

import jax.numpy as jnp
import numpy as np

from bayespilco import AngleFeatures, Gaussian, SaturatingCost, Task, learn
from bayespilco.tasks import Component
from bayespilco.tasks.task import diagonal, hold


def derivative(x, u):
    """Torricelli: what flows out grows with the root of the level. At 0 V the pump gives half of what it can."""
    upper, lower = 0.1 * jnp.sqrt(jnp.maximum(x, 1e-6))
    return jnp.stack([0.06 * (1 + u[0]) - upper, upper - lower])


def task() -> Task:
    """Bring the lower level from 0.3 m to 0.6 m, and hold it there."""
    return Task(
        name="tanks",
        states=(Component("upper level", "m"), Component("lower level", "m")),
        actions=(Component("voltage", "V"),),
        angles=(),
        dt=1.0,
        steps=20,
        plant=hold(derivative, 1.0, substeps=5),
        action_limits=[1.0],
        initial=Gaussian([0.3, 0.3], diagonal(0.03, 0.03)),
        sensor_std=[0.01, 0.01],
        cost=SaturatingCost(AngleFeatures((), (1,)), [0.6], np.eye(1) / 0.15**2),
        policy_kind="linear",
    )


if __name__ == "__main__":
    run = learn(task(), episodes=2, points=15, evaluations=40, progress=True)
    costs = np.asarray(run.evaluate(executions=20).costs).sum(axis=1)
    print(f"random {run.records[0].executed_cost:.1f}, learned {costs.mean():.1f} of at most {run.task.steps + 1}")
