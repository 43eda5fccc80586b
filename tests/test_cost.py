"""Costs: against sampling, in limits, by identities, and with gradients by finite differences.

All costs here are of three states and two actions, `a = [x, u]`. On components kept as they are, moments are exact.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayespilco.control.cost import (
    COSTS,
    Cost,
    FeatureCost,
    HingeCost,
    LinearCost,
    QuadraticCost,
    SaturatingCost,
    SumOfCosts,
    cost_covariance,
    distance,
    effort,
    limits,
    smoothness,
    tracking,
)
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from tests.golden import assert_close
from tests.oracles import Sampled, directional_difference, products

STATES, SIZE = 3, 5
INF = float("inf")


def kept(*components: int) -> AngleFeatures:
    return AngleFeatures((), components)


SATURATING = SaturatingCost(kept(0, 2), [0.3, -0.2], [[1.5, 0.4], [0.4, 0.8]])
NARROW = SaturatingCost(kept(1, 4), [0.1, 0.4], [[4.0, -1.0], [-1.0, 0.25]])  # a singular weight
QUADRATIC = QuadraticCost(kept(2, 0, 3), [0.5, 0.1, -0.4], [[1.0, 0.3, 0.0], [0.3, 0.6, 0.1], [0.0, 0.1, 0.4]])
LINEAR = LinearCost(kept(1, 3), [0.7, -1.2], [0.4, 0.2])
HINGE = HingeCost(kept(0), 1.3, -0.6, 0.9)
ABOVE = HingeCost(kept(4), 0.8, upper=0.2)
SUM = SATURATING + 0.5 * QUADRATIC + 0.7 * HINGE
COST: dict[str, Cost] = {
    "saturating": SATURATING,
    "narrow": NARROW,
    "quadratic": QUADRATIC,
    "linear": LINEAR,
    "hinge": HINGE,
    "above": ABOVE,
    "sum": SUM,
    "hinges": HINGE + ABOVE,
    "nothing": SumOfCosts(()),
}
KIND = {name: cost for name, cost in COST.items() if isinstance(cost, FeatureCost)}
PAIRS = [(f, g) for f in KIND for g in KIND if f <= g]
each_cost = pytest.mark.parametrize("name", COST)


def gaussian(seed: int, size: int = SIZE, scale: float = 0.6) -> Gaussian:
    rng = np.random.default_rng(seed)
    root = scale * rng.normal(size=(size, size)) / np.sqrt(size)
    return Gaussian(rng.normal(size=size) / 2, root @ root.T)


def samples(of: Gaussian, number: int, seed: int = 0) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.multivariate_normal(np.asarray(of.mean), np.asarray(of.cov), number, method="eigh"))


def values(cost: Cost, points: jax.Array) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(cost))(points))[:, None]


@each_cost
def test_moments_by_sampling(name: str) -> None:
    cost, state = COST[name], gaussian(1)
    a = samples(state, 400_000)
    c, of_state = values(cost, a), cost.moments(state)
    assert (of_state.mean.shape, of_state.cov.shape, of_state.gain.shape) == ((1,), (1, 1), (SIZE, 1))
    Sampled.of(c).assert_agrees(of_state.mean, "mean")
    Sampled.of(products(c, c)).assert_agrees(of_state.cov, "variance")
    Sampled.of(products(np.asarray(a), c)).assert_agrees(state.cov @ of_state.gain, "covariance with the state")


@each_cost
def test_belief_moments_by_sampling(name: str) -> None:
    """Two states drawn from one belief have the belief in common, and nothing else."""
    cost, mean, within = COST[name], gaussian(2), gaussian(3, scale=0.4).cov
    n = 400_000
    M = samples(mean, n, 1)
    noise = Gaussian(jnp.zeros(SIZE), within)
    c, d = (values(cost, M + samples(noise, n, seed)) for seed in (2, 3))
    of_mean, variance = cost.belief_moments(mean, within)
    Sampled.of(c).assert_agrees(of_mean.mean, "mean")
    Sampled.of(products(c, d)).assert_agrees(of_mean.cov, "variance of what the belief expects")
    Sampled.of((c - d)[:, :, None] ** 2 / 2).assert_agrees(variance, "variance within the belief")
    Sampled.of(products(np.asarray(M), c)).assert_agrees(mean.cov @ of_mean.gain, "covariance with the belief's mean")


@pytest.mark.parametrize(("f", "g"), [*PAIRS, ("sum", "narrow"), ("hinges", "sum")])
def test_covariance_of_two_steps_by_sampling(f: str, g: str) -> None:
    joint = gaussian(4, 2 * SIZE, 0.9)
    a = samples(joint, 400_000)
    pair = products(values(COST[f], a[:, :SIZE]), values(COST[g], a[:, SIZE:]))
    Sampled.of(pair).assert_agrees(cost_covariance(COST[f], joint, COST[g]), f"{f} and {g}")


@pytest.mark.parametrize("correlation", [-1.0, -0.999, -0.5, 0.0, 0.3, 0.99, 1.0])
def test_covariance_of_hinges_by_integration(correlation: float) -> None:
    """Against a two-dimensional sum over a fine grid, up to full correlation."""
    one, other = HingeCost(kept(0), 1.3, -0.6, 0.9), HingeCost(kept(0), 0.7, 0.1, 1.1)
    s, t, m, n = 0.7, 1.2, 0.4, -0.1
    joint = Gaussian([m, n], [[s**2, correlation * s * t], [correlation * s * t, t**2]])
    grid = np.linspace(-9, 9, 3001)
    p = np.exp(-(grid**2) / 2) / np.sum(np.exp(-(grid**2) / 2))
    y = m + s * grid[:, None] + 0 * grid
    z = n + t * (correlation * grid[:, None] + np.sqrt(1 - correlation**2) * grid)

    def hinge(cost: HingeCost, x: np.ndarray) -> np.ndarray:
        return float(cost.slope) * (np.maximum(x - float(cost.upper), 0) + np.maximum(float(cost.lower) - x, 0))

    f, g = hinge(one, y), hinge(other, z)
    expected = p @ (f * g) @ p - (p @ f @ p) * (p @ g @ p)
    assert_close(cost_covariance(one, joint, other), expected, 2e-5, floor=1e-5 * s * t)


@each_cost
def test_without_uncertainty_moments_are_values(name: str) -> None:
    cost, mean = COST[name], gaussian(5).mean
    certain = Gaussian(mean, jnp.zeros((SIZE, SIZE)))
    of_point = cost.moments(certain)
    assert_close(of_point.mean[0], cost(mean), 1e-14)
    assert_close(of_point.cov, np.zeros((1, 1)), 0.0)
    assert_close(of_point.gain[:, 0], jax.grad(cost)(mean), 1e-12)
    of_mean, variance = cost.belief_moments(certain, jnp.zeros((SIZE, SIZE)))
    assert_close(of_mean.mean[0], cost(mean), 1e-14)
    assert_close(jnp.concatenate([of_mean.cov, variance]), np.zeros((2, 1)), 0.0)


@pytest.mark.parametrize("name", [*KIND, "sum"])
def test_gradients_without_uncertainty_are_finite_and_right(name: str) -> None:
    """The variance grows from zero with the squared slope; at zero the derivative has to say so already."""
    cost, mean = COST[name], gaussian(5).mean

    def variance(cov: jax.Array) -> jax.Array:
        return cost.moments(Gaussian(mean, cov)).cov[0, 0]

    slope = jax.grad(cost)(mean)
    gradient = jax.grad(variance)(jnp.zeros((SIZE, SIZE)))
    assert_close((gradient + gradient.T) / 2, np.outer(slope, slope), 1e-9)

    def of_belief(cov: jax.Array) -> jax.Array:
        return cost.belief_moments(Gaussian(mean, cov), jnp.zeros_like(cov))[0].cov[0, 0]

    gradient = jax.grad(of_belief)(jnp.zeros((SIZE, SIZE)))
    assert_close((gradient + gradient.T) / 2, np.outer(slope, slope), 1e-9)


def everything(cost: Cost) -> Callable[[Any], jax.Array]:
    """One number that depends on all outputs, as a function of a mean, a root of the covariance, and a belief's."""
    rng = np.random.default_rng(6)
    weights = jnp.asarray(rng.normal(size=6 + 2 * SIZE))

    def total(at: dict[str, jax.Array]) -> jax.Array:
        state, V = Gaussian(at["m"], at["root"] @ at["root"].T), at["other"] @ at["other"].T
        plain, (of_mean, within) = cost.moments(state), cost.belief_moments(state, V)
        cross = at["cross"] @ state.cov
        joint = Gaussian(jnp.concatenate([at["m"], 2 * at["m"]]), jnp.block([[state.cov, cross.T], [cross, state.cov]]))
        between = cost_covariance(cost, joint)
        outputs = [plain.mean, plain.cov, plain.gain, of_mean.mean, of_mean.cov, of_mean.gain, within, between]
        return weights @ jnp.concatenate([output.ravel() for output in outputs])

    return jax.jit(total)


@pytest.mark.parametrize("name", ["saturating", "narrow", "quadratic", "linear", "above", "sum"])
def test_gradients_by_finite_differences(name: str) -> None:
    rng = np.random.default_rng(7)
    shapes = {"m": (SIZE,), "root": (SIZE, SIZE), "other": (SIZE, SIZE), "cross": (SIZE, SIZE)}
    at = {key: jnp.asarray(rng.normal(size=shape) / 3) for key, shape in shapes.items()}
    along = {key: jnp.asarray(rng.normal(size=shape) / 3) for key, shape in shapes.items()}
    function = everything(COST[name])
    gradient = jax.grad(function)(at)
    expected = directional_difference(function, at, along)
    found = sum(float(jnp.vdot(gradient[key], along[key])) for key in at)
    assert_close(found, expected, 1e-7)


@pytest.mark.parametrize("kind", ["quadratic", "linear", "sum"])
def test_means_with_angles_by_sampling(kind: str) -> None:
    """Of a quadratic or linear cost the mean needs no more than the features' first two moments: it is exact."""
    quadratic = tracking([0, 2], [1, 3], 0.5, angles=[0], kind=QuadraticCost)
    linear = LinearCost(AngleFeatures((1, 4), (2,)), [0.3, -1.0, 0.4, 0.2, 0.7], np.zeros(5))
    cost = {"quadratic": quadratic, "linear": linear, "sum": quadratic + 0.3 * linear}[kind]
    state, V = gaussian(8), gaussian(9).cov
    a = samples(state, 400_000)
    c, of_state = values(cost, a), cost.moments(state)
    Sampled.of(c).assert_agrees(of_state.mean, "mean")
    if kind == "linear":
        Sampled.of(products(c, c)).assert_agrees(of_state.cov, "variance")
        Sampled.of(products(np.asarray(a), c)).assert_agrees(state.cov @ of_state.gain, "covariance with the state")
    of_mean, within = cost.belief_moments(state, V)
    flat = cost.moments(Gaussian(state.mean, state.cov + V))
    assert_close(of_mean.mean, flat.mean, 1e-12)
    assert_close(of_mean.cov + within, flat.cov, 1e-12)


# Identities that hold for every Gaussian.

numbers = st.floats(-2, 2, allow_nan=False)


def arrays(*shape: int) -> st.SearchStrategy[np.ndarray]:
    size = int(np.prod(shape))
    return st.lists(numbers, min_size=size, max_size=size).map(lambda entries: np.reshape(entries, shape))


hypothetical = settings(max_examples=25, deadline=None, database=None, derandomize=True)
states = st.builds(lambda m, root: Gaussian(m, root @ root.T), arrays(SIZE), arrays(SIZE, SIZE))
costs = st.sampled_from(list(COST.values()))


@hypothetical
@given(costs, states)
def test_covariance_with_itself_is_the_variance(cost: Cost, state: Gaussian) -> None:
    twice = Gaussian(jnp.concatenate([state.mean] * 2), jnp.tile(state.cov, (2, 2)))
    variance = cost.moments(state).cov[0, 0]
    assert variance >= -1e-12
    assert_close(cost_covariance(cost, twice), variance, 1e-7, floor=1e-9)


@hypothetical
@given(costs, states, arrays(SIZE, SIZE))
def test_the_variances_of_a_belief_add_up(cost: Cost, state: Gaussian, root: np.ndarray) -> None:
    V = jnp.asarray(root @ root.T)
    of_mean, within = cost.belief_moments(state, V)
    total = cost.moments(Gaussian(state.mean, state.cov + V))
    assert_close(of_mean.mean, total.mean, 1e-12)
    assert_close(of_mean.gain, total.gain, 1e-12)
    assert_close(of_mean.cov + within, total.cov, 1e-12)
    rounding = 1e-7 * float(total.cov[0, 0]) + 1e-9
    assert of_mean.cov[0, 0] >= -rounding and within[0, 0] >= -rounding


@hypothetical
@given(st.sampled_from(PAIRS), arrays(2 * SIZE), arrays(2 * SIZE, 2 * SIZE))
def test_covariance_is_symmetric_and_bounded(pair: tuple[str, str], m: np.ndarray, root: np.ndarray) -> None:
    f, g = COST[pair[0]], COST[pair[1]]
    joint = Gaussian(m, root @ root.T)
    swap = np.r_[SIZE : 2 * SIZE, :SIZE]
    between = cost_covariance(f, joint, g)
    bound = jnp.sqrt(
        f.moments(Gaussian(joint.mean[:SIZE], joint.cov[:SIZE, :SIZE])).cov[0, 0]
        * g.moments(Gaussian(joint.mean[SIZE:], joint.cov[SIZE:, SIZE:])).cov[0, 0]
    )
    assert abs(between) <= bound * (1 + 1e-7) + 1e-9
    swapped = cost_covariance(g, Gaussian(joint.mean[swap], joint.cov[np.ix_(swap, swap)]), f)
    assert_close(swapped, between, 1e-9, floor=1e-12 + 1e-9 * float(bound))


@hypothetical
@given(states, st.sampled_from([(1.0, 1.0), (0.3, 2.5)]))
def test_a_sum_is_linear_in_its_parts(state: Gaussian, outer: tuple[float, float]) -> None:
    """Also if it is a sum of sums; and its variance is that of correlated parts."""
    v, w = outer
    cost = SumOfCosts((SumOfCosts((QUADRATIC, LINEAR)), SATURATING), (v, w))
    total = cost.moments(state)
    parts = [QUADRATIC.moments(state), LINEAR.moments(state), SATURATING.moments(state)]
    weights = (v, v, w)
    assert_close(total.mean, sum(a * part.mean for a, part in zip(weights, parts, strict=True)), 1e-12)
    assert_close(total.gain, sum(a * part.gain for a, part in zip(weights, parts, strict=True)), 1e-12)
    expected = v**2 * SumOfCosts((QUADRATIC, LINEAR)).moments(state).cov + w**2 * parts[2].cov
    twice = Gaussian(jnp.concatenate([state.mean] * 2), jnp.tile(state.cov, (2, 2)))
    expected += 2 * v * w * cost_covariance(SumOfCosts((QUADRATIC, LINEAR)), twice, SATURATING)
    assert_close(total.cov, expected, 1e-10)


# What a cost says of itself.


def test_worst() -> None:
    assert SATURATING.worst == 1.0
    assert QUADRATIC.worst == LINEAR.worst == HINGE.worst == SUM.worst == INF
    assert (0.5 * SATURATING + NARROW).worst == 1.5
    assert SumOfCosts((SATURATING, QUADRATIC), (2.0, 0.0)).worst == 2.0
    assert SumOfCosts(()).worst == 0.0


def test_worst_and_terminal_are_known_within_compiled_functions() -> None:
    cost = 0.5 * SATURATING + effort([3], 2.0)

    @jax.jit
    def charged(cost: Cost, x: jax.Array) -> jax.Array:
        terminal = cost.terminal(STATES)
        return jnp.where(terminal(x) > 0, terminal.worst, 0.0)

    assert charged(cost, jnp.ones(STATES)) == 0.5


def test_at_goal() -> None:
    """Each by its own measure, and a sum where all of its parts are."""
    near = distance([0, 1], [0.5, 0.0], 0.1)
    at, off = jnp.asarray([0.55, 0.05, 9.0, 3.0, 3.0]), jnp.asarray([0.65, 0.05, 9.0, 3.0, 3.0])
    assert near.at_goal(at) and not near.at_goal(off)
    quadratic = distance([0, 1], [0.5, 0.0], 0.1, kind=QuadraticCost)
    assert quadratic.at_goal(at) and not quadratic.at_goal(off)
    assert LinearCost(kept(0), [1.0], [0.6]).at_goal(at) and not LinearCost(kept(0), [1.0], [0.6]).at_goal(off)
    assert limits(0, upper=0.6).at_goal(at) and not limits(0, upper=0.6).at_goal(off)
    assert effort([3], 0.1).at_goal(at) and smoothness([3], [2], 0.1).at_goal(off)
    both = near + 0.1 * effort([3], 0.1)
    assert both.at_goal(at) and not both.at_goal(off)
    assert both.terminal(STATES).at_goal(at[:STATES])


def test_terminal_leaves_out_what_reads_actions() -> None:
    cost = SATURATING + 0.5 * QUADRATIC + 2.0 * HINGE  # the quadratic one reads an action
    assert cost.uses_actions(STATES) and not cost.uses_actions(SIZE)
    assert cost.indices == (0, 2, 3) and cost.highest_index == 3 and SumOfCosts(()).highest_index == -1
    terminal, x = cost.terminal(STATES), gaussian(1).mean[:STATES]
    assert not terminal.uses_actions(STATES)
    assert_close(terminal(x), SATURATING(x) + 2.0 * HINGE(x), 1e-14)
    assert_close(terminal(x), cost(jnp.pad(x, (0, 2))) - 0.5 * QUADRATIC(jnp.pad(x, (0, 2))), 1e-14)
    assert SATURATING.terminal(STATES) is SATURATING
    none = effort([3], 1.0).terminal(STATES)
    assert none(x) == 0 and none.moments(Gaussian(x, jnp.eye(STATES))).gain.shape == (STATES, 1)


def test_a_cost_of_states_takes_states_with_or_without_actions() -> None:
    state = gaussian(1)
    alone = Gaussian(state.mean[:STATES], state.cov[:STATES, :STATES])
    for cost in (SATURATING, HINGE, SATURATING + HINGE):
        short, long = cost.moments(alone), cost.moments(state)
        assert_close(long.mean, short.mean, 1e-14)
        assert_close(long.cov, short.cov, 1e-14)
        assert_close(long.gain, jnp.pad(short.gain, ((0, 2), (0, 0))), 1e-14)


def test_widening() -> None:
    x = jnp.asarray([0.3, 0.2, 0.0, 0.0, 0.0])
    near = distance([0, 1], [0.0, 0.0], 0.25, angles=[1])
    assert_close(near.widened(2.0)(x), distance([0, 1], [0.0, 0.0], 0.5, angles=[1])(x), 1e-12)
    assert_close(near(jnp.zeros(5)), np.asarray(0.0), 1e-12)
    assert all(cost.widened(2.0) is cost for cost in (QUADRATIC, LINEAR, HINGE))
    both = near + 0.5 * QUADRATIC
    assert_close(both.widened(2.0)(x), near.widened(2.0)(x) + 0.5 * QUADRATIC(x), 1e-14)


def test_costs_are_in_float64_whatever_the_rest_of_the_process_uses() -> None:
    with jax.enable_x64(False):
        cost = distance([0], [0.1], 0.3).widened(1.5) + 0.3 * effort([3], 2.0) + limits(1, upper=0.2)
        cost = cost + LinearCost(kept(2), [1.0], [0.0])
        state = Gaussian(np.full(SIZE, 0.3), 0.1 * np.eye(SIZE))
        of_mean, within = cost.belief_moments(state, state.cov)
        twice = Gaussian(np.full(2 * SIZE, 0.3), 0.1 * np.eye(2 * SIZE))
        found = [
            cost(state.mean),
            *jax.tree.leaves(cost.moments(state)),
            of_mean.cov,
            within,
            cost_covariance(cost, twice),
        ]
        assert {value.dtype.name for value in jax.tree.leaves(found)} == {"float64"}
        assert not cost.at_goal(state.mean) and not cost.terminal(STATES).at_goal(state.mean)


# Costs in words.


def test_distance_is_measured_in_widths() -> None:
    a = jnp.asarray([0.7, 0.4 + 2 * np.pi, 0.0])
    quadratic = distance([1, 0], [0.1, 0.5], [0.2, 0.4], angles=[1], kind=QuadraticCost)
    chord = 2 * np.sin(0.15)  # of an angle of 0.3 rad
    assert_close(quadratic(a), (chord / 0.2) ** 2 + (0.2 / 0.4) ** 2, 1e-12)
    assert_close(distance([1, 0], [0.1, 0.5], [0.2, 0.4], angles=[1])(a), 1 - np.exp(-quadratic(a) / 2), 1e-12)


def test_tracking_measures_the_distance_from_references() -> None:
    a = jnp.asarray([0.7, 0.4, 0.5, 0.1 - 2 * np.pi])
    quadratic = tracking([0, 1], [2, 3], [0.4, 0.2], angles=[1], kind=QuadraticCost)
    assert_close(quadratic(a), (0.2 / 0.4) ** 2 + (2 * np.sin(0.15) / 0.2) ** 2, 1e-12)
    saturating = tracking([0, 1], [2, 3], [0.4, 0.2], angles=[1])
    assert_close(saturating(a), 1 - np.exp(-quadratic(a) / 2), 1e-12)
    # A reference that is known is a target; here with angles, whose features are then not those of a Gaussian.
    state = gaussian(1, 2)
    known = Gaussian(jnp.concatenate([state.mean, a[2:]]), jnp.pad(state.cov, (0, 2)))
    for kind in (SaturatingCost, QuadraticCost):
        moving = tracking([0, 1], [2, 3], [0.4, 0.2], angles=[1], kind=kind).moments(known)
        fixed = distance([0, 1], a[2:], [0.4, 0.2], angles=[1], kind=kind).moments(state)
        assert_close(moving.mean, fixed.mean, 1e-12)
        assert_close(moving.cov, fixed.cov, 1e-11)
        assert_close(moving.gain[:2], fixed.gain, 1e-12)


def test_effort_smoothness_and_limits() -> None:
    a = jnp.asarray([0.7, 0.4, 0.5, 2.0, -3.0])
    assert_close(effort([3, 4], [10.0, 5.0])(a), 0.2**2 + 0.6**2, 1e-12)
    assert_close(effort([3], 10.0, rest=1.0)(a), 0.1**2, 1e-12)
    assert_close(smoothness([3, 4], [1, 2], [1.0, 2.0])(a), 1.6**2 + 1.75**2, 1e-12)
    assert_close(limits(3, upper=1.5, width=0.25)(a), 2.0, 1e-12)
    assert_close(limits(4, lower=-1.0, upper=1.0, width=4.0)(a), 0.5, 1e-12)
    assert limits(0, -1.0, 1.0)(a) == 0


# A cost is plain data.


def described(value: Any) -> Any:
    """Names, numbers and lists only."""
    if isinstance(value, Cost):
        fields = {f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"cost": COSTS.name_of(type(value))} | fields
    if isinstance(value, AngleFeatures):
        return {"angles": list(value.angles), "keep": list(value.keep)}
    if isinstance(value, tuple):
        return [described(item) for item in value]
    return None if value is None else np.asarray(value).tolist()


def rebuilt(value: Any) -> Any:
    if isinstance(value, dict) and "cost" in value:
        fields = {name: rebuilt(item) for name, item in value.items() if name != "cost"}
        return COSTS[value["cost"]].value(**fields)
    if isinstance(value, dict):
        return AngleFeatures(tuple(value["angles"]), tuple(value["keep"]))
    return [rebuilt(item) for item in value] if isinstance(value, list) else value


@each_cost
def test_a_cost_can_be_written_down_and_read(name: str) -> None:
    again = rebuilt(described(COST[name]))
    assert jax.tree.structure(again) == jax.tree.structure(COST[name])
    assert_close(again.moments(gaussian(1)).cov, COST[name].moments(gaussian(1)).cov, 0.0, floor=0.0)


def test_all_kinds_are_registered() -> None:
    assert set(COSTS) == {"saturating", "quadratic", "linear", "hinge", "sum"}
    assert all(entry.description.endswith((".", "`")) or ":" in entry.description for entry in COSTS.values())


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a state without its action": (
        lambda: effort([3], 1.0)(jnp.zeros(3)),
        r"the components \(3,\).*terminal",
    ),
    "moments likewise": (lambda: SUM.moments(gaussian(1, 3)), r"given 3 components"),
    "two states of unequal size": (lambda: cost_covariance(HINGE, gaussian(1, 3), SUM, 2), "given 1 components"),
    "quadratic weight": (lambda: QuadraticCost(kept(0), [0.0], [[-1.0]]), "weight of a QuadraticCost"),
    "quadratic shapes": (lambda: QuadraticCost(kept(0), [0.0, 1.0], [[1.0]]), r"given \(2,\) and \(1, 1\)"),
    "tolerance": (lambda: QuadraticCost(kept(0), [0.0], [[1.0]], -1.0), "at least 0; given -1.0"),
    "linear shapes": (lambda: LinearCost(kept(0), [0.0, 1.0], [1.0]), r"shape \(1,\); given \(2,\)"),
    "linear slope": (lambda: LinearCost(kept(0), [float("nan")], [1.0]), "slope of a LinearCost must be finite"),
    "hinge features": (lambda: HingeCost(kept(0, 1), 1.0), "one feature"),
    "hinge ends": (lambda: HingeCost(kept(0), 1.0, 2.0, 1.0), "lower <= upper; given 2.0 and 1.0"),
    "hinge slope": (lambda: HingeCost(kept(0), -1.0), "at least 0; given -1.0"),
    "negative weight": (lambda: -1.0 * HINGE, "finite weights of at least 0; given"),
    "weights missing": (lambda: SumOfCosts((HINGE, LINEAR), (1.0,)), "A SumOfCosts of 2 costs needs as many"),
    "not a cost": (lambda: HINGE + 1.0, "takes costs; given 1.0"),
    "width": (lambda: effort([3], 0.0), r"width must be positive; given \[0.0\]"),
    "targets missing": (
        lambda: distance([0, 1], [0.0], 1.0),
        "one entry of target for each of the components",
    ),
    "strange angle": (
        lambda: distance([0, 1], [0.0, 0.0], 1.0, angles=[2]),
        r"among the components .* given \[2\]",
    ),
    "references missing": (lambda: tracking([0, 1], [2], 1.0), "one entry of references for each"),
    "negative component": (lambda: effort([-1], 1.0), "at least 0; given -1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_costs_are_refused(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(Exception, match=message):
        make()
