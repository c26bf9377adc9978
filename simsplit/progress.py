"""What a run tells whoever watches it: terminals, notebooks, trackers, and its own book-keeping."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

Row = Mapping[str, object]
Status = Literal["running", "finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Plan:
    """What is about to run."""

    path: Path
    name: str
    rounds: int
    done: int
    clients: int
    samples: int
    memory: str
    engine: str


@dataclass(frozen=True)
class RoundTold:
    """The results of one round."""

    number: int
    row: Row
    """Its row of the `rounds` table."""
    clients: Sequence[Row]
    """Its rows of the `clients` table."""
    figures: Mapping[str, float]
    """Metrics of the evaluated splits; empty if no evaluation was due."""
    elapsed_s: float
    """Seconds since the run began, time before a resume included."""
    main: bool = True
    """Whether it is a round of training, rather than of a phase before it."""


class Observer:
    """Base class of what watches a run; every hook does nothing by default."""

    dispensable: ClassVar[bool] = False
    """Whether a run goes on without it where one of its hooks fails, after a warning."""

    def begin(self, plan: Plan) -> None:
        """Training is about to start or to resume."""

    def warn(self, message: str) -> None:
        """A message for the user."""

    def step(self, done: int, total: int) -> None:
        """`done` of the round's `total` steps are done. Called after every step: be quick."""

    def work(self, what: str, done: int, total: int) -> None:
        """`done` of `total` pieces of some work beside training, an attack's; a total of 0 is not
        known.
        """

    def round(self, told: RoundTold) -> None:
        """A round is done, and its rows are in the tables."""

    def end(self, status: Status) -> None:
        """The run has ended with this status."""


class Observers(Observer):
    """Several observers as one; they are called in order."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = tuple(observers)

    def begin(self, plan: Plan) -> None:
        self._tell(lambda observer: observer.begin(plan))

    def warn(self, message: str) -> None:
        self._tell(lambda observer: observer.warn(message))

    def step(self, done: int, total: int) -> None:
        self._tell(lambda observer: observer.step(done, total))

    def work(self, what: str, done: int, total: int) -> None:
        self._tell(lambda observer: observer.work(what, done, total))

    def round(self, told: RoundTold) -> None:
        self._tell(lambda observer: observer.round(told))

    def end(self, status: Status) -> None:
        self._tell(lambda observer: observer.end(status))

    def _tell(self, hook: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            try:
                hook(observer)
            except Exception as error:
                if not observer.dispensable:
                    raise
                self._go_on_without(observer, error)

    def _go_on_without(self, observer: Observer, error: Exception) -> None:
        self.observers = tuple(other for other in self.observers if other is not observer)
        why = next(iter(str(error).strip().splitlines()), "")
        what = f"{type(error).__name__}: {why}" if why else type(error).__name__
        self.warn(f"{type(observer).__name__} failed ({what}); the run goes on without it")


class SweepObserver(Protocol):
    """What shows the progress of a sweep; run directories show that of each cell."""

    def begin(self, path: Path, cells: Sequence[str], jobs: int) -> None:
        """The cells are about to run, `jobs` at a time."""

    def starts(self, cell: str) -> None:
        """A cell starts or resumes training."""

    def ends(self, cell: str, status: str, reason: str = "") -> None:
        """A cell has finished, has failed for a reason, or was finished before."""

    def warn(self, message: str) -> None:
        """A message for the user."""


class SilentSweep:
    """A sweep's observer that shows nothing."""

    def begin(self, path: Path, cells: Sequence[str], jobs: int) -> None:
        """No output when the sweep begins."""

    def starts(self, cell: str) -> None:
        """No output when a cell starts."""

    def ends(self, cell: str, status: str, reason: str = "") -> None:
        """No output when a cell ends."""

    def warn(self, message: str) -> None:
        """No output of warnings."""
