"""Tasks: a plant with named states and units, what it costs to be where, and how long an episode lasts."""

from collections.abc import Callable

from bayespilco.core.registry import Registry
from bayespilco.tasks.cart_pole import cart_pole as cart_pole
from bayespilco.tasks.cart_pole import cart_pole_bursts as cart_pole_bursts
from bayespilco.tasks.components import Bursts as Bursts
from bayespilco.tasks.components import Component as Component
from bayespilco.tasks.components import Pose as Pose
from bayespilco.tasks.components import Reference as Reference
from bayespilco.tasks.components import Sensor as Sensor
from bayespilco.tasks.components import Start as Start
from bayespilco.tasks.double_pendulum import double_pendulum as double_pendulum
from bayespilco.tasks.light_dark import light_dark as light_dark
from bayespilco.tasks.pendulum import pendulum as pendulum
from bayespilco.tasks.servo import servo as servo
from bayespilco.tasks.spring import spring as spring
from bayespilco.tasks.tank import tank as tank
from bayespilco.tasks.task import Task as Task

TASKS: Registry[Callable[[], Task]] = Registry("task")
"""The built-in tasks, by the names of the command line."""
TASKS.add("cart-pole", cart_pole)
TASKS.add("pendulum", pendulum)
TASKS.add("double-pendulum", double_pendulum)
TASKS.add("spring", spring)
TASKS.add("tank", tank)
TASKS.add("servo", servo)
TASKS.add("light-dark", light_dark)
TASKS.add("cart-pole-bursts", cart_pole_bursts)
