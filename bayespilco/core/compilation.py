"""How the library has its functions compiled: once per set of shapes, by XLA, quickly.

On a CPU, XLA gives each of the hundreds of small kernels of a prediction a compiler context of its own ("fusion
emitters"). Without them a value and gradient compiles in half the time and a fifth of the memory, and runs as fast.
Where the processor has vectors of eight numbers, XLA uses four of them by default; with all of them an evaluation takes
a seventh less.

Where compiled code is found in a cache, what remains is to trace the function and its derivative, in Python. For that
reason pieces that a step of a prediction needs several times are marked with `jax.jit`: these are traced once for
equal shapes, and become part of the whole all the same.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx
import jax

F = TypeVar("F", bound=Callable[..., Any])

Option = bool | int | float | str
OPTIONS: dict[str, Option] = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_prefer_vector_width": 512}


def compiled(function: F) -> F:
    """The function, compiled at its first call with each new structure and shapes of its arguments."""

    @functools.cache
    def ready() -> Callable[..., Any]:  # at the first call, not on import: asking XLA what it knows starts it
        options = _known_options()
        jitted: Callable[..., Any] = eqx.filter_jit(function, compiler_options=options)  # type: ignore[call-overload]
        return jitted

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        # Within another compiled function it becomes a part of that one.
        within = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, named)))
        return (function if within else ready())(*arguments, **named)

    return cast(F, call)


@functools.cache
def _known_options() -> dict[str, Option]:
    """Those options that this version of XLA knows."""
    return {name: value for name, value in OPTIONS.items() if _is_known(name, value)}


def _is_known(name: str, value: Option) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options={name: value})(0)
    except jax.errors.JaxRuntimeError:
        return False
    return True
