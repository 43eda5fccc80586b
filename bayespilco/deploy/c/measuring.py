"""What single precision costs: both versions are compiled and run on the same observations."""

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bayespilco.deploy.c.writing import source
from bayespilco.deploy.controller import Controller
from bayespilco.deploy.controller.filter import Array, sensor_noise

STEPS = 200
COMPILERS = ("cc", "gcc", "clang")


def single_error(controller: Controller, seed: int = 0) -> str:
    """How far the actions of `float` are from those of `double`, in a sentence."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        return "The error of float was not measured: there was no C compiler."
    z = observations(controller, STEPS, seed)
    double, single = (actions(controller, z, compiler, single) for single in (False, True))
    error, mean = np.abs(single - double).max(axis=0), np.abs(single - double).mean(axis=0)
    each = "; ".join(
        f"{name} {of_mean:.1e} on average, at most {of_worst:.1e}"
        for name, of_mean, of_worst in zip(controller.description.actions, mean, error, strict=True)
    )
    return f"Actions of float differ from those of double, in {STEPS} steps: {each}."


def observations(controller: Controller, steps: int, seed: int) -> Array:
    """What sensors might say in an episode: what the controller expects, and noise as large as it expects."""
    controller.reset()
    random, z = np.random.default_rng(seed), []
    for _ in range(steps):
        if controller.filters:
            noise = np.sqrt(sensor_noise(controller.arrays, controller.mean, controller.cov))
        else:
            noise = np.full(len(controller.latest), 1e-2)
        z.append(controller.expected + noise * random.normal(size=noise.shape))
        controller.act(z[-1])
    controller.reset()
    return np.array(z)


def actions(controller: Controller, z: Array, compiler: str, single: bool) -> Array:
    """The actions of a controller in C, compiled and run."""
    written = source(controller, "measured", single=single)
    with TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "measured.c").write_text(written.code)
        (place / "measured.h").write_text(written.header)
        options = ["-std=c99", "-O2", "-Dmeasured_MAIN", "measured.c", "-o", "measured", "-lm"]
        subprocess.run([compiler, *options], cwd=place, check=True, capture_output=True)
        text = "\n".join(" ".join(map(repr, row)) for row in z.tolist())
        done = subprocess.run([place / "measured"], input=text, text=True, check=True, capture_output=True)
    rows = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    return np.array(rows)[:, : len(controller.description.actions)]
