"""The paper's benchmark: swing up a pole on a cart and balance it, seen by a cheap camera (Section 4).

State `[x_c, theta, dx_c/dt, dtheta/dt]`, with `theta = 0` upright and `pi` hanging; the action is a horizontal force.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.control.cost import SaturatingCost
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import as_float64, float64
from bayespilco.tasks.components import Start
from bayespilco.tasks.task import Bursts, Component, Pose, Task, diagonal, hold

CART_MASS = 0.5  # kg
POLE_MASS = 0.5  # kg
POLE_LENGTH = 0.2  # m
FRICTION = 0.1  # Ns/m
GRAVITY = 9.82  # m/s^2
COST_WIDTH = 0.1
"""sigma_c in metres. The paper prints 0.25; only 0.1 reproduces its plotted costs (0.999823 at the first step)."""


def derivative(x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
    """The equation of motion as the paper prints it (Eq. 23): that of a uniform rod, though its text says otherwise."""
    mc, mp, l, b, g = CART_MASS, POLE_MASS, POLE_LENGTH, FRICTION, GRAVITY
    _, theta, v, omega = x
    s, c = jnp.sin(theta), jnp.cos(theta)
    force = u[0]
    shared = 4 * (mc + mp) - 3 * mp * c**2
    acceleration = (-2 * mp * l * omega**2 * s + 3 * mp * g * s * c + 4 * force - 4 * b * v) / shared
    spin = (-3 * mp * l * omega**2 * s * c + 6 * (mc + mp) * g * s + 6 * (force - b * v) * c) / (l * shared)
    return jnp.stack([v, omega, acceleration, spin])


def pose(x: np.ndarray) -> Pose:
    """The tip is where the cost looks for it: left of the cart at a positive angle, with the signs of Eq. 23."""
    cart = [x[0], 0.0] + np.array([[-0.1, -0.03], [0.1, -0.03], [0.1, 0.03], [-0.1, 0.03], [-0.1, -0.03]])
    pole = np.array([[x[0], 0.0], [x[0] - POLE_LENGTH * np.sin(x[1]), POLE_LENGTH * np.cos(x[1])]])
    return Pose(lines=(cart, pole), goal=(0.0, POLE_LENGTH))


PUSHED = tuple(
    Start(f"pushed {side}", mean=(0.0, 0.0, 0.0, spin), std=(0.1, 0.1, 0.4, 3.0), weight=0.1)
    for side, spin in (("left", 8.0), ("right", -8.0))
)
"""After a push to the balanced pole that knocks it down."""


@float64
def cart_pole() -> Task:
    """The cart-pole swing-up with the paper's constants and sensor noise."""
    dt = 1 / 30
    # The cost measures the distance of the pole's tip from its goal: C [x_c, sin, cos - 1].
    C = np.array([[1.0, -POLE_LENGTH, 0.0], [0.0, 0.0, POLE_LENGTH]])
    return Task(
        name="cart-pole",
        states=(
            Component("cart position", "m"),
            Component("pole angle", "rad"),
            Component("cart velocity", "m/s"),
            Component("pole angular velocity", "rad/s"),
        ),
        actions=(Component("force", "N"),),
        angles=(1,),
        dt=dt,
        steps=60,
        plant=_PLANT,
        action_limits=as_float64([10.0]),
        initial=Gaussian(as_float64([0.0, np.pi, 0.0, 0.0]), diagonal(0.2, 0.2, 0.2, 0.2)),
        sensor_std=as_float64([0.03, 0.03, 0.03 / dt, 0.03 / dt]),
        cost=SaturatingCost(
            AngleFeatures((1,), (0,)), as_float64([0.0, 0.0, 1.0]), as_float64(C.T @ C / COST_WIDTH**2)
        ),
        # Wide enough for the states that a swing-up passes through: (x_c, dx_c/dt, dtheta/dt, sin, cos).
        policy_spread=as_float64([0.5, 1.5, 6.0, 0.8, 0.8]),
        policy_length_scales=as_float64([1.0, 2.0, 8.0, 1.0, 1.0]),
        pose=pose,
        rates=(("cart position", "cart velocity"), ("pole angle", "pole angular velocity")),
        recover_from=PUSHED,
        mirror=("cart position", "pole angle", "cart velocity", "pole angular velocity", "force"),
    )


def cart_pole_bursts() -> Task:
    """The same, but now and then the camera sees nothing for half a second: the pole falls in less."""
    return dataclasses.replace(cart_pole(), name="cart-pole-bursts", bursts=Bursts(apart=2.0, lasting=0.5))


_PLANT = hold(derivative, 1 / 30, substeps=40)
"""One object for all tasks made, so that code compiled for one is found again for the next."""
