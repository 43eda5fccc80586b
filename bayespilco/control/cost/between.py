"""The covariance of two costs `f(y)` and `g(z)` whose features are jointly Gaussian, with `Cov[y, z] = C`.

Three facts give all that is needed in closed form, each knowing only one of the two costs:

- The Hermite expansion: `Cov[f, g] = E[f']' C E[g'] + tr(E[f''] C E[g''] C') / 2 + ...`, with expected derivatives of
  each cost by itself. If one cost is linear or quadratic, there is nothing beyond the second term.
- Tilting: multiplied by `exp(-d'Wd/2)`, a Gaussian is a Gaussian again. So with a saturating `f` the expectation of the
  product is that of `g` at another Gaussian.
- For hinges the second derivatives are impulses, and the rest of the expansion is an integral over one angle.
"""

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Float

from bayespilco.core.gaussian import Gaussian

if TYPE_CHECKING:  # costs import this module
    from bayespilco.control.cost.base import FeatureCost


def covariance(
    f: "FeatureCost", g: "FeatureCost", y: Gaussian, z: Gaussian, cross: Float[Array, "feature others"]
) -> Float[Array, ""]:
    """`Cov[f(y), g(z)]`; exact if one of the costs knows a closed form, otherwise to second order."""
    known = f.covariance_with(g, y, z, cross)
    if known is None:
        known = g.covariance_with(f, z, y, cross.T)
    return expansion(f, g, y, z, cross) if known is None else known


def expansion(
    f: "FeatureCost", g: "FeatureCost", y: Gaussian, z: Gaussian, cross: Float[Array, "feature others"]
) -> Float[Array, ""]:
    """The first two terms of the Hermite expansion of the covariance."""
    first = f.feature_moments(y).gain[:, 0] @ cross @ g.feature_moments(z).gain[:, 0]
    second = jnp.sum((f.curvature(y) @ cross) * (cross @ g.curvature(z)))
    return first + second / 2
