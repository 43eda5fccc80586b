"""The numbers of a run as TensorBoard's event files, for those who watch their runs there."""

import importlib
import time
import weakref
from pathlib import Path

from bayespilco.runs.directory import EVENTS, metrics
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
        from tensorboardX.event_file_writer import EventsWriter

        folder = Path(directory) / Path(EVENTS).parent
        folder.mkdir(parents=True, exist_ok=True)
        for file in Path(directory).glob(EVENTS):
            file.unlink()
        # tensorboardX's usual writer works in a thread, where a full disk would go unnoticed; this one does not.
        self._writer = EventsWriter(str(folder / "events"))
        self._written = 0
        weakref.finalize(self, self._writer.close)

    def __call__(self, run: Run) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for number in range(self._written, len(run.records)):
            for name, value in _scalars(run, number).items():
                event = Event(wall_time=time.time(), step=number, summary=scalar(name, value))
                self._writer.write_event(event)
        self._writer.flush()
        self._written = len(run.records)


def _scalars(run: Run, number: int) -> dict[str, float]:
    """One number per name: a vector over states becomes one per state."""
    found: dict[str, float] = {}
    for name, value in metrics(run.records[number]).items():
        if isinstance(value, list):
            found |= {f"{name}/{state.name}": each for state, each in zip(run.task.states, value, strict=True)}
        elif isinstance(value, int | float):
            found[name] = value
    return found
