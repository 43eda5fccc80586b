"""Reference values of the original MATLAB programs, and how to read them.

Conventions of the files (see golden/README.md for their list):

- A file is a list of cases; every number is an array with its MATLAB shape, at least 2-D (`m` is D x 1).
- Indices are 1-based.
- `hyp` of v0.9 is (D+2) x E: log length-scales, log signal std, log noise std, one column per output. `hyp` of the
  `pc_` programs is a list over outputs of {l, s, n, m, b}: the same logs, the linear mean's weights, and its bias.
- `V` (v0.9) and `C` are gains, D x E. Predictive covariances have function uncertainty but no observation noise.
- A derivative matrix flattens both sides in column-major order: `dSds` (E*E x D*D) reshaped with order "F" to
  (E, E, D, D) is dS[i,j]/ds[k,l]. A covariance is symmetric, so how its derivative is shared between [k,l] and
  [l,k] is a matter of taste: both sides are symmetrised before they are compared.
- A policy's parameter vector has its fields in alphabetical order, each column-major (RBF: hyp, inputs, target(s);
  linear: b, w). RBF policies fix log signal std = 0 and log noise std = log 0.01.
"""

import functools
import gzip
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracles import jacobian

DIRECTORY = Path(__file__).parent / "golden"


@functools.cache
def load(name: str) -> list[dict[str, Any]]:
    """The cases of one file: nested dictionaries and lists, with arrays at the leaves. Not to be modified."""
    return [_arrays(case) for case in json.loads(gzip.decompress((DIRECTORY / f"{name}.json.gz").read_bytes()))]


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_arrays(item) for item in value]
    if isinstance(value, str | bool):
        return value
    array = np.asarray(value, dtype=np.float64)
    array.setflags(write=False)
    return array


def cases(name: str, quick: Collection[int] = (), skip: Collection[int] = ()) -> list[Any]:
    """The numbers of a file's cases, as parameters of a test: those not `quick` run only with `--slow`.

    Every case has shapes of its own and costs seconds of compilation, so the everyday run takes a few of each kind.
    """
    numbers = [number for number in range(len(load(name))) if number not in skip]
    slow = pytest.mark.slow
    return [pytest.param(number, marks=() if number in (quick or numbers) else slow) for number in numbers]


def indices(value: np.ndarray) -> tuple[int, ...]:
    """0-based indices from 1-based ones."""
    return tuple(int(i) - 1 for i in value.ravel())


def kernel_v09(hyp: np.ndarray) -> dict[str, np.ndarray]:
    """The hyper-parameters of a v0.9 model, as `condition` wants them."""
    return {
        "length_scales": np.exp(hyp[:-2].T),
        "signal_variance": np.exp(2 * hyp[-2]),
        "noise_variance": np.exp(2 * hyp[-1]),
    }


def kernel_pc(hyp: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The hyper-parameters of a `pc_` model, linear mean included, as `condition` wants them."""
    return {
        "length_scales": np.exp(np.stack([h["l"].ravel() for h in hyp])),
        "signal_variance": np.exp(2 * np.concatenate([h["s"].ravel() for h in hyp])),
        "noise_variance": np.exp(2 * np.concatenate([h["n"].ravel() for h in hyp])),
        "slope": np.stack([h["m"].ravel() for h in hyp]),
        "offset": np.concatenate([h["b"].ravel() for h in hyp]),
    }


def derivative(matrix: np.ndarray, output: tuple[int, ...], input: tuple[int, ...]) -> np.ndarray:
    """A stored derivative matrix with the shape `jax.jacobian` would give it: `output + input`."""
    return matrix.reshape(output + input, order="F")


def symmetric(by_matrix: Any) -> np.ndarray:
    """The derivative with respect to a covariance, shared equally between its two halves (the last two axes)."""
    by_matrix = np.asarray(by_matrix)
    return (by_matrix + np.swapaxes(by_matrix, -1, -2)) / 2


def assert_close(actual: Any, expected: Any, tolerance: float, what: str = "", floor: float = 1e-12) -> None:
    """Agreement to `tolerance` times the largest entry expected (but never tighter than `floor`, absolutely)."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    scale = np.abs(expected).max(initial=0.0)
    error = np.abs(actual - expected).max(initial=0.0)
    assert error <= tolerance * scale + floor, f"{what}: off by {error:.3g} where the largest entry is {scale:.3g}"


def compare(
    function: Callable[..., dict[str, Any]],
    case: dict[str, Any],
    arguments: dict[str, Any],
    tolerance: float,
    derivative_tolerance: float | None = None,
) -> None:
    """Compare what `function(**arguments)` returns, by name, and every derivative `d<name>d<argument>` that is stored.

    Square matrices among the arguments are covariances: derivatives with respect to them are symmetrised.
    """
    arguments = {name: np.asarray(value, dtype=np.float64) for name, value in arguments.items()}
    values, jacobians = jacobian(lambda given: function(**given))(arguments)
    compared = 0
    for name, value in values.items():
        assert_close(value, case[name].reshape(value.shape, order="F"), tolerance, name)
        for by, argument in arguments.items():
            if (stored := case.get(f"d{name}d{by}")) is None:
                continue
            expected, actual = derivative(stored, value.shape, argument.shape), np.asarray(jacobians[name][by])
            if argument.ndim == 2 and argument.shape[0] == argument.shape[1]:
                expected, actual = symmetric(expected), symmetric(actual)
            assert_close(actual, expected, derivative_tolerance or tolerance, f"d{name}/d{by}")
            compared += 1
    assert compared or not any(key.startswith("d") for key in case), "no derivative was compared"
