"""Our training: its Jacobian and gradient, the linear case that is known exactly, and what it promises on few data."""

import functools
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import tasks
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.execution import RandomActions, execute_many
from bayespilco.model.belief import Belief
from bayespilco.model.episode import Episode, Trials, batch
from bayespilco.model.sensors import complete
from bayespilco.model.structure import free
from bayespilco.training.evidence import EvidenceFit, fit_evidence
from bayespilco.training.laplace import linearise, negative_log_evidence, settle
from bayespilco.training.placement import spread_out
from bayespilco.training.trajectory import Layout, Parameters, build, filter_trials
from tests.oracles import directional_difference

FEATURES = AngleFeatures((1,), (0, 1, 2))
"""Of [position, angle, action]."""


def _trials(steps: int = 6) -> Trials:
    rng = np.random.default_rng(3)

    def episode(steps: int) -> Episode:
        return Episode(np.cumsum(rng.normal(size=(steps + 1, 2)) * 0.3, axis=0), rng.normal(size=(steps, 1)))

    return batch([episode(steps), episode(steps - 2)])


def _layout(points: int = 4) -> Layout:
    rng = np.random.default_rng(4)
    scale = jnp.array([0.5, 0.7, 1.0, 0.6, 0.4])
    where = jnp.asarray(rng.normal(size=(points, 5)))
    initial = Gaussian([0.0, 0.1], np.diag([0.1, 0.2]))
    sensors = complete(scale[:2] ** 2)
    return Layout(FEATURES, free(2, 1), sensors, initial, jnp.zeros(5), scale, scale[:2], where)


def _parameters(layout: Layout, sensor: float = 0.3, process: float = 0.2) -> Parameters:
    rng = np.random.default_rng(5)
    full = functools.partial(np.full, 2)
    return Parameters(
        jnp.asarray(np.log(rng.uniform(0.8, 2.0, size=(2, 4)))),
        jnp.log(full(0.5)),
        jnp.log(full(sensor)),
        jnp.log(full(process)),
        jnp.asarray(0.3 * rng.normal(size=(2, layout.basis_size))),
    )


def test_jacobian_of_innovations_where_the_gain_is_constant() -> None:
    """With nearly perfect sensors the filter's gain is 1 whatever the weights: J leaves only the whitening out."""
    layout, trials = _layout(), _trials()
    p = _parameters(layout, sensor=1e-4, process=1.0)
    direction = jnp.asarray(np.random.default_rng(6).normal(size=p.weights.shape))

    def moved(step: float) -> Parameters:
        return eqx.tree_at(lambda q: q.weights, p, p.weights + step * direction)

    run = eqx.filter_jit(lambda q: filter_trials(build(q, layout), trials))
    here, forth, back = run(p), run(moved(1e-5)), run(moved(-1e-5))
    difference = (forth.white - back.white) / 2e-5
    along = here.jacobian @ direction.reshape(-1)
    assert np.allclose(here.gram, here.jacobian.T @ here.jacobian, rtol=1e-12, atol=1e-12 * np.abs(here.gram).max())
    # What differs is the whitening's own dependence on the weights, of the size of an innovation times its change.
    assert np.corrcoef(difference, along)[0, 1] > 0.995
    assert np.abs(difference - along).max() < 0.1 * np.abs(along).max()


def test_gradient_of_the_evidence() -> None:
    layout, trials = _layout(), _trials()
    p = _parameters(layout)
    gradient = eqx.filter_jit(eqx.filter_grad(negative_log_evidence))(p, layout, trials)
    value = lambda q: negative_log_evidence(q, layout, trials)  # noqa: E731
    rng = np.random.default_rng(0)
    for _ in range(3):
        direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), p)
        along = sum(jnp.sum(g * d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
        difference = directional_difference(value, p, direction)
        assert abs(along - difference) < 1e-6 * max(1.0, abs(difference))


def test_evidence_of_a_model_without_freedom_is_the_kalman_filters() -> None:
    """Weights that the prior pins to zero leave x' = x: a random walk, whose likelihood is known."""
    layout, trials = _layout(), _trials()
    p = _parameters(layout)
    p = eqx.tree_at(lambda q: (q.weights, q.log_signal), p, (jnp.zeros_like(p.weights), jnp.full(2, -20.0)))
    found = filter_trials(build(p, layout), trials)
    s = np.asarray(layout.scale[:2])
    R, Q = (0.3 * s) ** 2, (0.2 * s) ** 2
    total = 0.0
    for z, seen in zip(np.asarray(trials.observations), np.asarray(trials.complete), strict=True):
        m, P = np.array([0.0, 0.1]), np.array([0.1, 0.2])
        for observation in z[seen]:
            S = P + R
            total += np.sum((observation - m) ** 2 / S + np.log(S)) / 2
            m, P = m + P / S * (observation - m), P * R / S + Q
    assert np.isclose(np.sum(found.white**2) / 2 + found.log_det, total, rtol=1e-10)


one_process = pytest.mark.xdist_group("one random trial")
"""These tests share a fit, so they run in one process."""


@functools.cache
def _one_random_trial() -> tuple[EvidenceFit, Episode]:
    """The cart-pole's first episode, which is all a learner has at first; and episodes it has not seen."""
    task = tasks.cart_pole()
    executor = RandomActions(task.action_limits)
    seen, fresh = (execute_many(task, executor, jax.random.split(jax.random.key(seed), 4)) for seed in (0, 1))
    first = batch([Episode(seen.observations[0], seen.actions[0])])
    return fit_evidence(first, task.dynamics_features, task.initial, points=40, rounds=2), fresh


@one_process
def test_one_trial_is_enough_to_know_the_noise() -> None:
    """61 observations know a standard deviation to 9 %; training must neither take noise for signal nor the reverse."""
    fit, _ = _one_random_trial()
    ratio = np.sqrt(np.asarray(fit.dynamics.sensor_noise)) / np.asarray(tasks.cart_pole().sensor_std)
    assert (ratio > 0.65).all() and (ratio < 1.45).all(), ratio


@one_process
def test_uncertainty_holds_on_unseen_trials() -> None:
    """Run the filter along fresh trials: its surprise, in units of the uncertainty it claimed, is about one."""
    fit, fresh = _one_random_trial()
    dynamics, initial = fit.dynamics, tasks.cart_pole().initial

    @eqx.filter_jit
    @jax.vmap
    def surprise(z: jax.Array, u: jax.Array) -> jax.Array:
        def step(belief: Belief, now: tuple[jax.Array, jax.Array]) -> tuple[Belief, jax.Array]:
            z, u = now
            normalised = (z - belief.mean) ** 2 / jnp.diag(belief.cov + dynamics.R)
            return belief.update(z, dynamics.R).predict(dynamics, u), normalised

        return jax.lax.scan(step, Belief(initial.mean, initial.cov), (z[:-1], u))[1]

    normalised = np.asarray(surprise(fresh.observations, fresh.actions)).mean(axis=(0, 1))
    # 240 values each, correlated where the model errs; a model that explained noise as signal is off by far more.
    assert (normalised > 0.4).all() and (normalised < 2.5).all(), normalised


@one_process
def test_posterior_is_the_models_variance() -> None:
    """At an input far from all data only the prior is left: the kernel's signal, and the uncertain linear mean."""
    fit, _ = _one_random_trial()
    gp = fit.dynamics.gp
    far = jnp.asarray(gp.inputs[0] + 1e4 * np.eye(7)[0])
    linear = jnp.concatenate([jnp.ones(1), far])
    expected = gp.signal_variance + jnp.einsum("l,olm,m->o", linear, gp.linear_cov, linear)
    assert np.allclose(gp.variance(far), expected, rtol=1e-8)
    assert (np.asarray(jax.vmap(gp.variance)(gp.inputs)) > 0).all()


def test_a_sensor_that_can_be_trusted_is() -> None:
    """On these two trials a start in doubt ends with 3.9 rad/s of noise for a sensor that has 0.2."""
    task = tasks.double_pendulum()
    gentle = RandomActions(jnp.array([2.0, 2.0]))
    both = execute_many(task, gentle, jax.random.split(jax.random.key(1), 2))
    trials = batch([Episode(both.observations[n], both.actions[n]) for n in range(2)])
    fit = fit_evidence(trials, task.dynamics_features, task.initial, points=20, rounds=2)
    ratio = np.sqrt(np.asarray(fit.dynamics.sensor_noise)) / np.asarray(task.sensor_std)
    assert 0.5 < ratio[2] < 2.0, ratio


def test_spread_out_points_explain_the_rest() -> None:
    """Every input ends near a chosen point, none is chosen twice, and duplicates are not chosen at all."""
    rng = np.random.default_rng(0)
    inputs = np.repeat(rng.normal(size=(30, 2)), 2, axis=0)
    chosen = spread_out(inputs, np.full((1, 2), 0.5), 60)
    assert len(set(chosen)) == len(chosen) <= 30
    few = inputs[spread_out(inputs, np.full((1, 2), 2.0), 8)]
    distance = np.linalg.norm(inputs[:, None] - few[None], axis=-1).min(axis=1)
    assert distance.max() < 2.0


@pytest.mark.parametrize(
    ("episode", "points", "words"),
    [
        (Episode(np.zeros((2, 2)), np.zeros((1, 1))), 5, ["two transitions", "have 1"]),
        (Episode(np.column_stack([np.arange(9.0), np.ones(9)]), np.ones((8, 1))), 5, ["State 1", "never changes"]),
        (Episode(np.random.default_rng(0).normal(size=(9, 2)), np.ones((8, 1))), 0, ["inducing point", "given 0"]),
    ],
    ids=["too short", "constant", "no points"],
)
def test_bad_data_is_refused_with_a_sentence(episode: Episode, points: int, words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        fit_evidence(batch([episode]), FEATURES, Gaussian([0.0, 0.0], np.eye(2)), points=points)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("log_process", [-4.0, -6.0, -8.0])
def test_weights_are_found_however_little_noise_is_allowed(log_process: float) -> None:
    """Of a pendulum that is seen by its angle alone. Found with this noise at once, they called most of it noise."""
    trials, fit = _pendulum_by_its_angle()
    good = float(linearise(fit.parameters, fit.layout, trials).value)
    p = eqx.tree_at(
        lambda p: (p.weights, p.log_process), fit.parameters, (0 * fit.parameters.weights, jnp.full(2, log_process))
    )
    assert float(linearise(settle(p, fit.layout, trials), fit.layout, trials).value) < good + 20
    assert 0.035 < float(jnp.sqrt(fit.dynamics.sensor_noise[0])) < 0.065, "the true one is 0.05"


@functools.cache
def _pendulum_by_its_angle() -> tuple[Trials, EvidenceFit]:
    stored = json.loads((Path(__file__).parent / "data" / "pendulum_angles.json").read_text())
    task = tasks.pendulum().with_sensors(["angle"])
    episodes = [
        Episode(np.array(z)[:, None], np.array(u)[:, None])
        for z, u in zip(stored["angles"], stored["torques"], strict=True)
    ]
    trials = batch(episodes)
    fit = fit_evidence(
        trials,
        task.features("second-order"),
        task.start,
        structure=task.structure("second-order"),
        sensors=task.sensors_with(np.ones(1)),
        points=50,
        evaluations=20,
        rounds=1,
    )
    return trials, fit
