"""What the documents say is so: the README's Python runs, the map of the paper is complete, and its names exist."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import bayespilco
from bayespilco import METHODS, runs
from bayespilco.deploy import export
from tests.small_run import small_run

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
EQUATIONS = 43


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.DOTALL)


def resolve(name: str) -> Any:
    """The object of a dotted name: the longest part that is a module, and attributes from there."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            value = getattr(value, part)
        return value
    raise ModuleNotFoundError(name)


def said_by(program: str, directory: Path) -> str:
    """What a program prints in a process of its own, with JAX as users have it: in float32, no checks of shapes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NPROC": "1"}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_of_the_readme_runs(tmp_path: Path) -> None:
    (program,) = blocks(ROOT / "README.md", "python")
    assert re.search(r"^predicted [\d.]+, executed [\d.]+ \+- [\d.]+$", said_by(program, tmp_path), re.MULTILINE)
    assert (tmp_path / "costs.png").exists()


ON_A_RUN = ("runs", "when-learning-fails", "learning-curves", "exploration")
"""Pages whose programs read a run."""


@pytest.mark.parametrize(
    "page",
    [
        *(pytest.param(page, marks=pytest.mark.slow) for page in ON_A_RUN),
        *("own-task", "own-data", "real-plant", "missing-samples", "hidden-states", "costs", "trust"),
    ],
)
def test_python_of_the_howtos_runs(page: str, tmp_path: Path) -> None:
    if page in ON_A_RUN:
        small_run().save(tmp_path / "runs" / "first")
    programs = blocks(ROOT / "docs" / "howto" / f"{page}.md", "python")
    assert programs
    for program in programs:
        said_by(program, tmp_path)


def test_python_of_the_tutorial_runs(tmp_path: Path) -> None:
    run = small_run()
    run.save(tmp_path / "runs" / "pendulum")
    export.save(run.controller, tmp_path / "pendulum.controller")
    asked, taken_away = (said_by(program, tmp_path) for program in blocks(ROOT / "docs" / "tutorial.md", "python"))
    assert f"episode 2: executed {run.records[1].executed_cost:.1f}" in asked
    assert taken_away.startswith("spring ") and len(taken_away.splitlines()) == 5


def test_the_readme_has_ten_lines_of_python_and_two_commands() -> None:
    (python,) = blocks(ROOT / "README.md", "python")
    assert len(python.split("\n\n")[1].splitlines()) <= 10
    commands = blocks(ROOT / "README.md", "sh")
    assert len(commands) == 2
    assert all(command.count("\n") == 1 for command in commands)
    assert commands[1].strip() in (ROOT / ".ci" / "run").read_text()


def test_every_equation_of_the_paper_is_mapped_once() -> None:
    rows = re.findall(r"^\| (\d+)(?:-(\d+))? \|", (ROOT / "docs" / "paper-map.md").read_text(), re.MULTILINE)
    mapped = [number for first, last in rows for number in range(int(first), int(last or first) + 1)]
    assert mapped == list(range(1, EQUATIONS + 1))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_name_in_the_documents_exists(document: Path) -> None:
    for name in set(re.findall(r"`(bayespilco(?:\.\w+)+)", document.read_text())):
        resolve(name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], target


def test_equation_numbers_in_the_code_are_those_of_the_map() -> None:
    """A function that names an equation stands in that equation's row, or in a module that does."""
    text = (ROOT / "docs" / "paper-map.md").read_text()
    rows = re.findall(r"^\| (\d+)(?:-(\d+))? \|[^|]*\| (.*) \|$", text, re.MULTILINE)
    modules: dict[int, set[str]] = {}
    for first, last, names in rows:
        for number in range(int(first), int(last or first) + 1):
            modules[number] = {name.split(".")[1] for name in re.findall(r"`(bayespilco[\w.]+)`", names)}
    for file in sorted((ROOT / "bayespilco").rglob("*.py")):
        for numbers in re.findall(r"Eqs?\. ([\d, -]+)", file.read_text()):
            for number in map(int, re.findall(r"\d+", numbers)):
                assert number in modules, f"{file.name}: there is no Eq. {number}"
                owner = file.relative_to(ROOT / "bayespilco").parts[0].removesuffix(".py")
                # `moments` implements the kernel averages that `pair_sums` sweeps.
                assert owner in modules[number] | {"moments"}, f"{file.name}: Eq. {number} is {modules[number]}"


def test_names_that_others_rely_on() -> None:
    for name in ("Gaussian", "Moments", "GaussianProcess", "learn"):
        assert callable(getattr(bayespilco, name))
    assert callable(bayespilco.core.moments.gp_moments)
    assert callable(bayespilco.core.moments.belief_moments)
    assert bayespilco.tasks.cart_pole().name == "cart-pole"
    assert list(METHODS) == ["pilco", "dallaire", "deisenroth", "bayes-filter"]


def test_the_version_is_one() -> None:
    cff = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {bayespilco.__version__}\n" in cff
    assert f"## {bayespilco.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert runs.Config("").version == bayespilco.__version__


def test_all_dependencies_are_pinned_without_addresses() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = (ROOT / "constraints.txt").read_text()
    assert "://" not in pinned
    assert " @ " not in pinned
    for requirement in project["dependencies"] + project["optional-dependencies"]["dev"]:
        name = re.match(r"[\w-]+", requirement)[0]  # type: ignore[index]
        assert f"\n{name}==" in pinned, name
