"""A learned controller to take away: one file, loaded and run with NumPy alone.

    controller = Controller.load("cart-pole.controller")
    controller.reset()
    u = controller.act(z)      # once per sampling period, with what the sensors say

`act` is one step of the filter that was learned with (Section 3.1 of the paper): update the belief with the
observation, act on it, predict it through the model to the next step. A controller learned by a method that does not
filter acts on the observation itself. An entry of `z` that is NaN is a sample that is missing: the belief is then
updated with the entries that are there, if any; without a filter, the last value seen stands in for it.
How long a step takes on the machine at hand, against the sampling period, is told by

    python -m bayespilco.controller cart-pole.controller

The mathematics is that of `bayespilco.moments` for one belief, written again so that the machine beside the plant needs
neither JAX nor a compiler. The tests hold the two together to 1e-9 along whole episodes. (Where a policy has large
weights that cancel, and the plant amplifies what is left, both differ from themselves by more than that after
recompilation; from the same belief, one step of the learned cart-pole agrees to 3e-11 of 10 N.)

The file is in the safetensors format: a length, a JSON header, and numbers. Nothing in it is executed. One that has
changed since it was written is known by its check sum, and what does not fit together is refused whatever its check sum
says; both with a `ValueError` that names the file.
"""

import hashlib
import json
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
FORMAT = "bayespilco controller 2"
"""2 since it has a check sum."""
CHECK = "sha256"
"""The entry of the metadata with the check sum: of the whole file, with zeros in the check sum's own place."""
NO_SUM = "0" * 64
LARGEST_FILE = 2**28
"""In bytes. A controller has a few megabytes; whatever it allocates is in proportion to its file."""
LARGEST_NUMBER = 1e100
"""Beyond this, sums and products of the stored numbers might overflow."""

SHAPES: dict[str, tuple[str, ...]] = {
    "initial_mean": ("state",),
    "initial_cov": ("state", "state"),
    "limits": ("action",),
    "policy_inputs": ("centroid", "feature"),
    "policy_length_scales": ("action", "feature"),
    "policy_signal_variance": ("action",),
    "policy_weights": ("action", "centroid"),
    "policy_slope": ("action", "feature"),
    "policy_offset": ("action",),
}
"""What every controller's file holds, in float64. The policy is a kernel network plus a linear map; one may be zero."""

FILTER_SHAPES: dict[str, tuple[str, ...]] = {
    "inputs": ("point", "input"),
    "length_scales": ("state", "input"),
    "signal_variance": ("state",),
    "weights": ("state", "point"),
    "precision": ("state", "point", "point"),
    "slope": ("state", "input"),
    "offset": ("state",),
    "cross_cov": ("state", "point", "linear"),
    "linear_cov": ("state", "linear", "linear"),
    "sensor_noise": ("state",),
    "process_noise": ("state",),
}
"""What the file of one that filters holds beside: the GP of the dynamics (see `bayespilco.gp`) and the two noises."""

SCALES = {"length_scales", "signal_variance", "policy_length_scales", "policy_signal_variance"}
POSITIVE = {"limits", "sensor_noise", *SCALES}
"""What must be above zero. A length-scale may be infinite: that input is then left out."""


@dataclass(frozen=True)
class Description:
    """What a controller is for. Component names come with their unit, such as `cart position [m]`."""

    task: str
    method: str
    version: str
    dt: float
    """Sampling period in seconds."""
    states: tuple[str, ...]
    actions: tuple[str, ...]
    policy_angles: tuple[int, ...]
    """Which states the policy sees by their sine and cosine."""
    policy_keep: tuple[int, ...]
    """Which it sees as they are."""
    model_angles: tuple[int, ...]
    """The same of `[states, actions]` for the model; both empty without a filter."""
    model_keep: tuple[int, ...]


class Controller:
    """From observations to actions, one step at a time. It carries the belief; everything else in it stays as it is."""

    def __init__(self, description: Description, arrays: Mapping[str, Array]) -> None:
        """Put together from what a file holds (see `SHAPES`), which is checked here. Use `load`."""
        self.description = description
        self.arrays = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in arrays.items()}
        self.filters = "inputs" in self.arrays
        _check(self.description, self.arrays, self.filters)
        self.limits = self.arrays["limits"]
        self._pairs = np.triu_indices(len(description.states))
        if self.filters:
            with np.errstate(all="ignore"):
                self._inverse = np.stack([np.diag(row) for row in self.arrays["length_scales"] ** -2.0])  # L^-1
        self.reset()

    def reset(self) -> None:
        """Forget the last episode: the belief is that before the first observation."""
        self.mean, self.cov = self.arrays["initial_mean"].copy(), self.arrays["initial_cov"].copy()
        self.steps, self.last_seconds, self.worst_seconds, self.total_seconds = 0, 0.0, 0.0, 0.0
        self.restarts = 0
        """How often the belief had to start anew since `reset`, because it was no longer made of finite numbers."""

    def act(self, observation: Any) -> Array:
        """The action for what the sensors say now, within the actuator's limits; NaN where they say nothing."""
        begin = time.perf_counter()
        z = np.asarray(observation, dtype=np.float64)
        if z.shape != self.mean.shape:
            raise ValueError(
                f"The observation must have {len(self.mean)} entries ({', '.join(self.description.states)}), NaN for "
                f"what is missing; given shape {z.shape}."
            )
        with np.errstate(all="ignore"):  # what overflows is caught below
            action = self._filtered(z) if self.filters else self._raw(z)
        self.steps += 1
        self.last_seconds = time.perf_counter() - begin
        self.worst_seconds = max(self.worst_seconds, self.last_seconds)
        self.total_seconds += self.last_seconds
        return action

    def _raw(self, z: Array) -> Array:
        self.mean = np.where(_seen(z), z, self.mean)
        features, _ = _features(self.mean, 0 * self.cov, self.description.policy_angles, self.description.policy_keep)
        return self._policy(features)

    def _filtered(self, z: Array) -> Array:
        try:
            m, V = _update(self.mean, self.cov, z, self.arrays["sensor_noise"])
        except np.linalg.LinAlgError:
            m, V = self._restart()
        features, _ = _features(m, V, self.description.policy_angles, self.description.policy_keep)
        action = self._policy(features)
        try:
            self.mean, self.cov = self._predict(m, V, action)
            _finite(self.mean, self.cov)
        except np.linalg.LinAlgError:
            self.mean, self.cov = self._restart()
        return action

    def _restart(self) -> tuple[Array, Array]:
        """The way out when numbers have run away, as they do when the plant is far from all that was learned from."""
        self.restarts += 1
        return self.arrays["initial_mean"].copy(), self.arrays["initial_cov"].copy()

    def _policy(self, features: Array) -> Array:
        a = self.arrays
        distance = (features - a["policy_inputs"])[None] / a["policy_length_scales"][:, None]
        kernel = a["policy_signal_variance"][:, None] * np.exp(-np.sum(distance**2, axis=2) / 2)
        y = a["policy_slope"] @ features + a["policy_offset"] + np.sum(a["policy_weights"] * kernel, axis=1)
        squashed = (9 * np.sin(y) + np.sin(3 * y)) / 8  # between -1 and 1, to rounding
        return a["limits"] * np.clip(squashed, -1.0, 1.0)

    def _predict(self, m: Array, V: Array, action: Array) -> tuple[Array, Array]:
        """The next belief: Appendix A on the joint of belief and action, whose action block is zero."""
        zeros = np.zeros((len(m) + len(action),) * 2)
        zeros[: len(m), : len(m)] = V
        known = np.concatenate([m, action])
        mu, S = _features(known, zeros, self.description.model_angles, self.description.model_keep)
        return self._through_gp(mu, S)

    def _through_gp(self, mu: Array, S: Array) -> tuple[Array, Array]:
        """Mean and covariance of the GP's output at an input `N(mu, S)`, process noise included."""
        a, (i, j) = self.arrays, self._pairs
        X, phi, s2, inverse = a["inputs"] - mu, a["slope"], a["signal_variance"], self._inverse
        # q: the expectation of each kernel; from it the mean and its slope.
        A, log_det = _shrink(inverse, S)  # (L + S)^-1
        q = np.exp(log_det[:, None] - np.einsum("opi,pi->op", X @ A, X) / 2)
        weighted = s2[:, None] * a["weights"] * q
        kernel_mean = weighted.sum(axis=1)
        mean = kernel_mean + phi @ mu + a["offset"]
        C = np.einsum("oij,oj->io", A, weighted @ X)
        # Q: the expectation of each product of two kernels; from it the covariance.
        T, log_scale = _shrink(S, inverse[i] + inverse[j])
        b = X @ inverse
        log_q = -np.sum(b * X, axis=2) / 2
        left = log_q[i] + np.sum((b[i] @ T) * b[i], axis=2) / 2 + log_scale[:, None] / 2
        right = log_q[j] + np.sum((b[j] @ T) * b[j], axis=2) / 2 + log_scale[:, None] / 2
        E = np.exp(left[:, :, None] + right[:, None, :] + (b[i] @ T) @ b[j].swapaxes(1, 2))
        beta = s2[:, None] * a["weights"]
        second = np.zeros((len(s2), len(s2)))
        second[i, j] = second[j, i] = np.sum(beta[i] * np.einsum("opq,oq->op", E, beta[j]), axis=1)
        cross = C.T @ S @ phi.T
        cov = second - np.outer(kernel_mean, kernel_mean) + cross + cross.T + phi @ S @ phi.T
        # The function's own uncertainty: of the kernel's weights, and of the linear mean.
        variance = s2 - s2**2 * np.einsum("opq,opq->o", a["precision"], E[i == j])
        one_mu = np.concatenate([[1.0], mu])
        moment = np.outer(one_mu, one_mu)
        moment[1:, 1:] += S
        shifted = mu + X @ A @ S
        one_shifted = np.concatenate([np.ones_like(shifted[..., :1]), shifted], axis=2)
        variance += 2 * s2 * np.einsum("op,opl,opl->o", q, a["cross_cov"], one_shifted)
        variance += np.einsum("olm,lm->o", a["linear_cov"], moment)
        return mean, cov + np.diag(variance + a["process_noise"])

    def to_bytes(self) -> bytes:
        """The content of a file that `load` reads."""
        said = {field.name: json.dumps(getattr(self.description, field.name)) for field in fields(Description)}
        header: dict[str, Any] = {"__metadata__": {CHECK: NO_SUM, "format": FORMAT, **said}}
        end = 0
        for name, array in self.arrays.items():
            begin, end = end, end + array.nbytes
            header[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # numbers start at a multiple of their size
        numbers = [array.astype("<f8").tobytes() for array in self.arrays.values()]
        return signed(b"".join([len(text).to_bytes(8, "little"), text, *numbers]))

    @classmethod
    def load(cls, path: Path | str) -> "Controller":
        """Load a controller from its file, or say in a `ValueError` why that is none."""
        try:
            with open(path, "rb") as file:
                content = file.read(LARGEST_FILE + 1)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
        try:
            return cls(*_parse(content))
        except _Malformed as error:
            raise ValueError(f"{path} is not a controller of bayespilco, or is damaged: {error}") from None


# The mathematics of one belief.


def _seen(z: Array) -> Array:
    return np.abs(z) <= LARGEST_NUMBER  # false for NaN


def _finite(*arrays: Array) -> None:
    if not all(_seen(array).all() for array in arrays):
        raise np.linalg.LinAlgError


def _update(m: Array, V: Array, z: Array, noise: Array) -> tuple[Array, Array]:
    """Combine a belief with the entries of an observation that are there (`bayespilco.belief.Belief.update`)."""
    seen = _seen(z)
    if not seen.any():
        return m, V
    innovation, _ = _shrink(np.diag(np.where(seen, 1 / noise, 0.0)), V)  # (V + R)^-1, zero where nothing is seen
    remaining = np.where(seen[:, None], noise[:, None] * innovation, np.eye(len(m)) - V @ innovation)
    updated = remaining @ V
    m = m + V @ innovation @ np.where(seen, z - m, 0.0)
    _finite(m, updated)
    return m, (updated + updated.T) / 2


def _features(m: Array, V: Array, angles: tuple[int, ...], keep: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and covariance of `[x[keep], sin x_a, cos x_a, ...]` (`bayespilco.features`)."""
    twice = np.repeat(np.asarray(angles, dtype=int), 2)
    kept = np.asarray(keep, dtype=int)
    t = m[twice] + np.tile([0.0, np.pi / 2], len(angles))
    S = V[np.ix_(twice, twice)]
    damping = np.exp(-np.maximum(np.diag(S), 0.0) / 2)
    # exp(-(v_i + v_j)/2) (exp(+-S_ij) - 1), written so that small S does not cancel and large S not overflow.
    spread = np.add.outer(np.diag(S), np.diag(S)) / 2
    above, below = np.maximum(S, 0), np.minimum(S, 0)
    excess = -np.expm1(-above) * np.exp(above - spread) + np.expm1(below) * np.exp(-spread)
    deficit = np.expm1(-above) * np.exp(-spread) - np.expm1(below) * np.exp(-below - spread)
    sines = (excess * np.cos(np.subtract.outer(t, t)) - deficit * np.cos(np.add.outer(t, t))) / 2
    cross = V[np.ix_(kept, twice)] * (damping * np.cos(t))
    cov = np.block([[V[np.ix_(kept, kept)], cross], [cross.T, sines]])
    return np.concatenate([m[kept], damping * np.sin(t)]), cov


def _shrink(P: Array, B: Array) -> tuple[Array, Any]:
    """`(P^-1 + B)^-1` and `-1/2 log |I + P B|`, inverting neither (`bayespilco.shrink`); for one or many of each."""
    _finite(P, B)
    eigenvalues, vectors = np.linalg.eigh(P)
    C = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))[..., None, :]
    Ct = C.swapaxes(-1, -2)
    inner = np.eye(P.shape[-1]) + Ct @ B @ C
    _finite(inner)
    L = np.linalg.cholesky(inner)
    half = np.linalg.solve(L, np.broadcast_to(Ct, L.shape))
    return half.swapaxes(-1, -2) @ half, -np.sum(np.log(np.diagonal(L, axis1=-2, axis2=-1)), axis=-1)


# The file.


class _Malformed(ValueError):
    """Why a file is none of ours: a sentence."""


def _demand(condition: bool, sentence: str) -> None:
    if not condition:
        raise _Malformed(sentence)


def signed(content: bytes) -> bytes:
    """A file with its check sum in place of the zeros."""
    return content.replace(NO_SUM.encode(), hashlib.sha256(content).hexdigest().encode(), 1)


def _demand_unchanged(content: bytes, check: Any) -> None:
    _demand(isinstance(check, str) and len(check) == len(NO_SUM) and check.isascii(), "it has no check sum.")
    unsigned = content.replace(check.encode(), NO_SUM.encode(), 1)
    _demand(signed(unsigned) == content, "its check sum is not that of its content.")


def _parse(content: bytes) -> tuple[Description, dict[str, Array]]:
    """Header and arrays of a file in the safetensors format, of which nothing is believed unchecked."""
    _demand(len(content) <= LARGEST_FILE, f"it is longer than {LARGEST_FILE} bytes.")
    length = int.from_bytes(content[:8], "little")
    _demand(len(content) >= 8 and length <= len(content) - 8, "it is cut short.")
    buffer = memoryview(content)[8 + length :]
    try:
        header = json.loads(content[8 : 8 + length].decode())
    except (ValueError, RecursionError):
        raise _Malformed("its header is not JSON.") from None
    _demand(isinstance(header, dict), "its header is not a JSON object.")
    metadata = header.pop("__metadata__", None)
    _demand(isinstance(metadata, dict) and metadata.pop("format", None) == FORMAT, f"its format is not {FORMAT!r}.")
    _demand_unchanged(content, metadata.pop(CHECK, None))
    description = _describe(metadata)
    arrays, end = {}, 0
    for name, entry in header.items():
        _demand(name in SHAPES or name in FILTER_SHAPES, f"it holds an unknown {name!r:.60}.")
        _demand(isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}, f"{name} has no place.")
        shape, offsets = entry["shape"], entry["data_offsets"]
        sizes = _naturals(shape) and _naturals(offsets)
        _demand(sizes and len(shape) <= 3, f"{name} has no proper shape or place.")
        _demand(entry["dtype"] == "F64", f"{name} is not of type F64.")
        begin, end = end, end + 8 * math.prod(shape)
        _demand(offsets == [begin, end] and end <= len(buffer), f"{name} is out of place.")
        arrays[name] = np.frombuffer(buffer[begin:end], dtype="<f8").reshape(shape)
    _demand(end == len(buffer), "its length is not what the header says.")
    return description, arrays


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= LARGEST_FILE for value in values)


def _describe(metadata: dict[str, Any]) -> Description:
    _demand(metadata.keys() == {field.name for field in fields(Description)}, "its description is incomplete.")
    values: dict[str, Any] = {}
    for field in fields(Description):
        try:
            value = json.loads(metadata[field.name])
        except (TypeError, ValueError, RecursionError):
            raise _Malformed(f"{field.name} is not JSON.") from None
        if field.type is str:
            fits = type(value) is str
        elif field.type is float:
            fits = type(value) is float and 0 < value < LARGEST_NUMBER
        elif field.type == tuple[str, ...]:
            fits = isinstance(value, list) and all(type(each) is str for each in value)
        else:
            fits = _naturals(value)
        _demand(fits, f"{field.name} is not what it should be.")
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return Description(**values)


def _check(description: Description, arrays: Mapping[str, Array], filters: bool) -> None:
    """Refuse what does not fit together, or is no number that can be computed with."""
    d = description
    sizes = {"state": len(d.states), "action": len(d.actions), "feature": len(d.policy_keep) + 2 * len(d.policy_angles)}
    sizes["input"] = len(d.model_keep) + 2 * len(d.model_angles)
    sizes["linear"] = 1 + sizes["input"]
    _demand(sizes["state"] > 0 and sizes["action"] > 0, "it has no states or no actions.")
    for indices, available in (
        (d.policy_angles + d.policy_keep, sizes["state"]),
        (d.model_angles + d.model_keep, sizes["state"] + sizes["action"]),
    ):
        _demand(all(index < available for index in indices), "its features are of states that it does not have.")
    wanted = SHAPES | FILTER_SHAPES if filters else SHAPES
    wrong = sorted(wanted.keys() ^ arrays.keys())
    _demand(not wrong, f"it lacks, or should not have, {', '.join(wrong)}.")
    for name, array in arrays.items():
        _demand(array.ndim == len(wanted[name]), f"{name} has {array.ndim} axes.")
        for axis, size in zip(wanted[name], array.shape, strict=True):
            _demand(sizes.setdefault(axis, size) == size, f"{name} has {size} {axis}s, not {sizes[axis]}.")
        good = np.abs(array) <= (np.inf if name.endswith("length_scales") else LARGEST_NUMBER)  # false for NaN
        good &= (array > 0) | (name not in POSITIVE)
        good &= (array >= 0) | (name != "process_noise")
        _demand(bool(good.all()), f"{name} has a number that it cannot have.")
    for name in ("initial_cov", "precision", "linear_cov"):
        if name in arrays:
            scale = np.abs(arrays[name]).max(initial=0.0)
            skew = np.abs(arrays[name] - arrays[name].swapaxes(-1, -2)).max(initial=0.0)
            _demand(bool(skew <= 1e-8 * scale), f"{name} is not symmetric.")
    cov = arrays["initial_cov"]
    scaled = cov / max(np.abs(cov).max(), np.finfo(np.float64).tiny)
    _demand(bool(np.linalg.eigvalsh(scaled).min() >= -1e-8), "initial_cov has a negative eigenvalue.")


# How fast.


def timing(controller: Controller, steps: int = 1000) -> str:
    """How long a step takes on this machine, in a sentence. The controller is reset."""
    controller.reset()
    controller.act(controller.mean)  # the first step also loads libraries
    seconds = np.empty(steps)
    for step in range(steps):
        controller.act(controller.mean)
        seconds[step] = controller.last_seconds
    controller.reset()
    mean, most, worst = 1e3 * seconds.mean(), 1e3 * np.quantile(seconds, 0.99), 1e3 * seconds.max()
    period = 1e3 * controller.description.dt
    return (
        f"a step takes {mean:.2f} ms here (99 of 100 at most {most:.2f} ms, the longest of {steps} {worst:.2f} ms), "
        f"of a period of {period:.4g} ms."
    )


def main() -> None:
    """Say of a file for which task it is, and how long a step takes."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bayespilco.controller FILE")
    try:
        controller = Controller.load(sys.argv[1])
    except ValueError as error:
        print(f"bayespilco: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{controller.description.task}, {controller.description.method}: {timing(controller)}")


if __name__ == "__main__":
    main()
