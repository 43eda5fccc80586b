"""Strict tests: float64, every shape annotation checked, and a warning is a failure.

Rank promotion stays allowed: the formulas subtract a mean from a table of points everywhere, and the shape
annotations catch what a forbidden promotion would.
"""

import ctypes
import gc
import os
import resource
import sys

# The tests compile far more than they compute. (Before JAX is imported; a flag already set is left alone.)
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
gc.set_threshold(100_000, 20, 20)  # as in bayespilco/startup.py: to trace makes many objects, and they are kept

# The library must be imported under the hook for its annotations to be checked, and every test imports it after this.
hook = install_import_hook("bayespilco", "beartype.beartype")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("markers", "slow: more of what is tested anyway; run with --slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the long tests too")


ALONE = {"test_examples", "test_hangs", "test_interrupts"}
"""Files whose tests start processes and share nothing."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of a file go to one worker: they share fixtures, and functions that are compiled already."""
    for item in items:
        if item.path.stem not in ALONE and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    if config.getoption("--slow"):
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Say so if groups are without effect, as with pytest 9.2 and pytest-xdist 3.8: then everything is made twice."""
    grouped = [name for name in ids if Path(name.partition("::")[0]).stem not in ALONE]
    if node.config.getoption("dist") == "loadgroup" and not all("@" in name for name in grouped):
        pytest.exit("pytest-xdist ignores groups with this version of pytest. Try one before 9.2.", returncode=4)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported stays: the collector need not look at it again


ENOUGH = 1.1e9
"""Bytes of memory beyond which compiled code is given up. Until then it is kept: modules share much of it."""


def forget_compiled_code() -> None:
    """JAX keeps all compiled code in memory. What is needed again is found in the cache on disk."""
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # gives back what was freed


@pytest.fixture(autouse=True, scope="module")
def nothing_left_behind() -> Iterator[None]:
    yield
    gc.collect()  # a file or a socket that was not closed is complained about here, and not in another module


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    yield
    if memory() > ENOUGH:
        forget_compiled_code()


def memory() -> int:
    """Bytes in use, as far as the system tells."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
