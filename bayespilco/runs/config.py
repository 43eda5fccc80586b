"""What was asked for, as a TOML file that a person can read, write and repeat."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from bayespilco.algorithm import Settings
from bayespilco.core.checks import check_integer, unknown_name
from bayespilco.settings import EXECUTIONS, LARGEST_COUNT, Thresholds, before
from bayespilco.version import VERSION


@dataclasses.dataclass(frozen=True)
class Config:
    """What was asked for: enough to run it again."""

    task: str
    settings: Settings = dataclasses.field(default_factory=Settings)
    executions: int = EXECUTIONS
    """How often the final policy is to be executed."""
    thresholds: Thresholds = dataclasses.field(default_factory=Thresholds)
    """When a trial is a GO."""
    version: str = VERSION
    """Of the library that began the run."""

    def text(self) -> str:
        # A JSON string or integer is a TOML one too.
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in self.entries().items())

    def entries(self) -> dict[str, Any]:
        rest = {"executions": self.executions, **dataclasses.asdict(self.thresholds), "version": self.version}
        return {"task": self.task, **dataclasses.asdict(self.settings), **rest}

    @classmethod
    def read(cls, path: Path, *, complete: bool = True) -> "Config":
        """Read what `text` wrote; or what a person did, who may leave out what is as by default (not `complete`)."""
        values = _read(path)
        kinds = {name: type(value) for name, value in cls("").entries().items()}
        for name, value in values.items():
            if name not in kinds:
                raise unknown_name(name, list(kinds), f"entry in {path}:")
            if type(value) is not kinds[name]:
                raise ValueError(f"{path}: {name} must be of type {kinds[name].__name__}; given {value!r}.")
        if not complete:
            needed = ["task"]
        elif values.get("version", VERSION) == VERSION:
            needed = [name for name in kinds if name not in ("executions", "limit_probability", *_THRESHOLDS)]
        else:
            needed = ["task", "method", "seed", "episodes"]
        if missing := [name for name in kinds if name not in values and name in needed]:
            raise ValueError(f"{path} lacks {', '.join(missing)}.")
        if complete:  # a setting that there was not yet is as it was then
            values = before() | values
        own = {name: values.pop(name) for name in ("task", "executions", "version") if name in values}
        asked = {name: values.pop(name) for name in _THRESHOLDS if name in values}
        try:
            return cls(settings=Settings(**values), thresholds=Thresholds(**asked), **own)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def __post_init__(self) -> None:
        check_integer(self.executions, "executions", 1, LARGEST_COUNT)

    def other_version(self, path: Path) -> str:
        """A sentence, if the run in a directory was begun by another version, whose numbers may not be this one's."""
        if self.version == VERSION:
            return ""
        return f"The run in {path} was begun by bayespilco {self.version}; this is {VERSION}, and may differ."


_THRESHOLDS = tuple(field.name for field in dataclasses.fields(Thresholds))


def _read(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():  # a device or a pipe may have no end
        raise ValueError(f"{path} cannot be read: it is not a file.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} cannot be read: it is nested too deeply for a configuration.") from None
    except (OSError, ValueError) as error:  # also an integer of thousands of digits
        raise ValueError(f"{path} cannot be read: {error}") from error


def is_our_config(path: Path) -> bool:
    """Whether a file is the configuration of a run, of any version. Other programs have a config.toml too."""
    try:
        values = _read(path)
    except ValueError:
        return False
    return all(isinstance(values.get(name), str) for name in ("task", "method", "training", "version"))
