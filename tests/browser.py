"""The pages' JavaScript, in a real browser (Chromium, driven by Playwright) or, where no page is needed, in Node.

Without a browser the tests that need one are skipped, and say so. Playwright brings its own Node, so that the
arithmetic is tested wherever the tests can be installed.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bayespilco.report.page import as_json, read

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
WIDTHS = (360, 800, 1400)


def run_node(scripts: tuple[str, ...], program: str, data: Any) -> Any:
    """What a program returns that follows the pages' scripts, given `data`: both as JSON."""
    playwright = pytest.importorskip("playwright", reason="Playwright is not installed, and with it Node.")
    node = Path(playwright.__file__).parent / "driver" / "node"
    command = [str(node) if node.exists() else shutil.which("node") or pytest.skip("There is no Node.")]
    text = "\n".join(map(read, scripts))
    main = f"const data = JSON.parse(require('fs').readFileSync(0, 'utf8'));\nconst result = (() => {{ {program} }})();"
    say = "process.stdout.write(JSON.stringify(result));"
    done = subprocess.run(
        [*command, "-e", f"{text}\n{main}\n{say}"], input=as_json(data), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser. Without one, the test is skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="No browser test: Playwright is not installed.")
    if not CHROMIUM:
        pytest.skip("No browser test: Chromium is not installed (on Debian: apt-get install chromium).")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Visit:
    """A page that is open, with all that it complained about and all that it asked of a network."""

    def __init__(
        self, browser: Any, address: str, width: int = 800, scheme: str = "light", touch: bool = False
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, has_touch=touch, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert not self.complaints
            assert len(self.requests) == 1, "only the page itself is asked for"

    def until(self, condition: str, seconds: float = 60) -> None:
        """Wait for an expression to become true. (Playwright's own way needs `eval`, which the pages forbid.)"""
        end = time.monotonic() + seconds
        while not self.ask(condition):
            assert time.monotonic() < end, f"never: {condition}"
            self.page.wait_for_timeout(20)

    def ask(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def overflow(self) -> list[str]:
        """What reaches beyond the right edge of the window, or makes the page wider than it."""
        return self.ask(
            """() => {
              const wide = document.documentElement.scrollWidth > innerWidth ? ["the page"] : [];
              const inside = (element) => element.closest(".scroll, svg");
              const beyond = [...document.body.querySelectorAll("*")].filter(
                (element) => element.getBoundingClientRect().right > innerWidth + 0.5 && !inside(element));
              return [...wide, ...beyond.map((element) => `${element.tagName} ${element.id} ${element.className}`)];
            }"""
        )

    def violations(self) -> list[str]:
        """What axe-core finds wrong: contrast, labels, roles."""
        axe = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed.")
        # Chromium's own isolated world: the page's policy forbids scripts from elsewhere.
        self.page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text())
        found = self.page.evaluate("async () => (await axe.run()).violations")
        return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:120]}" for each in found]
