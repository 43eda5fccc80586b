"""What the documents say is so: the README's Python runs, the map of the paper is complete, and its names exist."""

import importlib
import importlib.metadata
import json
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


IN_ONE_PROCESS = """
import contextlib, io, json, os, sys, traceback
found = []
for page, directory, program in json.load(sys.stdin):
    os.chdir(directory)
    said, error = io.StringIO(), ""
    with contextlib.redirect_stdout(said):
        try:
            exec(compile(program, page, "exec"), {"__name__": "__main__"})
        except BaseException:
            error = traceback.format_exc()
    found.append((page, said.getvalue(), error))
json.dump(found, sys.stdout)
"""
"""Programs one after the other, each with names and a directory of its own. What one of them compiles, others find."""

HOWTOS = ["own-task", "own-data", "real-plant", "missing-samples", "hidden-states", "costs", "trust"]
SLOW_HOWTOS = ["runs", "when-learning-fails", "learning-curves", "exploration"]
"""Those that go on from a run."""
one_process = pytest.mark.xdist_group("documents")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """What the programs of each page print, with JAX as users have it: in float32, no checks of shapes."""
    pages = {"README": ROOT / "README.md", "tutorial": ROOT / "docs" / "tutorial.md"}
    howtos = HOWTOS + (SLOW_HOWTOS if request.config.getoption("--slow") else [])
    pages |= {page: ROOT / "docs" / "howto" / f"{page}.md" for page in howtos}
    directory, given = tmp_path_factory.mktemp("documents"), []
    for page, document in pages.items():
        (directory / page).mkdir()
        given += [(page, str(directory / page), program) for program in blocks(document, "python")]
    small_run().save(directory / "tutorial" / "runs" / "pendulum")
    export.save(small_run().controller, directory / "tutorial" / "pendulum.controller")
    for page in SLOW_HOWTOS:
        small_run().save(directory / page / "runs" / "first")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_ONE_PROCESS],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NPROC": "1"},
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    texts: dict[str, list[str]] = {"directory": [str(directory)]}
    for page, text, error in json.loads(done.stdout):
        texts.setdefault(page, []).append(error or text)
        if error:
            texts.setdefault(f"errors of {page}", []).append(error)
    return texts


@one_process
def test_python_of_the_readme_runs(said: dict[str, list[str]]) -> None:
    (text,) = said["README"]
    assert re.search(r"^predicted [\d.]+, executed [\d.]+ \+- [\d.]+$", text, re.MULTILINE), text
    assert Path(*said["directory"], "README", "costs.png").exists()


@one_process
@pytest.mark.parametrize("page", [*(pytest.param(page, marks=pytest.mark.slow) for page in SLOW_HOWTOS), *HOWTOS])
def test_python_of_the_howtos_runs(page: str, said: dict[str, list[str]]) -> None:
    assert said[page]
    assert f"errors of {page}" not in said, said[f"errors of {page}"]


@one_process
def test_python_of_the_tutorial_runs(said: dict[str, list[str]]) -> None:
    run = small_run()
    asked, taken_away = said["tutorial"]
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
            assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings], target


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


def test_the_oldest_rich_that_is_allowed_can_be_had_with_typer() -> None:
    """Minimum versions are installed together by those who keep to them: then typer's own minimum counts as well."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (ours,) = (each for each in project["dependencies"] if each.startswith("rich"))
    (typers,) = (each for each in importlib.metadata.requires("typer") or [] if each.startswith("rich"))
    least = [tuple(map(int, re.findall(r"\d+", each.partition(">=")[2]))) for each in (ours, typers)]
    assert least[0] >= least[1][: len(least[0])], (ours, typers)
