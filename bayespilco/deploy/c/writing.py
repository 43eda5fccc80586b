"""From a controller to C: its numbers as constants, around code that is always the same."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from bayespilco.deploy.c.cost import Cost, cost
from bayespilco.deploy.controller import Controller
from bayespilco.deploy.controller.filter import LARGEST_CAUTION, LARGEST_EXPONENT, MOST_TURNS, Array
from bayespilco.deploy.controller.gate import FIRST_CREDIT

LARGEST_FLOAT = 1e30
"""Beyond this, products of stored numbers might overflow in single precision."""
FUNCTIONS = ("exp", "expm1", "log", "sqrt", "sin", "cos", "rint")
WIDTH = 110


@dataclass(frozen=True)
class Source:
    """The two files."""

    code: str
    header: str


def identifier(stem: str) -> str:
    """The prefix of all names in C, from a file's name."""
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    return f"c_{name}" if not name or name[0].isdigit() else name


def source(
    controller: Controller, name: str, *, single: bool = False, error: str = "", file: str | None = None
) -> Source:
    """A controller as C.

    Args:
        name: The prefix of its names (`identifier`).
        single: `float` in place of `double`.
        error: How far off single precision is, a sentence for the comment at the head.
        file: The name of the two files, without its ending, if it is not `name`.
    """
    file = file or name
    if single:
        for array_name, array in controller.arrays.items():
            finite = array[np.isfinite(array)]
            if (np.abs(finite) > LARGEST_FLOAT).any():
                raise ValueError(f"{array_name} has a number that float cannot hold: export in double precision.")
    sizes = _sizes(controller)
    parts = [
        _head(controller, name, file, single, error),
        f'#include "{file}.h"\n\n#include <math.h>\n',
        _precision(name, single),
        _defines(sizes | _settings(controller, single)),
        _constants(controller, single),
        _part("common.c"),
        _part("filter.c" if controller.filters else "raw.c"),
        _part("main.c"),
    ]
    return Source("\n".join(parts).replace("NAME_", f"{name}_"), _header(controller, name, single, sizes))


def _part(file: str) -> str:
    return files("bayespilco.deploy.c").joinpath(file).read_text()


def _sizes(controller: Controller) -> dict[str, int]:
    d, a = controller.description, controller.arrays
    sizes = {
        "STATES": len(d.states),
        "SENSORS": len(d.sensors),
        "ACTIONS": len(d.actions),
        "REFERENCES": len(d.references),
        "CENTROIDS": len(a["policy_inputs"]),
        "FEATURES": a["policy_inputs"].shape[1],
        "POLICY_KEPT": len(d.policy_keep),
        "POLICY_TRIG": 2 * len(d.policy_angles),
        "DRIFT_STEPS": len(a["drift"]),
    }
    if not controller.filters:
        return sizes | {"ESTIMATED": len(a["estimate"])}
    return sizes | {
        "JOINT": len(d.states) + len(d.actions),
        "POINTS": len(a["inputs"]),
        "INPUTS": a["inputs"].shape[1],
        "OUTPUTS": len(a["signal_variance"]),
        "KEPT": len(d.model_keep),
        "TRIG": 2 * len(d.model_angles),
    }


def _settings(controller: Controller, single: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "GATE": _number(controller.gate, single),
        "PATIENCE": controller.patience,
        "FIRST_CREDIT": FIRST_CREDIT,
        "SAMPLING_PERIOD": _number(controller.description.dt, single),
        "POLICY_SEES_COV": int(controller.filters),
        "POLICY_IS_CAUTIOUS": int("policy_scale" in controller.arrays),
        "LARGEST_CAUTION": _number(LARGEST_CAUTION, single),
    }
    if controller.filters:
        settings["UNCERTAIN_MEAN"] = int(_has_uncertain_mean(controller))
        settings["NOISE_GROWS"] = int("sensor_growth" in controller.arrays)
    return settings


def _has_uncertain_mean(controller: Controller) -> bool:
    return bool(controller.arrays["cross_cov"].any() or controller.arrays["linear_cov"].any())


def _head(controller: Controller, name: str, file: str, single: bool, error: str) -> str:
    d, spent = controller.description, cost(controller)
    lines = [
        f"The controller of {d.task!r}, learned by {d.method or 'bayespilco'} (bayespilco {d.version}).",
        "",
        f"    {name}_t controller;                    static memory, {_ram(controller, single)} bytes",
        f"    {name}_reset(&controller);              before each episode",
        f"    {name}_act(&controller, z, u);          once per sampling period, {d.dt:g} s",
        "",
        *_listing("z, what the sensors say, NAN for what is missing", d.sensors),
        *_listing("u, what the actuators get", d.actions),
        "",
        "It allocates nothing, needs math.h only, and returns actions within the actuators' limits.",
        "What it thinks of the sensors is in the struct: surprise, rejected, rejections, restarts;",
        f"and {name}_since_good(&controller, sensor) in seconds. Stop the plant when it is lost.",
        "",
        *_spent(spent, single),
        *textwrap.wrap(error, 100),
        f"For a test: cc -std=c99 -O2 -D{name}_MAIN {file}.c -lm",
    ]
    return "/* " + "\n   ".join(lines).replace("\n   \n", "\n\n").replace("*/", "* /") + "\n*/\n"


def _listing(title: str, names: Iterable[str]) -> list[str]:
    return [f"{title}:", *(f"    [{place}] {name}" for place, name in enumerate(names))]


def _spent(spent: Cost, single: bool) -> list[str]:
    kind, size = ("float", 4) if single else ("double", 8)
    return [
        f"Numbers are {kind}. Constants: {spent.constants * size / 1024:.1f} KiB, to keep in flash.",
        f"A step costs at most {spent.exponentials} calls of exp or expm1, {spent.multiplications} multiplications",
        f"with additions, and {spent.others} calls of other functions. No loop depends on what is measured.",
    ]


def _ram(controller: Controller, single: bool) -> int:
    """Of the struct, without padding."""
    sizes = _sizes(controller)
    n, p = sizes["STATES"], sizes["SENSORS"]
    numbers = n + n * n + 2 * p + 1
    if controller.filters:
        P, D, O = sizes["POINTS"], sizes["INPUTS"], sizes["OUTPUTS"]
        numbers += D + sizes["TRIG"] + 1 + (4 + O) * D * D + 3 * P * D + 2 * P + O * P + D * O + 4 * O + O * O
    return (4 if single else 8) * numbers + 4 * (4 * p + 3)


def _precision(name: str, single: bool) -> str:
    suffix = "f" if single else ""
    lines = [f"typedef {name}_real real;", f"#define ABS fabs{suffix}"]
    lines += [f"#define {function.upper()} {function}{suffix}" for function in FUNCTIONS]
    lines += [
        f"#define LARGEST {'1e30f' if single else '1e100'} /* beyond this a number counts as overflown, or missing */",
        f"#define MOST_TURNS {_number(1e3 if single else MOST_TURNS, single)}",
        f"#define SPLIT {_number(2.0**12 + 1 if single else 2.0**27 + 1, single)}",
        f"#define LARGEST_EXPONENT {_number(80.0 if single else LARGEST_EXPONENT, single)}",
        "#define NOTHING ((real)NAN)",
        f"#define HALF_PI {_number(np.pi / 2, single)}",
    ]
    return "\n".join(lines) + "\n"


def _defines(values: dict[str, Any]) -> str:
    return "\n".join(f"#define {name} {value}" for name, value in values.items()) + "\n"


def _constants(controller: Controller, single: bool) -> str:
    d, a = controller.description, controller.arrays
    scales = a["policy_length_scales"]
    reals: dict[str, Array] = {
        "INITIAL_MEAN": a["initial_mean"],
        "INITIAL_COV": a["initial_cov"],
        "LIMITS": a["limits"],
        "MIDDLE": a["middle"],
        "REST": a["rest"],
        "KNOWN_ROWS": np.concatenate([a["transition"], a["action_matrix"]], axis=1),
        "DRIFT": np.pad(a["drift"], ((0, 1), (0, 0))),
        "SENSOR_OFFSET": a["sensor_offset"],
        "CENTROID": a["policy_inputs"],
        "POLICY_INVERSE_SCALES": 1 / scales,
        "POLICY_WEIGHTS": a["policy_signal_variance"][:, None] * a["policy_weights"],
        "POLICY_SLOPE": a["policy_slope"],
        "POLICY_OFFSET": a["policy_offset"],
    }
    if "policy_scale" in a:
        reals |= {name.upper(): a[name] for name in ("policy_scale", "policy_shift", "policy_doubt")}
    whole: dict[str, Sequence[int]] = {
        "REFERENCE_ROWS": d.references,
        "POLICY_ANGLES": d.policy_angles,
        "POLICY_KEEP": d.policy_keep,
    }
    if controller.filters:
        reals |= _filter_constants(controller)
        whole |= {"MODEL_ANGLES": d.model_angles, "MODEL_KEEP": d.model_keep}
        whole |= {"KNOWN": [int(row in d.known) for row in range(len(d.states))]}
    else:
        reals["ESTIMATE"] = a["estimate"]
    written = [_array("int", name, np.asarray(values, dtype=int), str) for name, values in whole.items()]
    written += [_array("real", name, values, lambda x: _number(x, single)) for name, values in reals.items()]
    return "\n".join(written)


def _filter_constants(controller: Controller) -> dict[str, Array]:
    a = controller.arrays
    s2 = a["signal_variance"]
    lower = np.tril_indices(a["precision"].shape[1])
    # Of the symmetric precision one half is kept, in which what is off the diagonal counts twice.
    symmetric = (a["precision"] + a["precision"].swapaxes(1, 2)) / 2
    half = symmetric[:, lower[0], lower[1]] * np.where(lower[0] == lower[1], 1.0, 2.0)
    constants = {
        "SENSOR_MATRIX": a["sensor_matrix"],
        "SENSOR_NOISE": a["sensor_noise"],
        "SENSOR_TURN": a["sensor_turn"],
        "PROCESS_NOISE": a["process_noise"],
        "WIDE_COV": a["wide_cov"],
        "OUTPUT_MATRIX": a["output_matrix"],
        "CORRECTION": a["correction"],
        "RATE_ROWS": a["rate_rows"],
        "MOVES": a["moves"],
        "POINT": a["inputs"],
        "INVERSE_SQUARES": a["length_scales"] ** -2.0,
        "SIGNAL_VARIANCE": s2,
        "WEIGHTS": s2[:, None] * a["weights"],
        "PRECISION": half,  # without a factor that would round it: its entries cancel
        "SLOPE": a["slope"],
        "OFFSET": a["offset"],
    }
    if "sensor_growth" in a:
        constants |= {"SENSOR_GROWTH": a["sensor_growth"], "SENSOR_BEST_AT": a["sensor_best_at"]}
    if _has_uncertain_mean(controller):
        constants |= {"CROSS_COV": 2 * s2[:, None, None] * a["cross_cov"], "LINEAR_COV": a["linear_cov"]}
    return constants


def _array(kind: str, name: str, values: Array, write: Any) -> str:
    """A constant. One that is empty gets an entry that is not used, because C has no empty arrays."""
    if values.size == 0:
        values = np.zeros([max(size, 1) for size in values.shape], dtype=values.dtype)
    sizes = "".join(f"[{size}]" for size in values.shape)
    return f"static const {kind} {name}{sizes} = {_nested(values, write)};\n"


def _nested(values: Array, write: Any, depth: int = 1) -> str:
    if values.ndim > 1:
        inner = ",\n".join("    " * depth + _nested(each, write, depth + 1) for each in values)
        return "{\n" + inner + "\n" + "    " * (depth - 1) + "}"
    words = [write(value) for value in values.tolist()]
    if sum(map(len, words)) + 2 * len(words) < WIDTH - 4 * depth:
        return "{" + ", ".join(words) + "}"
    per_line = max(1, (WIDTH - 4 * depth) // (max(map(len, words)) + 2))
    rows = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    return "{\n" + ",\n".join("    " * depth + row for row in rows) + "\n" + "    " * (depth - 1) + "}"


def _number(value: float, single: bool) -> str:
    """To the last digit: it is read back as it is."""
    text = f"{np.float32(value):.9g}" if single else repr(float(value))
    if not any(mark in text for mark in ".e"):
        text += ".0"
    return text + ("f" if single else "")


def _header(controller: Controller, name: str, single: bool, sizes: dict[str, int]) -> str:
    guard, n, p, m = f"{name}_H".upper(), sizes["STATES"], sizes["SENSORS"], sizes["ACTIONS"]
    real = f"{name}_real"
    lines = [
        f"/* The controller of {controller.description.task!r}: see {name}.c. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        f"enum {{ {name}_SENSORS = {p}, {name}_ACTIONS = {m}, {name}_REFERENCES = {sizes['REFERENCES']} }};",
        f"typedef {'float' if single else 'double'} {real};",
        "",
        "typedef struct {",
        "    /* Health, after each action. */",
        f"    {real} surprise[{p}]; /* the innovation in predicted standard deviations; NaN if missing */",
        f"    int rejected[{p}];    /* whether the entry was not believed */",
        f"    int rejections[{p}];  /* how many since reset */",
        f"    int missed[{p}];      /* how many samples ago an entry was last believed */",
        "    int restarts;       /* how often the belief had to be widened or started again */",
        "    int steps;          /* since reset */",
        "    /* Settings, which may be changed after reset. */",
        f"    {real} gate;  /* in standard deviations; 0: everything is believed */",
        "    int patience; /* how many samples of a sensor may be rejected in a row */",
        "    /* What is carried from step to step: the belief N(mean, cov), and the credit of each sensor. */",
        f"    {real} mean[{n}], cov[{n}][{n}];",
        f"    {real} latest[{p}];",
        f"    int credit[{p}];",
        *(_workspace(real, sizes) if controller.filters else []),
        f"}} {name}_t;",
        "",
        "/* Forget the last episode. */",
        f"void {name}_reset({name}_t *c);",
        "/* The action u for an observation z, once per sampling period. NAN is an entry that is missing. */",
        f"void {name}_act({name}_t *c, const {real} z[{p}], {real} u[{m}]);",
        "/* New values of the targets, before an action. 0 if they are not finite: then nothing changes. */",
        f"int {name}_follow({name}_t *c, const {real} *references);",
        "/* Seconds since an entry of this sensor was last believed. */",
        f"{real} {name}_since_good(const {name}_t *c, int sensor);",
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _workspace(real: str, sizes: dict[str, int]) -> list[str]:
    P, D, O, trig = sizes["POINTS"], sizes["INPUTS"], sizes["OUTPUTS"], sizes["TRIG"]
    return [
        "    struct { /* of one step; nothing in it is kept */",
        f"        {real} mu[{D}], S[{D}][{D}], slope[{trig + 1}];",
        f"        {real} M[{D}][{D}], A[{D}][{D}], T[{D}][{D}];",
        f"        {real} x[{P}][{D}], left[{P}][{D}], right[{P}][{D}], log_left[{P}], log_right[{P}];",
        f"        {real} q[{O}][{P}], own[{O}][{D}][{D}], log_scale[{O}];",
        f"        {real} y[{O}], y_cov[{O}][{O}], gain[{D}][{O}], kernels[{O}], variance[{O}];",
        "    } work;",
    ]
