"""A module of arrays as one safetensors file, and back.

A module is a tree: its leaves are arrays and a few plain values (a count, a sentence), and a leaf's name is the path of
fields that leads to it, such as `policy/offset`. What is static in a module (which states are angles, say) is not
in the file: it belongs to the task. Reading goes through the constructors, so that everything they check is checked.
Equal modules make equal files, and a check sum tells a file that has changed since it was written. Beside the module a
file keeps its context: what its reader has to know to see whether it belongs where it is found.
"""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bayespilco.core.precision import float64
from bayespilco.deploy.files import write

FORMAT = "bayespilco 4"
"""4 since a model has sensors and a structure, 3 since a file has a context, 2 since a record keeps the whole fit."""
CHECK, CONTEXT = "sha256", "context"
"""The entries of the metadata with the check sum, and with the context."""
Leaves = dict[str, Any]
"""Arrays and plain values by their paths."""
M = TypeVar("M", bound=eqx.Module)


def write_module(path: Path, module: eqx.Module, context: Mapping[str, Any] | None = None) -> None:
    """Write a module's leaves: arrays as tensors, plain values and the context as JSON in the file's metadata."""
    named = leaves(module)
    tensors = {name: leaf for name, leaf in named.items() if isinstance(leaf, np.ndarray)}
    values = {name: json.dumps(leaf) for name, leaf in named.items() if name not in tensors}
    values[CONTEXT] = json.dumps(context or {}, sort_keys=True)
    header, data = _split(save(tensors, {"format": FORMAT, **values}))
    header["__metadata__"][CHECK] = _check_sum(header, data)
    text = _text(header)
    text += b" " * (-len(text) % 8)  # the arrays begin at a multiple of 8
    write(path, len(text).to_bytes(8, "little") + text + data)


class Provenance(NamedTuple):
    """Where the content of a file comes from."""

    context: dict[str, Any]
    """As it was given to `write_module`."""
    check_sum: str
    """Of all that the file holds: two files with the same hold the same."""


def read_provenance(path: Path) -> Provenance:
    """Of a file that `read_module` has found to be whole."""
    metadata = _split(path.read_bytes())[0]["__metadata__"]
    return Provenance(json.loads(metadata[CONTEXT]), metadata[CHECK])


def is_ours(path: Path) -> bool:
    """Whether a file was written by `write_module`, of this version or another."""
    try:
        header = _split(path.read_bytes())[0]
        return str(header["__metadata__"]["format"]).startswith("bayespilco ")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """A safetensors file: the length of a header, the header in JSON, and the arrays' bytes."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def _text(header: dict[str, Any]) -> bytes:
    """The header in one order. safetensors' own changes from time to time."""
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def _check_sum(header: dict[str, Any], data: bytes) -> str:
    """Of all that the file says, except the check sum itself."""
    rest = {name: value for name, value in header["__metadata__"].items() if name != CHECK}
    return hashlib.sha256(_text(header | {"__metadata__": rest}) + data).hexdigest()


def leaves(module: eqx.Module) -> Leaves:
    """The leaves of a module by their paths."""
    with_paths, _ = jax.tree_util.tree_flatten_with_path(module)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            # safetensors stores the buffer as it lies in memory: a transposed array would come back scrambled.
            leaf if isinstance(leaf, str | int | float) else np.array(leaf, order="C")
        )
        for path, leaf in with_paths
    }


@float64
def read_module(path: Path, kind: type[M], known: Mapping[str, Any], *, batched: bool = False) -> M:
    """Read back what `write_module` wrote.

    Args:
        kind: The module's class.
        known: What the file does not say, by path: static parts, or the class of a part that could be one of several.
        batched: Whether all arrays have a leading axis, one entry per module.
    """
    stored = _read(path)

    def construct(each: Leaves) -> M:
        return build(kind, each, known)

    try:
        module: M = jax.vmap(construct)(stored) if batched else construct(stored)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold a {kind.__name__} of this task: {error}") from error
    if foreign := stored.keys() - leaves(module).keys():
        raise ValueError(f"{path} holds more than a {kind.__name__}, such as {min(foreign)!r}: from another version?")
    return module


def _read(path: Path) -> Leaves:
    try:
        content = path.read_bytes()
        tensors = {name: jnp.asarray(array) for name, array in load(content).items()}
        header, data = _split(content)
    except (SafetensorError, OSError, ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}. It may be damaged, cut short or of another kind.") from error
    metadata = dict(header.get("__metadata__", {}))
    written = metadata.pop("format", "something else")
    if written != FORMAT:
        raise ValueError(f"{path} was not written by this version of bayespilco ({FORMAT!r}), but by {written!r}.")
    if CHECK not in metadata:
        raise ValueError(f"{path} has no check sum ({CHECK}): it is damaged, or was not written by bayespilco.")
    if metadata.pop(CHECK) != _check_sum(header, data):
        raise ValueError(f"{path} is damaged: its check sum is not that of its content.")
    try:
        values = {name: json.loads(value) for name, value in metadata.items()}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error} in its metadata.") from error
    if odd := [name for name, tensor in tensors.items() if tensor.dtype not in (np.float64, np.bool_)]:
        raise ValueError(f"{path} is damaged: {min(odd)!r} is of type {tensors[min(odd)].dtype}, not float64.")
    values.pop(CONTEXT, None)
    return tensors | values


def build(kind: type[M], stored: Leaves, known: Mapping[str, Any], prefix: str = "") -> M:
    """Construct a module from its leaves. One that is missing and optional becomes None."""
    hints = typing.get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        name = prefix + field.name
        given = known.get(name)
        part = given if isinstance(given, type) else _module_class(hints[field.name])
        if given is not None and not isinstance(given, type):
            arguments[field.name] = given
        elif name in stored:
            arguments[field.name] = stored[name]
        elif part is not None and any(key.startswith(name + "/") for key in stored):
            arguments[field.name] = build(part, stored, known, name + "/")
        elif type(None) in typing.get_args(hints[field.name]):
            arguments[field.name] = None
        else:
            raise ValueError(f"{name!r} is missing")
    return kind(**arguments)


def _module_class(hint: Any) -> type[eqx.Module] | None:
    """The module class that an annotation names, if it names one."""
    options = [option for option in (hint, *typing.get_args(hint)) if isinstance(option, type)]
    modules = [option for option in options if issubclass(option, eqx.Module)]
    return modules[0] if len(modules) == 1 else None
