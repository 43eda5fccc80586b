"""Plants drawn from a model: over many draws they have the mean and the variance that the model claims."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Dynamics, execution, tasks
from bayespilco.control.policy import LinearPolicy
from bayespilco.execution import RandomActions, execute, execute_many, rehearse
from bayespilco.model.episode import batch
from bayespilco.model.posterior_samples import draw, draw_many
from bayespilco.training.direct import fit_direct
from bayespilco.training.evidence import EvidenceFit, fit_evidence

pytestmark = pytest.mark.xdist_group("drawn")
DRAWS = 4000


@functools.cache
def fit() -> EvidenceFit:
    task = tasks.spring()
    episodes = [execute(task, RandomActions(task.action_limits), jax.random.key(n)) for n in range(2)]
    return fit_evidence(batch(episodes), task.dynamics_features, task.initial, points=8, evaluations=15, rounds=1)


@functools.cache
def direct():  # type: ignore[no-untyped-def]
    task = tasks.spring()
    episodes = [execute(task, RandomActions(task.action_limits), jax.random.key(n)) for n in range(2)]
    return fit_direct(batch(episodes), task.dynamics_features, task.initial, points=8, evaluations=5)


def agrees(model: Dynamics, drawn: Dynamics) -> None:
    """The law of total variance over the draws, at points near the data and far from them."""
    points = 2.0 * jax.random.normal(jax.random.key(5), (6, 3))
    each = jax.vmap(lambda d: (jax.vmap(d.gp)(points), jax.vmap(d.gp.variance)(points)))
    means, rest = (np.asarray(part) for part in eqx.filter_jit(each)(drawn))
    variance = np.asarray(jax.vmap(model.gp.variance)(points))
    error = means.std(axis=0) / np.sqrt(DRAWS)
    assert (np.abs(means.mean(axis=0) - np.asarray(jax.vmap(model.gp)(points))) < 4.5 * error + 1e-9).all()
    # What the points leave unexplained is the same in every draw; the rest is the spread of the draws (its relative
    # standard error: sqrt(2 / draws)).
    assert np.ptp(rest, axis=0) == pytest.approx(0, abs=1e-7)
    spread = means.var(axis=0, ddof=1)
    assert (np.abs(spread + rest[0] - variance) < 4.5 * np.sqrt(2 / DRAWS) * spread + 1e-5 * variance).all()
    assert (spread > 0).all()


def keys(count: int = DRAWS) -> jax.Array:
    return jax.random.split(jax.random.key(3), count)


def test_joint_draws_have_the_models_mean_and_variance() -> None:
    agrees(fit().dynamics, draw_many(fit(), keys()))


def test_each_output_for_itself_too() -> None:
    """The matrices of the same model, with their uncertain linear mean, and those of the Direct method, without."""
    agrees(fit().dynamics, jax.vmap(lambda key: draw(fit().dynamics, key))(keys()))
    agrees(direct().dynamics, draw_many(direct(), keys()))


def test_joint_draws_are_correlated_among_outputs() -> None:
    """Position and velocity share their data: their errors go together, which independent draws cannot show."""
    x = jnp.array([0.3, 0.2, 1.0])

    def correlation(drawn: Dynamics) -> float:
        return float(np.corrcoef(np.asarray(jax.vmap(lambda d: d.gp(x))(drawn)).T)[0, 1])

    root = np.asarray(fit().root)
    posterior = np.linalg.inv(root @ root.T)
    half = len(posterior) // 2
    assert np.abs(posterior[:half, half:]).max() > 1e-3  # there is something to be missed
    joint = correlation(draw_many(fit(), keys()))
    alone = correlation(jax.vmap(lambda key: draw(fit().dynamics, key))(keys()))
    assert abs(alone) < 4.5 / np.sqrt(DRAWS) < abs(joint)


def test_a_rehearsal_is_an_execution_on_the_drawn_plant() -> None:
    """On the true plant, put in place of a drawn one, rehearsed and executed costs have the same distribution."""
    task = tasks.spring()
    policy = LinearPolicy(jnp.array([[-1.0, -0.5]]), jnp.array([0.7]), task.policy_features, task.action_limits)
    count = 400
    executor = execution.filtered(policy, fit().dynamics)
    model = fit().dynamics
    plants = draw_many(fit(), keys(count))
    rehearsed = rehearse(task, executor, plants, keys(count))
    assert rehearsed.costs is not None and rehearsed.states is not None
    assert np.asarray(rehearsed.costs).shape == (count, task.steps + 1)
    # The sensors are those that were learned.
    noise = np.asarray(rehearsed.observations - rehearsed.states).std(axis=(0, 1))
    assert noise == pytest.approx(np.sqrt(np.asarray(model.sensor_noise)), rel=0.05)
    # One step has the moments that the model predicts, over plants and process noise together.
    x = np.asarray(rehearsed.states)
    step = x[:, 1] - np.asarray(jax.vmap(lambda x, u: model(x, u))(rehearsed.states[:, 0], rehearsed.actions[:, 0]))
    inputs = jnp.concatenate([rehearsed.states[:, 0], rehearsed.actions[:, 0]], axis=1)
    expected = np.asarray(jax.vmap(model.gp.variance)(inputs) + model.process_noise)
    normal = step / np.sqrt(expected)
    assert (np.abs(normal.mean(axis=0)) < 4.5 / np.sqrt(count)).all()
    assert (np.abs(normal.var(axis=0) - 1) < 4.5 * np.sqrt(2 / count)).all()
    executed = execute_many(task, executor, keys(count))
    assert np.array_equal(np.asarray(executed.states)[:, 0], x[:, 0])  # the same first states
