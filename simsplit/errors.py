"""This module defines every error that simsplit raises on purpose, and parts of their messages.

SimsplitError              any of those below; the command line prints it without a traceback
├── ScenarioError          a field of the scenario must be changed; prints `field: reason`
├── DataError              data cannot be found, read or divided among the clients
├── RunError               a run directory or checkpoint is unusable
│   └── RunFailedError     a run that had started cannot continue; its results so far are kept
└── ProtocolError          the two sides of the cut disagree: a defect in simsplit or a plugin
"""

from collections.abc import Iterable
from difflib import get_close_matches


class SimsplitError(Exception):
    """The base of all errors that simsplit raises on purpose."""


class ScenarioError(SimsplitError):
    """An error in one or more fields of a scenario; it names each field and what is allowed."""

    def __init__(self, field: str, reason: str) -> None:
        """Build the error of `field` (dotted, below `scenario`) with its `reason`."""
        self.field = field
        self.reason = reason
        self._together: list[ScenarioError] = []
        super().__init__(f"scenario.{field}: {reason}" if field else f"scenario: {reason}")

    @property
    def problems(self) -> list["ScenarioError"]:
        """The errors of single fields."""
        return self._together or [self]

    @classmethod
    def of_many(cls, problems: list["ScenarioError"]) -> "ScenarioError":
        """Join several problems as one error with a line each."""
        if len(problems) == 1:
            return problems[0]
        together = cls(problems[0].field, problems[0].reason)
        together._together = problems
        together.args = ("\n".join(str(problem) for problem in problems),)
        return together


class DataError(SimsplitError):
    """An error of data that cannot be found, read or divided among the clients."""


class RunError(SimsplitError):
    """An error of a run directory or checkpoint that is unusable; it says why."""


class RunFailedError(RunError):
    """An error of a run that cannot continue, such as a full disk or a loss that is not finite."""


class ProtocolError(SimsplitError):
    """An error of two sides that disagree on what crosses: a defect in simsplit or a plugin."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra of simsplit.

    It installs from a checkout: until there is a release, that name on the index is not ours.
    """
    return f"pip install '.[{extra}]' (in a checkout of simsplit)"


def near(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` with the known word closest to `word`, or an empty string."""
    matches = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean '{matches[0]}'?" if matches else ""


def counted(number: int, word: str) -> str:
    """Format a number of things: `1 round`, `1,200 rounds`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def listed(words: Iterable[object], most: int = 8) -> str:
    """Join the first `most` words with commas, and add how many more there are."""
    every = [*map(str, words)]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
