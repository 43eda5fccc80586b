"""A first try that learns in seconds: push a damped mass on a spring to a mark, with noisy sensors."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.control.cost import SaturatingCost
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import as_float64, float64
from bayespilco.tasks.task import Component, Pose, Task, diagonal, hold

MASS = 1.0  # kg
STIFFNESS = 1.0  # N/m
DAMPING = 0.4  # Ns/m


def derivative(x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
    position, velocity = x
    return jnp.stack([velocity, (u[0] - STIFFNESS * position - DAMPING * velocity) / MASS])


def pose(x: np.ndarray) -> Pose:
    """A coil between the wall and the mass."""
    along = np.linspace(-1.0, x[0] - 0.1, 16)
    coil = np.column_stack([along, 0.05 * np.array([0, 0, *[1, -1] * 6, 0, 0])])
    mass = [x[0], 0.0] + 0.1 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
    return Pose(lines=(coil, mass, np.array([[x[0], 0.0]])), goal=(0.5, 0.0))


@float64
def spring() -> Task:
    """A mass on a spring, to be held 0.5 m away from rest by a linear policy."""
    return Task(
        name="spring",
        states=(Component("position", "m"), Component("velocity", "m/s")),
        actions=(Component("force", "N"),),
        angles=(),
        dt=0.2,
        steps=20,
        plant=_PLANT,
        action_limits=as_float64([2.0]),
        initial=Gaussian(as_float64([0.0, 0.0]), diagonal(0.1, 0.1)),
        sensor_std=as_float64([0.02, 0.1]),
        cost=SaturatingCost(AngleFeatures((), (0,)), as_float64([0.5]), as_float64([[1 / 0.25**2]])),
        policy_kind="linear",
        pose=pose,
        rates=(("position", "velocity"),),
    )


_PLANT = hold(derivative, 0.2, substeps=40)
