"""Files that are there completely or not at all, in a directory that one process at a time writes to."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where a run is not guarded against a second one
    fcntl = None  # type: ignore[assignment]


def write(path: Path, content: bytes) -> None:
    """Write atomically and durably: a crash leaves the old file or the new one, never half of one."""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, _mode(path))  # mkstemp's files are private; these are ordinary ones
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        # Which of the five steps it was helps nobody; the file that was to be written does.
        raise OSError(f"Cannot write {path}: {error.strerror or error}.") from error
    _sync_directory(path.parent)


def delete(path: Path) -> None:
    """Delete a file, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(f"Cannot delete {path}: {error.strerror or error}.") from error


def unfinished(directory: Path, pattern: str) -> list[Path]:
    """What `write` left of files of such names when the process was killed in the middle of it."""
    return list(directory.glob(f".{pattern}.????????"))


@contextmanager
def reserved(directory: Path) -> Iterator[None]:
    """Keep other processes from writing to a directory. However this process ends, the reservation ends with it."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Another process is writing to {directory}: wait for it, or stop it.") from None
        except OSError:
            pass  # a file system without locks, which is no reason to fail
        yield
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    """The new name itself has to reach the disk as well. Some file systems cannot, which is no reason to fail."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _mode(path: Path) -> int:
    """Who may read and write a file: as before, or as the umask says, which can only be read by setting it."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
