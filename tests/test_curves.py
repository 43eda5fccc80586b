"""Learning curves in miniature: runs as a user makes them, numbers that mean what they say, nothing computed twice."""

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

from bayespilco import METHODS, Run, Settings, execute_many, learn, tasks
from bayespilco.control.cost import effort
from bayespilco.execution import simulate_samples
from bayespilco.experiments import curve_results
from bayespilco.experiments.comparison import study_key
from bayespilco.experiments.curve_page import page, write_page
from bayespilco.experiments.curves import CurveStudy, claim, learn_curve, learning_curves, read_curves, write_results
from bayespilco.experiments.jobs import Local, Status
from bayespilco.model.posterior_samples import draw_many
from tests.small_run import assert_same
from tests.test_reproduce import Here

BUDGET = {"points": 6, "evaluations": 4}
TINY = CurveStudy("spring", settings=Settings(**BUDGET), executions=8, samples=10)
COMMAND = "bayespilco learning-curves --task spring"

one_process = pytest.mark.xdist_group("curves")


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one episode, which was then asked for a second one."""
    directory = tmp_path_factory.mktemp("curves") / "spring"
    for episodes in (1, 2):
        assert learning_curves(TINY, directory, [3], episodes=episodes, place=Here(), command=COMMAND) == {}
    return directory


def read(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return found


@one_process
def test_a_run_is_what_a_user_gets_who_learns(studied: Path) -> None:
    """Also one that was asked for more episodes later."""
    ours = Run.load(studied / "seed-03" / "bayes-filter" / "run")
    assert_same(ours.records, learn("spring", seed=3, episodes=2, **BUDGET).records)


@one_process
def test_the_numbers_are_those_of_the_policies(studied: Path) -> None:
    found = read(studied)
    run = Run.load(studied / "seed-03" / "bayes-filter" / "run")
    (curve,) = found["curves"]
    assert (curve["seed"], curve["method"], curve["complete"]) == (3, "bayes-filter", True)
    assert [entry["seconds"] for entry in curve["episodes"]] == [4, 8]
    for entry, record in zip(curve["episodes"], run.records, strict=True):
        executor = METHODS["bayes-filter"].executor(record.policy, record.dynamics)
        executions, plants, samples = (
            jax.random.split(study_key(3, purpose), count)
            for purpose, count in (("execute", 8), ("draw", 10), ("rehearse", 10))
        )
        executed = execute_many(run.task, executor, executions)
        sampled = simulate_samples(run.task, executor, draw_many(record.fit, plants), samples)
        totals, drawn = (np.asarray(each.costs).sum(axis=1) for each in (executed, sampled))
        assert entry["executed"] == pytest.approx(totals.mean(), rel=1e-4)
        assert entry["executed_error"] == pytest.approx(stats.sem(totals), rel=1e-3)
        assert entry["sampled"] == pytest.approx(drawn.mean(), rel=1e-4)
        assert entry["predicted"] == pytest.approx(record.predicted_cost, rel=1e-5)
        assert entry["bands"]["90"] == pytest.approx(np.quantile(drawn, (0.05, 0.95)), rel=1e-4)
        low, high = np.quantile(drawn, (0.25, 0.75))
        assert entry["coverage"]["50"] == np.mean((totals > low) & (totals < high))
        assert entry["success"] == np.mean((np.asarray(executed.costs)[:, -3:] < 1 - np.exp(-0.5)).all(axis=1))
        assert entry["reached"] == np.mean(np.asarray(executed.reached)[:, -1])
        assert entry["noise"]["learned"] == pytest.approx(np.sqrt(record.dynamics.sensor_noise), rel=1e-5)
        assert entry["noise"]["true"] == [0.02, 0.1]
        assert entry["wall_s"] > 0 and entry["cpu_s"] > 0
    first, last = curve["episodes"]
    assert first["next_cost"] == pytest.approx(run.records[1].executed_cost, rel=1e-5)
    low, high = first["bands"]["80"]
    assert first["next_covered"]["80"] == (low <= first["next_cost"] <= high)
    assert last["next_cost"] is None and last["next_covered"]["80"] is None
    assert curve["wall_s"] == pytest.approx(first["wall_s"] + last["wall_s"], rel=1e-4)


@one_process
def test_an_interrupted_run_goes_on(studied: Path, tmp_path: Path) -> None:
    """After the last episode that was saved, to the same end; also between an episode and its evaluation."""
    directory = tmp_path / "seed-03" / "bayes-filter"
    shutil.copytree(studied / "seed-03" / "bayes-filter", directory)
    first, last = (directory / "run" / f"episode-0{n}.safetensors" for n in range(2))
    measured = [directory / f"after-0{n}.json" for n in range(2)]
    kept, before = first.stat().st_mtime_ns, [file.read_bytes() for file in (last, *measured)]
    last.unlink()
    for file in measured:
        file.unlink()
    learn_curve(TINY, 3, "bayes-filter", 2, directory)
    assert [file.read_bytes() for file in (last, *measured)] == before
    assert first.stat().st_mtime_ns == kept
    measured[1].unlink()
    learn_curve(TINY, 3, "bayes-filter", 1, directory)  # fewer were asked for than there are
    assert [file.read_bytes() for file in (last, *measured)] == before


@one_process
def test_what_is_finished_is_not_computed_again(studied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("this was finished")

    monkeypatch.setattr(Here, "start", never)
    before = read(studied)
    assert learning_curves(TINY, studied, [3], episodes=2, place=Here(), command=COMMAND) == {}
    assert read(studied) == before


@one_process
def test_a_directory_is_of_one_study(studied: Path) -> None:
    other = dataclasses.replace(TINY, noise=2.0, settings=dataclasses.replace(TINY.settings, points=7))
    sentence = r"holds another study: there noise = 1.0, points = 6; asked for noise = 2.0, points = 7\. Choose"
    with pytest.raises(ValueError, match=sentence):
        claim(other, studied)
    # Method, seed and episodes are those of each run; and what was not a setting yet was as by default.
    claim(dataclasses.replace(TINY, settings=Settings(method="pilco", seed=7, episodes=3, **BUDGET)), studied)
    file = studied / "study.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in stored.items() if key != "objective"}))
    claim(TINY, studied)
    file.write_text(json.dumps(stored))


@one_process
def test_the_page_shows_all_of_it(studied: Path) -> None:
    text, shown = ((studied / name).read_text() for name in ("results.md", "index.html"))
    for name in ("curves.png", "promises.png"):
        assert (studied / name).read_bytes().startswith(b"\x89PNG")
        assert f"({name})" in text and f'src="{name}"' in shown
    assert COMMAND in text and "<table>" in shown
    last = read(studied)["curves"][0]["episodes"][-1]
    assert f"| 3 | **{last['executed']:.1f}** ± {last['executed_error']:.1f} |" in text
    assert '21 is "never at the goal"' in text and "the sensor noise" not in text


def test_a_task_with_other_sensors_is_learned_as_such() -> None:
    study = CurveStudy("cart-pole", ("cart position", "pole angle"), delay=1, dropout=0.2, noise=2.0)
    task = study.find().task
    assert [sensor.name for sensor in task.sensed] == ["cart position", "pole angle"]
    assert np.asarray(task.sensor_std).tolist() == pytest.approx([0.06, 0.06], rel=1e-12)
    assert (task.action_delay, task.sensed[0].dropout) == (1, 0.2)
    assert study.entries()["sensors"] == ("cart position", "pole angle") and "seed" not in study.entries()


def test_what_cannot_be_learned_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    positions = CurveStudy("cart-pole", ("cart position", "pole angle"))
    with pytest.raises(ValueError, match="pilco feeds observations to the policy"):
        learning_curves(positions, tmp_path / "study", [0], methods=["bayes-filter", "pilco"], place=Here())
    with pytest.raises(ValueError, match="Did you mean 'pilco'"):
        learning_curves(TINY, tmp_path / "study", [0], methods=["pilko"], place=Here())
    with pytest.raises(ValueError, match="at least one seed and one method"):
        learning_curves(TINY, tmp_path / "study", [], place=Here())
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("executed", "first", "stays"),
    [
        ([60, 30, 20, 19], 6, 6),
        ([60, 20, 25, 22], 4, 8),  # 22 is at most 22
        ([20, 20, 20, 23], 2, None),
        ([60, 60, 60, 60], None, None),
        ([20, 19, 18, 17], 2, 2),
    ],
)
def test_seconds_until_it_works_and_keeps_working(
    executed: Sequence[float], first: float | None, stays: float | None
) -> None:
    assert curve_results.seconds_until([2.0, 4.0, 6.0, 8.0], [float(cost) for cost in executed], 22.0) == (first, stays)


def test_the_median_counts_those_that_never_work() -> None:
    assert curve_results.median_until([4.0, None, 6.0])["median"] == 6
    assert curve_results.median_until([4.0, None])["median"] is None  # half of them never
    assert curve_results.median_until([4.0])["median_95"] is None
    assert curve_results.median_until([])["median"] is None
    assert curve_results.median_until([4.0, 6.0, None])["median_95"] == [4, None]
    values = np.random.default_rng(1).normal(10, 2, 12).tolist()
    reference = stats.bootstrap((values,), np.median, method="percentile", n_resamples=20_000).confidence_interval
    assert curve_results.median_until(values)["median_95"] == pytest.approx((reference.low, reference.high), abs=0.2)


def made_up(seed: int, executed: Sequence[float], method: str = "bayes-filter") -> dict[str, Any]:
    """What would be measured by runs whose executions all cost 1 more or less than these."""
    executed = [float(cost) for cost in executed]
    entries = [
        {
            "episode": n,
            "seconds": 2.0 * (n + 1),
            "episode_cost": 60.0 if n == 0 else executed[n - 1] + 1,
            "predicted": mean - 0.5,
            "executed_totals": [mean - 1, mean + 1],
            "sampled_totals": np.linspace(mean - 0.9, mean + 2, 101).tolist(),
            "success": float(mean < 22),
            "reached": float(mean < 22),
            "noise": {"learned": [0.02 * (1 + seed / 10), 0.1], "true": [0.02, 0.1]},
            "taken": None if n == 1 and seed == 2 else {"wall_s": 10.0 + n, "cpu_s": 9.0},
        }
        for n, mean in enumerate(executed)
    ]
    return {"seed": seed, "method": method, "episodes": entries}


def test_the_summary_of_made_up_runs() -> None:
    limits = [26.8, 22.0]
    measured = [
        made_up(0, [60, 21, 20, 19, 18, 17]),
        made_up(1, [60, 30, 30, 21, 20, 18]),
        made_up(2, [60, 50, 40, 30, 30, 30]),
        made_up(3, [60, 30]),
    ]
    curves = [curve_results.curve_numbers(each, limits, 6) for each in measured]
    found = curve_results.summarise(curves, limits)["bayes-filter"]
    assert (found["seeds"], found["incomplete"]) == ([0, 1, 2], [3])
    assert [point["seeds"] for point in found["curve"]] == [4, 4, 3, 3, 3, 3]
    assert [point["executed"]["median"] for point in found["curve"]] == [60, 30, 30, 21, 20, 18]
    assert found["curve"][5]["executed"]["median_95"] == [17, 30]
    until = found["until"]["22"]
    assert (until["median"], until["kept_in"], until["of"], until["median_95"]) == (8, 2, 3, [4, None])
    assert found["failed"] == {"limit": 26.8, "seeds": [2], "share": pytest.approx(1 / 3)}
    # Of each policy's two executions one is within the bands, which begin 0.9 below the mean.
    assert found["coverage"]["settled"]["executions"]["95"] == 0.5
    assert found["coverage"]["settled"]["policies"] == 6 and found["coverage"]["settled"]["episodes"] == 3
    # The next episodes cost 1 more than the mean: within the 50 % band, which ends 1.3 above it.
    assert (found["coverage"]["early"]["next"]["50"], found["coverage"]["early"]["next"]["80"]) == (1.0, 1.0)
    assert found["noise_ratio"]["median"] == pytest.approx([1.1, 1.0])
    assert found["wall_s"]["median"] == 75 and curves[2]["wall_s"] is None
    shorter = curve_results.curve_numbers(measured[0], limits, 2)
    assert len(shorter["episodes"]) == 2 and shorter["complete"] and shorter["episodes"][1]["next_cost"] == 22


def test_bands_hold_the_share_they_name() -> None:
    sampled = np.random.default_rng(0).normal(size=20_000)
    for level in curve_results.LEVELS:
        ends = curve_results.band(sampled, level)
        assert np.mean(curve_results.inside(sampled, ends)) == pytest.approx(level / 100, abs=1e-3)
        assert ends == pytest.approx(stats.norm.interval(level / 100), abs=0.05)


def test_thresholds_of_any_task() -> None:
    assert curve_results.usual_thresholds(tasks.cart_pole(), []) == [26.8, 22.0, 20.0]
    assert curve_results.usual_thresholds(tasks.spring(), []) == [10.5, 8.4, 7.0]
    endless = dataclasses.replace(tasks.spring(), cost=effort([0], width=1.0))
    assert not np.isfinite(endless.cost.worst)
    assert curve_results.usual_thresholds(endless, [made_up(0, [3.0]), made_up(1, [3.0])]) == [30, 24, 20]


def test_a_page_of_two_methods_made_again_from_what_is_stored(tmp_path: Path) -> None:
    study = dataclasses.replace(TINY, noise=2.0, delay=1)
    claim(study, tmp_path)
    for curve in (made_up(0, [60, 21]), made_up(1, [60, 30]), made_up(0, [60, 50], "pilco"), made_up(1, [60], "pilco")):
        where = tmp_path / f"seed-0{curve['seed']}" / curve["method"]
        where.mkdir(parents=True)
        for entry in curve["episodes"]:
            (where / f"after-0{entry['episode']}.json").write_text(json.dumps(entry))
    assert [(curve["seed"], curve["method"]) for curve in read_curves(tmp_path)] == [
        (seed, method) for seed in (0, 1) for method in ("pilco", "bayes-filter")
    ]
    write_results(study, tmp_path, 2, [22.0], "bayespilco learning-curves")
    write_page(tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert "The task has actions 1 step late, 2 times the sensor noise." in text
    assert "| `bayes-filter` | 2 | never (4 s to never), 1 of 2 | 50% (seeds 1) |" in text
    assert "| `pilco` | 1 (+ 1 not finished) | never, 0 of 1 | 100% (seeds 0) |" in text
    assert "| 4 | 2 | 25.5 (21.0 to 30.0) | 21.0 to 30.0 | 25.0 |" in text
    found = read(tmp_path)
    assert page(found, study.find().task) == text


@pytest.mark.slow
@one_process
def test_a_killed_process_loses_one_episode_at_most(studied: Path, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_once(_: Status) -> None:
        if not killed and list(tmp_path.glob("study/seed-03/*/after-00.json")):
            (child,) = multiprocessing.active_children()
            killed.append(child.pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    place, directory = Local(1), tmp_path / "study"
    assert learning_curves(TINY, directory, [3], episodes=2, place=place, on_status=kill_once) == {}
    assert killed
    for name in ("after-00.json", "after-01.json", "run/episode-01.safetensors"):
        ours, theirs = (where / "seed-03" / "bayes-filter" / name for where in (directory, studied))
        assert ours.read_bytes() == theirs.read_bytes(), name
