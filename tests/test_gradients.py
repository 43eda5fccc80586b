"""The gradient of the predicted total cost, against finite differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from bayespilco.control.policy import Policy
from bayespilco.control.prediction import Filtered, MostLikely, Predictor, Unfiltered, predict, predict_in_parts
from bayespilco.core.precision import as_float64
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.splitting import standard_points
from tests import systems
from tests.oracles import directional_difference

PREDICTORS: dict[str, Predictor] = {
    "unfiltered": Unfiltered(),
    "filtered": Filtered(),
    "literal": Filtered("literal"),
    "most likely": MostLikely(),
}


IN_PARTS = " in parts"


@eqx.filter_jit
@eqx.filter_value_and_grad(has_aux=True)
def total_cost(policy: Policy, name: str, dynamics: Dynamics) -> tuple[jax.Array, jax.Array]:
    arguments = policy, dynamics, systems.INITIAL, systems.COST, 4
    if name.endswith(IN_PARTS):
        result = predict_in_parts(PREDICTORS[name.removesuffix(IN_PARTS)], *arguments, as_float64(standard_points(2)))
    else:
        result = predict(PREDICTORS[name], *arguments)
    return result.total_cost, result.diverged


@pytest.mark.parametrize("kind", ["rbf", "linear"])
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(n, marks=pytest.mark.slow if n == "literal" else ()) for n in PREDICTORS),
        pytest.param("unfiltered" + IN_PARTS, marks=pytest.mark.slow),
        "filtered" + IN_PARTS,
    ],
)
def test_total_cost(name: str, kind: str) -> None:
    """Along two random directions in the space of all parameters; the actuator's limits are not parameters."""
    policy = systems.policy(kind)

    def value(policy: Policy) -> jax.Array:
        return total_cost(policy, name, systems.dynamics())[0][0]

    _, gradient = total_cost(policy, name, systems.dynamics())
    leaves, structure = jax.tree.flatten(policy)
    for seed in range(2):
        keys = jax.random.split(jax.random.key(seed), len(leaves))
        directions = [jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
        along = jax.tree.unflatten(structure, directions)
        along = eqx.tree_at(lambda p: p.limits, along, jnp.zeros_like(policy.limits))
        exact = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(along), strict=True))
        numeric = directional_difference(value, policy, along)
        assert abs(numeric) > 1e-3, "a direction along which nothing changes tests nothing"
        assert abs(exact - numeric) < 1e-5 * abs(numeric)


@pytest.mark.parametrize("name", ["unfiltered", "filtered"])
def test_divergence_is_finite_in_value_and_gradient(name: str) -> None:
    """A model that explodes: the rest of the run costs 1 per step, and no NaN reaches the optimiser."""
    explosive = eqx.tree_at(lambda d: d.gp.slope, systems.dynamics(), 1e3 * systems.dynamics().gp.slope)
    (cost, diverged), gradient = total_cost(systems.policy(), name, explosive)
    assert diverged and jnp.isfinite(cost)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
