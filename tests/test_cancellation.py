"""A model learned from much data has weights and a precision that are large and cancel: the controller keeps digits.

The formulas as in the textbook, in numbers of 80 bits, say what is right.
"""

import functools
from fractions import Fraction

import numpy as np
import pytest

from bayespilco.deploy.controller import filter

LONG = np.longdouble
POINTS, OUTPUTS = 36, 2


@functools.cache
def model() -> dict[str, np.ndarray]:
    """Two outputs of two inputs, from points that are much denser than the length-scales."""
    grid = np.linspace(-2.0, 2.0, 6)
    inputs = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    scales, s2 = np.array([[1.5, 2.0], [1.2, 1.7]]), np.array([1.4, 0.6])
    differences = (inputs[:, None] - inputs) / scales[:, None, None]
    K = s2[:, None, None] * np.exp(-np.sum(differences**2, axis=3) / 2) + 1e-6 * np.eye(POINTS)
    precision = np.linalg.inv(K)
    precision = (precision + precision.swapaxes(1, 2)) / 2
    targets = np.stack([np.sin(2 * inputs[:, 0]), np.cos(inputs[:, 0] * inputs[:, 1])])
    return {
        "inputs": inputs,
        "length_scales": scales,
        "signal_variance": s2,
        "precision": precision,
        "weights": np.einsum("opq,oq->op", precision, targets),
        "slope": np.zeros((OUTPUTS, 2)),
        "offset": np.zeros(OUTPUTS),
        "cross_cov": np.zeros((OUTPUTS, POINTS, 3)),
        "linear_cov": np.zeros((OUTPUTS, 3, 3)),
    }


def inverse(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of 2x2 matrices, and their determinants, by Cramer's rule."""
    det = A[0, 0] * A[1, 1] - A[0, 1] * A[1, 0]
    return np.array([[A[1, 1], -A[0, 1]], [-A[1, 0], A[0, 0]]], dtype=LONG) / det, det


def textbook(a: dict[str, np.ndarray], mu: np.ndarray, S: np.ndarray, number: type) -> np.ndarray:
    """The covariance of the outputs: the expectation of a product minus the product of expectations."""
    X, s2 = (a["inputs"] - mu).astype(number), a["signal_variance"].astype(number)
    beta, S = s2[:, None] * a["weights"].astype(number), S.astype(number)
    squares = a["length_scales"].astype(number) ** -2
    one = np.eye(2, dtype=number)

    def expectation(B: np.ndarray, exponent: np.ndarray, z: np.ndarray) -> np.ndarray:
        shrunk, det = inverse(one + S @ np.diag(B))
        quadratic = np.einsum("...i,ij,...j->...", z, shrunk.astype(number) @ S, z)
        result: np.ndarray = np.exp(exponent + quadratic / 2) / np.sqrt(det)
        return result

    scaled = [X * squares[o] for o in range(OUTPUTS)]
    log_k = [-np.sum(scaled[o] * X, axis=1) / 2 for o in range(OUTPUTS)]
    q = [expectation(squares[o], log_k[o], scaled[o]) for o in range(OUTPUTS)]
    cov = np.zeros((OUTPUTS, OUTPUTS), dtype=number)
    for o in range(OUTPUTS):
        for r in range(OUTPUTS):
            E = expectation(
                squares[o] + squares[r], log_k[o][:, None] + log_k[r], scaled[o][:, None] + scaled[r][None, :]
            )
            cov[o, r] = beta[o] @ E @ beta[r] - (beta[o] @ q[o]) * (beta[r] @ q[r])
            if o == r:
                cov[o, o] += s2[o] - s2[o] ** 2 * np.sum(a["precision"][o].astype(number) * E)
    return cov


def errors(spreads: tuple[float, ...]) -> tuple[list[float], list[float]]:
    """Of the controller's covariance, and of the textbook's in double precision."""
    ours, of_double = [], []
    for spread in spreads:
        for seed in range(3):
            random = np.random.default_rng(seed)
            mu, root = random.uniform(-1.5, 1.5, 2), spread * random.normal(size=(2, 2))
            S = root @ root.T
            exact = textbook(model(), mu, S, LONG)
            ours.append(float(np.abs(filter.through_gp(model(), mu, S)[1] - exact).max()))
            of_double.append(float(np.abs(textbook(model(), mu, S, np.float64) - exact).max()))
    return ours, of_double


@pytest.mark.skipif(np.finfo(LONG).eps > 1e-18, reason="this machine has no numbers of 80 bits")
def test_a_covariance_keeps_its_digits() -> None:
    """Beliefs are narrow most of the time: then a variance of 1e-6 had three digits left."""
    ours, of_double = errors((1e-3, 0.03))
    assert min(of_double) > 1e-10, "otherwise this model does not cancel"
    assert max(ours) < 1e-12
    wide, _ = errors((0.3, 2.0, 30.0))
    assert max(wide) < 1e-10


def test_a_product_has_nearly_twice_the_digits() -> None:
    random = np.random.default_rng(0)
    root = random.normal(size=(OUTPUTS, 50, 50)) * 10.0 ** random.uniform(-3, 3, size=(OUTPUTS, 50, 50))
    P, q = root + root.swapaxes(1, 2), random.uniform(size=(OUTPUTS, 50))
    exact = np.array([[float(whole_product(row, x)) for row in rows] for rows, x in zip(P, q, strict=True)])
    found = filter.product(P, q)
    assert np.abs(found - exact).max() <= 1e-25 * np.abs(P).max() + np.abs(np.spacing(exact)).max()
    assert np.abs(np.einsum("opq,oq->op", P, q) - exact).max() > 10 * np.abs(found - exact).max()


def whole_product(row: np.ndarray, x: np.ndarray) -> Fraction:
    pairs = zip(row.tolist(), x.tolist(), strict=True)
    return sum((Fraction(one) * Fraction(other) for one, other in pairs), Fraction(0))
