"""This module chooses the figure that says best how well a task is solved."""

from collections.abc import Iterable

_FIRST = ("exact_answers", "answers", "accuracy")
"""In this order: a model that writes a class is judged by its answer, not by single tokens."""


def find_headline(columns: Iterable[str], split: str = "test") -> str | None:
    """Return the column that says best how well a split is solved, such as `test_answers`."""
    known = set(columns)
    return next((f"{split}_{name}" for name in _FIRST if f"{split}_{name}" in known), None)


def format_column(column: str) -> str:
    """Return a column's name with spaces, for people."""
    return column.replace("_", " ")
