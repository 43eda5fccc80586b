"""The end of every episode: the actuators get the rest action. It is sent until it arrives; a failure is reported."""

from collections.abc import Callable
from concurrent.futures import wait

import numpy as np

from bayespilco.deploy.rig.pacing import monotonic, sleep
from bayespilco.deploy.rig.protocols import Plant
from bayespilco.deploy.rig.recording import Recording
from bayespilco.deploy.rig.threads import Caller, Thread

PATIENCE = 1.0
"""Seconds in which a plant must take the rest action at the end. A failure is tried again until then."""
PAUSE = 0.05
"""Seconds between two tries."""


def stop(plant: Plant, caller: Caller, rest: np.ndarray, recording: Recording, realtime: bool) -> None:
    """Send the rest action, and report if it did not arrive. (A simulation cannot be left on: nothing is reported.)

    A step that has not returned may still send its action when it wakes up. So the rest action is sent at once from
    another thread, and once more from the thread of that step, as soon as it returns.
    """

    def step() -> None:
        plant.step(rest.copy())  # a driver may scale what it is given

    function = getattr(plant, "stop", None) or step
    until = monotonic() + (PATIENCE if realtime else 0.0)
    callers = [caller, Thread()] if caller.busy else [caller]
    sent = [each.submit(_until_it_works, function, until) for each in callers]
    wait(sent, timeout=PATIENCE + PAUSE)
    at_once = sent[-1]
    error = at_once.exception() if at_once.done() else TimeoutError("it did not return")
    if realtime and error is not None:
        recording.stopped = False
        action = f"the rest action {rest}" if rest.any() else "zero"
        why = f"{action} could not be sent ({type(error).__name__}: {error}), look at the plant"
        recording.reason = f"{recording.reason}; {why}" if recording.reason else why


def _until_it_works(function: Callable[[], object], until: float) -> None:
    while True:
        try:
            function()
            return
        except Exception:
            if monotonic() + PAUSE > until:
                raise
        sleep(PAUSE)
