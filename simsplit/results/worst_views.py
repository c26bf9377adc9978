"""Leaks of kinds that are judged by the worst view, adapter and evaluation, beside their floors."""

from typing import TYPE_CHECKING, Any

from simsplit.results.leak_table import FLOOR
from simsplit.results.recovered_kinds import CHANCE, KINDS, Worst

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pandas as pd

_SAME = ["round", "metric", "samples", "known"]


def join_floors(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows of attacks with their floors as columns: `chance`, `chance_high`, ..."""
    of_attacks = table[table["role"] != FLOOR]
    for name, columns in _name_floors(table).items():
        floor = table.loc[table["attack"] == name, [*_SAME, *columns]]
        of_attacks = of_attacks.merge(floor.rename(columns=columns), "left", on=_SAME)
    return of_attacks


def join_counted(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows of figures that count as leaks, with their floors."""
    return join_floors(table[~table["metric"].isin(_get_rules(table).uncounted)])


def keep_blind(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the counted rows of attacks that know no answers, or of all if there are none."""
    rows = join_counted(table)
    known = rows[rows["known"] == 0]
    return known if len(known) else rows


def find_worst_by_attack(table: "pd.DataFrame", *, by_view: bool = False) -> "pd.DataFrame":
    """Return each attack's worst row of each figure, over views, adapters and evaluations.

    `by_view`: return the worst row of each view.
    """
    if table.empty:
        return table
    rows = join_floors(table)
    same = ["attack", "metric", *(["view"] if by_view else [])]
    worst = rows.loc[rows.groupby(same, sort=False)["value"].idxmax()]
    return worst.reset_index(drop=True)


def measure_worst(table: "pd.DataFrame") -> dict[str, float]:
    """Return the worst leaks and their chances: of all, of each view, attack, and group of views.

    Those of a view, and those of an attack by a group, are as papers judge it, by fewer figures.
    """
    if table.empty:
        return {}
    kind, rules = table["kind"].iloc[0], _get_rules(table)
    published = table[~table["metric"].isin(rules.overall)]
    worst = summarise_worst(table)
    worst |= {f"{kind}_{name}": each for name, each in find_worst_of_attacks(table)}
    for group, views in rules.groups.items():
        each_attack = find_worst_of_attacks(_keep_views(published, views))
        worst |= {f"{kind}_{name}_{group}": each for name, each in each_attack}
    for view in published.loc[published["role"] != FLOOR, "view"].unique():
        of_view = summarise_worst(_keep_views(published, [view]))
        worst |= {f"{name}_{view}": each for name, each in of_view.items()}
    return {
        f"{name}_{figure}": float(each[figure])
        for name, each in worst.items()
        for figure in ("leak", CHANCE)
    }


def summarise_worst(table: "pd.DataFrame") -> dict[str, Any]:
    """Return the worst leak over attacks, views, adapters and evaluations, with its floors.

    Attacks that know a part of the answers have an entry of their own, because their leaks are not
    comparable with those of the others. The summary is empty without attacks.
    """
    if table.empty:
        return {}
    rows, kind = join_counted(table), table["kind"].iloc[0]
    entries = {kind: rows[rows["known"] == 0], f"{kind}_known": rows[rows["known"] > 0]}
    return {name: _find_worst(each, table) for name, each in entries.items() if len(each)}


def find_worst_of_attacks(table: "pd.DataFrame") -> "Iterator[tuple[str, dict[str, Any]]]":
    """Yield each attack's name and worst row, over views, adapters and evaluations."""
    if table.empty:
        return
    for name, of_attack in join_counted(table).groupby("attack", sort=False):
        yield str(name), _find_worst(of_attack, table)


def _keep_views(table: "pd.DataFrame", views: "Collection[str]") -> "pd.DataFrame":
    """Return the rows of attacks on some views, and all floors."""
    return table[table["view"].isin(views) | (table["role"] == FLOOR)]


def _get_rules(table: "pd.DataFrame") -> Worst:
    rules = KINDS[table["kind"].iloc[0]].worst
    assert rules is not None, "a kind that is judged by its worst view"
    return rules


def _name_floors(table: "pd.DataFrame") -> dict[str, dict[str, str]]:
    """Return the names of floors' columns beside a leak: `chance` for its value, `chance_high`."""
    floors = _get_rules(table).floors
    return {
        name: {each: name if each == "value" else f"{name}_{each}" for each in columns}
        for name, columns in floors.items()
    }


def _find_worst(rows: "pd.DataFrame", table: "pd.DataFrame") -> dict[str, Any]:
    floors = [column for names in _name_floors(table).values() for column in names.values()]
    kept = rows.nlargest(1, "value").iloc[0].dropna()
    row: dict[str, Any] = {str(name): value for name, value in kept.items()}
    known = row.pop("known")
    worst = {name: row[name] for name in ("attack", "view", "metric")}
    worst["leak"] = row["value"]
    worst |= {name: row[name] for name in ("low", "high", *floors) if name in row}
    worst |= {name: int(row[name]) for name in ("round", "adapter", "samples")}
    return worst | ({"known": known} if known else {})
