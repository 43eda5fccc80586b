"""The report page: its numbers are those of the run, it works for every kind of task, and in a real browser."""

import dataclasses
import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import METHODS, Episode, Progress, Run
from bayespilco.cli import main
from bayespilco.execution import simulate_samples
from bayespilco.model import posterior_samples
from bayespilco.report import live, run_page, unseen
from bayespilco.report.run_page import RunPage
from bayespilco.runs import Config, RunDirectory
from bayespilco.runs.plain import MissingPlant
from tests.browser import WIDTHS, Visit, chromium
from tests.small_run import small_run


def executions() -> Episode:
    return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf, leaf]), small_run().records[1].episode)


def on_a_real_plant() -> Run:
    """The run as it would be on a plant whose states nobody knows, which cannot be drawn, with a sample missing."""
    run = small_run()
    task = dataclasses.replace(run.task, name="mine", plant=MissingPlant(), pose=None)

    def blind(record: Any) -> Any:
        episode = record.episode
        z = episode.observations.at[3].set(jnp.nan).at[5, 0].set(jnp.nan)
        return eqx.tree_at(lambda r: r.episode, record, Episode(z, episode.actions, None, episode.costs, None))

    return Run(task, run.settings, tuple(map(blind, run.records)))


class Somewhere:
    """A plant that is there, and not to be had."""

    def execute(self, task: Any, executor: Any, seed: int) -> Episode:
        raise NotImplementedError


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return RunPage().data(small_run(), executions())


def test_rounds_are_the_episodes_and_then_the_final_policy(data: dict[str, Any]) -> None:
    run, (first, second, final) = small_run(), data["rounds"]
    assert [each["title"] for each in data["rounds"]] == [
        "Episode 1, with random actions", "Episode 2", "Final policy, executed 3 times"
    ]  # fmt: skip
    assert "predicted" not in first and "errors" not in first, "nothing was promised for random actions"
    # An episode is shown beside what the record before it predicted.
    assert second["predicted"]["total"] == run.records[0].predicted_cost
    assert final["predicted"]["total"] == run.records[1].predicted_cost
    for name, of in (("state_mean", "state_mean"), ("action_mean", "action_mean"), ("cost_mean", "cost_mean")):
        assert np.allclose(second["predicted"][name], getattr(run.prediction(0), of), rtol=1e-3, atol=1e-6)
    assert np.allclose(second["states"][0], run.records[1].episode.states, rtol=1e-3, atol=1e-6)
    assert np.allclose(second["observed"], run.records[1].episode.observations, rtol=1e-3, atol=1e-6)
    assert sum(second["costs"][0]) == pytest.approx(run.records[1].executed_cost, rel=1e-3)
    assert len(final["states"]) == 3 and len(final["totals"]) == 3


def test_sampled_predictions_are_near_those_by_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spring is nearly linear: both are right, and differ by what 100 samples cannot know."""

    def sample_runs(task: Any, settings: Any, record: Any, number: int, part: int) -> Any:
        """The small run's fit has a model, but no weights to draw from."""
        assert record is run.records[number] and part == 0
        keys = jax.random.split(jax.random.key(0), run_page.BATCH)
        plants = jax.vmap(lambda key: posterior_samples.draw(record.fit.dynamics, key))(keys)
        executor = METHODS[settings.method].executor(record.policy, record.dynamics)
        return simulate_samples(task, executor, plants, keys)

    run = small_run()
    monkeypatch.setattr(run_page, "sample_runs", sample_runs)
    found = RunPage().data(run)["rounds"][1]
    sampled, std = found["sampled"], np.array(found["predicted"]["state_std"])
    low, high = (np.array(sampled["states"][side]) for side in ("low", "high"))
    assert np.array(sampled["states"]["paths"]).shape == (5, 21, 2)
    middle, width = (low + high) / 2, (high - low) / (2 * 1.645)
    away = np.abs(middle - np.array(found["predicted"]["state_mean"]))
    # The standard error of a 5 % quantile of 100 normal samples is a fifth of their deviation. Later on a drawn
    # plant errs always in the same direction, while moments average over plants anew at every step.
    assert (away[:5] < 4 * 0.21 / np.sqrt(2) * std[:5] + 0.01).all()
    assert np.median(width[:5] / std[:5]) == pytest.approx(1, abs=0.35)
    assert sampled["total_low"] <= sampled["total"] <= sampled["total_high"]
    assert sampled["total"] == pytest.approx(run.records[0].predicted_cost, rel=0.15)


def test_beliefs_are_those_of_the_controller() -> None:
    """Along an episode that the policy executed itself, the filter sees what the controller saw."""
    run = small_run()
    before, episode = run.records[0], run.records[1].episode
    z, u = np.asarray(episode.observations), np.asarray(episode.actions)
    along = unseen.beliefs(unseen.filter_of(run.task, before.policy, before.dynamics), z, u)
    controller = run.controller_after(0)
    for t in range(len(u)):
        action = controller.act(z[t])
        assert np.allclose(action, u[t], atol=1e-8)
    truth = np.asarray(episode.states)
    std = np.sqrt(np.diagonal(along.cov, axis1=1, axis2=2))
    assert (np.abs(along.mean - truth)[:, 0] < 5 * std[:, 0] + 0.01).all()


def test_errors_one_step_ahead_are_the_innovations() -> None:
    run = small_run()
    before, episode = run.records[0], run.records[1].episode
    z, u = np.asarray(episode.observations), np.asarray(episode.actions)
    knows = unseen.filter_of(run.task, before.policy, before.dynamics)
    found = unseen.errors(knows, unseen.beliefs(knows, z, u), z, u)
    controller, innovations = run.controller_after(0), []
    for t in range(len(u)):
        controller.act(z[t])
        innovations.append(z[t + 1] - controller.expected)
    assert np.allclose(found.rms[0], np.sqrt(np.mean(np.square(innovations), axis=0)), rtol=1e-6)
    assert found.rms.shape == (unseen.AHEAD, 2) and (found.relative > 0).all()
    z = np.where(np.arange(len(z))[:, None] < 4, z, np.nan)
    blind = unseen.errors(knows, unseen.beliefs(knows, z, u), z, u)
    assert np.isfinite(blind.rms[0]).all() and np.isnan(blind.rms[-1]).all()


def test_sentences_say_what_happened() -> None:
    run = small_run()
    said = " ".join(run_page.sentences(run, executions()))
    assert "from 2 episodes, 8 s of data in all" in said
    assert f"executed 3 times, costs {run.records[1].executed_cost:.1f} of at most 21" in said
    assert "promise" in said
    costs = [record.executed_cost for record in run.records]
    assert f"first episode cost {costs[0]:.1f}, the best, number {np.argmin(costs) + 1}, {min(costs):.1f}" in said
    assert "the next is promised to cost" in " ".join(run_page.sentences(run, None))


def test_promises_kept_are_counted_and_noise_is_compared() -> None:
    def a_round(total: float, final: bool = False) -> dict[str, Any]:
        return {"sampled": {"total_low": 3.0, "total_high": 5.0}, "totals": [total], "final": final}

    unpromised: dict[str, Any] = {"totals": [4.0], "final": False}
    (said,) = run_page.kept([unpromised, a_round(4.0), a_round(3.0), a_round(6.0), a_round(2.0, final=True)])
    assert said == "Of 3 episodes with a sampled prediction, 2 cost what its 90 % band had promised."
    assert run_page.kept([unpromised]) == []
    run = small_run()
    off = np.abs(np.sqrt(run.dynamics.sensor_noise) / run.task.sensor_std - 1).max()
    assert run_page.known(run) == [f"The learned sensor noise is within {100 * off:.0f} % of the true one."]
    real = dataclasses.replace(run.task, plant=Somewhere(), sensor_std=None)
    assert run_page.known(Run(real, run.settings, run.records)) == [], "nobody knows the true noise"


def test_the_policy_slice_is_the_policy(data: dict[str, Any]) -> None:
    run, held = small_run(), data["policy"]["at"]
    line = data["policy"]["lines"][1]
    k = len(line["x"]) // 3
    expected = run.policy.map()(jnp.array([held[0], line["x"][k]]))
    assert np.allclose(line["y"][k], expected, atol=2e-3)


def test_a_page_made_again_computes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole, maker = run_page._episode_round, RunPage(samples=0)
    monkeypatch.setattr(run_page, "_episode_round", lambda run, n, samples: made.append(n) or whole(run, n, samples))
    run = small_run()
    maker.page(Run(run.task, run.settings, run.records[:1]))
    maker.page(run)
    assert made == [0, 1]


def test_a_notebook_shows_the_report_in_a_frame() -> None:
    shown = small_run()._repr_html_()
    assert (
        shown.startswith('<iframe title="spring" srcdoc="&lt;!doctype html&gt;') and 'sandbox="allow-scripts"' in shown
    )


# In a browser.


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory, made = tmp_path_factory.mktemp("reports"), {}
    for name, page in (
        ("run", run_page.page(small_run(), executions())),
        ("real", run_page.page(on_a_real_plant())),
    ):
        (directory / f"{name}.html").write_text(page, encoding="utf-8")
        made[name] = (directory / f"{name}.html").as_uri()
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize("name", ["run", "real"])
def test_nothing_overflows_and_labels_pass(name: str, pages: dict[str, str], browser: Any) -> None:
    for width, scheme in zip(WIDTHS, ("light", "dark", "light"), strict=True):
        with Visit(browser, pages[name], width, scheme) as visit:
            visit.until("document.querySelectorAll('svg path').length > 5")
            assert visit.overflow() == []
            for table in ("promises", "error-table"):
                table = f"document.getElementById('{table}')"
                assert visit.ask(f"{table}.offsetWidth <= {table}.parentElement.clientWidth"), "a column is hidden"
            assert visit.violations() == []


def test_slider_and_player_work_by_mouse_touch_and_keyboard(pages: dict[str, str], browser: Any) -> None:
    with Visit(browser, pages["run"], touch=True) as visit:
        page = visit.page
        assert page.inner_text("#round-name") == "Final policy, executed 3 times"
        page.focus("#round")
        page.keyboard.press("Home")
        assert page.inner_text("#round-name") == "Episode 1, with random actions"
        assert "Nothing was predicted" in page.inner_text("#round-note")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#round-name") == "Episode 2"
        before = visit.ask("document.querySelectorAll('#panels path').length")
        page.uncheck("#show-sampled")
        assert visit.ask("document.querySelectorAll('#panels path').length") < before
        box = page.locator("#round").bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] - 5, box["y"] + box["height"] / 2)
        assert visit.ask("report.number") == 2
        page.locator("#play").tap()
        visit.until("report.moment > 2")
        assert page.inner_text("#play") == "Stop"
        page.locator("#play").tap()
        stopped = visit.ask("report.moment")
        assert stopped == visit.ask("report.moment") and page.inner_text("#play") == "Play"
        page.focus("#moment")
        page.keyboard.press("End")
        assert page.inner_text("#moment-value") == "4.00 s"
        cursor = visit.ask("document.querySelector('#panels .cursor').getAttribute('x1')")
        page.keyboard.press("Home")
        assert float(visit.ask("document.querySelector('#panels .cursor').getAttribute('x1')")) < float(cursor)


def test_a_plant_that_cannot_be_drawn_has_no_animation(pages: dict[str, str], browser: Any) -> None:
    with Visit(browser, pages["real"]) as visit:
        assert not visit.page.is_visible("#animation") and visit.page.is_visible("#panels")


# While it learns.


def fetch(address: str, host: str | None = None) -> str:
    asked = urllib.request.Request(address, headers={"Host": host} if host else {})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return answer.read().decode()


def test_the_live_report_follows_the_run_and_answers_this_machine_only() -> None:
    run = small_run()
    with live.LiveReport() as server:
        assert server.server.server_address[0] == "127.0.0.1"
        assert "begins with the first episode" in fetch(server.address)
        server.on_progress(Progress(0, 2, "improve", 0.5, 12.5))
        state = json.loads(fetch(server.address + "state.json"))
        assert state["now"] == "Episode 1 of 2: improving the policy, predicted cost 12.50"
        assert (state["version"], state["fraction"], state["search"]) == (0, 0.25, [12.5])
        server.maker.samples = 0
        server.on_run(run)
        assert json.loads(fetch(server.address + "state.json"))["version"] == 1
        assert '"live":true' in fetch(server.address)
        for address, host in ((server.address, "evil.example:80"), (server.address + "etc", None)):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                fetch(address, host)
    assert not server.thread.is_alive() and threading.active_count() < 20


def test_the_live_page_loads_itself_again(browser: Any) -> None:
    run = small_run()
    with live.LiveReport() as server:
        server.maker.samples = 0
        visit = Visit(browser, server.address)
        server.on_progress(Progress(0, 2, "train", 0.5, None))
        visit.until("document.getElementById('now').textContent.includes('learning the dynamics')")
        server.on_run(run)
        visit.until("window.report !== undefined")
        for cost in (9.0, 8.0, 7.5):
            server.on_progress(Progress(1, 2, "improve", 0.5, cost))
        visit.until("document.querySelector('#search path') !== null")
        assert visit.overflow() == [] and not visit.complaints
        visit.ask("report.choose(0)")
        server.on_run(run)
        visit.until("window.report?.data.version === 2")
        assert visit.ask("report.number") == 0, "who looks at an earlier episode stays there"
        assert all(request.startswith(server.address) for request in visit.requests)
        visit.context.close()


# The command.


def run_command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_the_command_writes_reports_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run().save(tmp_path / "run")
    assert run_command("report", str(tmp_path / "run")) == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"\bsrc=|<link|@import|https?://(?!www\.w3\.org)", page)
    assert run_command("figure", str(tmp_path / "run"), "--format", "pdf") == 2
    assert "was not executed yet" in capsys.readouterr().err


def test_figures_for_papers_and_for_dark_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, where = small_run(), str(tmp_path / "run")
    with RunDirectory.create(where, Config(run.task.name, run.settings, 3), run.task) as directory:
        directory.keep(run.records)
        directory.keep_evaluation(executions())
    for kind, format, begin in (("costs", "pdf", b"%PDF"), ("states", "svg", b"<?xml"), ("poses", "png", b"\x89PNG")):
        assert run_command("figure", where, "--kind", kind, "--format", format) == 0
        assert (tmp_path / "run" / f"{kind}.{format}").read_bytes().startswith(begin)
    once = (tmp_path / "run" / "costs.pdf").read_bytes()
    run_command("figure", where, "--kind", "costs", "--format", "pdf")
    assert (tmp_path / "run" / "costs.pdf").read_bytes() == once, "the same figure is the same file"
    run_command("figure", where, "--format", "svg", "--dark", "--out", str(tmp_path / "dark.svg"))
    dark = (tmp_path / "dark.svg").read_text()
    assert "#14171b" in dark and "#56b4e9" in dark.lower() and "#0072b2" not in dark.lower(), "lines and bands"
    for arguments, sentence in ((["--kind", "cost"], "Did you mean"), (["--format", "bmp"], "png, pdf, svg")):
        capsys.readouterr()
        assert run_command("figure", where, *arguments) == 2
        assert sentence in capsys.readouterr().err
