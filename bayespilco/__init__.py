"""PILCO with Bayesian filtering: learning to control from seconds of noisy experience (McAllister & Rasmussen 2016).

To use it, `learn` a task from `tasks` with one of the four `METHODS`. What comes back is a `Run`, and
`bayespilco.report` draws it. To read it, go down this list: each layer imports only from those above it.

    core/        Gaussians through maps: precision, linalg, features, the GP, and Appendices A and B (`moments`)
    model/       what is believed about the plant: sensors, dynamics, the filter (`belief`), posterior samples
    control/     what is wanted, and how good it will be: policy, cost, objective, prediction, search
    training/    from noisy series to a model
    tasks/       plants, with names and units; one file per task
    execution    how a policy meets the simulated plant
    algorithm    Algorithm 1 and the table of methods: the whole loop
    deploy/      what leaves the house: the controller, the rig, logs (these need NumPy only)
    trust/       promises: certificates before a trial, their calibration, the worth of sensors
    runs/        learning as a user asks for it: kept in files, resumed, in several processes

Beside these: `report` (figures), `environments` (Gymnasium), `experiments` (studies), `cli` (the command). Everything
from `core` to `algorithm` is free of files, processes and printing. Nothing imports JAX before it is asked for what
needs it, so that a controller runs where there is only NumPy. Import paths of version 0.1 keep working (`moved`).
"""

import importlib
from typing import TYPE_CHECKING, Any

from bayespilco import moved
from bayespilco.version import VERSION as __version__  # noqa: F401

moved.install()

if TYPE_CHECKING:  # what type checkers and editors see; `_HOMES` says the same to Python
    from bayespilco import report as report
    from bayespilco import runs as runs
    from bayespilco import startup as startup
    from bayespilco import tasks as tasks
    from bayespilco.algorithm import METHODS as METHODS
    from bayespilco.algorithm import Method as Method
    from bayespilco.algorithm import Progress as Progress
    from bayespilco.algorithm import Record as Record
    from bayespilco.algorithm import Settings as Settings
    from bayespilco.control.cost import SaturatingCost as SaturatingCost
    from bayespilco.control.policy import LinearPolicy as LinearPolicy
    from bayespilco.control.policy import RBFPolicy as RBFPolicy
    from bayespilco.control.prediction import Prediction as Prediction
    from bayespilco.control.prediction import predict as predict
    from bayespilco.core import moments as moments
    from bayespilco.core.features import AngleFeatures as AngleFeatures
    from bayespilco.core.gaussian import Gaussian as Gaussian
    from bayespilco.core.gaussian import Moments as Moments
    from bayespilco.core.gp import GaussianProcess as GaussianProcess
    from bayespilco.deploy import bridge as deployment  # noqa: F401
    from bayespilco.deploy import export as export
    from bayespilco.deploy import logs as logs
    from bayespilco.deploy import rig as plants  # noqa: F401
    from bayespilco.deploy.controller import Controller as Controller
    from bayespilco.execution import execute as execute
    from bayespilco.execution import execute_many as execute_many
    from bayespilco.model.belief import Belief as Belief
    from bayespilco.model.belief import BeliefDistribution as BeliefDistribution
    from bayespilco.model.dynamics import Dynamics as Dynamics
    from bayespilco.model.episode import Episode as Episode
    from bayespilco.runs import Run as Run
    from bayespilco.runs import learn as learn
    from bayespilco.runs import resume as resume
    from bayespilco.tasks import Task as Task

_HOMES = {
    "algorithm": ("METHODS", "Method", "Progress", "Record", "Settings"),
    "model.belief": ("Belief", "BeliefDistribution"),
    "deploy.controller": ("Controller",),
    "control.cost": ("SaturatingCost",),
    "model.dynamics": ("Dynamics",),
    "model.episode": ("Episode",),
    "execution": ("execute", "execute_many"),
    "core.features": ("AngleFeatures",),
    "core.gaussian": ("Gaussian", "Moments"),
    "core.gp": ("GaussianProcess",),
    "control.policy": ("LinearPolicy", "RBFPolicy"),
    "control.prediction": ("Prediction", "predict"),
    "runs": ("Run", "learn", "resume"),
    "tasks": ("Task",),
}
"""The names offered here, by the module that each is at home in."""
_MODULES = ("deployment", "export", "logs", "moments", "plants", "report", "runs", "startup", "tasks")
"""Modules that the documents speak of as `bayespilco.runs`, and so on: there without being imported by name."""


def __getattr__(name: str) -> Any:
    """Import what is asked for at the moment that it is."""
    if name in _MODULES:
        return importlib.import_module(f"bayespilco.{name}")
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"bayespilco.{home}"), name)
            return value
    raise AttributeError(f"module 'bayespilco' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, *(name for names in _HOMES.values() for name in names)])
