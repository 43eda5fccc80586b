"""Appendices A and B: against the original programs, value and derivatives.

Cases differ in numbers of points, inputs and outputs. They are padded to the largest and share the compiled code:
points get zero weights, inputs an infinite length-scale and no part in the mean, outputs are zero. Two cases are
compared in their own size as well.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import GaussianProcess, condition, condition_sparse
from bayespilco.core.moments import belief_moments, gp_moments
from tests.golden import assert_reference, cases, cropped, kernel_pc, kernel_v09, load
from tests.oracles import jacobian

Case = dict[str, Any]
conditioned, conditioned_sparse = eqx.filter_jit(condition), eqx.filter_jit(condition_sparse)


class Size(NamedTuple):
    points: int
    inputs: int
    outputs: int


LARGEST = Size(40, 6, 4)


def padded(gp: GaussianProcess, size: Size) -> GaussianProcess:
    """The same function of the first inputs in the first outputs."""
    points, inputs, outputs = (wanted - own for wanted, own in zip(size, size_of(gp), strict=True))
    scales = np.pad(gp.length_scales, ((0, 0), (0, inputs)), constant_values=np.inf)
    precision = None if gp.precision is None else np.pad(gp.precision, ((0, outputs), (0, points), (0, points)))
    return GaussianProcess(
        inputs=np.pad(gp.inputs, ((0, points), (0, inputs))),
        length_scales=np.pad(scales, ((0, outputs), (0, 0)), constant_values=1.0),
        signal_variance=np.pad(gp.signal_variance, (0, outputs), constant_values=1.0),
        weights=np.pad(gp.weights, ((0, outputs), (0, points))),
        precision=precision,
        slope=np.pad(gp.slope, ((0, outputs), (0, inputs))),
        offset=np.pad(gp.offset, (0, outputs)),
    )


def size_of(gp: GaussianProcess) -> Size:
    return Size(gp.inputs.shape[0], gp.inputs.shape[1], gp.offset.shape[0])


@jacobian
def of_gaussian(given: dict[str, jax.Array], gp: GaussianProcess) -> dict[str, jax.Array]:
    moments = gp_moments(gp, Gaussian(given["m"], given["s"]))
    return {"M": moments.mean, "S": moments.cov, "V": moments.gain, "C": moments.gain}


@jacobian
def of_belief(given: dict[str, jax.Array], gp: GaussianProcess) -> dict[str, jax.Array]:
    of_mean, cov = belief_moments(gp, Gaussian(given["m"], given["s"]), given["v"])
    return {"M": of_mean.mean, "S": of_mean.cov, "C": of_mean.gain, "V": cov}


def assert_moments(evaluate: Callable[..., Any], case: Case, gp: GaussianProcess, size: Size, names: str) -> None:
    """Values to 1e-9 and derivatives to 1e-8, with `gp` padded to `size`."""
    _, inputs, outputs = size_of(gp)
    further = (0, size.inputs - inputs)
    given = {by: jnp.pad(case[by].ravel() if by == "m" else case[by], further) for by in "msv" if by in case}
    values, jacobians = evaluate(given, padded(gp, size))
    gain, covariance = (inputs, outputs), (outputs, outputs)
    shapes = {"M": (outputs,), "S": covariance, "C": gain, "V": gain if names == "MSV" else covariance}
    own = {"m": (inputs,), "s": (inputs, inputs), "v": (inputs, inputs)}
    assert_reference(
        {name: cropped(values[name], shapes[name]) for name in names},
        {name: {by: cropped(jacobians[name][by], shapes[name] + own[by]) for by in given} for name in names},
        case,
        1e-9,
        1e-8,
    )


def full_gp(case: Case) -> GaussianProcess:
    return conditioned(case["inputs"], case["targets"], **kernel_v09(case["hyp"]))


@pytest.mark.parametrize("number", cases("gp0d"))
def test_full_gp(number: int) -> None:
    """The exact GP; case 4 has no input uncertainty at all."""
    case = load("gp0d")[number]
    assert_moments(of_gaussian, case, full_gp(case), LARGEST, "MSV")


def test_full_gp_in_its_own_size() -> None:
    case = load("gp0d")[1]
    gp = full_gp(case)
    assert_moments(of_gaussian, case, gp, size_of(gp), "MSV")


@pytest.mark.parametrize("number", cases("gp1d"))
def test_sparse_gp(number: int) -> None:
    """FITC, with the original's ridge of 1e-6 on Kmm."""
    case = load("gp1d")[number]
    data, kernel = (case["inputs"], case["targets"], case["induce"]), kernel_v09(case["hyp"])
    gp = conditioned_sparse(*data, **kernel, kind="fitc", ridge=1e-6)
    assert_moments(of_gaussian, case, gp, LARGEST, "MSV")


@pytest.mark.parametrize("number", cases("pc_gpd_linmean"))
def test_gp_with_linear_mean(number: int) -> None:
    case = load("pc_gpd_linmean")[number]
    gp = conditioned(case["inputs"], case["target"], **kernel_pc(case["hyp"]))
    assert_moments(of_gaussian, case, gp, LARGEST, "MSC")


def gp_under_beliefs(case: Case) -> GaussianProcess:
    assert not case["approxSV"] and not case["combineSV"]
    return conditioned(case["inputs"], case["target"], **kernel_pc(case["hyp"]))


@pytest.mark.parametrize("number", cases("pc_gph", skip=(6,)))
def test_belief_through_gp(number: int) -> None:
    """Appendix B. (Case 6 has `approxSV` on: an approximation that this library does not make.)"""
    case = load("pc_gph")[number]
    assert_moments(of_belief, case, gp_under_beliefs(case), LARGEST, "MSCV")


def test_belief_through_gp_in_its_own_size() -> None:
    case = load("pc_gph")[0]
    gp = gp_under_beliefs(case)
    assert_moments(of_belief, case, gp, size_of(gp), "MSCV")


FAR, WIDE = 1e3, 30.0
"""Of a point: beyond the reach of every kernel. Of a log length-scale: so wide that the input does not matter."""
NETWORK = Size(15, 5, 2)


@jacobian
def of_network(given: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The mean of a GP as a function of its pseudo-data, too. The original adds 1e-6 to diag(S)."""
    i, t, X = given["i"], given["t"], given["X"]
    gp = condition(i, t, jnp.exp(X[:-2].T), jnp.exp(2 * X[-2]), jnp.exp(2 * X[-1]))
    moments = gp_moments(eqx.tree_at(lambda gp: gp.precision, gp, None), Gaussian(given["m"], given["s"]))
    return {"M": moments.mean, "S": moments.cov + 1e-6 * jnp.eye(moments.mean.size), "V": moments.gain}


@pytest.mark.parametrize("number", cases("gp2d"))
def test_deterministic_gp(number: int) -> None:
    """Differentiated through the pseudo-data: here points are padded by such that are out of reach."""
    case = load("gp2d")[number]
    (points, n), E = case["inputs"].shape, case["targets"].shape[1]
    more, further, others = (wanted - own for wanted, own in zip(NETWORK, (points, n, E), strict=True))
    i = np.pad(case["inputs"], ((0, more), (0, further)))
    i[points:, :n] = FAR * np.arange(1, more + 1)[:, None]
    t = np.pad(case["targets"], ((0, more), (0, others)))
    scales = np.pad(case["hyp"][:-2], ((0, further), (0, 0)), constant_values=WIDE)
    X = np.pad(np.concatenate([scales, case["hyp"][-2:]]), ((0, 0), (0, others)))
    m, s = np.pad(case["m"].ravel(), (0, further)), np.pad(case["s"], (0, further))
    values, jacobians = of_network({"m": m, "s": s, "i": i, "t": t, "X": X})
    shapes = {"M": (E,), "S": (E, E), "V": (n, E)}
    rows = [*range(n), NETWORK.inputs, NETWORK.inputs + 1]

    def own(by: str, part: np.ndarray, axes: int) -> np.ndarray:
        """The derivative by the case's own entries of an argument: the last axes."""
        inner = {"m": (n,), "s": (n, n), "i": (points, n), "t": (points, E)}
        if by == "X":
            return np.asarray(part)[..., rows, :E]
        return np.asarray(part)[(slice(None),) * axes + tuple(slice(size) for size in inner[by])]

    assert_reference(
        {name: cropped(values[name], shape) for name, shape in shapes.items()},
        {
            name: {by: own(by, cropped(part, shape), len(shape)) for by, part in jacobians[name].items()}
            for name, shape in shapes.items()
        },
        case,
        1e-8,
    )
