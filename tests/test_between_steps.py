"""How the costs of two steps vary together, and what it makes of the total: exactly, by sampling, and in the limits."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.control.cost import LinearCost, QuadraticCost, SaturatingCost
from bayespilco.control.objective import total_variance
from bayespilco.control.prediction import Filtered, MostLikely, Prediction, Predictor, Step, Unfiltered
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from tests import systems
from tests.oracles import Sampled, products
from tests.test_closed_loop import STEPS, execute_filter
from tests.test_identities import START, A, B, F, Q, R, linear_dynamics, linear_policy

TIMES = 7
NEAR = SaturatingCost(AngleFeatures((), (0, 1)), [0.2, 0.1], np.diag([2.0, 1.0]))
EFFORT = QuadraticCost(AngleFeatures((), (2,)), [0.1], [[3.0]], np.inf)


def responses(filtered: bool) -> tuple[np.ndarray, np.ndarray]:
    """How `[x_t, u_t]` of the linear closed loop responds to every unit of noise, and its mean: by hand."""
    count = 2 + 4 * (TIMES - 1)
    noise = iter(np.eye(count))
    draw = [np.stack([next(noise), next(noise)]) for _ in range(count // 2)]
    m, P = START
    x, belief, mean = np.linalg.cholesky(P) @ draw.pop(0), np.zeros((2, count)), m
    found, means = [], []
    for _ in range(TIMES - 1):
        z = x + np.sqrt(R) @ draw.pop(0)
        K = P @ np.linalg.inv(P + R) if filtered else np.eye(2)
        belief, P = belief + K @ (z - belief), (np.eye(2) - K) @ P
        u = F @ belief
        found.append(np.concatenate([x, u]))
        means.append(np.concatenate([mean, F @ mean]))
        x, belief = A @ x + B @ u + np.sqrt(Q) @ draw.pop(0), A @ belief + B @ u
        P, mean = A @ P @ A.T + Q, (A + B @ F) @ mean
    found.append(np.concatenate([x, np.zeros((1, count))]))  # at the last step there is no action
    means.append(np.concatenate([mean, [0.0]]))
    return np.stack(found), np.stack(means)


def predicted(predictor: Predictor, cost: object) -> Prediction:
    return systems.run(
        predictor,
        linear_policy(),
        linear_dynamics(),
        Gaussian(*START),
        cost,  # type: ignore[arg-type]
        TIMES - 1,
        between_steps=True,
    )


@pytest.mark.parametrize("predictor", [Unfiltered(), Filtered()], ids=["unfiltered", "filtered"])
def test_between_steps_of_a_linear_system_it_is_exact(predictor: Predictor) -> None:
    """A linear cost of state and action tells every covariance of a linear system, which is known."""
    found, means = responses(isinstance(predictor, Filtered))
    of_state = LinearCost(AngleFeatures((), (0, 1)), [1.0, -0.7], [0.0, 0.0])
    of_action = LinearCost(AngleFeatures((), (2,)), [0.9], [0.0])
    got = predicted(predictor, of_state + of_action)
    costs = np.einsum("i,tin->tn", [1.0, -0.7, 0.9], found)
    assert got.cost_cov is not None
    np.testing.assert_allclose(got.cost_cov, costs @ costs.T, rtol=0, atol=1e-8)
    np.testing.assert_allclose(np.diag(got.cost_cov), got.cost_variance, rtol=1e-12)
    np.testing.assert_allclose(got.cost_mean, means @ [1.0, -0.7, 0.9], atol=1e-8)
    apart = float(jnp.sum(got.cost_variance))
    assert abs(float(total_variance(got)) / apart - 1) > 0.3, "steps are far from independent"


@pytest.mark.parametrize("predictor", [Unfiltered(), Filtered()], ids=["unfiltered", "filtered"])
def test_the_total_of_other_costs_is_what_sampling_says(predictor: Predictor) -> None:
    """States are jointly Gaussian, so saturating and quadratic costs are in closed form: nothing is approximated."""
    found, means = responses(isinstance(predictor, Filtered))
    got = predicted(predictor, NEAR + EFFORT)
    noise = np.random.default_rng(0).normal(size=(40_000, found.shape[2]))
    a = means + np.einsum("tin,kn->kti", found, noise)
    away = a[..., :2] - [0.2, 0.1]
    costs = 1 - np.exp(-(away**2 @ [2.0, 1.0]) / 2)
    costs[:, :-1] += 3 * (a[:, :-1, 2] - 0.1) ** 2
    Sampled.of(costs).assert_agrees(got.cost_mean, "means")
    Sampled.of(products(costs, costs)).assert_agrees(got.cost_cov, "covariances of pairs of steps")
    for discount in (1.0, 0.8):
        totals = costs @ discount ** np.arange(TIMES)
        spread = Sampled.of((totals - totals.mean()) ** 2)
        spread.assert_agrees(total_variance(got, discount), f"variance of the total, discount {discount}")


def test_of_a_learned_system_it_is_nearly_so() -> None:
    """The filter run on a GP, and a cost without angles: what is left of errors is moment matching's, granted 5 %.

    (With angles, sines and cosines are taken for Gaussian as well, in each step's own variance as between steps. Here
    they spread over 0.35 rad, and the variance of the total would be 19 % too large.)
    """
    states, _ = execute_filter(systems.INITIAL)
    given = systems.policy("linear"), systems.dynamics(), systems.INITIAL, NEAR, STEPS
    got = systems.run(Filtered(), *given, between_steps=True)
    costs = 1 - np.exp(-((states - [0.2, 0.1]) ** 2 @ [2.0, 1.0]) / 2)
    totals = costs.sum(axis=1)
    spread = Sampled.of((totals - totals.mean()) ** 2)
    assert abs(float(total_variance(got)) - spread.value) < 5 * spread.error + 0.05 * spread.value
    assert abs(float(jnp.sum(got.cost_variance)) - spread.value) > 20 * spread.error, "not by the variances alone"
    pairs, scale = Sampled.of(products(costs, costs)), costs.std(axis=0)
    assert got.cost_cov is not None
    off = np.abs(np.asarray(got.cost_cov) - pairs.value) / (5 * pairs.error + 0.05 * np.outer(scale, scale))
    assert off.max() < 1, off.max()


def test_nothing_is_computed_that_is_not_asked_for() -> None:
    given = systems.policy("linear"), systems.dynamics(), systems.INITIAL, systems.COST, STEPS
    plain, asked = (systems.run(Filtered(), *given, **words) for words in ({}, {"between_steps": True}))
    assert plain.cost_cov is None
    np.testing.assert_allclose(plain.cost_mean, asked.cost_mean, rtol=1e-13)
    with pytest.raises(ValueError, match="without covariances between steps"):
        total_variance(plain)
    certain = systems.run(MostLikely(), *given, between_steps=True)
    assert certain.cost_cov is not None and not np.asarray(certain.cost_cov).any()


def test_a_divergence_varies_with_nothing() -> None:
    """From the step on that is out of range, the cost is the worst there is: no variance, and no covariance."""
    start = Gaussian(1e2 * START[0], START[1])
    growing = eqx.tree_at(lambda d: d.gp.slope, linear_dynamics(), 3 * linear_dynamics().gp.slope)
    got = systems.run(Filtered(), linear_policy(), growing, start, NEAR, TIMES - 1, between_steps=True)
    assert bool(got.diverged) and got.cost_cov is not None
    worst = np.asarray(got.cost_mean) == 1.0
    assert worst.any() and not np.asarray(got.cost_cov)[worst].any()
    assert np.isfinite(np.asarray(got.cost_cov)).all()


class _Unlinked(Unfiltered):
    """A predictor that does not say how steps hang together."""

    def step(self, *given: object) -> Step:
        return super().step(*given)._replace(links=None)  # type: ignore[arg-type]


def test_a_predictor_need_not_know_them() -> None:
    with pytest.raises(ValueError, match="_Unlinked does not say how the costs of two steps hang together"):
        predicted(_Unlinked(), NEAR)
