"""Identities that hold for any numbers, tried on numbers that hypothesis chooses.

Covariances are `A A'` of any small matrix, so that singular and zero ones are among them. Sizes are fixed: each
identity is compiled once. The choice is the same in every run.
"""

import equinox as eqx
import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bayespilco.control.policy import LinearPolicy
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, joint
from bayespilco.core.linalg import shrink
from bayespilco.core.moments import belief_moments, gp_moments
from bayespilco.model.belief import Belief, BeliefDistribution
from bayespilco.model.sensors import Sensors, complete
from tests import systems
from tests.golden import assert_close

SIZE = 3
INPUTS = 5
NUMBERS = st.floats(-2.0, 2.0, allow_subnormal=False)

examples = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def vectors(size: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, size, elements=NUMBERS)


def covariances(size: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, (size, size), elements=NUMBERS).map(lambda root: root @ root.T / size)


def variances(size: int) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.float64, size, elements=st.floats(1e-3, 4.0))


def assert_covariance(matrix: jax.Array, scale: float = 1.0) -> None:
    assert_close(matrix, matrix.T, 1e-12)
    assert np.linalg.eigvalsh(np.asarray(matrix)).min() > -1e-10 * max(scale, 1.0)


@jax.jit
def updated(mean: jax.Array, S: jax.Array, V: jax.Array, noise: jax.Array) -> BeliefDistribution:
    return BeliefDistribution(Gaussian(mean, S), V).update(complete(noise))


@examples
@given(vectors(SIZE), covariances(SIZE), covariances(SIZE), variances(SIZE))
def test_an_observation_moves_variance_from_belief_to_mean(
    mean: np.ndarray, S: np.ndarray, V: np.ndarray, noise: np.ndarray
) -> None:
    """`S + V` is conserved; `V+` is the Kalman filter's, at most `V`; the mean stays."""
    after = updated(mean, S, V, noise)
    assert_close(after.mean.mean, mean, 1e-14)
    assert_close(after.mean.cov + after.cov, S + V, 1e-12)
    assert_close(after.cov, V - V @ np.linalg.solve(V + np.diag(noise), V), 1e-11)
    assert_covariance(after.cov)
    assert_covariance(after.mean.cov - S)


HIDDEN = np.array([[1.0, 0.0, 0.0], [0.5, -1.0, 0.0]])
"""Two sensors for three states."""


@jax.jit
def condition_hidden(mean: jax.Array, V: jax.Array, noise: jax.Array, z: jax.Array) -> tuple[Belief, jax.Array]:
    sensors = Sensors(noise, HIDDEN)
    return Belief(mean, V).update(z, sensors), sensors.expected_update(V)[1]


@examples
@given(vectors(SIZE), covariances(SIZE), variances(2), vectors(2))
def test_execution_and_prediction_of_an_update_agree(
    mean: np.ndarray, V: np.ndarray, noise: np.ndarray, z: np.ndarray
) -> None:
    """Also with fewer sensors than states: the covariance does not depend on what is observed."""
    belief, predicted = condition_hidden(mean, V, noise, z)
    K = V @ HIDDEN.T @ np.linalg.inv(HIDDEN @ V @ HIDDEN.T + np.diag(noise))
    assert_close(belief.mean, mean + K @ (z - HIDDEN @ mean), 1e-10)
    assert_close(belief.cov, V - K @ HIDDEN @ V, 1e-10)
    assert_close(predicted, belief.cov, 1e-12)


@examples
@given(covariances(SIZE), covariances(SIZE), covariances(SIZE))
def test_shrinking(P: np.ndarray, B: np.ndarray, C: np.ndarray) -> None:
    """`(P^-1 + B)^-1` solves its equation, shrinks by B and C in turn as by `B + C`, and adds up its logarithms."""
    once, log_once = shrink(P, B)
    assert_close(once @ (np.eye(SIZE) + B @ P), P, 1e-11)
    assert_close(log_once, -np.linalg.slogdet(np.eye(SIZE) + P @ B)[1] / 2, 1e-11)
    assert_covariance(once)
    assert_covariance(P - once)
    twice, log_twice = shrink(once, C)
    together, log_together = shrink(P, B + C)
    assert_close(twice, together, 1e-10)
    assert_close(log_once + log_twice, log_together, 1e-10)


GP = systems.gp("uncertain")
through_gp = eqx.filter_jit(lambda mean, cov: gp_moments(GP, Gaussian(mean, cov)))
through_gp_under_beliefs = eqx.filter_jit(lambda mean, S, V: belief_moments(GP, Gaussian(mean, S), V))


@examples
@given(vectors(INPUTS), covariances(INPUTS), covariances(INPUTS))
def test_appendix_b_divides_appendix_a(mean: np.ndarray, S: np.ndarray, V: np.ndarray) -> None:
    """The law of total covariance, and its limits: no spread of the belief's mean, no belief covariance."""
    of_mean, cov = through_gp_under_beliefs(mean, S, V)
    flat = through_gp(mean, S + V)
    scale = np.abs(flat.cov).max()
    assert_close(of_mean.mean, flat.mean, 1e-12)
    assert_close(of_mean.gain, flat.gain, 1e-12)
    assert_close(of_mean.cov + cov, flat.cov, 1e-12)
    assert_covariance(of_mean.cov, scale)
    assert_covariance(cov, scale)
    nothing = np.zeros_like(S)
    certain, rest = through_gp_under_beliefs(mean, nothing, V)
    assert_close(certain.cov, np.zeros((2, 2)), 0.0, floor=1e-12 * max(scale, 1.0))
    assert_close(rest, through_gp(mean, V).cov, 1e-11)
    exact, uncertainty = through_gp_under_beliefs(mean, S, nothing)
    assert_close(uncertainty, np.diag(np.diag(uncertainty)), 1e-10, "outputs are independent given the input")
    assert_close(exact.cov + uncertainty, through_gp(mean, S).cov, 1e-11)


ANGLES = AngleFeatures((1,), (0, 2))
POLICY = LinearPolicy([[0.4, -0.6, 0.2, 0.3]], [0.1], ANGLES, [1.5]).map()


@eqx.filter_jit
def in_turn(mean: jax.Array, cov: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The policy's gain and its three maps' gains; the expected slope; the joint's covariance."""
    state = Gaussian(mean, cov)
    features = ANGLES.moments(state)
    linear = POLICY.function.moments(features.output)
    squashed = POLICY.squash.moments(linear.output)
    action = POLICY.moments(state)
    slope = jax.jacobian(lambda m: ANGLES.moments(Gaussian(m, cov)).mean)(mean)
    return action.gain - features.gain @ linear.gain @ squashed.gain, features.gain, slope, joint(state, action).cov


@examples
@given(vectors(SIZE), covariances(SIZE))
def test_gains_multiply_and_are_expected_slopes(mean: np.ndarray, cov: np.ndarray) -> None:
    """Stein's lemma: a gain is the slope of the expected output by the mean of the input."""
    difference, gain, slope, whole = in_turn(mean, cov)
    assert_close(difference, np.zeros_like(difference), 0.0, floor=1e-13)
    assert_close(gain, slope.T, 1e-12)
    assert_close(whole, whole.T, 1e-12)
    assert_close(whole[:SIZE, :SIZE], cov, 1e-14)
