"""Tasks: a plant with named states and units, what it costs to be where, and how long an episode lasts."""

from collections.abc import Callable

from bayespilco.tasks.cart_pole import cart_pole as cart_pole
from bayespilco.tasks.double_pendulum import double_pendulum as double_pendulum
from bayespilco.tasks.pendulum import pendulum as pendulum
from bayespilco.tasks.spring import spring as spring
from bayespilco.tasks.task import Component as Component
from bayespilco.tasks.task import Pose as Pose
from bayespilco.tasks.task import Task as Task

TASKS: dict[str, Callable[[], Task]] = {
    "cart-pole": cart_pole,
    "pendulum": pendulum,
    "double-pendulum": double_pendulum,
    "spring": spring,
}
"""The built-in tasks, by the names of the command line."""
