"""How well does a model know data that it was not trained on? Beliefs along a recorded episode, and their errors.

The filter runs over the observations and the actions as they were recorded. One step ahead, its errors are the
innovations. Several steps ahead, the belief is predicted through the recorded actions without looking at the sensors.
"""

from typing import NamedTuple

import numpy as np

from bayespilco.control.policy import Policy
from bayespilco.deploy import bridge
from bayespilco.deploy.controller import Controller, filter
from bayespilco.execution import filtered
from bayespilco.model.dynamics import Dynamics
from bayespilco.tasks import Task

AHEAD = 10
"""The longest prediction, in steps."""
STARTS = 12
"""Predictions of several steps are made from so many moments of an episode."""


class Beliefs(NamedTuple):
    """Beliefs after each observation. `N(mean, cov)` of all rows of the state."""

    mean: np.ndarray
    cov: np.ndarray


class Errors(NamedTuple):
    """Root mean square errors of what the sensors said, by steps ahead (1 to `AHEAD`) and sensor.

    NaN where nothing was measured.
    """

    rms: np.ndarray
    """In the sensors' units."""
    relative: np.ndarray
    """In predicted standard deviations: 1 if the model is right, above if it is too sure of itself."""


def filter_of(task: Task, policy: Policy, dynamics: Dynamics) -> Controller:
    """The filter that a policy would be executed with."""
    return bridge.controller(task, filtered(policy, dynamics))


def beliefs(controller: Controller, observations: np.ndarray, actions: np.ndarray) -> Beliefs:
    """The filter's beliefs along a recorded episode, in which every sample is believed, as in learning.

    A belief that overflows starts again.
    """
    a = controller.arrays
    m, V = a["initial_mean"], a["initial_cov"]
    means, covs = [], []
    for t, z in enumerate(observations):
        with np.errstate(all="ignore"):
            try:
                m, V = filter.update(a, m, V, filter.innovation(a, m, V, z)[0])
            except np.linalg.LinAlgError:
                m, V = a["initial_mean"], a["initial_cov"]
        means.append(m)
        covs.append(V)
        if t < len(actions):
            m, V = _predicted(controller, m, V, actions[t], t)
    return Beliefs(np.array(means), np.array(covs))


def errors(controller: Controller, along: Beliefs, observations: np.ndarray, actions: np.ndarray) -> Errors:
    """Predictions from the beliefs of an episode, compared with what the sensors then said."""
    a, steps = controller.arrays, len(actions)
    count = len(a["sensor_noise"])
    squares, scaled = (np.full((steps, min(AHEAD, steps), count), np.nan) for _ in range(2))
    starts = set(np.linspace(0, steps - 1, min(STARTS, steps)).astype(int).tolist())
    for t in range(steps):
        m, V = along.mean[t], along.cov[t]
        for ahead in range(min(AHEAD, steps - t) if t in starts else 1):
            m, V = _predicted(controller, m, V, actions[t + ahead], t + ahead)
            difference, variance = filter.innovation(a, m, V, observations[t + ahead + 1])
            squares[t, ahead], scaled[t, ahead] = difference**2, difference**2 / variance
    return Errors(_root_mean(squares), _root_mean(scaled))


def _root_mean(squares: np.ndarray) -> np.ndarray:
    there = np.isfinite(squares)
    total = np.where(there, squares, 0.0).sum(axis=0)
    root: np.ndarray = np.sqrt(np.where(there.any(axis=0), total / np.maximum(there.sum(axis=0), 1), np.nan))
    return root


def _predicted(
    controller: Controller, m: np.ndarray, V: np.ndarray, u: np.ndarray, t: int
) -> tuple[np.ndarray, np.ndarray]:
    a, d = controller.arrays, controller.description
    with np.errstate(all="ignore"):
        try:
            return filter.predict(a, m, V, u, t, d.model_angles, d.model_keep)
        except np.linalg.LinAlgError:
            return a["initial_mean"], a["initial_cov"]
