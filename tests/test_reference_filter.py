"""The filter in execution and in prediction, against the original programs (`pc_`).

There the state carries the previous action in front, `x = [u_before, x]`, and the filter's prediction is a joint
Gaussian of latent state and belief mean, `[X, M]`. The recursion below (`original_step`) writes that out with this
library's pieces and reproduces the stored numbers. Two things distinguish it from `BeliefDistribution`:

- It *linearises* the cross-covariance `Cov[X', M']` (gains of either map), where the matched recursion has
  `Cov[X', M'] = S'` exactly, because the filter's model is the plant's.
- Its filter does not know of process noise: `Q` reaches the latent state, but not `V`.

Take both away and the two recursions are the same, to rounding, at every step.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.belief import Belief, BeliefDistribution
from bayespilco.dynamics import Dynamics
from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian
from bayespilco.gp import GaussianProcess, condition
from bayespilco.policy import LinearPolicy, Policy
from bayespilco.prediction import Filtered, predict
from tests.golden import assert_close, cases, indices, kernel_pc, load
from tests.oracles import jacobian
from tests.test_cost import cart_pole_pc
from tests.test_policy import RidgedRBFPolicy


class Reference(NamedTuple):
    """A stored case in this library's terms."""

    dynamics: Dynamics
    """Without process noise, as the filter believes it."""
    process_noise: jax.Array
    policy: Policy
    initial: Gaussian


def reference(case: dict[str, Any], parameters: jax.Array | None = None) -> Reference:
    model, control = case["dyn"], case["ctrl"]
    states, actions = (int(control[name].item()) for name in ("D", "U"))
    carried = states - int(control["E"].item())  # how many components of the state are the previous action
    angles = indices(control["angi"])
    gp = copying(
        eqx.filter_jit(condition)(model["inputs"], model["target"], **kernel_pc(model["hyp"])), carried, states
    )
    dynamics = Dynamics(
        gp,
        AngleFeatures(angles, tuple(range(states + actions))),
        jnp.diag(jnp.asarray(control["onp"])),
        jnp.zeros(states),
    )
    noise = jnp.concatenate([jnp.zeros(carried), jnp.exp(2 * jnp.asarray(model["pn"].ravel()))])
    return Reference(
        dynamics,
        noise,
        stored_policy(case, states, parameters),
        Gaussian(control["mu0"].ravel(), control["S0"]),
    )


def copying(gp: GaussianProcess, carried: int, states: int) -> GaussianProcess:
    """A GP whose first outputs are the action itself, without any uncertainty."""
    points, size = gp.inputs.shape
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


def stored_policy(case: dict[str, Any], states: int, parameters: jax.Array | None) -> Policy:
    p = jnp.asarray(case["policy"]["p_unwrapped"].ravel()) if parameters is None else parameters
    limits = jnp.asarray(case["policy"]["maxU"].ravel())
    angles = indices(case["ctrl"]["angi"])
    features = AngleFeatures(angles, tuple(i for i in indices(case["ctrl"]["poli"]) if i < states))
    n, actions = features.size, limits.size
    if case["policy"]["kind"] == "lin":
        return LinearPolicy(p[actions:].reshape(n, actions).T, p[:actions], features, limits)
    points = case["policy"]["p"]["inputs"].shape[0]
    hyp, centroids, targets = jnp.split(p, np.cumsum([(n + 2) * actions, points * n]))
    scales = hyp.reshape(actions, n + 2)[:, :n]
    return RidgedRBFPolicy(centroids.reshape(n, points).T, targets.reshape(actions, points).T, scales, features, limits)


class Step(NamedTuple):
    mean: jax.Array
    """Of `[X, M]`."""
    cov: jax.Array
    belief_cov: jax.Array
    """V."""


def original_update(case: Reference, now: Step) -> tuple[Step, jax.Array]:
    """`M <- (I - W) M + W (X + e)`, and the matrix that does it to `[X, M]`."""
    V, R = now.belief_cov, case.dynamics.R
    W = jnp.linalg.solve(V + R, V).T
    eye, zero = jnp.eye(V.shape[0]), jnp.zeros_like(V)
    update = jnp.block([[eye, zero], [W, eye - W]])
    noise = jnp.block([[zero, zero], [zero, W @ R @ W.T]])
    return Step(update @ now.mean, update @ now.cov @ update.T + noise, R @ W.T), update


def original_step(case: Reference, now: Step, *, matched: bool = False) -> tuple[Step, Gaussian]:
    """One closed-loop step of the original program; `matched` takes away what distinguishes it from this library's."""
    (mean, cov, V), _ = original_update(case, now)
    n = V.shape[0]
    # Act on the belief: U depends on M alone.
    action = case.policy.map().belief_moments(Gaussian(mean[n:], cov[n:, n:]), V)
    with_action = cov[:, n:] @ action.gain
    cov = jnp.block([[cov, with_action], [with_action.T, action.cov]])
    mean = jnp.concatenate([mean, action.mean])
    # Predict the latent state from [X, U] and the belief from [M, U].
    latent, belief = np.r_[0:n, 2 * n : mean.size], np.r_[n : mean.size]
    of_latent = case.dynamics.moments(Gaussian(mean[latent], cov[np.ix_(latent, latent)]))
    of_mean, V = case.dynamics.belief_moments(Gaussian(mean[belief], cov[np.ix_(belief, belief)]), V)
    Q = jnp.diag(case.process_noise)
    if matched:
        cross, V = of_mean.cov, V + Q
    else:
        cross = of_latent.gain.T @ cov[np.ix_(latent, belief)] @ of_mean.gain
    cov = jnp.block([[of_latent.cov + Q, cross], [cross.T, of_mean.cov]])
    return Step(jnp.concatenate([of_latent.mean, of_mean.mean]), cov, V), action.output


def stored(state: dict[str, np.ndarray]) -> Step:
    return Step(jnp.asarray(state["m"].ravel()), jnp.asarray(state["s"]), jnp.asarray(state["v"]))


@pytest.mark.slow
@pytest.mark.parametrize("number", cases("pc_propagateBF"))
def test_the_original_recursion_is_understood(number: int) -> None:
    """One step, value and derivative with respect to the policy's parameters: `original_step` is what they computed."""
    case = load("pc_propagateBF")[number]

    def step(p: jax.Array) -> Step:
        return original_step(reference(case, p), stored(case["s"]))[0]

    p = jnp.asarray(case["policy"]["p_unwrapped"].ravel())
    value, by_p = jacobian(step)(p)
    expected = case["s_next"]
    assert_close(value.mean, expected["m"].ravel(), 1e-11)
    assert_close(value.cov, expected["s"], 1e-11)
    assert_close(value.belief_cov, expected["v"], 1e-11)
    flat = np.concatenate([np.asarray(part).reshape(-1, p.size, order="F") for part in by_p])
    assert_close(flat, case["dsdp"], 1e-8)


@pytest.mark.parametrize("number", cases("pc_simulateBF", quick=(0,)))
def test_six_filtered_steps(number: int) -> None:
    """The stored run is reproduced to rounding; ours is its matched form, equal to it on the first step."""
    case = load("pc_simulateBF")[number]
    cost = cart_pole_pc(case["cost"]["ell"].item(), case["cost"]["width"].item())
    this = reference(case)
    start = stored(case["s"])
    step, cost_of = eqx.filter_jit(original_step), eqx.filter_jit(cost.moments)

    # 1. What they computed.
    now, costs = start, []
    for t, expected in enumerate(case["states"]):
        assert_close(now.mean, expected["m"].ravel(), 1e-9, f"mean at {t}")
        assert_close(now.cov, expected["s"], 1e-9, f"covariance at {t}")
        assert_close(now.belief_cov, expected["v"], 1e-9, f"V at {t}")
        of_state = cost_of(Gaussian(now.mean[:5], now.cov[:5, :5]))
        costs.append(of_state.mean[0])
        assert_close(of_state.mean, case["costs"][t]["m"].ravel(), 1e-9, f"cost at {t}")
        assert_close(of_state.cov, case["costs"][t]["s"], 1e-8, f"cost variance at {t}")
        if t < 6:
            now, action = step(this, now)
            assert_close(action.mean, case["actions"][t]["m"].ravel(), 1e-9, f"action at {t}")
            assert_close(action.cov, case["actions"][t]["s"], 1e-9, f"action variance at {t}")
    assert_close(sum(costs), case["loss"].item(), 1e-10, "total cost")

    # 2. Our prediction is the same recursion, matched, at every step.
    noisy = eqx.tree_at(lambda d: d.process_noise, this.dynamics, this.process_noise)
    ours = eqx.filter_jit(predict)(Filtered(), this.policy, noisy, this.initial, cost, 6)
    now = start
    for t in range(7):
        assert_close(ours.state_mean[t], now.mean[:5], 1e-10, f"our mean at {t}")
        assert_close(ours.state_cov[t], now.cov[:5, :5], 1e-10, f"our covariance at {t}")
        now, _ = step(this, now, matched=True)

    # 3. So it equals theirs on the first step, and stays near it: the linearisation is what is left.
    for t in (0, 1):
        assert_close(ours.state_mean[t], case["states"][t]["m"].ravel()[:5], 1e-10)
        assert_close(ours.state_cov[t], case["states"][t]["s"][:5, :5], 1e-10)
    assert abs(ours.total_cost - case["loss"].item()) < 0.01 * case["loss"].item()
    assert not np.allclose(ours.state_cov[6], case["states"][6]["s"][:5, :5], rtol=1e-6), "the difference is real"


@pytest.mark.slow
@pytest.mark.parametrize("number", cases("pc_simulateBF"))
def test_gradient_of_the_total_cost_of_six_filtered_steps(number: int) -> None:
    case = load("pc_simulateBF")[number]
    cost = cart_pole_pc(case["cost"]["ell"].item(), case["cost"]["width"].item())

    def loss(p: jax.Array) -> jax.Array:
        this = reference(case, p)

        def step(now: Step, _: None) -> tuple[Step, jax.Array]:
            here = cost.moments(Gaussian(now.mean[:5], now.cov[:5, :5])).mean[0]
            return original_step(this, now)[0], here

        return jnp.sum(jax.lax.scan(step, stored(case["s"]), length=7)[1])

    gradient = jax.jit(jax.grad(loss))(jnp.asarray(case["policy"]["p_unwrapped"].ravel()))
    assert_close(gradient, case["dloss_dp"].ravel(), 1e-8)


@pytest.mark.parametrize("number", cases("pc_ctrlBF", quick=(0,)))
def test_controller_in_prediction(number: int) -> None:
    """The controller alone, at any joint of latent state and belief mean: its output is `[U, M']`."""
    case = load("pc_ctrlBF")[number]

    def controller(p: jax.Array) -> dict[str, jax.Array]:
        this = reference(case, p)
        updated, update = original_update(this, stored(case["s"]))
        n = updated.belief_cov.shape[0]
        # From here on everything is this library's, on what the filter knows: M and V.
        beliefs = BeliefDistribution(Gaussian(updated.mean[n:], updated.cov[n:, n:]), updated.belief_cov)
        mean_action = beliefs.act(this.policy.map())
        of_mean, V = this.dynamics.belief_moments(mean_action, beliefs.cov)
        gain = jnp.concatenate([jnp.eye(n), this.policy.map().belief_moments(beliefs.mean, beliefs.cov).gain], axis=1)
        both = jnp.concatenate([jnp.eye(mean_action.size)[:, n:], of_mean.gain], axis=1)  # [M, U] -> [U, M']
        cov = both.T @ mean_action.cov @ both
        cov = cov.at[-n:, -n:].set(of_mean.cov)
        output = jnp.concatenate([mean_action.mean[n:], of_mean.mean])
        return {"M": output, "S": cov, "C": update[n:].T @ gain @ both, "v": V}

    p = jnp.asarray(case["policy"]["p_unwrapped"].ravel())
    value, by_p = jacobian(controller)(p)
    for name in ("M", "S", "C"):
        assert_close(value[name], case[name].reshape(value[name].shape), 1e-10, name)
    assert_close(value["v"], case["s_next"]["v"], 1e-10, "V")
    for name in ("M", "S"):
        assert_close(np.asarray(by_p[name]).reshape(-1, p.size, order="F"), case[f"d{name}dp"], 1e-8, f"d{name}/dp")
    n = value["v"].shape[0]
    assert_close(np.asarray(by_p["v"]).reshape(n * n, -1, order="F"), case["dsdp"][-n * n :], 1e-8, "dV/dp")


@pytest.mark.parametrize("number", cases("pc_ctrlBF_rollout", quick=(0, 4)))
def test_controller_in_execution(number: int) -> None:
    """Six steps of update, act, predict. Their policy has a ridge of 1e-6 even here, hence actions to 1e-5 only."""
    case = load("pc_ctrlBF_rollout")[number]
    this = reference(case)
    n = this.initial.size
    policy = this.policy.map()

    @eqx.filter_jit
    def step(belief: Belief, z: jax.Array, action: jax.Array) -> tuple[jax.Array, Belief]:
        """Our action, and the prediction after theirs."""
        belief = belief.update(z, this.dynamics.R)
        return belief.act(policy), belief.predict(this.dynamics, action)

    belief = Belief(this.initial.mean, this.initial.cov)
    for t, expected in enumerate(case["seq"]):
        u = jnp.asarray(expected["u"].ravel())
        ours, belief = step(belief, jnp.asarray(expected["m_in"].ravel()[:n]), u)
        assert_close(ours, u, 1e-5, f"action at {t}")
        assert_close(belief.mean, expected["z_next"].ravel(), 1e-9, f"belief mean at {t}")
        assert_close(belief.cov, expected["v_next"], 1e-9, f"V at {t}")
