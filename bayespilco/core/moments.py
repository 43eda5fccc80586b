"""Appendices A and B of the paper, corrected: a Gaussian, or a distribution over beliefs, through the GP.

Everything follows from two averages of the kernel over a Gaussian:

    q(x, mu, L, V)          = |L^-1 V + I|^-1/2 exp(-1/2 (x-mu)' (L+V)^-1 (x-mu))                        (Eq. 30)
    Q(x, x', La, Lb, V, mu, S) = |R|^-1/2 q(x, mu, La, V) q(x', mu, Lb, V) exp(1/2 z' R^-1 S z)           (Eq. 31)
        R = S [(La+V)^-1 + (Lb+V)^-1] + I,   z = (La+V)^-1 (x-mu) + (Lb+V)^-1 (x'-mu)                  (Eqs. 32-33)

`q` is the expectation of one kernel, `Q` that of a product of two kernels which a belief of covariance `V` has
blurred already. Neither `V` nor `S` is ever inverted: both are singular in the action's block and at the start.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayespilco.core.gaussian import Gaussian, Moments, diagonal_matrix
from bayespilco.core.gp import GaussianProcess
from bayespilco.core.linalg import shrink, shrink_by_diagonal, shrink_diagonal
from bayespilco.core.pair_sums import over_pairs, own_sum, pair_sum
from bayespilco.core.precision import float64


@float64
def gp_moments(gp: GaussianProcess, gaussian: Gaussian) -> Moments:
    """Appendix A (Eqs. 24-29): the GP's output under a Gaussian input.

    Args:
        gp: The model `f`.
        gaussian: `N(m, V)`, the input.

    Returns:
        Mean, covariance (of the function: noise is not in it) and gain. With `V = 0` these are the GP's mean and
        variance at the point, and its slope.
    """
    return _flattened(gp, gaussian)[0]


@float64
def belief_moments(
    gp: GaussianProcess, mean_gaussian: Gaussian, cov: Float[Array, "input input"]
) -> tuple[Moments, Float[Array, "output output"]]:
    """Appendix B (Eqs. 35-41): predict through the GP from a distribution over beliefs.

    A belief `N(M, V)` has an uncertain mean `M ~ N(mu, S)` and a fixed covariance. Flattened, its state is
    `N(mu, S + V)`, and Appendix A applied there gives the mean and the gain outright. What remains is to divide
    the flattened covariance between the part that the filter will see (the new spread of `M`) and the part that
    it will not (the new `V`), by the law of total covariance.

    Args:
        gp: The model `f`.
        mean_gaussian: `M ~ N(mu, S)`, the joint of belief mean and action.
        cov: `V`, zero in the rows and columns of the action.

    Returns:
        The moments of the next belief mean, and the expected next belief covariance. With `S = 0` the latter is
        the covariance of Appendix A; with `V = 0` the former has the covariance of the GP's mean function.
    """
    flat, kernel_mean, C = _flattened(gp, Gaussian(mean_gaussian.mean, mean_gaussian.cov + cov))
    S = mean_gaussian.cov
    second = _second_moments(gp, mean_gaussian.mean, S, cov)
    spread = second - jnp.outer(kernel_mean, kernel_mean) + _linear_terms(C, S, gp.slope)  # Eq. 38
    return Moments(flat.mean, spread, flat.gain), flat.cov - spread  # Eq. 40


@float64
def cross_cov(
    gp: GaussianProcess,
    x: Gaussian,
    other: GaussianProcess,
    m: Gaussian,
    cov: Float[Array, "input input"],
    cross: Float[Array, "input input"],
) -> Float[Array, "output output"]:
    """`Cov[f(X), E_b[g]]`: of one GP at X, and of what a belief `N(M, cov)` expects of another.

    X and M are jointly Gaussian. Then the average of a product of two kernels is Eq. 31 with a joint of twice the size.
    With `X - M ~ N(0, cov)` independent of M and `g = f`, this is the covariance of `belief_moments`.

    Args:
        gp: `f`.
        other: `g`.
        cross: `Cov[X, M]`.
    """
    _, of_x, C_x = _flattened(gp, x)
    _, of_m, C_m = _flattened(other, Gaussian(m.mean, m.cov + cov))
    D = x.size
    both = jnp.block([[x.cov, cross], [cross.T, m.cov]])
    B, log_q = _blurred(other, cov)
    c, d = gp.inputs - x.mean, other.inputs - m.mean

    def product(a: Array, B: Array, log: Array, u: Array, v: Array) -> Array:
        """`sum_ij u_i v_j E[k(X, x_i) k(M, x_j)]`."""
        W = jax.scipy.linalg.block_diag(diagonal_matrix(a), B)
        T, log_R = shrink(both, W)
        P = W - W @ T @ W
        exponent = (
            (log + log_R)
            - jnp.sum((c @ P[:D, :D]) * c, axis=1)[:, None] / 2
            - jnp.sum((d @ P[D:, D:]) * d, axis=1)[None, :] / 2
            - c @ P[:D, D:] @ d.T
        )
        return u @ jnp.exp(exponent) @ v

    over_other = jax.vmap(product, in_axes=(None, 0, 0, None, 0))
    over_both = jax.vmap(over_other, in_axes=(0, None, None, 0, None))
    weights, other_weights = (each.signal_variance[:, None] * each.weights for each in (gp, other))
    second = over_both(gp.length_scales**-2, B, log_q, weights, other_weights)
    phi_x, phi_m = gp.slope.T, other.slope.T
    linear = C_x.T @ cross @ phi_m + phi_x.T @ cross @ C_m + phi_x.T @ cross @ phi_m
    return second - jnp.outer(of_x, of_m) + linear


def _flattened(
    gp: GaussianProcess, gaussian: Gaussian
) -> tuple[Moments, Float[Array, " output"], Float[Array, "input output"]]:
    """Appendix A, with its intermediate results: the kernel's share of the mean, and `C`."""
    mu, V = gaussian.mean, gaussian.cov
    A, log_q = _kernel_average(gp, mu, V)
    weighted = gp.signal_variance[:, None] * gp.weights * jnp.exp(log_q)  # s^2 beta_i q_i
    kernel_mean = jnp.sum(weighted, axis=1)
    mean = kernel_mean + gp.slope @ mu + gp.offset  # Eq. 25
    C = jnp.einsum("oij,oj->io", A, weighted @ (gp.inputs - mu))  # Eq. 26
    second = _second_moments(gp, mu, V, None)
    cov = second - jnp.outer(kernel_mean, kernel_mean) + _linear_terms(C, V, gp.slope)  # Eq. 27
    if gp.precision is not None:
        cov = cov + diagonal_matrix(gp.signal_variance + _mean_uncertainty(gp, gaussian, A, log_q))
    return Moments(mean, cov, C + gp.slope.T), kernel_mean, C


def _kernel_average(
    gp: GaussianProcess, mu: Float[Array, " input"], V: Float[Array, "input input"]
) -> tuple[Float[Array, "output input input"], Float[Array, "output points"]]:
    """`(L_a + V)^-1` and `log q(x_i, mu, L_a, V)` for every output and point (Eq. 30)."""
    centred = gp.inputs - mu
    A, log_q = _blurred(gp, V)
    return A, log_q[:, None] - jnp.einsum("opi,pi->op", centred @ A, centred) / 2


def _blurred(
    gp: GaussianProcess, V: Float[Array, "input input"]
) -> tuple[Float[Array, "output input input"], Float[Array, " output"]]:
    """`(L_a + V)^-1` and `log |L_a^-1 V + I|^-1/2`: each output's kernel, blurred by an uncertain input."""
    A, log_q = jax.vmap(shrink_diagonal, in_axes=(0, None))(gp.length_scales**-2, V)
    return A, log_q


def _second_moments(
    gp: GaussianProcess,
    mu: Float[Array, " input"],
    S: Float[Array, "input input"],
    V: Float[Array, "input input"] | None,
) -> Float[Array, "output output"]:
    """`s_a^2 s_b^2 beta_a' Q beta_b` for every pair of outputs; for `V = None` less `s_a^4 tr(W_a Q)` on the diagonal.

    For one pair, `log Q_ij` is a quadratic form of the two points, with `T = R^-1 S` and `A = (L+V)^-1`: its blocks are
    `A_a - A_a T A_a`, `A_b - A_b T A_b` and `A_a T A_b`. That is what `pair_sums` sweeps.
    """
    # All pairs of outputs at once: first each with itself, then the others.
    outputs = gp.offset.shape[0]
    i, j = (np.concatenate([np.arange(outputs), others]) for others in np.triu_indices(outputs, k=1))
    if V is None:
        a, log_q = gp.length_scales**-2, jnp.zeros_like(gp.offset)
        A = diagonal_matrix(a)
        T, log_R = jax.vmap(shrink_by_diagonal, in_axes=(None, 0))(S, a[i] + a[j])  # R^-1 S, log |R|^-1/2
    else:
        A, log_q = _blurred(gp, V)
        T, log_R = jax.vmap(shrink, in_axes=(None, 0))(S, A[i] + A[j])
    log_q = log_q + jnp.log(gp.signal_variance)
    Ai, Aj = A[i], A[j]
    AT, TA = Ai @ T, T @ Aj
    M = AT @ Aj
    G, H = Ai - AT @ Ai, Aj - Aj @ TA
    k = log_q[i] + log_q[j] + log_R

    own, rest = slice(None, outputs), slice(outputs, None)
    W = gp.precision if V is None else None
    weights = (gp.weights,) if W is None else (gp.weights, W)

    def with_itself(k: Array, G: Array, M: Array, u: Array, W: Array | None = None) -> Array:
        return own_sum(k, G, M, mu, gp.inputs, u, W)

    def with_another(k: Array, G: Array, H: Array, M: Array, u: Array, v: Array) -> Array:
        return pair_sum(k, G, H, M, mu, gp.inputs, u, v)

    sums = over_pairs(with_itself, k[own], G[own], M[own], *weights)
    if outputs > 1:
        off = over_pairs(with_another, k[rest], G[rest], H[rest], M[rest], gp.weights[i[rest]], gp.weights[j[rest]])
        sums = jnp.concatenate([sums, off])
    place = np.zeros((outputs, outputs), dtype=int)
    place[i, j] = place[j, i] = np.arange(len(i))
    return sums[place]


def _linear_terms(
    C: Float[Array, "input output"], V: Float[Array, "input input"], slope: Float[Array, "output input"]
) -> Float[Array, "output output"]:
    """The linear mean's share of a covariance: `C_a' V phi_b + phi_a' V C_b + phi_a' V phi_b`."""
    phi = slope.T
    cross = C.T @ V @ phi
    return cross + cross.T + phi.T @ V @ phi


def _mean_uncertainty(
    gp: GaussianProcess,
    gaussian: Gaussian,
    A: Float[Array, "output input input"],
    log_q: Float[Array, "output points"],
) -> Float[Array, " output"]:
    """Expected variance due to an uncertain linear mean: `E[2 k(x,X) H [1,x] + [1,x]' P [1,x]]`, in closed form.

    Under the product of kernel `i` and the input's density, `x` has mean `mu + V (L+V)^-1 (x_i - mu)`.
    """
    if gp.cross_cov is None or gp.linear_cov is None:
        return jnp.zeros_like(gp.offset)
    mu, V = gaussian.mean, gaussian.cov
    one_x = jnp.concatenate([jnp.ones(1), mu])
    second = jnp.outer(one_x, one_x).at[1:, 1:].add(V)
    shifted = mu + jnp.einsum("ij,ojk,pk->opi", V, A, gp.inputs - mu)
    one_shifted = jnp.concatenate([jnp.ones_like(shifted[..., :1]), shifted], axis=-1)
    kernel_mean = gp.signal_variance[:, None] * jnp.exp(log_q)
    cross = jnp.einsum("op,opl,opl->o", kernel_mean, gp.cross_cov, one_shifted)
    return 2 * cross + jnp.einsum("olm,lm->o", gp.linear_cov, second)
