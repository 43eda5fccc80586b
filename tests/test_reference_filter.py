"""The filter in execution and in prediction, against the original programs (`pc_`).

There the state carries the previous action in front, `x = [u_before, x]`, and the filter's prediction is a joint
Gaussian of latent state and belief mean, `[X, M]`. The predictor below (`Original`) writes that out with this library's
pieces; this library's `predict` runs it, and the stored numbers come out at every step. Two things distinguish it from
`Filtered`:

- It *linearises* the cross-covariance `Cov[X', M']` (gains of either map), where the matched recursion has
  `Cov[X', M'] = S'` exactly, because the filter's model is the plant's.
- Its filter does not know of process noise: `Q` reaches the latent state, but not `V`.

Take both away (`matched`) and the two predictors are the same, to rounding, at every step and in the gradient.

Models are padded to one number of points, so that cases of one kind share the compiled code.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.control.cost import SaturatingCost
from bayespilco.control.policy import LinearPolicy, Policy, PolicyMap
from bayespilco.control.prediction import Filtered, Prediction, Predictor, predict
from bayespilco.control.prediction import Step as Predicted
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian, joint
from bayespilco.core.gp import GaussianProcess, condition
from bayespilco.model.belief import Belief
from bayespilco.model.dynamics import Dynamics
from tests.golden import assert_close, cases, from_upper, indices, kernel_pc, load, upper
from tests.oracles import jacobian
from tests.test_policy import RidgedRBFPolicy
from tests.test_reference_cost import cart_pole_pc

POINTS = 34
"""Of the largest model."""


class Shape(NamedTuple):
    """What has to be known to compile: which policy on which features, and how many states."""

    kind: str
    features: AngleFeatures
    actions: int
    states: int


class Reference(NamedTuple):
    """A stored case in this library's terms."""

    shape: Shape
    dynamics: Dynamics
    """Without process noise, as the filter believes it."""
    process_noise: jax.Array
    parameters: jax.Array
    limits: jax.Array
    initial: Gaussian


def reference(case: dict[str, Any]) -> Reference:
    model, control, policy = case["dyn"], case["ctrl"], case["policy"]
    states, actions = (int(control[name].item()) for name in ("D", "U"))
    carried = states - int(control["E"].item())  # how many components of the state are the previous action
    angles = indices(control["angi"])
    gp = copying(
        eqx.filter_jit(condition)(model["inputs"], model["target"], **kernel_pc(model["hyp"])), carried, states
    )
    inputs = AngleFeatures(angles, tuple(range(states + actions)))
    noise = jnp.concatenate([jnp.zeros(carried), jnp.exp(2 * jnp.asarray(model["pn"].ravel()))])
    seen = AngleFeatures(angles, tuple(i for i in indices(control["poli"]) if i < states))
    return Reference(
        Shape(policy["kind"], seen, actions, states),
        Dynamics(gp.padded(POINTS), inputs, jnp.diag(jnp.asarray(control["onp"])), jnp.zeros(states)),
        noise,
        jnp.asarray(policy["p_unwrapped"].ravel()),
        jnp.asarray(policy["maxU"].ravel()),
        Gaussian(control["mu0"].ravel(), control["S0"]),
    )


def copying(gp: GaussianProcess, carried: int, states: int) -> GaussianProcess:
    """A GP whose first outputs are the action itself, without any uncertainty."""
    points, size = gp.inputs.shape
    gp = eqx.tree_at(lambda g: (g.root, g.inner), gp, (None, None), is_leaf=lambda leaf: leaf is None)  # W will do
    copies = GaussianProcess(
        gp.inputs,
        jnp.ones((carried, size)),
        jnp.full(carried, 1e-300),
        jnp.zeros((carried, points)),
        jnp.zeros((carried, points, points)),
        jnp.eye(size)[states : states + carried],
        jnp.zeros(carried),
    )
    both = jax.tree.map(lambda first, second: jnp.concatenate([first, second]), copies, gp)
    return eqx.tree_at(lambda joined: joined.inputs, both, gp.inputs)


def policy_pc(shape: Shape, p: jax.Array, limits: jax.Array) -> Policy:
    n, actions = shape.features.size, shape.actions
    if shape.kind == "lin":
        return LinearPolicy(p[actions:].reshape(n, actions).T, p[:actions], shape.features, limits)
    points = (p.size - (n + 2) * actions) // (n + actions)
    hyp, centroids, targets = jnp.split(p, np.cumsum([(n + 2) * actions, points * n]))
    scales = hyp.reshape(actions, n + 2)[:, :n]
    centroids, targets = centroids.reshape(n, points).T, targets.reshape(actions, points).T
    return RidgedRBFPolicy(centroids, targets, scales, shape.features, limits)


class Joint(NamedTuple):
    """The original's state of a prediction."""

    mean: jax.Array
    """Of `[X, M]`."""
    cov: jax.Array
    belief_cov: jax.Array
    """V."""


def stored(state: dict[str, np.ndarray]) -> Joint:
    return Joint(jnp.asarray(state["m"].ravel()), jnp.asarray(state["s"]), jnp.asarray(state["v"]))


def flat(state: Joint) -> jax.Array:
    """With the upper triangles of covariances only."""
    return jnp.concatenate([state.mean, upper(state.cov), upper(state.belief_cov)])


def unflat(values: jax.Array, states: int) -> Joint:
    mean, cov, V = jnp.split(values, np.cumsum([2 * states, states * (2 * states + 1)]))
    return Joint(mean, from_upper(cov), from_upper(V))


def original_update(R: jax.Array, now: Joint) -> tuple[Joint, jax.Array]:
    """`M <- (I - W) M + W (X + e)`, and the matrix that does it to `[X, M]`."""
    V = now.belief_cov
    W = jnp.linalg.solve(V + R, V).T
    eye, zero = jnp.eye(V.shape[0]), jnp.zeros_like(V)
    update = jnp.block([[eye, zero], [W, eye - W]])
    noise = jnp.block([[zero, zero], [zero, W @ R @ W.T]])
    return Joint(update @ now.mean, update @ now.cov @ update.T + noise, R @ W.T), update


class Original(Predictor):
    """The original's predictor: its state is `[X, M]`, of which costs see the first half."""

    process_noise: jax.Array
    matched: jax.Array
    """Whether to take away what distinguishes it from `Filtered`."""

    def start(self, initial: Gaussian, dynamics: Dynamics) -> Joint:
        known = jnp.zeros_like(initial.cov)
        cov = jnp.block([[initial.cov, known], [known, known]])
        return Joint(jnp.concatenate([initial.mean, initial.mean]), cov, initial.cov)

    def state(self, carry: Joint) -> Gaussian:
        return Gaussian(carry.mean, carry.cov)

    def step(self, carry: Joint, t: jax.Array, policy: PolicyMap, dynamics: Dynamics) -> Predicted:
        (mean, cov, V), _ = original_update(dynamics.R, carry)
        n = V.shape[0]
        # Act on the belief: U depends on M alone.
        action = policy.belief_moments(Gaussian(mean[n:], cov[n:, n:]), V)
        with_action = cov[:, n:] @ action.gain
        cov = jnp.block([[cov, with_action], [with_action.T, action.cov]])
        mean = jnp.concatenate([mean, action.mean])
        # Predict the latent state from [X, U] and the belief from [M, U].
        latent, belief = np.r_[0:n, 2 * n : mean.size], np.r_[n : mean.size]
        of_latent = dynamics.moments(Gaussian(mean[latent], cov[np.ix_(latent, latent)]))
        of_mean, V = dynamics.belief_moments(Gaussian(mean[belief], cov[np.ix_(belief, belief)]), V)
        Q = jnp.diag(self.process_noise)
        linearised = of_latent.gain.T @ cov[np.ix_(latent, belief)] @ of_mean.gain
        cross = jnp.where(self.matched, of_mean.cov, linearised)
        following = jnp.block([[of_latent.cov + Q, cross], [cross.T, of_mean.cov]])
        following_mean = jnp.concatenate([of_latent.mean, of_mean.mean])
        carried_on = Joint(following_mean, following, V + jnp.where(self.matched, Q, 0.0))
        return Predicted(carried_on, Gaussian(mean, cov), jnp.pad(carry.belief_cov, (0, n)))

    @property
    def needs_raw_states(self) -> bool:
        return False

    @property
    def can_split(self) -> bool:
        return False

    @property
    def predicts_beliefs(self) -> bool:
        return False

    def starts(self, initial: Gaussian, dynamics: Dynamics, points: jax.Array) -> Joint:
        raise NotImplementedError

    def parts(self, carry: Joint, points: jax.Array) -> Joint:
        raise NotImplementedError


@jacobian
def one_step(
    given: tuple[jax.Array, jax.Array], shape: Shape, dynamics: Dynamics, process_noise: jax.Array, limits: jax.Array
) -> jax.Array:
    """The next state from the last one and the policy's parameters, all in one vector each."""
    state, p = given
    predictor = Original(process_noise, jnp.asarray(False))
    ready = policy_pc(shape, p, limits).map()
    return flat(predictor.step(unflat(state, shape.states), jnp.asarray(0), ready, dynamics).following)


@pytest.mark.parametrize("number", cases("pc_propagateBF"))
def test_one_step(number: int) -> None:
    """Value, and derivatives by the policy's parameters and by the incoming state."""
    case = load("pc_propagateBF")[number]
    this, now, following = reference(case), stored(case["s"]), stored(case["s_next"])
    arguments = (this.shape, this.dynamics, this.process_noise, this.limits)
    value, (by_state, by_p) = one_step((flat(now), this.parameters), *arguments)
    for name, actual, expected in zip(Joint._fields, unflat(value, this.shape.states), following, strict=True):
        assert_close(actual, expected, 1e-11, name)
    assert_close(by_state, case["dsds"], 1e-9, "by the state")
    by_each = Joint(*np.split(case["dsdp"], np.cumsum([m.size for m in now[:2]])))
    squares = [part.reshape(m.shape + (-1,), order="F") for part, m in zip(by_each, now, strict=True)]
    assert_close(by_p, flat(Joint(*map(jnp.asarray, squares))), 1e-9, "by the parameters")


STEPS = 7
"""One more than is stored: what is recorded of a step includes V before it."""


@eqx.filter_jit
@eqx.filter_value_and_grad(has_aux=True)
def total_cost(
    p: jax.Array,
    predictor: Predictor,
    shape: Shape,
    dynamics: Dynamics,
    initial: Gaussian,
    limits: jax.Array,
    cost: SaturatingCost,
) -> tuple[jax.Array, Prediction]:
    predicted = predict(predictor, policy_pc(shape, p, limits), dynamics, initial, cost, STEPS)
    return jnp.sum(predicted.cost_mean[:STEPS]), predicted


def six_steps(case: dict[str, Any], kind: str) -> tuple[Any, Prediction, jax.Array]:
    """The total cost, what was predicted, and the gradient."""
    this = reference(case)
    dynamics, predictor = this.dynamics, Original(this.process_noise, jnp.asarray(kind == "matched"))
    if kind == "ours":
        dynamics = eqx.tree_at(lambda d: d.process_noise, dynamics, this.process_noise)
        predictor = Filtered()
    cost = cart_pole_pc(case["cost"]["ell"].item(), case["cost"]["width"].item())
    arguments = (predictor, this.shape, dynamics, this.initial, this.limits, cost)
    (loss, predicted), gradient = total_cost(this.parameters, *arguments)
    assert not predicted.diverged
    return loss, predicted, gradient


@pytest.mark.parametrize("number", cases("pc_simulateBF"))
def test_six_filtered_steps(number: int) -> None:
    """The stored run at every step: the joint of state and belief, actions, costs; and the gradient of their sum."""
    case = load("pc_simulateBF")[number]
    loss, predicted, gradient = six_steps(case, "original")
    n = case["states"][0]["v"].shape[0]
    for t, expected in enumerate(case["states"]):
        assert_close(predicted.state_mean[t], expected["m"].ravel(), 1e-9, f"mean at {t}")
        assert_close(predicted.state_cov[t], expected["s"], 1e-9, f"covariance at {t}")
        assert_close(predicted.belief_cov[t, :n, :n], expected["v"], 1e-9, f"V at {t}")
        assert_close(predicted.cost_mean[t], case["costs"][t]["m"].item(), 1e-9, f"cost at {t}")
        assert_close(predicted.cost_variance[t], case["costs"][t]["s"].item(), 1e-8, f"cost variance at {t}")
    for t, expected in enumerate(case["actions"]):
        assert_close(predicted.action_mean[t], expected["m"].ravel(), 1e-9, f"action at {t}")
        assert_close(predicted.action_cov[t], expected["s"], 1e-9, f"action variance at {t}")
    assert_close(loss, case["loss"].item(), 1e-10, "total cost")
    assert_close(gradient, case["dloss_dp"].ravel(), 1e-8, "gradient")


@pytest.mark.parametrize("number", cases("pc_simulateBF"))
def test_ours_is_the_original_matched(number: int) -> None:
    """At every step and in the gradient; the stored numbers are the same on the first step and near later on."""
    case = load("pc_simulateBF")[number]
    loss, ours, gradient = six_steps(case, "ours")
    loss_matched, matched, gradient_matched = six_steps(case, "matched")
    n = ours.state_mean.shape[1]
    assert_close(ours.state_mean, matched.state_mean[:, :n], 1e-10, "means")
    assert_close(ours.state_cov, matched.state_cov[:, :n, :n], 1e-10, "covariances")
    for name in ("action_mean", "action_cov", "cost_mean", "cost_variance"):
        assert_close(getattr(ours, name), getattr(matched, name), 1e-10, name)
    assert_close(loss, loss_matched, 1e-10, "total cost")
    assert_close(gradient, gradient_matched, 1e-9, "gradient")
    for t in (0, 1):
        assert_close(ours.state_mean[t], case["states"][t]["m"].ravel()[:n], 1e-10)
        assert_close(ours.state_cov[t], case["states"][t]["s"][:n, :n], 1e-10)
    assert abs(loss - case["loss"].item()) < 0.01 * case["loss"].item()
    assert not np.allclose(ours.state_cov[6], case["states"][6]["s"][:n, :n], rtol=1e-6), "the difference is real"


@jacobian
def controller(
    given: tuple[jax.Array, jax.Array], shape: Shape, dynamics: Dynamics, limits: jax.Array
) -> dict[str, jax.Array]:
    """The controller alone, from any joint of latent state and belief mean to `[U, M']`."""
    state, p = given
    policy = policy_pc(shape, p, limits).map()
    updated, update = original_update(dynamics.R, unflat(state, shape.states))
    n = shape.states
    # From here on everything is this library's, on what the filter knows: M and V.
    M, V = Gaussian(updated.mean[n:], updated.cov[n:, n:]), updated.belief_cov
    action = policy.belief_moments(M, V)
    mean_action = joint(M, action)
    of_mean, V = dynamics.belief_moments(mean_action, V)
    gain = jnp.concatenate([jnp.eye(n), action.gain], axis=1)
    both = jnp.concatenate([jnp.eye(mean_action.size)[:, n:], of_mean.gain], axis=1)  # [M, U] -> [U, M']
    cov = both.T @ mean_action.cov @ both
    cov = cov.at[-n:, -n:].set(of_mean.cov)
    output = jnp.concatenate([mean_action.mean[n:], of_mean.mean])
    return {"M": output, "S": upper(cov), "C": update[n:].T @ gain @ both, "v": upper(V)}


@pytest.mark.parametrize("number", cases("pc_ctrlBF"))
def test_controller_in_prediction(number: int) -> None:
    """Value, and derivatives by the policy's parameters and by the incoming state."""
    case = load("pc_ctrlBF")[number]
    this = reference(case)
    start = flat(stored(case["s"]))
    values, jacobians = controller((start, this.parameters), this.shape, this.dynamics, this.limits)
    n, outputs = this.shape.states, this.shape.actions + this.shape.states
    expected = {"M": case["M"].ravel(), "S": upper(case["S"]), "C": case["C"], "v": upper(case["s_next"]["v"])}
    by_p = {
        "M": case["dMdp"],
        "S": upper(case["dSdp"].reshape(outputs, outputs, -1, order="F")),
        "C": case["dCdp"],
        "v": upper(case["dsdp"][-n * n :].reshape(n, n, -1, order="F")),
    }
    for name, value in values.items():
        along_state, along_p = (np.asarray(part) for part in jacobians[name])
        assert_close(value, expected[name], 1e-10, name)
        assert_close(along_p.reshape(-1, this.parameters.size, order="F"), by_p[name], 1e-9, f"d{name}/dp")
        assert_close(along_state.reshape(-1, start.size, order="F"), case[f"d{name}ds"], 1e-9, f"d{name}/ds")


@eqx.filter_jit
def execute(
    belief: Belief, z: jax.Array, action: jax.Array, policy: PolicyMap, dynamics: Dynamics
) -> tuple[jax.Array, Belief]:
    """Our action, and the prediction after theirs."""
    belief = belief.update(z, dynamics.sensors)
    return policy.at_belief(belief.gaussian), belief.predict(dynamics, action)


@pytest.mark.parametrize("number", cases("pc_ctrlBF_rollout"))
def test_controller_in_execution(number: int) -> None:
    """Six steps of update, act, predict. Their policy has a ridge of 1e-6 even here, hence actions to 1e-5 only."""
    case = load("pc_ctrlBF_rollout")[number]
    this = reference(case)
    n = this.shape.states
    policy = policy_pc(this.shape, this.parameters, this.limits).map()
    belief = Belief(this.initial.mean, this.initial.cov)
    for t, expected in enumerate(case["seq"]):
        u = jnp.asarray(expected["u"].ravel())
        ours, belief = execute(belief, jnp.asarray(expected["m_in"].ravel()[:n]), u, policy, this.dynamics)
        assert_close(ours, u, 1e-5, f"action at {t}")
        assert_close(belief.mean, expected["z_next"].ravel(), 1e-9, f"belief mean at {t}")
        assert_close(belief.cov, expected["v_next"], 1e-9, f"V at {t}")
