"""The cart-pole is the paper's, its motion is accurate, and its sensors err independently."""

import dataclasses
import importlib
import pickle
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array
from scipy.integrate import solve_ivp

from bayespilco import AngleFeatures, Episode, Gaussian, SaturatingCost, Task, execute_many, tasks
from bayespilco.execution import RandomActions
from bayespilco.tasks import Component, Start
from bayespilco.tasks.cart_pole import CART_MASS, GRAVITY, POLE_LENGTH, POLE_MASS, derivative
from bayespilco.tasks.task import hold
from tests import golden


def module(name: str) -> ModuleType:
    """The module of a task: `tasks.cart_pole` is the function."""
    return importlib.import_module(f"bayespilco.tasks.{name.replace('-', '_')}")


CART_POLE = module("cart-pole")
TASKS = {name: make() for name, make in tasks.TASKS.items()}


def test_the_first_cost_is_the_one_plotted_in_the_paper() -> None:
    """The digits of the first points of both figures. The width that the paper prints, 0.25 m, would give 0.78."""
    task = tasks.cart_pole()
    moments = task.cost.moments(task.initial)
    assert float(moments.mean[0]) == pytest.approx(0.999823, abs=5e-7)
    assert float(jnp.sqrt(moments.cov[0, 0])) == pytest.approx(0.000155, abs=5e-7)
    assert float(task.cost(task.initial.mean)) == pytest.approx(0.999665, abs=5e-7)
    assert float(task.cost(jnp.zeros(4))) == 0.0


@pytest.mark.parametrize("number", golden.cases("dynamics_cp"))
def test_cart_pole_moves_like_the_original(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original has a longer pole, orders its state [x, xdot, thetadot, theta], and hangs at theta = 0."""
    monkeypatch.setattr(CART_POLE, "POLE_LENGTH", 0.5)
    case = golden.load("dynamics_cp")[number]
    order = np.array([0, 3, 1, 2])  # ours from theirs
    hanging = np.array([0.0, np.pi, 0.0, 0.0])
    x, u = jnp.asarray(case["z"].ravel()[order] + hanging), jnp.asarray(case["u"].ravel())
    golden.assert_close(derivative(x, u), case["dz"].ravel()[order], 1e-12)
    following = hold(derivative, case["dt"].item(), substeps=200)(x, u)
    golden.assert_close(following - hanging, case["next_dt"].ravel()[order], 1e-10)


def test_cart_pole_keeps_its_energy_without_force_and_friction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a uniform rod, whose kinetic energy has 1/3 of m l^2: a point mass at the tip would not keep it."""
    monkeypatch.setattr(CART_POLE, "FRICTION", 0.0)
    plant = hold(derivative, 1 / 30, substeps=10)

    def energy(x: np.ndarray) -> float:
        _, theta, v, omega = x
        kinetic = (CART_MASS + POLE_MASS) * v**2 / 2 + POLE_MASS * POLE_LENGTH**2 * omega**2 / 6
        kinetic -= POLE_MASS * POLE_LENGTH * v * omega * np.cos(theta) / 2
        return kinetic + POLE_MASS * GRAVITY * POLE_LENGTH / 2 * np.cos(theta)

    path = [jnp.array([0.0, 2.0, 0.3, -1.0])]
    for _ in range(30):
        path.append(plant(path[-1], jnp.zeros(1)))
    energies = np.array([energy(np.asarray(x)) for x in path])
    assert np.ptp(energies) < 1e-5 * np.abs(energies).max()
    assert max(np.abs(b[1] - a[1]) for a, b in pairwise(path)) > 0.1, "the pole should have moved"


def pendulum_energy(q: Array, v: Array) -> Array:
    """Lagrangian of a uniform rod that turns about its end: kinetic less potential energy."""
    m, l = PENDULUM.MASS, PENDULUM.LENGTH
    return m * l**2 / 6 * v[0] ** 2 - m * GRAVITY * l / 2 * jnp.cos(q[0])


def double_pendulum_energy(q: Array, v: Array) -> Array:
    """Lagrangian of two rods, from how their centres move and how they turn."""
    m, l = DOUBLE.MASS, DOUBLE.LENGTH

    def centres(q: Array) -> Array:
        links = l * jnp.stack([jnp.sin(q), jnp.cos(q)], axis=1)
        return jnp.stack([links[0] / 2, links[0] + links[1] / 2])

    moving = jnp.sum(jax.jvp(centres, (q,), (v,))[1] ** 2)
    return m / 2 * moving + m * l**2 / 24 * jnp.sum(v**2) - m * GRAVITY * jnp.sum(centres(q)[:, 1])


def double_pendulum_torques(v: Array, u: Array) -> Array:
    """Of each joint what its motor does, less its friction; the elbow's acts on both links."""
    shoulder, elbow = u - DOUBLE.FRICTION * jnp.stack([v[0], v[1] - v[0]])
    return jnp.stack([shoulder - elbow, elbow])


PENDULUM, DOUBLE = module("pendulum"), module("double-pendulum")


@pytest.mark.parametrize(
    ("name", "lagrangian", "torques"),
    [
        ("pendulum", pendulum_energy, lambda v, u: u - PENDULUM.FRICTION * v),
        ("double-pendulum", double_pendulum_energy, double_pendulum_torques),
    ],
)
def test_pendulums_obey_lagrange(
    name: str, lagrangian: Callable[[Array, Array], Array], torques: Callable[[Array, Array], Array]
) -> None:
    """`d/dt dL/dv - dL/dq` is what the motors do, with the Lagrangian differentiated by machine."""
    random = np.random.default_rng(0)
    size = len(TASKS[name].states) // 2

    @jax.jit
    def left(q: Array, v: Array, a: Array) -> Array:
        momentum = jax.grad(lagrangian, 1)
        return jax.jvp(momentum, (q, v), (v, a))[1] - jax.grad(lagrangian)(q, v)

    for x in 2 * random.normal(size=(5, 2 * size)):
        u = jnp.asarray(random.normal(size=len(TASKS[name].actions)))
        q, v = jnp.asarray(x[:size]), jnp.asarray(x[size:])
        slope = module(name).derivative(jnp.asarray(x), u)
        assert np.array_equal(slope[:size], v)
        assert np.allclose(left(q, v, slope[size:]), torques(v, u), atol=1e-12)


WIDTHS = {"cart-pole": 0.1, "pendulum": 0.5, "double-pendulum": 0.5, "spring": 0.25, "light-dark": 0.4}


@pytest.mark.parametrize("name", WIDTHS)
def test_the_cost_is_of_the_distance_that_the_drawing_shows(name: str) -> None:
    """And so it is lowest where the drawing's last point is at its goal."""
    task, width = TASKS[name], WIDTHS[name]
    assert task.pose is not None
    for x in np.random.default_rng(0).normal(size=(5, len(task.states))):
        pose = task.pose(x)
        assert pose.goal is not None and all(line.ndim == 2 and line.shape[1] == 2 for line in pose.lines)
        distance = np.linalg.norm(pose.lines[-1][-1] - pose.goal)
        assert np.isclose(task.cost(jnp.asarray(x)), 1 - np.exp(-(distance**2) / (2 * width**2)))


@pytest.mark.parametrize("name", [name for name in TASKS if name != "cart-pole-bursts"])  # the cart-pole's plant
def test_the_plant_is_integrated_accurately(name: str) -> None:
    """Against an adaptive method of order 8 with a tolerance of 1e-12, over an episode of random actions."""
    task = TASKS[name]
    slope = jax.jit(module(name).derivative)
    random = np.random.default_rng(0)
    x = np.asarray(task.initial.mean) + 0.2 * random.normal(size=len(task.states))
    step = jax.jit(task.plant)
    worst = 0.0
    for u in random.uniform(-1, 1, (20, len(task.actions))) * np.asarray(task.action_limits):
        exact = solve_ivp(lambda _, y, u=u: slope(y, u), (0, task.dt), x, method="DOP853", rtol=1e-12, atol=1e-13)
        ours = np.asarray(step(jnp.asarray(x), jnp.asarray(u)))
        worst = max(worst, np.abs(ours - exact.y[:, -1]).max())
        x = ours
    assert worst < 5e-9


@pytest.mark.parametrize("name", TASKS)
def test_many_episodes_are_the_episodes_one_by_one(name: str) -> None:
    task = TASKS[name]
    executor = RandomActions(task.action_limits)
    keys = jax.random.split(jax.random.key(3), 3)
    many = execute_many(task, executor, keys)
    assert many.observations.shape == (3, task.steps + 1, len(task.sensed))
    for number in range(3):
        alone = execute_many(task, executor, keys[number : number + 1])
        assert np.allclose(alone.states[0], many.states[number], rtol=1e-9, atol=1e-9)
    assert ((many.actions >= task.action_low) & (many.actions <= task.action_high)).all()


@pytest.mark.parametrize("name", TASKS)
def test_sensors_err_independently_per_channel_and_step(name: str) -> None:
    task = TASKS[name]
    many = execute_many(task, RandomActions(task.action_limits), jax.random.split(jax.random.key(0), 200))
    seen = np.asarray(many.states) @ task.true_sensors.C[:, : len(task.states)].T
    errors = (np.asarray(many.observations) - seen) / np.asarray(task.sensor_std)
    if task.true_sensors.growth is not None:  # in units of the noise where the plant is
        errors /= np.sqrt(jax.vmap(jax.vmap(task.true_sensors.relative_noise))(many.states))
    channels = errors[np.isfinite(errors).all(axis=-1)]
    assert len(channels) == errors[..., 0].size or task.bursts is not None
    tolerance = 5 / np.sqrt(len(channels))  # five standard errors of a correlation
    assert np.abs(channels.mean(axis=0)).max() < tolerance
    assert np.abs(channels.std(axis=0) - 1).max() < tolerance
    correlation = np.atleast_2d(np.corrcoef(channels, rowvar=False)) - np.eye(channels.shape[1])
    assert np.abs(correlation).max() < tolerance
    following = np.nanmean(errors[:, :-1] * errors[:, 1:], axis=(0, 1))
    assert np.abs(following).max() < tolerance
    # The first states are those of the initial distribution.
    first = (np.asarray(many.states)[:, 0] - np.asarray(task.initial.mean)) / np.sqrt(np.diag(task.initial.cov))
    assert np.abs(first.mean(axis=0)).max() < 5 / np.sqrt(200)
    assert np.abs(first.std(axis=0) - 1).max() < 5 / np.sqrt(400)


@pytest.mark.parametrize("name", TASKS)
def test_every_component_has_a_name_and_a_unit(name: str) -> None:
    task = TASKS[name]
    for component in (*task.states, *task.actions):
        assert component.name and component.unit and str(component) == f"{component.name} [{component.unit}]"
    assert all(task.states[angle].unit == "rad" for angle in task.angles)


def test_components_say_what_they_are() -> None:
    names = [str(component) for component in (*tasks.cart_pole().states, *tasks.cart_pole().actions)]
    assert names == [
        "cart position [m]",
        "pole angle [rad]",
        "cart velocity [m/s]",
        "pole angular velocity [rad/s]",
        "force [N]",
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sensor_std": [0.1, -0.1]}, "sensor_std must be positive"),
        ({"sensor_std": [0.1]}, "sensor_std must have one entry per state"),
        ({"action_limits": [0.0]}, "action_limits must be positive"),
        ({"action_limits": [np.inf]}, "action_limits must be positive and finite"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": 2.5}, "steps must be at least 1, and an integer; given steps = 2.5"),
        ({"dt": 0.0}, "dt must be positive"),
        ({"dt": np.inf}, "dt must be positive and finite"),
        ({"angles": (2,)}, "angles must be different indices"),
        ({"angles": (1, 1)}, "angles must be different indices"),
        (
            {"cost": SaturatingCost(AngleFeatures((7,), ()), [0.0, 1.0], np.eye(2))},
            r"cost.features must .*angles=\(7,\)",
        ),
        ({"cost": SaturatingCost(AngleFeatures((), (-1,)), [0.0], np.eye(1))}, r"cost.features must .*keep=\(-1,\)"),
        ({"centroids": 0}, "centroids must be at least 1"),
        ({"centroids": 2.5}, "centroids must be at least 1, and an integer"),
        (
            {"policy_spread": [1.0, 2.0, 3.0]},
            r"policy_spread must be positive, and one or one per policy feature \(2\)",
        ),
        ({"policy_spread": [1.0, np.nan]}, "policy_spread must be positive"),
        ({"policy_length_scales": [[1.0], [2.0]]}, "policy_length_scales must be positive, and one or one per"),
        ({"policy_length_scales": -1.0}, "policy_length_scales must be positive"),
        (
            {"states": (Component("x", "m"), Component("x", "s"))},
            r"names must differ, .*given names = \('x', 'x', 'force'\)",
        ),
        ({"actions": (Component("velocity", "V"),)}, "names must differ"),
        ({"states": (Component("x", "m"), Component("time", "s"))}, "names must differ, also from a log's columns"),
        ({"actions": (Component("episode [N]", ""),)}, "names must differ, also from a log's columns"),
        ({"initial": Gaussian([0.0], [[1.0]])}, "initial must be a Gaussian over the 2 states"),
        ({"policy_kind": "deep"}, "policy_kind must be"),
        ({"sensor_std": None}, "sensor_std is needed for a simulation"),
        ({"auto_structure": "third-order"}, "auto_structure must be second-order, free or None"),
        ({"recover_from": (Start("pushed", [0.0], [1.0], 0.2),)}, "recover_from must be starts of 2 states"),
        (
            {"recover_from": 2 * (Start("pushed", [0.0, 1.0], [1.0, 1.0], 0.5),)},
            "recover_from must leave some weight to the initial state",
        ),
        ({"logged": (Episode(np.zeros((3, 2)), np.zeros((2, 2))),)}, "logged must be episodes of 2 states"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(
    change: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without the checks of annotations that the tests have, and users do not."""
    task = tasks.spring()
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    fields = {name: getattr(task, name) for name in Task.__dataclass_fields__}
    with pytest.raises(ValueError, match=sentence):
        Task(**(fields | change))


def test_a_task_is_made_of_the_right_parts() -> None:
    """What type checkers see, who does not use one is told. (Set afterwards here: the tests' own checks come first.)"""
    for name, bad, sentence in (
        ("states", ("level [m]",), "states must be of type Component; given 'level .m.'"),
        ("actions", (None,), "actions must be of type Component; given None"),
        ("initial", [0.0, 0.0], "initial must be of type Gaussian"),
        ("cost", None, "cost must be of type Cost; given None"),
    ):
        task = tasks.spring()
        object.__setattr__(task, name, bad)
        with pytest.raises(ValueError, match=f"Task 'spring': {sentence}"):
            task.__check_init__()


def test_a_plant_is_held_as_long_as_its_task_says() -> None:
    with pytest.raises(ValueError, match=r"dt must be as long as the plant holds an action, 0\.5 s; given dt = 0\.2"):
        dataclasses.replace(tasks.spring(), plant=hold(lambda x, u: x, 0.5, substeps=2))


def test_a_derivative_has_one_number_per_state() -> None:
    x, u = jnp.array([1.0, 2.0]), jnp.array([3.0])
    for wrong in (lambda x, u: u[0], lambda x, u: u, lambda x, u: jnp.concatenate([x, u])):
        with pytest.raises(ValueError, match=r"one number per state, of shape \(2,\); given shape"):
            hold(wrong, 0.1, substeps=1)(x, u)
    as_list = hold(lambda x, u: [x[1], u[0]], 0.1, substeps=3)(x, u)
    assert np.array_equal(as_list, hold(lambda x, u: jnp.stack([x[1], u[0]]), 0.1, substeps=3)(x, u))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (([0.0], [1.0, 1.0], 0.2), "needs a finite mean and a std for every state"),
        (([np.nan], [1.0], 0.2), "needs a finite mean"),
        (([0.0], [0.0], 0.2), "needs positive, finite std"),
        (([0.0], [1.0], 1.0), "weight of the start 'pushed' must be above 0 and below 1; given 1"),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(given: tuple[list[float], list[float], float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Start("pushed", *given)


def test_a_task_can_begin_elsewhere() -> None:
    task = tasks.cart_pole().with_delay(1)
    pushed = Start("pushed", (0.0, 0.0, 0.0, 8.0), (0.1, 0.1, 0.4, 3.0), 0.2)
    start = task.beginning_at(pushed).start
    assert np.array_equal(start.mean, [0.0, 0.0, 0.0, 8.0, 0.0])
    assert np.allclose(np.sqrt(np.diagonal(start.cov)), [0.1, 0.1, 0.4, 3.0, 0.0])


def test_a_task_travels_without_its_plant() -> None:
    """A plant made in a function could not be sent to another process, and nobody there needs it."""
    task = dataclasses.replace(tasks.spring(), plant=lambda x, u: x, pose=lambda x: None)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(task)
    bare = task.without_plant()
    sent = pickle.loads(pickle.dumps(bare))
    assert jax.tree.structure(sent) == jax.tree.structure(bare), "what is compiled for one is compiled for the other"
    with pytest.raises(ValueError, match="The plant of the task 'spring' cannot be run"):
        sent.plant.execute(sent, None, 0)
