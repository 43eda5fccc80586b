"""The filter run many times against a plant drawn from the model, beside its prediction before any run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.control.prediction import Filtered, Prediction, Unfiltered
from bayespilco.core.gaussian import Gaussian
from bayespilco.model.belief import Belief
from tests import systems
from tests.oracles import Sampled, centred

STEPS = 6
RUNS = 4_000


@pytest.fixture(scope="module")
def runs() -> tuple[np.ndarray, np.ndarray]:
    return execute_filter(systems.INITIAL)


def execute_filter(initial: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """States and costs of runs of the executed filter; the plant redraws the uncertain function at every step."""
    dynamics, policy = systems.dynamics(), systems.policy("linear").map()
    normal = jax.random.normal

    def step(carry: tuple[jax.Array, Belief], key: jax.Array) -> tuple[tuple[jax.Array, Belief], tuple]:  # type: ignore[type-arg]
        x, belief = carry
        of_sensor, of_function, of_plant = jax.random.split(key, 3)
        z = x + jnp.sqrt(dynamics.sensor_noise) * normal(of_sensor, x.shape)
        belief = belief.update(z, dynamics.R)
        u = belief.act(policy)
        inputs = dynamics.features(jnp.concatenate([x, u]))
        function = dynamics.gp(inputs) + jnp.sqrt(dynamics.gp.variance(inputs)) * normal(of_function, x.shape)
        following = function + jnp.sqrt(dynamics.process_noise) * normal(of_plant, x.shape)
        return (following, belief.predict(dynamics, u)), (x, systems.COST(x))

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, rest = jax.random.split(key)
        x = initial.mean + jnp.linalg.cholesky(initial.cov) @ normal(first, (initial.size,))
        start = x, Belief(initial.mean, initial.cov)
        return jax.lax.scan(step, start, jax.random.split(rest, STEPS + 1))[1]

    states, costs = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(0), RUNS))
    return np.asarray(states), np.asarray(costs)


def prediction(predictor: Filtered | Unfiltered) -> Prediction:
    arguments = systems.policy("linear"), systems.dynamics(), systems.INITIAL, systems.COST, STEPS
    return systems.run(predictor, *arguments)


def variances(states: np.ndarray) -> Sampled:
    return Sampled.of(centred(states) ** 2)


def test_filtered_prediction_foretells_the_runs(runs: tuple[np.ndarray, np.ndarray]) -> None:
    """Moment matching is an approximation: beside five standard errors, 2 % of the spread is granted to it."""
    states, costs = runs
    expected = prediction(Filtered())
    spread = states.std(axis=0)
    sampled = Sampled.of(states)
    assert (np.abs(sampled.value - expected.state_mean) < 5 * sampled.error + 0.02 * spread).all()
    variance, predicted = variances(states), np.diagonal(expected.state_cov, axis1=1, axis2=2)
    assert (np.abs(variance.value - predicted) < 5 * variance.error + 0.02 * spread**2).all()
    # The cost of the predicted states, by sampling them: its own moments match sine and cosine, another approximation.
    rng = np.random.default_rng(0)
    for t in range(STEPS + 1):
        x = rng.multivariate_normal(expected.state_mean[t], expected.state_cov[t], size=RUNS)
        ours, theirs = Sampled.of(jax.vmap(systems.COST)(jnp.asarray(x))), Sampled.of(costs[:, t])
        assert abs(ours.value - theirs.value) < 5 * np.hypot(ours.error, theirs.error) + 0.02 * theirs.value


def test_the_papers_literal_update_does_not(runs: tuple[np.ndarray, np.ndarray]) -> None:
    """Cov[M, Z] = 0 loses variance at every step: far outside of what sampling could explain."""
    variance = variances(runs[0])
    literal = np.diagonal(prediction(Filtered("literal")).state_cov, axis1=1, axis2=2)
    short = (variance.value - literal)[-1] / variance.error[-1]
    assert (short > 8).all(), short


def test_nor_does_a_prediction_without_the_filter(runs: tuple[np.ndarray, np.ndarray]) -> None:
    """The policy acts on less noise when the filter runs; a prediction that ignores it is wrong about the actions."""
    filtered, unfiltered = prediction(Filtered()), prediction(Unfiltered())
    assert (unfiltered.action_cov[:, 0, 0] > 1.03 * filtered.action_cov[:, 0, 0]).all()
