"""The documentation site has every page, is built without a warning, and works without a network."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.browser import Visit, chromium

ROOT = Path(__file__).parents[1]


class Loader(yaml.SafeLoader):
    """MkDocs has tags of its own, which do not matter here."""


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inside = nav.values() if isinstance(nav, dict) else nav
    return [page for each in inside for page in pages_of(each)]


def test_every_page_has_its_place_in_the_navigation() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(pages_of(settings["nav"])) == pages
    assert settings["theme"]["font"] is False, "fonts would be fetched from elsewhere"


@pytest.mark.slow
def test_the_site_is_built_strictly_and_searches_without_a_network(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("MkDocs is not installed: `./check --docs` installs it, and builds the site.")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with chromium() as browser:
        visit = Visit(browser, (tmp_path / "howto" / "runs.html").as_uri(), 360)
        assert visit.ask("document.documentElement.scrollWidth <= innerWidth")
        visit.page.set_viewport_size({"width": 1400, "height": 900})
        visit.page.keyboard.press("s")
        visit.page.keyboard.type("dropout")
        visit.until("document.querySelectorAll('.md-search-result__link').length > 2")
        assert not visit.complaints
        assert all(request.startswith(("file:", "data:", "blob:")) for request in visit.requests)
        dark = Visit(browser, (tmp_path / "gallery.html").as_uri(), 360, "dark")
        shown = "[...document.images].filter((image) => image.offsetWidth).map((image) => image.src.split('/').pop())"
        assert "tanks-states-dark.svg#only-dark" in dark.ask(shown)
        assert "tanks-states.svg#only-light" not in dark.ask(shown)
        for each in (visit, dark):  # last: axe-core reads style sheets, which a browser does not allow of files
            assert each.violations() == []


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_run(notebook: Path, tmp_path: Path) -> None:
    """Cell after cell, in a process of their own; what a cell ends with can be displayed."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells), "outputs are not stored"
    program = "import ast, json, sys\nspace = {}\n"
    program += """
for source in json.loads(sys.stdin.read()):
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), space)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), space) if last else None
    if value is not None and type(value).__name__ in ("Run", "Drawing"):
        assert value._repr_html_() if type(value).__name__ == "Run" else value._repr_png_()
"""
    sources = json.dumps(["".join(cell["source"]) for cell in cells])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, input=sources, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "playground.html").exists()
