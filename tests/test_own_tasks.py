"""Tasks of one's own: loaded from a file, checked before they are used, kept without their code."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Episode, Gaussian, Record, Run, SaturatingCost, Settings, Task, learn, resume, runs, tasks
from bayespilco.cli import main
from bayespilco.deploy.controller import Controller
from bayespilco.execution import RandomActions, execute_many
from bayespilco.experiments.comparison import Study, find_study_task
from bayespilco.experiments.reproduce import claim
from bayespilco.runs import plain
from bayespilco.runs.own_tasks import find_task, load_task
from bayespilco.tasks.checking import check_episode, check_plant
from bayespilco.tasks.task import hold
from tests.small_run import assert_same, small_run

FILE = """
import dataclasses
from bayespilco import tasks

def spring():
    return dataclasses.replace(tasks.spring(), name="my spring", pose=None)

made = spring()
number = 3

def with_argument(stiffness):
    return spring()

def wrong():
    return {"name": "spring"}

def broken():
    return 1 / 0

def bad_task():
    return dataclasses.replace(tasks.spring(), steps=0)
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In a directory of its own, with a file of tasks; and no module or path is left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESPILCO_NO_CACHE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.path", list(sys.path))
    Path("mine.py").write_text(FILE)
    yield
    sys.modules.pop("mine", None)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning that takes no time, and no pictures."""

    def learn_episode(_: Task, settings: Settings, records: Sequence[Record], *__: object) -> Record:
        if settings.seed == 99 and len(records) == 1:
            raise KeyboardInterrupt
        return small_run(4).records[len(records)]

    monkeypatch.setattr("bayespilco.algorithm.learn_episode", learn_episode)
    monkeypatch.setattr("bayespilco.report.save_figures", lambda *_: [])
    monkeypatch.setattr("bayespilco.report.page", lambda *_: "")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_a_task_is_a_task_or_a_function_in_a_file() -> None:
    for name in ("spring", "made"):
        found = find_task(f"mine.py:{name}")
        assert found.task.name == "my spring" and found.source is not None
        assert found.source.file == f"mine.py:{name}" and len(found.source.sha256) == 64
    assert find_task("spring").source is None
    first = find_task("mine.py:spring").source
    Path("mine.py").write_text(FILE + "# changed\n")
    assert find_task("mine.py:spring").source != first
    Path("helper.py").write_text("DT = 0.2\n")
    Path("mine.py").write_text("from helper import DT\n" + FILE)
    assert find_task("mine.py:spring").task.dt == 0.2, "a file finds those beside it"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("mine.py:sprnig", r"Unknown task in mine.py: 'sprnig'; there are: spring, made.*Did you mean 'spring'\?"),
        ("mine.py", r"Which task of mine.py\? Give its name as well, such as mine.py:spring\."),
        ("no.py:task", r"There is no file no.py: give a task as file.py:name"),
        ("mine.py:number", "mine.py:number must be a Task, or a function that returns one; it gives int"),
        ("mine.py:wrong", "mine.py:wrong must be a Task, .*it gives dict"),
        ("mine.py:with_argument", "must be a function without arguments; it needs stiffness"),
        ("mine.py:broken", r"mine.py:broken fails \(line 18 of mine.py: `return 1 / 0`\): ZeroDivisionError: division"),
        ("mine.py:bad_task", r"bad_task fails \(line 21 of mine.py: .*Task 'spring': steps must be at least 1"),
    ],
)
def test_what_is_no_task_is_said(given: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_task(given)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1\nx = undefined\n", r"bad.py cannot be imported \(line 2 of bad.py: `x = undefined`\): NameError: name"),
        ("x = (1,\ny = 2\n", r"bad.py cannot be imported \(line 1 of bad.py\): SyntaxError"),
        ("import no_such_module\n", r"\(line 1 of bad.py: .*ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)\n", "bad.py ends the program when it is imported"),
        ("", "bad.py has no 'task', nor any other Task"),
    ],
)
def test_a_file_that_cannot_be_imported_names_its_line(text: str, sentence: str) -> None:
    Path("bad.py").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load_task("bad.py:task")


def test_a_file_may_be_called_like_a_module_that_there_is() -> None:
    import queue

    Path("queue.py").write_text(FILE)
    assert find_task("queue.py:spring").task.name == "my spring"
    assert sys.modules["queue"] is queue


def with_plant(plant: Callable[..., object]) -> Task:
    return dataclasses.replace(tasks.spring(), plant=plant)


def numpy_call(x, u):  # type: ignore[no-untyped-def]
    return np.sin(np.asarray(x)) + u


def python_if(x, u):  # type: ignore[no-untyped-def]
    return x if x[0] > 0 else x + u


def python_float(x, u):  # type: ignore[no-untyped-def]
    return jnp.stack([float(x[0]), u[0]])


def index(x, u):  # type: ignore[no-untyped-def]
    return jnp.stack([[1.0, 2.0][x[0].astype(int)], u[0]])


def short(x, u):  # type: ignore[no-untyped-def]
    return x[:1] + u


def not_a_number(x, u):  # type: ignore[no-untyped-def]
    return jnp.stack([x[0], jnp.sqrt(x[1] - 1.0)])


def key_error(x, u):  # type: ignore[no-untyped-def]
    return {}["mass"] * x


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        (numpy_call, r"calls NumPy on a state or action\. Use jax\.numpy.*line \d+ of test_own_tasks\.py: `return np"),
        (python_if, r"Python `if`.*jnp\.where\(condition, a, b\).*test_own_tasks\.py: `return x if"),
        (python_float, r"into a Python number, with float\(\).*test_own_tasks\.py"),
        (index, r"uses a state or action as an index"),
        (short, r"must return one number per state, of shape \(2,\); it returns shape \(1,\)"),
        (not_a_number, r"gives nan for velocity \[m/s\] after one step from the mean of `initial`.*with zero action"),
        (key_error, r"The plant of task 'spring' fails \(line \d+ of test_own_tasks\.py: .*KeyError: 'mass'"),
        (
            sys.modules["bayespilco.tasks.spring"].derivative,
            r"looks like a derivative: .*hold\(f, 0\.2, substeps=10\).*plant\.dt",
        ),
        (lambda x, u: u * jnp.ones(2), "looks like a derivative"),
    ],
)
def test_mistakes_in_a_plant_are_explained(plant: Callable[..., object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_plant(with_plant(plant))
    with pytest.raises(ValueError, match=sentence):
        learn(with_plant(plant), out="run")
    assert not Path("run").exists()


def test_a_plant_that_is_right_is_let_through() -> None:
    for entry in tasks.TASKS.values():
        check_plant(entry())
    check_plant(with_plant(lambda x, u: jnp.stack([x[0] + 0.2 * x[1], x[1] + 0.2 * u[0]])))

    def shift(x, u):  # type: ignore[no-untyped-def]
        return jnp.stack([u[0], x[0]])  # no state depends on itself: it says that it is the next state

    shift.dt = 0.2  # type: ignore[attr-defined]
    check_plant(with_plant(shift))


def test_a_simulation_that_fails_is_named_with_state_and_step() -> None:
    states = np.zeros((4, 2))
    states[2:, 1] = np.nan
    episode = Episode(np.zeros((4, 2)), np.ones((3, 1)), states, np.zeros(4))
    with pytest.raises(ValueError, match=r"'spring' gave nan for velocity \[m/s\] at step 2\. The state before was \["):
        check_episode(tasks.spring(), episode)
    check_episode(tasks.spring(), small_run().records[0].episode)
    diverging = with_plant(hold(lambda x, u: jnp.stack([x[1], 1e4 * u[0] * (1 + x[1] ** 2)]), 0.2, substeps=2))
    with pytest.raises(ValueError, match=r"The simulation of task 'spring' gave .* at step \d+\..*more substeps"):
        learn(diverging, episodes=1, out="run")
    assert not Path("run").exists(), "a refused run leaves nothing behind"
    odd = dataclasses.replace(small_run(), task=diverging)
    with pytest.warns(UserWarning, match=r"at step \d+ of execution \d.*count as the worst"):
        odd.evaluate(executions=2)


def test_a_task_comes_back_to_the_bit() -> None:
    random = np.random.default_rng(0)
    odd = random.normal(size=2) * 10.0 ** random.integers(-300, 300, 2)
    for task in (
        *(entry() for entry in tasks.TASKS.values()),
        dataclasses.replace(tasks.cart_pole(), sensor_std=np.abs(np.concatenate([odd, [5e-324, 0.1 + 0.2]]))),
    ):
        stored = plain.read_task(plain.task_text(task))
        assert_same(stored.task, task)
        assert stored.source is None


def test_plain_values_come_back_as_they_were() -> None:
    values = (
        None,
        True,
        3,
        -0.0,
        float("inf"),
        "words",
        (1, (2.5, "x"), ()),
        [1, 2],
        {"a": (1, 2), 3: None},
        jnp.array([[1.0, jnp.nan], [-jnp.inf, -0.0]]),
        np.arange(3),
        Gaussian([1 / 3], [[2.0]]),
    )
    for value in values:
        through = json.loads(json.dumps(plain.to_plain(value), allow_nan=False))
        assert repr(plain.from_plain(through)) == repr(value)
    assert plain.from_plain(plain.to_plain(np.float32(0.5))) == 0.5


def test_only_classes_of_the_table_are_made() -> None:
    assert {"Task", "Component", "Gaussian", "AngleFeatures", "SaturatingCost"} <= set(plain.known_classes())
    with pytest.raises(ValueError, match="Unknown class 'Popen'"):
        plain.from_plain({"class": "Popen", "fields": {}})
    with pytest.raises(plain.LeftOut):
        plain.to_plain(Path())


class OwnCost(SaturatingCost):
    pass


def test_what_a_file_cannot_hold_is_asked_for() -> None:
    task = tasks.spring()
    object.__setattr__(task, "cost", OwnCost(task.cost.features, task.cost.target, task.cost.weight))
    with pytest.raises(
        plain.LeftOut, match=r"cost of the task 'spring' are of classes of its own: give the task again"
    ):
        plain.read_task(plain.task_text(task))


def test_a_run_needs_no_code_but_to_execute(replayed: None) -> None:
    learn("mine.py:spring", episodes=2, out="run")
    Path("mine.py").unlink()
    sys.modules.pop("mine")
    loaded = Run.load("run")
    assert_same(loaded.records, small_run(2).records)
    assert loaded.prediction().cost_mean.shape == (21,) and isinstance(loaded.controller, Controller)
    assert run("export", "run", "--out", "mine.controller") == 0
    with pytest.raises(ValueError, match=r"this run has no plant equation: give --task file.py:task"):
        loaded.evaluate(2)
    with pytest.raises(ValueError, match=r"'my spring', which is not built in: give --task mine.py:spring"):
        resume("run")


def test_an_interrupted_run_of_ones_own_task_is_resumed(replayed: None, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--episodes", "2", "--executions", "2", "--out", "run")
    assert run("learn", "mine.py:spring", "--seed", "99", *options) == 130
    said = capsys.readouterr().err
    assert said == (
        "Interrupted. 1 of 2 episodes are saved in run; go on with: bayespilco resume run --task mine.py:spring\n"
    )
    assert run("resume", "run") == 2
    assert "give --task mine.py:spring" in capsys.readouterr().err
    config = Path("run/config.toml").read_text()
    Path("run/config.toml").write_text(config.replace("seed = 99", "seed = 98"))
    Path("run/episode-00.safetensors").unlink()  # learned with the other seed
    Path("run/metrics.jsonl").unlink()
    assert run("resume", "run", "--task", "mine.py:spring") == 0
    assert capsys.readouterr().err == ""
    Path("mine.py").write_text(FILE + "# changed\n")
    assert run("resume", "run", "--task", "mine.py:spring", "--episodes", "3") == 0
    assert capsys.readouterr().err == (
        "bayespilco: mine.py:spring has changed since the run in run was begun (its check sum is another). What was "
        "learned until now is of the earlier one.\n"
    )
    assert len(Run.load("run").records) == 3
    assert run("learn", "run/config.toml", "--out", "again") == 2
    assert "Unknown task 'my spring'" in (said := capsys.readouterr().err) and "--task file.py:name" in said
    assert run("learn", "run/config.toml", "--task", "mine.py:spring", "--seed", "5", "--out", "again") == 0
    assert Run.load("again").settings == Settings(episodes=3, seed=5, structure=Run.load("run").settings.structure)


def test_a_run_of_a_built_in_task_is_complete(replayed: None) -> None:
    learn("spring", episodes=1, out="run")
    loaded = Run.load("run")
    assert_same(loaded.task, tasks.spring())
    mine = dataclasses.replace(tasks.spring(), plant=hold(lambda x, u: -x, 0.2, substeps=2))
    learn(mine, episodes=1, out="other")
    assert isinstance(Run.load("other").task.plant, plain.MissingPlant), "not what is built in under its name"


def test_a_run_without_the_file_of_its_task_is_read(replayed: None) -> None:
    """If the task is built in."""
    small_run(2).save("run")
    Path("run/task.json").unlink()
    assert_same(Run.load("run"), small_run(2))


def test_a_damaged_file_of_a_task_is_named(replayed: None) -> None:
    learn("mine.py:spring", episodes=1, out="run")
    whole = Path("run/task.json").read_text()
    for text in (
        "",
        "{}",
        "[1]",
        whole[:-30],
        whole.replace('"dt"', '"td"'),
        "[" * 100_000,
        whole.replace("0.2", '"x"'),
    ):
        Path("run/task.json").write_text(text)
        with pytest.raises(ValueError, match=r"run/task\.json"):
            Run.load("run")
    Path("run/task.json").write_text(whole)
    assert len(Run.load("run", "mine.py:spring").records) == 1


def test_a_study_of_ones_own_task(replayed: None, tmp_path: Path) -> None:
    study = Study("mine.py:spring", 2)
    assert study.make_task().name == "my spring"
    assert study.anywhere().task == f"{tmp_path / 'mine.py'}:spring"
    claim(study, Path("study"))
    stored = runs.directory.read_stored_task(Path("study"))
    assert stored is not None and stored.task.name == "my spring"
    Path("mine.py").write_text(FILE + "# changed\n")
    find_study_task.cache_clear()
    with pytest.warns(UserWarning, match="mine.py:spring has changed since the study in study was begun"):
        claim(study, Path("study"))
    with pytest.raises(ValueError, match="Did you mean 'spring'"):
        Study("mine.py:sprnig")


def test_a_real_plant_whose_noise_is_unknown_is_read_back() -> None:
    """Its run can be loaded, exported and drawn without it; only to run it takes the plant."""

    class Machine:
        def execute(self, task: Any, executor: Any, seed: int) -> Any: ...

    task = dataclasses.replace(tasks.spring(), name="mine", plant=Machine(), sensor_std=None)
    known = plain.read_task(plain.task_text(task)).task
    assert known.plant == plain.MissingPlant() and known.sensor_std is None
    with pytest.raises(ValueError, match="cannot be run: this run has no plant equation: give --task"):
        execute_many(known, RandomActions(known.action_limits), jax.random.split(jax.random.key(0), 1))
