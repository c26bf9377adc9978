"""The table of what attacks tell of labels, and the worst of it beside its floor."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("round", "attack", "view", "adapter", "figure"),
    *("leak", "low", "high", "samples", "known"),
)
MAJORITY, CHANCE = "majority", "chance"
PURITY = "purity"
"""A figure of clusters that is told beside their accuracy, and is no leak as papers measure it."""
FLOORS = (MAJORITY, CHANCE)
"""Rows that take no attack."""
_SAME = ["round", "figure", "samples", "known"]


def attacks_on_labels(table: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of attacks, with the floors of each beside it: `chance`, `chance_high`, `majority`
    (of accuracies alone).
    """
    of_attacks = table[~table["attack"].isin(FLOORS)]
    for name, cells in ((CHANCE, ("leak", "high")), (MAJORITY, ("leak",))):
        floor = table.loc[table["attack"] == name, [*_SAME, *cells]]
        told = {"leak": name, "high": f"{name}_high"}
        of_attacks = of_attacks.merge(floor.rename(columns=told), "left", on=_SAME)
    return of_attacks


def worst_by_attack(table: "pd.DataFrame", *, by_view: bool = False) -> "pd.DataFrame":
    """Each attack's worst row over views, adapters and evaluations, of each of its figures; or
    over the last two, view by view.
    """
    if table.empty:
        return table
    rows = attacks_on_labels(table)
    same = ["attack", "figure", *(["view"] if by_view else [])]
    worst = rows.loc[rows.groupby(same, sort=False)["leak"].idxmax()]
    return worst.reset_index(drop=True)


def summarise_labels(table: "pd.DataFrame") -> dict[str, Any]:
    """The worst leak over attacks, views, adapters and evaluations, and its floors; that of attacks
    which know a part of the labels stands apart. Empty without attacks on labels.
    """
    if table.empty:
        return {}
    rows = attacks_on_labels(table[table["figure"] != PURITY])
    blind, told = rows[rows["known"] == 0], rows[rows["known"] > 0]
    worst = {"labels": blind, "labels_known": told}
    return {name: _worst(those) for name, those in worst.items() if len(those)}


def _worst(rows: "pd.DataFrame") -> dict[str, Any]:
    kept = rows.nlargest(1, "leak").iloc[0].dropna()
    row: dict[str, Any] = {str(name): value for name, value in kept.items()}
    whole = {name: int(row[name]) for name in ("round", "adapter", "samples")}
    known = {"known": row.pop("known")}
    return {**row, **whole, **(known if known["known"] else {})}
