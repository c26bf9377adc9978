"""Tables show attacks' worst leaks beside their floors, for kinds that are judged so."""

import math
from typing import TYPE_CHECKING, Any

from simsplit.metrics import METRICS
from simsplit.report.tables import Table
from simsplit.results import Run
from simsplit.results.leak_table import keep_kinds
from simsplit.results.recovered_kinds import KINDS, Worst
from simsplit.results.worst_views import find_worst_by_attack

if TYPE_CHECKING:
    import pandas as pd

_NOT_SHOWN = ("kind", "role", "target", "label", "known")
FLOORS = "chance: labels permuted, mean and where it ends in 97.5 %; majority: the largest class"


def tabulate_worst(run: Run, kind: str) -> Table:
    """Tabulate a row per attack and figure: its worst leak and its floors.

    The worst is taken over views, adapters and evaluations. The table may have no rows.
    """
    rules = get_rules(kind)
    worst = find_worst_by_attack(keep_kinds(run.leaks, kind))
    several = len(worst) and worst["adapter"].max() > 0
    rows = [
        (
            name_attack(row),
            METRICS[row["metric"]].words,
            f"{100 * row['value']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})",
            *(_write_floor(row, name, 1) for name in rules.floors),
            str(row["view"]) + (f", adapter {row['adapter']}" if several else ""),
            str(row["round"]),
            str(row["samples"]),
        )
        for _, row in worst.iterrows()
    ]
    title = f"{kind} that attacks tell, in %: the worst view and round; {FLOORS}"
    heads = ("attack", "figure", "leak", *rules.floors, "seen in", "round", "targets")
    return Table(title, heads, rows, f"llr{'r' * len(rules.floors)}lrr")


def tabulate_views(run: Run, kind: str) -> Table:
    """Tabulate a row per view and a column per attack, with the floors in the last rows.

    A cell has the worst leak over rounds and adapters, with its interval. The table may have no
    rows.
    """
    views, rules = KINDS[kind].views, get_rules(kind)
    worst = find_worst_by_attack(keep_kinds(run.leaks, kind), by_view=True)
    worst = worst[~worst["metric"].isin(rules.uncounted)] if len(worst) else worst
    columns: dict[str, dict[str, str]] = {}
    for _, row in worst.iterrows():
        own = columns.setdefault(f"{name_attack(row)}, {METRICS[row['metric']].words}", {})
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


def get_rules(kind: str) -> Worst:
    """Return how a kind's worst leak is chosen."""
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


def name_attack(row: "pd.Series[Any]") -> str:
    """Return the attack's name, with the share of labels that it knows, if any."""
    return f"{row['attack']} (knows {row['known']:.0%})" if row["known"] else str(row["attack"])
