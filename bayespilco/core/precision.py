"""Float64 inside this library, whatever the rest of the process uses.

The covariances of moment matching are differences of nearly equal sums: in float32 they come out negative. JAX
computes in float32 unless told otherwise, and telling it so globally would change the user's other code. So
every public entry point of the library runs inside JAX's own thread-local switch, and nothing leaks out.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

P = ParamSpec("P")
T = TypeVar("T")


def float64(function: Callable[P, T]) -> Callable[P, T]:
    """Run `function` with JAX in float64. Cheap (microseconds), and harmless when it is on already."""

    @functools.wraps(function)
    def in_float64(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return in_float64


def as_float64(value: Any) -> Array:
    """A float64 JAX array of `value`; tracers pass through. The converter of every array field."""
    if isinstance(value, jax.Array) and value.dtype == np.float64:
        return value
    with jax.enable_x64(True):
        return jnp.asarray(value, dtype=np.float64)


def optional_float64(value: Any) -> Array | None:
    """The converter of array fields that may be missing."""
    return None if value is None else as_float64(value)


def is_concrete(*values: Any) -> bool:
    """Whether these arrays hold numbers that can be looked at (not tracers of a transformation)."""
    return not any(isinstance(value, jax.core.Tracer) for value in values)
