"""A task as plain JSON, and back: all of it but functions.

A module becomes its class's name and its fields, one by one, static ones included. So a new field of a task, or a new
kind of cost, needs no change here. Numbers come back to the bit. Reading runs no code of the file's: a class is looked
up in a closed table, all classes of this library that a task's annotations speak of, and made by its constructor, so
that everything it checks is checked.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import math
import pkgutil
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from bayespilco.core.checks import unknown_name
from bayespilco.core.precision import as_float64, float64
from bayespilco.tasks import TASKS, Task
from bayespilco.tasks.task import NO_PLANT as NO_PLANT
from bayespilco.tasks.task import MissingPlant as MissingPlant

FORMAT = "bayespilco task 1"
FUNCTIONS = ("plant", "pose")
"""Fields of a task that hold code, which is never stored."""
ELSEWHERE = ("logged",)
"""Fields of a task that a run keeps in a file of their own."""


class LeftOut(ValueError):
    """Something of a task that is not in its file, and is needed."""


def task_text(task: Task, source: dict[str, str] | None = None) -> str:
    """The content of a task's file. `source` says where its code is, if not in this library."""
    described: dict[str, Any] = {}
    for field in dataclasses.fields(task):
        if field.name not in (*FUNCTIONS, *ELSEWHERE):
            with contextlib.suppress(LeftOut):  # of an own class: whoever needs it has to give the task again
                described[field.name] = to_plain(getattr(task, field.name))
    content = {"format": FORMAT, "built_in": is_built_in(task), "source": source, "task": described}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def is_built_in(task: Task) -> bool:
    """Whether this library has the plant of a task under its name."""
    return task.name in TASKS and TASKS[task.name]().plant is task.plant


@dataclasses.dataclass(frozen=True)
class StoredTask:
    """What a task's file says."""

    task: Task
    """Without its plant, unless that is built in."""
    source: dict[str, str] | None
    """Where its code was: `file`, and the `sha256` of that."""


def read_task(text: str) -> StoredTask:
    """Read what `task_text` wrote. A ValueError says what is wrong with it."""
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"it is not of the format {FORMAT!r}")
        described = content["task"]
        fields = {name: from_plain(value) for name, value in described.items()}
        if missing := [name for name in _required() if name not in fields]:
            raise LeftOut(
                f"{', '.join(missing)} of the task {fields.get('name')!r} are of classes of its own: give the task "
                "again, with --task file.py:task (in Python, task=)"
            )
        built_in = TASKS[fields["name"]]() if content["built_in"] else None
        code = {"plant": built_in.plant, "pose": built_in.pose} if built_in else {"plant": MissingPlant()}
        return StoredTask(Task(**fields, **code), content["source"])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is damaged, or of another version: {type(error).__name__}: {error}") from error


def is_ours(path: Path) -> bool:
    """Whether a file is that of a task, of this version or another."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["format"]).startswith("bayespilco task ")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _required() -> list[str]:
    """Fields of a task that have no default."""
    return [
        field.name
        for field in dataclasses.fields(Task)
        if field.default is field.default_factory is dataclasses.MISSING and field.name not in FUNCTIONS
    ]


def to_plain(value: Any) -> Any:
    """JSON of a value: plain numbers, words, tuples, arrays, and modules of this library."""
    if isinstance(value, Enum) and type(value).__name__ in known_classes():
        return {"enum": type(value).__name__, "name": value.name}
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return to_plain(value.item())
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, tuple) and type(value) is tuple:
        return [to_plain(each) for each in value]
    if type(value) is list:
        return {"list": [to_plain(each) for each in value]}
    if type(value) is dict:
        return {"dict": [[to_plain(key), to_plain(each)] for key, each in value.items()]}
    if isinstance(value, jax.Array | np.ndarray) and value.dtype.kind in "bif":
        array = np.asarray(value)
        kind = {"numpy": True} if isinstance(value, np.ndarray) else {}
        flat = [to_plain(each) for each in array.ravel().tolist()]
        return {"array": flat, "shape": list(array.shape), "dtype": array.dtype.name, **kind}
    if dataclasses.is_dataclass(value) and known_classes().get(type(value).__name__) is type(value):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    raise LeftOut(f"{value!r} cannot be stored")


@float64
def from_plain(value: Any) -> Any:
    """What `to_plain` was given."""
    if isinstance(value, list):
        return tuple(from_plain(each) for each in value)
    if not isinstance(value, dict):
        return value
    if "class" in value:
        made = {name: from_plain(each) for name, each in value["fields"].items()}
        return _class(value["class"])(**made)
    if "enum" in value:
        return _class(value["enum"])[value["name"]]
    if "array" in value:
        flat = [from_plain(each) for each in value["array"]]
        array = np.array(flat, dtype=value["dtype"]).reshape(value["shape"])
        if value.get("numpy"):
            return array
        return as_float64(array) if array.dtype == np.float64 else jax.numpy.asarray(array)
    if "float" in value:
        return float(value["float"])
    if "list" in value:
        return [from_plain(each) for each in value["list"]]
    return {from_plain(key): from_plain(each) for key, each in value["dict"]}


def _class(name: str) -> Any:
    if name not in known_classes():
        raise unknown_name(name, list(known_classes()), "class")
    return known_classes()[name]


@functools.cache
def known_classes() -> dict[str, type]:
    """The classes that a task may be made of, by name: those of its fields' annotations, and of their fields."""
    _import_costs()
    found: dict[str, type] = {}
    waiting: list[type] = [Task]
    while waiting:
        kind = waiting.pop()
        if found.get(kind.__name__, kind) is not kind:
            raise TypeError(f"Two classes of tasks are called {kind.__name__}: rename one.")
        if kind.__name__ in found:
            continue
        found[kind.__name__] = kind
        subclasses: list[type] = kind.__subclasses__()
        waiting += [each for each in subclasses if _is_ours(each)]
        if dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            for field in dataclasses.fields(kind):
                if not (kind is Task and field.name in FUNCTIONS):
                    waiting += [each for each in _types_in(hints[field.name]) if _is_ours(each)]
    return found


def _import_costs() -> None:
    """Subclasses are known only once their modules are imported."""
    package = importlib.import_module("bayespilco.control")
    for module in pkgutil.iter_modules(package.__path__, "bayespilco.control."):
        importlib.import_module(module.name)


def _types_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type):
        yield hint
    for each in typing.get_args(hint):
        yield from _types_in(each)


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("bayespilco.") and (issubclass(kind, eqx.Module | Enum) or _is_record(kind))


def _is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind)
