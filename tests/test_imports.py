"""A module imports only from those above it: the order in which the library is to be read."""

import ast
from pathlib import Path

import pytest

import bayespilco

ORDER = [
    "version",
    "controller",
    "startup",
    "files",
    "logs",
    "plants",
    "precision",
    "compilation",
    "crew",
    "gaussian",
    "shrink",
    "features",
    "gp",
    "pair_sums",
    "moments",
    "cost",
    "policy",
    "dynamics",
    "belief",
    "parts",
    "prediction",
    "episode",
    "tasks",
    "deployment",
    "execution",
    "training",
    "improvement",
    "algorithm",
    "runs",
    "export",
    "report",
    "environments",
    "experiments",
    "console",
    "cli",
]
ROOT = Path(bayespilco.__file__).parent


def part_of(path: Path) -> str:
    """The module or package, directly below the library's root, that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


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
        found |= {name.split(".")[1] for name in names if name.startswith("bayespilco.")}
    return found


FILES = sorted(path for path in ROOT.rglob("*.py") if part_of(path) not in ("__init__", "__main__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_from_above(path: Path) -> None:
    here = part_of(path)
    assert here in ORDER, f"{here} has no place in the order yet: give it one"
    above = ORDER[: ORDER.index(here) + 1]  # a package may import from itself
    assert imports(path) <= set(above), f"{path.name} imports from below: {imports(path) - set(above)}"
