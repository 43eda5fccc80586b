"""The numbers of a run as TensorBoard's event files, for those who watch their runs there."""

import importlib
import time
import weakref
from pathlib import Path
from typing import Any

from bayespilco.deploy.files import delete
from bayespilco.runs.directory import EVENTS, metrics, own_events
from bayespilco.runs.run import Run


class TensorBoard:
    """A callback that writes the metrics of every episode to `tensorboard/` in a directory.

    What was there of an earlier run, or of this one before it was interrupted, is written anew: so there is one curve.
    """

    @staticmethod
    def check() -> None:
        """Refuse if the extra is not there: better before anything is begun, or replaced."""
        try:
            importlib.import_module("tensorboardX.event_file_writer")
        except ImportError:
            raise ValueError("TensorBoard's files need an extra: pip install 'bayespilco[tensorboard]'.") from None

    def __init__(self, directory: Path | str) -> None:
        self.check()
        self._directory = Path(directory)
        self._writer: Any = None
        self._written = 0

    def __call__(self, run: Run) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        if self._writer is None:
            self._writer = self._open()
        for number in range(self._written, len(run.records)):
            for name, value in _scalars(run, number).items():
                event = Event(wall_time=time.time(), step=number, summary=scalar(name, value))
                self._writer.write_event(event)
        self._writer.flush()
        self._written = len(run.records)

    def _open(self) -> Any:
        """Begin to write: at the first episode, as the directory of a run has to be empty when it is made."""
        from tensorboardX.event_file_writer import EventsWriter

        folder = self._directory / Path(EVENTS).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"Cannot write to {folder}: {error.strerror or error}.") from error
        for file in own_events(self._directory):
            delete(file)
        # tensorboardX's usual writer works in a thread, where a full disk would go unnoticed; this one does not.
        writer = EventsWriter(str(folder / "events"))
        weakref.finalize(self, writer.close)
        return writer


def _scalars(run: Run, number: int) -> dict[str, float]:
    """One number per name: a vector over states becomes one per state."""
    found: dict[str, float] = {}
    for name, value in metrics(run.records[number]).items():
        if isinstance(value, list):
            of = [each.name for each in run.task.sensed] if name.startswith("sensor") else _state_names(run)
            found |= {f"{name}/{component}": each for component, each in zip(of, value, strict=False)}
        elif isinstance(value, int | float):
            found[name] = value
    return found


def _state_names(run: Run) -> list[str]:
    return [state.name for state in run.task.states]
