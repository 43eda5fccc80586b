"""How random the belief's variance is: what is measured, and what is not random at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Settings
from bayespilco.algorithm import make_problem
from bayespilco.cli import main
from bayespilco.control.prediction import Filtered
from bayespilco.control.problem import Problem
from bayespilco.execution import filtered
from bayespilco.trust.spread import HeldFilter, _prior_covs, belief_spread, spread_on
from tests import systems
from tests.small_run import small_run
from tests.test_mismatch import COST, drawn_plants, linear, policy


def test_of_a_linear_plant_nothing_is_random() -> None:
    """Its V is the same in every run. So the filter that is held to its prediction is the filter, to the last digit."""
    plant, steps = linear(0.0), 6
    problem = Problem(Filtered(), plant, systems.INITIAL, COST, steps)
    covs, _ = _prior_covs(problem, policy())
    held, free = HeldFilter(policy().map(), plant, covs), filtered(policy(), plant)
    carries = [each.start(systems.INITIAL) for each in (held, free)]
    for t, z in enumerate(np.random.default_rng(0).normal(size=(steps, 2))):
        key = jax.random.key(0)
        carries[0], one = held.step(carries[0], jnp.asarray(z), jnp.asarray(t), key)
        np.testing.assert_allclose(np.asarray(covs[t]), np.asarray(carries[1].cov), atol=1e-12)
        carries[1], other = free.step(carries[1], jnp.asarray(z), jnp.asarray(t), key)
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_of_a_learned_model_it_is_measured() -> None:
    """The parts of the gap add up, and the belief's variance is met as it was predicted, to its spread over runs."""
    run = small_run()
    problem = make_problem(run.task, run.settings, run.dynamics)
    found = spread_on(run.task, problem, run.policy, *drawn_plants(200))
    assert found.mean.shape == found.std.shape == found.predicted.shape == (run.task.steps, 2)
    assert found.runs == 200 and (found.std > 0).any() and (found.relative < 0.5).all()
    assert (np.abs(found.bias) < 0.3).all()
    np.testing.assert_allclose(found.gap, (found.cost_predicted - found.cost_held) + found.by_variance)
    assert "position [m]" in found.sentence and f"{found.cost_in_parts:.2f}" in found.sentence
    with pytest.raises(ValueError, match="executes without a filter"):
        belief_spread(run.task, Settings(method="pilco"), run.records[-1])
    with pytest.raises(ValueError, match="at least two runs"):
        belief_spread(run.task, run.settings, run.records[-1], runs=1)


def test_the_command_names_the_directory_that_is_not_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["belief", "nowhere"])
    assert "nowhere" in capsys.readouterr().err
