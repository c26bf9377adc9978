"""Tables show how many labels attacks recover, in one run and in several runs compared."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simsplit.report.comparison import tabulate
from simsplit.report.grouping import Baseline, Entry, Row, group_rows, label_rows
from simsplit.report.label_views import VIEWS
from simsplit.report.tables import Table, format_mean
from simsplit.results import Run
from simsplit.results.label_results import (
    BEST_AUC,
    CHANCE,
    FLOORS,
    MAJORITY,
    PURITY,
    find_views,
    find_worst_by_attack,
    find_worst_of_attacks,
    keep_view,
    summarise_labels,
)

if TYPE_CHECKING:
    import pandas as pd

_FLOORS = "chance: labels permuted, mean and where it ends in 97.5 %; majority: the largest class"
_FIGURES = {
    "auc": "AUC",
    BEST_AUC: "AUC of the best component",
    "accuracy": "accuracy",
    PURITY: "purity of clusters",
}


def tabulate_labels(run: Run) -> Table:
    """Tabulate a row per attack on labels: its worst leak and its floors.

    The worst is taken over views, adapters and evaluations. The table may have no rows.
    """
    worst = find_worst_by_attack(run.labels)
    several = len(worst) and worst["adapter"].max() > 0
    rows = [
        (
            _name_attack(row),
            _FIGURES[row["figure"]],
            f"{100 * row['leak']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})",
            f"{100 * row['chance']:.1f} (to {100 * row['chance_high']:.1f})",
            "" if row["majority"] != row["majority"] else f"{100 * row['majority']:.1f}",
            str(row["view"]) + (f", adapter {row['adapter']}" if several else ""),
            str(row["round"]),
            str(row["samples"]),
        )
        for _, row in worst.iterrows()
    ]
    title = f"labels that attacks tell, in %: the worst view and round; {_FLOORS}"
    heads = ("attack", "figure", "leak", "chance", "majority", "seen in", "round", "targets")
    return Table(title, heads, rows, "llrrrlrr")


def tabulate_label_views(run: Run) -> Table:
    """Tabulate a row per view and a column per attack, with the floors in the last rows.

    A cell has the worst leak over rounds and adapters, with its interval. The table may have no
    rows.
    """
    worst = find_worst_by_attack(run.labels, by_view=True)
    worst = worst[worst["figure"] != PURITY] if len(worst) else worst
    columns: dict[str, dict[str, str]] = {}
    for _, row in worst.iterrows():
        own = columns.setdefault(f"{_name_attack(row)}, {_FIGURES[row['figure']]}", {})
        own[str(row["view"])] = (
            f"{100 * row['leak']:.1f} ({100 * row['low']:.0f} to {100 * row['high']:.0f})"
        )
        own[CHANCE] = f"{100 * row['chance']:.1f} (to {100 * row['chance_high']:.0f})"
        if row["majority"] == row["majority"]:
            own[MAJORITY] = f"{100 * row['majority']:.1f}"
    known = {name for own in columns.values() for name in own}
    views = dict.fromkeys((*VIEWS, *sorted(known - {*FLOORS}), CHANCE, MAJORITY))
    rows = [
        (VIEWS.get(view, view), *(own.get(view, "") for own in columns.values()))
        for view in views
        if view in known
    ]
    title = f"labels that attacks tell, in %: the worst round, and 95 % intervals; {_FLOORS}"
    return Table(title, ("seen in", *columns), rows)


def compare_labels(entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate a row per cell, over seeds, and a column per attack on labels: its worst leak."""
    entries = [entry for entry in entries if len(entry.run.labels)]
    if not entries:
        return []
    rows = group_rows(entries)
    cells = [label | _average_worst(row) for label, row in zip(label_rows(rows), rows, strict=True)]
    title = f"labels that attacks tell, in %: the worst over views and rounds; {_FLOORS}"
    return [tabulate(title, cells, entries)]


def measure_labels(run: Run) -> dict[str, float]:
    """Return the worst leaks of labels and their chances: of all, of each view, of each attack.

    Those of a view are as papers judge it, by the first component alone.
    """
    worst = dict(summarise_labels(run.labels))
    worst |= {f"labels_{name}": each for name, each in find_worst_of_attacks(run.labels)}
    published = run.labels[run.labels["figure"] != BEST_AUC] if worst else run.labels
    for view in find_views(published):
        of_view = summarise_labels(keep_view(published, view))
        worst |= {f"{name}_{view}": each for name, each in of_view.items()}
    return {
        f"{name}_{figure}": float(each[figure])
        for name, each in worst.items()
        for figure in ("leak", "chance")
    }


def describe_labels(run: Run) -> list[dict[str, Any]]:
    """Return each attack's worst leak and its floors, as plain values."""
    worst = find_worst_by_attack(run.labels)
    if worst.empty:
        return []
    rows = worst.drop(columns=["round", "known"]).to_dict("records")
    # an AUC has no floor of the majority class
    return [{str(n): v for n, v in row.items() if n != "majority" or v > 0} for row in rows]


def make_label_frame(run: Run) -> "pd.DataFrame":
    """Return each attack's worst leak as numbers, for tables over seeds."""
    worst = find_worst_by_attack(run.labels)
    return worst.assign(round=0).drop(columns=["view", "adapter", "known"], errors="ignore")


def _average_worst(row: Row) -> dict[str, str]:
    """Return the mean leak of each attack over runs, then the floors of attacks without labels."""
    leaks: dict[str, list[float]] = {}
    floors: dict[str, list[float]] = {}
    for entry in row.entries:
        worst = find_worst_by_attack(entry.run.labels)
        for _, each in worst.iterrows():
            leaks.setdefault(f"{_name_attack(each)}, {_FIGURES[each['figure']]}", []).append(
                each["leak"]
            )
        blind = worst[worst["known"] == 0]
        for figure, chance in blind.groupby("figure", sort=False)["chance"].first().items():
            floors.setdefault(f"chance of {_FIGURES[str(figure)]}", []).append(float(chance))
        for majority in blind["majority"].dropna().head(1):
            floors.setdefault("majority", []).append(float(majority))
    return {
        name: format_mean([100 * value for value in values], 1)
        for name, values in (leaks | floors).items()
    }


def _name_attack(row: "pd.Series[Any]") -> str:
    """Return the attack's name, with the share of labels that it knows, if any."""
    return f"{row['attack']} (knows {row['known']:.0%})" if row["known"] else str(row["attack"])
