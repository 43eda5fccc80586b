"""The saturating cost, against the original programs.

Their other losses (lossLin, lossHinge, lossAdd, lossQuad) have no counterpart here; of lossQuad the original's own
derivatives of the variance are wrong, as the fixture's `dSdm_fixed` shows beside its `dSdm`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.cost import SaturatingCost
from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian
from tests.golden import assert_close, cases, compare, indices, load


def plain(size: int) -> AngleFeatures:
    """No angles: the cost is one of the state itself."""
    return AngleFeatures((), tuple(range(size)))


@pytest.mark.parametrize("number", cases("lossSat", quick=(0, 3)))
def test_saturating_cost(number: int) -> None:
    case = load("lossSat")[number]
    cost = SaturatingCost(plain(case["m"].size), case["cost"]["z"].ravel(), case["cost"]["W"])

    def moments(m: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        of_state = cost.moments(Gaussian(m, s))
        return {"L": of_state.mean, "S": of_state.cov, "C": of_state.gain}

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-9)


@pytest.mark.parametrize("number", cases("pc_lossSath", quick=(1, 3)))
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


@pytest.mark.parametrize("number", cases("loss_cp", quick=(0, 2, 4)))
def test_cart_pole_cost(number: int) -> None:
    case = load("loss_cp")[number]

    def moments(m: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        return cart_pole_moments_v09(case["cost"], Gaussian(m, s))

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-8)


def cart_pole_pc(length: float, width: float) -> SaturatingCost:
    """The later cart-pole cost, on the state [old action, x, theta, v, dtheta], with theta zero upright."""
    return SaturatingCost(AngleFeatures((2,), (1,)), [0.0, 0.0, 1.0], pendulum_weight(length, width, -1.0))


@pytest.mark.parametrize("number", cases("pc_Cost_cartpole", quick=(0,)))
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


def test_widening_divides_the_weight() -> None:
    cost = cart_pole_pc(0.5, 0.25)
    x = jnp.asarray([0.0, 0.3, 0.2, 0.0, 0.0])
    assert_close(cost.widened(2.0)(x), cart_pole_pc(0.5, 0.5)(x), 1e-12)
    assert_close(cost(jnp.zeros(5)), np.asarray(0.0), 1e-12)
