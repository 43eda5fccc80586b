"""PILCO with Bayesian filtering: learning to control from seconds of noisy experience (McAllister & Rasmussen 2016).

To use it, `learn` a task from `tasks` with one of the four `METHODS`. What comes back is a `Run`, and
`bayespilco.report` draws it.
To read it, go down this list: each module imports only from those above it.

    precision     double precision, whatever the process does otherwise
    compilation   how functions are compiled
    gaussian      the language of every map: a Gaussian in, mean, covariance and gain out
    shrink        the one piece of small linear algebra, with its derivative
    features      sines and cosines of angles, and the squashing of actions
    gp            the Gaussian process as prediction needs it
    pair_sums     the one hot loop, value and gradient in one sweep
    moments       Appendices A and B of the paper: a Gaussian, or a distribution over beliefs, through the GP
    policy, cost  what is learned, and what is wanted
    dynamics      the learned plant: a GP and two noises
    belief        the filter, executed and predicted
    prediction    the three predictors
    episode       recorded experience
    tasks         plants, with names and units
    deployment    what was learned, as a controller to take away
    execution     the two executors
    training      from noisy series to a model
    improvement   policy search
    algorithm     Algorithm 1, and the table of methods
    runs          runs: learned, kept in files, resumed

Beside these: `report` (figures), `environments` (Gymnasium), `experiments` (studies), `cli` (the command). `controller`
is what a learned policy leaves the house as, `plants` runs it on a real plant, and `logs` reads and writes what was
recorded there, with `files`: these need NumPy only, so nothing here imports JAX before it is asked for what needs it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bayespilco.version import VERSION as __version__  # noqa: F401

if TYPE_CHECKING:  # what type checkers and editors see; `_HOMES` says the same to Python
    from bayespilco import deployment as deployment
    from bayespilco import export as export
    from bayespilco import logs as logs
    from bayespilco import moments as moments
    from bayespilco import plants as plants
    from bayespilco import report as report
    from bayespilco import runs as runs
    from bayespilco import startup as startup
    from bayespilco import tasks as tasks
    from bayespilco.algorithm import METHODS as METHODS
    from bayespilco.algorithm import Method as Method
    from bayespilco.algorithm import Progress as Progress
    from bayespilco.algorithm import Record as Record
    from bayespilco.algorithm import Settings as Settings
    from bayespilco.belief import Belief as Belief
    from bayespilco.belief import BeliefDistribution as BeliefDistribution
    from bayespilco.controller import Controller as Controller
    from bayespilco.cost import SaturatingCost as SaturatingCost
    from bayespilco.dynamics import Dynamics as Dynamics
    from bayespilco.episode import Episode as Episode
    from bayespilco.execution import execute as execute
    from bayespilco.execution import execute_many as execute_many
    from bayespilco.features import AngleFeatures as AngleFeatures
    from bayespilco.gaussian import Gaussian as Gaussian
    from bayespilco.gaussian import Moments as Moments
    from bayespilco.gp import GaussianProcess as GaussianProcess
    from bayespilco.policy import LinearPolicy as LinearPolicy
    from bayespilco.policy import RBFPolicy as RBFPolicy
    from bayespilco.prediction import Prediction as Prediction
    from bayespilco.prediction import predict as predict
    from bayespilco.runs import Run as Run
    from bayespilco.runs import learn as learn
    from bayespilco.runs import resume as resume
    from bayespilco.tasks import Task as Task

_HOMES = {
    "algorithm": ("METHODS", "Method", "Progress", "Record", "Settings"),
    "belief": ("Belief", "BeliefDistribution"),
    "controller": ("Controller",),
    "cost": ("SaturatingCost",),
    "dynamics": ("Dynamics",),
    "episode": ("Episode",),
    "execution": ("execute", "execute_many"),
    "features": ("AngleFeatures",),
    "gaussian": ("Gaussian", "Moments"),
    "gp": ("GaussianProcess",),
    "policy": ("LinearPolicy", "RBFPolicy"),
    "prediction": ("Prediction", "predict"),
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
