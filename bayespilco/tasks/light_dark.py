"""Light-dark: a vehicle in the plane that sees where it is only near a light, which is off the way to its goal.

The classic test of planning under uncertainty. The vehicle knows roughly where it starts, and how fast it moves. It is
steered by commands of its velocity, which it follows with a lag. A camera reports its position, with noise whose
standard deviation is about as large as the distance from the light. So who drives straight to the goal arrives
somewhere near it. Who makes a detour to look arrives late, and exactly.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.control.cost import SaturatingCost
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import as_float64, float64
from bayespilco.tasks.components import Component, Pose, Sensor
from bayespilco.tasks.simulation import hold
from bayespilco.tasks.task import Task, diagonal

START = (0.0, 0.0)  # m, on average
START_STD = 1.5  # m
GOAL = (5.0, 0.0)  # m
LIGHT = (2.5, 3.0)  # m
LEAST_STD = 0.1  # m, of the camera's noise in the light
DISTANCE = 0.1  # m, from the light, at which the variance has doubled: far away, the noise is as large as the distance
SPEED_STD = 0.1  # m/s, of the speedometers
LAG = 0.3  # s, until a command is followed to 63 %
FASTEST = 2.0  # m/s, along each axis
WIDTH = 0.4  # m, of the cost
DT = 0.5  # s
STEPS = 25


def derivative(x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
    velocity = x[2:]
    return jnp.concatenate([velocity, (u - velocity) / LAG])


def pose(x: np.ndarray) -> Pose:
    """The light, as a star, and the vehicle, as a box."""
    turns = np.linspace(0, np.pi, 4, endpoint=False)
    rays = [LIGHT + 0.4 * np.outer([-1, 1], [np.cos(turn), np.sin(turn)]) for turn in turns]
    box = x[:2] + 0.15 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
    return Pose(lines=(*rays, box, x[None, :2]), goal=GOAL, plane=(0, 1))


@float64
def light_dark() -> Task:
    """Be at a goal, having found out where one is."""
    light = (("x", LIGHT[0], DISTANCE), ("y", LIGHT[1], DISTANCE))
    return Task(
        name="light-dark",
        states=(Component("x", "m"), Component("y", "m"), Component("x speed", "m/s"), Component("y speed", "m/s")),
        actions=(Component("x command", "m/s"), Component("y command", "m/s")),
        angles=(),
        dt=DT,
        steps=STEPS,
        plant=_PLANT,
        action_limits=as_float64([FASTEST, FASTEST]),
        initial=Gaussian(as_float64([*START, 0.0, 0.0]), diagonal(START_STD, START_STD, SPEED_STD, SPEED_STD)),
        sensor_std=as_float64([LEAST_STD, LEAST_STD, SPEED_STD, SPEED_STD]),
        cost=SaturatingCost(AngleFeatures((), (0, 1)), as_float64(GOAL), as_float64(np.eye(2) / WIDTH**2)),
        centroids=30,
        policy_spread=as_float64([3.0, 3.0, 1.0, 1.0]),
        policy_length_scales=as_float64([2.0, 2.0, 4.0, 4.0]),
        pose=pose,
        rates=(("x", "x speed"), ("y", "y speed")),
        sensors=(
            *(Sensor(name, "m", of=((name, 1.0),), best_at=light) for name in ("x", "y")),
            *(Sensor(name, "m/s", of=((name, 1.0),)) for name in ("x speed", "y speed")),
        ),
    )


_PLANT = hold(derivative, DT, substeps=150)
