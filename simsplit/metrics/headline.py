"""Which of several figures tells how well a task is solved."""

from collections.abc import Iterable

_FIRST = ("exact_answers", "answers", "accuracy")
"""A model that writes a class is right where its answer is, not token by token."""


def headline(columns: Iterable[str], split: str = "test") -> str | None:
    """The column of a split that counts first, such as `test_answers`; None where there is none."""
    known = set(columns)
    return next((f"{split}_{name}" for name in _FIRST if f"{split}_{name}" in known), None)


def said(column: str) -> str:
    """A column as people call it."""
    return column.replace("_", " ")
