"""Old import paths: `bayespilco.cost` is `bayespilco.control.cost` since version 0.2, and both names work.

Installed by `bayespilco/__init__.py`. An old name gives the same module object as the new one, so a class imported
by either name is one class.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "belief": "model.belief",
    "compilation": "core.compilation",
    "cost": "control.cost",
    "crew": "runs.workers",
    "deployment": "deploy.bridge",
    "dynamics": "model.dynamics",
    "episode": "model.episode",
    "export": "deploy.export",
    "features": "core.features",
    "files": "deploy.files",
    "gaussian": "core.gaussian",
    "gp": "core.gp",
    "improvement": "control.search",
    "logs": "deploy.logs",
    "moments": "core.moments",
    "pair_sums": "core.pair_sums",
    "parts": "model.splitting",
    "plants": "deploy.rig",
    "policy": "control.policy",
    "precision": "core.precision",
    "prediction": "control.prediction",
    "shrink": "core.linalg",
    "training.drawn": "model.posterior_samples",
    "training.minimise": "core.optimise",
}
"""Where the modules of version 0.1 are now, both below `bayespilco`."""


class _OldPaths(MetaPathFinder, Loader):
    """Finds a module that has moved, under its old name."""

    def find_spec(
        self, name: str, path: Iterable[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = name.partition(".")
        return ModuleSpec(name, self) if package == "bayespilco" and old in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._own_spec = (module := importlib.import_module(new_name(spec.name))).__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the import system has just replaced it by that of the old name


def new_name(old: str) -> str:
    return f"bayespilco.{MOVED[old.partition('.')[2]]}"


def install() -> None:
    """Make the old paths work, once."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())
