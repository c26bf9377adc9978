"""What a page is about: one run, or the settings of several, each with its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simsplit.report.grouping import Entry, Row, names_of, rows_of
from simsplit.report.headline import headline
from simsplit.report.rates import quoted_at
from simsplit.report.tables import decimals
from simsplit.results import Run


@dataclass(frozen=True)
class Subject:
    """Runs, in groups alike but for their seed."""

    entries: Sequence[Entry]
    left_out: Sequence[str] = ()

    @cached_property
    def rows(self) -> list[Row]:
        """The settings, in their order."""
        return rows_of(self.entries)

    @cached_property
    def names(self) -> list[str]:
        """Each setting in the fewest words that tell it from the others."""
        return names_of(self.entries)

    @property
    def firsts(self) -> list[Entry]:
        """The first seed's run of each setting."""
        return [row.entries[0] for row in self.rows]

    @property
    def one(self) -> Run | None:
        """The run that the page is about, if it is only one."""
        return self.entries[0].run if len(self.entries) == 1 else None

    @property
    def title(self) -> str:
        """What the page is called."""
        names = (e.sweep_name or str(e.scenario["name"]) for e in self.entries)
        return ", ".join(dict.fromkeys(names))

    @cached_property
    def figure(self) -> str | None:
        """The figure that all runs have and that their task is judged by."""
        named = [headline(entry.run) for entry in self.entries]
        first = named[0]
        return first if all(name == first for name in named) else _shared(self.entries)


def told(figure: str, value: float) -> str:
    """A value with its unit."""
    own = decimals(figure)
    return f"{100 * value:.1f} %" if own is None else f"{value:.{own}f}"


def at_end(run: Run, figure: str) -> float | None:
    """A figure of the test data at the round that `compare` quotes."""
    return quoted_at(run, f"test_{figure}", "best_on_validation")


def _shared(entries: Sequence[Entry]) -> str | None:
    columns = [set(map(str, entry.run.rounds.columns)) for entry in entries]
    return "accuracy" if "test_accuracy" in set.intersection(*columns) else None
