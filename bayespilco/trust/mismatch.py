"""What if the filter is wrong? The cost of a policy whose filter has another model or other noises than its plant.

A sensor may be noisier than it was, a model may be four episodes old, a cheaper filter may be all that the machine has
time for. What the policy then costs is foreseen in two ways: by moments (`control.prediction.Mismatched`), which is
quick and has a gradient, and by running the wrong filter on plants drawn from the model, which approximates nothing but
the plant.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from bayespilco.algorithm import Record, Settings, make_problem
from bayespilco.control.policy import Policy
from bayespilco.control.prediction import Mismatched
from bayespilco.control.problem import Problem
from bayespilco.core.precision import float64
from bayespilco.execution import filtered, simulate_samples
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.posterior_samples import draw_many
from bayespilco.tasks import Task
from bayespilco.trust.promises import PURPOSE
from bayespilco.trust.sensors import told

RUNS = 200


class Foreseen(NamedTuple):
    """The total cost of a policy with a filter that may be wrong."""

    predicted: float
    """By moments."""
    sampled: float
    """On plants drawn from the model, on average."""
    error: float
    """The standard error of that."""

    @property
    def missed(self) -> float:
        """How far the prediction is from sampling, relative to it."""
        return self.predicted / self.sampled - 1


@float64
def foresee(
    task: Task, settings: Settings, record: Record, filter: Dynamics, *, runs: int = RUNS, split: bool = True
) -> Foreseen:
    """What a record's policy will cost on the plants of its model, executed with this filter.

    Args:
        filter: What the filter knows. With the record's own dynamics, nothing is wrong.
        runs: Samples, each on a plant of its own.
        split: Whether to predict from parts of the first state.
    """
    if runs < 2:
        raise ValueError(f"A mean with an error needs at least two runs; given {runs}.")
    if filter.structure.states != record.dynamics.structure.states:
        raise ValueError(
            f"The filter has {filter.structure.states} rows of the state, the plant's model "
            f"{record.dynamics.structure.states}: they must be of the same task."
        )
    problem = make_problem(task, settings, record.dynamics)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.seed), PURPOSE), 2**21)
    of_plants, of_runs = jax.random.split(key)
    plants, keys = draw_many(record.fit, jax.random.split(of_plants, runs)), jax.random.split(of_runs, runs)
    return foresee_on(task, problem, record.policy, filter, plants, keys, split=split)


@float64
def foresee_on(
    task: Task, problem: Problem, policy: Policy, filter: Dynamics, plants: Dynamics, keys: Array, *, split: bool = True
) -> Foreseen:
    """The same for any problem, on plants that are given: a `Dynamics` whose arrays have a leading axis."""
    problem = problem._replace(predictor=Mismatched(filter)).drawn()
    predicted = (problem.split() if split else problem).value(policy)
    executed = simulate_samples(task, filtered(policy, filter), plants, keys)
    totals = np.asarray(executed.costs) @ task.discount ** np.arange(task.steps + 1)
    return Foreseen(predicted, float(totals.mean()), float(totals.std(ddof=1) / np.sqrt(len(totals))))


@float64
def with_wrong_noise(dynamics: Dynamics, factor: float) -> Dynamics:
    """A filter that takes the variances of all sensors for so many times what they are."""
    if not 0 < factor < np.inf:
        raise ValueError(f"The noise can be multiplied by a positive number; given {factor}.")
    return told(dynamics, dynamics.sensors.with_noise(factor * dynamics.sensors.noise))
