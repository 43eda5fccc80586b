"""How random is the belief's variance, and what does that explain? The first thing that the paper left open.

A prediction has one covariance V per step. In executions V depends on where the belief is, and so on chance. Here the
same policy runs, on the same plants drawn from the model and with the same random numbers, with two filters: the one
that is executed, and one whose V is held to the path that was predicted, on average over the parts of the first state.
So the gap between the predicted total cost of one Gaussian and that of the first filter has three parts:

    one Gaussian - executed = (one Gaussian - in parts) + (in parts - held) + (held - executed)

The last is all that the randomness of V can explain. The first is what one Gaussian misses of where the plant may be,
and the second what is left of that within the parts.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.algorithm import METHODS, Record, Settings, make_problem
from bayespilco.control import prediction
from bayespilco.control.policy import Policy, PolicyMap
from bayespilco.control.problem import Problem
from bayespilco.core.compilation import compiled
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.precision import float64
from bayespilco.execution import Filtered, PolicyExecutor, filtered, simulate_samples
from bayespilco.model.belief import Belief
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.posterior_samples import draw_many
from bayespilco.tasks import Task
from bayespilco.trust.innovations import filter_trace
from bayespilco.trust.promises import PURPOSE

RUNS = 200


class HeldFilter(PolicyExecutor):
    """The executed filter, but for its covariance, which is given for each step. Its mean moves as ever."""

    policy: PolicyMap
    dynamics: Dynamics
    covs: Float[Array, "steps state state"]
    """V before each observation."""

    def start(self, initial: Gaussian) -> Float[Array, " state"]:
        return initial.mean

    def step(self, carry: Array, observation: Float[Array, " sensor"], t: Array, key: Array) -> tuple[Array, Array]:
        updated = Belief(carry, self.covs[t]).update(observation, self.dynamics.sensors)
        action = updated.act(self.policy)
        return updated.predict(self.dynamics, action, t).mean, action


class Spread(NamedTuple):
    """The belief's standard deviation of each state at each step, over runs and predicted; and total costs."""

    names: tuple[str, ...]
    """Of all rows of the state."""
    mean: Float[np.ndarray, "steps state"]
    """After the observation, on average over runs."""
    std: Float[np.ndarray, "steps state"]
    """How far runs differ in it: a standard deviation."""
    predicted: Float[np.ndarray, "steps state"]
    """In parts."""
    cost_predicted: float
    """The total cost by moments, from one Gaussian."""
    cost_in_parts: float
    """From parts of the first state."""
    cost_split_again: float
    """From these, each split once more half-way: from there every part has its own path of V."""
    cost_held: float
    """By sampling, with V held to its predicted path."""
    cost_executed: float
    """By sampling, with the filter as it is."""
    error: float
    """The standard error of that."""
    held_error: float
    """The standard error of the difference of the two, which share their plants and random numbers."""
    runs: int

    @property
    def relative(self) -> Float[np.ndarray, " state"]:
        """How far runs differ, relative to the mean: over all steps. Zero for what is known."""
        shares: np.ndarray = np.sqrt(np.mean(np.square(_share(self.std, self.mean)), axis=0))
        return shares

    @property
    def bias(self) -> Float[np.ndarray, " state"]:
        """How far the prediction is from the mean over runs, relative to it, on average over steps."""
        ratios: np.ndarray = np.mean(_share(self.predicted, self.mean), axis=0)
        return np.where(self.mean.any(axis=0), ratios - 1, 0.0)

    @property
    def gap(self) -> float:
        """Predicted, from one Gaussian, minus executed."""
        return self.cost_predicted - self.cost_executed

    @property
    def by_variance(self) -> float:
        """How much of the gap the randomness of V explains."""
        return self.cost_held - self.cost_executed

    @property
    def sentence(self) -> str:
        spread = [f"{name} {100 * r:.0f} %" for name, r in zip(self.names, self.relative, strict=True) if r > 0]
        gap = f"Predicted {self.cost_predicted:.2f}, executed {self.cost_executed:.2f} +- {self.error:.2f}"
        share = f"the randomness of V explains {self.by_variance:+.2f} +- {self.held_error:.2f} of {self.gap:+.2f}"
        again = f"from parts that split again half-way {self.cost_split_again:.2f}"
        return (
            f"The belief's standard deviation differs from run to run by {', '.join(spread)}. {gap}: {share}. From "
            f"parts of the first state {self.cost_in_parts:.2f} is predicted, {again}."
        )


def _share(one: np.ndarray, of: np.ndarray) -> np.ndarray:
    shares: np.ndarray = np.divide(one, of, out=np.zeros_like(one), where=of > 0)
    return shares


@float64
def belief_spread(task: Task, settings: Settings, record: Record, *, runs: int = RUNS) -> Spread:
    """Measure it, for the policy of a record, on plants drawn from its model."""
    if runs < 2:
        raise ValueError(f"What differs from run to run needs at least two runs; given {runs}.")
    policy, dynamics = record.policy, record.dynamics
    if not isinstance(METHODS[settings.method].executor(policy, dynamics), Filtered):
        raise ValueError(
            f"{settings.method} executes without a filter, so there is no belief whose variance to measure."
        )
    problem = make_problem(task, settings, dynamics)._replace(predictor=prediction.Filtered())
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(settings.seed), PURPOSE), 2**22)
    of_plants, of_runs = jax.random.split(key)
    plants, keys = draw_many(record.fit, jax.random.split(of_plants, runs)), jax.random.split(of_runs, runs)
    return spread_on(task, problem, policy, plants, keys)


@float64
def spread_on(task: Task, problem: Problem, policy: Policy, plants: Dynamics, keys: Array) -> Spread:
    """The same for any model, on plants that are given: a `Dynamics` whose arrays have a leading axis."""
    dynamics, runs, split = problem.dynamics, len(keys), problem.split()
    if dynamics.sensors.bursts is not None:
        raise ValueError(
            f"The sensors of {task.name!r} lose samples in bursts, and the belief's variance depends on when. So there "
            "is no single predicted path of it to compare runs with. Use a task without bursts."
        )
    covs, predicted = _prior_covs(split, policy)
    executed = simulate_samples(task, filtered(policy, dynamics), plants, keys)
    held = simulate_samples(task, HeldFilter(policy.map(), dynamics, covs), plants, keys)
    found = np.asarray(filter_trace(dynamics, task.start, executed).belief_std)[:, :-1]
    totals, of_held = (np.asarray(each.costs).sum(axis=1) for each in (executed, held))
    root = np.sqrt(runs)
    return Spread(
        task.row_names,
        found.mean(axis=0),
        found.std(axis=0, ddof=1),
        np.sqrt(np.diagonal(np.asarray(predicted), axis1=1, axis2=2)),
        problem.value(policy),
        split.value(policy),
        split.split_again().value(policy),
        float(of_held.mean()),
        float(totals.mean()),
        float(totals.std(ddof=1) / root),
        float((of_held - totals).std(ddof=1) / root),
        runs,
    )


@compiled
def _prior_covs(problem: Problem, policy: Policy) -> tuple[Array, Array]:
    """V before and after each observation of a prediction, on average over parts if it is split."""
    predictor, dynamics, ready = problem.predictor, problem.dynamics, policy.map()

    def step(carry: Any, t: Array) -> tuple[Any, tuple[Array, Array]]:
        made = predictor.step(carry, t, ready, dynamics)
        return made.following, (carry.cov, made.belief_cov)

    def path(first: Any) -> tuple[Array, Array]:
        covs: tuple[Array, Array] = jax.lax.scan(step, first, jnp.arange(problem.steps))[1]
        return covs

    if problem.components is None:
        return path(predictor.start(problem.initial, dynamics))
    paths = jax.lax.map(path, predictor.starts(problem.initial, dynamics, problem.components))
    before, after = jax.tree.map(lambda each: jnp.mean(each, axis=0), paths)
    return before, after
