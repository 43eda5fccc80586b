"""What `benchmarks/trust.py` counts: shares and medians over stored promises, in a file that is gone on with."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bayespilco import learn
from bayespilco.trust.bounds import clopper_pearson
from tests.test_trust import replayed

__all__ = ["replayed"]
pytestmark = pytest.mark.xdist_group("trust")


@pytest.fixture
def trust_study(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    yield importlib.import_module("trust_study")


def line(seed: str, episodes: int, bound: float, success: float, sampled: float, inside: float) -> dict[str, Any]:
    return {
        "what": "study", "seed": seed, "method": "bayes-filter", "episodes": episodes, "go": success > 0.5,
        "success_bound": bound, "success": success, "bound_holds": success >= bound, "bound_refuted": False,
        "sampled_total": sampled, "by_moments": 22.0, "executed_total": 20.0, "within_widened": 0.9,
        "coverage": {"totals": {"0.5": inside / 2, "0.9": inside}},
    }  # fmt: skip


def test_summary_counts_the_first_policy_of_each_run_and_all(trust_study: ModuleType) -> None:
    lines = [
        line("seed-00", 6, 0.9, 0.95, 20.4, 0.9),
        line("seed-00", 5, 0.9, 0.80, 21.0, 0.6),
        line("seed-01", 5, 0.8, 0.85, 18.0, 0.8),
    ]
    first, every = trust_study.summary(lines, ())
    assert (first["certificates"], first["bound_holds"], first["go"]) == (2, 0.5, 2)
    assert first["coverage"]["totals"] == pytest.approx({"0.5": 0.35, "0.9": 0.7})
    assert first["median_size_off"] == pytest.approx({"sampled_total": 0.075, "by_moments": 0.1})
    assert every["certificates"] == 3 and every["bound_holds"] == pytest.approx(2 / 3)
    assert every["median_off"]["sampled_total"] == pytest.approx(0.02)
    assert every["coverage"]["totals"]["0.9"] == pytest.approx((0.9 + 0.6 + 0.8) / 3)
    drawn = trust_study.curve_figure(lines)
    mean = drawn.axes[0].lines[-1]
    assert np.asarray(mean.get_ydata()) == pytest.approx([100 * (0.9 + 0.6 + 0.8) / 6, 100 * (0.9 + 0.6 + 0.8) / 3])
    with pytest.raises(ValueError, match="no line"):
        trust_study.curve_figure([])


def test_summary_of_wrong_models_counts_verdicts_and_reasons(trust_study: ModuleType) -> None:
    def model(case: str, go: bool, *reasons: str) -> dict[str, Any]:
        last = {"reasons": list(reasons), "success": 0.95 if go else 0.2}
        return {"what": "wrong", "case": case, "go": go, "certificates": [{"reasons": [], "success": 0.0}, last]}

    lines = [model("honest", True), model("stuck", False, "not calibrated yet: 2.5"), model("stuck", True)]
    honest, stuck = trust_study.summary(lines, ("honest", "stuck", "short"))
    assert (honest["models"], honest["go"], honest["reasons"]) == (1, 1, {})
    assert (stuck["models"], stuck["go"], stuck["reasons"]) == (2, 1, {"not calibrated yet": 1})
    assert stuck["policy_succeeds_in_90_percent"] == 1


def test_a_study_of_promises_goes_on_where_it_was_stopped(
    trust_study: ModuleType, replayed: list[int], tmp_path: Path
) -> None:
    run = tmp_path / "study" / "seed-00" / "bayes-filter" / "run"
    learn("spring", episodes=2, out=run)
    (tmp_path / "study" / "results.json").write_text(json.dumps({"episodes": 2}))
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    whole = list(trust_study.study(tmp_path / "study", 20, 0.0, set()))
    assert [each["episodes"] for each in whole] == [1, 2]
    for each in whole:
        lower = clopper_pearson(round(200 * each["success_bound"]), 200).lower
        assert lower <= each["success_bound"] <= 1 and each["bound_holds"] == (each["success"] >= each["success_bound"])
        assert set(each["coverage"]) == {"totals", "costs", "states"} and set(each["coverage"]["totals"]) >= {"0.9"}
    rest = list(trust_study.study(tmp_path / "study", 20, 0.0, {("seed-00/bayes-filter", 1)}))
    timed = ("wall_s", "cpu_s")
    assert [{k: v for k, v in each.items() if k not in timed} for each in rest] == [
        {k: v for k, v in whole[1].items() if k not in timed}
    ]
    seconds = whole[1]["seconds"]
    assert [each["episodes"] for each in trust_study.study(tmp_path / "study", 20, seconds, set())] == [2]
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    (tmp_path / "study" / "results.json").write_text(json.dumps({"episodes": 3}))
    assert list(trust_study.study(tmp_path / "study", 20, 0.0, set())) == []  # still being learned
    file = tmp_path / "lines.jsonl"
    file.write_text(json.dumps(whole[0]) + "\n" + json.dumps(whole[1])[:40])
    assert trust_study.read_lines([file]) == [whole[0]]
