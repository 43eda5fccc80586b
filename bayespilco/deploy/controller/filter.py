"""The mathematics of one belief `N(m, V)`, in NumPy: update it, act on it, predict it.

These are the formulas of `core.moments`, `core.features` and `model.belief` for one belief instead of a distribution
over beliefs. They are written again so that the machine beside the plant needs neither JAX nor a compiler. The tests
compare the two implementations along whole episodes, to 1e-9. (A learned model may have large weights that cancel. The
formulas here are written so that they lose no digits by that; those of the library, which are differentiated, lose up
to seven of the sixteen in a covariance.)

A number that overflows raises `LinAlgError`. What to do then is decided by the caller.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray

LARGEST_NUMBER = 1e100
"""Beyond this, sums and products of stored numbers might overflow."""

MOST_TURNS = 1e6
"""What is farther away is no angle that wraps: what were left of it is rounding, which may look plausible."""

LARGEST_EXPONENT = 700.0
"""A kernel whose expectation is so small that a larger exponent could occur adds nothing, and would overflow."""


def is_seen(z: Array) -> Array:
    """Which entries of an observation are there. NaN and infinity are missing."""
    seen: Array = np.abs(z) <= LARGEST_NUMBER  # false for NaN
    return seen


def require_finite(*arrays: Array) -> None:
    if not all(is_seen(array).all() for array in arrays):
        raise np.linalg.LinAlgError


def sensor_noise(arrays: Mapping[str, Array], m: Array, V: Array) -> Array:
    """The variances that are expected of the sensors under a belief (`model.sensors.Sensors.at`)."""
    noise: Array = arrays["sensor_noise"]
    if "sensor_growth" not in arrays:
        return noise
    squares = (m - arrays["sensor_best_at"]) ** 2 + np.diag(V)
    expected: Array = noise * (1.0 + np.sum(arrays["sensor_growth"] * squares, axis=1))
    return expected


def innovation(arrays: Mapping[str, Array], m: Array, V: Array, z: Array) -> tuple[Array, Array]:
    """What was measured minus what was expected, and the predicted variance of that, per sensor.

    Sensors of an angle may wrap: the difference is the shortest way around. NaN is missing, here and in `z`.
    """
    C, turn = arrays["sensor_matrix"], arrays["sensor_turn"]
    difference = np.where(is_seen(z), z, np.nan) - C @ m - arrays["sensor_offset"]
    turns = np.round(difference / np.where(turn > 0, turn, np.inf))
    turns = np.where(np.abs(turns) <= MOST_TURNS, turns, 0.0)
    return difference - turns * turn, np.sum((C @ V) * C, axis=1) + sensor_noise(arrays, m, V)


def update(arrays: Mapping[str, Array], m: Array, V: Array, difference: Array) -> tuple[Array, Array]:
    """Combine a belief with the entries of an innovation that are there (`model.sensors.Sensors.condition`)."""
    C, noise, seen = arrays["sensor_matrix"], sensor_noise(arrays, m, V), is_seen(difference)
    if not seen.any():
        return m, V
    # (C V C' + R)^-1, zero where nothing is seen, as if the noise there were infinite.
    inverse, _ = shrink(np.diag(np.where(seen, 1 / noise, 0.0)), C @ V @ C.T)
    K = V @ C.T @ inverse
    rest = np.eye(len(m)) - K @ C
    updated = rest @ V @ rest.T + (K * noise) @ K.T  # Joseph's form: no negative eigenvalue
    m = m + K @ np.where(seen, difference, 0.0)
    require_finite(m, updated)
    return m, (updated + updated.T) / 2


def known_rows(arrays: Mapping[str, Array], x: Array, u: Array, t: int) -> Array:
    """`L x + M u + k_t`: what is known of the next state (`model.structure`)."""
    drift = arrays["drift"]
    moved: Array = arrays["transition"] @ x + arrays["action_matrix"] @ u
    if t < len(drift):
        moved = moved + drift[t]
    return moved


def features(m: Array, V: Array, angles: tuple[int, ...], keep: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and covariance of `[x[keep], sin x_a, cos x_a, ...]` (`bayespilco.core.features`)."""
    twice = np.repeat(np.asarray(angles, dtype=int), 2)
    kept = np.asarray(keep, dtype=int)
    t = m[twice] + np.tile([0.0, np.pi / 2], len(angles))
    S = V[np.ix_(twice, twice)]
    damping = np.exp(-np.maximum(np.diag(S), 0.0) / 2)
    # exp(-(v_i + v_j)/2) (exp(+-S_ij) - 1), written so that small S does not cancel and large S does not overflow.
    spread = np.add.outer(np.diag(S), np.diag(S)) / 2
    above, below = np.maximum(S, 0), np.minimum(S, 0)
    excess = -np.expm1(-above) * np.exp(above - spread) + np.expm1(below) * np.exp(-spread)
    deficit = np.expm1(-above) * np.exp(-spread) - np.expm1(below) * np.exp(-below - spread)
    sines = (excess * np.cos(np.subtract.outer(t, t)) - deficit * np.cos(np.add.outer(t, t))) / 2
    cross = V[np.ix_(kept, twice)] * (damping * np.cos(t))
    cov = np.block([[V[np.ix_(kept, kept)], cross], [cross.T, sines]])
    return np.concatenate([m[kept], damping * np.sin(t)]), cov


LARGEST_CAUTION = 20.0
"""See `control.policy`."""


def policy(arrays: Mapping[str, Array], x: Array, V: Array) -> Array:
    """The action for the mean `x` of the policy's features: kernels plus a linear map, squashed to the limits.

    A policy of the whole belief also looks at its covariance V (`control.policy.Caution`).
    """
    a = arrays
    distance = (x - a["policy_inputs"])[None] / a["policy_length_scales"][:, None]
    kernel = a["policy_signal_variance"][:, None] * np.exp(-np.sum(distance**2, axis=2) / 2)
    y = a["policy_slope"] @ x + a["policy_offset"] + np.sum(a["policy_weights"] * kernel, axis=1)
    if "policy_scale" in a:
        # log(1 + V / r), without the quotient, which might overflow
        doubt = np.log(a["policy_doubt"] + np.maximum(np.diag(V), 0.0)) - np.log(a["policy_doubt"])
        exponent = np.clip(a["policy_scale"] @ doubt, -LARGEST_CAUTION, LARGEST_CAUTION)
        y = np.exp(exponent) * y + a["policy_shift"] @ doubt
    squashed = (9 * np.sin(y) + np.sin(3 * y)) / 8  # between -1 and 1, to rounding
    action: Array = a["middle"] + a["limits"] * np.clip(squashed, -1.0, 1.0)
    return action


def predict(
    arrays: Mapping[str, Array], m: Array, V: Array, u: Array, t: int, angles: tuple[int, ...], keep: tuple[int, ...]
) -> tuple[Array, Array]:
    """The next belief: Appendix A on the joint of belief and action `[x, u]`, between the known rows.

    The action is known exactly. With `N = [L M]`: `N S N' + B S_y B' + N S G B' + (.)' + Q` (`model.dynamics`), where
    the slope `G` corrects `N` and `B` (`model.structure`).
    """
    S = np.zeros((len(m) + len(u),) * 2)
    S[: len(m), : len(m)] = V
    a = np.concatenate([m, u])
    y, y_cov, gain = through_gp(arrays, *features(a, S, angles, keep))
    G = _features_gain(a, S, angles, keep) @ gain
    N, B = np.concatenate([arrays["transition"], arrays["action_matrix"]], axis=1), arrays["output_matrix"]
    turned = arrays["correction"] @ (arrays["rate_rows"] - G[: len(m)].T)
    more = turned @ arrays["moves"]
    N, B = N + more, B + turned @ B
    cross = N @ S @ G @ B.T
    mean = known_rows(arrays, m, u, t) + more @ a + B @ y
    cov = N @ S @ N.T + B @ y_cov @ B.T + cross + cross.T + np.diag(arrays["process_noise"])
    require_finite(mean, cov)
    return mean, (cov + cov.T) / 2


def _features_gain(m: Array, V: Array, angles: tuple[int, ...], keep: tuple[int, ...]) -> Array:
    """How the features change with `[x, u]` on average: `Cov[a, features] = S` times this."""
    twice, kept = np.repeat(np.asarray(angles, dtype=int), 2), np.asarray(keep, dtype=int)
    t = m[twice] + np.tile([0.0, np.pi / 2], len(angles))
    gain = np.zeros((len(m), len(kept) + len(twice)))
    gain[kept, np.arange(len(kept))] = 1.0
    gain[twice, len(kept) + np.arange(len(twice))] = np.exp(-np.maximum(V[twice, twice], 0.0) / 2) * np.cos(t)
    return gain


def through_gp(arrays: Mapping[str, Array], mu: Array, S: Array) -> tuple[Array, Array, Array]:
    """Mean, covariance and gain of the GP's output at an input `N(mu, S)` (`bayespilco.core.moments`)."""
    a = arrays
    X, phi, s2 = a["inputs"] - mu, a["slope"], a["signal_variance"]
    inverse = np.eye(len(mu)) * a["length_scales"][:, None] ** -2.0  # L^-1
    i, j = np.triu_indices(len(s2))
    # q: the expectation of each kernel. From it follow the mean and its slope.
    A, log_det = shrink(inverse, S)  # (L + S)^-1
    q = np.exp(log_det[:, None] - np.einsum("opi,pi->op", X @ A, X) / 2)
    weighted = s2[:, None] * a["weights"] * q
    kernel_mean = weighted.sum(axis=1)
    mean = kernel_mean + phi @ mu + a["offset"]
    C = np.einsum("oij,oj->io", A, weighted @ X)
    # The covariance of two kernels is q q' (exp D - 1), and D is small where S is. Written as the expectation of their
    # product minus q q', it would lose the digits that both have in common, times large weights.
    T, log_scale = shrink(S, np.concatenate([inverse, inverse[i] + inverse[j]]))
    own, T = np.split(T, [len(s2)])  # (S^-1 + L_i^-1)^-1, and (S^-1 + L_i^-1 + L_j^-1)^-1
    b, rest = X @ inverse, (log_scale[len(s2) :] - log_det[i] - log_det[j])[:, None] / 2
    left = rest - np.sum((b[i] @ own[i] @ inverse[j] @ T) * b[i], axis=2) / 2
    right = rest - np.sum((b[j] @ own[j] @ inverse[i] @ T) * b[j], axis=2) / 2
    D = left[:, :, None] + right[:, None, :] + (b[i] @ T) @ b[j].swapaxes(1, 2)
    excess = np.expm1(np.minimum(D, LARGEST_EXPONENT))
    of_kernels = np.zeros((len(s2), len(s2)))
    of_kernels[i, j] = of_kernels[j, i] = np.sum(weighted[i] * np.einsum("opq,oq->op", excess, weighted[j]), axis=1)
    cross = C.T @ S @ phi.T
    cov = of_kernels + cross + cross.T + phi @ S @ phi.T
    # The uncertainty of the function itself: of the kernel's weights, and of the linear mean.
    P = a["precision"]
    explained = np.sum(q * (product(P, q) + np.einsum("opq,oq->op", P * excess[i == j], q)), axis=1)
    variance = s2 - s2**2 * explained
    one_mu = np.concatenate([[1.0], mu])
    moment = np.outer(one_mu, one_mu)
    moment[1:, 1:] += S
    shifted = mu + X @ A @ S
    one_shifted = np.concatenate([np.ones_like(shifted[..., :1]), shifted], axis=2)
    variance += 2 * s2 * np.einsum("op,opl,opl->o", q, a["cross_cov"], one_shifted)
    variance += np.einsum("olm,lm->o", a["linear_cov"], moment)
    return mean, cov + np.diag(np.maximum(variance, 0.0)), C + phi.T  # below zero by rounding only


def product(P: Array, q: Array) -> Array:
    """`P q`, for many of each, with nearly twice the digits inside: entries of a precision are large, and cancel."""
    P1, q1 = _leading(P), _leading(q)
    x = P1 * q1[:, None, :]  # exact, as each factor has half of the digits
    # Multiples of the last digit of a number that is larger than any sum of them: they add up exactly.
    _, exponent = np.frexp(len(q1[0]) * np.max(np.abs(x), axis=2, keepdims=True))
    grid = np.ldexp(1.0, exponent + 1)
    coarse = (x + grid) - grid
    fine = (x - coarse) + (P - P1) * q[:, None, :] + P1 * (q - q1)[:, None, :]
    total: Array = coarse.sum(axis=2) + fine.sum(axis=2)
    return total


def _leading(x: Array) -> Array:
    """The leading half of the digits."""
    shifted = x * (2.0**27 + 1)
    half: Array = shifted - (shifted - x)
    return half


def shrink(P: Array, B: Array) -> tuple[Array, Any]:
    """`(P^-1 + B)^-1` and `-1/2 log |I + P B|` without either inverse (`core.linalg`); for one or many of each."""
    require_finite(P, B)
    eigenvalues, vectors = np.linalg.eigh(P)
    C = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))[..., None, :]
    Ct = C.swapaxes(-1, -2)
    inner = np.eye(P.shape[-1]) + Ct @ B @ C
    require_finite(inner)
    L = np.linalg.cholesky(inner)
    half = np.linalg.solve(L, np.broadcast_to(Ct, L.shape))
    return half.swapaxes(-1, -2) @ half, -np.sum(np.log(np.diagonal(L, axis1=-2, axis2=-1)), axis=-1)
