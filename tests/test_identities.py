"""What must hold whatever the numbers: limits, conservation, and the ways one formula contains another."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.control.policy import LinearPolicy
from bayespilco.control.prediction import Filtered, Unfiltered
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess, condition, condition_sparse
from bayespilco.core.moments import belief_moments, gp_moments
from bayespilco.core.pair_sums import LARGE
from bayespilco.model.belief import Belief, BeliefDistribution
from bayespilco.model.dynamics import Dynamics
from tests import systems
from tests.golden import assert_close
from tests.oracles import Kalman, directional_difference
from tests.systems import run

moments_of = eqx.filter_jit(gp_moments)
belief_moments_of = eqx.filter_jit(belief_moments)


@pytest.fixture(scope="module")
def beliefs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return 0.4 * rng.normal(size=5), systems.covariance(rng, 5, 0.5), systems.covariance(rng, 5, 0.4)


@pytest.mark.parametrize("kind", ["full", "uncertain"])
def test_appendix_b_splits_appendix_a(kind: str, beliefs: tuple[np.ndarray, ...]) -> None:
    mu, S, V = beliefs
    gp = systems.gp(kind)
    of_mean, cov = belief_moments_of(gp, Gaussian(mu, S), jnp.asarray(V))
    flat = moments_of(gp, Gaussian(mu, S + V))
    assert_close(of_mean.mean, flat.mean, 1e-14)
    assert_close(of_mean.gain, flat.gain, 1e-14)
    assert_close(of_mean.cov + cov, flat.cov, 1e-14)
    for part in (of_mean.cov, cov):
        assert np.linalg.eigvalsh(part).min() > -1e-12


def test_a_certain_belief_mean_gives_appendix_a(beliefs: tuple[np.ndarray, ...]) -> None:
    """S = 0: all of the covariance stays in the belief."""
    mu, _, V = beliefs
    of_mean, cov = belief_moments_of(systems.gp(), Gaussian(mu, np.zeros((5, 5))), jnp.asarray(V))
    assert_close(of_mean.cov, np.zeros((2, 2)), 0, floor=1e-14)
    assert_close(cov, moments_of(systems.gp(), Gaussian(mu, V)).cov, 1e-12)


def test_a_certain_belief_gives_the_variance_of_the_mean_function(beliefs: tuple[np.ndarray, ...]) -> None:
    """V = 0: what spreads the next belief's mean is the GP's mean function; its uncertainty stays in the belief."""
    mu, S, _ = beliefs
    of_mean, cov = belief_moments_of(systems.gp(), Gaussian(mu, S), jnp.zeros((5, 5)))
    function = eqx.tree_at(lambda gp: gp.precision, systems.gp(), None)
    assert_close(of_mean.cov, moments_of(function, Gaussian(mu, S)).cov, 1e-12)
    assert_close(cov, np.diag(np.diag(cov)), 1e-12, "outputs are independent given the input")


def test_a_certain_input_gives_the_gp_itself(beliefs: tuple[np.ndarray, ...]) -> None:
    mu = jnp.asarray(beliefs[0])
    for kind in ("full", "uncertain"):
        gp = systems.gp(kind)
        at_point = moments_of(gp, Gaussian(mu, np.zeros((5, 5))))
        assert_close(at_point.mean, gp(mu), 1e-12)
        assert_close(at_point.cov, np.diag(gp.variance(mu)), 1e-10)
        assert_close(at_point.gain, jax.jacobian(gp)(mu).T, 1e-12)


def test_padding_changes_nothing(beliefs: tuple[np.ndarray, ...]) -> None:
    """Neither values nor gradients, although the padded one is swept pair after pair."""
    mu, S, V = (jnp.asarray(part) for part in beliefs)
    gp = systems.gp("uncertain")

    def all_of(gp: GaussianProcess) -> tuple:  # type: ignore[type-arg]
        def parts(mu: jax.Array) -> jax.Array:
            of_mean, cov = belief_moments(gp, Gaussian(mu, S), V)
            return jnp.sum(jnp.sin(of_mean.mean)) + jnp.sum(jnp.cos(3 * of_mean.cov)) + jnp.sum(cov**2)

        return eqx.filter_jit(jax.value_and_grad(parts))(mu)

    expected = all_of(gp)
    value, slope = all_of(gp.padded(LARGE + 1))
    assert_close(value, expected[0], 1e-12)
    assert_close(slope, expected[1], 1e-10)
    assert_close(gp.padded(40)(mu), gp(mu), 1e-12)
    assert_close(gp.padded(40).variance(mu), gp.variance(mu), 1e-10)


def test_sparse_gp_with_all_points_is_the_full_one() -> None:
    rng = np.random.default_rng(4)
    data = rng.normal(size=(8, 2)), rng.normal(size=(8, 1))
    kernel = {"length_scales": [[1.0, 2.0]], "signal_variance": [1.3], "noise_variance": [0.1]}
    kernel = {name: np.asarray(value) for name, value in kernel.items()}
    full = condition(*data, **kernel)
    for kind in ("fitc", "vfe"):
        sparse = condition_sparse(*data, data[0], **kernel, kind=kind)  # type: ignore[arg-type]
        assert_close(sparse.weights, full.weights, 1e-7)
        assert_close(sparse.precision, full.precision, 1e-6)


@pytest.mark.parametrize("rank", [0, 1])
def test_singular_covariances_give_finite_values_and_gradients(rank: int) -> None:
    """A covariance is often singular: an action is a function of the state, a first state may be known."""
    direction = np.arange(1.0, 6.0)
    singular = jnp.asarray(rank * 0.1 * np.outer(direction, direction))

    def parts(S: jax.Array, V: jax.Array) -> jax.Array:
        of_mean, cov = belief_moments(systems.gp(), Gaussian(jnp.ones(5) / 3, S), V)
        return jnp.sum(of_mean.mean) + jnp.sum(of_mean.cov) + jnp.sum(cov) + jnp.sum(of_mean.gain)

    value, slopes = jax.jit(jax.value_and_grad(parts, argnums=(0, 1)))(singular, singular)
    assert np.isfinite(value) and all(np.isfinite(slope).all() for slope in slopes)


def test_update_conserves_variance() -> None:
    """For sensors with correlated noise too: `R` is not diagonal here."""
    rng = np.random.default_rng(5)
    S, V, R = (systems.covariance(rng, 3, scale) for scale in (0.5, 0.7, 0.2))
    before = BeliefDistribution(Gaussian(np.zeros(3), S), jnp.asarray(V))
    after = before.update(jnp.asarray(R))
    assert_close(after.mean.cov + after.cov, S + V, 1e-14)
    assert_close(after.mean.cov, S + V @ np.linalg.solve(V + R, V), 1e-13)
    assert_close(after.cov, R @ np.linalg.solve(V + R, V), 1e-13)
    literal = before.update(jnp.asarray(R), "literal")
    assert np.trace(literal.mean.cov + literal.cov) < 0.95 * np.trace(S + V)


def test_gradient_of_the_update_with_correlated_sensors() -> None:
    """With respect to V and to R, against finite differences of the textbook's formula."""
    rng = np.random.default_rng(6)
    V, R, along_V, along_R, weight = (jnp.asarray(systems.covariance(rng, 3, scale)) for scale in (0.7, 0.4, 1, 1, 1))

    def ours(both: tuple[jax.Array, jax.Array]) -> jax.Array:
        after = BeliefDistribution(Gaussian(jnp.zeros(3), jnp.zeros((3, 3))), both[0]).update(both[1])
        return jnp.sum(weight * after.cov)

    def textbook(both: tuple[np.ndarray, np.ndarray]) -> float:
        return float(np.sum(np.asarray(weight) * (both[1] @ np.linalg.solve(both[0] + both[1], both[0]))))

    by_V, by_R = jax.jit(jax.grad(ours))((V, R))
    exact = jnp.vdot(by_V, along_V) + jnp.vdot(by_R, along_R)
    numeric = directional_difference(textbook, (V, R), (along_V, along_R), step=1e-3)
    assert_close(exact, numeric, 1e-7)


def test_a_perfect_sensor_leaves_nothing_to_filter() -> None:
    """R -> 0: the filter believes the observation, and predicting it is predicting without one."""
    sharp = systems.dynamics(sensor=1e-5)
    arguments = (systems.policy(), sharp, systems.INITIAL, systems.COST, 4)
    filtered, unfiltered = run(Filtered(), *arguments), run(Unfiltered(), *arguments)
    assert_close(filtered.state_mean, unfiltered.state_mean, 1e-7)
    assert_close(filtered.state_cov, unfiltered.state_cov, 1e-7)
    assert_close(filtered.total_cost, unfiltered.total_cost, 1e-7)


def test_a_blind_sensor_teaches_nothing() -> None:
    """R -> infinity: the belief's mean stays certain, so that the action is."""
    blind = run(Filtered(), systems.policy(), systems.dynamics(sensor=1e6), systems.INITIAL, systems.COST, 4)
    assert_close(blind.action_cov, np.zeros((4, 1, 1)), 0, floor=1e-9)


A = np.array([[1.0, 0.2], [-0.1, 0.9]])
B = np.array([[0.0], [0.3]])
F = np.array([[-0.2, -0.5]])
Q = np.diag([0.01, 0.02])
R = np.diag([0.1, 0.05])
START = np.array([0.5, -0.3]), np.array([[0.3, 0.1], [0.1, 0.2]])


def linear_dynamics() -> Dynamics:
    """A GP that is its linear mean, without any uncertainty."""
    gp = GaussianProcess(
        np.zeros((1, 3)),
        np.ones((2, 3)),
        np.full(2, 1e-300),
        np.zeros((2, 1)),
        np.zeros((2, 1, 1)),
        np.hstack([A, B]),
        np.zeros(2),
    )
    return Dynamics(gp, AngleFeatures((), (0, 1, 2)), np.diag(R), np.diag(Q))


def linear_policy(limit: float = 1e6) -> LinearPolicy:
    """Squashed, but so far from its limits that it is linear: limit (9 sin y + sin 3y) / 8 is near 1.5 limit y."""
    return LinearPolicy(F / (1.5 * limit), np.zeros(1), AngleFeatures((), (0, 1)), [limit])


def test_executed_filter_is_the_kalman_filter() -> None:
    kalman, dynamics = Kalman(A, B, Q, R), linear_dynamics()
    rng = np.random.default_rng(6)
    m, P = START
    belief = Belief(jnp.asarray(m), jnp.asarray(P))
    step = eqx.filter_jit(lambda belief, z, u: belief.update(z, dynamics.R).predict(dynamics, u))
    for _ in range(5):
        z, u = rng.normal(size=2), rng.normal(size=1)
        m, P = kalman.predict(*kalman.update(m, P, z), u)
        belief = step(belief, jnp.asarray(z), jnp.asarray(u))
        assert_close(belief.mean, m, 1e-12)
        assert_close(belief.cov, P, 1e-12)


def test_filtered_prediction_is_the_closed_loop_of_the_kalman_filter() -> None:
    """Linear-quadratic-Gaussian control: the state's covariance is that of the estimate plus that of its error."""
    path = Kalman(A, B, Q, R).closed_loop(F, *START, 8)
    cost = eqx.tree_at(lambda c: c.features, systems.COST, AngleFeatures((), (0, 1, 1)))
    predicted = run(Filtered(), linear_policy(), linear_dynamics(), Gaussian(*START), cost, 8)
    for t, (mean, cov) in enumerate(path):
        assert_close(predicted.state_mean[t], mean, 1e-10)
        assert_close(predicted.state_cov[t], cov, 1e-10)
    literal = run(Filtered("literal"), linear_policy(), linear_dynamics(), Gaussian(*START), cost, 8)
    assert np.trace(literal.state_cov[8]) < 0.8 * np.trace(path[8][1]), "the paper's update loses variance"
