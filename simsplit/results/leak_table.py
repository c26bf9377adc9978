"""The table `leaks` has a row for each figure of what attacks recovered, whatever it is.

A row says which attack, when, of which target, by which view, and its role: `attack`, `floor` (a
guess that needs no attack), `ceiling` (an upper bound, which knows what no attacker could), or
`written` (not a leak: what a model wrote, against the references). So nothing else has to know the
names of guesses. Tables of one kind are made here by grouping.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from simsplit.rows import LeakRow

if TYPE_CHECKING:
    import pandas as pd

TABLE = "leaks"
COLUMNS = LeakRow.columns()
_FIGURES = ("metric", "value", "low", "high", "samples", "known")
_PLACE = tuple(name for name in COLUMNS if name not in _FIGURES)
"""The columns that say what a row is of."""
TEXT = frozenset({"kind", "attack", "role", "view", "metric"})
ATTACK, FLOOR, CEILING, WRITTEN = ("attack", "floor", "ceiling", "written")
ORIGINALS = "originals"
"""The name of the true inputs among the recovered ones."""
INPUTS = ("images", "texts", "rows")
"""The kinds of inputs; a run has one of them."""
PICTURE = "figures/recovered.png"
Row = dict[str, object]


def list_leaks(place: Mapping[str, object], figures: Mapping[str, object]) -> Iterator[Row]:
    """Yield a row for each figure that a target has."""
    for metric, value in figures.items():
        yield {**place, "metric": metric, "value": value}


def keep_kinds(table: "pd.DataFrame", *kinds: str) -> "pd.DataFrame":
    """Return the rows of some kinds."""
    return table[table["kind"].isin(kinds)] if len(table) else table


def widen(own: "pd.DataFrame") -> "pd.DataFrame":
    """Return a table of one kind with a column for each metric; may be empty."""
    import pandas as pd

    if own.empty:
        return pd.DataFrame()
    place = [name for name in _PLACE if own[name].notna().any() and (own[name] != "").any()]
    wide = own.set_index([*place, "metric"])["value"].unstack("metric")
    order = own[place].drop_duplicates()
    wide = wide.reindex(pd.MultiIndex.from_frame(order))
    wide = wide[[name for name in dict.fromkeys(own["metric"]) if name in wide]]
    wide.columns.name = None
    return wide.reset_index()


def list_figures(wide: "pd.DataFrame") -> list[str]:
    """List the metrics that a wide table has, in the order of its columns."""
    return [str(name) for name in wide.columns if name not in _PLACE]


def average(wide: "pd.DataFrame") -> "pd.DataFrame":
    """Average a wide table over targets, for each judged round, attack and view; may be empty."""
    if wide.empty:
        return wide
    by = [name for name in ("round", "kind", "attack", "role", "view") if name in wide]
    means: pd.DataFrame = wide.groupby(by, sort=False, as_index=False)[list_figures(wide)].mean()
    return means


def take_last_judged(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows of each attack's last judgement; may be empty."""
    if table.empty:
        return table
    return table[table["round"] == table.groupby("attack")["round"].transform("max")]


def has_role(table: "pd.DataFrame", *roles: str) -> "pd.DataFrame":
    """Return the rows of some roles."""
    return table[table["role"].isin(roles)] if len(table) else table
