"""All sections of a page share its subject: one run, or several settings with their seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simsplit.errors import format_list
from simsplit.metrics import find_decimals
from simsplit.report.grouping import LABEL, Entry, Row, group_rows, name_rows
from simsplit.report.rates import choose_headline
from simsplit.results import Run


@dataclass(frozen=True)
class Subject:
    """The runs of a page, grouped into settings whose runs differ only in their seed."""

    entries: Sequence[Entry]
    left_out: Sequence[str] = ()

    @cached_property
    def rows(self) -> list[Row]:
        """The settings, in the runs' order."""
        return group_rows(self.entries)

    @cached_property
    def names(self) -> list[str]:
        """The names of the settings, each as short as the others allow."""
        return name_rows(self.entries)

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
        """The title of the page."""
        return ", ".join(dict.fromkeys(map(_name_subject, self.entries)))

    @cached_property
    def figure(self) -> str | None:
        """The figure that measures the task of all runs, or None if they share none."""
        named = {choose_headline(entry.run) for entry in self.entries}
        if len(named) == 1:
            return named.pop()
        shared = all("test_accuracy" in entry.run.rounds for entry in self.entries)
        return "accuracy" if shared else None


def _name_subject(entry: Entry) -> str:
    """Name a run, or a sweep by what it sweeps too: its name may be that of a file it extends."""
    if entry.sweep is None:
        return str(entry.scenario["name"])
    axes = [title for field, title in entry.short.items() if field not in (LABEL, "seed")]
    return f"{entry.sweep_name} by {format_list(axes)}" if axes else entry.sweep_name


def write_value(figure: str, value: float) -> str:
    """Write a figure's value with its unit."""
    own = find_decimals(figure)
    return f"{100 * value:.1f} %" if own is None else f"{value:.{own}f}"
