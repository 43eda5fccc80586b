"""Strict tests: float64, every shape annotation checked, and a warning is a failure.

Rank promotion stays allowed: the formulas subtract a mean from a table of points everywhere, and the shape
annotations catch what a forbidden promotion would.
"""

import os

# The tests compile far more than they compute. (Before JAX is imported; a flag already set is left alone.)
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)

# The library must be imported under the hook for its annotations to be checked, and every test imports it after this.
hook = install_import_hook("bayespilco", "beartype.beartype")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("markers", "slow: more cases of what is tested anyway; run with --slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run every stored reference case, not a few of each kind")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    left_out = [item for item in items if item.get_closest_marker("slow")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
