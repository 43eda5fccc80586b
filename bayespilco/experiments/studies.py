"""The directory of a study: whose it is, what is in it, and numbers as they are written there."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayespilco.deploy.files import write
from bayespilco.runs.directory import TASK, read_stored_task
from bayespilco.runs.own_tasks import FoundTask
from bayespilco.runs.plain import task_text

STUDY, RESULTS = "study.json", "results.json"


def claim(
    settings: Mapping[str, Any], found: FoundTask, directory: Path, defaults: Mapping[str, Any] | None = None
) -> None:
    """Make the directory a study's, or find that it is.

    Args:
        settings: All that its results depend on, but for what may be added later (seeds, say). Plain data.
        found: The task.
        defaults: The value that a setting had before there was such a setting.
    """
    file = directory / STUDY
    if file.exists():
        stored = json.loads(file.read_text())
        before = {name: value for name, value in (defaults or {}).items() if name in settings} | stored
        plain = json.loads(json.dumps(dict(settings)))
        if before != plain:
            changed = sorted(key for key in plain.keys() | before.keys() if plain.get(key) != before.get(key))
            raise ValueError(
                f"{directory} holds another study: there {', '.join(f'{key} = {before.get(key)}' for key in changed)}; "
                f"asked for {', '.join(f'{key} = {plain.get(key)}' for key in changed)}. Choose another directory."
            )
        _compare_source(found, directory)
        return
    begun = directory / TASK  # by a process that was killed before it wrote what the study is
    if directory.exists() and (not directory.is_dir() or any(set(directory.iterdir()) - {begun})):
        raise ValueError(f"{directory} is neither empty nor the directory of a study: choose another.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write(directory / TASK, task_text(found.task, found.source._asdict() if found.source else None).encode())
        write(file, (json.dumps(dict(settings), indent=2) + "\n").encode())
    except OSError as error:
        raise ValueError(f"Cannot write to {directory}: {error.strerror or error}.") from error


def _compare_source(found: FoundTask, directory: Path) -> None:
    """Say so if the file of the task has changed since the study was begun."""
    source, stored = found.source, read_stored_task(directory)
    before = stored.source if stored is not None else None
    if source is not None and before is not None and before["sha256"] != source.sha256:
        warnings.warn(
            f"{source.file} has changed since the study in {directory} was begun (its check sum is another). What is "
            "finished is of the earlier one.",
            stacklevel=4,
        )


def seed_directory(directory: Path, seed: int) -> Path:
    return directory / f"seed-{seed:02d}"


def rounded(value: Any) -> Any:
    """Six digits: more than the executions know."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value
