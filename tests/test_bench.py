"""The measurements can be made, mean what they say, and come out as a table and as JSON."""

import json

import numpy as np
import pytest

from bayespilco.console import bench_row
from bayespilco.experiments.bench import CASES, SIZES, measure


def test_a_measurement_has_its_figures_beside_the_floor() -> None:
    case = {"name": "value_and_gradient", "predictor": "filtered"}
    case |= {"points": 9, "steps": 3, "states": 2, "centroids": 4}  # type: ignore[dict-item]
    figures = json.loads(json.dumps(measure(case)))
    assert {key: figures[key] for key in case} == case
    assert 0 < figures["floor_cpu_s"] < figures["cpu_s"] < figures["compile_s"]
    assert 10 < figures["peak_mb"] < 1e5
    assert "filtered" in bench_row(figures) and "points=9" in bench_row(figures)
    assert len(bench_row(figures)) == len(bench_row())


@pytest.mark.parametrize("case", [{"name": "gp_fit", "points": 60}, {"name": "control_step", "points": 9}])
def test_everything_is_measured_beside_its_floor(case: dict[str, object]) -> None:
    figures = measure(case)
    assert 0 < figures["floor_cpu_s"] < figures["cpu_s"]
    assert len(bench_row(figures)) == len(bench_row())


def test_the_sizes_are_those_promised() -> None:
    assert {case["points"] for case in SIZES} == {60, 150, 300, 660}
    assert {case["steps"] for case in SIZES} == {60} and {case["centroids"] for case in SIZES} == {100}
    names = {case["name"] for case in CASES}
    assert names == {"value_and_gradient", "gp_fit", "evidence_fit", "direct_fit", "control_step", "executions"}
    grown = [case for case in CASES if case["name"] == "value_and_gradient" and case not in SIZES]
    assert all(np.unique([case[key] for case in grown]).size > 1 for key in ("steps", "states", "centroids"))
