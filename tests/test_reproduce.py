"""The comparison from nothing, in miniature: its numbers mean what they say, and nothing is computed twice."""

import base64
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bayespilco import METHODS, LinearPolicy, RBFPolicy, tasks
from bayespilco.cli import main
from bayespilco.deploy.controller.format import parse
from bayespilco.experiments import paper, results
from bayespilco.experiments.cluster import Cluster
from bayespilco.experiments.comparison import (
    ABLATIONS,
    PARTS,
    Study,
    Taken,
    collect,
    data_file,
    part_file,
    read_outcome,
    read_taken,
)
from bayespilco.experiments.jobs import Ended, Job, Status, perform
from bayespilco.experiments.page import write_page
from bayespilco.experiments.reproduce import reproduce, seed_jobs

TINY = Study(
    "spring", 2, 6, collecting=4, collecting_points=6, evaluations=4, in_parts=1, executions=8, samples=10, direct=4
)


class Here:
    """A place in this process, which has compiled much of it already."""

    size = 1

    def start(self, job: Job) -> "Here":
        perform(job)
        return self

    def poll(self) -> Ended:
        return Ended()

    def stop(self) -> None: ...


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("study") / "spring"
    assert reproduce(TINY, directory, [3], Here(), ablations=0, command="bayespilco reproduce --seeds 1") == {}
    return directory


one_process = pytest.mark.xdist_group("study")


def read(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "results.json").read_text())


def without_seconds(found: dict[str, Any]) -> dict[str, Any]:
    timed = {"wall_s", "cpu_s", "seconds"}
    seeds = [{key: value for key, value in seed.items() if key not in timed} for seed in found["seeds"]]
    summary = {key: value for key, value in found["summary"].items() if key not in timed}
    return {**found, "seeds": seeds, "summary": summary}


@one_process
def test_the_numbers_are_those_of_the_executions(studied: Path) -> None:
    found = read(studied)
    assert (found["command"], found["study"]["task"]) == ("bayespilco reproduce --seeds 1", "spring")
    (seed,) = found["seeds"]
    assert seed["seed"] == 3 and set(seed["methods"]) == set(METHODS)
    for part in PARTS:
        outcome = read_outcome(TINY, studied / "seed-03", part)
        assert outcome.executed.shape == (len(part.methods), 8, 21)
        assert outcome.sampled.shape == (len(part.methods), 10, 21)
        for n, method in enumerate(part.methods):
            numbers = seed["methods"][method]
            assert numbers["executed"] == pytest.approx(float(outcome.executed[n].sum(axis=1).mean()), rel=1e-5)
            assert numbers["sampled"] == pytest.approx(float(outcome.sampled[n].sum(axis=1).mean()), rel=1e-5)
            assert numbers["predicted"] == pytest.approx(float(outcome.predicted.total_cost), rel=1e-5)
            assert numbers["gap"] == pytest.approx(numbers["executed"] - numbers["predicted"], abs=1e-4)
            assert ("rank_sum" in numbers) == (method != "bayes-filter")
    # Methods that predict alike have the same policy, and differ in how they execute it.
    pilco, deisenroth = (seed["methods"][method] for method in ("pilco", "deisenroth"))
    assert pilco["predicted"] == deisenroth["predicted"] and pilco["executed"] != deisenroth["executed"]
    # All start from the same state: its costs at step 0 are the same in every method.
    first = [np.asarray(read_outcome(TINY, studied / "seed-03", part).executed)[:, :, 0] for part in PARTS]
    assert all(np.array_equal(row, first[0][0]) for rows in first for row in rows)
    assert "ablations" not in seed and set(seed["seconds"]) == {"data", "model", *(part.name for part in PARTS)}
    parts = sum(seed["seconds"][name]["wall_s"] for name in ("data", "model", *(part.name for part in PARTS)))
    assert seed["wall_s"] == pytest.approx(parts, rel=0.01)  # one after the other
    assert seed["noise"]["true"] == [0.02, 0.1]
    assert found["summary"]["seeds"] == 1 and found["summary"]["methods"]["pilco"]["executed"]["mean_95"] is None


@one_process
def test_the_playground_of_a_study_has_the_four_methods(studied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["play", str(studied)])
    assert not end.value.code
    page = (studied / "playground.html").read_text(encoding="utf-8")
    setup = json.loads(re.search(r'id="setup">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    assert {each["label"]: each["sees"] for each in setup["choices"]} == {
        "bayes-filter": "filter",
        "deisenroth": "filter",
        "dallaire": "filter",
        "pilco": "raw",
    }
    pilco, deisenroth = (each["raw"] for each in setup["choices"] if each["label"] in ("pilco", "deisenroth"))
    one, other = (parse(base64.b64decode(each))[1] for each in (pilco, deisenroth))
    assert all(np.array_equal(one[name], other[name]) for name in one), "they share a policy"
    for arguments, sentence in ((["--seed", "4"], "finished seeds 3; given 4"), (["--episode", "1"], "is a study")):
        with pytest.raises(SystemExit):
            main(["play", str(studied), *arguments])
        assert sentence in capsys.readouterr().err


@one_process
def test_the_page_shows_all_of_it(studied: Path) -> None:
    for name in ("predicted.png", "executed.png", "promises.png", "seeds.png"):
        assert (studied / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in (studied / "results.md").read_text()
        assert f'src="{name}"' in (studied / "index.html").read_text()
    rows = (studied / "curves.csv").read_text().splitlines()
    assert len(rows) == 1 + len(METHODS) * 21
    text = (studied / "results.md").read_text()
    executed = read(studied)["seeds"][0]["methods"]["bayes-filter"]["executed"]
    assert f"/ **{executed:.1f}** |" in text and "<table>" in (studied / "index.html").read_text()


@one_process
def test_a_page_of_several_seeds_of_the_papers_task(studied: Path, tmp_path: Path) -> None:
    """With intervals, and the paper's numbers beside ours: made from the stored files alone."""
    found = read(studied)
    seeds = [json.loads(json.dumps(found["seeds"][0])) | {"seed": n} for n in range(3)]
    seeds[0]["ablations"] = {part.name: {m: seeds[0]["methods"][m] for m in part.methods} for part in ABLATIONS}
    for n, seed in enumerate(seeds):
        for method, numbers in seed["methods"].items():
            numbers["executed"] = paper.total("executed", method) + (n - 1) * (5 if method == "bayes-filter" else 1)
            numbers["gap"] = 3.0
        for key in ("learned", "true"):
            seed["noise"][key] = seed["noise"][key] * 2
    found |= {"seeds": seeds, "summary": results.summarise(seeds), "study": {**found["study"], "task": "cart-pole"}}
    (tmp_path / "results.json").write_text(json.dumps(found))
    head, *rows = (studied / "curves.csv").read_text().splitlines()
    again = [row.replace("3,", f"{n},", 1) for n in range(3) for row in rows]
    (tmp_path / "curves.csv").write_text("\n".join([head, *again]))
    write_page(tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert "| in the paper | 26.7 |  | 26.8 |" in text and "-81.7" in text
    assert "`bayes-filter` executes worse than the paper's 26.8 in 1 of 3 data sets (seeds 2)." in text
    assert "the prediction of `bayes-filter` is off by +3.00 in the median; the paper's was by +0.12." in text.lower()
    assert "26.8 (21.8 to 31.8)" in text
    pair = f"{seeds[0]['methods']['bayes-filter']['predicted']:.1f} / **21.8** |"
    assert f"| 0 | `bayes-filter` | {pair} {pair} {pair}" in text
    assert "is best of all in 3;" in text and "holds in 3." in text


@one_process
def test_what_is_finished_is_not_computed_again(studied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("this was finished")

    monkeypatch.setattr(Here, "start", never)
    before = read(studied)
    assert reproduce(TINY, studied, [3], Here(), ablations=0, command="bayespilco reproduce --seeds 1") == {}
    assert read(studied) == before
    with pytest.raises(ValueError, match=r"holds another study: there samples = 10; asked for samples = 9\. Choose"):
        reproduce(Study(**{**vars(TINY), "samples": 9}), studied, [3], Here())


@one_process
def test_an_interrupted_collection_goes_on(studied: Path, tmp_path: Path) -> None:
    """After the last episode that was saved, to the same end; the time of both counts."""
    directory = tmp_path / "seed-03"
    shutil.copytree(studied / "seed-03", directory)
    first, last = (directory / "data" / f"episode-0{n}.safetensors" for n in range(2))
    before, kept = last.read_bytes(), first.stat().st_mtime_ns
    last.unlink()
    data_file(directory).unlink()
    collect(TINY, 3, directory)
    assert last.read_bytes() == before and first.stat().st_mtime_ns == kept
    assert [one.wall_s > 0 for one in read_taken(directory)] == [True, True]


@one_process
@pytest.mark.filterwarnings("default")  # Dask's own, when a worker dies
def test_a_cluster_finds_the_same_though_its_worker_is_killed(studied: Path, tmp_path: Path) -> None:
    """Other processes, another order, a job begun twice: the same results to every digit that is written."""
    distributed = pytest.importorskip("distributed")
    directory = tmp_path / "spring"
    shutil.copytree(studied, directory)
    gone = [part_file(directory / "seed-03", part) for part in PARTS if part.name != "filtered"]
    for file in gone:
        file.unlink()
    kept = {file: file.stat().st_mtime_ns for file in (directory / "seed-03").rglob("*.safetensors")}
    killed: list[int] = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        Cluster(cluster.scheduler_address, directory) as there,
    ):

        def kill_once(status: Status) -> None:
            if len(status.running) == 2 and not killed and min(status.running.values()) > 1.0:
                killed.append(next(iter(there.client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        command = "bayespilco reproduce --seeds 1"
        assert reproduce(TINY, directory, [3], there, ablations=0, command=command, on_status=kill_once) == {}
    assert killed and all(file.exists() for file in gone)
    assert all(file.stat().st_mtime_ns == time for file, time in kept.items())
    assert without_seconds(read(directory)) == without_seconds(read(studied))
    assert (directory / "curves.csv").read_text() == (studied / "curves.csv").read_text()


@pytest.mark.slow
@one_process
def test_ablations_stand_beside_the_comparison(studied: Path, tmp_path: Path) -> None:
    directory = tmp_path / "spring"
    shutil.copytree(studied, directory)
    assert reproduce(TINY, directory, [3], Here()) == {}
    (seed,) = read(directory)["seeds"]
    assert seed["methods"] == read(studied)["seeds"][0]["methods"]
    assert set(seed["ablations"]) == {*(part.name for part in ABLATIONS), "direct-noise"}
    assert set(seed["seconds"]) == {"data", "model", "direct", *(part.name for part in (*PARTS, *ABLATIONS))}
    assert {m for part in ABLATIONS[1:] for m in seed["ablations"][part.name]} == set(METHODS)
    assert "update as printed" in (directory / "results.md").read_text()


def test_every_method_is_in_one_part_and_parts_wait_for_their_data() -> None:
    assert sorted(method for part in PARTS for method in part.methods) == sorted(METHODS)
    jobs = seed_jobs(TINY, 0, Path("study"), ablations=True)
    assert jobs[0].needs == () and all(jobs[0].result in job.needs for job in jobs[1:])
    direct = next(job for job in jobs if job.name.endswith("direct training"))
    assert sum(direct.result in job.needs for job in jobs) == len(PARTS)
    ours = next(job for job in jobs if job.name.endswith("evidence training"))
    assert sum(ours.result in job.needs for job in jobs) == len(PARTS) + len(ABLATIONS) - len(PARTS)
    assert len({job.result for job in jobs}) == len(jobs) == 3 + len(PARTS) + len(ABLATIONS)
    assert len(seed_jobs(TINY, 0, Path("study"), ablations=False)) == 2 + len(PARTS)


def test_success_is_to_be_at_the_goal_and_stay() -> None:
    task = tasks.cart_pole()
    costs = np.full((4, 61), 0.9)
    costs[1:, 45:] = 0.39  # just within 0.1 m, from 1.5 s on
    costs[2, 50] = 0.4
    costs[3, 44] = 0.0
    assert results.success(task, costs) == 0.5
    tip = np.array([0.0999, 0.1001])  # metres from the goal, sideways
    at, off = (float(task.cost(jnp.array([x, 0.0, 0.0, 0.0]))) for x in tip)
    assert at < results.AT_THE_GOAL < off


def test_the_band_covers_what_is_drawn_from_it() -> None:
    random = np.random.default_rng(0)
    covered = results.covered(random.uniform(size=(2000, 3)), random.uniform(size=(2000, 3)))
    assert covered == pytest.approx(0.9, abs=4.5 * np.sqrt(2 * 0.1 * 0.9 / 2000))
    assert results.covered(np.full((5, 3), 2.0), random.uniform(size=(20, 3))).max() == 0


def test_the_gain_is_the_slope_at_the_goal() -> None:
    task = tasks.cart_pole()
    assert np.asarray(results.goal(task)) == pytest.approx(0.0)
    policy = LinearPolicy(jnp.array([[1.0, 2.0, 3.0, -0.5, 7.0]]), jnp.array([-7.0]), task.policy_features, [10.0])
    # The squashing has slope 10 (9 + 3) / 8 at zero, the sine slope one.
    assert results.gain(task, policy) == pytest.approx(-0.5 * 15)
    spring = tasks.spring()
    assert np.asarray(results.goal(spring)) == pytest.approx([0.5, 0.0])
    assert isinstance(task.random_policy(jnp.array([0, 1], dtype=jnp.uint32)), RBFPolicy)


def test_time_that_overlaps_counts_once() -> None:
    parts = [Taken(10.0, 5.0, 5.0), Taken(12.0, 2.0, 2.0), Taken(14.0, 3.0, 3.0), Taken(100.0, 1.0, 1.0)]
    assert results.elapsed(parts) == pytest.approx(8.0)


def test_intervals_are_those_of_the_bootstrap() -> None:
    values = np.random.default_rng(1).normal(size=12)
    spread = results.spread(values)
    for name, statistic in (("mean", np.mean), ("median", np.median)):
        reference = stats.bootstrap((values,), statistic, method="percentile", n_resamples=20_000)
        limits = (reference.confidence_interval.low, reference.confidence_interval.high)
        assert spread[f"{name}_95"] == pytest.approx(limits, abs=0.05)
    assert results.spread([1.0])["mean_95"] is None


def test_the_papers_numbers_are_those_it_prints() -> None:
    totals = {method: (paper.total("predicted", method), paper.total("executed", method)) for method in METHODS}
    expected = {"pilco": (37.25, 39.24), "dallaire": (15.18, 55.77), "deisenroth": (37.25, 34.87)}
    expected["bayes-filter"] = (26.69, 26.80)
    assert totals == {method: pytest.approx(pair, abs=0.006) for method, pair in expected.items()}
    mean, std = paper.curve("executed", "bayes-filter")
    assert (mean[-1], std[-1]) == (pytest.approx(0.084, abs=5e-4), pytest.approx(0.212, abs=5e-4))
    assert tuple(sorted(METHODS, key=lambda method: paper.total("executed", method))) == paper.ORDER


def test_studies_are_checked() -> None:
    with pytest.raises(ValueError, match="Did you mean 'cart-pole'"):
        Study("cartpole")
    with pytest.raises(ValueError, match="executions must be at least 1; given 0"):
        Study(executions=0)
