"""The linear frame around the GP: known rows, hidden states, fewer sensors than states, delays, dropouts."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespilco import Gaussian, tasks
from bayespilco.control.policy import LinearPolicy
from bayespilco.control.prediction import Filtered, MostLikely
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gp import GaussianProcess, condition
from bayespilco.core.moments import gp_moments
from bayespilco.model.belief import Belief, BeliefDistribution
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.sensors import Sensors, selecting, unobservable
from bayespilco.model.structure import Structure, free, second_order
from tests import systems
from tests.golden import assert_close
from tests.oracles import Sampled, products

DT = 0.1


def structure() -> Structure:
    """A position, its rate and a third state; an action one step late; a reference; what a slow sensor will report."""
    made = second_order(3, 1, [(0, 1)], DT).with_action_delay(2)
    return made.with_sensor_delay(np.array([[1.0, 0.0, 0.5]]), 1).with_references(1, np.full((5, 1), 0.05))


@functools.cache
def dynamics() -> Dynamics:
    """Rows: position, rate, other, u_1, u_2, late sensor, reference. The GP has two outputs, of rate and other."""
    rows = structure()
    assert rows.states == 7 and rows.outputs == (1, 2) and rows.acting == (4,) and rows.known == (3, 4, 6)
    features = AngleFeatures((), (0, 1, 2, 4))  # position, rate, other, and the action that is felt
    C = np.zeros((2, 7))
    C[0, 0], C[1, 5] = 1.0, 1.0
    sensors = Sensors([0.02, 0.03], C, (0.1, 0.0))
    noise = np.array([0.001, 0.01, 0.02, 0.0, 0.0, 0.0, 0.0])
    rng = np.random.default_rng(8)
    x = rng.uniform(-1.5, 1.5, size=(12, 4))
    y = np.column_stack([0.9 * x[:, 1] + 0.3 * np.sin(2 * x[:, 0]) + 0.2 * x[:, 3], 0.8 * x[:, 2] * np.cos(x[:, 1])])
    scales = np.array([[0.9, 2.0, 1.7, 2.0], [1.6, 1.2, 1.5, 1.8]])
    slope = np.array([[0.0, 0.9, 0.0, 0.2], [0.1, 0.0, 0.5, 0.0]])
    gp = condition(x, y, scales, np.array([0.2, 0.3]), np.array([1e-3, 2e-3]), slope, np.array([0.02, -0.01]))
    return Dynamics(gp, features, sensors, noise, rows)


def start() -> Gaussian:
    rng = np.random.default_rng(3)
    return Gaussian(0.3 * rng.normal(size=7), systems.covariance(rng, 7, 0.5))


def test_moments_of_known_and_learned_rows_by_sampling() -> None:
    model, count = dynamics(), 200_000
    rng = np.random.default_rng(0)
    mean, cov = np.append(start().mean, 0.2), systems.covariance(rng, 8, 0.4)
    moments = eqx.filter_jit(model.moments)(Gaussian(mean, cov), 2)
    a = rng.multivariate_normal(mean, cov, size=count)
    inputs = jax.vmap(model.features)(jnp.asarray(a))
    y = np.asarray(jax.vmap(model.gp)(inputs))
    y = y + np.sqrt(np.asarray(jax.vmap(model.gp.variance)(inputs))) * rng.normal(size=y.shape)
    features = model.features.moments(Gaussian(mean, cov))
    N, B = model.structure.around(features.then(gp_moments(model.gp, features.output)).gain)
    following = a @ np.asarray(N).T + y @ np.asarray(B).T + np.asarray(model.structure.drift_at(2))
    following += np.sqrt(np.asarray(model.process_noise)) * rng.normal(size=following.shape)
    Sampled.of(following).assert_agrees(moments.mean, "mean")
    Sampled.of(products(following, following)).assert_agrees(moments.cov, "covariance")
    Sampled.of(products(a, following)).assert_agrees(cov @ np.asarray(moments.gain), "cross-covariance")


def test_beliefs_through_the_frame_divide_the_flattened_covariance() -> None:
    """S' + V' is Appendix A at S + V; with no spread V' is all of it, and the mean and the gain are the same."""
    model, rng = dynamics(), np.random.default_rng(1)
    mean, S = np.append(start().mean, 0.2), systems.covariance(rng, 8, 0.4)
    V = systems.covariance(rng, 7, 0.3)
    V[list(model.structure.known)] = V[:, list(model.structure.known)] = 0.0
    of_mean, left = eqx.filter_jit(model.belief_moments)(Gaussian(mean, S), jnp.asarray(V), 1)
    flat = eqx.filter_jit(model.moments)(Gaussian(mean, S + np.pad(V, (0, 1))), 1)
    assert_close(of_mean.cov + left, flat.cov, 1e-12)
    assert_close(of_mean.mean, flat.mean, 1e-12)
    assert_close(of_mean.gain, flat.gain, 1e-12)
    certain, all_of_it = model.belief_moments(Gaussian(mean, np.zeros((8, 8))), jnp.asarray(V), 1)
    assert_close(certain.cov, np.zeros((7, 7)), 0, floor=1e-12)
    assert_close(all_of_it, model.moments(Gaussian(mean, np.pad(V, (0, 1))), 1).cov, 1e-11)
    known = np.array(model.structure.known)
    assert not np.asarray(all_of_it)[known].any(), "what is known stays known"


def test_beliefs_through_the_frame_by_sampling() -> None:
    """Over belief means: the spread of the next belief's mean, and the average of its covariance."""
    model, count = dynamics(), 20_000
    rng = np.random.default_rng(2)
    mean, S = np.append(start().mean, 0.2), systems.covariance(rng, 8, 0.3)
    V = systems.covariance(rng, 7, 0.2)
    V[list(model.structure.known)] = V[:, list(model.structure.known)] = 0.0
    of_mean, left = eqx.filter_jit(model.belief_moments)(Gaussian(mean, S), jnp.asarray(V), 0)
    M = rng.multivariate_normal(mean, S, size=count)
    one = jax.jit(lambda m: (lambda f: (f.mean, f.cov))(model.moments(Gaussian(m, jnp.pad(jnp.asarray(V), (0, 1))), 0)))
    means, covs = jax.lax.map(one, jnp.asarray(M))
    Sampled.of(np.asarray(means)).assert_agrees(of_mean.mean, "mean")
    Sampled.of(products(np.asarray(means), np.asarray(means))).assert_agrees(of_mean.cov, "spread of the mean")
    Sampled.of(np.asarray(covs)).assert_agrees(left, "average covariance")


def test_the_free_structure_is_the_paper_s_model() -> None:
    """`L = M = 0`, `B = C = I`, written as a frame, gives the numbers of the model without one."""
    plain = systems.dynamics()
    rows = free(2, 1).with_references(1)  # one more row, so that nothing is short-cut
    features = AngleFeatures((systems.ANGLE,), (0, 1, 3))  # the action has moved behind the reference
    C = np.eye(2, 3)
    framed = Dynamics(plain.gp, features, Sensors(plain.sensor_noise, C), np.append(plain.process_noise, 0.0), rows)
    policy = systems.policy()
    initial = Gaussian(np.append(systems.INITIAL.mean, 0.7), np.pad(np.asarray(systems.INITIAL.cov), (0, 1)))
    one = systems.run(Filtered(), policy, plain, systems.INITIAL, systems.COST, 4)
    other = systems.run(Filtered(), policy, framed, initial, systems.COST, 4)
    assert_close(other.state_mean[:, :2], one.state_mean, 1e-11)
    assert_close(other.state_cov[:, :2, :2], one.state_cov, 1e-11)
    assert_close(other.belief_cov[:, :2, :2], one.belief_cov, 1e-11)
    assert_close(other.total_cost, one.total_cost, 1e-11)
    assert_close(other.state_mean[:, 2], np.full(5, 0.7), 1e-12)


# Linear plants, where everything is known exactly.

A = np.array([[1.0, DT, 0.0], [0.0, 0.95, 0.2], [0.0, 0.0, 0.9]])
B = np.array([[0.0], [0.1], [0.3]])
Q = np.diag([0.001, 0.01, 0.02])
C = np.array([[1.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
R = np.diag([0.1, 0.05])
D = np.array([0.2, -0.1])
F = np.array([[-0.5, -0.3, -0.2]])
START = np.array([0.5, -0.3, 0.1]), np.diag([0.3, 0.2, 0.1])


def linear_dynamics(sensors: Sensors) -> Dynamics:
    """The linear plant as a frame: the GP is the last two rows' linear mean, the first row is known."""
    rows = Structure(
        np.array([[1.0, DT, 0.0], [0, 0, 0], [0, 0, 0]]),
        np.zeros((3, 1)),
        np.array([[0.0, 0], [1, 0], [0, 1]]),
        (1, 2),
        3,
        acting=(3,),
    )
    gp = GaussianProcess(
        np.zeros((1, 3)),
        np.ones((2, 3)),
        np.full(2, 1e-300),
        np.zeros((2, 1)),
        np.zeros((2, 1, 1)),
        np.hstack([A[1:, 1:], B[1:]]),
        np.zeros(2),
    )
    return Dynamics(gp, AngleFeatures((), (1, 2, 3)), sensors, np.diag(Q), rows)


def kalman_update(m: np.ndarray, P: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    seen = np.isfinite(z)
    H, noise = C[seen], R[np.ix_(seen, seen)]
    K = P @ H.T @ np.linalg.inv(H @ P @ H.T + noise)
    return m + K @ (z[seen] - H @ m - D[seen]), (np.eye(3) - K @ H) @ P


def test_the_executed_filter_is_kalman_s_with_hidden_states_and_missing_entries() -> None:
    model, rng = linear_dynamics(Sensors(np.diag(R), C, tuple(D))), np.random.default_rng(6)
    m, P = START
    belief = Belief(jnp.asarray(m), jnp.asarray(P))
    for _ in range(8):
        z, u = rng.normal(size=2), rng.normal(size=1)
        z[rng.uniform(size=2) < 0.4] = np.nan
        m, P = kalman_update(m, P, z)
        m, P = A @ m + B @ u, A @ P @ A.T + Q
        belief = belief.update(jnp.asarray(z), model.sensors).predict(model, jnp.asarray(u))
        assert_close(belief.mean, m, 1e-11)
        assert_close(belief.cov, P, 1e-11)


def test_the_filtered_prediction_is_lqg_with_hidden_states() -> None:
    """Estimate and error add up: the closed loop of a Kalman filter that sees one state of three."""
    limit = 1e6  # so far from its limits the policy is linear
    policy = LinearPolicy(F / (1.5 * limit), np.zeros(1), AngleFeatures((), (0, 1, 2)), [limit])
    model = linear_dynamics(Sensors(np.diag(R), C, tuple(D)))
    cost = eqx.tree_at(lambda c: c.features, systems.COST, AngleFeatures((), (0, 1, 2)))
    predicted = systems.run(Filtered(), policy, model, Gaussian(*START), cost, 8)
    mean, P, estimate = START[0], START[1], np.zeros((3, 3))
    for t in range(9):
        assert_close(predicted.state_mean[t], mean, 1e-10)
        assert_close(predicted.state_cov[t], estimate + P, 1e-10)
        K = P @ C.T @ np.linalg.inv(C @ P @ C.T + R)
        estimate = estimate + K @ (C @ P @ C.T + R) @ K.T
        P = (np.eye(3) - K @ C) @ P
        if t < 8:
            assert_close(predicted.belief_cov[t], P, 1e-10)
        loop = A + B @ F
        mean, estimate, P = loop @ mean, loop @ estimate @ loop.T, A @ P @ A.T + Q


def test_lost_samples_are_averaged_exactly() -> None:
    """Over all subsets of the sensors that may be lost; never lost and always lost are the limits."""
    rng = np.random.default_rng(1)
    V, S = systems.covariance(rng, 3, 0.6), systems.covariance(rng, 3, 0.4)
    before = BeliefDistribution(Gaussian(np.zeros(3), S), jnp.asarray(V))
    lossy = before.update(Sensors(np.diag(R), C, tuple(D), dropout=(0.3, 0.2)))
    expected = np.zeros((3, 3))
    for first, second, weight in ((1, 1, 0.56), (1, 0, 0.14), (0, 1, 0.24), (0, 0, 0.06)):
        z = np.where([first, second], 0.0, np.nan)
        expected += weight * kalman_update(np.zeros(3), V, z)[1]
    assert_close(lossy.cov, expected, 1e-12)
    assert_close(lossy.mean.cov + lossy.cov, S + V, 1e-12)
    always = before.update(Sensors(np.diag(R), C, dropout=(0.999999999, 0.999999999)))
    assert_close(always.cov, V, 1e-7)
    slow = Sensors(np.diag(R), C, period=(2, 3))
    for t, seen in ((0, (1, 1)), (1, (0, 0)), (2, (1, 0)), (3, (0, 1))):
        z = np.where(seen, 0.0, np.nan)
        assert_close(before.update(slow, t=t).cov, kalman_update(np.zeros(3), V, z)[1], 1e-12)


def test_gradient_of_a_prediction_with_hidden_states_and_dropouts() -> None:
    model = dynamics()
    lossy = Sensors(model.sensor_noise, model.sensors.C, model.sensors.offset, (0.2, 0.3), (1, 2))
    model = eqx.tree_at(lambda d: d.sensors, model, lossy)
    policy = LinearPolicy([[-0.4, -0.6, 0.2, 0.3]], [0.1], AngleFeatures((0,), (1, 6)), [1.5])
    initial = Gaussian(start().mean, np.diag([0.05, 0.1, 0.1, 0, 0, 0.05, 0.02]))

    def total(matrix: jax.Array) -> jax.Array:
        changed = eqx.tree_at(lambda p: p.matrix, policy, matrix)
        return systems.run(Filtered(), changed, model, initial, systems.COST, 5).total_cost

    gradient = jax.jit(jax.grad(total))(policy.matrix)
    for i in range(4):
        step = 1e-5 * np.eye(4)[i][None]
        numeric = (total(policy.matrix + step) - total(policy.matrix - step)) / 2e-5
        assert abs(gradient[0, i] - numeric) < 1e-7 * max(1.0, abs(numeric))


def test_a_delay_is_a_shift_register() -> None:
    """What the plant feels is the action of two steps ago; what a late sensor reports, the state of a step ago."""
    model, policy = dynamics(), LinearPolicy([[-0.4, 0.2, 0.1]], [0.3], AngleFeatures((0,), (1,)), [1.5])
    initial = Gaussian(np.r_[0.4, 0.1, -0.2, 0.0, 0.0, 0.3, 0.5], np.zeros((7, 7)))
    path = systems.run(MostLikely(), policy, model, initial, systems.COST, 6)
    x, u = np.asarray(path.state_mean), np.asarray(path.action_mean)
    assert_close(x[1:, 3], u[:, 0], 1e-12)
    assert_close(x[2:, 4], u[:-1, 0], 1e-12)
    assert_close(x[1:, 5], x[:-1, 0] + 0.5 * x[:-1, 2], 1e-12)
    assert_close(x[:, 6], 0.5 + 0.05 * np.minimum(np.arange(7), 5), 1e-12)
    for t in range(6):
        inputs = model.features(jnp.concatenate([jnp.asarray(x[t]), jnp.asarray(u[t])]))
        assert_close(inputs[3], u[t - 2, 0] if t > 1 else 0.0, 1e-12)
        moved = np.r_[DT / 2 * (x[t, 1] + x[t + 1, 1]), x[t + 1, 1:3] - x[t, 1:3]]  # the plant's own, uncorrected
        slope = jax.jacfwd(lambda x, u=u[t]: model.gp(model.features(jnp.concatenate([x, u]))))(jnp.asarray(x[t]))[0]
        correction = DT / 12 * (moved[1] - np.asarray(slope)[:3] @ moved)
        assert_close(x[t + 1, 0], x[t, 0] + moved[0] + correction, 1e-12)


def test_positions_follow_their_rates_closely() -> None:
    """On a swinging cart-pole the corrected rule is several times closer to the plant than the trapezoid alone."""
    task, rng = tasks.cart_pole(), np.random.default_rng(4)
    rows = task.structure("second-order")
    x = rng.normal(size=(300, 4)) * [0.3, 2.0, 1.0, 6.0]
    u = rng.uniform(-10, 10, size=(300, 1))

    def errors(x: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        rates = np.array(rows.outputs)
        slope = jax.jacfwd(lambda a: task.plant(a[:4], a[4:])[rates])(jnp.concatenate([x, u]))
        following = task.plant(x, u)
        N, B = rows.around(slope.T)
        corrected = N @ jnp.concatenate([x, u]) + B @ following[rates]
        return (corrected - following)[:2], (rows.L @ x + rows.B @ following[rates] - following)[:2]

    corrected, plain = (np.sqrt((np.asarray(e) ** 2).mean(axis=0)) for e in jax.vmap(errors)(x, u))
    assert (corrected < plain / 3).all(), f"{corrected} instead of {plain}"


def test_what_no_sensor_reveals_is_found() -> None:
    rates = second_order(4, 1, [(0, 2), (1, 3)], DT)
    moves = rates.L.copy()
    for output, state in enumerate(rates.outputs):
        moves[:, state] += rates.B[:, output]
    assert unobservable(moves, selecting([0, 1], 4)) == []
    assert unobservable(moves, selecting([0], 4)) == [1, 3]
    assert unobservable(moves, selecting([2, 3], 4)) == [0, 1]
    assert unobservable(np.eye(4), selecting([0, 1], 4)) == [2, 3]


def test_a_task_says_which_states_are_hidden() -> None:
    task = tasks.cart_pole().with_sensors(["pole angle", "cart position"])
    assert [state.name for state in task.hidden] == ["cart velocity", "pole angular velocity"]
    assert task.sensor_names == ("cart position [m]", "pole angle [rad]"), "in the task's own order"
    assert np.allclose(task.sensor_std, 0.03)
    assert task.unrevealed("second-order") == ()
    assert [state.name for state in task.unrevealed("free")] == ["cart velocity", "pole angular velocity"]
    late = tasks.cart_pole().with_delay(2)
    assert late.start.size == 6 and late.structure("second-order").acting == (5,)
    assert late.policy_features.keep == (0, 2, 3, 4, 5)


def test_a_cost_stays_that_of_its_components_when_rows_are_added() -> None:
    """With a delay, the servo still follows its target and pays for its voltage; the tank still for changes."""
    servo, late = tasks.servo(), tasks.servo().with_delay(2)
    assert servo.row_count == 4 and late.row_count == 6 and late.reference_rows == (4, 5)
    a = np.array([0.3, 0.1, -0.2, 0.5, 1.2])  # position, velocity, target, its speed, voltage
    moved = np.array([0.3, 0.1, 9.0, 8.0, -0.2, 0.5, 1.2])  # with the voltages of the last two steps
    assert_close(late.cost(jnp.asarray(moved)), servo.cost(jnp.asarray(a)), 1e-14)
    tank, slow = tasks.tank(), tasks.tank().with_delay(2)
    assert tank.structure().acting == (3,) and tank.last_action_rows == (2,)
    assert slow.structure().acting == (3,) and slow.last_action_rows == (2,)
    b, longer = np.array([7.0, 9.0, 3.0, 5.0]), np.array([7.0, 9.0, 3.0, 99.0, 5.0])
    assert_close(slow.cost(jnp.asarray(longer)), tank.cost(jnp.asarray(b)), 1e-14)


def test_the_last_action_is_remembered() -> None:
    task = tasks.tank()
    model = task.structure()
    assert model.known == (2,) and model.actions == 1
    x, u = np.array([5.0, 6.0, 1.5]), np.array([4.0])
    assert_close((model.L @ x + model.M @ u)[2], 4.0, 1e-15)
