"""Sines of Gaussians, against the original programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.core.features import AngleFeatures, Saturation, sines
from bayespilco.core.gaussian import Gaussian, Moments
from tests.golden import cases, compare, indices, load


def scaled(moments: Moments, scale: np.ndarray) -> dict[str, jax.Array]:
    scale = jnp.asarray(scale)
    return {"M": scale * moments.mean, "V": scale[:, None] * moments.cov * scale, "C": moments.gain * scale}


@pytest.mark.parametrize("number", cases("gTrig"))
def test_angles(number: int) -> None:
    case = load("gTrig")[number]
    features = AngleFeatures(angles=indices(case["i"]), keep=())
    scale = np.repeat(case["e"].ravel(), 2)
    arguments = {"m": case["m"].ravel(), "v": case["v"]}
    compare(lambda m, v: scaled(features.moments(Gaussian(m, v)), scale), case, arguments, 1e-11)


@pytest.mark.parametrize("number", cases("pc_gTrigh"))
def test_angles_under_beliefs(number: int) -> None:
    case = load("pc_gTrigh")[number]
    features = AngleFeatures(angles=indices(case["i"]), keep=())

    def moments(m: jax.Array, s: jax.Array, v: jax.Array) -> dict[str, jax.Array]:
        of_mean, cov = features.belief_moments(Gaussian(m, s), v)
        return {"M": of_mean.mean, "S": of_mean.cov, "C": of_mean.gain, "V": cov}

    compare(moments, case, {"m": case["m"].ravel(), "s": case["s"], "v": case["v"]}, 1e-11)


@pytest.mark.parametrize("name", ["gSin", "gSat"])
@pytest.mark.parametrize("number", cases("gSin"))
def test_squashing(name: str, number: int) -> None:
    """`e sin x` and `e (9 sin x + sin 3x) / 8` of some components of `x`."""
    case = load(name)[number]
    scale = case["e"].ravel()
    select = jnp.eye(case["m"].size)[list(indices(case["i"])), :]

    def moments(m: jax.Array, v: jax.Array) -> dict[str, jax.Array]:
        part = Gaussian(select @ m, select @ v @ select.T)
        if name == "gSin":
            named = scaled(sines(part, jnp.zeros(part.size)), scale)
        else:
            named = scaled(Saturation(jnp.asarray(scale)).moments(part), np.ones(part.size))
        return named | {"C": select.T @ named["C"]}

    compare(moments, case, {"m": case["m"].ravel(), "v": case["v"]}, 1e-11)


def test_saturation_reaches_its_limits_and_no_further() -> None:
    squash = Saturation(jnp.asarray([2.0, 3.0]))
    np.testing.assert_allclose(squash(jnp.full(2, np.pi / 2)), [2.0, 3.0], rtol=1e-14)
    values = jax.vmap(squash)(jnp.linspace(-20, 20, 1001)[:, None] * jnp.ones(2))
    assert (np.abs(values) <= np.array([2.0, 3.0]) * (1 + 1e-14)).all()


def test_features_come_in_the_order_kept_then_sine_and_cosine_of_each_angle() -> None:
    x = jnp.asarray([0.1, 0.2, 0.3, 0.4])
    features = AngleFeatures(angles=(3, 1), keep=(2, 0))
    expected = [0.3, 0.1, np.sin(0.4), np.cos(0.4), np.sin(0.2), np.cos(0.2)]
    np.testing.assert_allclose(features(x), expected, rtol=1e-14)
    np.testing.assert_allclose(features.moments(Gaussian(x, np.zeros((4, 4)))).mean, expected, rtol=1e-14)


@pytest.mark.parametrize("variance", [0.0, 1e-12, 1e3])
def test_no_cancellation_and_no_overflow(variance: float) -> None:
    """Variances of sines are accurate for tiny input variances, and finite (with gradients) for huge ones."""

    def of_sine(v: jax.Array) -> jax.Array:
        return sines(Gaussian(jnp.asarray([0.3]), v[None, None]), jnp.zeros(1)).cov[0, 0]

    value, slope = jax.value_and_grad(of_sine)(jnp.asarray(variance))
    assert np.isfinite(value) and np.isfinite(slope)
    expected = -np.expm1(-variance) * (1 + np.exp(-variance) * np.cos(0.6)) / 2
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-300)
