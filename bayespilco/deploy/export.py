"""Saving a controller: in a file of its own, or as C."""

from pathlib import Path

from bayespilco.deploy.controller import Controller
from bayespilco.deploy.files import write


def save(taken: Controller, path: Path | str, *, force: bool = False) -> None:
    """Write a controller's file, completely or not at all. An existing file is replaced only with `force`."""
    path = Path(path)
    _require_new(path, force)
    write(path, taken.to_bytes())


def save_c(taken: Controller, path: Path | str, *, single: bool = False, force: bool = False) -> Path:
    """Write a controller as C99, and its header beside it (see `deploy.c`). Returns the header's path.

    Args:
        path: It ends in `.c`. The names in C begin with the name of this file.
        single: `float` in place of `double`. If there is a C compiler, what that costs is measured and stated.
    """
    from bayespilco.deploy.c import identifier, single_error, source

    path = Path(path)
    if path.suffix != ".c":
        raise ValueError(f"The name of a C file must end in .c; given {path}.")
    name, header = identifier(path.stem), path.with_suffix(".h")
    for each in (path, header):
        _require_new(each, force)
    written = source(taken, name, single=single, error=single_error(taken) if single else "", file=path.stem)
    write(header, written.header.encode())
    write(path, written.code.encode())
    return header


def _require_new(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise ValueError(f"{path} exists already. Choose another name, or replace it with --force.")
