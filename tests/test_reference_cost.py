"""Costs against the original programs: every case of every stored file, values and derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.control.cost import (
    Cost,
    HingeCost,
    LinearCost,
    QuadraticCost,
    SaturatingCost,
    SumOfCosts,
    cost_covariance,
)
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from tests.golden import assert_close, cases, compare, derivative, indices, load, symmetric


def plain(size: int) -> AngleFeatures:
    """No angles: the cost is one of the state itself."""
    return AngleFeatures((), tuple(range(size)))


@pytest.mark.parametrize("number", cases("lossSat"))
def test_saturating_cost(number: int) -> None:
    case = load("lossSat")[number]
    cost = SaturatingCost(plain(case["m"].size), case["cost"]["z"].ravel(), case["cost"]["W"])

    def moments(m: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        of_state = cost.moments(Gaussian(m, s))
        return {"L": of_state.mean, "S": of_state.cov, "C": of_state.gain}

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-9)


@pytest.mark.parametrize("number", cases("pc_lossSath"))
def test_saturating_cost_under_beliefs(number: int) -> None:
    case = load("pc_lossSath")[number]
    cost = SaturatingCost(plain(case["m"].size), case["cost"]["z"].ravel(), case["cost"]["W"])

    def moments(m: jax.Array, s: jax.Array, v: jax.Array) -> dict[str, jax.Array]:
        of_mean, variance = cost.belief_moments(Gaussian(m, s), v)
        return {"M": of_mean.mean, "S": of_mean.cov, "C": of_mean.gain, "V": variance}

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"], "v": case["v"]}, 1e-9)


def pendulum_weight(length: float, width: float, sign: float) -> np.ndarray:
    """`C' C / width^2` on [x, sin, cos], where `C` maps to the tip's position relative to the goal."""
    C = np.array([[1.0, sign * length, 0.0], [0.0, 0.0, length]])
    return C.T @ C / width**2


def cart_poles_v09(case: dict) -> list[SaturatingCost]:  # type: ignore[type-arg]
    """The v0.9 cart-pole costs, one per width. Its angle is zero when hanging: the tip is at x + l sin(theta)."""
    features = AngleFeatures(indices(case["angle"]), (0,))
    target = features(jnp.asarray(case["target"].ravel()))
    length = float(case["p"].item())
    return [SaturatingCost(features, target, pendulum_weight(length, w, 1.0)) for w in case["width"].ravel()]


def cart_pole_moments_v09(case: dict, state: Gaussian) -> dict[str, jax.Array]:  # type: ignore[type-arg]
    """Several widths are averaged there, and `expl` times the standard deviation is added: both from our moments."""
    costs, exploration = cart_poles_v09(case), float(case["expl"].item())
    each = [cost.moments(state) for cost in costs]
    bonus = [exploration * jnp.sqrt(one.cov[0, 0]) if exploration else 0.0 for one in each]
    mean = sum(one.mean[0] + b for one, b in zip(each, bonus, strict=True)) / len(costs)
    return {"L": mean, "S2": sum(one.cov[0, 0] for one in each) / len(costs)}


@pytest.mark.parametrize("number", cases("loss_cp"))
def test_cart_pole_cost(number: int) -> None:
    case = load("loss_cp")[number]

    def moments(m: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        return cart_pole_moments_v09(case["cost"], Gaussian(m, s))

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-8)


def cart_pole_pc(length: float, width: float) -> SaturatingCost:
    """The later cart-pole cost, on the state [old action, x, theta, v, dtheta], with theta zero upright."""
    return SaturatingCost(AngleFeatures((2,), (1,)), [0.0, 0.0, 1.0], pendulum_weight(length, width, -1.0))


@pytest.mark.parametrize("number", cases("pc_Cost_cartpole"))
def test_later_cart_pole_cost(number: int) -> None:
    case = load("pc_Cost_cartpole")[number]
    cost = cart_pole_pc(case["ell"].item(), case["width"].item())
    stored = {"m": case["L"]["m"], "s": case["L"]["s"], "c": case["L"]["c"]}
    for name in "msc":  # derivatives with respect to [m, s(:)] in one matrix
        stored[f"d{name}dm"], stored[f"d{name}dv"] = case["dL"][name][:, :5], case["dL"][name][:, 5:]

    def moments(m: jax.Array, v: jax.Array) -> dict[str, jax.Array]:
        of_state = cost.moments(Gaussian(m, v))
        return {"m": of_state.mean, "s": of_state.cov, "c": of_state.gain}

    compare(moments, stored, {"m": case["m"].ravel(), "v": case["s"]}, 1e-9)


@pytest.mark.parametrize("number", cases("pc_Cost_cartpole"))
def test_later_cart_pole_cost_under_beliefs(number: int) -> None:
    case = load("pc_Cost_cartpole")[number]
    cost = cart_pole_pc(case["ell"].item(), case["width"].item())
    of_mean, variance = cost.belief_moments(Gaussian(case["m"].ravel(), case["s"]), jnp.asarray(case["v_h"]))
    expected = case["Lh"]
    assert_close(of_mean.mean, expected["m"].ravel(), 1e-10)
    assert_close(of_mean.cov, expected["s"], 1e-10)
    assert_close(of_mean.gain, expected["c"], 1e-10)
    assert_close(variance, expected["v"], 1e-10)


def mean_variance_gain(cost: Cost, m: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
    of_state = cost.moments(Gaussian(m, s))
    return {"L": of_state.mean, "S": of_state.cov, "C": of_state.gain}


@pytest.mark.parametrize("number", cases("lossQuad"))
def test_quadratic_cost(number: int) -> None:
    """The original's own derivatives of the variance are wrong; the files have right ones beside them."""
    case = load("lossQuad")[number]
    case = case | {"dSdm": case["dSdm_fixed"], "dSds": case["dSds_fixed"]}
    cost = QuadraticCost(plain(case["m"].size), case["cost"]["z"].ravel(), case["cost"]["W"])
    assert_close(case["S"], case["S_fixed"], 1e-12)
    compare(lambda m, s: mean_variance_gain(cost, m, s), case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-11)


@pytest.mark.parametrize("number", cases("lossLin"))
def test_linear_cost(number: int) -> None:
    case = load("lossLin")[number]
    cost = LinearCost(plain(case["m"].size), case["cost"]["a"].ravel(), case["cost"]["b"].ravel())
    compare(lambda m, s: mean_variance_gain(cost, m, s), case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-11)


@pytest.mark.parametrize("number", cases("lossHinge"))
def test_hinge_cost(number: int) -> None:
    case = load("lossHinge")[number]
    lower, upper = case["cost"]["b"].ravel()
    cost = HingeCost(plain(1), case["cost"]["a"].item(), lower, upper)
    compare(lambda m, s: mean_variance_gain(cost, m, s), case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-10)


def part(stored: dict) -> Cost:  # type: ignore[type-arg]
    features = AngleFeatures((), indices(stored["losi"]))
    if stored["fcn"] == "lossSat":
        return SaturatingCost(features, stored["z"].ravel(), stored["W"])
    assert stored["fcn"] == "lossLin"
    return LinearCost(features, stored["a"].ravel(), stored["b"].ravel())


@pytest.mark.parametrize("number", cases("lossAdd"))
def test_sum_of_costs(number: int) -> None:
    """The original adds `expl` times the standard deviation to the mean.

    Its covariance of two parts is the product of their gains and the state's covariance. That is exact if one of them
    is linear, as in all of these cases; otherwise ours has more terms.
    """
    case = load("lossAdd")[number]
    cost = SumOfCosts(tuple(part(stored) for stored in case["cost"]["sub"]))
    exploration = case["cost"]["expl"].item()

    def moments(m: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        found = mean_variance_gain(cost, m, s)
        return found | {"L": found["L"] + exploration * jnp.sqrt(found["S"][0])}

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-9)


@pytest.mark.parametrize("number", cases("pc_costcovSat"))
def test_covariance_of_two_steps(number: int) -> None:
    case = load("pc_costcovSat")[number]
    cost = SaturatingCost(plain(case["m1"].size), case["cost"]["z"].ravel(), case["cost"]["W"])

    def between(m1: jax.Array, S1: jax.Array, m2: jax.Array, S2: jax.Array, C: jax.Array) -> jax.Array:
        return cost_covariance(cost, Gaussian(jnp.concatenate([m1, m2]), jnp.block([[S1, C], [C.T, S2]])))

    names = ("m1", "S1", "m2", "S2", "C")
    arguments = [case[name].ravel() if name.startswith("m") else jnp.asarray(case[name]) for name in names]
    value, gradients = jax.value_and_grad(between, argnums=range(5))(*map(jnp.asarray, arguments))
    assert_close(value, case["cov"].item(), 1e-9)
    for name, gradient in zip(names, gradients, strict=True):
        expected = derivative(case[f"dcovd{name}"].ravel(), (), gradient.shape)
        if name.startswith("S"):
            expected, gradient = symmetric(expected), symmetric(gradient)
        assert_close(gradient, expected, 1e-9, f"by {name}")
