"""The controller to take away acts as the library does, bears missing samples and bad files, and needs NumPy only."""

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayespilco
from bayespilco import Controller, Gaussian, Task, tasks
from bayespilco.cli import main
from bayespilco.control.policy import LinearPolicy, Policy
from bayespilco.core.gp import condition
from bayespilco.deploy.bridge import controller as controller_for
from bayespilco.deploy.controller import NO_SUM, signed
from bayespilco.execution import PolicyExecutor, filtered, unfiltered
from bayespilco.model.dynamics import Dynamics
from bayespilco.moved import MOVED
from bayespilco.tasks import Component
from tests import systems
from tests.small_run import small_run

STEPS = 60


@functools.cache
def task() -> Task:
    """The small system of `systems`, as a task."""
    spring = tasks.spring()
    return Task(
        name="angle",
        states=(Component("position", "m"), Component("angle", "rad")),
        actions=(Component("torque", "Nm"),),
        angles=(systems.ANGLE,),
        dt=spring.dt,
        steps=STEPS,
        plant=spring.plant,
        action_limits=[1.5],
        initial=systems.INITIAL,
        sensor_std=[0.15, 0.15],
        cost=systems.COST,
    )


class Case(NamedTuple):
    """What a controller is made of."""

    task: Task
    dynamics: Dynamics
    policies: dict[str, Policy]


@functools.cache
def case(name: str) -> Case:
    """The small system with a model of some kind; or the double pendulum, with two actions and two angles."""
    if name != "double-pendulum":
        return Case(task(), systems.dynamics(name), {kind: systems.policy(kind) for kind in ("rbf", "linear")})
    double = tasks.double_pendulum()
    features, limits = double.dynamics_features, np.asarray(double.action_limits)
    random = np.random.default_rng(4)
    x, u = np.asarray(double.initial.mean) + 0.5 * random.normal(size=(20, 4)), limits * random.uniform(-1, 1, (20, 2))
    inputs = jax.vmap(features)(jnp.asarray(np.column_stack([x, u])))
    # Different in every entry, so that none can be mistaken for another.
    targets = x + 0.1 * np.sin(x[:, [2, 3, 1, 0]]) + 0.1 * np.tanh(u) @ random.normal(size=(2, 4))
    scales = random.uniform(1.5, 3.0, size=(4, features.size))
    gp = condition(inputs, targets, scales, np.full(4, 0.1), np.full(4, 1e-3), np.eye(4, features.size))
    matrix = 0.3 * random.normal(size=(2, double.policy_features.size))
    return Case(
        double,
        Dynamics(gp, features, np.asarray(double.sensor_std) ** 2, np.full(4, 0.05**2)),
        {
            "rbf": double.random_policy(jax.random.key(5)),
            "linear": LinearPolicy(matrix, [0.1, -0.2], double.policy_features, limits),
        },
    )


def actions_of_the_library(executor: PolicyExecutor, initial: Gaussian, observations: np.ndarray) -> np.ndarray:
    @eqx.filter_jit
    def run(executor: PolicyExecutor, z: jax.Array) -> jax.Array:
        def step(carry: object, now: tuple[jax.Array, jax.Array]) -> tuple[object, jax.Array]:
            return executor.step(carry, now[0], now[1], jax.random.key(0))

        return jax.lax.scan(step, executor.start(initial), (z, jnp.arange(len(z))))[1]

    return np.asarray(run(executor, jnp.asarray(observations)))


def wander(missing: float, states: int = 2) -> np.ndarray:
    """Observations that wander about, of which some entries and some whole samples are missing."""
    random = np.random.default_rng(3)
    z = 0.15 * np.cumsum(random.normal(size=(STEPS, states)), axis=0) + 0.15 * random.normal(size=(STEPS, states))
    z[random.random(z.shape) < missing] = np.nan
    z[random.random(STEPS) < missing] = np.nan
    return z


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        *((name, filtered) for name in ("full", "vfe", "uncertain", "double-pendulum")),
        *((name, unfiltered) for name in ("full", "double-pendulum")),
    ],
)
@pytest.mark.parametrize("policy", ["rbf", "linear"])
def test_acts_as_the_library_does(
    policy: str, name: str, make: Callable[..., PolicyExecutor], missing: float, tmp_path: Path
) -> None:
    """To 1e-9 along a whole episode; also when read back from a file."""
    task, dynamics, policies = case(name)
    executor = make(policies[policy], dynamics)
    z = np.asarray(task.initial.mean) + wander(missing, len(task.states))
    expected = actions_of_the_library(executor, task.initial, z)
    assert (np.ptp(expected, axis=0) > 0.1).all(), "the actions should differ"
    controller = controller_for(task, executor, gate=0.0)  # these observations are not those of the model
    (tmp_path / "file").write_bytes(controller.to_bytes())
    for each in (controller, controller, Controller.load(tmp_path / "file")):  # a second episode starts as the first
        each.reset()
        assert np.abs(np.array([each.act(sample) for sample in z]) - expected).max() < 1e-9
    assert controller.steps == STEPS and controller.restarts == 0
    assert 0 < controller.last_seconds <= controller.worst_seconds <= controller.total_seconds < 10


def test_missing_entries_are_left_out_of_the_update() -> None:
    """An entry that is missing is one whose sensor has infinite noise: the limit of a very noisy one."""
    dynamics, policy = systems.dynamics(), systems.policy()
    noisy = eqx.tree_at(lambda d: d.sensors.noise, dynamics, jnp.array([0.15**2, 1e12]))
    one = controller_for(task(), filtered(policy, dynamics))
    other = controller_for(task(), filtered(policy, noisy))
    assert np.allclose(one.act([0.5, np.nan]), other.act([0.5, 0.7]), atol=1e-9)
    assert np.allclose(one.mean, other.mean, atol=1e-9) and np.allclose(one.cov, other.cov, atol=1e-9)
    # Without any observation the belief is only predicted, and becomes less certain.
    before = one.cov
    assert (np.diag(controller_for(task(), filtered(policy, dynamics)).cov) > 0).all()
    one.act([np.nan, np.nan])
    seen = controller_for(task(), filtered(policy, dynamics))
    seen.act([0.5, np.nan])
    seen.act([0.5, 0.5])
    assert (np.diag(one.cov) > np.diag(seen.cov)).all() and np.isfinite(before).all()


def test_a_belief_that_ran_away_starts_anew() -> None:
    controller = controller_for(task(), filtered(systems.policy(), systems.dynamics()))
    fresh = controller.act([0.3, 0.4])
    controller.reset()
    controller.cov[0, 0] = 1e300
    for z in ([0.3, 0.4], [1e99, 0.0], [1e300, -np.inf]):
        assert np.abs(controller.act(z)) <= 1.5
    assert controller.restarts == 1
    controller.reset()
    assert controller.act([0.3, 0.4]) == fresh and controller.restarts == 0
    with pytest.raises(ValueError, match=r"2 entries \(position \[m\], angle \[rad\]\).*given shape \(3,\)"):
        controller.act([1.0, 2.0, 3.0])


IN_A_PROCESS = """
import sys
from bayespilco.deploy.controller import Controller
import bayespilco.controller, bayespilco.export, bayespilco.logs, bayespilco.plants
controller = Controller.load(sys.argv[1])
print([float(controller.act(z)[0]).hex() for z in ([0.1, 0.2], [float("nan")] * 2, [0.3, float("nan")])])
heavy = sorted({name.split(".")[0] for name in sys.modules} & {"jax", "jaxlib", "equinox", "scipy", "safetensors"})
print(heavy)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    small_run().save(tmp_path / "run")
    return tmp_path / "run"


def test_export_writes_a_file_that_numpy_alone_can_run(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(["export", str(directory), *arguments])
        return int(end.value.code or 0)

    file = tmp_path / "spring.controller"
    assert command("--out", str(file), "--episode", "0") == 0
    assert "a step takes" in capsys.readouterr().out
    first = file.read_bytes()
    assert command("--out", str(file)) == 2
    assert "exists already" in capsys.readouterr().err
    assert command("--out", str(file), "--force") == 0
    assert file.read_bytes() != first
    assert command("--out", str(tmp_path / "other"), "--episode", "2") == 2
    assert "episodes 0 to 1; given 2" in capsys.readouterr().err
    assert command("--out", str(tmp_path / "nowhere" / "file")) == 2
    assert "Cannot write" in capsys.readouterr().err

    library = small_run().controller
    expected = [float(library.act(z)[0]).hex() for z in ([0.1, 0.2], [np.nan] * 2, [0.3, np.nan])]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_A_PROCESS, str(file)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{expected}\n[]\n", done.stderr


def test_the_step_time_is_measured_by_a_command(tmp_path: Path) -> None:
    def command(file: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "bayespilco.deploy.controller", str(file)],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
        )

    file = tmp_path / "angle.controller"
    file.write_bytes(controller_for(task(), filtered(systems.policy(), systems.dynamics()), "bayes-filter").to_bytes())
    said = command(file).stdout
    times = re.fullmatch(
        r"angle, bayes-filter: a step takes ([\d.]+) ms here \(99 of 100 at most ([\d.]+) ms, the longest of 1000 "
        r"([\d.]+) ms\), of a period of 200 ms\.\n",
        said,
    )
    assert times is not None, said
    mean, most, worst = map(float, times.groups())
    assert 0 < mean < 100 and 0 < most <= worst
    file.write_bytes(file.read_bytes()[:-1])
    done = command(file)
    assert done.returncode == 2 and done.stderr.startswith("bayespilco: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["typer", "jax"])
def test_the_command_says_what_is_missing(missing: str, tmp_path: Path) -> None:
    """As on a machine with NumPy only."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{missing!r}] = None\n")
    command = ["-m", "bayespilco", "learn", "spring", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": f"{Path(__file__).parents[1]}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"bayespilco: the command needs {missing}, which is not installed")
    assert "python -m bayespilco.controller FILE" in done.stderr
    entry = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]
    assert entry == {"bayespilco": "bayespilco.__main__:main"}


def test_the_file_is_in_the_safetensors_format(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    controller = controller_for(task(), filtered(systems.policy(), systems.dynamics()), "bayes-filter")
    file = tmp_path / "controller"
    file.write_bytes(controller.to_bytes())
    loaded = Controller.load(file)
    assert loaded.description == controller.description
    assert loaded.description.states == ("position [m]", "angle [rad]") and loaded.description.dt == 0.2
    for name, array in load_file(file).items():
        assert np.array_equal(array, controller.arrays[name]) and np.array_equal(array, loaded.arrays[name])


def mutate(content: bytes, random: np.random.Generator) -> bytes:
    """One way to damage a file: flipped bits, foreign bytes, parts cut, doubled or moved, or numbers made extreme."""
    data = bytearray(content)
    header = 8 + int.from_bytes(content[:8], "little")
    kind = random.integers(12)
    where = int(random.integers(header if random.random() < 0.5 else len(data)))
    if kind == 0:
        data[where] ^= 1 << int(random.integers(8))
    elif kind == 1:
        for _ in range(int(random.integers(1, 20))):
            data[int(random.integers(len(data)))] = int(random.integers(256))
    elif kind == 2:
        del data[where:]
    elif kind == 3:
        data[where:where] = random.bytes(int(random.integers(1, 50)))
    elif kind == 4:
        del data[where : where + int(random.integers(1, 50))]
    elif kind == 5:
        other = int(random.integers(len(data)))
        data[where : where + 8] = data[other : other + 8]
    elif kind == 6:  # an extreme number in a number's place
        extreme = random.choice([np.nan, np.inf, -np.inf, 0.0, -1.0, 5e-324, 1e-200, 1e99, -1e99, 1e200, 1e308])
        place = header + 8 * int(random.integers((len(data) - header) // 8))
        data[place : place + 8] = np.float64(extreme).tobytes()
    elif kind == 7:  # another digit or bracket in the header
        places = [i for i in range(8, header) if chr(data[i]) in '0123456789[]{}",:']
        data[random.choice(places)] = ord(random.choice(list('0123456789[]{}",:-eN')))
    elif kind > 8:  # a whole array scaled, shifted or shuffled: it may stay plausible to every check
        entries = json.loads(content[8:header])
        begin, end = entries[random.choice([name for name in entries if name != "__metadata__"])]["data_offsets"]
        array = np.frombuffer(content[header + begin : header + end], dtype="<f8")
        with np.errstate(all="ignore"):
            array = array * 10.0 ** random.uniform(-200, 200) if kind < 11 else random.permutation(array - 1.0)
        data[header + begin : header + end] = array.tobytes()
    else:  # a header that lies about its own length, or is something else altogether
        text = random.choice(["[" * 20000, "null", "{}", '{"__metadata__":null}', "1" * 5000, '"x"', '{"a":' * 9000])
        data[:header] = len(text).to_bytes(8, "little") + text.encode()
        if random.random() < 0.5:
            data[:8] = random.bytes(8)
    return bytes(data)


def unsigned(content: bytes) -> bytes:
    """A file with zeros in place of its check sum."""
    return re.sub(rb'(?<="sha256":")[0-9a-f]{64}', NO_SUM.encode(), content, count=1)


def fuzz(contents: list[bytes], count: int, directory: Path) -> dict[str, int]:
    """Load damaged files, and as many forged ones, whose check sum is that of the damaged content.

    A damaged file is refused with a sentence that names it. So is a forged one, or it acts with finite actions within
    limits.
    """
    random = np.random.default_rng(0)
    file = directory / "damaged.controller"
    tally = {"damaged, refused": 0, "forged, refused": 0, "forged, loaded": 0}
    for number in range(count):
        whole, forge = contents[number // 2 % len(contents)], number % 2 == 1
        while (content := signed(mutate(unsigned(whole), random)) if forge else mutate(whole, random)) == whole:
            pass  # some mutations change nothing
        file.write_bytes(content)
        try:
            controller = Controller.load(file)
        except ValueError as error:
            assert "damaged.controller" in str(error)
            tally["forged, refused" if forge else "damaged, refused"] += 1
            continue
        assert forge, "the check sum tells"
        tally["forged, loaded"] += 1
        for z in random.normal(size=(4, len(controller.mean))) * [[1.0], [np.nan], [1e3], [1e150]]:
            action = controller.act(z)
            assert ((controller.low <= action) & (action <= controller.high)).all()
    return tally


@pytest.mark.parametrize("count", [700, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_damaged_files_are_refused_or_harmless(count: int, tmp_path: Path) -> None:
    controllers = [
        controller_for(task(), filtered(systems.policy(), systems.dynamics("uncertain")), "bayes-filter"),
        controller_for(task(), unfiltered(systems.policy("linear"), systems.dynamics()), "pilco"),
        small_run().controller,
    ]
    tally = fuzz([controller.to_bytes() for controller in controllers], count, tmp_path)
    print(tally)
    assert tally["damaged, refused"] == count // 2, tally
    assert min(tally["forged, refused"], tally["forged, loaded"]) > count / 20, tally


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"limits": np.array([-1.0])}, "limits has a number"),
        ({"sensor_noise": np.array([0.1, 0.0])}, "sensor_noise has a number"),
        ({"weights": np.full((2, 15), np.nan)}, "weights has a number"),
        ({"initial_cov": np.array([[1.0, 0.5], [0.0, 1.0]])}, "initial_cov is not symmetric"),
        ({"initial_cov": np.array([[1.0, 2.0], [2.0, 1.0]])}, "negative eigenvalue"),
        ({"offset": np.zeros(3)}, "offset has 3 outputs, not 2"),
        ({"offset": np.zeros((2, 1))}, "offset has 2 axes"),
        ({"slope": None}, "slope"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, np.ndarray | None], sentence: str) -> None:
    controller = controller_for(task(), filtered(systems.policy(), systems.dynamics()))
    arrays = {name: array for name, array in (controller.arrays | change).items() if array is not None}
    with pytest.raises(ValueError, match=sentence):
        Controller(controller.description, arrays)


def test_a_file_that_is_not_there_or_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing cannot be read: No such file"):
        Controller.load(tmp_path / "nothing")
    content = small_run().controller.to_bytes().replace(b"controller 5", b"controller 9")
    (tmp_path / "newer").write_bytes(content)
    with pytest.raises(ValueError, match=r"newer is not a controller.*format is not 'bayespilco controller 5'"):
        Controller.load(tmp_path / "newer")
    content = small_run().controller.to_bytes()
    (tmp_path / "without").write_bytes(content.replace(b"sha256", b"sha999"))
    with pytest.raises(ValueError, match=r"without is not a controller.*: it has no check sum"):
        Controller.load(tmp_path / "without")
    (tmp_path / "changed").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"changed is not a controller.*: its check sum is not that of its content"):
        Controller.load(tmp_path / "changed")


def test_lazy_names_are_those_that_editors_see() -> None:
    import ast

    tree = ast.parse(Path(bayespilco.__file__).read_text())
    shown = {
        (f"{node.module}.{alias.name}", alias.asname or alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    offered = {(f"bayespilco.{home}.{name}", name) for home, names in bayespilco._HOMES.items() for name in names}
    modules = {(f"bayespilco.{MOVED.get(name, name)}", name) for name in bayespilco._MODULES}
    assert shown == offered | modules
    for _, name in shown:
        assert name in dir(bayespilco) and getattr(bayespilco, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lern'"):
        bayespilco.lern  # noqa: B018
