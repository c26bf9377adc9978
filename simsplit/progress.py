"""What a run tells whoever watches it: what terminals, notebooks and tests implement."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Plan:
    """What is about to run, for whoever shows progress."""

    path: Path
    name: str
    rounds: int
    done: int
    clients: int
    samples: int
    memory: str
    engine: str


class Observer(Protocol):
    """Whoever shows how a run is going."""

    def begin(self, plan: Plan) -> None:
        """Training is about to start, or to go on."""

    def warn(self, message: str) -> None:
        """Something that the user should know."""

    def step(self, done: int, total: int) -> None:
        """So many of a round's steps are done. Called after every one: be quick."""

    def round(self, row: dict[str, object], elapsed_s: float) -> None:
        """A round is done; `row` is its line in the `rounds` table."""


class Silent:
    """An observer that shows nothing."""

    def begin(self, plan: Plan) -> None:
        """Say nothing."""

    def warn(self, message: str) -> None:
        """Say nothing."""

    def step(self, done: int, total: int) -> None:
        """Say nothing."""

    def round(self, row: dict[str, object], elapsed_s: float) -> None:
        """Say nothing."""


class Observers:
    """Several observers as one: each is told in turn, in their order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
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

    def round(self, row: dict[str, object], elapsed_s: float) -> None:
        """Tell all of them."""
        for observer in self.observers:
            observer.round(row, elapsed_s)


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
        """Say nothing."""

    def starts(self, cell: str) -> None:
        """Say nothing."""

    def ends(self, cell: str, status: str, reason: str = "") -> None:
        """Say nothing."""

    def warn(self, message: str) -> None:
        """Say nothing."""
