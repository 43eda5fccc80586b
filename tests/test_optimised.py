"""The numbers that users compile: a part of the tests at XLA's default optimisation, in a process of its own.

All other tests compile without optimisation (`conftest.py`), because they compile far more than they compute.
"""

import os
import subprocess
import sys
from pathlib import Path

CHOSEN = (
    "tests/test_identities.py::test_appendix_b_splits_appendix_a",
    "tests/test_identities.py::test_padding_changes_nothing",
    "tests/test_identities.py::test_update_conserves_variance",
    "tests/test_identities.py::test_executed_filter_is_the_kalman_filter",
    "tests/test_reference_prediction.py::test_value_and_its_gradient",
)
"""Appendices A and B in both sweeps, the filter, and a predicted cost with its gradient."""


def test_identities_and_references_hold_in_optimised_code() -> None:
    environment = os.environ | {"XLA_FLAGS": ""}  # set, so that conftest.py leaves it alone
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "--quiet", "--numprocesses=0", "-p", "no:cacheprovider", *CHOSEN]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
