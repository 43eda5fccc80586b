"""A learned controller to take away: one file, loaded and run with NumPy alone.

    controller = Controller.load("cart-pole.controller")
    controller.reset()
    u = controller.act(z)      # once per sampling period, with what the sensors measured

`act` is one step of the filter that was used for learning (Section 3.1 of the paper): update the belief with the
observation, act on it, predict it through the model to the next step. A controller that was learned by a method
without a filter acts on the observation itself. An entry of `z` that is NaN is missing. The belief is then updated with
the other entries, if there are any. Without a filter, the last value seen takes the place of a missing one. An entry
that the filter cannot explain is rejected, as if it were missing; `controller.health` says so.

To see how long a step takes on this machine, compared with the sampling period:

    python -m bayespilco.controller cart-pole.controller

To read it, go down this list:

    filter        the mathematics of one belief: update, act, predict
    gate          which entries of an observation are believed
    health        what a controller says about itself
    format        the file: what it holds, how it is checked, read and written
    controller    the object that carries a belief through an episode
    timing        how long a step takes, and the command above
"""

from bayespilco.deploy.controller.controller import Controller
from bayespilco.deploy.controller.filter import LARGEST_NUMBER, Array
from bayespilco.deploy.controller.format import (
    CHECK,
    FILTER_SHAPES,
    FORMAT,
    LARGEST_FILE,
    NO_SUM,
    POSITIVE,
    SCALES,
    SHAPES,
    Description,
    Malformed,
    signed,
)
from bayespilco.deploy.controller.gate import GATE, PATIENCE
from bayespilco.deploy.controller.health import Health
from bayespilco.deploy.controller.timing import main, timing

__all__ = [
    "CHECK",
    "FILTER_SHAPES",
    "FORMAT",
    "GATE",
    "LARGEST_FILE",
    "LARGEST_NUMBER",
    "NO_SUM",
    "PATIENCE",
    "POSITIVE",
    "SCALES",
    "SHAPES",
    "Array",
    "Controller",
    "Description",
    "Health",
    "Malformed",
    "main",
    "signed",
    "timing",
]
