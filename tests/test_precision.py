"""Float64 inside, whatever the process around it uses: in a process of its own, as JAX's precision is global."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from bayespilco.core.precision import as_float64, is_concrete

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from bayespilco.core.gaussian import Gaussian
from bayespilco.core.gp import condition
from bayespilco.core.moments import gp_moments
from bayespilco.core.features import AngleFeatures
from bayespilco.control.policy import RBFPolicy

assert jnp.ones(3).dtype == jnp.float32, "importing the library must not change the process"
x = jnp.linspace(0, 1, 4)[:, None]
assert x.dtype == jnp.float32
gp = condition(x, jnp.sin(x), jnp.ones((1, 1)), jnp.ones(1), 0.01 * jnp.ones(1))
assert gp.weights.dtype == gp.precision.dtype == jnp.float64
same, noise = np.asarray(x, float), float(np.float32(0.01))
exact = np.linalg.inv(np.exp(-0.5 * (same - same.T) ** 2) + noise * np.eye(4))
assert np.abs(np.asarray(gp.precision[0]) - exact).max() < 1e-10 * np.abs(exact).max(), "computed in float32"
moments = gp_moments(gp, Gaussian([0.3], [[0.1]]))
assert moments.mean.dtype == moments.cov.dtype == jnp.float64
policy = RBFPolicy.random(jax.random.key(0), AngleFeatures((1,), (0,)), [1.0], centre=jnp.zeros(3), centroids=5)
assert policy.centroids.dtype == jnp.float64
assert policy(jnp.ones(2)).dtype == jnp.float64
assert jnp.ones(3).dtype == jnp.float32, "using the library must not change the process"
assert not jax.config.jax_enable_x64
"""


def test_float64_inside_and_float32_around() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAX_ENABLE_X64"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_conversion() -> None:
    assert as_float64([1, 2]).dtype == np.float64
    assert as_float64(np.float32(1.5)).dtype == np.float64
    assert is_concrete(jnp.ones(2), np.ones(2), 3.0)
    seen = []
    jax.jit(lambda x: seen.append(is_concrete(x)) or x)(1.0)
    assert seen == [False]
