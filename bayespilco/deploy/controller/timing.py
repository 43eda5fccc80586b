"""How long a step takes on this machine, as a function and as the command `python -m bayespilco.controller FILE`."""

import sys

import numpy as np

from bayespilco.deploy.controller.controller import Controller


def timing(controller: Controller, steps: int = 1000) -> str:
    """How long a step takes on this machine, in a sentence. The controller is reset."""
    controller.reset()
    controller.act(controller.expected)  # the first step also loads libraries
    seconds = np.empty(steps)
    for step in range(steps):
        controller.act(controller.expected)
        seconds[step] = controller.last_seconds
    controller.reset()
    mean, most, worst = 1e3 * seconds.mean(), 1e3 * np.quantile(seconds, 0.99), 1e3 * seconds.max()
    period = 1e3 * controller.description.dt
    return (
        f"a step takes {mean:.2f} ms here (99 of 100 at most {most:.2f} ms, the longest of {steps} {worst:.2f} ms), "
        f"of a period of {period:.4g} ms."
    )


def main() -> None:
    """Print which task a controller is for, and how long a step takes."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bayespilco.controller FILE")
    try:
        controller = Controller.load(sys.argv[1])
    except ValueError as error:
        print(f"bayespilco: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{controller.description.task}, {controller.description.method}: {timing(controller)}")
