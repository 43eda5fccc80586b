"""A plain program never hangs, with all of XLA's threads and nothing set in its environment.

XLA divides a batch of LAPACK calls among the threads of the pool that it runs in, and waits for them there. When as
many batches wait as there are threads, nobody works. So no program of ours may contain such a batch: that is checked on
the programs themselves. (Small factorisations are written out, in `core.linalg`; large ones are made one by one.)
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from bayespilco.runs.workers import available_cores

ROOT = Path(__file__).parents[1]
OURS = ("NPROC", "XLA_FLAGS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What the tests' environment may set, and a user's does not have."""

LEARN = """
from bayespilco import learn, tasks
run = learn(tasks.spring(), episodes=2, {settings})
assert len(run.records) == 2
print("learned")
"""

BUSY = "while True: sum(range(10000))"


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in OURS} | {"PYTHONPATH": str(ROOT)} | more


@contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def batched_calls(directory: Path) -> dict[str, set[str]]:
    """The LAPACK calls with matrices of more than two axes, in each program that was lowered into a directory."""
    found: dict[str, set[str]] = {}
    for file in directory.glob("*.mlir"):
        for name, given in re.findall(r"custom_call @(lapack_\w+)\(.*?\).*? : \(([^)]*)\)", file.read_text()):
            if re.search(r"tensor<\d+x\d+x\d+", given):
                found.setdefault(file.name, set()).add(f"{name}({given})")
    return found


def test_the_check_finds_a_batch(tmp_path: Path) -> None:
    program = "import jax, jax.numpy as jnp; jax.jit(jax.vmap(jnp.linalg.cholesky))(jnp.ones((3, 2, 2)))"
    subprocess.run([sys.executable, "-c", program], env=environment(JAX_DUMP_IR_TO=str(tmp_path)), check=True)
    assert any("lapack_spotrf" in call for calls in batched_calls(tmp_path).values() for call in calls)


@pytest.mark.parametrize("training", ["evidence", "direct"])
def test_no_program_of_learning_has_a_batch_of_lapack_calls(training: str, tmp_path: Path) -> None:
    settings = f"points=6, evaluations=2, training={training!r}, in_parts=True"
    done = subprocess.run(
        [sys.executable, "-c", LEARN.format(settings=settings)],
        # How the programs are compiled does not matter here: they are looked at before that.
        env=environment(JAX_DUMP_IR_TO=str(tmp_path), XLA_FLAGS=os.environ.get("XLA_FLAGS", "")),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "learned\n", done.stderr
    assert len(list(tmp_path.glob("*value_and_gradient*.mlir"))) > 1, "the programs were seen"
    assert batched_calls(tmp_path) == {}


def learn_once(_: int) -> tuple[bool, float]:
    """Whether it ended within twenty minutes, and the seconds it took."""
    begin = time.monotonic()
    program = LEARN.format(settings="evaluations=20")
    try:
        subprocess.run([sys.executable, "-c", program], env=environment(), check=True, timeout=1200)
    except subprocess.TimeoutExpired:
        return False, time.monotonic() - begin
    return True, time.monotonic() - begin


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_twenty_plain_programs_on_a_busy_machine() -> None:
    """All of XLA's threads in each, twice as many programs at a time as there are cores, and one more that spins."""
    with busy_machine(1), ThreadPoolExecutor(2 * available_cores()) as pool:
        ended, seconds = zip(*pool.map(learn_once, range(20)), strict=True)
    print(f"{ended.count(False)} of {len(ended)} stuck; {min(seconds):.0f} to {max(seconds):.0f} s each")
    assert all(ended)
