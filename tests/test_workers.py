"""Helpers: the same results with and without them, also when they die, and none left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from bayespilco import learn, startup
from bayespilco.control.prediction import Filtered
from bayespilco.control.search import Problem, search
from bayespilco.core.parallel import SERIAL
from bayespilco.core.precision import as_float64
from bayespilco.model.episode import batch
from bayespilco.runs.workers import WorkerPool
from bayespilco.training.evidence import fit_evidence
from bayespilco.training.marginal import fit_marginal
from tests.small_run import STRUCTURE, assert_same, small_run


def who(item: int) -> tuple[int, int]:
    time.sleep(0.02)
    return item, os.getpid()


def double(values: jax.Array) -> jax.Array:
    return 2 * values


def fail(item: int) -> int:
    raise ValueError(f"{item} cannot be done")


def die_elsewhere(item: tuple[int, int]) -> int:
    """Done by the process with this number only: any other one dies of it, as if it were killed."""
    number, there = item
    if os.getpid() != there:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_work_is_shared_and_comes_back_in_order() -> None:
    with WorkerPool(2) as pool:
        found = pool.map(who, range(6))
        assert [item for item, _ in found] == list(range(6))
        assert {pid for _, pid in found} > {os.getpid()}, "nobody helped"
        again = {pid for _, pid in pool.map(who, range(4))}
        assert again == {pid for _, pid in found}, "helpers stay"
    assert [pid for _, pid in SERIAL.map(who, range(3))] == [os.getpid()] * 3


def test_one_item_needs_no_help() -> None:
    with WorkerPool(2) as pool:
        assert pool.map(who, [1]) == [(1, os.getpid())] and not pool._helpers


def test_this_process_can_watch_what_it_does_itself() -> None:
    watched: list[int] = []

    def here(item: int) -> tuple[int, int]:
        watched.append(item)
        return who(item)

    with WorkerPool(2) as pool:
        found = pool.map(who, range(5), here)
    assert watched == [item for item, pid in found if pid == os.getpid()]


def test_arrays_stay_in_double_precision() -> None:
    exact = as_float64([1 / 3])
    with WorkerPool(2) as pool:
        for value in pool.map(double, [exact, exact, exact]):
            assert value.dtype == np.float64 and float(value[0]) == 2 / 3


def test_an_error_of_a_helper_is_raised_here() -> None:
    with WorkerPool(2) as pool, pytest.raises(ValueError, match="1 cannot be done"):
        pool.map(fail, [0, 1], lambda item: item)


def test_what_a_dead_helper_had_is_done_here() -> None:
    with WorkerPool(2) as pool:
        assert pool.map(die_elsewhere, [(n, os.getpid()) for n in range(4)]) == [0, 1, 2, 3]
        assert pool.map(who, range(2))[0] == (0, os.getpid()), "and somebody new helps the next time"
        assert len(pool._helpers) == 1


UNGUARDED = """
import warnings
from bayespilco import learn
from bayespilco.deploy.rig import Rig
{before}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    run = learn("spring", episodes=2, points=6, evaluations=2, workers=2, out="run", force=True)
print(len(run.records), *[warning.message for warning in caught if "helper" in str(warning.message)], sep="\\n")
"""
RUNS_A_PLANT = """
class Plant:
    def reset(self): return [0.0]
    def step(self, action): return [0.0]
class Agent:
    limits = [1.0]
    def reset(self): pass
    def act(self, z): return [0.0]
print(Rig(Plant(), realtime=False).run(Agent(), dt=0.1, steps=2).ended, flush=True)
"""


@pytest.mark.parametrize(("before", "first", "what"), [("", "2", "learn"), (RUNS_A_PLANT, "finished", "run the plant")])
def test_a_script_without_a_guard_does_nothing_twice(before: str, first: str, what: str, tmp_path: Path) -> None:
    """Its helpers import it. They must not move the plant, nor replace the run; and learning goes on without them."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(before=before))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == first and lines[-2] == "2", done.stdout
    assert "this process goes on alone" in lines[-1] and "__name__" in lines[-1]
    assert done.stderr.count(f"A helper process was about to {what} as well") == 1
    assert "Traceback" not in done.stderr


def test_a_policy_search_finds_the_same_with_helpers() -> None:
    run = small_run(2)
    task, dynamics = run.task, run.dynamics
    problem = Problem(Filtered(), dynamics, task.initial, task.cost, task.steps)
    earlier = [record.policy for record in run.records]
    alone = search(problem, earlier, earlier, evaluations=8, split_evaluations=1)
    progress: list[float] = []
    with WorkerPool(2) as pool:
        helped = search(
            problem,
            earlier,
            earlier,
            evaluations=8,
            split_evaluations=1,
            workers=pool,
            on_progress=lambda done, _: progress.append(done),
        )
        assert pool._helpers, "nobody helped"
    assert_same(helped.policy, alone.policy)
    assert helped.cost == alone.cost
    assert progress == sorted(progress) and progress[-1] <= 1.0


def test_training_finds_the_same_with_helpers() -> None:
    """With few trials there are two starts: the last model, and afresh."""
    run = small_run(2)
    trials = batch([record.episode for record in run.records])
    given = trials, run.task.features(STRUCTURE), run.task.initial
    settings = {"structure": run.task.structure(STRUCTURE), "points": 4, "evaluations": 3, "rounds": 1}
    settings |= {"previous": run.records[0].fit}
    alone = fit_evidence(*given, **settings)
    with WorkerPool(2) as pool:
        helped = fit_evidence(*given, **settings, workers=pool)
        assert pool._helpers, "nobody helped"
    assert_same(helped, alone)


def test_outputs_of_a_model_are_trained_in_parallel_with_the_same_result() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(20, 2))
    y = np.stack([np.sin(x[:, 0]), x[:, 1] ** 2], axis=1) + 0.1 * random.normal(size=(20, 2))
    alone = fit_marginal(x, y, starts=2, evaluations=9)
    with WorkerPool(2) as pool:
        helped = fit_marginal(x, y, starts=2, evaluations=9, workers=pool)
        assert pool._helpers, "nobody helped"
    assert_same(helped, alone)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_helper_outlives_its_pool(how: signal.Signals) -> None:
    """However the first process ends, even while helpers are busy."""
    program = """
import signal, time
from bayespilco.runs.workers import WorkerPool
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the background of a script ignores it
    with WorkerPool(2) as pool:
        pool.map(time.sleep, [0, 0])
        print(pool._helpers[0]._process.pid, flush=True)
        pool.map(time.sleep, [60, 60])
"""
    arguments = [sys.executable, "-c", program]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as command:
        assert command.stdout is not None
        helper = Path("/proc") / command.stdout.readline().decode().strip()
        assert helper.exists()
        command.send_signal(how)
    for _ in range(100):
        if not helper.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{helper.name} is still there")


def test_a_pool_has_somebody() -> None:
    with pytest.raises(ValueError, match="at least one worker; given 0"):
        WorkerPool(0)


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def blas_threads_of(_: int) -> tuple[int, list[int]]:
    return os.getpid(), blas_threads()


def test_blas_has_one_thread_while_we_learn() -> None:
    with threadpool_limits(3, user_api="blas"):
        assert set(blas_threads()) == {3}
        with startup.one_blas_thread():
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {3}, "a program gets back what it had"
        seen: list[int] = []
        learn("spring", episodes=1, points=4, evaluations=1, on_progress=lambda _: seen.extend(blas_threads()))
        assert set(seen) == {1} and set(blas_threads()) == {3}


def test_blas_has_one_thread_in_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    with WorkerPool(2) as pool:
        here, there = pool.map(blas_threads_of, [0, 1])
    assert here[0] == os.getpid() != there[0] and set(there[1]) == {1}
