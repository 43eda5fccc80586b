"""Appendices A and B: against the original programs, and the identities that tie them together."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from bayespilco.gaussian import Gaussian
from bayespilco.gp import GaussianProcess, condition, condition_sparse
from bayespilco.moments import belief_moments, gp_moments
from tests.golden import cases, compare, kernel_pc, kernel_v09, load


def named_moments(gp: GaussianProcess, m: jax.Array, s: jax.Array, gain: str) -> dict[str, jax.Array]:
    moments = gp_moments(gp, Gaussian(m, s))
    return {"M": moments.mean, "S": moments.cov, gain: moments.gain}


@pytest.mark.parametrize("number", cases("gp0d", quick=(1, 4)))
def test_full_gp(number: int) -> None:
    """The exact GP; case 4 has no input uncertainty at all."""
    case = load("gp0d")[number]

    def moments(m: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        return named_moments(condition(case["inputs"], case["targets"], **kernel_v09(case["hyp"])), m, s, "V")

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-9, 1e-8)


@pytest.mark.parametrize("number", cases("gp1d", quick=(1,)))
def test_sparse_gp(number: int) -> None:
    """FITC, with the original's ridge of 1e-6 on Kmm: its inverse is ill-conditioned, hence 1e-6 and no better."""
    case = load("gp1d")[number]

    def moments(m: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        data, kernel = (case["inputs"], case["targets"], case["induce"]), kernel_v09(case["hyp"])
        return named_moments(condition_sparse(*data, **kernel, kind="fitc", ridge=1e-6), m, s, "V")

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-6)


@pytest.mark.parametrize("number", cases("gp2d", quick=(1,)))
def test_deterministic_gp(number: int) -> None:
    """The mean of a GP as a function, differentiated through its pseudo-data. The original adds 1e-6 to diag(S)."""
    case = load("gp2d")[number]

    def moments(m: jax.Array, s: jax.Array, i: jax.Array, t: jax.Array, X: jax.Array) -> dict[str, jax.Array]:
        scales, signal, noise = jnp.exp(X[:-2].T), jnp.exp(2 * X[-2]), jnp.exp(2 * X[-1])
        gp = eqx.tree_at(lambda gp: gp.precision, condition(i, t, scales, signal, noise), None)
        named = named_moments(gp, m, s, "V")
        return named | {"S": named["S"] + 1e-6 * jnp.eye(named["S"].shape[0])}

    arguments = {"m": case["m"].ravel(), "s": case["s"], "i": case["inputs"], "t": case["targets"], "X": case["hyp"]}
    compare(moments, case, arguments, 1e-8)


@pytest.mark.parametrize("number", cases("pc_gpd_linmean", quick=(0,)))
def test_gp_with_linear_mean(number: int) -> None:
    case = load("pc_gpd_linmean")[number]

    def moments(m: jax.Array, s: jax.Array) -> dict[str, jax.Array]:
        return named_moments(condition(case["inputs"], case["target"], **kernel_pc(case["hyp"])), m, s, "C")

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"]}, 1e-9, 1e-8)


@pytest.mark.parametrize("number", cases("pc_gph", quick=(0, 1), skip=(6,)))
def test_belief_through_gp(number: int) -> None:
    """Appendix B. (Case 6 has `approxSV` on: an approximation that this library does not make.)"""
    case = load("pc_gph")[number]
    assert not case["approxSV"] and not case["combineSV"]

    def moments(m: jax.Array, s: jax.Array, v: jax.Array) -> dict[str, jax.Array]:
        gp = condition(case["inputs"], case["target"], **kernel_pc(case["hyp"]))
        of_mean, cov = belief_moments(gp, Gaussian(m, s), v)
        return {"M": of_mean.mean, "S": of_mean.cov, "C": of_mean.gain, "V": cov}

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"], "v": case["v"]}, 1e-9, 1e-8)
