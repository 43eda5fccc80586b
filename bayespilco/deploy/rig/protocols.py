"""The two sides of the loop: a plant, and an agent that controls it."""

from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Plant(Protocol):
    """What is controlled. An observation has one entry per sensor, NaN where it is missing. None: all are missing.

    Three further methods are used if they exist. `stop()` is called at the end, in place of a step with the rest action
    of the agent. `rest_at(action)` is called before each `reset`, and tells the plant that action. `seed(number)` is
    called before each `reset`, for a simulation that draws random numbers. So are two attributes: `dt`, the sampling
    period that the plant keeps, and `true_state`, without the noise of the sensors, which only a simulation knows.
    """

    def reset(self) -> Any:
        """Bring the plant to its start, however long that takes, and return the first observation."""

    def step(self, action: np.ndarray) -> Any:
        """Apply an action at once, and return the observation one sampling period later.

        The plant itself waits for the sampling period to pass (see `Paced`). If it returns earlier, as a simulation
        does, the rig waits.
        """


@runtime_checkable
class Agent(Protocol):
    """What controls, such as a `Controller`.

    Further attributes are used if they exist. `low` and `high`, arrays with one entry per action, bound the actions of
    actuators that are not symmetric, such as 0 to 10 V. Without them the bounds are `-limits` and `limits`. `rest` is
    the action at the end of an episode, zero without it. `required` has the indices of the states that the agent cannot
    do without.
    """

    limits: np.ndarray

    def reset(self) -> None: ...
    def act(self, observation: Any) -> np.ndarray: ...
