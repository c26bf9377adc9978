"""What a run tells whoever watches it: terminals, notebooks, trackers, and its own book-keeping."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

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
    """What a round came to, as its tables have it."""

    number: int
    row: Row
    """Its line in the `rounds` table."""
    clients: Sequence[Row]
    """Its lines in the `clients` table."""
    figures: Mapping[str, float]
    """Of the splits that were evaluated; empty where none was due."""
    elapsed_s: float
    """Since the run began, what came before a resumption included."""
    main: bool = True
    """Whether it is a round of training proper, not of a phase before it."""


class Observer:
    """Whoever follows a run. Each hook does nothing unless it is overridden."""

    def begin(self, plan: Plan) -> None:
        """Training is about to start, or to go on."""

    def warn(self, message: str) -> None:
        """Something that the user should know."""

    def step(self, done: int, total: int) -> None:
        """So many of a round's steps are done. Called after every one: be quick."""

    def round(self, told: RoundTold) -> None:
        """A round is done, and in the tables."""

    def end(self, status: Status) -> None:
        """The run is over, for now or for good."""


class Observers(Observer):
    """Several observers as one: each is told in turn, in their order."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = tuple(observers)

    def begin(self, plan: Plan) -> None:
        """Tell all of them."""
        for observer in self.observers:
            observer.begin(plan)

    def warn(self, message: str) -> None:
        """Tell all of them."""
        for observer in self.observers:
            observer.warn(message)

    def step(self, done: int, total: int) -> None:
        """Tell all of them."""
        for observer in self.observers:
            observer.step(done, total)

    def round(self, told: RoundTold) -> None:
        """Tell all of them."""
        for observer in self.observers:
            observer.round(told)

    def end(self, status: Status) -> None:
        """Tell all of them."""
        for observer in self.observers:
            observer.end(status)


class SweepObserver(Protocol):
    """Whoever shows how a sweep is going; the cells' run directories say how far each has come."""

    def begin(self, path: Path, cells: Sequence[str], jobs: int) -> None:
        """The cells are about to run, so many at a time."""

    def starts(self, cell: str) -> None:
        """A cell's training starts, or goes on."""

    def ends(self, cell: str, status: str, reason: str = "") -> None:
        """A cell is finished, has failed for a reason, or was kept as it lay there."""

    def warn(self, message: str) -> None:
        """Something that the user should know."""


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
