"""Ordinary training: the objectives against the original programs, and fits that must not fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.core.optimise import Reason
from bayespilco.training.likelihood import (
    Hyperparameters,
    Points,
    curb_penalty,
    negative_log_likelihood,
    snr_penalty,
    sparse_negative_log_likelihood,
)
from bayespilco.training.marginal import fit_marginal
from tests import golden


def points(x: np.ndarray, y: np.ndarray, padding: int = 0) -> Points:
    everything = jnp.ones(x.shape[1], dtype=bool)
    real = np.arange(len(x) + padding) < len(x)
    x, y = np.pad(x, ((0, padding), (0, 0)), constant_values=7.0), np.pad(y.ravel(), (0, padding), constant_values=9.0)
    return Points(jnp.asarray(x), jnp.asarray(y), jnp.asarray(real), everything, everything)


def hyper_v09(column: jax.Array) -> Hyperparameters:
    size = column.shape[0] - 2
    return Hyperparameters(column[:size], column[size], column[size + 1], jnp.zeros(size), jnp.zeros(()))


def hyper_pc(fields: dict[str, np.ndarray]) -> Hyperparameters:
    lengths, s, n, m, b = (jnp.asarray(fields[letter].ravel()) for letter in "lsnmb")
    return Hyperparameters(lengths, s[0], n[0], m, b[0])


def assert_all_close(actual: Hyperparameters, expected: Hyperparameters, tolerance: float) -> None:
    for name, one, other in zip(Hyperparameters._fields, actual, expected, strict=True):
        golden.assert_close(one, other, tolerance, name)


@pytest.mark.parametrize("case", golden.load("gpr_hypCurb"))
def test_likelihood_and_curb_are_those_of_v09(case: dict) -> None:
    """v0.9's penalty is a power of *log* ratios, and limits length-scales as well; its default spread is one."""
    data, column = points(case["x"], case["y"]), jnp.asarray(case["loghyper"].ravel())
    curb = case["curb"]

    def plain(column: jax.Array) -> jax.Array:
        return negative_log_likelihood(hyper_v09(column), data)

    def curbed(column: jax.Array) -> jax.Array:
        spread = jnp.asarray(curb["std"].ravel())
        return plain(column) + curb_penalty(hyper_v09(column), spread, curb["snr"].item(), curb["ls"].item())

    def default(column: jax.Array) -> jax.Array:
        return plain(column) + curb_penalty(hyper_v09(column), jnp.ones(column.shape[0] - 2))

    for function, name in ((plain, "nlml"), (curbed, "f_curb"), (default, "f_curb_default")):
        value, gradient = jax.jit(jax.value_and_grad(function))(column)
        golden.assert_close(value, case[name].item(), 1e-9, name)
        golden.assert_close(gradient, case["d" + name].ravel(), 1e-9, "d" + name)


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("case", golden.load("pc_gp_nlml_linmean"))
def test_likelihood_with_linear_mean(case: dict, padding: int) -> None:
    """Value and gradient in closed form; padded points add nothing to either."""
    data = points(case["x"], case["y"], padding)
    value, gradient = jax.jit(jax.value_and_grad(negative_log_likelihood))(hyper_pc(case["hyp"]), data)
    golden.assert_close(value, case["nlml"].item(), 1e-10, "nlml")
    assert_all_close(gradient, hyper_pc(case["dnlml"]), 1e-9)


@pytest.mark.parametrize("case", golden.load("fitc"))
def test_fitc_objective_of_v09(case: dict) -> None:
    """An absolute ridge of 1e-6; summed over outputs; the gradient is with respect to the inducing points."""

    def total(inducing: jax.Array) -> jax.Array:
        return sum(
            sparse_negative_log_likelihood(
                hyper_v09(jnp.asarray(column)),
                points(case["inputs"], y),
                inducing,
                "fitc",
                ridge=1e-6,
                relative_ridge=0.0,
            )
            for column, y in zip(case["hyp"].T, case["targets"].T, strict=True)
        )

    value, gradient = jax.jit(jax.value_and_grad(total))(jnp.asarray(case["induce"]))
    golden.assert_close(value, case["nlml"].item(), 1e-9, "nlml")
    golden.assert_close(gradient, case["dnlml"], 1e-7, "dnlml")


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("case", golden.load("pc_sgp"))
def test_sparse_objective_with_linear_mean(case: dict, padding: int) -> None:
    data, inducing = points(case["x"], case["y"], padding), jnp.asarray(case["p"]["induce"])
    function = jax.jit(jax.value_and_grad(sparse_negative_log_likelihood, argnums=(0, 2)), static_argnums=3)
    value, (gradient, along_inducing) = function(hyper_pc(case["p"]["hyp"]), data, inducing, case["style"])
    golden.assert_close(value, case["nlml"].item(), 1e-10, "nlml")
    golden.assert_close(along_inducing, case["dnlml"]["induce"], 1e-9, "inducing")
    assert_all_close(gradient, hyper_pc(case["dnlml"]["hyp"]), 1e-9)


@pytest.mark.parametrize("kind", ["fitc", "vfe"])
def test_sparse_objectives_become_the_full_one_with_all_points(kind: str) -> None:
    case = golden.load("pc_gp_nlml_linmean")[1]
    data, hyper = points(case["x"], case["y"]), hyper_pc(case["hyp"])
    value = sparse_negative_log_likelihood(hyper, data, data.inputs, kind, relative_ridge=1e-12)
    np.testing.assert_allclose(value, negative_log_likelihood(hyper, data), rtol=1e-9)


def test_snr_penalty_is_a_wall_at_the_limit() -> None:
    at = lambda ratio: float(snr_penalty(jnp.log(ratio), jnp.zeros(()), 500.0))  # noqa: E731
    assert at(50.0) < 1e-29
    np.testing.assert_allclose(at(500.0), 1.0, rtol=1e-12)
    assert at(1000.0) > 1e9


def sines(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two outputs of very different sizes, one of them linear."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * [1.0, 5.0, 0.1] + [0.0, 3.0, 0.0]
    y = np.stack([np.sin(2 * x[:, 0]) + 0.2 * x[:, 1], 100 * x[:, 2]], axis=1)
    return x, y + rng.normal(size=(n, 2)) * [0.1, 0.01]


@pytest.mark.parametrize("penalty", ["snr", "curb"])
def test_fit_recovers_function_and_noise(penalty: str) -> None:
    x, y = sines(200)
    fit = fit_marginal(x, y, penalty=penalty)
    noise = np.sqrt(fit.noise_variance[0])
    assert abs(noise - 0.1) < 4 * 0.1 / np.sqrt(2 * 200) + 0.01  # four standard errors, and the function's flexibility
    fresh, _ = sines(100, seed=1)
    error = jax.vmap(fit.gp)(jnp.asarray(fresh))[:, 0] - np.sin(2 * fresh[:, 0]) - 0.2 * fresh[:, 1]
    assert np.sqrt(np.mean(error**2)) < 0.08
    assert fit.jitter == 0.0 and set(fit.stopped) == {Reason.CONVERGED}


def test_fit_minimises_the_stated_objective_in_the_datas_units() -> None:
    x, y = sines(60)
    fit = fit_marginal(x, y)
    data = points(x, y[:, 0])
    gp = fit.gp

    def objective(hyper: Hyperparameters) -> jax.Array:
        return negative_log_likelihood(hyper, data) + snr_penalty(hyper.log_signal, hyper.log_noise, 500.0)

    logs = (jnp.log(gp.length_scales[0]), jnp.log(gp.signal_variance[0]) / 2, jnp.log(fit.noise_variance[0]) / 2)
    value, gradient = jax.jit(jax.value_and_grad(objective))(Hyperparameters(*logs, gp.slope[0], gp.offset[0]))
    np.testing.assert_allclose(value, fit.objective[0], rtol=1e-8)
    assert max(float(jnp.abs(part).max()) for part in gradient[:3]) < 0.05


def test_inputs_can_be_kept_out_of_the_kernel_and_of_the_mean() -> None:
    x, y = sines(80)
    gp = fit_marginal(x, y, kernel_inputs=(True, False, True), linear_inputs=(False, True, True)).gp
    assert np.isinf(gp.length_scales[:, 1]).all() and np.isfinite(gp.length_scales[:, [0, 2]]).all()
    assert (gp.slope[:, 0] == 0).all() and (gp.slope[:, 1] != 0).all()


@pytest.mark.parametrize("kind", ["fitc", "vfe"])
def test_sparse_fit_is_nearly_the_full_one(kind: str) -> None:
    x, y = sines(120)
    inducing = np.random.default_rng(2).permutation(x)[:30]
    full, sparse = fit_marginal(x, y[:, :1]), fit_marginal(x, y[:, :1], kind=kind, inducing=inducing)
    difference = jax.vmap(full.gp)(jnp.asarray(x)) - jax.vmap(sparse.gp)(jnp.asarray(x))
    assert np.sqrt(np.mean(difference**2)) < 0.1


RNG = np.random.default_rng(3)
X = RNG.normal(size=(30, 2))
AWKWARD = {
    "one point": (X[:1], X[:1, :1]),
    "two points": (X[:2], X[:2, :1]),
    "as many points as weights": (X[:4], X[:4, :1] ** 2),
    "constant targets": (X, np.full((30, 1), 3.0)),
    "zero targets": (X, np.zeros((30, 1))),
    "duplicated inputs": (np.repeat(X[:3], 10, axis=0), RNG.normal(size=(30, 1))),
    "one input only, repeated": (np.zeros((30, 2)), np.ones((30, 1))),
    "an exact line": (X, 3 * X[:, :1]),
    "huge and tiny": (1e8 * X, 1e-8 * X[:, :1] ** 2),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_data_give_a_finite_model(name: str) -> None:
    x, y = AWKWARD[name]
    fit = fit_marginal(x, y)
    mean, variance = jax.vmap(fit.gp)(jnp.asarray(x)), jax.vmap(fit.gp.variance)(jnp.asarray(x))
    assert np.isfinite(mean).all() and np.isfinite(variance).all() and np.isfinite(fit.objective).all()
    assert (np.asarray(fit.noise_variance) > 0).all() and len(fit.stopped) == 1


def test_too_few_data_keep_the_starting_values() -> None:
    """Two inputs and an offset: five points are the first that tell more than a line."""
    for count in (4, 5):
        fit = fit_marginal(X[:count], np.sin(X[:count, :1]), evaluations=2)
        assert (fit.stopped == (Reason.TOO_FEW_DATA,)) is (count == 4)


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((0, 2)), np.zeros((0, 1)), "at least one data point"),
        (np.full((3, 2), np.nan), np.zeros((3, 1)), "row 0"),
        (np.zeros((3, 2)), np.array([[0.0], [np.inf], [0.0]]), "targets must be finite; row 1"),
        (np.zeros((3, 2)), np.zeros((4, 1)), "equally many"),
    ],
)
def test_bad_data_are_refused_with_a_sentence(x: np.ndarray, y: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit_marginal(x, y)
