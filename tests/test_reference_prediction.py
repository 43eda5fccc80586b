"""Unfiltered prediction over a horizon, against the original PILCO (v0.9: propagate, pred, value).

There the model predicts *differences* of some components of the state, which is our GP with the identity as slope and
weights fitted to the differences; the raw angle stays out of the kernel, which is our length-scale of infinity. The
policy sees the state without sensor noise, and J has no term for t = 0.

One thing is computed differently. The original appends sine and cosine to the state once, and lets the policy's action
covary with them as with the rest: `Cov[sin, u] = Cov[sin, features] gain`. Here (as in its authors' later program) the
model gets `[x, u]` as a Gaussian and appends the sines itself: `Cov[sin, u] = E[cos] Cov[angle, u]`. Both are moment
matching, neither is exact. `original_step` shows that this is the whole of the difference.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.dynamics import Dynamics
from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian, joint
from bayespilco.gp import condition, condition_sparse
from bayespilco.moments import gp_moments
from bayespilco.prediction import Unfiltered, predict
from tests.golden import assert_close, cases, indices, kernel_v09, load
from tests.oracles import jacobian
from tests.test_cost import cart_pole_moments_v09, cart_poles_v09
from tests.test_policy import RidgedRBFPolicy

STATES = 4
ANGLE = 3


def dynamics_v09(case: dict[str, Any]) -> Dynamics:
    """Their inputs are [x1, x2, x3, sin, cos, u]; ours [x1, x2, x3, angle, u, sin, cos]."""
    model = case["dynmodel"]
    kernel = kernel_v09(model["hyp"])

    def columns(table: np.ndarray, angle: float) -> np.ndarray:
        return np.column_stack([table[:, :3], np.full(len(table), angle), table[:, 5], table[:, 3:5]])

    kernel["length_scales"] = columns(kernel["length_scales"], np.inf)
    inputs = columns(model["inputs"], 0.0)
    if model["fcn"] == "gp1d":
        induced = columns(model["induce"], 0.0)
        gp = condition_sparse(inputs, model["targets"], induced, **kernel, kind="fitc", ridge=1e-6)
    else:
        gp = condition(inputs, model["targets"], **kernel)
    slope = np.zeros((STATES, 7))
    for i in indices(case["plant"]["difi"]):
        slope[i, i] = 1.0
    gp = eqx.tree_at(lambda gp: gp.slope, gp, jnp.asarray(slope))
    silent = jnp.full(STATES, 1e-300)  # no sensor noise to speak of
    return Dynamics(gp, AngleFeatures((ANGLE,), (0, 1, 2, 3, 4)), silent, jnp.zeros(STATES))


def policy_v09(case: dict[str, Any], p: jax.Array) -> RidgedRBFPolicy:
    points, n = case["policy"]["p"]["inputs"].shape
    hyp, centroids, targets = jnp.split(p, np.cumsum([n + 2, points * n]))
    features = AngleFeatures((ANGLE,), (0, 1, 2))
    limits = jnp.asarray(case["policy"]["maxU"].ravel())
    return RidgedRBFPolicy(centroids.reshape(n, points).T, targets[:, None], hyp[None, :n], features, limits)


def original_step(dynamics: Dynamics, policy: RidgedRBFPolicy, state: Gaussian) -> Gaussian:
    ready = policy.map()
    augment = AngleFeatures((ANGLE,), (0, 1, 2, 3))  # [x, sin, cos]: what both policy and model choose from
    features = augment.moments(state)
    inner = ready.function.moments(choose(features.output, [0, 1, 2, 4, 5]))
    action = inner.then(ready.squash.moments(inner.output))
    gain = jnp.zeros((6, 1)).at[jnp.asarray([0, 1, 2, 4, 5])].set(action.gain)
    both = joint(features.output, eqx.tree_at(lambda a: a.gain, action, gain))  # [x, sin, cos, u]
    return gp_moments(dynamics.gp, choose(both, [0, 1, 2, 3, 6, 4, 5])).output


def choose(gaussian: Gaussian, which: list[int]) -> Gaussian:
    return Gaussian(gaussian.mean[np.asarray(which)], gaussian.cov[np.ix_(which, which)])


@pytest.mark.slow
@pytest.mark.parametrize("number", cases("propagate"))
def test_one_step(number: int) -> None:
    """Value and derivatives of the original's step, FITC model and partial differences included."""
    case = load("propagate")[number]

    def step(arguments: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        m, s, p = arguments
        following = original_step(dynamics_v09(case), policy_v09(case, p), Gaussian(m, s))
        return following.mean, following.cov

    arguments = tuple(jnp.asarray(a) for a in (case["m"].ravel(), case["s"], case["policy"]["p_unwrapped"].ravel()))
    (mean, cov), (by_mean, by_cov) = jacobian(step)(arguments)
    tolerance = 1e-6 if case["dynmodel"]["fcn"] == "gp1d" else 1e-8  # FITC's ridge makes it ill-conditioned
    assert_close(mean, case["Mnext"].ravel(), tolerance)
    assert_close(cov, case["Snext"], tolerance)
    for name, (by_m, by_s, by_p) in (("M", by_mean), ("S", by_cov)):
        by_s = (by_s + jnp.swapaxes(by_s, -1, -2)) / 2
        stored = case[f"d{name}ds"].reshape(by_s.shape, order="F")
        assert_close(np.asarray(by_m).reshape(-1, STATES, order="F"), case[f"d{name}dm"], tolerance, f"d{name}/dm")
        assert_close(by_s, (stored + np.swapaxes(stored, -1, -2)) / 2, tolerance, f"d{name}/ds")
        assert_close(np.asarray(by_p).reshape(case[f"d{name}dp"].shape, order="F"), case[f"d{name}dp"], tolerance)


@pytest.mark.parametrize("number", cases("pred", quick=(0,)))
def test_ten_steps_with_costs(number: int) -> None:
    """To rounding with the original's step; `Unfiltered` differs by its Cov[sin, u], and by a percent or two."""
    case = load("pred")[number]
    dynamics = dynamics_v09(case)
    policy = policy_v09(case, jnp.asarray(case["policy"]["p_unwrapped"].ravel()))
    tolerance = 1e-5 if case["dynmodel"]["fcn"] == "gp1d" else 1e-7

    @jax.jit
    def run(mean: jax.Array, cov: jax.Array) -> tuple[Gaussian, dict[str, jax.Array]]:
        def step(state: Gaussian, _: None) -> tuple[Gaussian, Gaussian]:
            following = original_step(dynamics, policy, state)
            return following, following

        start = Gaussian(mean, cov)
        states = jax.lax.scan(step, start, length=10)[1]
        states = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, states)
        return states, jax.lax.map(lambda state: cart_pole_moments_v09(case["cost"], state), states)

    states, of_costs = run(case["m"].ravel(), case["s"])
    assert_close(states.mean, case["M"].T, tolerance, "means")
    assert_close(states.cov, np.moveaxis(case["S"], -1, 0), tolerance, "covariances")
    assert_close(of_costs["L"], case["cost_mean"].ravel(), tolerance, "costs")
    assert_close(np.sqrt(of_costs["S2"]), case["cost_std"].ravel(), tolerance, "standard deviations of the costs")
    start, narrow = Gaussian(case["m"].ravel(), case["s"]), cart_poles_v09(case["cost"])[0]
    ours = eqx.filter_jit(predict)(Unfiltered(), policy, dynamics, start, narrow, 10)
    theirs = eqx.filter_jit(lambda states: jax.lax.map(narrow.moments, states))(states)
    assert_close(ours.state_mean, case["M"].T, 0.02, "our means")
    assert_close(ours.cost_mean, theirs.mean[:, 0], 0.02, "our costs")


@pytest.mark.parametrize("number", cases("value", quick=(0,)))
def test_value_and_its_gradient(number: int) -> None:
    """J with discount, and its gradient."""
    case = load("value")[number]
    discount, horizon = case["cost"]["gamma"].item(), int(case["H"].item())
    start = Gaussian(case["m"].ravel(), case["s"])

    def value(p: jax.Array) -> jax.Array:
        dynamics, policy = dynamics_v09(case), policy_v09(case, p)

        def step(state: Gaussian, _: None) -> tuple[Gaussian, jax.Array]:
            following = original_step(dynamics, policy, state)
            return following, cart_pole_moments_v09(case["cost"], following)["L"]

        each = jax.lax.scan(step, start, length=horizon)[1]
        return jnp.sum(each * discount ** jnp.arange(1, horizon + 1))

    p = jnp.asarray(case["policy"]["p_unwrapped"].ravel())
    J, gradient = jax.jit(jax.value_and_grad(value))(p)
    tolerance = 1e-5 if case["dynmodel"]["fcn"] == "gp1d" else 1e-7
    assert_close(J, case["J"].item(), tolerance)
    assert_close(gradient, case["dJdp_unwrapped"].ravel(), tolerance)
