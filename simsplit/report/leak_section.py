"""Every kind of what attacks recover has this section on the report page.

Kinds that are judged by their worst view have a chart of leaks over rounds, too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from simsplit.report.grouping import Row
from simsplit.report.html.chart import Series, draw_lines, write_percent, write_whole
from simsplit.report.html.markup import Markup, figure, mark_up, section
from simsplit.report.html.subject import Subject
from simsplit.report.leak_tables import compare_leaks, tabulate_leaks, tabulate_views
from simsplit.report.tables import Table
from simsplit.results import Run
from simsplit.results.leak_table import keep_kinds
from simsplit.results.recovered_kinds import CHANCE, KINDS
from simsplit.results.worst_views import join_counted, keep_blind

if TYPE_CHECKING:
    import pandas as pd


def show_leak_section(
    kind: str,
    subject: Subject,
    draw: Callable[[Subject], Markup] | None,
    further: Sequence[Callable[[Run], Table]],
) -> Markup:
    """Show one run's tables, or that of several settings, and what `draw` draws of them."""
    if not any(len(keep_kinds(entry.run.leaks, kind)) for entry in subject.entries):
        return Markup()
    run, worst = subject.one, KINDS[kind].worst
    if run is None:
        tables = compare_leaks(kind, subject.entries)
    else:
        own = tabulate_views(run, kind) if worst else tabulate_leaks(run, kind)
        tables = [own, *(make(run) for make in further)]
    chart = _draw_leaks(kind, subject) if worst else None
    filled = [mark_up(table) for table in tables if table.rows]
    return section(kind.capitalize(), chart, *filled, draw(subject) if draw else None)


def conclude_worst(kind: str, subject: Subject) -> str:
    """Name the attack without knowledge that leaked most in any run, with its chance."""
    leaks = []
    for name, row in zip(subject.names, subject.rows, strict=True):
        for table in _list_leaks(kind, row):
            worst = keep_blind(table).sort_values("value").iloc[-1]
            leaks.append((float(worst["value"]), str(worst["attack"]), worst[CHANCE], name))
    if not leaks:
        return ""
    leak, attack, chance, name = max(leaks, key=lambda each: each[0])
    on = f" on {name}" if len(subject.rows) > 1 else ""
    return f"{kind} inferred: {100 * leak:.0f} % by {attack}{on}, chance {100 * chance:.0f} %"


def _list_leaks(kind: str, row: Row) -> "list[pd.DataFrame]":
    return [table for each in row.entries if len(table := keep_kinds(each.run.leaks, kind))]


def _draw_leaks(kind: str, subject: Subject) -> Markup:
    """Draw a run's leaks by attack over rounds, or the worst leaks of several settings."""
    run = subject.one
    if run is None:
        made = _make_setting_series(kind, subject)
        words = "the worst attack tells, over attacks, views and adapters, by round."
    else:
        made = _make_attack_series(kind, run)
        words = "each attack tells by its worst view, and the run's accuracy, by round."
    axes = ("round", write_whole), (f"{kind} inferred", write_percent)
    chart = draw_lines(f"{kind} inferred", made, *axes)
    return figure(chart, f"{kind.capitalize()} that {words}")


def _make_series(name: str, by_round: Mapping[int, Sequence[float]]) -> Series:
    """Make a series of each round's mean, with the least and greatest value as its band."""
    rounds = sorted(by_round)
    means = [sum(by_round[n]) / len(by_round[n]) for n in rounds]
    known = zip(rounds, means, strict=True)
    words = [f"{name}, round {n}: {100 * mean:.1f} %" for n, mean in known]
    if all(len(values) == 1 for values in by_round.values()):
        return Series(name, rounds, means, words)
    low, high = ([end(by_round[n]) for n in rounds] for end in (min, max))
    return Series(name, rounds, means, words, low, high)


def _make_attack_series(kind: str, run: Run) -> list[Series]:
    """Make a curve per attack, one of chance, and one of the test accuracy."""
    table = keep_kinds(run.leaks, kind)
    groups = join_counted(table).groupby("attack", sort=False)
    made = [_make_series(str(attack), _find_worst(own, "value")) for attack, own in groups]
    made.append(_make_series(CHANCE, _find_worst(keep_blind(table), CHANCE)))
    if "test_accuracy" in run.rounds:
        known = run.rounds.dropna(subset=["test_accuracy"])
        made.append(_make_series("test accuracy", _find_worst(known, "test_accuracy")))
    return made


def _make_setting_series(kind: str, subject: Subject) -> list[Series]:
    """Make a curve per setting of each round's worst leak, over seeds, and one of chance."""
    made = []
    chances: dict[int, list[float]] = {}
    for name, row in zip(subject.names, subject.rows, strict=True):
        leaks: dict[int, list[float]] = {}
        for table in _list_leaks(kind, row):
            for column, values_by_round in (("value", leaks), (CHANCE, chances)):
                for number, values in _find_worst(keep_blind(table), column).items():
                    values_by_round.setdefault(number, []).extend(values)
        made += [_make_series(name, leaks)] if leaks else []
    return [*made, _make_series(CHANCE, chances)]


def _find_worst(rows: "pd.DataFrame", column: str) -> dict[int, list[float]]:
    """Return the highest value of each round."""
    worst = rows.groupby("round", as_index=False)[column].max()
    return {int(row["round"]): [float(row[column])] for _, row in worst.iterrows()}
