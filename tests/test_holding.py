"""Does it hold: falls and recoveries are counted right, pushes push, and what makes no sense is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import METHODS, Run, Task, execute_many, tasks
from bayespilco.cli import main
from bayespilco.control.cost import effort
from bayespilco.execution import execute_pushed
from bayespilco.experiments.holding import Push, count_falls, count_recoveries, course, evaluate_holding
from tests.small_run import small_run


def steps(text: str) -> np.ndarray:
    """A run as a word: x where the plant is at the goal."""
    return np.array([letter == "x" for letter in text])


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("....xxxx", [(4, True)]),
        ("xxxxxxxx", [(0, True)]),
        ("........", []),
        ("..xx..xx", []),  # never for long enough
        ("xxx.xxx..xxx", [(0, True)]),  # beyond the border for a moment
        ("xxx...xxx...", [(0, True), (3, False), (6, True), (9, False)]),
        ("xxx.x.....xxx", [(0, True), (5, False), (10, True)]),
    ],
)
def test_a_plant_is_up_or_down_when_it_stays_so(text: str, changes: list[tuple[int, bool]]) -> None:
    assert course(steps(text), 3) == changes


def test_falls_are_counted() -> None:
    rows = [
        "..xxxxxxxxxxxxxxxxxx",  # holds
        "..xxxxxx....xxxxxxxx",  # falls and gets up
        "..xxxxxx............",  # stays down
        "..xxxxxxxxxxxxxxx...",  # falls at the end: nobody knows
        "....................",  # never up
    ]
    found = count_falls(np.array([steps(row) for row in rows]), dt=0.2, within=1.0)
    assert (found["reached"], found["fell"], found["falls"], found["stayed_down"]) == (4, 3, 3, 1)
    assert found["reached_s"] == pytest.approx(0.4) and found["up_again_s"] == pytest.approx(0.8)
    assert found["first_falls_s"] == [None, pytest.approx(1.6), pytest.approx(1.6), pytest.approx(3.4), None]
    assert found["at_goal"] == pytest.approx((18 + 14 + 6 + 15) / (4 * 18))
    nothing = count_falls(np.zeros((2, 20), dtype=bool), dt=0.2, within=1.0)
    assert (nothing["reached"], nothing["falls"], nothing["reached_s"], nothing["at_goal"]) == (0, 0, None, 0.0)


def test_recoveries_are_counted() -> None:
    rows = ["xxxxxxxxxx", "x.....xxxx", "x....xx.xx", "x........x"]  # 6 steps to be back
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    found = count_recoveries(np.array([steps(row) for row in rows]), signs, dt=0.5, window=6)
    assert (found["given"], found["left_the_goal"], found["recovered"]) == (4, 3, 2)
    assert (found["share"], found["share_plus"], found["share_minus"]) == (0.5, 0.5, 0.5)
    assert found["median_s"] == pytest.approx(3.0)  # of the one that left and came back
    none = count_recoveries(np.zeros((0, 10), dtype=bool), np.zeros(0), dt=0.5, window=6)
    assert (none["given"], none["share"], none["median_s"]) == (0, None, None)


def test_a_push_is_a_jump_of_one_state_at_one_step() -> None:
    run = small_run()
    task, executor = run.task, METHODS[run.method].executor(run.policy, run.dynamics)
    keys = jax.random.split(jax.random.key(0), 2)
    pushes = np.zeros((2, task.steps, 2))
    calm = execute_many(task, executor, keys)
    nothing = execute_pushed(task, executor, keys, jnp.asarray(pushes))
    assert np.allclose(np.asarray(nothing.states), np.asarray(calm.states), rtol=0, atol=1e-12)
    pushes[1, 9, 1] = 0.7
    pushed = execute_pushed(task, executor, keys, jnp.asarray(pushes))
    difference = np.asarray(pushed.states) - np.asarray(calm.states)
    assert np.abs(difference[0]).max() < 1e-12 and np.abs(difference[1, :10]).max() < 1e-12
    assert difference[1, 10] == pytest.approx([0.0, 0.7], abs=1e-12)
    assert np.abs(difference[1, 11]).max() > 0.1


def without_force(task: Task) -> Run:
    """A run whose controller does nothing: the spring goes back to rest, away from the mark."""
    run = small_run()
    policy = eqx.tree_at(lambda p: (p.matrix, p.offset), run.policy, (jnp.zeros((1, 2)), jnp.zeros(1)))
    last = eqx.tree_at(lambda record: record.policy, run.records[-1], policy)
    return Run(task, run.settings, (*run.records[:-1], last))


def test_a_controller_that_holds_and_one_that_does_not() -> None:
    options: dict[str, Any] = {"minutes": 0.5, "runs": 3, "pushes": 4, "push_size": 1.5}
    found = evaluate_holding(small_run(), **options)
    assert (found["long"]["reached"], found["long"]["falls"], found["long"]["stayed_down"]) == (3, 0, 0)
    pushed = found["pushes"]
    assert (pushed["state"], pushed["unit"], pushed["size"], pushed["given"]) == ("velocity", "m/s", 1.5, 4)
    assert (pushed["left_the_goal"], pushed["recovered"]) == (4, 4) and 0 < pushed["median_s"] < 5
    again = evaluate_holding(small_run(), **options)
    assert again == found and evaluate_holding(small_run(), **options, seed=2) != found
    # Started at the mark and let go, the mass falls back and stays there; it can never be pushed at the mark.
    task = tasks.spring()
    moved = eqx.tree_at(lambda t: t.initial.mean, task, jnp.array([0.7, 0.3]))
    found = evaluate_holding(without_force(moved), **options)
    assert (found["long"]["fell"], found["long"]["stayed_down"]) == (3, 3)
    assert (found["pushes"]["given"], found["pushes"]["share"]) == (0, None)


def test_the_command_says_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BAYESPILCO_NO_CACHE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    small_run().save(tmp_path)
    arguments = ["--minutes", "0.5", "--runs", "3", "--pushes", "4", "--push-size", "1.5"]
    with pytest.raises(SystemExit) as end:
        main(["evaluate", str(tmp_path), *arguments])
    assert end.value.code in (0, None)
    said = " ".join(capsys.readouterr().out.split())
    assert "3 runs of 0.5 minutes reached the goal 3 of 3" in said and "fell 0 of 3 runs (0 falls)" in said
    assert "4 pushes of 1.5 m/s to the velocity left the goal 4 of 4" in said
    assert "back at the goal within 5 s 4 of 4 (100%)" in said
    kept = json.loads((tmp_path / "holding.json").read_text())
    assert (kept["episodes"], kept["pushes"]["recovered"]) == (2, 4)


class Rig:
    def execute(self, *_: object) -> Any:
        raise AssertionError("nobody asked for this")


def of_task(task: Task) -> Run:
    return Run(task, small_run().settings, small_run().records)


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        (dataclasses.replace(tasks.spring(), plant=Rig()), {}, "has a real plant. Falls are counted and pushes given"),
        (tasks.servo(), {}, "moves along a path that ends with the episode"),
        (dataclasses.replace(tasks.spring(), cost=effort([2], width=1.0)), {}, "is of actions alone"),
        (tasks.spring(), {"pushes": 2}, r"How hard to push the velocity of 'spring'\? Give --push-size, in m/s"),
        (tasks.spring(), {"pushes": 2, "push_size": -1.0}, "must be positive and finite; given -1.0"),
        (tasks.spring(), {"pushes": 2, "push_state": "velocty"}, "Did you mean 'velocity'"),
        (tasks.tank(), {"pushes": 2}, "does not say which state is a rate: .* upper level, lower level"),
        (tasks.spring(), {"minutes": 0.0}, "minutes must be above 0 and at most 1440; given 0.0"),
        (tasks.spring(), {"runs": 0}, "runs must be at least 1; given 0"),
    ],
)
def test_what_makes_no_sense_is_refused(task: Task, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        evaluate_holding(of_task(task), **options)


def test_the_usual_push_of_the_cart_pole() -> None:
    assert Push.of(tasks.cart_pole()) == ("pole angular velocity", 9.0)
    assert Push.of(tasks.cart_pole(), "cart velocity", 2.0) == ("cart velocity", 2.0)
