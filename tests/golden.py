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
- Derivatives by the incoming state `[m, s, v]` of `pc_ctrlBF` and `pc_propagateBF` are by the *upper triangles* of `s`
  and `v`, column by column, as if both halves moved together; those of symmetric matrices are of upper triangles, too.
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


def cases(name: str, skip: Collection[int] = ()) -> list[int]:
    """The numbers of a file's cases, as parameters of a test."""
    return [number for number in range(len(load(name))) if number not in skip]


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
    assert_reference(values, jacobians, case, tolerance, derivative_tolerance)


def assert_reference(
    values: dict[str, Any],
    jacobians: dict[str, dict[str, Any]],
    case: dict[str, Any],
    tolerance: float,
    derivative_tolerance: float | None = None,
) -> None:
    """Compare values by name, and every derivative `d<name>d<argument>` that is stored."""
    compared = 0
    for name, value in values.items():
        assert_close(value, case[name].reshape(value.shape, order="F"), tolerance, name)
        for by, actual in jacobians[name].items():
            if (stored := case.get(f"d{name}d{by}")) is None:
                continue
            actual = np.asarray(actual)
            argument = actual.shape[np.ndim(value) :]
            expected = derivative(stored, np.shape(value), argument)
            if len(argument) == 2 and argument[0] == argument[1]:
                expected, actual = symmetric(expected), symmetric(actual)
            assert_close(actual, expected, derivative_tolerance or tolerance, f"d{name}/d{by}")
            compared += 1
    assert compared or not any(key.startswith("d") for key in case), "no derivative was compared"


def cropped(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The first entries along the first axes: what was there before padding."""
    return np.asarray(value)[tuple(slice(size) for size in shape)]


def upper(matrix: Any) -> Any:
    """The upper triangle of a symmetric matrix, column by column (the first two axes)."""
    columns, rows = np.tril_indices(matrix.shape[0])
    return matrix[rows, columns]


def from_upper(values: Any) -> Any:
    """The symmetric matrix with this upper triangle."""
    size = int((np.sqrt(8 * values.shape[0] + 1) - 1) / 2)
    place = np.zeros((size, size), dtype=int)
    columns, rows = np.tril_indices(size)
    place[rows, columns] = place[columns, rows] = np.arange(values.shape[0])
    return values[place]
