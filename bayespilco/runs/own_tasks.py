"""A task from a user's own file: `tanks.py:task`, a Task or a function without arguments that returns one.

The file is imported as `python tanks.py` would find it: its directory is searched for what it imports. Only who names
a file runs its code: a run's directory knows the file's name and check sum, and never imports it.
"""

import hashlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from bayespilco.core.checks import unknown_name
from bayespilco.core.precision import float64
from bayespilco.tasks import TASKS, Task
from bayespilco.tasks.checking import check_plant, user_line


class Source(NamedTuple):
    """Where the code of a task is."""

    file: str
    """The file and the name in it, as they were given."""
    sha256: str
    """Check sum of the file."""


class FoundTask(NamedTuple):
    """A task, and where it is from; None if it is built in, or was made by a program."""

    task: Task
    source: Source | None = None


def find_task(given: Task | str | FoundTask) -> FoundTask:
    """The task that a user means: a Task, the name of a built-in one, or `file.py:name`. It is checked."""
    if isinstance(given, FoundTask):
        return given
    if isinstance(given, str):
        found = load_task(given) if is_file(given) else FoundTask(TASKS[given]())
    elif isinstance(given, Task):
        found = FoundTask(given)
    else:
        raise ValueError(
            "task must be a Task (`tasks.spring()`, say), the name of a built-in one, or 'file.py:name'; "
            f"given {given!r}."
        )
    check_plant(found.task)
    return found


def is_file(given: str) -> bool:
    """Whether a task's name speaks of a file."""
    return ".py" in given and (given.endswith(".py") or ".py:" in given)


def absolute(given: str) -> str:
    """The same task, for a process in another directory."""
    if not is_file(given):
        return given
    path, colon, name = given.rpartition(":") if ".py:" in given else (given, "", "")
    return f"{Path(path).resolve()}{colon}{name}"


@float64
def load_task(given: str) -> FoundTask:
    """The task in a user's file."""
    path, _, name = given.rpartition(":") if ".py:" in given else (given, "", "")
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f"There is no file {path}: give a task as file.py:name, relative to {Path.cwd()}.")
    content = _read(file)
    module = _import(file)
    offered = [each for each, value in vars(module).items() if _could_be(value, module)]
    if not name:
        instead = f", such as {path}:{offered[0]}" if offered else ""
        raise ValueError(f"Which task of {path}? Give its name as well{instead}.")
    if not hasattr(module, name):
        if not offered:
            raise ValueError(f"{path} has no {name!r}, nor any other Task or function that could return one.")
        raise unknown_name(name, offered, f"task in {path}:")
    value = getattr(module, name)
    if callable(value) and not isinstance(value, Task):
        value = _call(value, path, name, file)
    if not isinstance(value, Task):
        raise ValueError(
            f"{path}:{name} must be a Task, or a function that returns one; it gives {type(value).__name__}."
        )
    return FoundTask(value, Source(given, hashlib.sha256(content).hexdigest()))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}.") from error


def _could_be(value: Any, module: ModuleType) -> bool:
    if isinstance(value, Task):
        return True
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not _needs_arguments(value)


def _needs_arguments(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in variable]


def _call(function: Any, path: str, name: str, file: Path) -> Any:
    if needed := _needs_arguments(function):
        raise ValueError(f"{path}:{name} must be a function without arguments; it needs {', '.join(needed)}.")
    try:
        return function()
    except Exception as error:
        raise ValueError(f"{path}:{name} fails{user_line(error, file)}: {_said(error)}") from error


def _import(file: Path) -> ModuleType:
    """The file's module. Its own name is used where it is free, so that helper processes find it by that name too."""
    directory = str(file.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        name = file.stem  # read again: it may have changed since
    else:
        name = file.stem if known is None and file.stem.isidentifier() else f"_task_of_{abs(hash(file))}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is no file of Python: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        raise ValueError(f"{file.name} cannot be imported{user_line(error, file)}: {_said(error)}") from error
    except SystemExit as error:
        sys.modules.pop(name, None)
        raise ValueError(
            f"{file.name} ends the program when it is imported. Put what it does, other than defining the task, below "
            '`if __name__ == "__main__":`.'
        ) from error
    return module


def _said(error: BaseException) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    return f"{type(error).__name__}: {first}"
