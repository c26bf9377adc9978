"""The table `recovered` scores the inputs that attacks recovered: images, texts, or rows."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

TARGETS = ("text", "row", "image")
"""Columns that number the targets; a table has one of them."""
FLOORS = ("black", "mean_image", "mean_row", "random_tokens", "frequent_token")
"""Rows of guesses that need no attack."""
ORIGINALS = "originals"
"""The name of the true inputs among the recovered ones."""
PICTURE = "figures/recovered.png"


def average_over_targets(table: "pd.DataFrame") -> "pd.DataFrame":
    """Average the figures over the targets, for each judged round and attack; may be empty."""
    if table.empty:
        return table
    figures = table.drop(columns=[*TARGETS, "label"], errors="ignore")
    return figures.groupby(["round", "attack"], sort=False, as_index=False).mean()


def take_last_judged(means: "pd.DataFrame") -> "pd.DataFrame":
    """Return each attack's means at its last judgement, by attack; may be empty."""
    return means if means.empty else means.groupby("attack", sort=False).last()
