"""Every kind of what attacks recover has these tables: of one run, and of several compared.

Of kinds that are judged by their worst view, attacks' worst leaks stand beside their floors. Where
defences are scored, what attacks still read stands beside the utility that a defence costs.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError
from simsplit.metrics import METRICS
from simsplit.report.comparison import find_baselines, tabulate
from simsplit.report.grouping import Baseline, Entry, Row, group_rows, label_rows
from simsplit.report.tables import Table, format_mean, write_mean
from simsplit.results import Run
from simsplit.results.leak_table import WRITTEN, has_role, keep_kinds
from simsplit.results.mean_leaks import (
    average_by_attack,
    average_last,
    find_highest,
    get_utility,
)
from simsplit.results.recovered_kinds import KINDS, SILENT, Worst, entitle
from simsplit.results.worst_views import find_worst_by_attack

if TYPE_CHECKING:
    import pandas as pd

Leak = tuple[str, str, float]
"""A column's name, its figure, and the value of a run."""
Cells = dict[str, str]
_NOT_SHOWN = ("kind", "role", "target", "label", "known")
FLOORS = "chance: labels permuted, mean and where it ends in 97.5 %; majority: the largest class"
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)


def tabulate_leaks(run: Run, kind: str) -> Table:
    """Tabulate a row per attack and guess: how much it recovered; may be empty."""
    declared = KINDS[kind]
    if declared.worst:
        return _tabulate_worst(run, kind)
    if declared.by_view:
        return _tabulate_means_by_view(run, kind)
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


def _tabulate_means_by_view(run: Run, kind: str) -> Table:
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
    for metric in (name for name in declared.metrics if name not in declared.unlisted):
        named = {metric: name_metric(metric)}
        named |= {f"{metric}_{view}": f"{name_metric(metric)}, {view}" for view in declared.views}
        for column, words in named.items():
            if column in last and last.loc[last["role"] != WRITTEN, column].notna().any():
                yield column, words


def _write(value: float, decimals: int | None) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.4g}" if decimals is None else f"{value:.{decimals}f}"


def name_metric(name: str) -> str:
    """Return a metric's words; those of a user's kind are its name."""
    return METRICS[name].words if name in METRICS else name.replace("_", " ")


def _tabulate_worst(run: Run, kind: str) -> Table:
    """Tabulate a row per attack and figure: its worst leak and its floors; may be empty.

    The worst is taken over views, adapters and evaluations.
    """
    rules = _get_rules(kind)
    worst = find_worst_by_attack(keep_kinds(run.leaks, kind))
    several = len(worst) and worst["adapter"].max() > 0
    rows = [
        (
            _name_attack(row),
            METRICS[row["metric"]].words,
            f"{100 * row['value']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})",
            *(_write_floor(row, name, 1) for name in rules.floors),
            str(row["view"]) + (f", adapter {row['adapter']}" if several else ""),
            str(row["round"]),
            str(int(row["samples"])),
        )
        for _, row in worst.iterrows()
    ]
    title = f"{kind} that attacks tell, in %: the worst view and round; {FLOORS}"
    heads = ("attack", "figure", "leak", *rules.floors, "seen in", "round", "targets")
    return Table(title, heads, rows, f"llr{'r' * len(rules.floors)}lrr")


def tabulate_views(run: Run, kind: str) -> Table:
    """Tabulate a row per view and a column per attack, with the floors last; may be empty.

    A cell has the worst leak over rounds and adapters, with its interval.
    """
    views, rules = KINDS[kind].views, _get_rules(kind)
    worst = find_worst_by_attack(keep_kinds(run.leaks, kind), by_view=True)
    worst = worst[~worst["metric"].isin(rules.uncounted)] if len(worst) else worst
    columns: dict[str, Cells] = {}
    for _, row in worst.iterrows():
        own = columns.setdefault(f"{_name_attack(row)}, {METRICS[row['metric']].words}", {})
        own[str(row["view"])] = (
            f"{100 * row['value']:.1f} ({100 * row['low']:.0f} to {100 * row['high']:.0f})"
        )
        floors = {name: _write_floor(row, name, 0) for name in rules.floors}
        own |= {name: cell for name, cell in floors.items() if cell}
    known = {name for own in columns.values() for name in own}
    heads = dict.fromkeys((*views, *sorted(known - rules.floors.keys()), *rules.floors))
    rows = [
        (views.get(view, view), *(own.get(view, "") for own in columns.values()))
        for view in heads
        if view in known
    ]
    title = f"{kind} that attacks tell, in %: the worst round, and 95 % intervals; {FLOORS}"
    return Table(title, ("seen in", *columns), rows)


def describe_worst(run: Run, kind: str) -> list[dict[str, Any]]:
    """Return each attack's worst leak and its floors, as plain values."""
    import pandas as pd

    worst = find_worst_by_attack(keep_kinds(run.leaks, kind))
    if worst.empty:
        return []
    rows = worst.drop(columns=[*_NOT_SHOWN, "round"]).to_dict("records")
    # an AUC has no floor of the majority class
    return [{str(n): v for n, v in row.items() if pd.notna(v)} for row in rows]


def make_worst_frame(run: Run, kind: str) -> "pd.DataFrame":
    """Return each attack's worst leak as numbers, for tables over seeds."""
    worst = find_worst_by_attack(keep_kinds(run.leaks, kind))
    return worst.assign(round=0).drop(columns=[*_NOT_SHOWN, "view", "adapter"], errors="ignore")


def _get_rules(kind: str) -> Worst:
    rules = KINDS[kind].worst
    assert rules is not None, "a kind that is judged by its worst view"
    return rules


def _write_floor(row: "pd.Series[Any]", name: str, decimals: int) -> str:
    """Write a floor, and where it ends if that is known: `52.1 (to 60)`; empty if it has none."""
    value, high = row[name], row.get(f"{name}_high")
    if math.isnan(value):
        return ""
    ends = "" if high is None else f" (to {100 * high:.{decimals}f})"
    return f"{100 * value:.1f}{ends}"


def _name_attack(row: "pd.Series[Any]") -> str:
    """Return the attack's name, with the share of labels that it knows, if any."""
    return f"{row['attack']} (knows {row['known']:.0%})" if row["known"] else str(row["attack"])


def compare_leaks(kind: str, entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate a row per cell, over seeds, and a column per attack: how much it recovered."""
    entries = [entry for entry in entries if len(keep_kinds(entry.run.leaks, kind))]
    if not entries:
        return []
    rows, declared = group_rows(entries), KINDS[kind]
    labels = label_rows(rows)
    leaks_of = [_average_row(kind, row) for row in rows]
    cells = [label | leaks for label, leaks in zip(labels, leaks_of, strict=True)]
    if declared.worst:
        title = f"{kind} that attacks tell, in %: the worst over views and rounds; {FLOORS}"
    elif declared.by_view:
        title = f"{kind}: {_name_compared(kind)}, in %, by where it is seen"
    else:
        title = f"{_name_compared(kind)} of recovered {kind}"
    if declared.defence:
        scoring, name = _Scoring(kind, rows, labels, baseline), declared.defence.name
        utility, short = declared.defence.utility_words
        means = [format_mean(scoring.list_utilities(row), 3) for row in rows]
        scores = map(scoring.write_score, rows)
        cells = [
            label | {short: mean} | leaks | {name: score}
            for label, mean, leaks, score in zip(labels, means, leaks_of, scores, strict=True)
        ]
        cells += [{**label, short: "0", name: score} for label, score in scoring.list_silent()]
        title += (
            f"; {short}: {utility} of what is written; {name}: of the strongest attack, 1 where "
            f"nothing is read and no utility lost{scoring.against}"
        )
    return [tabulate(title, cells, entries)]


def _average_row(kind: str, row: Row) -> Cells:
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
        views = [*declared.views]
        if declared.by_view:
            views = keep_kinds(run.leaks, kind)["view"].dropna().unique().tolist()
        # a guess is seen nowhere
        seen = {f"{first}_{view}": f", {view}" if view else "" for view in views}
        columns = {first: ""} | seen
    for name, row in last[~last.index.isin(has_role(last, WRITTEN).index)].iterrows():
        for column, view in columns.items():
            if column in last and not math.isnan(row[column]):
                title = entitle(kind, str(name), row["role"])
                yield f"{title}{view}", column, float(row[column])


def _list_worst(run: Run, kind: str) -> Iterator[Leak]:
    """Yield the worst leak of each attack, and the floors of attacks without knowledge."""
    worst = find_worst_by_attack(keep_kinds(run.leaks, kind))
    for _, each in worst.iterrows():
        figure = str(each["metric"])
        yield f"{_name_attack(each)}, {name_metric(figure)}", figure, float(each["value"])
    blind = worst[worst["known"] == 0]
    for floor, columns in _get_rules(kind).floors.items():
        known = blind.dropna(subset=[floor]).groupby("metric", sort=False)[floor].first()
        if "high" in columns:  # it depends on the figure
            for of, value in known.items():
                yield f"{floor} of {name_metric(str(of))}", str(of), float(value)
        elif len(known):
            yield floor, floor, float(known.iloc[0])


class _Scoring:
    """The rows of a comparison with their baselines, which have a utility and a defence's score."""

    def __init__(
        self, kind: str, rows: Sequence[Row], labels: Sequence[Cells], baseline: Baseline
    ) -> None:
        defence = KINDS[kind].defence
        assert defence is not None, "a kind whose defences are scored"
        self.kind, self.defence, self.rows, self.labels = kind, defence, rows, labels
        against = find_baselines(rows, labels, baseline)
        self.against = against.replace("change", defence.name)
        """Words that name the baselines."""

    def write_score(self, row: Row, weight: float | None = None) -> str:
        """Write the mean score against the baseline's mean utility; empty for the baseline."""
        if row.baseline is None or row.baseline is row:
            return ""
        undefended = statistics.fmean(self.list_utilities(row.baseline.of_the_seeds_of(row)))
        score, defence = self.defence.score, self.defence
        scores = [
            score(find_highest(last, defence, weight), get_utility(last, defence), undefended)
            for last in self._list_lasts(row)
        ]
        return format_mean(scores, 3)

    def list_silent(self) -> Iterator[tuple[Cells, str]]:
        """Yield a silent model beside each baseline: its label and its score.

        It sends and says nothing, so an attack reads nothing at either end. It is a control: a
        defence that scores no better has shown nothing.
        """
        for base, label in zip(self.rows, self.labels, strict=True):
            if any(row.baseline is base and row is not base for row in self.rows):
                utility = statistics.fmean(self.list_utilities(base))
                named = next((n for n in ("cell", "method") if n in label), next(iter(label)))
                rest = {name: value for name, value in label.items() if name != "method"}
                score = format_mean([self.defence.score(0.0, 0.0, utility)], 3)
                yield {**rest, named: SILENT}, score

    def list_utilities(self, row: Row) -> list[float]:
        """Return the utility of each run of a row."""
        return [get_utility(last, self.defence) for last in self._list_lasts(row)]

    def _list_lasts(self, row: Row) -> "list[pd.DataFrame]":
        return [average_by_attack(entry.run.leaks, self.kind) for entry in row.entries]


def compare_weighted(kind: str, entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate a row per cell, over seeds: the score at several weights of one end."""
    entries = [entry for entry in entries if len(keep_kinds(entry.run.leaks, kind))]
    if not entries:
        return []
    rows = group_rows(entries)
    labels = label_rows(rows)
    scoring = _Scoring(kind, rows, labels, baseline)
    name = scoring.defence.name
    if all(row.baseline in (None, row) for row in rows):
        raise RunError(
            f"{name} is held against an undefended run, and there is none among "
            "these: add one, or name one by --baseline FIELD=VALUE"
        )
    cells = [
        label | {f"alpha {weight:g}": scoring.write_score(row, weight) for weight in _WEIGHTS}
        for label, row in zip(labels, rows, strict=True)
    ]
    for label, score in scoring.list_silent():
        cells.append(label | {f"alpha {weight:g}": score for weight in _WEIGHTS})
    first, second = list(KINDS[kind].views)[:2]
    title = (
        f"{name} of the attack that is strongest at each alpha, which is the {first}'s "
        f"weight against the {second}'s (0: the {second} alone, 1: the {first} alone)"
    )
    return [tabulate(title + scoring.against, cells, entries)]
