"""A run comes back from its directory as it was, and what is not a run is refused with the name of the file."""

import dataclasses
import json
import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from bayespilco import Episode, Run, Settings, runs, tasks
from bayespilco.algorithm import Record
from bayespilco.deploy import files
from bayespilco.runs.arrays import read_module, read_provenance, write_module
from bayespilco.training.direct import DirectFit
from tests.small_run import STRUCTURE, assert_same, small_run

CONFIG = runs.Config("spring", small_run().settings)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A saved run."""
    small_run().save(tmp_path / "run")
    return tmp_path / "run"


def test_a_run_comes_back_bit_for_bit(directory: Path) -> None:
    assert_same(Run.load(directory), small_run())


def test_a_fit_by_the_direct_method_comes_back_too(tmp_path: Path) -> None:
    fit = DirectFit(small_run().dynamics, -3.25, 200, "converged")
    record = dataclasses.replace(small_run().records[0], fit=fit)
    write_module(tmp_path / "record", record)
    known = runs.directory.left_to_the_task(tasks.spring(), "direct", STRUCTURE)
    assert_same(read_module(tmp_path / "record", Record, known), record)


def test_executions_come_back_with_their_leading_axis(tmp_path: Path) -> None:
    assert runs.load_evaluation(tmp_path) is None
    one = small_run().records[0].episode
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf if leaf.dtype == bool else 2 * leaf]), one)
    with runs.RunDirectory.create(tmp_path, dataclasses.replace(CONFIG, executions=2), tasks.spring()) as directory:
        directory.keep(small_run().records)
        directory.keep_evaluation(many)
        directory.conclude(many)
    said = json.loads((tmp_path / "evaluation.json").read_text())
    totals = np.asarray(many.costs).sum(axis=1)
    assert said["executions"] == len(totals) and np.isclose(said["executed_cost"], totals.mean(), rtol=1e-12)
    assert_same(runs.load_evaluation(tmp_path), many)


def test_an_interrupted_run_loads_as_far_as_it_came(directory: Path) -> None:
    (directory / "episode-01.safetensors").unlink()
    assert len(Run.load(directory).records) == 1
    (directory / "episode-00.safetensors").unlink()
    with pytest.raises(ValueError, match="no finished episode"):
        Run.load(directory)


def test_config_and_metrics_are_text(directory: Path) -> None:
    assert runs.Config.read(directory / "config.toml") == CONFIG
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["episode"] for line in lines] == [0, 1]
    for line, record in zip(lines, small_run().records, strict=True):
        assert line["executed_cost"] == record.executed_cost
        assert line["predicted_cost"] == record.predicted_cost
        assert np.allclose(np.square(line["sensor_std"]), record.dynamics.sensor_noise)


class Two(eqx.Module):
    first: Array
    second: Array


def test_arrays_that_do_not_lie_in_order_are_stored_right(tmp_path: Path) -> None:
    # safetensors writes the buffer as it lies in memory; LAPACK's results and transposes lie column by column.
    matrix = np.arange(6.0).reshape(2, 3)
    factor = np.asfortranarray(np.linalg.cholesky(np.array([[4.0, 2.0], [2.0, 3.0]])))
    strided = np.arange(12.0).reshape(4, 3)[::2, ::2]
    for number, value in enumerate((matrix.T, factor, strided)):
        assert not value.flags.c_contiguous
        file = tmp_path / f"{number}.safetensors"
        write_module(file, Two(value, jnp.linalg.cholesky(jnp.eye(2) + 1.0).T))  # type: ignore[arg-type]
        back = read_module(file, Two, {})
        assert np.array_equal(back.first, value)
        assert np.array_equal(back.second, jnp.linalg.cholesky(jnp.eye(2) + 1.0).T)


DAMAGES = ["cut short", "empty", "text", "foreign", "other shape", "other root", "single", "missing", "not finite"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_file_is_refused_by_name(directory: Path, damage: str) -> None:
    file = directory / "episode-01.safetensors"
    content = file.read_bytes()
    record, context = small_run().records[1], read_provenance(file).context
    if damage == "cut short":
        file.write_bytes(content[:-100])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "text":
        file.write_text("not what you expect\n" * 100)
    elif damage == "foreign":
        from safetensors.numpy import save_file

        save_file({"weights": np.zeros(3)}, file)
    elif damage == "other shape":
        write_module(file, eqx.tree_at(lambda r: r.fit.dynamics.gp.weights, record, jnp.zeros((2, 3))), context)
    elif damage == "other root":
        write_module(file, eqx.tree_at(lambda r: r.fit.root, record, jnp.eye(3)), context)
    elif damage == "single":
        write_module(file, eqx.tree_at(lambda r: r.fit.root, record, jnp.eye(16, dtype=jnp.float32)), context)
    elif damage == "missing":
        write_module(file, record.episode, context)
    else:
        bad = eqx.tree_at(lambda r: r.fit.dynamics.gp.weights, record, jnp.full((2, 20), jnp.nan))
        write_module(file, bad, context)
    with pytest.raises(ValueError, match=r"episode-01\.safetensors"):
        Run.load(directory)


def test_a_file_without_a_check_sum_is_refused(directory: Path) -> None:
    """Everything else in it is right."""
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    file = directory / "episode-01.safetensors"
    with safe_open(file, "numpy") as opened:
        metadata = opened.metadata()
    save_file(load_file(file), file, metadata)
    Run.load(directory)  # in another order, but of the same content
    del metadata["sha256"]
    save_file(load_file(file), file, metadata)
    with pytest.raises(ValueError, match=r"episode-01\.safetensors has no check sum \(sha256\)"):
        Run.load(directory)


@pytest.mark.parametrize("count", [200, pytest.param(20000, marks=pytest.mark.slow)])
def test_whatever_happens_to_a_file_is_noticed(directory: Path, tmp_path: Path, count: int) -> None:
    """Bits flipped, bytes lost, doubled or overwritten, anywhere: no other run is ever loaded instead."""
    random, content = np.random.default_rng(0), (directory / "episode-01.safetensors").read_bytes()
    known = runs.directory.left_to_the_task(tasks.spring(), "evidence", STRUCTURE)
    file = tmp_path / "damaged.safetensors"
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(count):
        end = header if random.random() < 0.5 else len(content)  # half of them in the header
        at, size = int(random.integers(end)), int(random.integers(1, 20))
        damaged = [
            content[:at] + bytes([content[at] ^ 1 << int(random.integers(8))]) + content[at + 1 :],
            content[:at] + content[at + size :],
            content[:at],
            content[: at + size] + content[at:],
            content[:at] + random.bytes(size) + content[at + size :],
        ][random.integers(5)]
        if damaged.replace(b" ", b"") == content.replace(b" ", b""):
            continue  # padding
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged\.safetensors"):
            read_module(file, Record, known)


def test_a_record_of_another_task_is_refused(directory: Path) -> None:
    other = CONFIG.text().replace("spring", "cart-pole")
    (directory / "config.toml").write_text(other)
    with pytest.raises(ValueError, match=r"episode-00\.safetensors"):
        Run.load(directory)
    with pytest.raises(ValueError, match="of the task 'cart-pole'; given 'spring'"):
        Run.load(directory, task=tasks.spring())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed = 0", "seed = 1"),
        ("points = 50", "points = 51"),
        ('method = "bayes-filter"', 'method = "pilco"'),
        ("in_parts = true", "in_parts = false"),
    ],
)
def test_settings_that_were_changed_afterwards_are_noticed(directory: Path, old: str, new: str) -> None:
    (directory / "config.toml").write_text(CONFIG.text().replace(old, new))
    name, value = (part.strip('"') for part in new.split(" = "))
    with pytest.raises(ValueError, match=rf"episode-00.* is not of this run: .*{name} = .*here it is \W*{value}"):
        Run.load(directory)


def test_a_file_of_another_run_is_refused_by_name(directory: Path, tmp_path: Path) -> None:
    """Whole, of the same task and the same settings, and yet not what was learned here."""
    run = small_run(3)
    run.save(directory, force=True)
    first, second, third = (directory / f"episode-0{number}.safetensors" for number in range(3))
    contents = first.read_bytes(), second.read_bytes(), third.read_bytes()
    other = eqx.tree_at(lambda run: run.records[0].evaluations, run, 7)
    other.save(tmp_path / "other")
    for file in (first, second):
        file.write_bytes((tmp_path / "other" / file.name).read_bytes())
        with pytest.raises(ValueError, match=rf"{second.name} does not go on from the episodes before it"):
            Run.load(directory)
        first.write_bytes(contents[0])
        second.write_bytes(contents[1])
    # An episode deleted, and the next one renamed.
    third.replace(second)
    with pytest.raises(ValueError, match=rf"{second.name} does not go on from the episodes before it"):
        Run.load(directory)
    second.write_bytes(contents[1])
    assert_same(Run.load(directory).records, run.records[:2])


def test_a_task_that_is_not_the_one_that_was_learned_is_refused(directory: Path) -> None:
    slower = dataclasses.replace(tasks.spring(), dt=0.5, plant=lambda x, u: x)
    with pytest.raises(ValueError, match=r"episode-00.* is not of this run: .*dt = 0\.2, and here it is 0\.5"):
        Run.load(directory, task=slower)


def test_a_task_may_have_numbers_of_numpy(tmp_path: Path) -> None:
    """As an environment of Gymnasium may say them; a file's text has none."""
    task = tasks.spring()
    object.__setattr__(task, "steps", np.int64(task.steps))
    object.__setattr__(task, "dt", np.float32(0.25))
    run = eqx.tree_at(lambda run: run.records[0].evaluations, small_run(), 7)
    object.__setattr__(run, "task", task)
    run.save(tmp_path / "run")
    # Only the arrays: the rows that the model knows beforehand are those of the task, and so of its new `dt`.
    loaded = Run.load(tmp_path / "run", task)
    assert_same(jax.tree.leaves(loaded.records), jax.tree.leaves(run.records))
    assert loaded.dynamics.structure.L[0, 1] == 0.125


def test_executions_of_another_policy_are_refused(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, executions=2)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), small_run().records[0].episode)
    for name, run in (("a", small_run()), ("b", eqx.tree_at(lambda run: run.records[1].evaluations, small_run(), 7))):
        with runs.RunDirectory.create(tmp_path / name, config, run.task) as directory:
            directory.keep(run.records)
            directory.keep_evaluation(many)
    (tmp_path / "a" / "config.toml").write_text(dataclasses.replace(CONFIG, executions=5).text())
    with pytest.raises(ValueError, match=r"evaluation\.safetensors has 2 executions, and config\.toml asks for 5"):
        runs.load_evaluation(tmp_path / "a")
    (tmp_path / "a" / "config.toml").write_text(config.text())
    assert_same(runs.load_evaluation(tmp_path / "a"), many)
    foreign = (tmp_path / "b" / "evaluation.safetensors").read_bytes()
    (tmp_path / "a" / "evaluation.safetensors").write_bytes(foreign)
    with pytest.raises(ValueError, match=r"evaluation\.safetensors is of another policy.*Delete evaluation"):
        runs.load_evaluation(tmp_path / "a")


def test_nothing_is_pickled() -> None:
    """Neither by us nor, on our behalf, by NumPy. (Helpers get their work through a pipe of Python's own.)"""
    for file in Path(runs.__file__).parents[1].rglob("*.py"):
        if file.name not in ("workers.py", "cluster.py"):
            text = file.read_text()
            for word in ("import pickle", "allow_pickle", "np.load(", "np.save", "joblib", "import dill", "shelve"):
                assert word not in text, (file, word)


WRONG_TYPE = CONFIG.text().replace("seed = 0", 'seed = "0"')


@pytest.mark.parametrize("text", ["", "task = ", 'task = "spring"\n', "\0", WRONG_TYPE])
def test_a_bad_config_is_refused_by_name(directory: Path, text: str) -> None:
    (directory / "config.toml").write_text(text)
    with pytest.raises(ValueError, match=r"config\.toml"):
        Run.load(directory)


def test_an_unknown_entry_of_a_config_is_refused_with_a_suggestion(directory: Path) -> None:
    (directory / "config.toml").write_text(CONFIG.text() + "evalutions = 3\n")
    with pytest.raises(ValueError, match=r"config\.toml: 'evalutions'; there are.*Did you mean 'evaluations'\?"):
        Run.load(directory)
    (directory / "config.toml").write_text(CONFIG.text().replace('"bayes-filter"', '"bayes-filtre"'))
    with pytest.raises(ValueError, match=r"config\.toml: Unknown method 'bayes-filtre'; there are.*'bayes-filter'\?"):
        Run.load(directory)


def test_a_config_that_a_person_writes_may_leave_out_what_is_as_by_default(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('task = "spring"\nseed = 3\n')
    assert runs.Config.read(tmp_path / "config.toml", complete=False) == runs.Config("spring", Settings(seed=3))
    with pytest.raises(ValueError, match=r"config\.toml lacks method, episodes, "):
        runs.Config.read(tmp_path / "config.toml")


def test_a_run_of_another_version_says_so(directory: Path) -> None:
    (directory / "config.toml").write_text(dataclasses.replace(CONFIG, version="0.0.7").text())
    with pytest.warns(UserWarning, match=r"was begun by bayespilco 0\.0\.7"):
        assert_same(Run.load(directory).records, small_run().records)


def test_a_file_of_another_format_says_so(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayespilco.runs.arrays.FORMAT", "bayespilco 1")
    small_run().save(directory, force=True)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"episode-00\.safetensors .*not written by this version.*by 'bayespilco 1'"):
        Run.load(directory)


def test_a_missing_episode_is_named(directory: Path) -> None:
    (directory / "episode-00.safetensors").unlink()
    with pytest.raises(ValueError, match=r"episode-00\.safetensors is missing, though episode-01"):
        Run.load(directory)


def test_the_directory_of_a_run_is_written_by_one_process_at_a_time(directory: Path) -> None:
    with runs.RunDirectory.open(directory), pytest.raises(ValueError, match="Another process"):
        small_run().save(directory, force=True)
    small_run().save(directory, force=True)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not the directory of a run"):
        Run.load(tmp_path)


def test_force_replaces_a_run_and_nothing_else(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not empty"):
        small_run().save(directory)
    notes = directory / "notes.txt"
    notes.write_text("mine")
    small_run(1).save(directory, force=True)
    left = sorted(file.name for file in directory.iterdir())
    assert left == ["config.toml", "episode-00.safetensors", "metrics.jsonl", "notes.txt", "task.json"]

    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    with pytest.raises(ValueError, match="not a run"):
        small_run().save(tmp_path / "thesis", force=True)
    with pytest.raises(ValueError, match="is a file"):
        small_run().save(notes)


def test_a_failed_write_leaves_the_old_file(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (directory / "metrics.jsonl").read_bytes()

    def no_space(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        files.write(directory / "metrics.jsonl", b"new")
    assert (directory / "metrics.jsonl").read_bytes() == before
    assert not [file for file in directory.iterdir() if file.name.startswith(".")]


def test_optional_arrays_stay_absent(tmp_path: Path) -> None:
    episode = Episode(np.zeros((3, 2)), np.zeros((2, 1)))
    record = eqx.tree_at(lambda r: r.episode, small_run().records[0], episode)
    write_module(tmp_path / "record", record)
    known = runs.directory.left_to_the_task(tasks.spring(), "evidence", STRUCTURE)
    assert_same(read_module(tmp_path / "record", Record, known), record)


FOREIGN = {
    "config.toml": "[server]\nport = 80\n",
    "metrics.jsonl": '{"loss": 1.0}\n',
    "costs.png": "a picture",
    "evaluation.json": "{}",
    "episode-00.safetensors": "not ours",
}


def test_force_leaves_another_programs_files_alone(tmp_path: Path) -> None:
    for config in (FOREIGN["config.toml"], 'task = "spring"\n', "task = ", "\0"):
        contents = FOREIGN | {"config.toml": config}
        for name, text in contents.items():
            (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match="not a run of bayespilco: --force does not touch it"):
            small_run().save(tmp_path, force=True)
        assert {file.name: file.read_text() for file in tmp_path.iterdir()} == contents


def test_force_follows_no_links_and_deletes_only_what_a_run_wrote(directory: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "events.out.tfevents.1").write_text("theirs")
    (directory / "tensorboard").symlink_to(elsewhere)
    (directory / "episode-07.safetensors").write_text("theirs")
    (elsewhere / "picture").write_text("theirs")
    (directory / "costs.png").symlink_to(elsewhere / "picture")
    os.mkfifo(directory / "episode-08.safetensors")  # to be read, it would be waited for
    small_run(1).save(directory, force=True)
    (directory / "episode-08.safetensors").unlink()
    assert (elsewhere / "events.out.tfevents.1").read_text() == "theirs"
    assert (elsewhere / "picture").read_text() == "theirs" and (directory / "costs.png").is_symlink()
    assert (directory / "episode-07.safetensors").read_text() == "theirs"
    assert not (directory / "episode-01.safetensors").exists()
    # Before its first episode a run has no numbers and no pictures: such files are somebody else's.
    (tmp_path / "begun").mkdir()
    for name, text in (FOREIGN | {"config.toml": CONFIG.text()}).items():
        (tmp_path / "begun" / name).write_text(text)
    (tmp_path / "begun" / "episode-00.safetensors").unlink()
    with runs.RunDirectory.create(tmp_path / "begun", CONFIG, tasks.spring(), force=True):
        pass
    assert (tmp_path / "begun" / "costs.png").read_text() == "a picture"
    assert (tmp_path / "begun" / "metrics.jsonl").read_text() == FOREIGN["metrics.jsonl"]


def test_a_run_that_is_refused_before_its_first_episode_leaves_nothing(directory: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "new", tmp_path / "empty"):
        if path.name == "empty":
            path.mkdir()
        with (
            pytest.raises(ValueError, match="these data say nothing"),
            runs.RunDirectory.create(path, CONFIG, tasks.spring()),
        ):
            raise ValueError("these data say nothing")
        assert path.exists() == (path.name == "empty") and not (path.exists() and any(path.iterdir()))
    with (
        pytest.raises(OSError, match="unplugged"),
        runs.RunDirectory.create(tmp_path / "other", CONFIG, tasks.spring()),
    ):
        raise OSError("unplugged")
    assert (tmp_path / "other" / "config.toml").exists(), "this one can be resumed"


DEEP = "a = " + "[" * 5000 + "]" * 5000
HUGE = CONFIG.text().replace("seed = 0", f"seed = {'9' * 5000}")
LARGE = CONFIG.text().replace("points = 50", f"points = {10**30}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (DEEP, r"config\.toml cannot be read: .*nested|config\.toml"),
        (HUGE, r"config\.toml cannot be read: .*digits"),
        (LARGE, r"config\.toml: points must be at most 1000000; given 1000000000000000000000000000000"),
    ],
)
def test_a_config_that_is_deep_or_huge_is_refused_by_name(directory: Path, text: str, sentence: str) -> None:
    (directory / "config.toml").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        Run.load(directory)


def test_a_config_that_is_no_file_is_not_waited_for(directory: Path) -> None:
    (directory / "config.toml").unlink()
    os.mkfifo(directory / "config.toml")
    with pytest.raises(ValueError, match=r"config\.toml cannot be read: it is not a file"):
        Run.load(directory)


def test_a_setting_that_there_was_not_yet_is_as_it_was(directory: Path) -> None:
    """In a run of an earlier version; one of this version has them all."""
    lines = dataclasses.replace(CONFIG, version="0.0.7").text().splitlines(keepends=True)
    first = "".join(line for line in lines if not line.startswith(("structure", "selection", "objective")))
    (directory / "config.toml").write_text(first)
    read = runs.Config.read(directory / "config.toml").settings
    assert (read.structure, read.selection, read.objective) == ("free", "prediction", "expected-cost")
    (directory / "config.toml").write_text("".join(lines).replace("in_parts = true\n", ""))
    with pytest.warns(UserWarning, match=r"was begun by bayespilco 0\.0\.7"):
        assert Run.load(directory).settings == CONFIG.settings
    (directory / "config.toml").write_text(CONFIG.text().replace("in_parts = true\n", ""))
    with pytest.raises(ValueError, match=r"config\.toml lacks in_parts"):
        Run.load(directory)
