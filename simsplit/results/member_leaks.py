"""Leaks of who was trained on: the worst over attacks and seats, and the bound of an audit."""

from typing import TYPE_CHECKING, Any

from simsplit.results.leak_table import FLOOR

if TYPE_CHECKING:
    import pandas as pd

COIN = "coin"
LARGEST, LABEL = "largest_class", "label_alone"
"""Floors of attributes: a class for all, and one for each label."""
EVEN, CLUSTERS = "one_of_all_clients", "clusters_at_random"
"""Floors of origins, of attacks that name clients and of those that cluster messages."""
EPSILON = "audited_epsilon"
"""The figure of a lower bound of epsilon."""
OF_WEIGHTS = "audited_epsilon_of_weights"
"""The bound from the trained model alone."""


def summarise_members(table: "pd.DataFrame") -> dict[str, Any]:
    """Return the worst leak of each figure in the last judgement, and the largest lower bound.

    An audit finds samples that it has planted itself, so it is no leak of clients' samples.
    """
    read = table[(table["role"] != FLOOR) & (table["round"] == table["round"].max())]
    bounds = read[read["metric"].isin((EPSILON, OF_WEIGHTS))]
    leaks = read[~read["attack"].isin(bounds["attack"])].groupby("metric", sort=False)
    made = {"members": {str(name): _find_worst(rows) for name, rows in leaks}} if len(leaks) else {}
    if bounds.empty:
        return made
    found = {name: _find_worst(bounds[bounds["metric"] == name]) for name in bounds["metric"]}
    more = {"of_weights": found[OF_WEIGHTS]["value"], "delta": float(bounds["known"].iloc[0])}
    return made | {"audit": {**found[EPSILON], **more}}


def _find_worst(rows: "pd.DataFrame") -> dict[str, Any]:
    worst = rows.nlargest(1, "value").iloc[0]
    return {"attack": worst["attack"], "view": worst["view"], "value": float(worst["value"])}
