"""From a trained trajectory model, in scaled units, to the `Dynamics` that the rest of the library uses."""

import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.compilation import compiled
from bayespilco.core.gaussian import symmetrise
from bayespilco.core.gp import GaussianProcess
from bayespilco.model.dynamics import Dynamics
from bayespilco.training.trajectory import Layout, Parameters, build


@compiled
def posterior(root: Float[Array, "weights weights"], shape: tuple[int, int]) -> Float[Array, "output basis basis"]:
    """The covariance of each output's weights."""
    outputs, size = shape
    joint = jsl.cho_solve((root, True), jnp.eye(outputs * size)).reshape(outputs, size, outputs, size)
    return jnp.stack([joint[a, :, a] for a in range(outputs)])


@compiled
def dynamics(p: Parameters, layout: Layout, P: Float[Array, "output basis basis"]) -> Dynamics:
    """The model in state units, as points, weights and matrices, with covariance `P` of each output's weights."""
    model, outputs, points = build(p, layout), p.weights.shape[0], layout.points.shape[0]
    W = jnp.einsum("oqp,oqr,ors->ops", model.half, jnp.eye(points) - P[:, :points, :points], model.half)
    H = jnp.einsum("oqp,oql->opl", model.half, P[:, :points, points:])

    # From [1, input] to the scaled linear features [x, u, 1].
    used = layout.linear_inputs
    row, per_unit = np.arange(len(used)), 1 / layout.scale[used]
    linear = jnp.zeros((len(used) + 1, 1 + layout.features.size)).at[-1, 0].set(1.0)
    linear = linear.at[row, 1 + used].set(per_unit).at[row, 0].set(-layout.centre[used] * per_unit)

    s = layout.output_scale
    mean = s[:, None] * (p.weights[:, points:] @ linear)
    identity = np.zeros((outputs, layout.features.size))
    for output, state in enumerate(layout.structure.outputs):
        identity[output, layout.features.keep.index(state)] = 1.0
    gp = GaussianProcess(
        inputs=layout.centre + layout.scale * layout.points,
        length_scales=model.length_scales * layout.scale,
        signal_variance=model.signal_variance * s**2,
        weights=model.coefficients[:, :points] / s[:, None],
        precision=symmetrise(W) / s[:, None, None] ** 2,
        slope=mean[:, 1:] + identity,
        offset=mean[:, 0],
        cross_cov=H @ linear,
        linear_cov=s[:, None, None] ** 2 * symmetrise(linear.T @ P[:, points:, points:] @ linear),
    )
    return Dynamics(gp, layout.features, layout.sensors.with_noise(model.R), model.Q, layout.structure)
