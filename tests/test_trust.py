"""Promises with numbers: bounds that hold, tests of a level that they keep, bands that cover, and GO or NO GO."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bayespilco import (
    METHODS,
    Dynamics,
    Episode,
    Record,
    Run,
    Settings,
    Task,
    cli,
    learn,
    resume,
    runs,
    tasks,
)
from bayespilco.core.optimise import Reason
from bayespilco.execution import execute_many, filtered, simulate_samples
from bayespilco.model.posterior_samples import draw_many
from bayespilco.settings import Thresholds
from bayespilco.tasks.components import Limit
from bayespilco.training.direct import DirectFit
from bayespilco.trust import calibration, promises
from bayespilco.trust.bounds import clopper_pearson
from bayespilco.trust.certificate import Certificate, certify
from bayespilco.trust.innovations import Trace, compare_innovations, filter_trace
from tests.small_run import assert_same, small_run

pytestmark = pytest.mark.xdist_group("trust")


def test_clopper_pearson_bounds_are_exact() -> None:
    """At the bound, what was counted or more of it has exactly the probability that is left."""
    share = clopper_pearson(198, 200, 0.95)
    assert stats.binom.sf(197, 200, share.lower) == pytest.approx(0.05)
    assert stats.binom.cdf(198, 200, share.upper) == pytest.approx(0.05)
    assert share.lower == pytest.approx(0.9689, abs=1e-4)  # R: binom.test(198, 200, alternative="greater")
    none = clopper_pearson(0, 200, 0.95)
    assert (none.lower, none.upper) == (0.0, pytest.approx(1 - 0.05 ** (1 / 200)))
    assert clopper_pearson(200, 200).upper == 1.0
    assert clopper_pearson(9, 200, looks=4).upper > clopper_pearson(9, 200).upper > 9 / 200
    with pytest.raises(ValueError, match="given 3 of 2"):
        clopper_pearson(3, 2)


def test_bounds_of_repeated_looks_hold_together() -> None:
    """Looking four times while runs are added: the bound fails at any of them in at most 5 % of cases."""
    rng, failed, trials, p = np.random.default_rng(0), 0, 500, 0.9
    for each in rng.random((trials, 1600)) < p:
        failed += any(clopper_pearson(int(each[:n].sum()), n, 0.95, 4).lower > p for n in (200, 400, 800, 1600))
    assert failed / trials < 0.05 + 3 * np.sqrt(0.05 * 0.95 / trials)


def test_coverage_is_nominal_if_promised_and_executed_are_alike() -> None:
    rng = np.random.default_rng(1)
    levels = calibration.LEVELS
    found = [calibration.coverage(rng.gamma(2.0, size=40), rng.gamma(2.0, size=50), levels) for _ in range(400)]
    pooled = calibration.pooled(found)
    for level in levels:
        error = np.std([each[level] for each in found]) / np.sqrt(len(found))
        assert pooled[level] == pytest.approx(level, abs=4 * error)
    narrow = calibration.coverage(rng.normal(size=1000), 3 * rng.normal(size=1000))
    assert all(narrow[level] < level - 0.1 for level in levels)
    steps = calibration.calibration_curve(
        {"states": rng.normal(size=(200, 6, 3))}, {"states": rng.normal(size=(100, 6, 3))}
    )
    assert steps["states"][0.9] == pytest.approx(0.9, abs=0.03)
    with pytest.raises(ValueError, match="same shape"):
        calibration.coverage(rng.normal(size=(20, 3)), rng.normal(size=(20, 4)))


def test_ranks_are_uniform_and_misses_normal_if_promises_are_honest() -> None:
    rng = np.random.default_rng(2)
    drawn = rng.normal(5.0, 2.0, size=(3000, 201))
    ranks = [calibration.rank(each[1:], each[0]) for each in drawn]
    misses = [calibration.miss(each[1:], each[0]) for each in drawn]
    assert stats.kstest(ranks, "uniform").pvalue > 1e-3
    assert np.std(misses) == pytest.approx(1.0, rel=0.06)
    assert calibration.rank(np.array([1.0, 2.0, 3.0]), 2.0) == 0.5
    assert calibration.miss(np.full(20, 10.0), 10.1) == pytest.approx(1.645, abs=1e-3)  # 1 % is not worth a miss
    assert calibration.miss(np.zeros(20), 0.0) == 0.0
    assert calibration.miss(np.zeros(20), 0.3) == calibration.LARGEST_MISS  # nothing was left open
    low, high = calibration.calibrate([calibration.miss(np.zeros(20), 0.3)]).widened(np.zeros(20))
    assert (low, high) == (0.0, 0.0)


def test_bands_are_widened_by_what_was_missed_and_cover_again() -> None:
    """Promises with a third of the true spread: 90 % bands cover 42 %; widened by eight misses nearly 90 %."""
    assert calibration.calibrate([]).factor == pytest.approx(
        stats.t.ppf(0.95, calibration.PRIOR) / stats.norm.ppf(0.95)
    )
    honest = calibration.calibrate(np.random.default_rng(3).normal(size=200).tolist())
    assert honest.scale == pytest.approx(1.0, abs=0.5) and honest.factor < 1.7
    rng, inside, narrow, cases = np.random.default_rng(4), 0, 0, 600
    for _ in range(cases):
        made = calibration.calibrate([calibration.miss(rng.normal(size=100) / 3, rng.normal()) for _ in range(8)])
        sampled, executed = rng.normal(size=200) / 3, rng.normal()
        low, high = made.widened(sampled)
        inside += low <= executed <= high
        narrow += calibration.coverage(sampled, np.array(executed))[0.9]
    assert narrow / cases < 0.5
    assert 0.82 < inside / cases < 0.97


@functools.cache
def honest_run(records: int = 2) -> Run:
    """The small run, with fits that draw plants from the matrices that its models predict with."""
    run = small_run(records)
    made = [
        dataclasses.replace(record, fit=DirectFit(record.dynamics, 1.0, 1, Reason.BUDGET)) for record in run.records
    ]
    return Run(run.task, run.settings, tuple(made))


@functools.cache
def spring_runs(count: int = 300) -> tuple[Episode, Episode]:
    """Runs on plants drawn from the small run's last model, and executions, with its last policy."""
    run = honest_run()
    executor = filtered(run.policy, run.dynamics)
    plants, keys = (jax.random.split(jax.random.key(seed), count) for seed in (5, 6))
    return simulate_samples(run.task, executor, draw_many(run.records[-1].fit, plants), keys), execute_many(
        run.task, executor, keys[:20]
    )


def test_innovations_are_those_of_the_filters_likelihood() -> None:
    """An observation that the filter foretells is no surprise. A displaced one has its Mahalanobis distance."""
    run = honest_run()
    foretold = _foretold(run.dynamics, run.records[1].episode)
    assert filter_trace(run.dynamics, run.task.start, foretold).squared == pytest.approx(0, abs=1e-12)
    displaced = eqx.tree_at(lambda e: e.observations, foretold, foretold.observations.at[0].add(jnp.array([0.1, -0.2])))
    trace = filter_trace(run.dynamics, run.task.start, displaced)
    S, v = np.asarray(run.task.start.cov + run.dynamics.R), np.array([0.1, -0.2])
    assert float(trace.squared[0]) == pytest.approx(v @ np.linalg.solve(S, v))
    assert np.asarray(trace.standardised[0]) == pytest.approx(v / np.sqrt(np.diag(S)))
    V = np.linalg.inv(np.linalg.inv(run.task.start.cov) + np.linalg.inv(run.dynamics.R))
    assert np.asarray(trace.belief_std[0]) == pytest.approx(np.sqrt(np.diag(V)))


def _foretold(dynamics: Dynamics, episode: Episode) -> Episode:
    from bayespilco.model.belief import Belief, start

    initial = honest_run().task.start
    belief, z = Belief(initial.mean, start(initial, dynamics.structure.known).cov), []
    for u in episode.actions:
        z.append(dynamics.sensors(belief.mean))
        belief = belief.update(z[-1], dynamics.sensors).predict(dynamics, u)
    return Episode(jnp.stack([*z, dynamics.sensors(belief.mean)]), episode.actions)


def test_the_test_of_a_model_has_its_level_and_sees_a_displaced_sensor() -> None:
    run = honest_run()
    sampled, _ = spring_runs()
    trace = filter_trace(run.dynamics, run.task.start, sampled)
    names = tuple(sensor.name for sensor in run.task.sensed)

    def part(of: Trace, runs: slice | int) -> Trace:
        return Trace(*(each[runs] for each in of))

    reference = part(trace, slice(0, 200))
    found = [compare_innovations(part(trace, n), reference, names) for n in range(200, 300)]
    p = np.array([each.p for each in found])
    assert np.mean(p < 0.05) < 0.05 + 3.5 * np.sqrt(0.05 * 0.95 / 100)  # runs on its own plants are no surprise
    assert np.mean(p > 0.5) == pytest.approx(0.5, abs=0.2)
    inside = [each.expected[0] <= each.normalised <= each.expected[1] for each in found]
    assert np.mean(inside) > 0.85
    one = jax.tree.map(lambda leaf: leaf[250], sampled)
    displaced = eqx.tree_at(lambda e: e.observations, one, one.observations.at[10:, 0].add(1.0))
    wrong = compare_innovations(filter_trace(run.dynamics, run.task.start, displaced), reference, names)
    assert wrong.p < 0.01 and wrong.normalised > 3
    assert names[0] in wrong.oddest or wrong.oddest == "all innovations"
    gone = eqx.tree_at(lambda e: e.observations, one, one.observations.at[10:, 0].set(jnp.nan))
    assert compare_innovations(filter_trace(run.dynamics, run.task.start, gone), reference, names).p > 0.005


def with_goals(run: Run) -> Run:
    """A limit that the mass keeps, and one that it does not."""
    return dataclasses.replace(run, task=run.task.with_limits({"position": (-500, 500), "velocity": (None, 0.2)}))


@functools.cache
def certificate() -> Certificate:
    return with_goals(honest_run(3)).certificate(Thresholds(level=0.0))


def test_certificate_counts_runs_on_sampled_plants() -> None:
    found, run = certificate(), with_goals(honest_run(3))
    own = found.promises[-1]
    again = promises.sample_runs(run.task, run.settings, run.records[-1], 2, 0)
    assert np.array_equal(np.asarray(again.costs), np.asarray(own.parts[0].costs))  # its random numbers are its own
    chance = jax.random.fold_in(jax.random.fold_in(jax.random.key(run.settings.seed), promises.PURPOSE), 2)
    plants, keys = (jax.random.split(each, 100) for each in jax.random.split(jax.random.fold_in(chance, 0)))
    drawn = simulate_samples(run.task, filtered(run.policy, run.dynamics), draw_many(run.records[2].fit, plants), keys)
    assert np.asarray(again.costs) == pytest.approx(np.asarray(drawn.costs), abs=1e-9)  # the last policy, a plant each
    states = np.concatenate([np.asarray(part.states) for part in own.parts])
    assert own.outcome.exceeded[:, 1].tolist() == (states[:, :, 1] > 0.2).any(axis=1).tolist()
    assert found.limits["position"].times == 0
    assert found.limits["velocity"].probability == pytest.approx((states[:, :, 1] > 0.2).any(axis=1).mean(), abs=0.1)
    assert found.band[0] <= found.total <= found.band[1]
    assert found.widened[0] <= found.band[0] and found.band[1] <= found.widened[1]
    assert [each.total for each in found.kept] == [record.executed_cost for record in run.records[1:]]
    assert found.model is not None and 0 < found.model.p <= 1
    assert not found.go and "velocity may exceed its limit" in found.sentence
    text = json.dumps(found.as_json(), allow_nan=False)
    assert json.loads(text)["limits"]["velocity"]["upper"] == found.limits["velocity"].upper
    assert found.lines()[1].startswith(f"Success: {found.success.times} of {found.success.runs} runs")


def test_thresholds_decide() -> None:
    run = with_goals(honest_run(3))
    lax = Thresholds(least_success=0.0, most_exceeding=1.0, level=0.0, least_promises=0, most_missed=1e6)

    def asked(**changes: float) -> Certificate:
        return certify(
            run.task, run.settings, run.records, dataclasses.replace(lax, **changes), certificate().promises[-1:]
        )

    assert asked().go and asked().sentence.startswith("GO: success in at least")
    assert "velocity may exceed its limit in up to" in asked(most_exceeding=0.05).sentence
    assert "the newest episode contradicts the model" in asked(level=1.0).sentence
    assert "not calibrated yet: 2 of at least 3 promises were tested" in asked(least_promises=3).sentence
    assert "not calibrated yet: earlier promises missed" in asked(most_missed=0.01).sentence
    assert "% of runs only" in asked(least_success=1.0).sentence


def test_more_runs_where_a_bound_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Around the threshold 200 runs do not tell; far from it they do."""
    run = with_goals(honest_run(1))
    made: list[int] = []

    def fake(task: object, settings: object, record: object, number: int, part: int = 0) -> Episode:
        made.append(part)
        return certificate().promises[-1].parts[0]

    share = float(np.mean(promises.outcome(run.task, certificate().promises[-1].parts[0]).success))
    monkeypatch.setattr("bayespilco.trust.certificate.sample_runs", fake)
    earlier = [certificate().promises[-1]._replace(number=0)]
    share = min(max(share, 0.01), 0.99)
    near = certify(run.task, run.settings, run.records, Thresholds(least_success=share), earlier)
    assert (near.success.runs, made) == (1600, list(range(2, 16))) or abs(near.success.probability - share) >= 0.01
    made.clear()
    far = certify(run.task, run.settings, run.records, Thresholds(least_success=0.0, most_exceeding=1.0), earlier)
    assert far.success.runs == 200 and not made


def test_first_certificate_is_not_calibrated() -> None:
    run = honest_run(1)
    found = run.certificate()
    assert found.model is None and found.calibration.promises == 0 and not found.go
    assert "not calibrated yet: 0 of at least 2 promises" in found.sentence
    assert found.brief.startswith("NO GO: not calibrated yet") and "\n" not in found.brief
    with pytest.raises(ValueError, match="no episode"):
        certify(run.task, run.settings, ())


def test_real_plants_are_judged_by_their_sensors() -> None:
    """Without states an episode costs what it was seen to cost; the promise is then about the same thing."""
    run = honest_run()
    blind = eqx.tree_at(lambda e: e.states, run.records[1].episode, None)
    assert promises.judged_as_observed([eqx.tree_at(lambda r: r.episode, run.records[1], blind)])
    runs = certificate().promises[-1].parts[0]
    seen = promises.outcome(run.task, runs, as_observed=True)
    true = promises.outcome(run.task, runs)
    assert seen.totals.shape == true.totals.shape and (seen.totals != true.totals).all()
    assert seen.totals == pytest.approx(true.totals, rel=0.3)


def test_limits_are_declared_in_the_task() -> None:
    task = tasks.cart_pole()
    limited = dataclasses.replace(task, limits={"cart position": (-0.5, 0.5)})  # type: ignore[arg-type]
    assert limited.limits == (Limit("cart position", -0.5, 0.5),)
    assert task.with_limits({"cart velocity": (None, 2)}).limits[0].low == -np.inf
    with pytest.raises(ValueError, match="cart positoin"):
        task.with_limits({"cart positoin": (-0.5, 0.5)})
    with pytest.raises(ValueError, match="a pair"):
        task.with_limits({"cart position": 0.5})
    with pytest.raises(ValueError, match="lowest below a highest"):
        task.with_limits({"cart position": (0.5, -0.5)})
    with pytest.raises(ValueError, match="no limits"):
        task.with_limits({"cart position": (None, None)})
    assert METHODS  # the table that certificates execute with


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Learning that takes no time, and the numbers of the episodes that were learned."""
    learned: list[int] = []

    def learn_episode(task: Task, settings: Settings, records: Sequence[Record], *_: object) -> Record:
        learned.append(len(records))
        return small_run(3).records[len(records)]

    monkeypatch.setattr("bayespilco.algorithm.learn_episode", learn_episode)
    return learned


def test_learning_certifies_before_each_trial_and_stops_unless_go(replayed: list[int], tmp_path: Path) -> None:
    """What came of each promise is in the metrics; a NO GO stops; going on gives the run that was not stopped."""
    whole = learn("spring", episodes=3, out=tmp_path / "whole")
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert ["promised" in line for line in lines] == [False, True, True] and all("go" in line for line in lines)
    assert [line["kept"]["total"] for line in lines[1:]] == [line["executed_cost"] for line in lines[1:]]
    assert all(line["kept"]["within"] == (a <= line["kept"]["total"] <= b) for line in lines[1:]
               for a, b in [line["promised"]["band"]])  # fmt: skip
    replayed.clear()
    stopped = learn("spring", episodes=3, out=tmp_path / "run", thresholds=Thresholds(stop_unless_go=True))
    assert len(stopped.records) == 1 and replayed == [0]
    assert not runs.read_certificate(tmp_path / "run")["go"] and not runs.is_finished(tmp_path / "run")
    assert len(resume(tmp_path / "run").records) == 1  # what was asked for is kept
    run = resume(tmp_path / "run", thresholds=Thresholds())
    assert_same(run.records, whole.records)
    for name in ("metrics.jsonl", "certificate.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    (tmp_path / "run" / "metrics.jsonl").unlink()
    resume(tmp_path / "run", thresholds=Thresholds())
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_check_prints_and_writes_a_certificate(
    replayed: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAYESPILCO_NO_CACHE", "1")
    directory = tmp_path / "run"
    learn("spring", episodes=2, out=directory)
    (directory / "certificate.json").unlink()
    with pytest.raises(SystemExit) as end:
        cli.main(["check", str(directory), "--limit", "velocity=:0.2", "--least-promises", "7"])
    shown = " ".join(capsys.readouterr().out.split())
    assert end.value.code == cli.EXIT_NO_GO
    found = runs.read_certificate(directory)
    assert found["sentence"] in shown and "Limit of velocity: exceeded in" in shown
    assert found["thresholds"]["least_promises"] == 7 and list(found["limits"]) == ["velocity"]
    with pytest.raises(SystemExit) as end:
        cli.main(
            [
                "learn",
                "spring",
                "--episodes",
                "2",
                "--out",
                str(tmp_path / "other"),
                "--stop-unless-go",
            ]
        )
    said = capsys.readouterr()
    assert end.value.code == cli.EXIT_NO_GO and "Next trial: NO GO: not calibrated yet" in said.out
    assert f"bayespilco resume {tmp_path / 'other'} --whatever-happens" in said.err
    assert "stop_unless_go = true" in (tmp_path / "other" / "config.toml").read_text()
    for wrong in ("velocity", "velocity=1", "=1:2", "velocity=a:b"):
        with pytest.raises(SystemExit) as end:
            cli.main(["check", str(directory), "--limit", wrong])
        assert end.value.code == 2 and "STATE=LOW:HIGH" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"), [("least_success", 1.5), ("level", -0.1), ("least_promises", -1), ("confidence", 1.0)]
)
def test_thresholds_are_checked(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        Thresholds(**{name: value})  # type: ignore[arg-type]
