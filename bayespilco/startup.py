"""Prepare a process of ours before JAX starts in it: one XLA thread, a patient collector, compiled code kept.

Only the command line calls this, but for `one_blas_thread`, which ends with what it is for. A library must not change
its user's process. A long-running program of your own can call the same functions first, but works without them.

**One thread.** The matrices of one prediction are small, and the cores are used by processes (`--workers`), each with
one thread of XLA and of BLAS. More threads would compete for the same cores, and wait for each other on a busy machine.
How many XLA has is read from `NPROC`, once, when the first array is made. It is a matter of speed only.
"""

import gc
import multiprocessing
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

NO_CACHE = "BAYESPILCO_NO_CACHE"
"""Set in the environment: compiled code is not kept."""


def single_thread() -> None:
    """Let XLA and NumPy's BLAS start with one thread each. Without effect once they have started.

    The optimiser's matrices are small: BLAS gains nothing by a second thread, and on a busy machine waits for it, at
    full speed, for most of the time.
    """
    os.environ["NPROC"] = "1"
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def one_blas_thread() -> AbstractContextManager[object]:
    """Limit BLAS to one thread in a process that has started already; leaving the context lifts the limit.

    XLA borrows SciPy's BLAS for its triangular solves. With as many threads as cores these take up to ten times the
    CPU time for matrices of our size, and on a busy machine as much longer.
    """
    import scipy.linalg  # noqa: F401  (what is not loaded yet cannot be limited)
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limits


def collect_rarely() -> None:
    """Let Python look for garbage a hundred times less often.

    To trace a function JAX makes many objects, and keeps them: the collector searches them all in vain, again and
    again, for a sixth of the time until a first result.
    """
    gc.set_threshold(100_000, 20, 20)


def keep_compiled_code() -> Path | None:
    """Keep compiled code in the user's cache directory, so that only the first run has to compile.

    Returns:
        The directory; None if there is nowhere to write (then everything is compiled again, and nothing else changes).
        A directory that the user chose with `JAX_COMPILATION_CACHE_DIR` is left alone.
    """
    chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import jax

    try:
        directory = cache_directory() / "compiled"
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (OSError, RuntimeError):  # read-only, full, or no home directory at all
        return None
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    return directory


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/bayespilco`, by default `~/.cache/bayespilco`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules: a relative path is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "bayespilco"


def available_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """However the parent ends, even by `kill -9`: nothing may go on writing, or computing, when it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
