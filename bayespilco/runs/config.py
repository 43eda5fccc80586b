"""What was asked for, as a TOML file that a person can read, write and repeat."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

from bayespilco.algorithm import Settings, whole
from bayespilco.tasks.task import suggest
from bayespilco.version import VERSION


@dataclasses.dataclass(frozen=True)
class Config:
    """What was asked for: enough to run it again."""

    task: str
    settings: Settings = dataclasses.field(default_factory=Settings)
    executions: int = 100
    """How often the final policy is to be executed."""
    version: str = VERSION
    """Of the library that began the run."""

    def text(self) -> str:
        # A JSON string or integer is a TOML one too.
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in self.entries().items())

    def entries(self) -> dict[str, Any]:
        rest = {"executions": self.executions, "version": self.version}
        return {"task": self.task, **dataclasses.asdict(self.settings), **rest}

    @classmethod
    def read(cls, path: Path, *, complete: bool = True) -> "Config":
        """Read what `text` wrote; or what a person did, who may leave out what is as by default (not `complete`)."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        kinds = {name: type(value) for name, value in cls("").entries().items()}
        for name, value in values.items():
            if name not in kinds:
                raise suggest(name, list(kinds), f"entry in {path}:")
            if type(value) is not kinds[name]:
                raise ValueError(f"{path}: {name} must be of type {kinds[name].__name__}; given {value!r}.")
        needed = [name for name in kinds if name != "executions"] if complete else ["task"]
        if missing := [name for name in kinds if name not in values and name in needed]:
            raise ValueError(f"{path} lacks {', '.join(missing)}.")
        own = {name: values.pop(name) for name in ("task", "executions", "version") if name in values}
        try:
            return cls(settings=Settings(**values), **own)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def __post_init__(self) -> None:
        whole(self.executions, "executions", 1)

    def other_version(self, path: Path) -> str:
        """A sentence, if the run in a directory was begun by another version, whose numbers may not be this one's."""
        if self.version == VERSION:
            return ""
        return f"The run in {path} was begun by bayespilco {self.version}; this is {VERSION}, and may differ."
