"""A disk that fails at any of its system calls, and then shows what a real one might have kept.

All files of the library are written and deleted by `bayespilco.deploy.files`, so its system calls are counted here. At
call number `fail_at` the process dies, or the disk is full. A process that has died does nothing more, not even clean
up. What is on the disk then depends on what had reached it: data are safe after `fsync` of their file, names after
`fsync` of their directory. Until then they may be there, be cut, or be gone, in any combination.
"""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayespilco.deploy import files
from tests.killed import Instead

AFTERWARDS = ("kept", "torn", "empty", "names lost")
"""What became of what had not reached the disk: all there; data cut in half; no data; data there, but old names."""


class Died(BaseException):
    """The process was killed, or the power failed."""


class Disk:
    """Counts system calls, and fails at one of them."""

    def __init__(self, fail_at: int | None = None, full: bool = False) -> None:
        self.calls, self.fail_at, self.full, self.dead = 0, fail_at, full, False
        self.unsynced: set[Path] = set()
        """Files whose data have not reached the disk."""
        self.renamed: list[tuple[Path, bytes | None]] = []
        """Names that have not reached it, with what was there before."""

    def call(self) -> None:
        if self.dead:
            raise Died
        self.calls += 1
        if self.calls - 1 == self.fail_at:
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.dead = True
            raise Died

    def leave(self, afterwards: str) -> None:
        """Make of what was written what the disk shows after the power came back."""
        for path in self.unsynced:
            if path.exists() and afterwards in ("torn", "empty"):
                content = path.read_bytes()
                path.write_bytes(content[: len(content) // 2] if afterwards == "torn" else b"")
        if afterwards == "names lost":
            for path, before in reversed(self.renamed):
                if before is None:
                    path.unlink(missing_ok=True)
                else:
                    path.write_bytes(before)

    @contextmanager
    def used(self) -> Iterator["Disk"]:
        """Let the library write to this disk."""
        disk, unlink = self, Path.unlink
        opened: dict[int, Path] = {}

        def mkstemp(**options: Any) -> tuple[int, str]:
            disk.call()
            descriptor, name = tempfile.mkstemp(**options)
            opened[descriptor] = Path(name)
            return descriptor, name

        class File:
            """Written in two halves, as large files are."""

            def __init__(self, descriptor: int) -> None:
                self.descriptor, self.path = descriptor, opened[descriptor]
                disk.unsynced.add(self.path)

            def __enter__(self) -> "File":
                return self

            def __exit__(self, *_: object) -> None:
                del opened[self.descriptor]  # its number will be used again
                os.close(self.descriptor)

            def write(self, content: bytes) -> None:
                for part in (content[: len(content) // 2], content[len(content) // 2 :]):
                    disk.call()
                    os.write(self.descriptor, part)

            def flush(self) -> None:
                pass

            def fileno(self) -> int:
                return self.descriptor

        def fsync(descriptor: int) -> None:
            disk.call()
            if descriptor in opened:
                disk.unsynced.discard(opened[descriptor])
            else:
                disk.renamed.clear()

        def chmod(path: str, mode: int) -> None:
            disk.call()
            os.chmod(path, mode)

        def replace(old: str, new: Path) -> None:
            disk.call()
            disk.renamed.append((new, new.read_bytes() if new.exists() else None))
            if Path(old) in disk.unsynced:
                disk.unsynced.add(new)
            os.replace(old, new)

        def unlinked(path: Path, missing_ok: bool = False) -> None:
            disk.call()
            if path.exists():
                disk.renamed.append((path, path.read_bytes()))
            unlink(path, missing_ok=missing_ok)

        before = files.os, files.tempfile
        replaced = {"fdopen": lambda descriptor, mode: File(descriptor), "fsync": fsync, "chmod": chmod}
        files.os = Instead(module=os, replace=replace, **replaced)  # type: ignore[assignment]
        files.tempfile = Instead(module=tempfile, mkstemp=mkstemp)  # type: ignore[assignment]
        Path.unlink = unlinked  # type: ignore[method-assign, assignment]
        try:
            yield self
        finally:
            files.os, files.tempfile = before
            Path.unlink = unlink  # type: ignore[method-assign]
