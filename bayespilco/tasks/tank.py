"""Two coupled tanks and a pump: bring the lower level to a set-point and hold it there, with little control effort.

The pump fills the upper tank, which drains into the lower one. It can only push: its voltage goes from 0 to 10 V. The
cost asks for the level, and for a voltage that changes little from step to step.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.control.cost import distance, smoothness
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import as_float64, float64
from bayespilco.tasks.components import Component, Pose
from bayespilco.tasks.simulation import hold
from bayespilco.tasks.task import Task, diagonal

AREA = 15.5  # cm^2, of each tank
OUTLET = 0.18  # cm^2, of each tank
PUMP = 4.6  # cm^3/s per volt
GRAVITY = 982.0  # cm/s^2
SET_POINT = 15.0  # cm
DT = 2.0  # s


def derivative(x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
    """Torricelli's law. Below a millimetre an outlet runs dry smoothly, so that the law has a slope everywhere."""
    level = jnp.maximum(x, 0.0)
    outflow = OUTLET * jnp.sqrt(2 * GRAVITY) * level / jnp.sqrt(level + 0.1)
    return jnp.stack([PUMP * u[0] - outflow[0], outflow[0] - outflow[1]]) / AREA


def pose(x: np.ndarray) -> Pose:
    """The tanks one above the other, in decimetres, with their levels as lines."""

    def tank(bottom: float, level: float) -> tuple[np.ndarray, np.ndarray]:
        walls = np.array([[0.0, bottom + 3.0], [0.0, bottom], [1.0, bottom], [1.0, bottom + 3.0]])
        return walls, np.array([[0.0, bottom + level / 10], [1.0, bottom + level / 10]])

    return Pose(lines=(*tank(3.5, x[0]), *tank(0.0, x[1])), goal=(1.0, SET_POINT / 10))


@float64
def tank() -> Task:
    """Hold the lower tank's level, with a pump that can only push and should not chatter."""
    level, voltage, before = 1, 3, 2  # components of [upper, lower, last voltage, voltage]
    cost = distance([level], [SET_POINT], width=2.0) + 0.05 * smoothness([voltage], [before], width=2.0)
    return Task(
        name="tank",
        states=(Component("upper level", "cm"), Component("lower level", "cm")),
        actions=(Component("voltage", "V"),),
        angles=(),
        dt=DT,
        steps=40,
        plant=_PLANT,
        action_limits=as_float64([[0.0, 10.0]]),
        initial=Gaussian(as_float64([6.0, 6.0]), diagonal(1.0, 1.0)),
        sensor_std=as_float64([0.3, 0.3]),
        cost=cost,
        policy_kind="linear",
        pose=pose,
        remember_action=True,
    )


_PLANT = hold(derivative, DT, substeps=100)
