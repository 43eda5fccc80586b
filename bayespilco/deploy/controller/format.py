"""The file of a controller: what it holds, how it is checked, read and written.

The format is safetensors: a length, a JSON header, and numbers. Nothing in a file is executed. A check sum reveals a
file that has changed since it was written. Whatever the check sum says, contents that do not fit together are refused
(`check`). Both give a `Malformed`, which says what is wrong.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bayespilco.deploy.controller.filter import LARGEST_NUMBER, Array

FORMAT = "bayespilco controller 5"
"""4 since there is a gate, 3 since there are known rows and sensors, 2 since there is a check sum."""
CHECK = "sha256"
"""The metadata entry with the check sum. It is that of the whole file with `NO_SUM` in the place of the check sum."""
NO_SUM = "0" * 64
LARGEST_FILE = 2**28
"""In bytes. A controller has a few megabytes. It allocates memory in proportion to its file."""

SHAPES: dict[str, tuple[str, ...]] = {
    "initial_mean": ("state",),
    "initial_cov": ("state", "state"),
    "limits": ("action",),
    "middle": ("action",),
    "rest": ("action",),
    "transition": ("state", "state"),
    "action_matrix": ("state", "action"),
    "drift": ("step", "state"),
    "sensor_offset": ("sensor",),
    "policy_inputs": ("centroid", "feature"),
    "policy_length_scales": ("action", "feature"),
    "policy_signal_variance": ("action",),
    "policy_weights": ("action", "centroid"),
    "policy_slope": ("action", "feature"),
    "policy_offset": ("action",),
}
"""The arrays of every controller, in float64. The policy is a kernel network plus a linear map; either may be zero.
Actions lie within `limits` of `middle`; `rest` is sent at the end. The known rows are those of `model.structure`."""

FILTER_SHAPES: dict[str, tuple[str, ...]] = {
    "inputs": ("point", "input"),
    "length_scales": ("output", "input"),
    "signal_variance": ("output",),
    "weights": ("output", "point"),
    "precision": ("output", "point", "point"),
    "slope": ("output", "input"),
    "offset": ("output",),
    "cross_cov": ("output", "point", "linear"),
    "linear_cov": ("output", "linear", "linear"),
    "output_matrix": ("state", "output"),
    "correction": ("state", "output"),
    "rate_rows": ("output", "state"),
    "moves": ("state", "joint"),
    "sensor_matrix": ("sensor", "state"),
    "sensor_noise": ("sensor",),
    "sensor_turn": ("sensor",),
    "process_noise": ("state",),
    "wide_cov": ("state", "state"),
}
"""Further arrays of a controller that filters: the GP of the dynamics (see `core.gp`) and the two noise variances.
`correction`, `rate_rows` and `moves` are H, E and the known part of D in `model.structure`; `sensor_turn` is what a
sensor of an angle reports more after a full turn, 0 for other sensors; `wide_cov` is added to a belief that has to be
given up."""

GROWTH_SHAPES: dict[str, tuple[str, ...]] = {
    "sensor_growth": ("sensor", "state"),
    "sensor_best_at": ("sensor", "state"),
}
"""Both or none of these, of a controller that filters: the noise of its sensors depends on the state
(`model.sensors`)."""

CAUTION_SHAPES: dict[str, tuple[str, ...]] = {
    "policy_scale": ("action", "state"),
    "policy_shift": ("action", "state"),
    "policy_doubt": ("state",),
}
"""All or none of these, of a controller that filters: the policy looks at the belief's covariance
(`control.policy.Caution`). `policy_doubt` are the variances that those of the belief are compared with."""

RAW_SHAPES: dict[str, tuple[str, ...]] = {"estimate": ("plant", "sensor")}
"""Instead, for a controller that does not filter: from an observation to the plant's states."""

EVERY_SHAPE = SHAPES | FILTER_SHAPES | GROWTH_SHAPES | CAUTION_SHAPES | RAW_SHAPES

SCALES = {"length_scales", "signal_variance", "policy_length_scales", "policy_signal_variance"}
POSITIVE = {"limits", "sensor_noise", "policy_doubt", *SCALES}
"""Arrays whose entries must be above zero. A length-scale may be infinite: that input then has no effect."""
NOT_NEGATIVE = {"process_noise", "sensor_turn", "sensor_growth"}


@dataclass(frozen=True)
class Description:
    """What a controller is for. The names of components include their units, such as `cart position [m]`."""

    task: str
    method: str
    version: str
    dt: float
    """Sampling period in seconds."""
    states: tuple[str, ...]
    """All rows of the state: the plant's own, then past actions, what late sensors will report, references."""
    sensors: tuple[str, ...]
    actions: tuple[str, ...]
    known: tuple[int, ...]
    """The rows that the controller knows exactly: past actions and references."""
    references: tuple[int, ...]
    """The rows that hold the targets to follow."""
    policy_angles: tuple[int, ...]
    """The states whose sine and cosine the policy sees."""
    policy_keep: tuple[int, ...]
    """The states that the policy sees as they are."""
    model_angles: tuple[int, ...]
    """The same for the model, as indices of `[states, actions]`. Both are empty without a filter."""
    model_keep: tuple[int, ...]
    gate: float = 0.0
    """Entries of an innovation beyond this many predicted standard deviations are rejected (`gate`). 0: none are."""
    patience: int = 0
    """How many samples of a sensor may be rejected in a row, at most."""


class Malformed(ValueError):
    """The reason a file was rejected."""


def require(condition: bool, sentence: str) -> None:
    if not condition:
        raise Malformed(sentence)


# Write.


def to_bytes(description: Description, arrays: Mapping[str, Array]) -> bytes:
    """The content of a controller's file."""
    described = {field.name: json.dumps(getattr(description, field.name)) for field in fields(Description)}
    header: dict[str, Any] = {"__metadata__": {CHECK: NO_SUM, "format": FORMAT, **described}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": "F64", "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # numbers start at a multiple of their size
    numbers = [array.astype("<f8").tobytes() for array in arrays.values()]
    return signed(b"".join([len(text).to_bytes(8, "little"), text, *numbers]))


def signed(content: bytes) -> bytes:
    """The content of a file, with its check sum in place of `NO_SUM`."""
    return content.replace(NO_SUM.encode(), hashlib.sha256(content).hexdigest().encode(), 1)


# Read.


def parse(content: bytes) -> tuple[Description, dict[str, Array]]:
    """The description and the arrays in a file. Nothing in it is trusted before it is checked."""
    require(len(content) <= LARGEST_FILE, f"it is longer than {LARGEST_FILE} bytes.")
    length = int.from_bytes(content[:8], "little")
    require(len(content) >= 8 and length <= len(content) - 8, "it is cut short.")
    buffer = memoryview(content)[8 + length :]
    try:
        header = json.loads(content[8 : 8 + length].decode())
    except (ValueError, RecursionError):
        raise Malformed("its header is not JSON.") from None
    require(isinstance(header, dict), "its header is not a JSON object.")
    metadata = header.pop("__metadata__", None)
    require(isinstance(metadata, dict) and metadata.pop("format", None) == FORMAT, f"its format is not {FORMAT!r}.")
    _require_unchanged(content, metadata.pop(CHECK, None))
    return _description(metadata), _arrays(header, buffer)


def _require_unchanged(content: bytes, check: Any) -> None:
    require(isinstance(check, str) and len(check) == len(NO_SUM) and check.isascii(), "it has no check sum.")
    unsigned = content.replace(check.encode(), NO_SUM.encode(), 1)
    require(signed(unsigned) == content, "its check sum is not that of its content.")


def _description(metadata: dict[str, Any]) -> Description:
    require(metadata.keys() == {field.name for field in fields(Description)}, "its description is incomplete.")
    values: dict[str, Any] = {}
    for field in fields(Description):
        try:
            value = json.loads(metadata[field.name])
        except (TypeError, ValueError, RecursionError):
            raise Malformed(f"{field.name} is not JSON.") from None
        if field.type is str:
            fits = type(value) is str
        elif field.type is float:
            fits = type(value) is float and 0 <= value < LARGEST_NUMBER
        elif field.type is int:
            fits = _are_sizes([value])
        elif field.type == tuple[str, ...]:
            fits = isinstance(value, list) and all(type(each) is str for each in value)
        else:
            fits = _are_sizes(value)
        require(fits, f"{field.name} has a value of the wrong kind.")
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return Description(**values)


def _arrays(header: dict[str, Any], buffer: memoryview) -> dict[str, Array]:
    arrays, end = {}, 0
    for name, entry in header.items():
        require(name in EVERY_SHAPE, f"it holds an unknown array {name!r:.60}.")
        complete = isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}
        require(complete, f"the entry of {name} is incomplete.")
        shape, offsets = entry["shape"], entry["data_offsets"]
        proper = _are_sizes(shape) and _are_sizes(offsets) and len(shape) <= 3
        require(proper, f"{name} has an invalid shape or invalid offsets.")
        require(entry["dtype"] == "F64", f"{name} is not of type F64.")
        begin, end = end, end + 8 * math.prod(shape)
        require(offsets == [begin, end] and end <= len(buffer), f"{name} has offsets that do not fit its shape.")
        arrays[name] = np.frombuffer(buffer[begin:end], dtype="<f8").reshape(shape)
    require(end == len(buffer), "its length is not what the header says.")
    return arrays


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= LARGEST_FILE for value in values)


# Validate.


def check(description: Description, arrays: Mapping[str, Array], filters: bool) -> None:
    """Refuse arrays that do not fit together or hold numbers that nothing can be computed with."""
    require(description.dt > 0, "dt is not above zero.")
    sizes = _sizes(description)
    wanted = SHAPES | (FILTER_SHAPES if filters else RAW_SHAPES)
    for optional in (GROWTH_SHAPES, CAUTION_SHAPES) if filters else ():
        if optional.keys() & arrays.keys():
            wanted = wanted | optional
    wrong = sorted(wanted.keys() ^ arrays.keys())
    require(not wrong, f"these arrays are missing, or should not be there: {', '.join(wrong)}.")
    for name, array in arrays.items():
        require(array.ndim == len(wanted[name]), f"{name} has {array.ndim} axes.")
        for axis, size in zip(wanted[name], array.shape, strict=True):
            require(sizes.setdefault(axis, size) == size, f"{name} has {size} {axis}s, not {sizes[axis]}.")
        good = np.abs(array) <= (np.inf if name.endswith("length_scales") else LARGEST_NUMBER)  # false for NaN
        good &= (array > 0) | (name not in POSITIVE)
        good &= (array >= 0) | (name not in NOT_NEGATIVE)
        require(bool(good.all()), f"{name} has a number that it cannot have.")
    inside = np.abs(arrays["rest"] - arrays["middle"]) <= arrays["limits"] * (1 + 1e-9)
    require(bool(inside.all()), "rest is not within the limits.")
    if not filters:
        require(len(arrays["estimate"]) <= sizes["state"], "estimate has more rows than there are states.")
    for name in ("initial_cov", "wide_cov", "precision", "linear_cov"):
        if name in arrays:
            scale = np.abs(arrays[name]).max(initial=0.0)
            skew = np.abs(arrays[name] - arrays[name].swapaxes(-1, -2)).max(initial=0.0)
            require(bool(skew <= 1e-8 * scale), f"{name} is not symmetric.")
    for name in ("initial_cov", "wide_cov"):
        if name in arrays:
            scaled = arrays[name] / max(np.abs(arrays[name]).max(), np.finfo(np.float64).tiny)
            require(bool(np.linalg.eigvalsh(scaled).min() >= -1e-8), f"{name} has a negative eigenvalue.")


def _sizes(description: Description) -> dict[str, int]:
    """The lengths of the axes that the description determines."""
    d = description
    states, actions = len(d.states), len(d.actions)
    require(states > 0 and actions > 0 and len(d.sensors) > 0, "it has no states, no sensors or no actions.")
    for indices, available in (
        (d.known + d.references, states),
        (d.policy_angles + d.policy_keep, states),
        (d.model_angles + d.model_keep, states + actions),
    ):
        require(all(index < available for index in indices), "its features are of states that it does not have.")
    inputs = len(d.model_keep) + 2 * len(d.model_angles)
    return {
        "state": states,
        "sensor": len(d.sensors),
        "action": actions,
        "feature": len(d.policy_keep) + 2 * len(d.policy_angles),
        "input": inputs,
        "linear": 1 + inputs,
        "joint": states + actions,
    }
