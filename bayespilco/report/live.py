"""The report while the run is learned: served to a browser on this machine, and to nobody else.

    with LiveReport() as live:
        learn("pendulum", callbacks=[live.on_run], on_progress=live.on_progress)

The page asks twice a second what is being done, and loads itself again when an episode more is learned.
"""

import http.server
import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bayespilco.algorithm import Progress
from bayespilco.model.episode import Episode
from bayespilco.report.page import assemble
from bayespilco.report.run_page import RunPage
from bayespilco.runs import Run

LOOPBACK = "127.0.0.1"
STAGES = {"execute": "executing", "train": "learning the dynamics", "improve": "improving the policy"}
SCRIPTS, STYLES = ("canvas.js", "charts.js", "live.js"), ("style.css", "report.css")
LINGER = 3.0
"""Seconds that the server waits at the end for a browser to fetch the last page."""
LONGEST = 2000
"""Points of a search that are sent, at most."""


class LiveReport:
    """A small web server. Use it as a context manager, and its `on_` methods as the callables of `learn`."""

    def __init__(self, port: int = 0) -> None:
        """`port`: 0 for any that is free."""
        self.maker, self.lock = RunPage(), threading.Lock()
        self.version, self.now, self.fraction, self.ended = 0, "starting", 0.0, False
        self.watched, self.fetched = False, 0
        self.search: list[float] = []
        self.searching: Any = None
        waiting = {"version": self.version}
        self.content = assemble("waiting.html", styles=STYLES, scripts=SCRIPTS, data=waiting, title="Learning")
        try:
            self.server = http.server.ThreadingHTTPServer((LOOPBACK, port), _handler(self._answer))
        except OSError as error:
            raise ValueError(f"Cannot serve the report on port {port}: {error.strerror or error}.") from error
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True)

    @property
    def address(self) -> str:
        return f"http://localhost:{self.server.server_port}/"

    def __enter__(self) -> "LiveReport":
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        end = time.monotonic() + LINGER
        while self.ended and self.watched and self.fetched < self.version and time.monotonic() < end:
            time.sleep(0.05)  # somebody is looking: the last page is still to be fetched
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def on_run(self, run: Run) -> None:
        """There is an episode more."""
        self._show(run, None)

    def on_progress(self, progress: Progress) -> None:
        with self.lock:
            self.now = f"Episode {progress.episode + 1} of {progress.episodes}: {STAGES[progress.stage]}"
            self.fraction = (progress.episode + min(progress.fraction, 1.0)) / progress.episodes
            stage = progress.episode, progress.stage
            if stage != self.searching:
                self.search, self.searching = [], stage
            if progress.stage == "improve" and progress.cost is not None:
                self.now += f", predicted cost {progress.cost:.2f}"
                if len(self.search) < LONGEST:
                    self.search.append(float(progress.cost))

    def on_end(self, run: Run, executed: Episode | None) -> None:
        """All is learned, and the final policy was executed."""
        self._show(run, executed, ended=True)

    def _show(self, run: Run, executed: Episode | None, ended: bool = False) -> None:
        content = self.maker.page(run, executed, version=self.version + 1)
        with self.lock:
            self.content, self.version, self.ended = content, self.version + 1, ended
            if ended:
                self.now, self.fraction, self.search = "All is learned.", 1.0, []

    def _answer(self, path: str) -> tuple[str, bytes] | None:
        """Kind and content of what is at a path."""
        with self.lock:
            if path == "/":
                self.watched, self.fetched = True, self.version
                return "text/html; charset=utf-8", self.content.encode()
            if path == "/state.json":
                names = ("version", "now", "fraction", "search", "ended")
                return "application/json", json.dumps({name: getattr(self, name) for name in names}).encode()
        return None


def _handler(answer: Callable[[str], tuple[str, bytes] | None]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rpartition(":")[0]
            # A page of somebody else's, whose name leads here, must not read the report.
            found = answer(self.path.partition("?")[0]) if host in ("localhost", LOOPBACK) else None
            kind, content = found or ("text/plain", b"There is nothing here.")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass  # standard error is for the learning program

    return Handler
