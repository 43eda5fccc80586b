"""A servo motor that follows a moving target: a path that the policy sees as it goes, at a level drawn anew each time.

Only the position is measured, by a noisy potentiometer; the velocity is hidden.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.control.cost import effort, tracking
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import as_float64, float64
from bayespilco.tasks.components import Component, Pose, Reference, Sensor
from bayespilco.tasks.simulation import hold
from bayespilco.tasks.task import Task, diagonal

FRICTION = 2.0  # 1/s
GAIN = 6.0  # rad/s^2 per volt
SPRING = 3.0  # 1/s^2, of a soft return spring, which makes levels differ
DT = 0.1  # s
STEPS = 50
AMPLITUDE, PERIOD = 0.6, 2.5  # rad, s


def derivative(x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
    position, velocity = x
    return jnp.stack([velocity, GAIN * u[0] - FRICTION * velocity - SPRING * jnp.sin(position)])


def path() -> tuple[np.ndarray, np.ndarray]:
    """Where the target is at each step, and how fast it moves."""
    phase = 2 * np.pi * DT * np.arange(STEPS + 1) / PERIOD
    return AMPLITUDE * np.sin(phase), AMPLITUDE * 2 * np.pi / PERIOD * np.cos(phase)


def pose(x: np.ndarray) -> Pose:
    return Pose(lines=(np.array([[0.0, 0.0], [np.sin(x[0]), np.cos(x[0])]]),))


@float64
def servo() -> Task:
    """Follow a target that swings to and fro, with little voltage."""
    position, target, voltage = 0, 2, 4  # components of [position, velocity, target, its speed, voltage]
    where, speed = path()
    return Task(
        name="servo",
        states=(Component("position", "rad"), Component("velocity", "rad/s")),
        actions=(Component("voltage", "V"),),
        angles=(),
        dt=DT,
        steps=STEPS,
        plant=_PLANT,
        action_limits=as_float64([3.0]),
        initial=Gaussian(as_float64([0.0, 0.0]), diagonal(0.1, 0.1)),
        sensor_std=as_float64([0.02]),
        cost=tracking([position], [target], width=0.15) + 0.02 * effort([voltage], width=1.0),
        policy_kind="linear",
        pose=pose,
        rates=(("position", "velocity"),),
        sensors=(Sensor("position", "rad", of=(("position", 1.0),)),),
        references=(
            Reference("target", "rad", tuple(where), std=0.3),
            Reference("target speed", "rad/s", tuple(speed)),
        ),
    )


_PLANT = hold(derivative, DT, substeps=20)
