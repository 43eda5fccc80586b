"""A module imports only from those above it: the order in which the library is to be read."""

import ast
from pathlib import Path

import pytest

import bayespilco

ORDER = [
    "version",
    "moved",
    "deploy",
    "controller",
    "startup",
    "interrupts",
    "core",
    "settings",
    "model",
    "control",
    "training",
    "tasks",
    "execution",
    "algorithm",
    "deploy.bridge",
    "trust",
    "runs",
    "report",
    "environments",
    "experiments",
    "console",
    "cli",
]
"""`deploy` is what leaves the house, and needs NumPy only; its `bridge` leads there from what was learned."""
PURE = ("core", "settings", "model", "control", "training", "tasks", "execution", "algorithm", "trust")
"""Mathematics: no files, no processes or threads, no printing."""
IMPURE = {"os", "io", "sys", "pathlib", "shutil", "tempfile", "subprocess", "multiprocessing", "threading", "signal"}
IMPURE |= {"socket", "logging", "rich", "typer", "safetensors", "matplotlib", "distributed", "concurrent", "pickle"}
ROOT = Path(bayespilco.__file__).parent


def part_of(path: Path) -> str:
    """The part of the library, as `ORDER` names them, that a file belongs to."""
    return part_named(".".join(path.relative_to(ROOT).with_suffix("").parts))


def part_named(module: str) -> str:
    """The part that a module below the library's root belongs to."""
    return "deploy.bridge" if module.startswith("deploy.bridge") else module.split(".")[0]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are absolute in this library"
            names = [node.module or ""]
            if names == ["bayespilco"]:
                names = [f"bayespilco.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "bayespilco.deploy":
            names = [f"bayespilco.deploy.{alias.name}" for alias in node.names]
        found |= {part_named(name.removeprefix("bayespilco.")) for name in names if name.startswith("bayespilco.")}
    return found


FILES = sorted(path for path in ROOT.rglob("*.py") if part_of(path) not in ("__init__", "__main__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_from_above(path: Path) -> None:
    here = part_of(path)
    assert here in ORDER, f"{here} has no place in the order yet: give it one"
    above = ORDER[: ORDER.index(here) + 1]  # a package may import from itself
    if path == ROOT / "deploy" / "rig" / "loop.py":
        above = [*above, "deploy.bridge"]  # when a task asks its rig for an episode, and only then
    assert imports(path) <= set(above), f"{path.name} imports from below: {imports(path) - set(above)}"


@pytest.mark.parametrize("path", [f for f in FILES if part_of(f) in PURE], ids=lambda path: str(path.relative_to(ROOT)))
def test_mathematics_knows_no_files_processes_or_printing(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not IMPURE & {name.split(".")[0] for name in names}, f"{path.name} imports {names}"
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        assert called not in ("print", "open", "input"), f"{path.name} calls {called}"
