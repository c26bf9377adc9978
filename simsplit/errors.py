"""This module defines every error that simsplit raises on purpose, and parts of their messages.

SimsplitError              any of those below; the command line prints it without a traceback
├── ScenarioError          a field of the scenario must be changed; prints `field: reason`
├── DataError              data cannot be found, read or divided among the clients
├── RunError               a run directory or checkpoint is unusable
│   ├── RunFailedError     a run that had started cannot continue; its results so far are kept
│   │   ├── PluginFailedError    because a plugin's part failed
│   │   └── BudgetSpentError     because a client's next batch would pass its budget of privacy
│   └── RunPrunedError     a search gave a run up, since other settings were better at its round
├── PluginError            a plugin's part failed; it names file, part, hook, expectation and result
└── ProtocolError          the two sides of the cut disagree: a defect in simsplit or a plugin
    └── OutOfRangeError        numbers are not finite, or too large to learn from
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the fields: by default an exception is pickled by its message alone."""
        if self._together:
            return ScenarioError.of_many, (self._together,)
        return type(self), (self.field, self.reason)

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


class BudgetSpentError(RunFailedError):
    """An error of a client whose next batch would pass its budget of privacy."""


class RunPrunedError(RunError):
    """An error that ends a run which a search gives up; the run can be resumed."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a part of a plugin, and where."""

    plugin: str
    """The plugin, as the user named it."""
    part: str
    """The kind of part, such as method."""
    name: str
    """The part's name in scenarios."""
    hook: str
    expected: str
    came: str
    """What the hook returned, or the exception that it raised."""
    file: str = ""
    line: int = 0
    """The line that raised the exception, or the hook's first line; 0: unknown."""
    leg: str | None = None
    round: int | None = None
    client: int | None = None

    def __str__(self) -> str:
        named = {"leg": self.leg, "round": self.round, "client": self.client}
        where = "".join(f", {name} {each}" for name, each in named.items() if each is not None)
        line = f", line {self.line}" if self.line else ""
        source = f" ({self.file}{line})" if self.file else ""
        return (
            f"plugin {self.plugin}: {self.part} '{self.name}', hook {self.hook}{where}: "
            f"expected {self.expected}, got {self.came}{source}"
        )


class PluginError(SimsplitError):
    """An error of a part of a plugin that raises an exception or returns something unfit."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(str(fault))

    def __reduce__(self) -> tuple[type, tuple[Fault]]:
        """Pickle the fault: by default an exception is pickled by its message alone."""
        return type(self), (self.fault,)


class PluginFailedError(RunFailedError):
    """An error of a run that cannot continue because a part of a plugin failed."""

    def __init__(self, fault: Fault, advice: str) -> None:
        self.fault, self.advice = fault, advice
        super().__init__(f"{fault}; {advice}")

    def __reduce__(self) -> tuple[type, tuple[Fault, str]]:
        """Pickle the fault and the advice, as `PluginError` does its fault."""
        return type(self), (self.fault, self.advice)


class ProtocolError(SimsplitError):
    """An error of two sides that disagree on what crosses: a defect in simsplit or a plugin."""


class OutOfRangeError(ProtocolError):
    """An error of numbers that are not finite, or too large to learn from.

    They come from a hostile party, or from training that diverges.
    """


def install_command(extra: str) -> str:
    """Return the command that installs an extra of simsplit.

    It installs from a checkout: until there is a release, that name on the index is not ours.
    """
    return f"pip install '.[{extra}]' (in a checkout of simsplit)"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` with the known word closest to `word`, or an empty string."""
    matches = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean '{matches[0]}'?" if matches else ""


def format_count(number: int, word: str) -> str:
    """Format a number of things: `1 round`, `1,200 rounds`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def format_list(words: Iterable[object], most: int = 8) -> str:
    """Join the first `most` words with commas, and add how many more there are."""
    every = [*map(str, words)]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


@contextmanager
def blame(field: str) -> Iterator[None]:
    """Rename `data.source` to `data.<field>` in a DataError that the block raises."""
    try:
        yield
    except DataError as error:
        message = str(error)
        if not message.startswith("data.source"):
            raise
        rest = message.removeprefix("data.source")
        raise DataError(f"scenario.data.{field}{rest}") from error.__cause__
