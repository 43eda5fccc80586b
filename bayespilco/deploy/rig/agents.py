"""What an agent may do with the actuators, and an agent without knowledge, for the first data."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bayespilco.deploy.rig.protocols import Agent


@dataclass(frozen=True, eq=False)
class ActionRange:
    """The actions that an agent may choose, and the one at which the plant is left."""

    low: np.ndarray
    high: np.ndarray
    rest: np.ndarray

    @classmethod
    def of(cls, agent: Agent) -> "ActionRange":
        """The range of an agent's actions. Ranges that make no sense give a `ValueError`."""
        low, high = (_array(agent, name) for name in ("low", "high"))
        if low is None or high is None:
            limits = np.array(agent.limits, dtype=np.float64)
            low, high = -limits if low is None else low, limits if high is None else high
        if low.ndim != 1 or low.shape != high.shape or not (low < high).all():
            raise ValueError(f"The agent's low must be below its high, one entry per action; given {low} and {high}.")
        rest = _array(agent, "rest")
        if rest is None and not ((low <= 0) & (high >= 0)).all():
            raise ValueError(
                f"Zero is not within the agent's actions, which go from {low} to {high}. Give the agent an attribute "
                "`rest`: the action at which the plant is to be left."
            )
        rest = np.zeros_like(low) if rest is None else rest
        if rest.shape != low.shape or not ((low <= rest) & (rest <= high)).all():
            raise ValueError(f"The agent's rest must be an action from {low} to {high}; given {rest}.")
        return cls(low, high, rest)

    def __len__(self) -> int:
        return len(self.low)

    def clip(self, action: np.ndarray) -> np.ndarray:
        clipped: np.ndarray = np.clip(action, self.low, self.high)
        return clipped


def _array(agent: Agent, name: str) -> np.ndarray | None:
    given = getattr(agent, name, None)
    return None if given is None else np.array(given, dtype=np.float64)


@dataclass
class RandomAgent:
    """Uniform actions within the limits."""

    limits: np.ndarray
    """Actions lie between minus and plus this, unless `low` and `high` are given."""
    random: np.random.Generator
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    rest: np.ndarray | None = None

    def reset(self) -> None:
        pass

    def act(self, observation: Any) -> np.ndarray:
        low = -self.limits if self.low is None else self.low
        high = self.limits if self.high is None else self.high
        action: np.ndarray = (low + high) / 2 + (high - low) / 2 * self.random.uniform(-1, 1, len(low))
        return action
