"""Simulated plants: the next state from a state and an action, made of an equation of motion."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Simulation = Callable[[Float[Array, " state"], Float[Array, " action"]], Float[Array, " state"]]


def hold(derivative: Callable[[Array, Array], Array], dt: float, substeps: int) -> Simulation:
    """The plant that follows an ODE while the action is held for `dt`: `substeps` Runge-Kutta steps of order 4."""
    h = dt / substeps

    def slope(x: Array, u: Array) -> Array:
        change = jnp.asarray(derivative(x, u))
        if change.shape != x.shape:  # it would be broadcast, and move every state alike
            raise ValueError(
                f"The derivative must be one number per state, of shape {x.shape}; given shape {change.shape}. "
                "(For one state, too: jnp.stack([...]).)"
            )
        return change

    def plant(x: Float[Array, " state"], u: Float[Array, " action"]) -> Float[Array, " state"]:
        def step(x: Array, _: None) -> tuple[Array, None]:
            k1 = slope(x, u)
            k2 = slope(x + h / 2 * k1, u)
            k3 = slope(x + h / 2 * k2, u)
            k4 = slope(x + h * k3, u)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return jax.lax.scan(step, x, length=substeps)[0]

    plant.dt = dt  # type: ignore[attr-defined]
    return plant
