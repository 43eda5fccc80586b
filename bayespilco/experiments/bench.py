"""What things take: CPU and wall seconds, seconds to compile, and peak memory, each beside what it cannot avoid.

Each measurement runs in a process of its own, so that its peak memory and its compilation, from nothing, are its own; a
value and gradient then in a second process, which finds compiled code where the first one left it.
Times depend on the machine and on what else runs there; the *floor* is measured in the same process: the bare
exponentials, multiply-adds and factorisations without which no exact evaluation comes. Compare ratios.
"""

import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np

from bayespilco import startup
from bayespilco.control import prediction
from bayespilco.control.cost import SaturatingCost
from bayespilco.control.policy import RBFPolicy
from bayespilco.control.problem import Problem
from bayespilco.core.compilation import compiled
from bayespilco.core.features import AngleFeatures
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import condition
from bayespilco.core.precision import as_float64, float64
from bayespilco.execution import Filtered, RandomActions, execute_many
from bayespilco.model.belief import Belief
from bayespilco.model.dynamics import Dynamics
from bayespilco.model.episode import Episode, Trials, batch
from bayespilco.model.sensors import complete
from bayespilco.model.structure import free, second_order
from bayespilco.tasks import cart_pole
from bayespilco.tasks.task import Kind
from bayespilco.training.direct import DirectFit, fit_direct
from bayespilco.training.evidence import EvidenceFit, fit_evidence
from bayespilco.training.guesses import guess_states
from bayespilco.training.marginal import MarginalFit, fit_marginal
from bayespilco.training.transitions import input_masks

Array = jax.Array
Case = dict[str, Any]
PREDICTORS: dict[str, prediction.Predictor] = {"unfiltered": prediction.Unfiltered(), "filtered": prediction.Filtered()}

SIZES: list[Case] = [
    {"name": "value_and_gradient", "predictor": predictor, "points": points, "steps": 60, "states": 4, "centroids": 100}
    for predictor in PREDICTORS
    for points in (60, 150, 300, 660)
]
GROWTH: list[Case] = [
    {"name": "value_and_gradient", "predictor": "unfiltered", "points": 300, "steps": 60, "states": 4, "centroids": 100}
    | change
    for change in ({"steps": 30}, {"steps": 120}, {"states": 2}, {"states": 6}, {"centroids": 50}, {"centroids": 200})
]
STRUCTURED: list[Case] = [
    {
        "name": "value_and_gradient",
        "predictor": "filtered",
        "points": points,
        "steps": 60,
        "states": 4,
        "centroids": 100,
    }
    | {"structure": structure}
    for points in (50, 150, 300)
    for structure in ("free", "second-order")
]
OTHERS: list[Case] = [
    {"name": "gp_fit", "points": 660},
    {"name": "evidence_fit", "trials": 11},
    {"name": "evidence_fit", "trials": 11, "structure": "second-order"},
    {"name": "direct_fit", "trials": 11, "points": 50, "evaluations": 20},
    {"name": "control_step", "points": 50},
    {"name": "executions", "executions": 100, "points": 50},
]
STEPS = 60
"""Of an episode of the cart-pole."""
CASES = SIZES + GROWTH + STRUCTURED + OTHERS


def measure_all(cases: list[Case] = CASES) -> Iterator[Case]:
    """Each case with its figures, one after the other."""
    for case in cases:
        with tempfile.TemporaryDirectory() as cache:
            figures = _measure_apart(case, cache)
            if case["name"] == "value_and_gradient":
                figures["warm_compile_s"] = _measure_apart(case, cache)["compile_s"]
        yield figures


def _measure_apart(case: Case, cache: str) -> Case:
    """Measure in a process of its own, which keeps compiled code in `cache`."""
    command = [sys.executable, "-m", "bayespilco.experiments.bench", json.dumps(case)]
    settings = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
    environment = os.environ | {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1"} | settings
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"The measurement {case} failed: {done.stderr.strip().splitlines()[-1]}")
    measured: Case = json.loads(done.stdout)
    return measured


class Measured(NamedTuple):
    """Something to measure."""

    run: Callable[[], Any]
    floor: Callable[[Any], float]
    """CPU seconds that it cannot avoid, from what `run` returned."""
    repeats: int = 1


@float64
def measure(case: Case) -> Case:
    """The figures of one case, measured in this process."""
    make: dict[str, Callable[[Case], Measured]] = {
        "value_and_gradient": _value_and_gradient,
        "gp_fit": _gp_fit,
        "evidence_fit": _evidence_fit,
        "direct_fit": _direct_fit,
        "control_step": _control_step,
        "executions": _executions,
    }
    run, floor, repeats = make[case["name"]](case)
    *first, result = _seconds(run)
    cpu, wall, _ = min((_seconds(run) for _ in range(repeats)), key=lambda taken: taken[:2])
    # Compiling is measured in CPU seconds too: what else runs on the machine does not lengthen them.
    figures = {
        "cpu_s": cpu,
        "wall_s": wall,
        "compile_s": max(first[0] - cpu, 0.0),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "floor_cpu_s": floor(result),
    }
    return case | {key: round(value, 6) for key, value in figures.items()}


def _seconds(function: Callable[[], Any]) -> tuple[float, float, Any]:
    """CPU and wall seconds, and what the function returned."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = jax.block_until_ready(function())
    return time.process_time() - cpu, time.perf_counter() - wall, result


def _problem(case: Case) -> tuple[Problem, RBFPolicy]:
    """A random but sensible plant of any size: every state decays, the first state is an angle, one action.

    With second-order structure the second half of the states are the rates of the first half.
    """
    states, points = case["states"], case["points"]
    random = np.random.default_rng(0)
    x, u = random.normal(size=(points, states)), random.uniform(-1, 1, size=(points, 1))
    inputs = np.concatenate([x, u, np.sin(x[:, :1]), np.cos(x[:, :1])], axis=1)
    targets = 0.9 * x + 0.1 * np.sin(inputs @ random.normal(size=(states + 3, states)))
    lengths = np.tile(np.where(np.arange(states + 3) == 0, np.inf, 3.0), (states, 1))
    slope, structure, raw = 0.9 * np.eye(states, states + 3), free(states, 1), 0
    if case.get("structure") == "second-order":
        half = states // 2
        structure = second_order(states, 1, [(i, half + i) for i in range(half)], dt=0.03)
        raw = 1  # no raw angle among the inputs
    learned = list(structure.outputs)
    gp = condition(
        inputs[:, raw:],
        targets[:, learned],
        lengths[learned, raw:],
        np.full(len(learned), 0.1),
        np.full(len(learned), 1e-3),
        slope[learned, raw:],
        np.zeros(len(learned)),
    )
    sensors, process_noise = complete(np.full(states, 1e-3)), as_float64(np.full(states, 1e-6))
    features = AngleFeatures((0,), tuple(range(raw, states + 1)))
    dynamics = Dynamics(gp, features, sensors, process_noise, structure)
    seen = AngleFeatures((0,), tuple(range(1, states)))
    policy = RBFPolicy.random(jax.random.key(0), seen, [1.0], centre=np.zeros(seen.size), centroids=case["centroids"])
    cost = SaturatingCost(AngleFeatures((0,), (1,)), as_float64(np.zeros(3)), as_float64(np.eye(3)))
    start = Gaussian(as_float64(0.5 * np.ones(states)), as_float64(0.01 * np.eye(states)))
    return Problem(PREDICTORS[case["predictor"]], dynamics, start, cost, case["steps"]), policy


def _value_and_gradient(case: Case) -> Measured:
    problem, policy = _problem(case)
    states, times = case["states"], 2 if case["predictor"] == "filtered" else 1
    outputs = len(problem.dynamics.structure.outputs)

    def floor(_: object) -> float:
        """The sums over the model's points, twice if filtered, and over the policy's centroids."""
        model = times * _pairs(outputs) * _sweep(case["points"], states + 2)
        return float(case["steps"] * (model + _sweep(case["centroids"], states + 1)))

    return Measured(lambda: eqx.filter(problem.value_and_gradient(policy), eqx.is_array), floor, repeats=5)


def _pairs(outputs: int) -> int:
    return outputs * (outputs + 1) // 2


def _sweep(points: int, size: int, *, gradient: bool = True) -> float:
    """CPU seconds of the arithmetic of one pair of outputs at one step.

    One exponential per pair of points; the exponent, a product over the inputs; the sums of the value, and for the
    gradient those with 1 + inputs columns from the one side and with one from the other.
    """
    random = np.random.default_rng(0)
    # Enough work that calling it does not count, little enough to stay in the cache.
    at_once = max(1, 400_000 // points**2)
    c, u = jnp.asarray(random.normal(size=(points, size))), jnp.asarray(random.normal(size=points))
    weights = jnp.asarray(random.normal(size=(points, 1 + size if gradient else 1)))
    E = jnp.asarray(-random.uniform(0, 3, size=(at_once, points, points)))
    many = jnp.broadcast_to(c, (at_once, points, size))
    total = _least(jnp.exp, E) + _least(lambda c, many: many @ c.T, c, many) + _least(jnp.matmul, E, weights)
    if gradient:
        total += _least(lambda E, u: u @ E, E, u)
    return total / at_once


def _least(function: Callable[..., Array], *arguments: Array) -> float:
    """CPU seconds of a compiled function at its fastest."""
    call = functools.partial(compiled(function), *arguments)
    call()  # compile
    return min(_seconds(call)[0] for _ in range(20))


def _inverse(size: int) -> float:
    """CPU seconds of factorising and inverting a covariance: what the gradient of a likelihood needs."""

    def solve(K: Array) -> Array:
        return jsl.cho_solve((jnp.linalg.cholesky(K), True), jnp.eye(size))

    return _least(solve, jnp.eye(size) + 1.0)


def _random_episodes(trials: int) -> list[Episode]:
    task = cart_pole()
    keys = jax.random.split(jax.random.key(0), trials)
    many = execute_many(task, RandomActions(task.action_limits), keys)
    return [Episode(many.observations[n], many.actions[n]) for n in range(trials)]


def _transitions(trials: Trials) -> tuple[np.ndarray, np.ndarray]:
    """The cart-pole's transitions as a regression problem."""
    task = cart_pole()
    structure = task.structure()
    guesses = guess_states(trials, structure, task.true_sensors, task.start)
    return guesses.inputs(trials, task.dynamics_features), guesses.outputs(structure)


def _gp_fit(case: Case) -> Measured:
    features = cart_pole().dynamics_features
    x, y = _transitions(batch(_random_episodes(case["points"] // STEPS)))
    kernel_inputs, linear_inputs = input_masks(features)
    return Measured(
        lambda: fit_marginal(x, y, kernel_inputs=kernel_inputs, linear_inputs=linear_inputs),
        lambda fit: _ordinary_floor(fit, len(x), features.size),
    )


def _ordinary_floor(fit: MarginalFit, points: int, inputs: int) -> float:
    """Per evaluation the kernel, one inverse, and the sums of the gradient, which are those of a sweep."""
    return fit.evaluations * (_sweep(points, inputs) + _inverse(points))


def _evidence_fit(case: Case) -> Measured:
    task, trials = cart_pole(), batch(_random_episodes(case["trials"]))
    kind: Kind = case.get("structure", "free")
    features, structure = task.features(kind), task.structure(kind)

    def floor(fit: EvidenceFit) -> float:
        """Per evaluation the products with the Jacobian, one for the value and one for the gradient, and an inverse."""
        rows, weights = case["trials"] * (STEPS + 1) * fit.layout.sensors.count, fit.parameters.weights.size
        J = jnp.ones((rows, weights))
        products = _least(lambda J: J.T @ J, J) + _least(jnp.matmul, J, jnp.eye(weights))
        return fit.evaluations * (products + _inverse(weights))

    return Measured(lambda: fit_evidence(trials, features, task.initial, structure=structure), floor)


def _direct_fit(case: Case) -> Measured:
    task, trials = cart_pole(), batch(_random_episodes(case["trials"]))
    features = task.dynamics_features

    def floor(fit: DirectFit) -> float:
        """The sweeps of a filter pass along every trial, and the ordinary training that it starts from."""
        x, y = _transitions(trials)
        kernel_inputs, linear_inputs = input_masks(features)
        start = fit_marginal(x, y, kernel_inputs=kernel_inputs, linear_inputs=linear_inputs)
        sweeps: int = fit.evaluations * case["trials"] * STEPS * _pairs(trials.observations.shape[2])
        return sweeps * _sweep(case["points"], features.size) + _ordinary_floor(start, len(x), features.size)

    def fit() -> DirectFit:
        return fit_direct(trials, features, task.initial, points=case["points"], evaluations=case["evaluations"])

    return Measured(fit, floor)


def _controller(case: Case) -> Filtered:
    """A filtered controller of the cart-pole, as it is deployed: model and policy have their usual sizes."""
    task = cart_pole()
    fit = fit_evidence(
        batch(_random_episodes(1)), task.dynamics_features, task.initial, points=case["points"], evaluations=3, rounds=1
    )
    return Filtered(task.random_policy(jax.random.key(0)).map(), fit.dynamics)


def _control_step(case: Case) -> Measured:
    controller, task = _controller(case), cart_pole()
    belief = controller.start(task.initial)

    @compiled
    def step(controller: Filtered, belief: Belief, z: Array) -> tuple[Belief, Array]:
        return controller.step(belief, z, jnp.asarray(0), jax.random.key(0))

    return Measured(lambda: step(controller, belief, task.initial.mean), lambda _: _prediction_floor(case), repeats=5)


def _executions(case: Case) -> Measured:
    controller, task = _controller(case), cart_pole()
    keys = jax.random.split(jax.random.key(0), case["executions"])
    return Measured(
        lambda: execute_many(task, controller, keys).costs,
        lambda _: case["executions"] * STEPS * _prediction_floor(case),
    )


def _prediction_floor(case: Case) -> float:
    """The sums by which the filter predicts one step: values only."""
    task = cart_pole()
    return _pairs(len(task.states)) * _sweep(case["points"], task.dynamics_features.size, gradient=False)


if __name__ == "__main__":
    startup.collect_rarely()  # as the commands do
    print(json.dumps(measure(json.loads(sys.argv[1]))))
