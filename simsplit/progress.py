"""This module defines what a run reports to its observers: terminals, notebooks and trackers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from simsplit.rows import ClientRow, RoundRow

Status = Literal["running", "finished", "interrupted", "failed", "pruned"]


@dataclass(frozen=True)
class RunPlan:
    """The facts about a run that are known before it trains."""

    path: Path
    name: str
    rounds: int
    done: int
    clients: int
    samples: int
    memory: str
    engine: str
    client_names: tuple[str, ...] = ()
    """The clients' names, where they have any."""


@dataclass(frozen=True)
class RoundEnded:
    """The results of one round."""

    number: int
    row: RoundRow
    """The round's row of the `rounds` table."""
    clients: Sequence[ClientRow]
    """The round's rows of the `clients` table."""
    figures: Mapping[str, float]
    """Metrics of the evaluated splits; empty if no evaluation was due."""
    elapsed_s: float
    """Seconds since the run began, including the time before a resume."""
    main: bool = True
    """Whether the round belongs to the main phase rather than to a phase before it."""


class Observer:
    """Base class of observers of a run; every hook does nothing by default."""

    dispensable: ClassVar[bool] = False
    """Whether the run warns and goes on without the observer if one of its hooks fails."""

    def begin(self, plan: RunPlan) -> None:
        """Note that training is about to start or to resume."""

    def warn(self, message: str) -> None:
        """Show a warning to the user."""

    def step(self, done: int, total: int) -> None:
        """Note that `done` of the round's `total` steps are done.

        It is called after every step, so it must be quick.
        """

    def work(self, what: str, done: int, total: int) -> None:
        """Note that `done` of `total` units of an attack's work are done; 0 is an unknown total."""

    def round(self, ended: RoundEnded) -> None:
        """Note that a round is done and its rows are in the tables."""

    def end(self, status: Status) -> None:
        """Note that the run has ended with this status."""


class Observers(Observer):
    """Several observers as one; they are called in order."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = tuple(observers)

    def begin(self, plan: RunPlan) -> None:
        self._notify(lambda observer: observer.begin(plan))

    def warn(self, message: str) -> None:
        self._notify(lambda observer: observer.warn(message))

    def step(self, done: int, total: int) -> None:
        self._notify(lambda observer: observer.step(done, total))

    def work(self, what: str, done: int, total: int) -> None:
        self._notify(lambda observer: observer.work(what, done, total))

    def round(self, ended: RoundEnded) -> None:
        self._notify(lambda observer: observer.round(ended))

    def end(self, status: Status) -> None:
        self._notify(lambda observer: observer.end(status))

    def _notify(self, hook: Callable[[Observer], None]) -> None:
        for observer in self.observers:
            try:
                hook(observer)
            except Exception as error:
                if not observer.dispensable:
                    raise
                self._drop(observer, error)

    def _drop(self, observer: Observer, error: Exception) -> None:
        # a new tuple: `_notify` may be iterating over the old one
        self.observers = tuple(other for other in self.observers if other is not observer)
        why = next(iter(str(error).strip().splitlines()), "")
        what = f"{type(error).__name__}: {why}" if why else type(error).__name__
        self.warn(f"{type(observer).__name__} failed ({what}); the run goes on without it")


class SweepObserver:
    """Base class of observers of a sweep; every hook does nothing by default.

    Each cell's own progress is in its run directory.
    """

    def begin(self, path: Path, cells: Sequence[str], jobs: int) -> None:
        """Note that the cells are about to run, `jobs` at a time."""

    def grow(self, cells: Sequence[str]) -> None:
        """Note that a search has chosen further cells."""

    def start_cell(self, cell: str) -> None:
        """Note that a cell starts or resumes training."""

    def end_cell(self, cell: str, status: str, reason: str = "") -> None:
        """Note that a cell has finished, has failed for a reason, or was finished before."""

    def warn(self, message: str) -> None:
        """Show a warning to the user."""
