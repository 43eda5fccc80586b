"""Unfiltered prediction over a horizon, against the original PILCO (v0.9: propagate, pred, value).

There the model predicts *differences* of some components of the state, which is our GP with the identity as slope and
weights fitted to the differences; the raw angle stays out of the kernel, which is our length-scale of infinity. The
policy sees the state without sensor noise, and J has no term for t = 0.

One thing is computed differently. The original appends sine and cosine to the state once, and lets the policy's action
covary with them as with the rest: `Cov[sin, u] = Cov[sin, features] gain`. Here (as in its authors' later program) the
model gets `[x, u]` as a Gaussian and appends the sines itself: `Cov[sin, u] = E[cos] Cov[angle, u]`. Both are moment
matching, neither is exact. So the tests have a predictor of their own, `Original`, which this library's `predict` runs:
it gives the stored numbers at every step, and with that one covariance exchanged it gives those of `Unfiltered`.

All cases are padded to one size and share the compiled code: points of the model get zero weights, and centroids of the
policy are put so far away that nothing reaches them.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.control.cost import SaturatingCost
from bayespilco.control.policy import PolicyMap
from bayespilco.control.prediction import Prediction, Predictor, Step, Unfiltered, predict
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, joint
from bayespilco.core.gp import condition, condition_sparse
from bayespilco.core.moments import gp_moments
from bayespilco.model.dynamics import Dynamics
from tests.golden import assert_close, cases, indices, kernel_v09, load, symmetric
from tests.oracles import jacobian
from tests.test_policy import RidgedRBFPolicy, placed
from tests.test_reference_cost import cart_poles_v09

STATES, FEATURES, ANGLE = 4, 5, 3
POINTS, CENTROIDS, HORIZON = 46, 15, 15
"""The largest of all cases."""


class Original(Predictor):
    """The original's step. `matched` exchanges the one covariance that distinguishes it from `Unfiltered`."""

    matched: jax.Array

    def start(self, initial: Gaussian, dynamics: Dynamics) -> Gaussian:
        return initial

    def state(self, carry: Gaussian) -> Gaussian:
        return carry

    def step(self, carry: Gaussian, t: jax.Array, policy: PolicyMap, dynamics: Dynamics) -> Step:
        augment = AngleFeatures((ANGLE,), (0, 1, 2, 3))  # [x, sin, cos]: what both policy and model choose from
        features = augment.moments(carry)
        inner = policy.function.moments(choose(features.output, [0, 1, 2, 4, 5]))
        action = inner.then(policy.squash.moments(inner.output))
        gain = jnp.zeros((6, 1)).at[jnp.asarray([0, 1, 2, 4, 5])].set(action.gain)
        both = joint(features.output, eqx.tree_at(lambda a: a.gain, action, gain))  # [x, sin, cos, u]
        # Cov[[sin, cos], u] from Cov[angle, u] alone, as if the action depended on nothing else.
        ours = both.cov[ANGLE, 6] * jnp.stack([both.mean[5], -both.mean[4]])
        theirs = both.cov[4:6, 6]
        cross = jnp.where(self.matched, ours, theirs)
        both = Gaussian(both.mean, both.cov.at[4:6, 6].set(cross).at[6, 4:6].set(cross))
        following = gp_moments(dynamics.gp, choose(both, [0, 1, 2, 3, 6, 4, 5])).output
        return Step(following, choose(both, [0, 1, 2, 3, 6]), jnp.zeros_like(carry.cov))

    @property
    def needs_raw_states(self) -> bool:
        return False

    @property
    def can_split(self) -> bool:
        return False

    @property
    def predicts_beliefs(self) -> bool:
        return False

    def starts(self, initial: Gaussian, dynamics: Dynamics, points: jax.Array) -> Gaussian:
        raise NotImplementedError

    def parts(self, carry: Gaussian, points: jax.Array) -> Gaussian:
        raise NotImplementedError


def choose(gaussian: Gaussian, which: list[int]) -> Gaussian:
    return Gaussian(gaussian.mean[np.asarray(which)], gaussian.cov[np.ix_(which, which)])


class Reference(NamedTuple):
    """A stored case in this library's terms, padded."""

    dynamics: Dynamics
    parameters: jax.Array
    where: np.ndarray
    """The stored parameters among those of the padded policy."""
    limits: jax.Array
    start: Gaussian


def reference(case: dict[str, Any]) -> Reference:
    policy = case["policy"]
    parameters, where = placed(policy["p_unwrapped"].ravel(), (FEATURES, 1), CENTROIDS, (FEATURES, 1))
    limits = jnp.asarray(policy["maxU"].ravel())
    return Reference(dynamics_v09(case), parameters, where, limits, Gaussian(case["m"].ravel(), case["s"]))


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
        gp = eqx.filter_jit(condition_sparse)(inputs, model["targets"], induced, **kernel, kind="fitc", ridge=1e-6)
    else:
        gp = eqx.filter_jit(condition)(inputs, model["targets"], **kernel)
    slope = np.zeros((STATES, 7))
    for i in indices(case["plant"]["difi"]):
        slope[i, i] = 1.0
    gp = eqx.tree_at(lambda gp: gp.slope, gp, jnp.asarray(slope)).padded(POINTS)
    silent = jnp.full(STATES, 1e-300)  # no sensor noise to speak of
    return Dynamics(gp, AngleFeatures((ANGLE,), (0, 1, 2, 3, 4)), silent, jnp.zeros(STATES))


def policy_v09(p: jax.Array, limits: jax.Array) -> RidgedRBFPolicy:
    hyp, centroids, targets = jnp.split(p, np.cumsum([FEATURES + 2, CENTROIDS * FEATURES]))
    features = AngleFeatures((ANGLE,), (0, 1, 2))
    scales = hyp[None, :FEATURES]
    return RidgedRBFPolicy(centroids.reshape(FEATURES, CENTROIDS).T, targets[:, None], scales, features, limits)


@jacobian
def one_step(
    arguments: tuple[jax.Array, jax.Array, jax.Array], dynamics: Dynamics, limits: jax.Array
) -> tuple[jax.Array, jax.Array]:
    m, s, p = arguments
    predictor = Original(jnp.asarray(False))
    following = predictor.step(Gaussian(m, s), jnp.asarray(0), policy_v09(p, limits).map(), dynamics).following
    return following.mean, following.cov


@pytest.mark.parametrize("number", cases("propagate"))
def test_one_step(number: int) -> None:
    """Value and derivatives by mean, covariance and parameters; FITC model and partial differences included."""
    case = load("propagate")[number]
    this = reference(case)
    (mean, cov), by = one_step((this.start.mean, this.start.cov, this.parameters), this.dynamics, this.limits)
    assert_close(mean, case["Mnext"].ravel(), 1e-9, "mean")
    assert_close(cov, case["Snext"], 1e-9, "covariance")
    for name, (by_m, by_s, by_p) in zip("MS", by, strict=True):
        by_m, by_p = np.asarray(by_m), np.asarray(by_p)[..., this.where]
        stored = symmetric(case[f"d{name}ds"].reshape(by_s.shape, order="F"))
        assert_close(by_m.reshape(-1, STATES, order="F"), case[f"d{name}dm"], 1e-9, f"d{name}/dm")
        assert_close(symmetric(by_s), stored, 1e-9, f"d{name}/ds")
        assert_close(by_p.reshape(case[f"d{name}dp"].shape, order="F"), case[f"d{name}dp"], 1e-9, f"d{name}/dp")


class Charged(NamedTuple):
    """The original's cost at every step."""

    mean: jax.Array
    variance: jax.Array


@eqx.filter_jit
@eqx.filter_value_and_grad(has_aux=True)
def discounted_cost(
    p: jax.Array,
    predictor: Predictor,
    this: Reference,
    costs: list[SaturatingCost],
    exploration: jax.Array,
    discounts: jax.Array,
) -> tuple[jax.Array, tuple[Prediction, Charged]]:
    """J. Costs of several widths are averaged, and `exploration` times the standard deviation is added."""
    predicted = predict(predictor, policy_v09(p, this.limits), this.dynamics, this.start, costs[0], HORIZON)

    def charge(state: tuple[jax.Array, jax.Array]) -> Charged:
        each = [cost.moments(Gaussian(*state)) for cost in costs]
        means = [one.mean[0] + exploration * jnp.sqrt(one.cov[0, 0]) for one in each]
        return Charged(sum(means) / len(costs), sum(one.cov[0, 0] for one in each) / len(costs))

    charged = jax.lax.map(charge, (predicted.state_mean, predicted.state_cov))
    return jnp.sum(discounts * charged.mean), (predicted, charged)


def run(predictor: Predictor, case: dict[str, Any]) -> tuple[Any, Prediction, Charged, np.ndarray]:
    """J, what it is made of, and its gradient by the stored parameters."""
    this, cost = reference(case), case["cost"]
    times = np.arange(HORIZON + 1)
    discounts = np.where((times > 0) & (times <= case["H"].item()), cost["gamma"].item() ** times, 0.0)
    costs, exploration = cart_poles_v09(cost), jnp.asarray(cost["expl"].item())
    arguments = (predictor, this._replace(where=np.zeros(0)), costs, exploration, jnp.asarray(discounts))
    (J, (predicted, charged)), gradient = discounted_cost(this.parameters, *arguments)
    return J, predicted, charged, np.asarray(gradient)[this.where]


@pytest.mark.parametrize("number", cases("pred"))
def test_ten_steps_with_costs(number: int) -> None:
    case = load("pred")[number]
    _, predicted, charged, _ = run(Original(jnp.asarray(False)), case)
    assert not predicted.diverged
    steps = slice(int(case["H"].item()) + 1)
    assert_close(predicted.state_mean[steps], case["M"].T, 1e-9, "means")
    assert_close(predicted.state_cov[steps], np.moveaxis(case["S"], -1, 0), 1e-9, "covariances")
    assert_close(charged.mean[steps], case["cost_mean"].ravel(), 1e-9, "costs")
    assert_close(np.sqrt(charged.variance[steps]), case["cost_std"].ravel(), 1e-9, "standard deviations of the costs")


@pytest.mark.parametrize("number", cases("value"))
def test_value_and_its_gradient(number: int) -> None:
    """J with discount, and its gradient."""
    case = load("value")[number]
    J, _, _, gradient = run(Original(jnp.asarray(False)), case)
    assert_close(J, case["J"].item(), 1e-9, "J")
    assert_close(gradient, case["dJdp_unwrapped"].ravel(), 1e-9, "dJ/dp")


@pytest.mark.parametrize("number", cases("value"))
def test_ours_is_the_original_but_for_one_covariance(number: int) -> None:
    """Equal to rounding at all steps and in the gradient if `Cov[sin, u]` is exchanged; else a percent or two away."""
    case = load("value")[number]
    J, predicted, _, gradient = run(Unfiltered(), case)
    J_matched, matched, _, gradient_matched = run(Original(jnp.asarray(True)), case)
    for name in ("state_mean", "state_cov", "action_mean", "action_cov", "cost_mean", "cost_variance"):
        assert_close(getattr(predicted, name), getattr(matched, name), 1e-10, name)
    assert_close(J, J_matched, 1e-10, "J")
    assert_close(gradient, gradient_matched, 1e-9, "dJ/dp")
    assert_close(J, case["J"].item(), 0.02, "J of the original")
    assert abs(J - case["J"].item()) > 1e-7 * abs(J), "the difference is real"
