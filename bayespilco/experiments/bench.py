"""What things take: CPU and wall seconds, seconds to compile, and peak memory, each beside what it cannot avoid.

Each measurement runs in a process of its own, so that its peak memory and its compilation, from nothing, are its own; a
value and gradient then in a second process, which finds compiled code where the first one left it.
Times depend on the machine and on what else runs there; the *floor* is measured in the same process: the bare
exponentials and multiply-adds of the pair sums, without which no exact evaluation comes. Compare ratios.
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
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespilco import prediction, startup
from bayespilco.compilation import compiled
from bayespilco.cost import SaturatingCost
from bayespilco.dynamics import Dynamics
from bayespilco.episode import Episode, batch
from bayespilco.execution import Filtered, RandomActions, execute_many
from bayespilco.features import AngleFeatures
from bayespilco.gaussian import Gaussian
from bayespilco.gp import condition
from bayespilco.improvement import Problem
from bayespilco.policy import RBFPolicy
from bayespilco.precision import float64
from bayespilco.tasks import cart_pole
from bayespilco.training.direct import fit_direct
from bayespilco.training.evidence import fit_evidence
from bayespilco.training.marginal import fit_marginal
from bayespilco.training.transitions import input_masks, transitions

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
OTHERS: list[Case] = [
    {"name": "gp_fit", "points": 660},
    {"name": "evidence_fit", "trials": 11},
    {"name": "direct_fit", "trials": 11, "evaluations": 20},
    {"name": "control_step", "points": 50},
    {"name": "executions", "executions": 100, "points": 50},
]
CASES = SIZES + GROWTH + OTHERS


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
    return json.loads(done.stdout)


@float64
def measure(case: Case) -> Case:
    """The figures of one case, measured in this process."""
    make = {
        "value_and_gradient": _value_and_gradient,
        "gp_fit": _gp_fit,
        "evidence_fit": _evidence_fit,
        "direct_fit": _direct_fit,
        "control_step": _control_step,
        "executions": _executions,
    }
    function = make[case["name"]](case)
    first = _seconds(function)
    repeats = [_seconds(function) for _ in range(5 if case["name"] in ("value_and_gradient", "control_step") else 1)]
    best = min(repeats)
    # Compiling is measured in CPU seconds too: what else runs on the machine does not lengthen them.
    figures = {
        "cpu_s": best[0],
        "wall_s": best[1],
        "compile_s": max(first[0] - best[0], 0.0),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    if case["name"] == "value_and_gradient":
        figures["floor_cpu_s"] = _floor(case)
    return case | {key: round(value, 6) for key, value in figures.items()}


def _seconds(function: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    jax.block_until_ready(function())
    return time.process_time() - cpu, time.perf_counter() - wall


def _problem(case: Case) -> tuple[Problem, RBFPolicy]:
    """A random but sensible plant of any size: every state decays, the first state is an angle, one action."""
    states, points = case["states"], case["points"]
    random = np.random.default_rng(0)
    x, u = random.normal(size=(points, states)), random.uniform(-1, 1, size=(points, 1))
    inputs = np.concatenate([x, u, np.sin(x[:, :1]), np.cos(x[:, :1])], axis=1)
    targets = 0.9 * x + 0.1 * np.sin(inputs @ random.normal(size=(states + 3, states)))
    lengths = np.tile(np.where(np.arange(states + 3) == 0, np.inf, 3.0), (states, 1))
    slope = 0.9 * np.eye(states, states + 3)
    gp = condition(inputs, targets, lengths, np.full(states, 0.1), np.full(states, 1e-3), slope, np.zeros(states))
    dynamics = Dynamics(gp, AngleFeatures((0,), tuple(range(states + 1))), np.full(states, 1e-3), np.full(states, 1e-6))
    seen = AngleFeatures((0,), tuple(range(1, states)))
    policy = RBFPolicy.random(jax.random.key(0), seen, [1.0], centre=np.zeros(seen.size), centroids=case["centroids"])
    cost = SaturatingCost(AngleFeatures((0,), (1,)), np.zeros(3), np.eye(3))
    start = Gaussian(0.5 * np.ones(states), 0.01 * np.eye(states))
    return Problem(PREDICTORS[case["predictor"]], dynamics, start, cost, case["steps"]), policy


def _value_and_gradient(case: Case) -> Callable[[], object]:
    problem, policy = _problem(case)
    return lambda: eqx.filter(problem.value_and_gradient(policy), eqx.is_array)


def _floor(case: Case) -> float:
    """CPU seconds of the exponentials and multiply-adds that the pair sums of all steps cannot avoid.

    Per pair of outputs and step: one exponential per pair of points; the exponent, a product over the inputs; the sums
    of value and gradient, for which the exponentials are multiplied with 1 + inputs columns from the one side and with
    one from the other. The policy's sums are counted as well. A filtered prediction needs the sums twice.
    """
    random = np.random.default_rng(0)

    def sweep(points: int, size: int) -> float:
        # Enough work that calling it does not count, little enough to stay in the cache.
        at_once = max(1, 400_000 // points**2)
        c, weights, u = (jnp.asarray(random.normal(size=(points, *rest))) for rest in ((size,), (1 + size,), ()))
        E = jnp.asarray(-random.uniform(0, 3, size=(at_once, points, points)))
        many = jnp.broadcast_to(c, (at_once, points, size))
        parts: list[tuple[Callable[..., Array], tuple[Array, ...]]] = [
            (jnp.exp, (E,)),
            (lambda c, many: many @ c.T, (c, many)),
            (lambda E, weights: E @ weights, (E, weights)),
            (lambda E, u: u @ E, (E, u)),
        ]
        total = 0.0
        for function, arguments in parts:
            call = functools.partial(compiled(function), *arguments)
            call()  # compile
            total += min(_seconds(call)[0] for _ in range(20)) / at_once
        return total

    states = case["states"]
    pairs = states * (states + 1) // 2
    times = 2 if case["predictor"] == "filtered" else 1
    model = times * pairs * sweep(case["points"], states + 2)
    return case["steps"] * (model + sweep(case["centroids"], states + 1))


def _random_episodes(trials: int) -> list[Episode]:
    task = cart_pole()
    keys = jax.random.split(jax.random.key(0), trials)
    many = execute_many(task, RandomActions(task.action_limits), keys)
    return [Episode(many.observations[n], many.actions[n]) for n in range(trials)]


def _gp_fit(case: Case) -> Callable[[], object]:
    features = cart_pole().dynamics_features
    x, y = transitions(batch(_random_episodes(case["points"] // 60)), features)
    kernel_inputs, linear_inputs = input_masks(features)
    return lambda: fit_marginal(x, y, kernel_inputs=kernel_inputs, linear_inputs=linear_inputs).gp.weights


def _evidence_fit(case: Case) -> Callable[[], object]:
    task, trials = cart_pole(), batch(_random_episodes(case["trials"]))
    return lambda: fit_evidence(trials, task.dynamics_features, task.initial).dynamics.gp.weights


def _direct_fit(case: Case) -> Callable[[], object]:
    task, trials = cart_pole(), batch(_random_episodes(case["trials"]))
    fit = lambda: fit_direct(trials, task.dynamics_features, task.initial, evaluations=case["evaluations"])  # noqa: E731
    return lambda: fit().dynamics.gp.weights


def _controller(case: Case) -> Filtered:
    """A filtered controller of the cart-pole, as it is deployed: model and policy have their usual sizes."""
    task = cart_pole()
    fit = fit_evidence(
        batch(_random_episodes(1)), task.dynamics_features, task.initial, points=case["points"], evaluations=3, rounds=1
    )
    return Filtered(task.random_policy(jax.random.key(0)).map(), fit.dynamics)


def _control_step(case: Case) -> Callable[[], object]:
    controller, task = _controller(case), cart_pole()
    step = compiled(lambda controller, belief, z: controller.step(belief, z, jax.random.key(0)))
    belief = controller.start(task.initial)
    return lambda: step(controller, belief, task.initial.mean)


def _executions(case: Case) -> Callable[[], object]:
    controller, task = _controller(case), cart_pole()
    keys = jax.random.split(jax.random.key(0), case["executions"])
    return lambda: execute_many(task, controller, keys).costs


if __name__ == "__main__":
    startup.collect_rarely()  # as the commands do
    print(json.dumps(measure(json.loads(sys.argv[1]))))
