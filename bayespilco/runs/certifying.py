"""A certificate before each trial, while a run is learned: kept with the run, shown, and able to stop it."""

from bayespilco.runs.directory import RunDirectory
from bayespilco.runs.run import Run
from bayespilco.settings import Thresholds
from bayespilco.trust.certificate import Certificate, certify


class Certifier:
    """A callback of `learn`: certifies the policy just learned, before it is executed.

    What is learned does not depend on it: its random numbers are its own.
    """

    def __init__(self, thresholds: Thresholds, directory: RunDirectory | None = None) -> None:
        self.thresholds, self.directory = thresholds, directory
        self.latest: Certificate | None = None

    def __call__(self, run: Run) -> bool:
        """Certify the last policy. True, which ends learning, if that is a NO GO and `stop_unless_go`."""
        done = range(1, len(run.records)) if self.latest is None else ()
        missing = [count for count in done if self.directory is not None and not self.directory.is_certified(count)]
        for count in (*missing, len(run.records)):  # of a resumed run, those whose certificates were lost too
            earlier = () if self.latest is None else self.latest.promises
            self.latest = certify(run.task, run.settings, run.records[:count], self.thresholds, earlier)
            if self.directory is not None:
                self.directory.keep_certificate(self.latest, count - 1)
        return self.stopped

    @property
    def stopped(self) -> bool:
        """Whether nothing may be executed any more."""
        return self.thresholds.stop_unless_go and self.latest is not None and not self.latest.go
