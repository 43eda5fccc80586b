"""Files that exist completely or not at all, in a directory that one process at a time writes to."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where a run is not protected from a second one
    fcntl = None  # type: ignore[assignment]


def write(path: Path, content: bytes) -> None:
    """Write atomically and durably: a crash leaves the old file or the new one, never half of one."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a device would be replaced by a file
        raise OSError(f"Cannot write {path}: it is not a regular file.")
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
        # Which of the five steps failed does not help anybody; the name of the file does.
        raise OSError(f"Cannot write {path}: {error.strerror or error}.") from error
    _sync_directory(path.parent)


def delete(path: Path) -> None:
    """Delete a file, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(f"Cannot delete {path}: {error.strerror or error}.") from error


def unfinished(directory: Path, pattern: str) -> list[Path]:
    """Temporary files that `write` left behind when its process was killed, for files of such names."""
    return list(directory.glob(f".{pattern}.????????"))


@contextmanager
def reserved(directory: Path) -> Iterator[None]:
    """Keep other processes from writing to a directory. The reservation ends with this process, however that ends."""
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
    """The new name has to reach the disk, too. Some file systems cannot do that, which is no reason to fail."""
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
    """The permissions of a file: as before, or those of the umask, which can only be read by setting it."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
