"""How long one value and gradient of the predicted total cost takes: `python benchmarks/value_and_gradient.py`.

The size of the paper's problem: 60 steps, 4 states with one angle, a policy with 100 centroids (605 parameters), and a
model with 60 to 660 points. The model and the policy are random but sensible. Not a test: times depend on the machine.
"""

import argparse
import os
import time

from bayespilco.startup import single_thread

single_thread()  # before JAX starts; see there

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402

from bayespilco import Dynamics, prediction, tasks  # noqa: E402
from bayespilco.gp import condition  # noqa: E402
from bayespilco.improvement import Problem  # noqa: E402

PREDICTORS = {
    "unfiltered": prediction.Unfiltered(),
    "filtered": prediction.Filtered(),
    "most likely": prediction.MostLikely(),
}


def cart_pole_dynamics(points: int) -> Dynamics:
    """A full GP on random transitions of the true plant: a model such as learning ends with."""
    task = tasks.cart_pole()
    random = np.random.default_rng(0)
    x = random.normal([0, np.pi, 0, 0], [0.5, 1.5, 1.5, 6.0], (points, 4))
    u = random.uniform(-10, 10, (points, 1))
    with jax.enable_x64(True):
        following = np.asarray(jax.vmap(task.plant)(x, u))
        inputs = np.asarray(jax.vmap(task.dynamics_features)(np.concatenate([x, u], axis=1)))
    scales = np.tile([3.0, np.inf, 4.0, 15.0, 30.0, 1.5, 1.5], (4, 1))
    slope = np.eye(4, 7)
    signal, noise = np.square([0.1, 0.3, 1.0, 5.0]), np.square([0.003, 0.003, 0.03, 0.1])
    gp = condition(inputs, following, scales, signal, noise, slope, np.zeros(4))
    return Dynamics(gp, task.dynamics_features, np.square(task.sensor_std), np.full(4, 1e-6))


def measure(problem: Problem, repeat: int) -> tuple[float, float, float]:
    """Seconds to compile, and CPU and wall seconds of one evaluation afterwards."""
    policy = tasks.cart_pole().random_policy(jax.random.key(0))

    def evaluate() -> None:
        value, gradient = problem.value_and_gradient(policy)
        assert np.isfinite(value), "the prediction should not diverge"
        jax.block_until_ready(eqx.filter(gradient, eqx.is_array))

    begin = time.perf_counter()
    evaluate()
    first = time.perf_counter() - begin
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeat):
        evaluate()
    wall, cpu = (time.perf_counter() - wall) / repeat, (time.process_time() - cpu) / repeat
    return first - wall, cpu, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, nargs="+", default=[60, 150, 300, 660])
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    task = tasks.cart_pole()
    print(f"One value and gradient, in seconds (JAX {jax.__version__}, {os.cpu_count()} cores, one of them used)")
    print(f"{'predictor':12} {'points':>6} {'compile':>8} {'CPU':>8} {'wall':>8}")
    for points in options.points:
        dynamics = cart_pole_dynamics(points)
        for name, predictor in PREDICTORS.items():
            problem = Problem(predictor, dynamics, task.initial, task.cost, task.steps)
            compiling, cpu, wall = measure(problem, options.repeat)
            print(f"{name:12} {points:6} {compiling:8.1f} {cpu:8.3f} {wall:8.3f}", flush=True)


if __name__ == "__main__":
    main()
