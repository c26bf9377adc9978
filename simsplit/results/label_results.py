"""The table `labels` has the leaks of labels by attack; a summary takes the worst and its floor."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

COLUMNS = (
    *("round", "attack", "view", "adapter", "figure"),
    *("leak", "low", "high", "samples", "known"),
)
MAJORITY, CHANCE = "majority", "chance"
BEST_AUC = "best_auc"
"""The AUC of the best of several scores. Papers judge the first score alone, so it counts in the
worst leak over all views, and not in that of one view."""
PURITY = "purity"
"""A figure of clusters beside their accuracy; papers do not count it as a leak."""
FLOORS = (MAJORITY, CHANCE)
"""Rows of guesses that need no attack."""
_SAME = ["round", "figure", "samples", "known"]


def join_floors(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows of attacks with their floors as columns.

    The columns are `chance`, `chance_high`, and `majority` (for accuracies only).
    """
    of_attacks = table[~table["attack"].isin(FLOORS)]
    for name, cells in ((CHANCE, ("leak", "high")), (MAJORITY, ("leak",))):
        floor = table.loc[table["attack"] == name, [*_SAME, *cells]]
        names = {"leak": name, "high": f"{name}_high"}
        of_attacks = of_attacks.merge(floor.rename(columns=names), "left", on=_SAME)
    return of_attacks


def find_worst_by_attack(table: "pd.DataFrame", *, by_view: bool = False) -> "pd.DataFrame":
    """Return each attack's worst row of each figure, over views, adapters and evaluations.

    `by_view`: return the worst row of each view.
    """
    if table.empty:
        return table
    rows = join_floors(table)
    same = ["attack", "figure", *(["view"] if by_view else [])]
    worst = rows.loc[rows.groupby(same, sort=False)["leak"].idxmax()]
    return worst.reset_index(drop=True)


def find_worst_of_attacks(table: "pd.DataFrame") -> "Iterator[tuple[str, dict[str, Any]]]":
    """Yield each attack's name and worst row, over views, adapters and evaluations."""
    if table.empty:
        return
    rows = join_floors(table[table["figure"] != PURITY])
    for name, of_attack in rows.groupby("attack", sort=False):
        yield str(name), _find_worst(of_attack)


def find_views(table: "pd.DataFrame") -> list[str]:
    """Return the names of the views that attacks had."""
    if table.empty:
        return []
    return [str(name) for name in table.loc[~table["attack"].isin(FLOORS), "view"].unique()]


def keep_view(table: "pd.DataFrame", view: str) -> "pd.DataFrame":
    """Return the rows of attacks on one view, and all floors."""
    return table[(table["view"] == view) | table["attack"].isin(FLOORS)]


def summarise_labels(table: "pd.DataFrame") -> dict[str, Any]:
    """Return the worst leak over attacks, views, adapters and evaluations, with its floors.

    Attacks that know a part of the labels have an entry of their own, because their leaks are not
    comparable with those of the others. The summary is empty without attacks on labels.
    """
    if table.empty:
        return {}
    rows = join_floors(table[table["figure"] != PURITY])
    blind, informed = rows[rows["known"] == 0], rows[rows["known"] > 0]
    entries = {"labels": blind, "labels_known": informed}
    return {name: _find_worst(each) for name, each in entries.items() if len(each)}


def _find_worst(rows: "pd.DataFrame") -> dict[str, Any]:
    kept = rows.nlargest(1, "leak").iloc[0].dropna()
    row: dict[str, Any] = {str(name): value for name, value in kept.items()}
    whole = {name: int(row[name]) for name in ("round", "adapter", "samples")}
    known = {"known": row.pop("known")}
    return {**row, **whole, **(known if known["known"] else {})}
