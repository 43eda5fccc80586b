"""The Direct method: its objective against the original program, and what it learns from small noisy systems."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode, Trials, batch
from bayespilco.training.direct import DirectModel, DirectParameters, direct_objective, fit_direct
from bayespilco.training.filtering import negative_log_evidence
from bayespilco.training.marginal import fit_marginal
from bayespilco.training.transitions import input_masks, spread_out
from tests import golden

FIELDS = dict(
    log_length_scales="l",
    log_signal="s",
    log_pseudo_noise="n",
    log_sensor_noise="on",
    log_process_noise="pn",
    slope="m",
    offset="b",
    weights="beta",
)


def reference(case: dict) -> tuple[DirectModel, Trials, list[int]]:
    """The reference's state begins with the action before; here that is part of the action, after the states."""
    states, inputs = int(case["E"].item()), case["inputs"].shape[1]
    order = [*range(1, states + 1), 0, *range(states + 1, inputs)]
    angles = tuple(index - 1 for index in golden.indices(case["angi"]))
    features = AngleFeatures(angles, tuple(range(states + 2)))
    linear = (True,) * (states + 2) + (False,) * (2 * len(angles))
    model = DirectModel(case["inputs"][:, order], features, (True,) * inputs, linear)  # raw angles in the kernel there
    episodes = [
        Episode(d["state"][:, 1:], np.concatenate([d["state"][:-1, :1], d["action"]], axis=1)) for d in case["data"]
    ]
    return model, batch(episodes), order


def stacked(outputs: list[dict], order: list[int]) -> DirectParameters:
    def field(letter: str) -> jax.Array:
        rows = jnp.asarray(np.stack([output[letter].ravel() for output in outputs]))
        return rows[:, jnp.asarray(order)] if letter in ("l", "m") else rows if letter == "beta" else rows[:, 0]

    return DirectParameters(**{name: field(letter) for name, letter in FIELDS.items()})


@pytest.mark.parametrize("case", golden.load("pc_direct"), ids=lambda case: case["type"])
def test_objective_is_the_original_programs(case: dict) -> None:
    """To 1e-7 of the value. The original adds something near 7e-10 to its covariances, which is the difference."""
    model, trials, order = reference(case)
    parameters = stacked(case["p"], order)
    initial = Gaussian(np.zeros(trials.observations.shape[2]), np.eye(trials.observations.shape[2]))
    value, gradient = eqx.filter_jit(jax.value_and_grad(direct_objective))(parameters, model, trials, initial)
    golden.assert_close(value, case["nlp"].item(), 1e-7, "objective")
    expected = stacked(case["dnlp"], order)
    largest = max(np.abs(part).max() for part in expected)
    for name, actual, wanted in zip(DirectParameters._fields, gradient, expected, strict=True):
        wanted = np.where(model.linear_inputs, wanted, 0.0) if name == "slope" else wanted
        error = np.abs(np.asarray(actual) - wanted).max()
        assert error < 1e-6 * largest, f"{name}: off by {error:.3g} where the largest derivative is {largest:.3g}"


def linear_model(transition: np.ndarray, noise: tuple[float, float]) -> Dynamics:
    states, inputs = transition.shape
    gp = GaussianProcess(
        inputs=np.zeros((1, inputs)),
        length_scales=np.ones((states, inputs)),
        signal_variance=np.full(states, 1e-18),
        weights=np.zeros((states, 1)),
        precision=np.zeros((states, 1, 1)),
        slope=transition,
        offset=np.zeros(states),
    )
    return Dynamics(gp, AngleFeatures((), tuple(range(inputs))), np.full(states, noise[0]), np.full(states, noise[1]))


def test_evidence_of_a_linear_model_is_the_kalman_filters() -> None:
    """Computed here without a filter: a linear trial's observations are jointly Gaussian."""
    A, B, R, Q, steps = np.array([[1.0, 0.1], [-0.2, 0.9]]), np.array([[0.0], [0.5]]), 0.04, 0.01, 5
    rng = np.random.default_rng(0)
    z, u = rng.normal(size=(steps + 1, 2)), rng.normal(size=(steps, 1))
    initial = Gaussian([0.3, -0.2], [[0.5, 0.1], [0.1, 0.4]])

    means, covs = [np.asarray(initial.mean)], [np.asarray(initial.cov)]
    for t in range(steps):
        means.append(A @ means[-1] + B @ u[t])
        covs.append(A @ covs[-1] @ A.T + Q * np.eye(2))
    joint = np.zeros((2 * steps + 2, 2 * steps + 2))
    for s in range(steps + 1):
        for t in range(s, steps + 1):
            block = np.linalg.matrix_power(A, t - s) @ covs[s]
            joint[2 * t : 2 * t + 2, 2 * s : 2 * s + 2] = block
            joint[2 * s : 2 * s + 2, 2 * t : 2 * t + 2] = block.T
    expected = -multivariate_normal(np.concatenate(means), joint + R * np.eye(len(joint))).logpdf(z.ravel())

    dynamics = linear_model(np.concatenate([A, B], axis=1), (R, Q))
    value = eqx.filter_jit(negative_log_evidence)(dynamics, batch([Episode(z, u)]), initial)
    np.testing.assert_allclose(value, expected, rtol=1e-10)


def test_padding_adds_nothing_and_spoils_no_gradient() -> None:
    rng = np.random.default_rng(1)
    episodes = [Episode(rng.normal(size=(n + 1, 2)), rng.normal(size=(n, 1))) for n in (3, 6)]
    initial = Gaussian(np.zeros(2), np.eye(2))
    # An unstable plant, so that a filter without observations would run away over the padding.
    dynamics = linear_model(np.array([[30.0, 0.1, 0.0], [0.0, 30.0, 1.0]]), (0.1, 0.1))
    function = eqx.filter_jit(eqx.filter_value_and_grad(negative_log_evidence))
    together, gradient = function(dynamics, batch(episodes), initial)
    apart = sum(eqx.filter_jit(negative_log_evidence)(dynamics, batch([one]), initial) for one in episodes)
    np.testing.assert_allclose(together, apart, rtol=1e-10)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


NOISE = np.array([0.05, 0.4])
FEATURES = AngleFeatures((0,), (0, 1, 2))
INITIAL = Gaussian(np.zeros(2), 0.1**2 * np.eye(2))


def pendulum(count: int, steps: int = 25) -> list[Episode]:
    """A damped pendulum [angle, speed] pushed at random, with a speed sensor that is poor beside what it measures."""
    rng = np.random.default_rng(2)
    episodes = []
    for _ in range(count):
        x, states, actions = 0.1 * rng.normal(size=2), [], []
        for _ in range(steps):
            states.append(x)
            actions.append(rng.uniform(-4.0, 4.0, size=1))
            x = x + 0.15 * np.array([x[1], actions[-1][0] - 4.0 * np.sin(x[0]) - 0.3 * x[1]])
        truth = np.array([*states, x])
        episodes.append(Episode(truth + NOISE * rng.normal(size=truth.shape), np.array(actions), truth))
    return episodes


def test_learns_noise_and_function_that_ordinary_training_misses() -> None:
    """Regressing on noisy inputs blames the targets for all noise and flattens the function; the filter does not."""
    episodes = pendulum(8)
    trials = batch(episodes)
    progress: list[float] = []
    fit = fit_direct(trials, FEATURES, INITIAL, points=15, evaluations=60, on_progress=progress.append)
    noise = np.sqrt(fit.dynamics.sensor_noise)
    # 208 observations know a standard deviation to 5 % at best; the free weights take some of the noise for signal.
    assert (np.abs(noise / NOISE - 1) < 0.2).all(), noise

    seen = [np.concatenate([e.observations[:-1], e.actions], axis=1) for e in episodes]
    x = np.asarray(jax.vmap(FEATURES)(jnp.asarray(np.concatenate(seen))))
    y = np.concatenate([e.observations[1:] for e in episodes])
    kernel_inputs, linear_inputs = input_masks(FEATURES)
    ordinary = fit_marginal(x, y, kernel_inputs=kernel_inputs, linear_inputs=linear_inputs).gp
    before, after = (np.concatenate([e.states[s] for e in episodes]) for s in (slice(-1), slice(1, None)))
    inputs = jax.vmap(FEATURES)(
        jnp.asarray(np.concatenate([before, np.concatenate([e.actions for e in episodes])], axis=1))
    )
    error = lambda gp: np.sqrt(np.mean((np.asarray(jax.vmap(gp)(inputs)) - after) ** 2, axis=0))  # noqa: E731
    assert (error(fit.dynamics.gp) < 0.7 * error(ordinary)).all(), (error(fit.dynamics.gp), error(ordinary))
    assert fit.evaluations <= 60 and fit.stopped
    assert progress == sorted(progress) and progress[-1] <= 1

    again = fit_direct(trials, FEATURES, INITIAL, points=15, evaluations=3, previous=fit)
    fresh = fit_direct(trials, FEATURES, INITIAL, points=15, evaluations=3)
    assert again.objective < fresh.objective and again.evaluations <= 3


def test_raw_angles_stay_out_of_the_kernel() -> None:
    assert input_masks(FEATURES) == ((False, True, True, True, True), (True, True, True, False, False))


def test_pseudo_inputs_cover_the_data() -> None:
    points = np.random.default_rng(4).normal(size=(300, 3)) * [1.0, 100.0, 0.0]
    centres = spread_out(points, 40)
    assert centres.shape == (40, 3) and np.isfinite(centres).all()
    scaled = (points[:, None, :2] - centres[None, :, :2]) / [1.0, 100.0]
    assert np.sqrt(np.sum(scaled**2, axis=2)).min(axis=1).max() < 1.0
    np.testing.assert_array_equal(spread_out(points[:10], 40), points[:10])


@pytest.mark.parametrize(
    ("features", "initial", "words"),
    [
        (FEATURES, Gaussian(np.zeros(3), np.eye(3)), "one dimension per state, 2; given 3"),
        (AngleFeatures((0,), (1, 2)), INITIAL, "keep the states that are learned"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(features: AngleFeatures, initial: Gaussian, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit_direct(batch(pendulum(1)), features, initial)
