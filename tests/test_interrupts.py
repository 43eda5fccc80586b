"""Ctrl-C in the command, in processes of their own: the sentence and exit code 130, whatever was going on."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEFAULT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""As a terminal starts a process. The tests may run where Ctrl-C is ignored, under `nohup` or in the background."""
PROGRAM = DEFAULT + "from bayespilco.__main__ import main; main()"
LARGE = 50_000
"""A program of this many bytes takes seconds to compile."""
SENTENCE = re.compile(
    r"Interrupted\.( [0-3] of 3 episodes are saved in \S+; go on with: bayespilco resume \S+)?\n", re.ASCII
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="interrupts a group of processes")


class Command:
    """`bayespilco learn spring` in a group of processes of its own, as a terminal starts it."""

    def __init__(self, directory: Path, cached: bool = True) -> None:
        self.programs = directory / "programs"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_DUMP_IR_TO": str(self.programs)}
        if not cached:
            environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        arguments = ["learn", "spring", "--episodes", "3", "--evaluations", "20", "--executions", "5", "--workers", "2"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments, "--out", str(directory / "run")]
            + ([] if cached else ["--no-cache"]),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_compilation(self) -> None:
        """Until a large program has been handed to the compiler."""
        until = time.monotonic() + 120
        while time.monotonic() < until and self.process.poll() is None:
            if any(file.stat().st_size > LARGE for file in self.programs.glob("*.mlir")):
                return
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        _, said = self.process.communicate()
        raise AssertionError(f"nothing was compiled; exit code {self.process.returncode}, said {said!r}")

    def interrupt(self) -> str:
        """What came of Ctrl-C: "ended" if all is as it should be."""
        if self.process.poll() is not None:
            _, said = self.process.communicate()
            code = self.process.returncode
            return "too late" if code == 0 else f"ended before the interrupt: exit code {code}, said {said!r}"
        os.killpg(self.process.pid, signal.SIGINT)
        try:
            _, said = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            return "lost"
        code = self.process.returncode
        if code == 0:
            return "too late"
        if code == 130 and SENTENCE.fullmatch(said):
            return "ended"
        return f"exit code {code}, said {said!r}"


def guarded(process: subprocess.Popen, patience: float = 20.0) -> None:
    """Until the first line of the command has run: before that it is Python's own start that is interrupted."""
    until = time.monotonic() + patience
    status = Path(f"/proc/{process.pid}/task")
    while time.monotonic() < until and len(list(status.iterdir())) < 2:
        time.sleep(0.002)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at threads where Linux lists them")
def test_an_interrupt_during_imports(tmp_path: Path) -> None:
    command = Command(tmp_path)
    guarded(command.process)
    time.sleep(0.05)
    assert command.interrupt() == "ended"


def test_an_interrupt_during_compilation(tmp_path: Path) -> None:
    command = Command(tmp_path, cached=False)
    command.wait_for_compilation()
    assert command.interrupt() == "ended"


def test_helpers_end_too(tmp_path: Path) -> None:
    """All processes of the group are gone soon after the first one."""
    command = Command(tmp_path)
    command.wait_for_compilation()
    time.sleep(1)
    assert command.interrupt() == "ended"
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.killpg(command.process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("a helper goes on")


PLANT = f"""{DEFAULT}
from bayespilco import interrupts
from bayespilco.deploy.rig import signals

interrupts.guard()
assert interrupts.is_guarded()
try:
    with signals._handlers():
        assert not interrupts.is_guarded()
        signal.raise_signal(signal.SIGINT)
        signal.pause()
except KeyboardInterrupt:
    print("the plant is stopped first", flush=True)
assert interrupts.is_guarded()
signal.raise_signal(signal.SIGINT)
signal.pause()
"""


def test_a_real_plant_is_stopped_first() -> None:
    """While an episode runs, Ctrl-C is its affair; before and after, it ends the process."""
    done = subprocess.run(
        [sys.executable, "-c", PLANT], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (130, "the plant is stopped first\n"), done.stderr
    assert done.stderr == "Interrupted.\n"


def one(seed: int) -> tuple[str, str]:
    """An interrupt at a random moment: of every second run while something compiles."""
    moment = random.Random(seed)
    compiling = seed % 2 == 1
    with tempfile.TemporaryDirectory() as directory:
        command = Command(Path(directory), cached=not compiling)
        if compiling:
            command.wait_for_compilation()
            time.sleep(moment.uniform(0.0, 2.0))
        else:
            guarded(command.process)
            time.sleep(moment.uniform(0.0, 12.0))
        return ("compiling" if compiling else "any moment"), command.interrupt()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_interrupts() -> None:
    with ThreadPoolExecutor(2) as pool:
        found = Counter(pool.map(one, range(int(os.environ.get("INTERRUPTS", "200")))))
    print(*(f"{count} {when}: {what}" for (when, what), count in sorted(found.items())), sep="\n")
    assert {what for _, what in found} <= {"ended", "too late"}
    assert sum(count for (_, what), count in found.items() if what == "too late") < 0.1 * sum(found.values())
