"""Limits as part of a task: probabilities in closed form, a constraint of the search, and a rig that ends there."""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bayespilco import LinearPolicy, Settings, learn, tasks
from bayespilco.algorithm import LIMIT_WEIGHT, check_limits, make_problem, warn_of_first_states
from bayespilco.control.limits import Bounds, outside
from bayespilco.control.objective import ExpectedCost, WithinLimits
from bayespilco.control.prediction import predict
from bayespilco.core.gaussian import Gaussian
from bayespilco.deploy.bridge import controller, within_limits
from bayespilco.deploy.rig import RandomAgent, Rig
from bayespilco.execution import filtered
from bayespilco.runs import plain
from bayespilco.tasks.components import Limit, Sensor
from tests.small_run import small_run


def limited() -> tasks.Task:
    return small_run(1).task.with_limits({"position": (-0.2, 1.2)})


def test_the_probability_of_being_outside_is_that_of_the_tails() -> None:
    state = Gaussian(jnp.array([0.3, -1.0]), jnp.array([[0.25, 0.1], [0.1, 4.0]]))
    found = outside((Bounds(0, -0.2, 1.2), Bounds(1, -np.inf, 0.5)), state)
    x, v = stats.norm(0.3, 0.5), stats.norm(-1.0, 2.0)
    assert float(found) == pytest.approx(x.cdf(-0.2) + x.sf(1.2) + v.sf(0.5))
    slope = jax.grad(lambda m: outside((Bounds(1, -np.inf, 0.5),), Gaussian(m, state.cov)))(state.mean)
    assert np.asarray(slope) == pytest.approx([0.0, v.pdf(0.5)])
    known = Gaussian(jnp.array([0.3, 2.0]), jnp.zeros((2, 2)))
    assert float(outside((Bounds(0, -0.2, 1.2),), known)) == 0.0
    assert float(outside((Bounds(1, -0.2, 1.2),), known)) == 1.0


def test_the_penalty_begins_at_the_allowed_probability_and_has_an_exact_gradient() -> None:
    run, task = small_run(1), limited()
    problem = make_problem(task, Settings(limit_probability=0.001), run.dynamics)
    policy = run.policy
    assert isinstance(policy, LinearPolicy)
    prediction = problem.prediction(policy)
    plain_value = make_problem(task, Settings(), run.dynamics).value(policy)
    assert prediction.outside is not None and prediction.outside.shape == (task.steps + 1,)
    x = stats.norm(np.asarray(prediction.state_mean)[:, 0], np.sqrt(np.asarray(prediction.state_cov)[:, 0, 0]))
    each = x.cdf(-0.2) + x.sf(1.2)
    assert np.asarray(prediction.outside) == pytest.approx(each, abs=1e-12)
    weight = LIMIT_WEIGHT * float(task.cost.worst) * (task.steps + 1)
    nats = np.log(each[1:].sum() / 0.001)  # where it starts is not the policy's doing
    assert nats > 1.5  # far above what is allowed the penalty is the logarithm itself
    assert problem.value(policy) - plain_value == pytest.approx(weight * nats, rel=0.02)
    assert problem.value(policy) < problem.rejected
    lax = problem._replace(objective=WithinLimits(ExpectedCost(), 0.999, weight, 1), limits=(Bounds(0, -90.0, 90.0),))
    assert lax.value(policy) == pytest.approx(plain_value, abs=1e-3 * weight)
    value, gradient = problem.value_and_gradient(policy)
    assert isinstance(gradient, LinearPolicy)
    step = 1e-5
    moved = [problem.value(dataclasses.replace(policy, offset=policy.offset + s)) for s in (step, -step)]
    assert (moved[0] - moved[1]) / (2 * step) == pytest.approx(float(gradient.offset.sum()), rel=1e-4)
    assert float(value) == pytest.approx(problem.value(policy))


def test_split_predictions_average_the_probabilities_of_their_parts() -> None:
    run = small_run(1)
    problem = make_problem(limited(), Settings(limit_probability=0.01), run.dynamics)
    split = problem.split(0)
    assert split.components is not None and len(split.halves()) == 1  # a logarithm is not averaged
    found = split.prediction(run.policy).outside
    assert found is not None and (np.asarray(found) >= 0).all() and (np.asarray(found) <= 1).all()
    one = problem.prediction(run.policy).outside
    assert one is not None
    # The parts make up the one Gaussian, which is exact for a linear policy on a nearly linear plant.
    assert float(found.sum()) == pytest.approx(float(one.sum()), rel=0.25, abs=0.02)


def test_the_sum_over_steps_is_at_least_the_probability_of_a_run() -> None:
    run, task = small_run(1), limited()
    prediction = predict(
        make_problem(task, Settings(), run.dynamics).predictor,
        run.policy,
        run.dynamics,
        task.initial,
        task.cost,
        task.steps,
        limits=check_limits(task, Settings()),
    )
    rng = np.random.default_rng(0)
    mean, cov = np.asarray(prediction.state_mean)[:, 0], np.asarray(prediction.state_cov)[:, 0, 0]
    # Steps that go together, as a run's do: the extreme opposite of independent ones.
    x = mean + np.sqrt(cov) * rng.normal(size=(20000, 1))
    ever = ((x < -0.2) | (x > 1.2)).any(axis=1).mean()
    assert prediction.outside is not None
    assert ever <= float(prediction.outside.sum()) + 4 * np.sqrt(ever / 20000)


def test_first_states_beyond_a_limit_are_warned_of() -> None:
    """The cart starts within 0.2 m of the middle, one standard deviation: 1.2 % of the starts are beyond 0.5 m."""
    task = tasks.cart_pole().with_limits({"cart position": (-0.5, 0.5)})
    assert 2 * stats.norm.sf(0.5 / 0.2) == pytest.approx(0.0124, abs=1e-4)
    with pytest.warns(UserWarning, match=r"limit_probability = 0\.005: 1\.2 % of the first states"):
        warn_of_first_states(task, Settings(limit_probability=0.005))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_first_states(task, Settings(limit_probability=0.02))
        warn_of_first_states(task, Settings())
        warn_of_first_states(tasks.cart_pole(), Settings())


def test_limits_are_asked_for_only_where_there_are_some(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'spring' has no limits"):
        learn("spring", limit_probability=0.005, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="limit_probability must be a number from 0 to 1"):
        Settings(limit_probability=2.0)
    for wrong in ({"allowed": 0.0, "weight": 1.0}, {"allowed": 0.1, "weight": np.inf}):
        with pytest.raises(ValueError):
            WithinLimits(ExpectedCost(), **wrong, count=1)


def test_a_run_keeps_its_limits() -> None:
    task = limited().with_limits({"position": (None, 1.2), "velocity": (-3, 3)})
    again = plain.read_task(plain.task_text(task)).task
    assert again.limits == task.limits == (Limit("position", -np.inf, 1.2), Limit("velocity", -3.0, 3.0))


def test_the_rig_has_the_limits_of_the_task() -> None:
    task = limited()
    rig = within_limits(task, Rig(Still(), realtime=False))
    assert (list(rig.low), list(rig.high)) == ([-0.2, -np.inf], [1.2, np.inf])  # type: ignore[arg-type]
    own = within_limits(task, Rig(Still(), low=[-0.1, -2.0], high=[9.0, 2.0], realtime=False))
    assert (list(own.low), list(own.high)) == ([-0.1, -2], [1.2, 2])  # type: ignore[arg-type]
    mirrored = dataclasses.replace(
        task,
        sensors=(Sensor("back", "m", of={"position": -2.0}, offset=1.0), Sensor("velocity", "m/s", of="velocity")),
    )
    turned = within_limits(mirrored, Rig(Still(), realtime=False))
    assert turned.low is not None and turned.high is not None
    assert (turned.low[0], turned.high[0]) == (pytest.approx(-1.4), pytest.approx(1.4))
    hidden = dataclasses.replace(
        task, sensors=(Sensor("velocity", "m/s", of="velocity"),), sensor_std=jnp.asarray([0.1])
    )
    with pytest.warns(UserWarning, match="cannot watch its limit"):
        within_limits(hidden, Rig(Still(), realtime=False))
    assert within_limits(small_run(1).task, rig) is rig


class Still:
    """A plant that does nothing."""

    def reset(self) -> Any:
        return np.zeros(2)

    def step(self, action: np.ndarray) -> Any:
        return np.zeros(2)


def test_a_rig_starts_only_what_is_certified(tmp_path: Path) -> None:
    run = small_run(1)
    agent = controller(run.task, filtered(run.policy, run.dynamics), "bayes-filter")
    file = tmp_path / "certificate.json"
    rig = Rig(Still(), realtime=False, certificate=file)
    with pytest.raises(ValueError, match="cannot be read as one"):
        rig.run(agent, dt=0.1, steps=2)
    rig.run(RandomAgent(np.ones(1), np.random.default_rng(0)), dt=0.1, steps=2)  # promises nothing
    found = {"go": False, "sentence": "NO GO: it would fall.", "controller": agent.fingerprint}
    file.write_text(json.dumps(found))
    with pytest.raises(ValueError, match="NO GO: it would fall"):
        rig.run(agent, dt=0.1, steps=2)
    file.write_text(json.dumps(found | {"go": True}))
    assert rig.run(agent, dt=0.1, steps=2).ended == "finished"
    other = controller(run.task, filtered(small_run(2).policy, run.dynamics), "bayes-filter")
    with pytest.raises(ValueError, match="another controller"):
        rig.run(other, dt=0.1, steps=2)
