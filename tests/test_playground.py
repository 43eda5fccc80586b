"""The playground: its JavaScript equals Python's controller and plants, and all on the page does what it says."""

import base64
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco import Controller, Run, Task, tasks
from bayespilco.cli import main
from bayespilco.deploy import bridge
from bayespilco.execution import filtered, unfiltered
from bayespilco.report import playground
from bayespilco.report.playground import Choice
from bayespilco.tasks import TASKS
from tests import test_controller_frame as frame
from tests.browser import WIDTHS, Visit, chromium, run_node
from tests.small_run import small_run
from tests.test_controller import case, wander

MATHEMATICS = ("linalg.js", "controller.js", "plants.js")


def recorded(controller: Controller, observations: np.ndarray) -> dict[str, Any]:
    """An episode of the Python controller, and its file."""
    controller.reset()
    steps = [(controller.act(z), controller.mean.copy(), controller.cov.copy()) for z in observations]
    actions, means, covs = (np.array(each) for each in zip(*steps, strict=True))
    file = base64.b64encode(controller.to_bytes()).decode()
    said = {"file": file, "observations": observations, "restarts": controller.restarts}
    return said | {"actions": actions, "means": means, "covs": covs}


RUN_CONTROLLERS = """
return data.map(({ file, observations }) => {
  const controller = new Controller(file);
  const found = { actions: [], means: [], covs: [] };
  for (const z of observations) {
    found.actions.push([...controller.act(z.map((value) => value === null ? NaN : value))]);
    found.means.push([...controller.mean]);
    found.covs.push(controller.cov.map((row) => [...row]));
  }
  return { ...found, restarts: controller.restarts, filters: controller.filters };
});
"""


def compare(episodes: list[dict[str, Any]]) -> None:
    for episode, found in zip(episodes, run_node(MATHEMATICS, RUN_CONTROLLERS, episodes), strict=True):
        assert found["restarts"] == episode["restarts"]
        for name in ("actions", "means", "covs"):
            if name == "covs" and not found["filters"]:
                continue  # nobody uses it
            assert np.abs(np.array(found[name]) - episode[name]).max() < 1e-9, name


def test_the_controller_equals_pythons_along_whole_episodes() -> None:
    """Models and policies of all kinds, with and without a filter, and missing samples."""
    episodes = []
    for name in ("full", "vfe", "uncertain", "double-pendulum"):
        task, dynamics, policies = case(name)
        z = np.asarray(task.initial.mean) + wander(0.3, len(task.states))
        for policy in policies.values():
            episodes += [
                recorded(bridge.controller(task, make(policy, dynamics)), z) for make in (filtered, unfiltered)
            ]
    assert len(episodes) == 16
    compare(episodes)


def test_the_controller_equals_pythons_with_known_rows() -> None:
    """Hidden states, delays, mixtures, references that move, a pump."""
    of, z = frame.task(), 0.5 + 0.5 * np.random.default_rng(6).normal(size=(25, 2))
    z[np.random.default_rng(7).uniform(size=z.shape) < 0.3] = np.nan
    models = [frame.dynamics(of, "free"), frame.dynamics(of, "second-order")]
    compare([recorded(bridge.controller(of, filtered(frame.policy(of), model)), z) for model in models])


def test_a_belief_that_overflows_starts_again_as_in_python() -> None:
    task, dynamics, policies = case("full")
    z = np.asarray(task.initial.mean) + wander(0.0, 2)[:12]
    made = bridge.controller(task, filtered(policies["rbf"], dynamics))
    knows_nothing = Controller(made.description, made.arrays | {"initial_cov": 1e99 * np.eye(2)})
    episode = recorded(knows_nothing, z)
    assert episode["restarts"] == len(z)
    compare([episode])


def test_the_gate_rejects_and_gives_up_as_in_python() -> None:
    """Spikes, a sensor that is stuck, angles that wrap, and a plant that is suddenly somewhere else."""
    episodes = []
    for name in ("full", "double-pendulum"):
        task, dynamics, policies = case(name)
        z = np.asarray(task.initial.mean) + wander(0.1, len(task.states))
        z[5, 0] += 40.0
        z[12:16, 1] = z[11, 1]
        z[20:, 1] += 2 * np.pi
        z[30:] += 3.0
        z[45:, 0] = 1e4
        episodes.append(recorded(bridge.controller(task, filtered(policies["rbf"], dynamics)), z))
    assert all(episode["restarts"] > 0 for episode in episodes)
    compare(episodes)


PLANTS = [name for name, make in TASKS.items() if playground.equation_of(make()) == name]
"""Of tasks that differ in their sensors only, one."""


@functools.cache
def some_states(name: str) -> tuple[Task, np.ndarray, np.ndarray]:
    task, random = TASKS[name](), np.random.default_rng(8)
    spread = np.sqrt(np.diagonal(np.asarray(task.initial.cov)))
    x = np.asarray(task.initial.mean) + 5 * spread * random.normal(size=(12, len(task.states)))
    u = random.uniform(np.asarray(task.action_low), np.asarray(task.action_high), size=(12, len(task.actions)))
    return task, x, u


@pytest.mark.parametrize("name", PLANTS)
def test_every_built_in_plant_moves_as_in_python(name: str) -> None:
    task, x, u = some_states(name)
    assert callable(task.plant)
    expected = np.asarray(jax.vmap(task.plant)(jnp.asarray(x), jnp.asarray(u)))
    program = """
      return data.states.map((x, k) => {
        const plant = new Equation(data.name, data.dt);
        for (let i = 0; i < plant.substeps; i++) x = plant.advance(x, data.actions[k], null);
        return x;
      });"""
    found = run_node(MATHEMATICS, program, {"name": name, "dt": task.dt, "states": x, "actions": u})
    assert np.abs(np.array(found) - expected).max() < 1e-9
    assert np.abs(expected - x).max() > 1e-3


@pytest.mark.parametrize("name", PLANTS)
def test_every_built_in_plant_looks_as_in_python(name: str) -> None:
    task, x, _ = some_states(name)
    targets = [0.4 for _ in task.references]
    program = "return { lines: data.states.map(PLANTS[data.name].lines), goal: PLANTS[data.name].goal(data.targets) };"
    found = run_node(MATHEMATICS, program, {"name": name, "states": x, "targets": targets})
    assert task.pose is not None
    for state, lines in zip(x, found["lines"], strict=True):
        pose = task.pose(state)
        for line, expected in zip(lines, pose.lines, strict=True):
            assert np.allclose(line, expected, atol=1e-12)
        if pose.goal is not None:
            assert np.allclose(found["goal"], pose.goal)


@pytest.mark.parametrize("name", PLANTS)
def test_a_push_does_the_work_that_its_force_does(name: str) -> None:
    """Accelerations follow from kinetic energy: a force along a handle's velocity adds power `f . v`.

    The power of a push is the change of the derivative of kinetic energy, which is known without any equation of
    motion: from the speeds of the rods' points.
    """
    if name == "tank":
        pytest.skip("Pouring water is no force.")
    _, x, _ = some_states(name)
    program = """
      return data.states.map((x) => PLANTS[data.name].handles.map((handle) => {
        const h = 1e-6, n = x.length / 2;
        const moved = x.map((value, i) => (i < n ? value + h * x[i + n] : value));
        const before = handle.at(x), after = handle.at(moved);
        const velocity = [(after[0] - before[0]) / h, (after[1] - before[1]) / h];
        return { velocity, response: handle.response(x, [0.7, -0.4]) };
      }));"""
    found = run_node(MATHEMATICS, program, {"name": name, "states": x})
    for state, handles in zip(x, found, strict=True):
        mass = mass_matrix(name, state)
        for handle in handles:
            n = len(state) // 2
            assert handle["response"][:n] == [0] * n
            power = state[n:] @ mass @ np.array(handle["response"][n:])
            assert power == pytest.approx(np.dot([0.7, -0.4], handle["velocity"]), rel=1e-4, abs=1e-5)


def mass_matrix(name: str, x: np.ndarray) -> np.ndarray:
    """Of uniform rods, by Lagrange."""
    if name == "cart-pole":
        m, l, c = 0.5, 0.2, np.cos(x[1])
        return np.array([[2 * m, -m * l * c / 2], [-m * l * c / 2, m * l**2 / 3]])
    if name == "double-pendulum":
        m, l, c = 0.5, 0.5, np.cos(x[0] - x[1])
        return m * l**2 * np.array([[4 / 3, c / 2], [c / 2, 1 / 3]])
    if name == "light-dark":
        return np.eye(2)
    return np.array([[{"pendulum": 1 / 3, "spring": 1.0, "servo": 1.0}[name]]])


# The page.


def own_task() -> Run:
    """The same run with a plant that the page does not know, and nothing to draw."""
    run = small_run()
    plant = dataclasses.replace(run.task, name="mine", plant=lambda x, u: x, pose=None)
    return dataclasses.replace(run, task=plant)


def compared() -> str:
    """Four choices, as a study has them."""
    run = small_run()
    one, two = run.records
    names = ("bayes-filter", "deisenroth", "dallaire", "pilco")
    choices = [
        Choice(n, r.policy, two.dynamics, n != "pilco") for n, r in zip(names, (two, one, one, one), strict=True)
    ]
    return playground.make(run.task, choices, np.asarray(two.episode.observations), "four methods", "Four methods.")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of pages: of a run, of a run whose plant is not known, of a comparison."""
    directory, made = tmp_path_factory.mktemp("pages"), {}
    for name, page in (
        ("run", playground.of_run(small_run())),
        ("own", playground.of_run(own_task())),
        ("compared", compared()),
    ):
        (directory / f"{name}.html").write_text(page, encoding="utf-8")
        made[name] = (directory / f"{name}.html").as_uri() + "?seed=1"
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.parametrize("name", ["run", "own", "compared"])
def test_the_page_agrees_with_python_and_fits_every_width(name: str, pages: dict[str, str], browser: Any) -> None:
    for width in WIDTHS:
        with Visit(browser, pages[name], width) as visit:
            visit.until("playground.agreement !== null")
            assert 0 <= visit.ask("playground.agreement") < 1e-9
            assert "agrees with the Python controller" in visit.page.inner_text("#agreement")
            visit.until("playground.loop.step > 3")
            assert visit.overflow() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "own", "compared"])
def test_contrast_and_labels(name: str, scheme: str, pages: dict[str, str], browser: Any) -> None:
    with Visit(browser, pages[name], 800, scheme) as visit:
        visit.page.click("#pause")
        assert visit.violations() == []


def test_sliders_and_switches(pages: dict[str, str], browser: Any) -> None:
    with Visit(browser, pages["compared"]) as visit:
        page = visit.page
        page.fill("#noise", "4")
        assert visit.ask("playground.loop.noise") == 4
        page.focus("#dropout")
        for _ in range(10):
            page.keyboard.press("ArrowRight")
        assert visit.ask("playground.loop.dropout") == pytest.approx(0.1)
        assert page.inner_text("#dropout-value") == "10 %"
        assert visit.ask("playground.loop.push") is None, "arrows move the slider, not the plant"
        assert visit.ask("playground.loop.sees") == "filter"
        page.check("input[name=method][value='3']")
        assert visit.ask("[playground.loop.choice, playground.loop.sees]") == [3, "raw"]  # as this method executes
        page.check("#sees-filter")
        assert visit.ask("playground.loop.sees") == "filter"
        page.locator("#stage").focus()
        page.keyboard.press("f")
        assert visit.ask("playground.loop.sees") == "raw" and page.is_checked("#sees-raw")
        page.keyboard.press("1")
        assert visit.ask("playground.loop.choice") == 0 and page.is_checked("input[name=method][value='0']")
        page.keyboard.press("p")
        assert visit.ask("playground.page.paused") and page.inner_text("#pause") == "Go on"
        visit.ask("playground.loop.restart()")
        page.select_option("#speed", "4")
        assert visit.ask("playground.page.speed") == 4


def test_noise_and_lost_samples_reach_the_sensors(pages: dict[str, str], browser: Any) -> None:
    measure = """(noise, dropout) => {
      const { loop } = playground;
      Object.assign(loop, { noise, dropout });
      const drawn = Array.from({ length: 4000 }, () => loop.measure());
      const there = drawn.map((z) => z[0]).filter((value) => !Number.isNaN(value));
      const mean = there.reduce((a, b) => a + b, 0) / there.length;
      const spread = Math.sqrt(there.reduce((a, b) => a + (b - mean) ** 2, 0) / there.length);
      return [there.length / drawn.length, spread];
    }"""
    with Visit(browser, pages["run"]) as visit:
        visit.page.click("#pause")
        for noise, dropout in ((1.0, 0.0), (3.0, 0.4)):
            kept, spread = visit.page.evaluate(f"({measure})({noise}, {dropout})")
            assert kept == pytest.approx(1 - dropout, abs=5 * np.sqrt(0.25 / 4000))
            assert spread == pytest.approx(0.02 * noise, rel=5 / np.sqrt(2 * 4000 * (1 - dropout)))


def test_blinded_sensors_see_nothing_for_half_a_second(pages: dict[str, str], browser: Any) -> None:
    with Visit(browser, pages["run"]) as visit:
        visit.until("playground.loop.step > 2")
        visit.page.click("#blind")
        since = visit.ask("playground.loop.blindUntil") - 0.5
        visit.until(f"playground.loop.time > {since + 0.9}")
        history = visit.ask("playground.loop.history.map(({ time, surprise }) => [time, surprise])")
        inside = [surprise for time, surprise in history if since + 1e-9 < time < since + 0.5 - 1e-9]
        later = [surprise for time, surprise in history if time >= since + 0.5]
        assert inside and all(surprise is None for surprise in inside)
        assert later and all(surprise is not None for surprise in later)
        assert "blind" in visit.page.inner_text("#said")
        slow = "new Loop({ ...playground.setup, dt: 2 }, 1).blindSeconds"
        assert visit.ask(slow) == 4, "of a slow plant at least two samples are missing"


def pushed(visit: Visit, act: Callable[[], None], release: Callable[[], None]) -> float:
    """How far a push moves the mass, compared with where it would be without: to the right is positive."""
    visit.page.click("#pause")
    visit.ask("playground.loop.restart()")
    visit.page.click("#pause")
    act()
    visit.until("playground.loop.push !== null")
    sign = visit.ask("Math.sign(playground.loop.push.force ? playground.loop.push.force[0] : playground.loop.push.by)")
    before = visit.ask("playground.loop.rows[1]")
    visit.until("playground.loop.time > 0.5")
    after = visit.ask("playground.loop.rows[1]")
    release()
    visit.until("playground.loop.push === null")
    assert np.sign(after - before) == sign or abs(after) > 0.3
    return sign


def test_pushes_by_mouse_finger_keys_and_buttons(pages: dict[str, str], browser: Any) -> None:
    with Visit(browser, pages["run"], touch=True) as visit:
        page = visit.page
        page.fill("#noise", "0")
        box = page.locator("#stage").bounding_box()
        assert box is not None
        far_right, far_left = (box["x"] + share * box["width"] for share in (0.98, 0.02))
        middle = box["y"] + box["height"] / 2

        def press(x: float) -> Callable[[], None]:
            return lambda: (page.mouse.move(x, middle), page.mouse.down())

        assert pushed(visit, press(far_right), page.mouse.up) == 1
        assert pushed(visit, press(far_left), page.mouse.up) == -1
        page.locator("#stage").focus()
        assert pushed(visit, lambda: page.keyboard.down("ArrowLeft"), lambda: page.keyboard.up("ArrowLeft")) == -1
        button = page.locator("#push-right")
        assert pushed(visit, lambda: (button.hover(), page.mouse.down()), page.mouse.up) == 1
        touch = visit.context.new_cdp_session(page)

        def finger(kind: str, x: float | None = None) -> None:
            points = [] if x is None else [{"x": x, "y": middle}]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        page.evaluate("scrollTo(0, 0)")
        assert pushed(visit, lambda: finger("touchStart", far_left), lambda: finger("touchEnd")) == -1
        page.focus("#push-left")
        page.keyboard.press("Enter")
        visit.until("playground.page.held === 0")


def test_the_learned_model_stands_in_for_a_plant_that_is_not_known(pages: dict[str, str], browser: Any) -> None:
    with Visit(browser, pages["own"]) as visit:
        page = visit.page
        assert "does not know the equation of motion of “mine”. The learned model plays" in page.inner_text("#stand-in")
        visit.until("playground.loop.step > 3")
        next_state = visit.ask(
            "[...playground.loop.plant.next(Float64Array.of(0.2, 0.1), Float64Array.of(0.5), 0, () => 0)]"
        )
        dynamics = small_run().dynamics
        x, u = jnp.array([0.2, 0.1]), jnp.array([0.5])
        learned = dynamics.gp(dynamics.features(jnp.concatenate([x, u])))
        expected = dynamics.known_part(x, u, jnp.array(0), learned)
        assert np.allclose(next_state, expected, atol=1e-9)
        # Between samples truth and belief are drawn on their way from one sample to the next: the same two samples.
        page.click("#pause")
        now = "[[...playground.loop.rows], [...playground.loop.belief.mean]]"
        earlier = visit.ask(now)
        visit.ask("playground.loop.advance()")
        assert visit.ask("[[...playground.loop.before], [...playground.loop.previous.belief.mean]]") == earlier
        page.click("#pause")
        page.locator("#stage").focus()
        assert pushed(visit, lambda: page.keyboard.down("ArrowRight"), lambda: page.keyboard.up("ArrowRight")) == 1
    with Visit(browser, pages["run"]) as visit:
        assert not visit.page.is_visible("#stand-in")


def test_a_frame_leaves_most_of_its_time_unused(pages: dict[str, str], browser: Any) -> None:
    """60 frames a second, on a machine that is several times slower, too."""
    with Visit(browser, pages["compared"]) as visit:
        visit.until("playground.page.work.frames > 60")
        assert visit.ask("playground.page.work.seconds / playground.page.work.frames") < 1 / 120


def test_the_ready_made_page_shows_what_the_filter_is_for(browser: Any) -> None:
    """The controller in the documents is of today's format; it balances with the filter, and not without."""
    file = Path(__file__).parents[1] / "docs" / "playground" / "cart-pole.html"
    assert file.stat().st_size < 1e6
    balanced = """(sees) => {
      const { loop, page } = playground;
      page.paused = true;
      loop.restart();
      loop.sees = sees;
      let [near, steps] = [0, 0];
      try {
        while (loop.time < 10) {
          loop.advance();
          if (loop.sub || loop.time < 4) continue;
          const [x, angle] = loop.rows;
          steps += 1;
          near += Math.hypot(x - 0.2 * Math.sin(angle), 0.2 * Math.cos(angle) - 0.2) < 0.12;
        }
      } catch (error) {
        return 0; // it was lost
      }
      return near / steps;
    }"""
    with Visit(browser, file.as_uri() + "?seed=3") as visit:
        visit.until("playground.agreement !== null")
        assert visit.ask("playground.agreement") < 1e-9
        shares = {
            sees: [visit.page.evaluate(f"({balanced})('{sees}')") for _ in range(4)] for sees in ("filter", "raw")
        }
        assert np.median(shares["filter"]) > 0.9 and np.median(shares["raw"]) < 0.5, shares


def test_tasks_that_hide_states_have_no_raw_observations() -> None:
    of = frame.task()
    choice = Choice("mine", frame.policy(of), frame.dynamics(of, "second-order"), filters=True)
    page = playground.make(of, [choice], np.full((4, 2), 0.5), "hidden", "Hidden.")
    assert '"raw":null' in page and "One observation alone does not tell: velocity." in page


def test_the_command_writes_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run().save(tmp_path / "run")
    with pytest.raises(SystemExit) as end:
        main(["play", str(tmp_path / "run")])
    assert not end.value.code
    page = (tmp_path / "run" / "playground.html").read_text(encoding="utf-8")
    assert "playground.html" in capsys.readouterr().out
    assert "src=" not in page.replace("default-src", "") and "{{" not in page and "@import" not in page
    for arguments, sentence in (
        (["--seed", "3"], "is not a study"),
        (["--episode", "7"], "has episodes 0 to 1; given 7"),
        (["--out", str(tmp_path / "nowhere" / "page.html")], "Cannot write"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["play", str(tmp_path / "run"), *arguments])
        assert end.value.code == 2
        assert sentence in capsys.readouterr().err


def test_servo_and_tank_can_be_played() -> None:
    """A path that is followed again and again, and rows behind the plant's own."""
    for task in (tasks.servo(), tasks.tank()):
        kind = "second-order" if task.rates else "free"
        choice = Choice("mine", frame.policy(task), frame.dynamics(task, kind), filters=True)
        assert f'"equation":"{task.name}"' in playground.make(
            task, [choice], np.zeros((6, len(task.sensed))), task.name, "One."
        )
