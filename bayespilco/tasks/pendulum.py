"""The pendulum swing-up of the PILCO literature (Deisenroth 2010): its motor is too weak to lift it in one go."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.control.cost import SaturatingCost
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import as_float64, float64
from bayespilco.tasks.task import Component, Pose, Task, diagonal, hold

MASS = 1.0  # kg
LENGTH = 1.0  # m
FRICTION = 0.01  # Nms
GRAVITY = 9.82  # m/s^2
COST_WIDTH = 0.5  # m


def derivative(x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
    """A uniform rod on a motor; the angle is 0 when it stands upright."""
    m, l, b, g = MASS, LENGTH, FRICTION, GRAVITY
    theta, omega = x
    spin = (u[0] - b * omega + m * g * l * jnp.sin(theta) / 2) / (m * l**2 / 3)
    return jnp.stack([omega, spin])


def pose(x: np.ndarray) -> Pose:
    return Pose(lines=(LENGTH * np.array([[0.0, 0.0], [np.sin(x[0]), np.cos(x[0])]]),), goal=(0.0, LENGTH))


@float64
def pendulum() -> Task:
    """The pendulum swing-up, through noisy sensors."""
    dt = 0.1
    return Task(
        name="pendulum",
        states=(Component("angle", "rad"), Component("angular velocity", "rad/s")),
        actions=(Component("torque", "Nm"),),
        angles=(0,),
        dt=dt,
        steps=40,
        plant=_PLANT,
        action_limits=as_float64([2.5]),
        initial=Gaussian(as_float64([np.pi, 0.0]), diagonal(0.1, 0.1)),
        sensor_std=as_float64([0.05, 0.05 / dt]),
        # The distance of the tip from where it is when the pendulum stands.
        cost=SaturatingCost(
            AngleFeatures((0,), ()), as_float64([0.0, 1.0]), as_float64(LENGTH**2 * np.eye(2) / COST_WIDTH**2)
        ),
        centroids=50,
        policy_spread=as_float64([4.0, 0.8, 0.8]),  # of (dtheta/dt, sin, cos)
        policy_length_scales=as_float64([5.0, 1.0, 1.0]),
        pose=pose,
        rates=(("angle", "angular velocity"),),
        mirror=("angle", "angular velocity", "torque"),
    )


_PLANT = hold(derivative, 0.1, substeps=40)
