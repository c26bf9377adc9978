"""Every error that simsplit raises on purpose, and how near-misses are named.

SimsplitError              anything below; the command line prints it without a traceback
├── ScenarioError          the user mends the YAML; carries the field and prints `field: reason`
├── DataError              data cannot be found, read or dealt out
├── RunError               a run directory or checkpoint is unusable, and why
│   └── RunFailedError     a run that had started could not go on; what it had is kept
└── ProtocolError          the two sides of the cut disagree: our bug, never the user's
"""

from collections.abc import Iterable
from difflib import get_close_matches


class SimsplitError(Exception):
    """Base of all errors that simsplit raises on purpose."""


class ScenarioError(SimsplitError):
    """One or more fields of a scenario are wrong; each is named with what is allowed."""

    def __init__(self, field: str, reason: str) -> None:
        """Blame `field` (dotted, below `scenario`) for `reason`."""
        self.field = field
        self.reason = reason
        self._together: list[ScenarioError] = []
        super().__init__(f"scenario.{field}: {reason}" if field else f"scenario: {reason}")

    @property
    def problems(self) -> list["ScenarioError"]:
        """Each of several problems by itself."""
        return self._together or [self]

    @classmethod
    def of_many(cls, problems: list["ScenarioError"]) -> "ScenarioError":
        """Several problems as one error, a line each."""
        if len(problems) == 1:
            return problems[0]
        together = cls(problems[0].field, problems[0].reason)
        together._together = problems
        together.args = ("\n".join(str(problem) for problem in problems),)
        return together


class DataError(SimsplitError):
    """Data cannot be found, read or divided among the clients."""


class RunError(SimsplitError):
    """A run directory or checkpoint is unusable; says why."""


class RunFailedError(RunError):
    """A run cannot continue: a full disk, a loss that is not finite."""


class ProtocolError(SimsplitError):
    """Client and server disagree on what crosses the cut: a defect in simsplit or in a plugin."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra of simsplit.

    It installs from a checkout: until there is a release, that name on the index is not ours.
    """
    return f"pip install '.[{extra}]' (in a checkout of simsplit)"


def near(word: str, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` for the known word closest to `word`, or an empty string."""
    matches = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean '{matches[0]}'?" if matches else ""


def counted(number: int, word: str) -> str:
    """A number of things: `1 round`, `1,200 rounds`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def listed(words: Iterable[object], most: int = 8) -> str:
    """Words with commas between them, and how many more there are."""
    every = [*map(str, words)]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
