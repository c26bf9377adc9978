"""Tables score defences: what attacks still read, and the utility that the defence costs."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simsplit.errors import RunError
from simsplit.report.comparison import find_baselines, tabulate
from simsplit.report.grouping import Baseline, Entry, Row, group_rows, label_rows
from simsplit.report.tables import Table, format_mean
from simsplit.results.leak_table import keep_kinds
from simsplit.results.mean_leaks import average_by_attack, find_highest, get_utility
from simsplit.results.recovered_kinds import KINDS, SILENT, Defence

if TYPE_CHECKING:
    import pandas as pd

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
Cells = dict[str, str]


class Scoring:
    """The rows of a comparison with their baselines, which have a utility and a defence's score."""

    def __init__(
        self, kind: str, rows: Sequence[Row], labels: Sequence[Cells], baseline: Baseline
    ) -> None:
        defence = KINDS[kind].defence
        assert defence is not None, "a kind whose defences are scored"
        self.kind, self.defence, self.rows, self.labels = kind, defence, rows, labels
        self.against = find_baselines(rows, labels, baseline).replace("change", defence.name)
        """Words that name the baselines."""

    def describe(self) -> str:
        """Describe the columns of `make_cells`, for a title."""
        name, (utility, short) = self.defence.name, self.defence.utility_words
        return (
            f"{short}: {utility} of what is written; {name}: of the strongest attack, 1 where "
            f"nothing is read and no utility lost{self.against}"
        )

    def make_cells(self, row: Row, leaks: Cells) -> Cells:
        """Put the utility before a row's leaks, and the score behind them."""
        utility = {self.defence.utility_words[1]: format_mean(self._list_utilities(row), 3)}
        return utility | leaks | {self.defence.name: self.write_score(row)}

    def write_score(self, row: Row, weight: float | None = None) -> str:
        """Write the mean score against the baseline's mean utility; empty for the baseline."""
        if row.baseline is None or row.baseline is row:
            return ""
        undefended = statistics.fmean(self._list_utilities(row.baseline.of_the_seeds_of(row)))
        score, defence = self.defence.score, self.defence
        scores = [
            score(find_highest(last, defence, weight), get_utility(last, defence), undefended)
            for last in self._list_lasts(row)
        ]
        return format_mean(scores, 3)

    def list_silent(self) -> list[tuple[Cells, str]]:
        """List a silent model beside each baseline: its label and its score.

        It sends and says nothing, so an attack reads nothing at either end. It is a control: a
        defence that scores no better has shown nothing.
        """
        made = []
        for base, label in zip(self.rows, self.labels, strict=True):
            if not any(row.baseline is base and row is not base for row in self.rows):
                continue
            utility = statistics.fmean(self._list_utilities(base))
            named = next((name for name in ("cell", "method") if name in label), next(iter(label)))
            rest = {name: value for name, value in label.items() if name != "method"}
            score = format_mean([self.defence.score(0.0, 0.0, utility)], 3)
            made.append(({**rest, named: SILENT}, score))
        return made

    def _list_lasts(self, row: Row) -> "list[pd.DataFrame]":
        return [average_by_attack(entry.run.leaks, self.kind) for entry in row.entries]

    def _list_utilities(self, row: Row) -> list[float]:
        return [get_utility(last, self.defence) for last in self._list_lasts(row)]


def compare_weighted(kind: str, entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate a row per cell, over seeds: the score at several weights of one end."""
    entries = [entry for entry in entries if len(keep_kinds(entry.run.leaks, kind))]
    if not entries:
        return []
    rows = group_rows(entries)
    scoring = Scoring(kind, rows, label_rows(rows), baseline)
    if all(row.baseline in (None, row) for row in rows):
        raise RunError(
            f"{scoring.defence.name} is held against an undefended run, and there is none among "
            "these: add one, or name one by --baseline FIELD=VALUE"
        )
    cells = [
        label | {f"alpha {weight:g}": scoring.write_score(row, weight) for weight in _WEIGHTS}
        for label, row in zip(scoring.labels, rows, strict=True)
    ]
    for label, score in scoring.list_silent():
        cells.append(label | {f"alpha {weight:g}": score for weight in _WEIGHTS})
    title = _describe_weights(scoring.defence, list(KINDS[kind].views)) + scoring.against
    return [tabulate(title, cells, entries)]


def _describe_weights(defence: Defence, views: Sequence[str]) -> str:
    first, second = views[:2]
    return (
        f"{defence.name} of the attack that is strongest at each alpha, which is the {first}'s "
        f"weight against the {second}'s (0: the {second} alone, 1: the {first} alone)"
    )
