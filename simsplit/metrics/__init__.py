"""This room computes metrics, through thin calls into maintained libraries."""

from collections.abc import Iterable

_FIRST = ("exact_answers", "answers", "accuracy")
"""In this order: a model that writes a class is judged by its answer, not by single tokens."""


def is_lower_better(figure: str) -> bool:
    """Return whether smaller is better: for losses, errors and perplexities, not for other figures.

    Other words may precede or follow, as in test_loss_without_trunk.
    """
    return not {"loss", "error", "perplexity"}.isdisjoint(figure.split("_"))


def find_headline(columns: Iterable[str], split: str = "test") -> str | None:
    """Return the column that says best how well a split is solved, such as `test_answers`."""
    known = set(columns)
    return next((f"{split}_{name}" for name in _FIRST if f"{split}_{name}" in known), None)


def format_column(column: str) -> str:
    """Return a column's name with spaces, for people."""
    return column.replace("_", " ")
