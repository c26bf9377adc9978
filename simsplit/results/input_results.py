"""The table of what attacks recovered of inputs: images, texts, or rows of numbers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

TARGETS = ("text", "row", "image")
"""Columns that number the targets; a table has one of them."""
FLOORS = ("black", "mean_image", "mean_row", "random_tokens", "frequent_token")
"""Rows that take no attack."""
ORIGINALS = "originals"
"""What stands for the truth among what attacks recovered."""
PICTURE = "figures/recovered.png"


def means_over_targets(table: "pd.DataFrame") -> "pd.DataFrame":
    """Make a row per judged round and attack; may be empty."""
    if table.empty:
        return table
    figures = table.drop(columns=[*TARGETS, "label"], errors="ignore")
    return figures.groupby(["round", "attack"], sort=False, as_index=False).mean()


def judged_last(means: "pd.DataFrame") -> "pd.DataFrame":
    """Take each attack's last judgement of these means, by attack; may be empty."""
    return means if means.empty else means.groupby("attack", sort=False).last()
