"""From what was learned to a `Controller`, which runs without this library's mathematics.

A policy of either kind is a kernel network plus a linear map, of which one is zero; so is the model's mean. What a
controller needs of them are arrays, and here they are named.
"""

import jax.numpy as jnp
import numpy as np

from bayespilco.controller import Controller, Description
from bayespilco.dynamics import Dynamics
from bayespilco.gp import GaussianProcess
from bayespilco.policy import Affine, PolicyMap
from bayespilco.precision import float64
from bayespilco.tasks.task import Task
from bayespilco.version import VERSION


@float64
def controller(task: Task, policy: PolicyMap, dynamics: Dynamics | None, method: str = "") -> Controller:
    """A controller that acts as `execution.Filtered` does or, without dynamics, as `execution.Unfiltered` does."""
    description = Description(
        task=task.name,
        method=method,
        version=VERSION,
        dt=float(task.dt),
        states=tuple(map(str, task.states)),
        actions=tuple(map(str, task.actions)),
        policy_angles=policy.features.angles,
        policy_keep=policy.features.keep,
        model_angles=dynamics.features.angles if dynamics is not None else (),
        model_keep=dynamics.features.keep if dynamics is not None else (),
    )
    arrays = {"initial_mean": task.initial.mean, "initial_cov": task.initial.cov, "limits": policy.squash.limits}
    function = _network(policy.function) if isinstance(policy.function, Affine) else policy.function.gp
    names = ("inputs", "length_scales", "signal_variance", "weights", "slope", "offset")
    arrays |= {f"policy_{name}": getattr(function, name) for name in names}
    if dynamics is not None:
        gp = dynamics.gp
        if gp.precision is None:
            raise ValueError("A controller that filters needs a model that knows its uncertainty; this one has none.")
        (points, inputs), outputs = gp.inputs.shape, gp.offset.shape[0]
        certain = {
            "cross_cov": jnp.zeros((outputs, points, 1 + inputs)),
            "linear_cov": jnp.zeros((outputs, 1 + inputs, 1 + inputs)),
        }
        arrays |= {name: getattr(gp, name) for name in (*names, "precision")}
        arrays |= {name: zero if getattr(gp, name) is None else getattr(gp, name) for name, zero in certain.items()}
        arrays |= {"sensor_noise": dynamics.sensor_noise, "process_noise": dynamics.process_noise}
    return Controller(description, {name: np.asarray(array) for name, array in arrays.items()})


def _network(affine: Affine) -> GaussianProcess:
    """A linear map as a kernel network without kernels."""
    outputs, inputs = affine.matrix.shape
    return GaussianProcess(
        inputs=jnp.zeros((0, inputs)),
        length_scales=jnp.ones((outputs, inputs)),
        signal_variance=jnp.ones(outputs),
        weights=jnp.zeros((outputs, 0)),
        precision=None,
        slope=affine.matrix,
        offset=affine.offset,
    )
