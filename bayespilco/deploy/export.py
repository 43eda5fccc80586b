"""Saving a controller in its file."""

from pathlib import Path

from bayespilco.deploy.controller import Controller
from bayespilco.deploy.files import write


def save(taken: Controller, path: Path | str, *, force: bool = False) -> None:
    """Write a controller's file, completely or not at all. An existing file is replaced only with `force`."""
    path = Path(path)
    if path.exists() and not force:
        raise ValueError(f"{path} exists already. Choose another name, or replace it with --force.")
    write(path, taken.to_bytes())
