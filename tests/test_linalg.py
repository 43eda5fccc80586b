"""Small linear algebra against long double: singular, nearly singular and badly scaled matrices included."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespilco.core.linalg import inverse_root, shrink, shrink_by_diagonal, shrink_diagonal

EPS = np.finfo(np.float64).eps
Matrix = np.ndarray


def solve(A: Matrix, B: Matrix) -> Matrix:
    """Gaussian elimination with pivoting in long double, which LAPACK does not have."""
    A, B = A.astype(np.longdouble), B.astype(np.longdouble)
    n = len(A)
    for k in range(n):
        p = k + int(np.argmax(np.abs(A[k:, k])))
        A[[k, p]], B[[k, p]] = A[[p, k]], B[[p, k]]
        for i in range(n):
            if i != k:
                factor = A[i, k] / A[k, k]
                A[i], B[i] = A[i] - factor * A[k], B[i] - factor * B[k]
    return B / np.diag(A)[:, None]


def exact(P: Matrix, B: Matrix) -> tuple[Matrix, float]:
    P, B = P.astype(np.longdouble), B.astype(np.longdouble)
    inner = np.eye(len(P), dtype=np.longdouble) + P @ B
    return solve(inner, P), -np.linalg.slogdet(inner.astype(float))[1] / 2


def psd(rng: np.random.Generator, n: int, rank: int | None = None, scales: Matrix | None = None) -> Matrix:
    root = rng.normal(size=(n, n if rank is None else rank))
    cov = root @ root.T
    return cov if scales is None else cov * scales[:, None] * scales


def nearly_singular(rng: np.random.Generator) -> Matrix:
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    P = turn @ np.diag(10.0 ** -np.arange(0, 18, 3)) @ turn.T
    return (P + P.T) / 2


def noisy(rng: np.random.Generator) -> Matrix:
    """Singular, with an error of 1e-12, as a covariance that is a difference of large sums."""
    noise = 1e-12 * rng.normal(size=(6, 6))
    return psd(rng, 6, 3) + noise + noise.T


CASES: dict[str, Callable[[np.random.Generator], Matrix]] = {
    "zero": lambda rng: np.zeros((6, 6)),
    "one": lambda rng: psd(rng, 1),
    "regular": lambda rng: psd(rng, 6),
    "rank one": lambda rng: psd(rng, 6, 1),
    "rank three": lambda rng: psd(rng, 6, 3),
    "action block of zeros": lambda rng: np.pad(psd(rng, 4), (0, 2)),
    "state of zeros": lambda rng: np.pad(psd(rng, 4), (2, 0)),
    "badly scaled": lambda rng: psd(rng, 6, None, 10.0 ** np.arange(-9, 9, 3)),
    "badly scaled, rank three": lambda rng: psd(rng, 6, 3, 10.0 ** np.arange(-9, 9, 3)),
    "nearly singular": nearly_singular,
    "twelve rows": lambda rng: psd(rng, 12, 7),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_shrinking(case: str, size: float) -> None:
    """Relative to the scale of `P`'s own rows and columns, to rounding times the condition of `I + P B`."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        P = CASES[case](rng)
        n, spread = len(P), np.sqrt(np.diag(P))
        unit = np.where(spread > 0, spread, 1.0)
        B = size * psd(rng, n, max(n - 1, 1)) / (unit[:, None] * unit)  # as strong against every row of P
        expected, log = exact(P, B)
        T, found = shrink(jnp.asarray(P), jnp.asarray(B))
        strength = 1 + float(np.linalg.norm(B * unit * unit[:, None], 2))
        error = np.abs(np.asarray(T) - expected) / (unit[:, None] * unit)
        assert error.max() < 50 * n * EPS * strength, (seed, error.max())
        assert abs(float(found) - log) < 50 * n * EPS * strength * (1 + abs(log)), seed


def test_an_inexact_singular_matrix_is_not_made_worse() -> None:
    """What comes out is as inexact as what goes in: a little more than the nearest matrix without negative values."""
    errors = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        P, B = noisy(rng), psd(rng, 6)
        values, vectors = np.linalg.eigh(P)
        expected, _ = exact((vectors * np.maximum(values, 0)) @ vectors.T, B)
        T, _ = shrink(jnp.asarray(P), jnp.asarray(B))
        errors.append(float(np.abs(np.asarray(T) - expected).max()))
    assert np.median(errors) < 3e-11 and np.max(errors) < 1e-8


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_diagonal_forms_are_the_same_function(size: float) -> None:
    rng = np.random.default_rng(3)
    P, b = psd(rng, 7, 4), size * np.array([0.0, 1.0, 0.3, 2.0, 0.0, 4.0, 1.0])
    T, log = shrink_by_diagonal(jnp.asarray(P), jnp.asarray(b))
    expected, expected_log = exact(P, np.diag(b))
    assert np.abs(np.asarray(T) - expected).max() < 1e-14 * np.abs(P).max() * (1 + size)
    assert abs(float(log) - expected_log) < 1e-13 * (1 + size)
    T, log = shrink_diagonal(jnp.asarray(b), jnp.asarray(P))
    expected, expected_log = exact(np.diag(b), P)
    assert np.abs(np.asarray(T) - expected).max() < 1e-14 * b.max() * (1 + size)
    assert abs(float(log) - expected_log) < 1e-13 * (1 + size)


def test_derivatives() -> None:
    """Against differences, in all three forms, at regular matrices (at singular ones a difference would leave them)."""
    rng = np.random.default_rng(4)
    P, B, along, p, b = psd(rng, 5), psd(rng, 5), psd(rng, 5), rng.uniform(0.1, 2, 5), rng.uniform(0.1, 2, 5)
    dP, dB, dp, db = psd(rng, 5), psd(rng, 5), rng.normal(size=5), rng.normal(size=5)
    forms = {shrink: (P, B, dP, dB), shrink_diagonal: (p, B, dp, dB), shrink_by_diagonal: (P, b, dP, db)}
    for form, (x, y, dx, dy) in forms.items():

        def value(x: jax.Array, y: jax.Array, form: Callable = form) -> jax.Array:
            T, log = form(x, y)
            return jnp.sum(along * T) + 3 * log

        gradient = jax.grad(value, argnums=(0, 1))(jnp.asarray(x), jnp.asarray(y))
        slope = np.sum(np.asarray(gradient[0]) * dx) + np.sum(np.asarray(gradient[1]) * dy)
        step = 1e-5
        expected = (value(x + step * dx, y + step * dy) - value(x - step * dx, y - step * dy)) / (2 * step)
        assert abs(slope - float(expected)) < 1e-7 * abs(float(expected))


def test_derivatives_at_singular_matrices() -> None:
    """Of zero, `T` grows as `P` does, and the logarithm as `-1/2 tr(B P)`."""
    rng = np.random.default_rng(5)
    B = jnp.asarray(psd(rng, 4))
    along_T = jax.grad(lambda P: jnp.sum(B * shrink(P, B)[0]))(jnp.zeros((4, 4)))
    along_log = jax.grad(lambda P: shrink(P, B)[1])(jnp.zeros((4, 4)))
    assert np.allclose(along_T, B, rtol=1e-14) and np.allclose(along_log, -B / 2, rtol=1e-14)


def test_whitening() -> None:
    rng = np.random.default_rng(6)
    for n in (1, 4, 12):
        M = psd(rng, n) + np.eye(n)
        H = np.asarray(inverse_root(jnp.asarray(M)))
        assert np.allclose(H, np.linalg.inv(np.linalg.cholesky(M)), rtol=1e-11, atol=1e-13)
        assert np.array_equal(H, np.tril(H))
    assert np.isnan(inverse_root(jnp.asarray(np.diag([1.0, -1.0])))).any(), "as a Cholesky factor"


@pytest.mark.parametrize("take", [jax.jacfwd, jax.jacrev])
def test_derivatives_of_whitening(take: Callable) -> None:
    rng = np.random.default_rng(7)
    M, change = psd(rng, 4) + np.eye(4), psd(rng, 4)
    slope = take(lambda step: inverse_root(jnp.asarray(M) + step * change))(0.0)
    step = 1e-6
    expected = (inverse_root(jnp.asarray(M + step * change)) - inverse_root(jnp.asarray(M - step * change))) / (
        2 * step
    )
    assert np.allclose(slope, expected, rtol=1e-6, atol=1e-9)


def test_many_at_once_are_the_same() -> None:
    rng = np.random.default_rng(8)
    P, B = (jnp.asarray(np.stack([psd(rng, 5, 3) for _ in range(7)])) for _ in range(2))
    T, log = jax.vmap(shrink)(P, B)
    for k in range(7):
        one, one_log = shrink(P[k], B[k])
        assert np.allclose(T[k], one, rtol=1e-13, atol=1e-14) and np.isclose(log[k], one_log, rtol=1e-13)
