"""The command in a process that can be killed: `python -m tests.killed WRITING REPLAY learn spring ...`.

WRITING: kill the process (SIGKILL, by itself) at this moment of its writing of files, counted from 0; or "never".
REPLAY: the directory of a finished run, whose episodes are given again instead of learned; or "no".
"""

import itertools
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MOMENTS_OF_A_FILE = 5


class Instead(SimpleNamespace):
    """A module with some of its functions replaced."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def kill_while_writing(moment: int) -> None:
    """Five moments per file: it is there and empty, half written, written, complete on disk, and renamed."""
    from bayespilco.deploy import files

    counter = itertools.count()

    def pass_moment() -> None:
        if next(counter) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def mkstemp(**options: Any) -> tuple[int, str]:
        made = tempfile.mkstemp(**options)
        pass_moment()
        return made

    class Halting:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> "Halting":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, content: bytes) -> None:
            half = len(content) // 2
            self.file.write(content[:half])
            self.file.flush()
            pass_moment()
            self.file.write(content[half:])
            self.file.flush()
            pass_moment()

    def chmod(*arguments: Any) -> None:
        pass_moment()
        os.chmod(*arguments)

    def replace(*arguments: Any) -> None:
        os.replace(*arguments)
        pass_moment()

    def fdopen(*arguments: Any) -> Halting:
        return Halting(os.fdopen(*arguments))

    files.tempfile = Instead(module=tempfile, mkstemp=mkstemp)  # type: ignore[assignment]
    files.os = Instead(module=os, fdopen=fdopen, chmod=chmod, replace=replace)  # type: ignore[assignment]


def replay(directory: Path) -> None:
    from bayespilco import algorithm
    from bayespilco.runs import Run, load_evaluation

    run, executed = Run.load(directory), load_evaluation(directory)
    algorithm.learn_episode = lambda task, settings, records, *_: run.records[len(records)]  # type: ignore[assignment]
    if executed is not None:
        Run.evaluate = lambda self, executions: executed  # type: ignore[method-assign, assignment, misc]


if __name__ == "__main__":
    from bayespilco.cli import main

    writing, replayed, *arguments = sys.argv[1:]
    if writing != "never":
        kill_while_writing(int(writing))
    if replayed != "no":
        replay(Path(replayed))
    main(arguments)
