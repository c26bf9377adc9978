"""Every kind of what attacks recover has these tables: of one run, and of several compared."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from simsplit.metrics import METRICS
from simsplit.report.comparison import tabulate
from simsplit.report.defence_tables import Scoring
from simsplit.report.grouping import Baseline, Entry, Row, group_rows, label_rows
from simsplit.report.tables import Table, format_mean, write_mean
from simsplit.report.worst_tables import FLOORS, get_rules, name_attack, tabulate_worst
from simsplit.results import Run
from simsplit.results.leak_table import WRITTEN, has_role, keep_kinds
from simsplit.results.mean_leaks import average_by_attack, average_last, get_utility
from simsplit.results.recovered_kinds import KINDS, entitle
from simsplit.results.worst_views import find_worst_by_attack

if TYPE_CHECKING:
    import pandas as pd

Leak = tuple[str, str, float]
"""A column's name, its figure, and the value of a run."""


def tabulate_leaks(run: Run, kind: str) -> Table:
    """Tabulate a row per attack and guess: how much it recovered; may be empty."""
    declared = KINDS[kind]
    if declared.worst:
        return tabulate_worst(run, kind)
    if declared.by_view:
        return _tabulate_views(run, kind)
    last = average_by_attack(run.leaks, kind)
    shown = dict(_list_columns(kind, last))
    rows = [
        (
            entitle(kind, str(name), row["role"]),
            *(_write(row[column], declared.decimals) for column in shown),
        )
        for name, row in last.iterrows()
        if row["role"] != WRITTEN
    ]
    title = _entitle_table(run, kind) if rows else ""
    if declared.defence and WRITTEN in last.index:
        words, short = declared.defence.utility_words
        utility = get_utility(last, declared.defence)
        title += f"; what was written: {words} ({short}) {utility:.4g} against the references"
    return Table(title, ("attack", *shown.values()), rows)


def _tabulate_views(run: Run, kind: str) -> Table:
    """Tabulate a row per attack, guess and view: means of the last judgement; may be empty."""
    declared, means = KINDS[kind], average_last(run.leaks, kind)
    if means.empty:
        return Table("", ("attack",), [])
    shown = [name for name in declared.metrics if name in means and means[name].notna().any()]
    rows = [
        (
            entitle(kind, row["attack"], row["role"]),
            row.get("view", ""),
            *(_write(row[name], declared.decimals) for name in shown),
        )
        for _, row in means.iterrows()
    ]
    heads = ("attack", "seen in", *map(name_metric, shown))
    return Table(_entitle_table(run, kind), heads, rows, "ll" + "r" * len(shown))


def _entitle_table(run: Run, kind: str) -> str:
    """Return a table's title, with the targets: rows name each, or say of how many a figure is."""
    own = keep_kinds(run.leaks, kind)
    count = int(own["target"].nunique() or own["samples"].max())
    return KINDS[kind].title.format(count=count, kind=kind)


def _list_columns(kind: str, last: "pd.DataFrame") -> Iterator[tuple[str, str]]:
    """Yield the columns that a run's table has, with their words."""
    declared = KINDS[kind]
    for metric in declared.metrics:
        named = {metric: name_metric(metric)}
        named |= {f"{metric}_{view}": f"{name_metric(metric)}, {view}" for view in declared.views}
        for column, words in named.items():
            known = metric not in declared.unlisted and column in last
            if known and last.loc[last["role"] != WRITTEN, column].notna().any():
                yield column, words


def _write(value: float, decimals: int | None) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.4g}" if decimals is None else f"{value:.{decimals}f}"


def name_metric(name: str) -> str:
    """Return a metric's words; those of a user's kind are its name."""
    return METRICS[name].words if name in METRICS else name.replace("_", " ")


def compare_leaks(kind: str, entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate a row per cell, over seeds, and a column per attack: how much it recovered."""
    entries = [entry for entry in entries if len(keep_kinds(entry.run.leaks, kind))]
    if not entries:
        return []
    rows, declared = group_rows(entries), KINDS[kind]
    labels = label_rows(rows)
    leaks = [_average_row(kind, row) for row in rows]
    if declared.worst:
        title = f"{kind} that attacks tell, in %: the worst over views and rounds; {FLOORS}"
    else:
        title = f"{_name_compared(kind)} of recovered {kind}"
    if not declared.defence:
        cells = [label | row for label, row in zip(labels, leaks, strict=True)]
        return [tabulate(title, cells, entries)]
    scoring = Scoring(kind, rows, labels, baseline)
    scored = [scoring.make_cells(row, cells) for row, cells in zip(rows, leaks, strict=True)]
    cells = [label | row for label, row in zip(labels, scored, strict=True)]
    _, utility = declared.defence.utility_words
    for label, score in scoring.list_silent():
        cells.append({**label, utility: "0", declared.defence.name: score})
    return [tabulate(f"{title}; {scoring.describe()}", cells, entries)]


def _average_row(kind: str, row: Row) -> dict[str, str]:
    """Return the mean leak of each attack over runs that differ in their seed."""
    worst = KINDS[kind].worst is not None
    values: dict[tuple[str, str], list[float]] = {}
    for entry in row.entries:
        for name, figure, value in (_list_worst if worst else _list_means)(entry.run, kind):
            values.setdefault((name, figure), []).append(value)
    return {
        name: format_mean([100 * v for v in each], 1) if worst else write_mean(figure, each)
        for (name, figure), each in values.items()
    }


def _name_compared(kind: str) -> str:
    """Return the words of the figure that runs are compared by."""
    defence = KINDS[kind].defence
    figure = defence.leaks[-1] if defence else KINDS[kind].metrics[0]
    return (figure in METRICS and METRICS[figure].axis) or name_metric(figure)


def _list_means(run: Run, kind: str) -> Iterator[Leak]:
    """Yield the mean leak of each attack and guess, by the kind's first figure."""
    declared, last = KINDS[kind], average_by_attack(run.leaks, kind)
    first = declared.metrics[0]
    if declared.defence:
        columns = {declared.defence.leaks[-1]: ""}
    else:
        columns = {first: ""} | {f"{first}_{view}": f", {view}" for view in declared.views}
    for name, row in last[~last.index.isin(has_role(last, WRITTEN).index)].iterrows():
        for column, view in columns.items():
            if column in last:
                title = entitle(kind, str(name), row["role"])
                yield f"{title}{view}", column, float(row[column])


def _list_worst(run: Run, kind: str) -> Iterator[Leak]:
    """Yield the worst leak of each attack, and the floors of attacks without knowledge."""
    worst = find_worst_by_attack(keep_kinds(run.leaks, kind))
    for _, each in worst.iterrows():
        figure = str(each["metric"])
        yield f"{name_attack(each)}, {name_metric(figure)}", figure, float(each["value"])
    blind = worst[worst["known"] == 0]
    for floor, columns in get_rules(kind).floors.items():
        known = blind.dropna(subset=[floor]).groupby("metric", sort=False)[floor].first()
        if "high" in columns:  # it depends on the figure
            for of, value in known.items():
                yield f"{floor} of {name_metric(str(of))}", str(of), float(value)
        elif len(known):
            yield floor, floor, float(known.iloc[0])
