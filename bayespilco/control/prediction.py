"""Predictors: the distribution of trajectories that a policy will cause, step by step, without running it.

Three ways to predict, which together with two ways to execute make the four methods: `Unfiltered` (the policy
will see raw observations), `Filtered` (it will see the filter's belief) and `MostLikely` (one deterministic
trajectory, no uncertainty at all). A fourth, `Mismatched`, foresees what a filter will do that is wrong. Each is a
start and a step; `predict` is the one scan over them, and `predict_split` does it from each part of a first state that
is spread too widely for one Gaussian (`splitting`). Where samples are lost in bursts, both follow several drawn
patterns of them, each with its own path of the belief's covariance (`model.bursts`).
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayespilco.control.cost import Cost, cost_covariance
from bayespilco.control.limits import Bounds, outside
from bayespilco.control.policy import BeliefPolicy, Policy, PolicyMap
from bayespilco.core.gaussian import Gaussian, diagonal, diagonal_matrix, joint
from bayespilco.core.pair_sums import LARGE
from bayespilco.core.precision import float64, is_concrete
from bayespilco.model import splitting
from bayespilco.model.belief import BeliefDistribution, Update, start
from bayespilco.model.dynamics import Dynamics

DIVERGED = 1e3
"""A predicted mean or standard deviation beyond this has left every plausible range: the prediction diverged."""


class Links(NamedTuple):
    """How a step hangs together with earlier and later ones.

    With `h` what is handed on from step to step (the latent state, and with a filter also its mean), `a = [x, u]`, and
    `y` anything of an earlier step, gains multiply: `Cov[y, a] = Cov[y, h] acting`, and then `Cov[y, h'] = Cov[y, h]
    onward`. From this step itself they start with `Cov[a, h'] = following`.
    """

    acting: Float[Array, "handed joint"]
    onward: Float[Array, "handed handed"]
    following: Float[Array, "joint handed"]


class Step(NamedTuple):
    """What a predictor says of one step."""

    following: Any
    """What it carries on to the next step."""
    state_action: Gaussian
    """The joint of latent state and action `[x, u]`: what costs are charged for."""
    belief_cov: Float[Array, "state state"]
    """V after the observation: what the controller does not know about the state."""
    links: Callable[[], Links] | None = None
    """Called only if covariances between steps are asked for; None: the predictor knows none."""


class Predictor(eqx.Module):
    """A way to predict: where it starts, and one step. What is carried from step to step is its own affair."""

    @abc.abstractmethod
    def start(self, initial: Gaussian, dynamics: Dynamics) -> Any:
        """What is carried into the first step."""

    @abc.abstractmethod
    def state(self, carry: Any) -> Gaussian:
        """The latent state's distribution."""

    @abc.abstractmethod
    def step(self, carry: Any, t: Array, policy: PolicyMap, dynamics: Dynamics) -> Step:
        """From step `t` to the next."""

    @property
    @abc.abstractmethod
    def needs_raw_states(self) -> bool:
        """Whether the policy is fed with observations, so that every state needs a sensor."""

    @property
    @abc.abstractmethod
    def can_split(self) -> bool:
        """Whether a prediction can start from parts of the initial distribution."""

    @property
    @abc.abstractmethod
    def predicts_beliefs(self) -> bool:
        """Whether it predicts what the filter will believe, so that it matters which samples are lost."""

    @abc.abstractmethod
    def starts(self, initial: Gaussian, dynamics: Dynamics, points: Float[Array, "parts state"]) -> Any:
        """The start in parts: arrays with a leading axis. `points` are the parts' means for `N(0, I)`."""

    @abc.abstractmethod
    def parts(self, carry: Any, points: Float[Array, "parts state"]) -> Any:
        """What is carried into a later step in parts: arrays with a leading axis. For predictors that can split."""


class Unfiltered(Predictor):
    """The policy acts on the observation `z = x + e` (PILCO, Figure 1)."""

    def start(self, initial: Gaussian, dynamics: Dynamics) -> Gaussian:
        return initial

    @property
    def needs_raw_states(self) -> bool:
        return True

    @property
    def can_split(self) -> bool:
        return True

    @property
    def predicts_beliefs(self) -> bool:
        return False

    def starts(self, initial: Gaussian, dynamics: Dynamics, points: Float[Array, "parts state"]) -> Gaussian:
        return self.parts(initial, points)

    def parts(self, carry: Gaussian, points: Float[Array, "parts state"]) -> Gaussian:
        within = splitting.WITHIN * carry.cov
        return jax.vmap(lambda shift: Gaussian(carry.mean + shift, within))(splitting.shifts(carry.cov, points))

    def state(self, carry: Gaussian) -> Gaussian:
        return carry

    def step(self, carry: Gaussian, t: Array, policy: PolicyMap, dynamics: Dynamics) -> Step:
        noise = dynamics.sensors.raw_noise(dynamics.structure.plant_states, carry)
        observed = Gaussian(carry.mean, carry.cov + noise)
        # Cov[X, U] = S_x gain: the sensor's noise moves the action, but not with the state.
        action = policy.moments(observed)
        state_action = joint(carry, action)
        following = dynamics.moments(state_action, t)

        def links() -> Links:
            acting = jnp.concatenate([jnp.eye(carry.size), action.gain], axis=1)
            return Links(acting, acting @ following.gain, state_action.cov @ following.gain)

        return Step(following.output, state_action, jnp.zeros_like(carry.cov), links)


class Filtered(Predictor):
    """The policy acts on the belief of the filter that will run beside it (the paper's method, Figure 2)."""

    update: Update = eqx.field(static=True, default="conserving")

    def start(self, initial: Gaussian, dynamics: Dynamics) -> BeliefDistribution:
        return start(initial, dynamics.structure.known)

    @property
    def needs_raw_states(self) -> bool:
        return False

    @property
    def can_split(self) -> bool:
        return self.update == "conserving"  # the update as printed loses the parts

    @property
    def predicts_beliefs(self) -> bool:
        return True

    def starts(self, initial: Gaussian, dynamics: Dynamics, points: Float[Array, "parts state"]) -> BeliefDistribution:
        """The filter does not know which part its plant starts in, only what its sensors tell.

        So what is split is the spread of the belief's mean after the first observation, which adds all of it to the
        start's. Here the share that is between the parts is taken off in advance: until then that spread is "negative".
        The first observation finds the filter where it is, not where a part will be, so that is where its noise is.
        """
        whole = self.start(initial, dynamics)
        learned = whole.update(dynamics.sensors).mean.cov
        before = whole.mean.cov + (splitting.WITHIN - 1) * learned
        looked_from = None if dynamics.sensors.growth is None else whole.state

        def part(shift: Array) -> BeliefDistribution:
            return BeliefDistribution(Gaussian(initial.mean + shift, before), whole.cov, looked_from)

        return jax.vmap(part)(splitting.shifts(learned, points))

    def parts(self, carry: BeliefDistribution, points: Float[Array, "parts state"]) -> BeliefDistribution:
        """What the filter knows already tells the parts apart: the spread of its mean is split. Each has its own V."""
        return jax.vmap(lambda mean: BeliefDistribution(mean, carry.cov))(Unfiltered().parts(carry.mean, points))

    def state(self, carry: BeliefDistribution) -> Gaussian:
        return carry.state

    def step(self, carry: BeliefDistribution, t: Array, policy: PolicyMap, dynamics: Dynamics) -> Step:
        updated = carry.update(dynamics.sensors, self.update, t)
        mean_action, of_action = updated.act(policy)
        # The latent state differs from the belief's mean by an error that the action does not depend on.
        error = jnp.pad(carry.state.cov - updated.mean.cov, (0, mean_action.size - carry.mean.size))
        state_action = Gaussian(mean_action.mean, mean_action.cov + error)
        following, gain = updated.predict(dynamics, mean_action, t)

        def links() -> Links:
            """What is handed on is `h = [x, m]`: the state, and the belief's mean, which runs after it."""
            eye = jnp.eye(carry.mean.size)
            # The updated mean is m + K C (x - m) + K e. Then state and mean go on through the same gain.
            sensors = carry.looking(dynamics.sensors)
            seeing = (sensors.expected_update(carry.cov, t)[0] @ sensors.C).T
            of_state, of_mean = jnp.concatenate([eye, jnp.zeros_like(eye)]), jnp.concatenate([seeing, eye - seeing])
            acting, deciding = (jnp.concatenate([x, of_mean @ of_action], axis=1) for x in (of_state, of_mean))
            return Links(
                acting,
                jnp.concatenate([acting @ gain, deciding @ gain], axis=1),
                jnp.concatenate([state_action.cov @ gain, mean_action.cov @ gain], axis=1),
            )

        return Step(following, state_action, updated.cov, links)


class StateAndBelief(NamedTuple):
    """The joint distribution of the latent state and of a belief's mean, and the belief's covariance."""

    both: Gaussian
    """Of `[X, M]`."""
    cov: Float[Array, "state state"]
    """V, as the filter has it. That it is the covariance of `X - M` is what a wrong filter only thinks."""


class Mismatched(Predictor):
    """The policy acts on the belief of a filter that is not the plant's: of another model, or with other noises.

    Of a filter that is right, the mean tells nothing about its own error: `Cov[X, M] = S`, and `Filtered` carries `S`
    and `V` alone. Of a wrong one that has to be found out, so here the joint of `X` and `M` is carried, as in the
    authors' later program. For a filter that is right it is the prediction of `Filtered`.
    """

    filter: Dynamics
    """What the filter knows: its model, its noises, its sensors."""
    by_gains: bool = eqx.field(static=True, default=False)
    """Whether the cross-covariance goes through both models by their gains alone, as in the authors' program. That is
    exact where one of the two is linear. Elsewhere `X` and `M` seem to part where both turn the same corner."""

    def start(self, initial: Gaussian, dynamics: Dynamics) -> StateAndBelief:
        return self._start(initial.mean, initial.cov, initial)

    def _start(self, mean: Float[Array, " state"], cov: Float[Array, "state state"], prior: Gaussian) -> StateAndBelief:
        """A state `N(mean, cov)`, of which the filter has the prior, and knows what it always knows."""
        structure, n = self.filter.structure, prior.size
        known = jnp.asarray(np.diag(np.isin(np.arange(n), structure.known).astype(float)))
        believed = prior.mean + known @ (mean - prior.mean)
        both = jnp.block([[cov, cov @ known], [known @ cov, known @ cov @ known]])
        return StateAndBelief(Gaussian(jnp.concatenate([mean, believed]), both), start(prior, structure.known).cov)

    @property
    def needs_raw_states(self) -> bool:
        return False

    @property
    def can_split(self) -> bool:
        return True

    @property
    def predicts_beliefs(self) -> bool:
        return True

    def starts(self, initial: Gaussian, dynamics: Dynamics, points: Float[Array, "parts state"]) -> StateAndBelief:
        """What is split is what the filter believes after its first look, since that is what the policy acts on.

        As with `Filtered`, the share that is between the parts is taken off in advance, through that look. If the look
        is not the same for all parts, because samples are lost or noise depends on the state, the latent state is split
        instead: the filter knows nothing of that.
        """
        whole = self._start(initial.mean, initial.cov, initial)
        n, looks = initial.size, self._looks(whole, jnp.asarray(0), dynamics)
        fixed = dynamics.sensors.growth is None and self.filter.sensors.growth is None
        if not fixed or len(looks.weights) > 1:
            within = splitting.WITHIN * initial.cov
            shifts = splitting.shifts(initial.cov, points)
            return jax.vmap(lambda shift: self._start(initial.mean + shift, within, initial))(shifts)
        through, noise = looks.through[0], looks.noise[0]
        after = through @ whole.both.cov @ through.T + noise
        of_mean = after[n:, n:]
        along = after[:, n:] @ jnp.linalg.pinv(of_mean, hermitian=True)
        back = jnp.linalg.inv(through)
        between = back @ along
        cov = whole.both.cov - (1 - splitting.WITHIN) * between @ of_mean @ between.T

        def part(shift: Array) -> StateAndBelief:
            return StateAndBelief(Gaussian(whole.both.mean + between @ shift, cov), whole.cov)

        return jax.vmap(part)(splitting.shifts(of_mean, points))

    def parts(self, carry: StateAndBelief, points: Float[Array, "parts state"]) -> StateAndBelief:
        """The belief's mean is split, and the state goes with it as far as the two vary together."""
        (mean, cov), n = (carry.both.mean, carry.both.cov), carry.cov.shape[0]
        of_mean = cov[n:, n:]
        along = cov[:, n:] @ jnp.linalg.pinv(of_mean, hermitian=True)
        within = cov - (1 - splitting.WITHIN) * along @ of_mean @ along.T

        def part(shift: Array) -> StateAndBelief:
            return StateAndBelief(Gaussian(mean + along @ shift, within), carry.cov)

        return jax.vmap(part)(splitting.shifts(of_mean, points))

    def state(self, carry: StateAndBelief) -> Gaussian:
        n = carry.cov.shape[0]
        return Gaussian(carry.both.mean[:n], carry.both.cov[:n, :n])

    def step(self, carry: StateAndBelief, t: Array, policy: PolicyMap, dynamics: Dynamics) -> Step:
        (mean, cov), V = self._look(carry, t, dynamics)
        n = V.shape[0]
        # The action depends on the belief alone. Whatever goes with M goes with it through the policy's gain.
        action = policy.belief_moments(Gaussian(mean[n:], cov[n:, n:]), V)
        with_action = cov[:, n:] @ action.gain
        mean = jnp.concatenate([mean, action.mean])
        cov = jnp.block([[cov, with_action], [with_action.T, action.cov]])
        latent, belief = np.r_[0:n, 2 * n : mean.size], np.r_[n : mean.size]
        state_action = Gaussian(mean[latent], cov[np.ix_(latent, latent)])
        mean_action = Gaussian(mean[belief], cov[np.ix_(belief, belief)])
        # The plant moves from [X, U], the belief from [M, U].
        x = dynamics.moments(state_action, t)
        m, following = self.filter.belief_moments(mean_action, V, t)
        together = cov[np.ix_(latent, belief)]
        if self.by_gains:
            cross = x.gain.T @ together @ m.gain
        else:
            cross = dynamics.cross_cov(state_action, self.filter, mean_action, V, together)
        both = Gaussian(jnp.concatenate([x.mean, m.mean]), jnp.block([[x.cov, cross], [cross.T, m.cov]]))
        return Step(StateAndBelief(both, following), state_action, V)

    def _look(
        self, carry: StateAndBelief, t: Array, dynamics: Dynamics
    ) -> tuple[tuple[Array, Array], Float[Array, "state state"]]:
        """The observation `Z = C X + d + e` is the plant's; what is made of it, `M + K (Z - C M - d)`, the filter's."""
        (mean, cov), looks = (carry.both.mean, carry.both.cov), self._looks(carry, t, dynamics)
        means = looks.through @ mean + looks.added
        covs = looks.through @ cov @ jnp.swapaxes(looks.through, 1, 2) + looks.noise
        whole = jnp.tensordot(looks.weights, means, axes=1)
        away = means - whole
        spread = jnp.tensordot(looks.weights, covs + away[:, :, None] * away[:, None, :], axes=1)
        return (whole, spread), jnp.tensordot(looks.weights, looks.cov, axes=1)

    def _looks(self, carry: StateAndBelief, t: Array, dynamics: Dynamics) -> "Looks":
        V, state = carry.cov, self.state(carry)
        n, both = V.shape[0], carry.both
        plant = dynamics.sensors.at(state.mean, state.cov)
        believed = self.filter.sensors.at(both.mean[n:], both.cov[n:, n:] + V)
        Ks, Vs, weights = believed.losing(dynamics.sensors.lost).each_update(V, t)
        eye, zero = jnp.eye(n), jnp.zeros((n, n))

        def one(K: Array) -> tuple[Array, Array, Array]:
            through = jnp.block([[eye, zero], [K @ plant.C, eye - K @ believed.C]])
            added = jnp.concatenate([jnp.zeros(n), K @ (plant.d - believed.d)])
            return through, added, jnp.pad(K @ plant.R @ K.T, (n, 0))

        return Looks(*jax.vmap(one)(Ks), cov=Vs, weights=jnp.asarray(weights))


class Looks(NamedTuple):
    """What an observation makes of `[X, M]`, for each way in which samples may be lost."""

    through: Float[Array, "ways both both"]
    added: Float[Array, "ways both"]
    noise: Float[Array, "ways both both"]
    cov: Float[Array, "ways state state"]
    """V after it."""
    weights: Float[Array, " ways"]
    """The probability of each way."""


class MostLikely(Predictor):
    """One trajectory through the model's mean, from the mean of the initial state (MAP, Dallaire et al. 2009)."""

    def start(self, initial: Gaussian, dynamics: Dynamics) -> Gaussian:
        return Gaussian(initial.mean, jnp.zeros_like(initial.cov))

    @property
    def needs_raw_states(self) -> bool:
        return False

    @property
    def can_split(self) -> bool:
        return False

    @property
    def predicts_beliefs(self) -> bool:
        return False

    def starts(self, initial: Gaussian, dynamics: Dynamics, points: Float[Array, "parts state"]) -> Gaussian:
        raise ValueError("A most likely trajectory starts from one state: predict it with `predict`.")

    def parts(self, carry: Gaussian, points: Float[Array, "parts state"]) -> Gaussian:
        raise ValueError("A most likely trajectory is one state at each step: there is nothing to split.")

    def state(self, carry: Gaussian) -> Gaussian:
        return carry

    def step(self, carry: Gaussian, t: Array, policy: PolicyMap, dynamics: Dynamics) -> Step:
        u = policy(carry.mean)
        following = Gaussian(dynamics(carry.mean, u, t), jnp.zeros_like(carry.cov))
        state_action = Gaussian(jnp.concatenate([carry.mean, u]), jnp.zeros((carry.size + u.shape[0],) * 2))

        def links() -> Links:
            """Nothing varies."""
            both = jnp.zeros((carry.size, state_action.size))
            return Links(both, jnp.zeros_like(carry.cov), both.T)

        return Step(following, state_action, jnp.zeros_like(carry.cov), links)


class Prediction(eqx.Module):
    """A predicted run: latent states and costs at steps 0..T, actions and beliefs at steps 0..T-1."""

    state_mean: Float[Array, "times state"]
    state_cov: Float[Array, "times state state"]
    action_mean: Float[Array, "steps action"]
    action_cov: Float[Array, "steps action action"]
    belief_cov: Float[Array, "steps state state"]
    """V after each observation; zero where no filter is predicted."""
    cost_mean: Float[Array, " times"]
    cost_variance: Float[Array, " times"]
    diverged: Array
    """Whether the prediction left every plausible range; from then on every step costs the worst there is."""
    outside: Float[Array, " times"] | None = None
    """How probable it is that the state is beyond a limit, if there are limits (`control.limits`)."""
    cost_cov: Float[Array, "times times"] | None = None
    """The covariances of the costs of all pairs of steps, if they were asked for."""

    @property
    @float64
    def total_cost(self) -> Float[Array, ""]:
        """J (Eq. 6 with gamma = 1): the sum of the expected costs, the first state's included."""
        return jnp.sum(self.cost_mean)


@float64
def predict(
    predictor: Predictor,
    policy: Policy,
    dynamics: Dynamics,
    initial: Gaussian,
    cost: Cost,
    steps: int,
    *,
    limits: tuple[Bounds, ...] = (),
    between_steps: bool = False,
    lost: Bool[Array, "paths times"] | None = None,
) -> Prediction:
    """Predict `steps` steps from the initial state (Algorithm 1, lines 6 and 7).

    Args:
        limits: What rows of the state must not exceed: then the prediction says how probable it is that one does.
        between_steps: Whether to compute the covariances of the costs of all pairs of steps.
        lost: Drawn patterns of bursts (`model.bursts.Chain.paths`), if the sensors have them: each is followed, and the
            prediction is of all with equal weight.
    """
    start, ready = predictor.start(initial, dynamics), policy.map()

    def one(lost: Array | None) -> Prediction:
        return _predict_from(start, predictor, ready, _losing(dynamics, lost), cost, steps, limits, between_steps)

    lost = _followed(predictor, policy, dynamics, lost)
    if lost is None:
        return one(None)
    return _mixture(jax.lax.map(one, lost, batch_size=_together(len(lost), dynamics)))


@float64
def predict_split(
    predictor: Predictor,
    policy: Policy,
    dynamics: Dynamics,
    initial: Gaussian,
    cost: Cost,
    steps: int,
    points: Float[Array, "parts state"],
    *,
    again: Float[Array, "smaller state"] | None = None,
    limits: tuple[Bounds, ...] = (),
    between_steps: bool = False,
    lost: Bool[Array, "paths times"] | None = None,
) -> Prediction:
    """The same from each part of the initial state by itself, and what it comes to over all parts.

    Args:
        points: Where the parts of `N(0, I)` have their means (`splitting.standard_points`).
        again: The same for a second split: each part is split once more, half-way. With a filter each of these parts
            has its own path of V from there. It has no derivative.
        lost: Drawn patterns of bursts, one for each part.
    """
    if again is not None and between_steps:
        raise ValueError("A prediction that splits again half-way does not say how the costs of two steps vary.")
    ready = policy.map()

    def one(part: tuple[Any, Array | None]) -> Prediction:
        start, lost = part
        asked = predictor, ready, _losing(dynamics, lost), cost, steps, limits, between_steps
        return _predict_from(start, *asked, again=again)

    lost = _followed(predictor, policy, dynamics, lost)
    if lost is not None and len(lost) != len(points):
        raise ValueError(f"A prediction in {len(points)} parts needs a pattern of bursts for each; given {len(lost)}.")
    starts = predictor.starts(initial, dynamics, points)
    return _mixture(jax.lax.map(one, (starts, lost), batch_size=_together(len(points), dynamics)))


predict_in_parts = predict_split  # its name in version 0.1


def _together(parts: int, dynamics: Dynamics) -> int:
    """How many parts are a batch.

    A batch of parts shares the cost of small operations; a part with many points has none to speak of, and should stay
    in cache.
    """
    return parts if dynamics.gp.inputs.shape[0] < LARGE else 1


def _losing(dynamics: Dynamics, lost: Bool[Array, " times"] | None) -> Dynamics:
    """The same dynamics, seen by sensors that lose their samples at these steps."""
    if lost is None:
        return dynamics
    changed: Dynamics = eqx.tree_at(lambda d: d.sensors, dynamics, dynamics.sensors.losing(lost))
    return changed


def _followed(
    predictor: Predictor, policy: Policy, dynamics: Dynamics, lost: Bool[Array, "paths times"] | None
) -> Bool[Array, "paths times"] | None:
    """The patterns of bursts that a prediction follows, if any; a ValueError if it lacks what it needs."""
    if not predictor.predicts_beliefs:
        return None
    if lost is None and dynamics.sensors.bursts is not None:
        raise ValueError(
            "These sensors lose samples in bursts, so a prediction needs drawn patterns of them: give `lost`, such as "
            "`sensors.bursts.paths(steps + 1)`. A Problem draws them with `drawn`."
        )
    refuse_clock(predictor, policy, lost)
    return lost


def refuse_clock(predictor: Predictor, policy: Policy, lost: Bool[Array, "paths times"] | None) -> None:
    """A ValueError if the policy looks at the belief's covariance, and all predicted paths of that are the same.

    Then it would tell the step, which the executed policy has no other way to know, and a search would use it.
    """
    if not predictor.predicts_beliefs or not isinstance(policy, BeliefPolicy):
        return
    if lost is None or (is_concrete(lost) and not (np.asarray(lost) != np.asarray(lost)[0]).any()):
        why = "follows one path of it" if lost is None else "has drawn bursts that are all the same"
        raise ValueError(
            f"This policy looks at the belief's covariance, and the prediction {why}: there the covariance says what "
            "time it is, and nothing else. Use a policy of the belief's mean, or a task with bursts that are frequent "
            "enough to differ: bursts=Bursts(apart=..., lasting=...)."
        )


def _mixture(each: Prediction) -> Prediction:
    """Mean and covariance over predictions of equal weight, which are along the first axis."""

    def moments(mean: Array, cov: Array) -> tuple[Array, Array]:
        whole = jnp.mean(mean, axis=0)
        away = mean - whole
        return whole, jnp.mean(cov, axis=0) + jnp.einsum("kti,ktj->tij", away, away) / len(away)

    cost, variance = moments(each.cost_mean[..., None], each.cost_variance[..., None, None])
    cost_cov = None
    if each.cost_cov is not None:
        cost_cov = moments(each.cost_mean[:, None], each.cost_cov[:, None])[1][0]
    return Prediction(
        *moments(each.state_mean, each.state_cov),
        *moments(each.action_mean, each.action_cov),
        jnp.mean(each.belief_cov, axis=0),
        cost[:, 0],
        variance[:, 0, 0],
        each.diverged.any(),
        None if each.outside is None else jnp.mean(each.outside, axis=0),
        cost_cov,
    )


def _predict_from(
    start: Any,
    predictor: Predictor,
    ready: PolicyMap,
    dynamics: Dynamics,
    cost: Cost,
    steps: int,
    limits: tuple[Bounds, ...] = (),
    between_steps: bool = False,
    *,
    again: Float[Array, "smaller state"] | None = None,
) -> Prediction:
    states = predictor.state(start).size
    worst = cost.worst

    def out_of_range(state: Gaussian) -> Array:
        inside = (jnp.abs(state.mean) < DIVERGED).all() & (diagonal(state.cov) < DIVERGED**2).all()
        return ~(inside & jnp.isfinite(state.cov).all())

    def charge(cost: Cost, gaussian: Gaussian, diverged: Array) -> tuple[Array, Array]:
        """Mean and variance of a step's cost; the worst there is after a divergence."""
        found = cost.moments(gaussian)
        return jnp.where(diverged, worst, found.mean[0]), jnp.where(diverged, 0.0, found.cov[0, 0])

    def beyond(state: Gaussian, diverged: Array) -> tuple[Array, ...]:
        return (jnp.where(diverged, 1.0, outside(limits, state)),) if limits else ()

    def step(carry: tuple[Any, Array], t: Array) -> tuple[tuple[Any, Array], tuple[Any, ...]]:
        current, diverged = carry
        state = predictor.state(current)
        away = beyond(state, diverged)
        following, state_action, belief_cov, links = predictor.step(current, t, ready, dynamics)
        charged = charge(cost, state_action, diverged)
        linked = None
        if between_steps:
            if links is None:
                raise ValueError(f"{type(predictor).__name__} does not say how the costs of two steps hang together.")
            linked = state_action, links(), diverged
        diverged = diverged | out_of_range(predictor.state(following))
        # After a divergence the start is propagated again and again: finite values, and no gradient from them.
        following = jax.tree.map(lambda new, safe: jnp.where(diverged, safe, new), following, start)
        action = state_action.mean[states:], state_action.cov[states:, states:]
        return (following, diverged), (linked, state.mean, state.cov, *action, belief_cov, *charged, *away)

    def through(carry: tuple[Any, Array], times: Array) -> tuple[Prediction, tuple[Any, Array]]:
        """From what is carried into the first of these steps to the end of the last, and what is carried on there."""
        (last, diverged), (linked, means, covs, u, u_cov, belief_covs, costs, variances, *away) = jax.lax.scan(
            step, carry, times
        )
        # At the last step there is no action: only the state is charged for.
        final = predictor.state(last)
        final_cost, final_variance = charge(cost.terminal(states), final, diverged)
        variances, cost_cov = _with_last(variances, final_variance), None
        if linked is not None:
            joints, all_links, lost = linked
            cost_cov = _cost_covariances(cost, joints, all_links, final, jnp.append(lost, diverged), variances)
        found = Prediction(
            _with_last(means, final.mean),
            _with_last(covs, final.cov),
            u,
            u_cov,
            belief_covs,
            _with_last(costs, final_cost),
            variances,
            diverged,
            _with_last(away[0], beyond(final, diverged)[0]) if limits else None,
            cost_cov,
        )
        return found, (last, diverged)

    half = steps if again is None else steps // 2
    earlier, (carry, diverged) = through((_depending_on(ready, start), jnp.asarray(False)), jnp.arange(half))
    if again is None:
        return earlier

    def rest(carry: Any) -> Prediction:
        return through((carry, diverged), jnp.arange(half, steps))[0]

    later = jax.lax.map(rest, predictor.parts(carry, again), batch_size=_together(len(again), dynamics))
    return _joined(earlier, _mixture(later))


def _with_last(rest: Array, value: Array) -> Array:
    return jnp.concatenate([rest, value[None]])


def _joined(earlier: Prediction, later: Prediction) -> Prediction:
    """One prediction after the other. The last state of the earlier one is the first of the later one."""

    def states(name: str) -> Array:
        return jnp.concatenate([getattr(earlier, name)[:-1], getattr(later, name)])

    def steps(name: str) -> Array:
        return jnp.concatenate([getattr(earlier, name), getattr(later, name)])

    return Prediction(
        states("state_mean"),
        states("state_cov"),
        steps("action_mean"),
        steps("action_cov"),
        steps("belief_cov"),
        states("cost_mean"),
        states("cost_variance"),
        later.diverged,
        None if later.outside is None else states("outside"),
    )


def _cost_covariances(
    cost: Cost,
    state_action: Gaussian,
    links: Links,
    final: Gaussian,
    diverged: Bool[Array, " times"],
    variances: Float[Array, " times"],
) -> Float[Array, "times times"]:
    """The covariances of the costs of all pairs of steps, with their variances on the diagonal.

    Two joints `[x, u]` are taken to be jointly Gaussian, as each of them is; their covariance is a product of gains
    (`Links`). That is exact for linear dynamics. What the model does not know about the function counts as drawn anew
    at each step, as in all of moment matching.

    Args:
        state_action: The joints of all steps but the last, along the first axis; their `links` likewise.
        final: The last state.
        diverged: Which steps cost the worst there is, whatever happens.
    """
    steps, states = links.acting.shape[0], final.size

    def after(carry: Array, inputs: tuple[Links, Array]) -> tuple[Array, Array]:
        """`carry` is `Cov[a_t, h_s]` for all earlier `t`, and zero for others."""
        (acting, onward, following), s = inputs
        return (carry @ onward).at[s].set(following), carry @ acting

    none = jnp.zeros_like(links.following)
    with_last, with_each = jax.lax.scan(after, none, (links, jnp.arange(steps)))
    with_last = with_last[:, :, :states]  # at the last step there is no action; the state comes first in `h`

    means, covs = state_action.mean, state_action.cov

    def pair(mean: Array, cov: Array, other_mean: Array, other_cov: Array, cross: Array, other: Cost) -> Array:
        both = jnp.block([[cov, cross], [cross.T, other_cov]])
        return cost_covariance(cost, Gaussian(jnp.concatenate([mean, other_mean]), both), other, mean.shape[0])

    def inner(mean: Array, cov: Array, other_mean: Array, other_cov: Array, cross: Array) -> Array:
        return pair(mean, cov, other_mean, other_cov, cross, cost)

    def with_final(mean: Array, cov: Array, cross: Array) -> Array:
        return pair(mean, cov, final.mean, final.cov, cross, cost.terminal(states))

    # There are thousands of pairs: what a derivative needs of them is computed again, rather than kept.
    earlier, later = np.triu_indices(steps, k=1)
    found = jax.vmap(jax.checkpoint(inner))(
        means[earlier], covs[earlier], means[later], covs[later], with_each[later, earlier]
    )
    found_last = jax.vmap(jax.checkpoint(with_final))(means, covs, with_last)
    upper = jnp.zeros((steps + 1, steps + 1)).at[earlier, later].set(found).at[:-1, -1].set(found_last)
    upper = jnp.where(diverged[:, None] | diverged, 0.0, upper)
    return upper + upper.T + diagonal_matrix(variances)


@jax.custom_vjp
def _depending_on(ready: PolicyMap, start: Any) -> Any:
    """`start`, as if the policy had a part in it.

    The derivative of a scan is traced anew until it is known which parts of its carry have one. From the second step on
    all have. Told so about the first, JAX has it right at once.
    """
    return start


_depending_on.defvjp(lambda ready, start: (start, None), lambda _, along_start: (None, along_start))
