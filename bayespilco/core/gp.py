"""The Gaussian process as everything here uses it: conditioned, and reduced to what prediction needs.

Output `a` at a point `x` is Gaussian,

    f_a(x) ~ N( phi_a' x + b_a + k_a(x, X) beta_a ,   s_a^2 - k_a(x, X) W_a k_a(X, x) + mean's own uncertainty )

with the squared-exponential kernel `k_a(x, x') = s_a^2 exp(-1/2 (x - x')' L_a^-1 (x - x'))`. However a model was
trained, it ends as points `X`, weights `beta` and a matrix `W`: for the full GP `W = (K + sn^2 I)^-1`, for sparse
ones another, and a radial-basis policy has no `W` at all. Appendix A and B are written once for all of them.
"""

from collections.abc import Callable
from typing import Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from bayespilco.core.precision import as_float64, float64, is_concrete, optional_float64

T = TypeVar("T")


class GaussianProcess(eqx.Module):
    """One GP per output over shared points. A length-scale of infinity keeps an input out of that output's kernel.

    The linear mean may be uncertain too, jointly with the kernel's weights; then the variance at `x` also has
    `2 k(x, X) H_a [1, x] + [1, x]' P_a [1, x]`, with `H` the `cross_cov` and `P` the `linear_cov`.
    """

    inputs: Float[Array, "points input"] = eqx.field(converter=as_float64)
    """X: where the weights sit (training inputs, or inducing ones)."""
    length_scales: Float[Array, "output input"] = eqx.field(converter=as_float64)
    """l: the square roots of L's diagonal."""
    signal_variance: Float[Array, " output"] = eqx.field(converter=as_float64)
    """s^2."""
    weights: Float[Array, "output points"] = eqx.field(converter=as_float64)
    """beta."""
    precision: Float[Array, "output points points"] | None = eqx.field(converter=optional_float64)
    """W; None for a deterministic function (the mean alone)."""
    slope: Float[Array, "output input"] = eqx.field(converter=as_float64)
    """phi, the linear mean."""
    offset: Float[Array, " output"] = eqx.field(converter=as_float64)
    """b."""
    cross_cov: Float[Array, "output points linear"] | None = eqx.field(converter=optional_float64, default=None)
    """H: covariance of the kernel's weights with those of `[1, x]`."""
    linear_cov: Float[Array, "output linear linear"] | None = eqx.field(converter=optional_float64, default=None)
    """P: covariance of the weights of `[1, x]`."""
    root: Float[Array, "output points points"] | None = eqx.field(converter=optional_float64, default=None)
    """L, lower triangular, with `W = (L L')^-1`, or with `inner`. Where it is known, `variance` is computed from it: an
    explicit inverse loses as many digits as the squared signal-to-noise ratio has. Whoever replaces `W` replaces it."""
    inner: Float[Array, "output points points"] | None = eqx.field(converter=optional_float64, default=None)
    """A, lower triangular, of a sparse GP: `W = L^-T (I - (A A')^-1) L^-1`."""

    def __check_init__(self) -> None:
        if self.inputs.ndim != 2 or self.length_scales.ndim != 2 or self.length_scales.shape[1] != self.inputs.shape[1]:
            raise ValueError(
                "A GaussianProcess needs inputs of shape (points, input) and length_scales of shape (output, input); "
                f"given {self.inputs.shape} and {self.length_scales.shape}."
            )
        (points, size), outputs = self.inputs.shape, self.length_scales.shape[0]
        expected = {
            "signal_variance": (outputs,),
            "weights": (outputs, points),
            "precision": (outputs, points, points),
            "slope": (outputs, size),
            "offset": (outputs,),
            "cross_cov": (outputs, points, 1 + size),
            "linear_cov": (outputs, 1 + size, 1 + size),
            "root": (outputs, points, points),
            "inner": (outputs, points, points),
        }
        for name, shape in expected.items():
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise ValueError(
                    f"{name} of a GaussianProcess must have shape {shape} ({outputs} outputs, {points} points, "
                    f"{size} inputs); given {value.shape}."
                )
            if value is not None and is_concrete(value) and not np.isfinite(np.asarray(value)).all():
                raise ValueError(f"{name} of a GaussianProcess must be finite; given {np.asarray(value)}.")
        if is_concrete(self.inputs) and not np.isfinite(np.asarray(self.inputs)).all():
            raise ValueError(f"inputs of a GaussianProcess must be finite; given {np.asarray(self.inputs)}.")
        for name in ("length_scales", "signal_variance"):
            value = getattr(self, name)
            if is_concrete(value) and not (np.asarray(value) > 0).all():
                raise ValueError(f"{name} of a GaussianProcess must be positive; given {np.asarray(value)}.")
        if (self.cross_cov is None) != (self.linear_cov is None):
            raise ValueError("cross_cov and linear_cov describe one joint covariance: give both or neither.")
        if self.root is None and self.inner is not None:
            raise ValueError("inner is one of two factors of a sparse GP's precision: give its root too, or neither.")

    @float64
    def __call__(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        """The mean at a point."""
        return self.slope @ x + self.offset + jnp.einsum("op,op->o", self.weights, self.kernel(x))

    @float64
    def variance(self, x: Float[Array, " input"]) -> Float[Array, " output"]:
        """The variance of the function at a point (no observation noise)."""
        if self.precision is None:
            return jnp.zeros_like(self.offset)
        k = self.kernel(x)
        variance = self.signal_variance - self._explained(k)
        if self.cross_cov is not None and self.linear_cov is not None:
            linear = jnp.concatenate([jnp.ones(1), x])
            variance += 2 * jnp.einsum("op,opl,l->o", k, self.cross_cov, linear)
            variance += jnp.einsum("l,olm,m->o", linear, self.linear_cov, linear)
        return variance

    def _explained(self, k: Float[Array, "output points"]) -> Float[Array, " output"]:
        """`k' W k`: what the points explain of the signal's variance."""
        if self.root is None:
            return jnp.einsum("op,opq,oq->o", k, self.precision, k)

        def one(k: Array, L: Array, A: Array | None = None) -> Array:
            white = jsl.solve_triangular(L, k, lower=True)
            left = jnp.zeros_like(white) if A is None else jsl.solve_triangular(A, white, lower=True)
            return jnp.sum(white**2) - jnp.sum(left**2)

        return per_output(one, k, self.root, *(() if self.inner is None else (self.inner,)))

    def kernel(self, x: Float[Array, " input"]) -> Float[Array, "output points"]:
        """k_a(x, X)."""
        return kernel(x[None, :], self.inputs, self.length_scales, self.signal_variance)[:, 0, :]

    def padded(self, points: int) -> "GaussianProcess":
        """The same function with zero weights on extra points, so that sizes repeat and compiled code is reused.

        A matrix with zeros there has no root, so this one's is left out.
        """
        extra = points - self.inputs.shape[0]
        if extra < 0:
            raise ValueError(f"Cannot pad {self.inputs.shape[0]} points to {points}.")

        def pad(value: Array | None, *axes: int) -> Array | None:
            if value is None:
                return None
            return jnp.pad(value, [(0, extra if axis in axes else 0) for axis in range(value.ndim)])

        padded: GaussianProcess = eqx.tree_at(
            lambda gp: (gp.inputs, gp.weights, gp.precision, gp.cross_cov, gp.root, gp.inner),
            self,
            (pad(self.inputs, 0), pad(self.weights, 1), pad(self.precision, 1, 2), pad(self.cross_cov, 1), None, None),
            is_leaf=lambda leaf: leaf is None,
        )
        return padded


def kernel(
    x: Float[Array, "left input"],
    y: Float[Array, "right input"],
    length_scales: Float[Array, "output input"],
    signal_variance: Float[Array, " output"],
) -> Float[Array, "output left right"]:
    """The squared-exponential kernel of every output between two sets of points (Eq. 2)."""

    def one(scales: Array, variance: Array) -> Array:
        distance = (x / scales)[:, None, :] - (y / scales)[None, :, :]
        return variance * jnp.exp(-jnp.sum(distance**2, axis=-1) / 2)

    return jax.vmap(one)(length_scales, signal_variance)


def per_output(function: Callable[..., T], *arrays: Array) -> T:
    """`function` for each output, one after the other, for functions that factor large matrices.

    Not with `vmap`: jaxlib divides a batch of LAPACK calls among XLA's threads and waits for them on one of those
    threads. On a machine with two cores two batches at a time wait for each other for ever.
    """
    values: T = jax.lax.map(lambda parts: function(*parts), arrays)
    return values


@float64
def condition(
    inputs: Float[ArrayLike, "points input"],
    targets: Float[ArrayLike, "points output"],
    length_scales: Float[ArrayLike, "output input"],
    signal_variance: Float[ArrayLike, " output"],
    noise_variance: Float[ArrayLike, " output"],
    slope: Float[ArrayLike, "output input"] | None = None,
    offset: Float[ArrayLike, " output"] | None = None,
) -> GaussianProcess:
    """The full GP: `W = (K + sn^2 I)^-1`, `beta = W (y - phi' X - b)`."""
    inputs, targets, length_scales, signal_variance, noise_variance, slope, offset = _data(
        inputs, targets, length_scales, signal_variance, noise_variance, slope, offset
    )
    K = kernel(inputs, inputs, length_scales, signal_variance)
    residuals = (targets - inputs @ slope.T - offset).T
    beta, W, L = _solve(K, noise_variance, residuals)
    _check_solved(beta, W, "the noise_variance")
    return GaussianProcess(inputs, length_scales, signal_variance, beta, W, slope, offset, root=L)


@jax.jit  # a loop that is not part of a compiled function would be compiled at every call
def _solve(K: Array, noise_variance: Array, residuals: Array) -> tuple[Array, Array, Array]:
    """`W residual`, `W = (K + noise I)^-1` and the Cholesky factor of what is inverted, per output."""
    eye = jnp.eye(K.shape[-1])

    def one(K: Array, noise: Array, residual: Array) -> tuple[Array, Array, Array]:
        L = jnp.linalg.cholesky(K + noise * eye)
        W = jsl.cho_solve((L, True), eye)
        return W @ residual, W, L

    return per_output(one, K, noise_variance, residuals)


@float64
def condition_sparse(
    inputs: Float[ArrayLike, "points input"],
    targets: Float[ArrayLike, "points output"],
    inducing: Float[ArrayLike, "inducing input"],
    length_scales: Float[ArrayLike, "output input"],
    signal_variance: Float[ArrayLike, " output"],
    noise_variance: Float[ArrayLike, " output"],
    slope: Float[ArrayLike, "output input"] | None = None,
    offset: Float[ArrayLike, " output"] | None = None,
    *,
    kind: Literal["fitc", "vfe"] = "vfe",
    ridge: Float[ArrayLike, " output"] | float = 0.0,
) -> GaussianProcess:
    """Sparse GPs over inducing points: `B = Kmm + Kmn G^-1 Knm`, `beta = B^-1 Kmn G^-1 (y - m)`, `W = Kmm^-1 - B^-1`.

    `G = sn^2 I` for VFE; FITC adds the variance that the inducing points leave unexplained at each input. `ridge` is
    added to the diagonal of `Kmm`. With the inducing points on all inputs both are the full GP.
    """
    inputs, targets, length_scales, signal_variance, noise_variance, slope, offset = _data(
        inputs, targets, length_scales, signal_variance, noise_variance, slope, offset
    )
    inducing = as_float64(inducing)
    if inducing.ndim != 2 or inducing.shape[0] == 0 or inducing.shape[1] != inputs.shape[1]:
        raise ValueError(
            f"A sparse GP needs inducing points of shape (inducing, {inputs.shape[1]}), at least one, like its inputs; "
            f"given {inducing.shape}."
        )
    eye = jnp.eye(inducing.shape[0])
    Kmm = kernel(inducing, inducing, length_scales, signal_variance)
    Kmm = Kmm + jnp.broadcast_to(ridge, signal_variance.shape)[:, None, None] * eye
    Kmn = kernel(inducing, inputs, length_scales, signal_variance)

    def one(Kmm: Array, Kmn: Array, signal: Array, noise: Array, residual: Array) -> tuple[Array, ...]:
        L = jnp.linalg.cholesky(Kmm)
        V = jsl.solve_triangular(L, Kmn, lower=True)
        G = noise + (jnp.maximum(signal - jnp.sum(V**2, axis=0), 0.0) if kind == "fitc" else jnp.zeros(V.shape[1]))
        A = jnp.linalg.cholesky(eye + (V / G) @ V.T)
        # B = L A A' L', so B^-1 = L^-T (A A')^-1 L^-1, and Kmm^-1 - B^-1 = L^-T (I - (A A')^-1) L^-1.
        Li = jsl.solve_triangular(L, eye, lower=True)
        beta = Li.T @ jsl.cho_solve((A, True), V @ (residual / G))
        return beta, Li.T @ (eye - jsl.cho_solve((A, True), eye)) @ Li, L, A

    residuals = (targets - inputs @ slope.T - offset).T
    beta, W, L, A = per_output(one, Kmm, Kmn, signal_variance, noise_variance, residuals)
    _check_solved(beta, W, "the ridge")
    return GaussianProcess(inducing, length_scales, signal_variance, beta, W, slope, offset, root=L, inner=A)


def _data(*given: ArrayLike | None) -> tuple[Array, ...]:
    """Data and hyperparameters of a GP in float64, with a linear mean of zero if none is given; or a ValueError."""
    inputs, targets, length_scales, signal, noise = (as_float64(value) for value in given[:5])
    slope = jnp.zeros_like(length_scales) if given[5] is None else as_float64(given[5])
    offset = jnp.zeros_like(signal) if given[6] is None else as_float64(given[6])
    if inputs.ndim != 2 or targets.ndim != 2 or inputs.shape[0] != targets.shape[0] or inputs.shape[0] == 0:
        raise ValueError(
            "A GP is conditioned on inputs of shape (points, input) and targets of shape (points, output), at least "
            f"one point, as many of the one as of the other; given {inputs.shape} and {targets.shape}."
        )
    outputs, size = targets.shape[1], inputs.shape[1]
    for name, value, shape in (
        ("length_scales", length_scales, (outputs, size)),
        ("signal_variance", signal, (outputs,)),
        ("noise_variance", noise, (outputs,)),
        ("slope", slope, (outputs, size)),
        ("offset", offset, (outputs,)),
    ):
        if value.shape != shape:
            raise ValueError(
                f"{name} must have shape {shape} for {outputs} outputs and {size} inputs; given {value.shape}."
            )
    for name, value in (("inputs", inputs), ("targets", targets), ("noise_variance", noise)):
        if is_concrete(value) and not np.isfinite(np.asarray(value)).all():
            raise ValueError(f"{name} of a GP must be finite; given {np.asarray(value)}.")
    for name, value in (("length_scales", length_scales), ("signal_variance", signal), ("noise_variance", noise)):
        if is_concrete(value) and not (np.asarray(value) > 0).all():
            raise ValueError(f"{name} of a GP must be positive; given {np.asarray(value)}.")
    return inputs, targets, length_scales, signal, noise, slope, offset


def _check_solved(beta: Array, W: Array, remedy: str) -> None:
    """A kernel matrix that is singular to rounding has no Cholesky factor, which JAX reports as NaN."""
    if is_concrete(beta, W) and not (np.isfinite(np.asarray(beta)).all() and np.isfinite(np.asarray(W)).all()):
        raise ValueError(
            "The GP's kernel matrix is singular to rounding: points that coincide, or length-scales far longer than "
            f"the distances between points. Try to drop duplicates, shorten the length-scales or raise {remedy}."
        )
