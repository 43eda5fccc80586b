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
    where, weights = layout.points, model.coefficients[:, :points]
    if layout.mirror is not None and model.other_inverse is not None:
        # The mirror images of the points are points too. What is learned of one parity leaves the other at zero.
        odd_or_even = jnp.asarray(layout.structure.mirrored_outputs)
        sign, inverse, other = odd_or_even[:, None, None], model.inverse, model.other_inverse
        W = _blocks(W + (other - inverse) / 2, sign * (W - (other + inverse) / 2))
        H = jnp.concatenate([H, sign * H], axis=1)
        where = jnp.concatenate([where, layout.mirror * where])
        weights = jnp.concatenate([weights, odd_or_even[:, None] * weights], axis=1)

    # From [1, input] to the scaled linear features [x, u, 1].
    used = layout.linear_inputs
    row, per_unit = np.arange(len(used)), 1 / layout.scale[used]
    linear = jnp.zeros((len(used) + 1, 1 + layout.features.size)).at[-1, 0].set(1.0)
    linear = linear.at[row, 1 + used].set(per_unit).at[row, 0].set(-layout.centre[used] * per_unit)

    s, linear = layout.output_scale, jnp.asarray(layout.linear_mask)[:, :, None] * linear
    mean = s[:, None] * jnp.einsum("ol,oli->oi", p.weights[:, points:], linear)
    identity = np.zeros((outputs, layout.features.size))
    for output, state in enumerate(layout.structure.outputs):
        identity[output, layout.features.keep.index(state)] = 1.0
    gp = GaussianProcess(
        inputs=layout.centre + layout.scale * where,
        length_scales=model.length_scales * layout.scale,
        signal_variance=model.signal_variance * s**2,
        weights=weights / s[:, None],
        precision=symmetrise(W) / s[:, None, None] ** 2,
        slope=mean[:, 1:] + identity,
        offset=mean[:, 0],
        cross_cov=H @ linear,
        linear_cov=s[:, None, None] ** 2 * symmetrise(jnp.swapaxes(linear, 1, 2) @ P[:, points:, points:] @ linear),
    )
    return Dynamics(gp, layout.features, layout.sensors.with_noise(model.R), model.Q, layout.structure)


def _blocks(own: Float[Array, "output p p"], across: Float[Array, "output p p"]) -> Float[Array, "output q q"]:
    """A matrix between points and between their mirror images, and one across."""
    return jnp.concatenate(
        [jnp.concatenate([own, across], axis=2), jnp.concatenate([across, own], axis=2)],
        axis=1,
    )
