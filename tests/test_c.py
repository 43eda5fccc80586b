"""The controller in C acts as the one in NumPy does, compiles without a warning, and touches no foreign memory."""

import dataclasses
import functools
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import equinox as eqx
import numpy as np
import pytest

from bayespilco import Controller, tasks
from bayespilco.cli import main
from bayespilco.core.gp import GaussianProcess, condition
from bayespilco.deploy import bridge, export
from bayespilco.deploy.c import cost, identifier, source
from bayespilco.execution import filtered, unfiltered
from bayespilco.tasks import Reference
from tests import systems, test_controller, test_controller_frame
from tests.small_run import small_run

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
STEPS = 50
CASES = (
    "full-rbf",
    "cancelling",
    "uncertain-linear",
    "double-pendulum-rbf",
    "frame",
    "frame-second-order",
    "raw",
    "raw-frame",
)


def controller(name: str) -> Controller:
    """With an angle; with an uncertain mean; with two actions; with delays and references; and without a filter."""
    if name.startswith(("frame", "raw-frame")):
        of = test_controller_frame.task()
        if name == "raw-frame":
            of = dataclasses.replace(tasks.spring().with_delay(1), references=(Reference("target", "m", 0.5),))
            made = unfiltered(test_controller_frame.policy(of), test_controller_frame.dynamics(of, "free"))
            return bridge.controller(of, made)
        kind = "second-order" if name.endswith("second-order") else "free"
        return bridge.controller(
            of, filtered(test_controller_frame.policy(of), test_controller_frame.dynamics(of, kind))
        )
    if name == "cancelling":
        of, model = test_controller.task(), dataclasses.replace(systems.dynamics(), gp=cancelling())
        return bridge.controller(of, filtered(systems.policy(), model))
    if name == "raw":
        case = test_controller.case("full")
        return bridge.controller(case.task, unfiltered(case.policies["rbf"], case.dynamics))
    model, policy = name.rsplit("-", 1)
    case = test_controller.case(model)
    return bridge.controller(case.task, filtered(case.policies[policy], case.dynamics))


@functools.cache
def cancelling() -> GaussianProcess:
    """Of many points and little noise: large weights and a large precision, which cancel."""
    x = np.random.default_rng(7).uniform(-1.0, 1.0, size=(60, 3))
    inputs = np.column_stack([x, np.sin(x[:, 1]), np.cos(x[:, 1])])
    targets = np.column_stack([0.9 * x[:, 0] + np.sin(2 * x[:, 1]), 0.75 * x[:, 1] - np.tanh(2 * x[:, 2])])
    made: GaussianProcess = eqx.filter_jit(condition)(
        inputs, targets, systems.gp().length_scales, np.ones(2), np.full(2, 1e-5), systems.gp().slope
    )
    assert made.precision is not None and np.abs(made.precision).max() > 1e4
    return made


def compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed, so its warnings cannot be seen")
    return found


def written(agent: Controller, directory: Path, *, single: bool = False) -> Path:
    files = source(agent, "taken", single=single)
    (directory / "taken.c").write_text(files.code)
    (directory / "taken.h").write_text(files.header)
    return directory / "taken.c"


def compiled(code: Path, *options: str, by: str = "gcc", main: bool = True) -> Path:
    program = code.with_suffix(".test" if main else ".o")
    what = ["-Dtaken_MAIN", "-o", str(program), str(code), "-lm"] if main else ["-c", "-o", str(program), str(code)]
    done = subprocess.run([compiler(by), *STRICT, *options, *what], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, z: np.ndarray) -> np.ndarray:
    """Each row: the actions, of each sensor its surprise and whether it was rejected, the restarts."""
    text = "\n".join(" ".join(repr(float(value)) for value in row) for row in z)
    done = subprocess.run([str(program)], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return np.array([[float(word) for word in line.split()] for line in done.stdout.splitlines()])


def trouble(agent: Controller, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Observations with everything that may go wrong, and what the controller in NumPy makes of them."""
    agent.reset()
    random, sensors = np.random.default_rng(seed), len(agent.latest)
    noise = np.sqrt(agent.arrays.get("sensor_noise", np.full(sensors, 1e-2)))
    zs, rows = [], []
    for step in range(STEPS):
        z = agent.expected + noise * random.normal(size=sensors)
        chance = random.random()
        if chance < 0.15:
            z[random.integers(sensors)] = np.nan
        elif chance < 0.2:
            z[:] = np.nan
        elif chance < 0.3:
            z[random.integers(sensors)] += random.choice([-2.0, 2.0, 7.0, 1e3, 1e17, 1e99, math.inf])
        elif chance < 0.35 and zs:
            z = zs[-1].copy()
        elif chance < 0.4:
            z[-1] += 2 * np.pi
        if 25 <= step < 34:
            z[0] += 1.5 + 0.01 * step  # for so long that the belief gives up
        zs.append(z)
        u, health = agent.act(z), agent.health
        rows.append([*u, *np.column_stack([health.surprise, health.rejected]).ravel(), health.restarts])
    agent.reset()
    return np.array(zs), np.array(rows)


@pytest.mark.parametrize("name", CASES)
def test_acts_as_in_numpy(name: str, tmp_path: Path) -> None:
    """To 1e-9 along whole episodes with missing samples, spikes and restarts; with the sanitizers watching."""
    agent = controller(name)
    program = compiled(written(agent, tmp_path), *SANITIZED)
    restarts = 0
    for seed in range(3):
        z, expected = trouble(agent, seed)
        found = run(program, z)
        actions = len(agent.description.actions)
        assert np.abs(found[:, :actions] - expected[:, :actions]).max() < 1e-9
        assert np.allclose(found[:, actions:], expected[:, actions:], rtol=1e-6, atol=1e-9, equal_nan=True)
        restarts += expected[-1, -1]
    assert restarts > 0 or not name.startswith(("full", "uncertain")), "there should be restarts"


@pytest.mark.parametrize("by", ["gcc", "clang"])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", ["double-pendulum-rbf", "frame", "raw-frame"])
def test_compiles_without_a_warning(name: str, single: bool, by: str, tmp_path: Path) -> None:
    code = written(controller(name), tmp_path, single=single)
    for optimised in ("-O0", "-O3"):
        compiled(code, optimised, by=by)
        compiled(code, optimised, by=by, main=False)
    undefined = subprocess.run(["nm", "-u", str(code.with_suffix(".o"))], capture_output=True, text=True, check=True)
    suffix = "f" if single else ""
    needed = {line.split()[-1].partition("@")[0] for line in undefined.stdout.splitlines()}
    functions = {f"{each}{suffix}" for each in ("exp", "expm1", "log", "sqrt", "sin", "cos", "rint", "sincos")}
    assert needed <= functions | {"_GLOBAL_OFFSET_TABLE_", "memset", "memcpy", "__stack_chk_fail"}, needed


def test_single_precision_is_near_and_says_how_near(tmp_path: Path) -> None:
    compiler("gcc")
    agent = controller("full-rbf")
    z, expected = trouble(agent, 0)
    z = np.where(np.abs(z) < 1e30, z, np.nan)
    found = run(compiled(written(agent, tmp_path, single=True), *SANITIZED), z[:24])
    assert 1e-9 < np.abs(found[:, 0] - expected[:24, 0]).max() < 1e-2
    header = export.save_c(agent, tmp_path / "small.c", single=True)
    text = " ".join((tmp_path / "small.c").read_text().split())
    stated = re.search(r"torque \[Nm\] (\S+) on average, at most (\S+)\.", text)
    assert stated and 1e-9 < float(stated[1]) <= float(stated[2]) < 1e-3
    assert "typedef float small_real;" in header.read_text()
    agent.arrays["policy_weights"] = agent.arrays["policy_weights"] + 1e40
    with pytest.raises(ValueError, match="policy_weights has a number that float cannot hold"):
        source(agent, "small", single=True)


COUNTED = """
#include <stdio.h>
static long counted;
static double counted_exp(double x) { counted++; return exp(x); }
static double counted_expm1(double x) { counted++; return expm1(x); }
__attribute__((destructor)) static void say(void) { fprintf(stderr, "%ld", counted); }
#define EXP counted_exp
#define EXPM1 counted_expm1
"""


def test_the_stated_operations_are_those_made(tmp_path: Path) -> None:
    agent = controller("uncertain-linear")
    code = written(agent, tmp_path)
    counting = tmp_path / "counting.c"
    counting.write_text(code.read_text().replace("#define EXP exp\n#define EXPM1 expm1\n", COUNTED))
    done = subprocess.run([compiled(counting)], input="0.1 0.2\n0.2 0.1\n", capture_output=True, text=True, check=True)
    assert int(done.stderr) == 2 * cost(agent).exponentials
    assert f"{cost(agent).exponentials} calls of exp or expm1" in code.read_text()
    size = subprocess.run(["size", str(compiled(code, "-Os", main=False))], capture_output=True, text=True, check=True)
    text, data, bss = map(int, size.stdout.splitlines()[1].split()[:3])
    constants = 8 * cost(agent).constants
    assert data == 0 and bss == 0, "no memory but the caller's"
    assert 0.9 * constants < text < constants + 20_000


def test_the_command_writes_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run().save(tmp_path / "run")

    def command(*arguments: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(["export", str(tmp_path / "run"), *arguments])
        return int(end.value.code or 0)

    out = tmp_path / "my controller.c"
    assert command("--out", str(out)) == 0
    assert "bytes of C99" in capsys.readouterr().out
    assert "void my_controller_act(my_controller_t *c" in (tmp_path / "my controller.h").read_text()
    assert command("--out", str(out)) == 2 and "exists already" in capsys.readouterr().err
    assert command("--out", str(out), "--force") == 0
    assert command("--out", str(tmp_path / "spring"), "--float") == 2
    assert "--float is for C" in capsys.readouterr().err
    program = tmp_path / "program"
    options = [*STRICT, "-Dmy_controller_MAIN", str(out), "-o", str(program), "-lm"]
    subprocess.run([compiler("gcc"), *options], check=True)
    agent, z = small_run().controller, np.array([[0.1, 0.2], [np.nan, np.nan], [0.3, np.nan]])
    assert np.abs(run(program, z)[:, 0] - [agent.act(each)[0] for each in z]).max() < 1e-9
    timed = subprocess.run([program, "10"], input="0 0", capture_output=True, text=True, check=True)
    assert "seconds per step" in timed.stdout and os.path.exists(program)


def test_names_in_c_are_names() -> None:
    assert [identifier(name) for name in ("pendulum", "my-plant 2", "2nd", "", "größe")] == [
        "pendulum",
        "my_plant_2",
        "c_2nd",
        "c_",
        "gr__e",
    ]
