"""Which of a run's figures is the one to tell: its accuracy, or what its task is judged by."""

from simsplit.results import Run

_FIRST = ("exact_answers", "answers", "accuracy")
"""A model that writes a class is right where its answer is, not token by token."""


def headline(run: Run) -> str | None:
    """The figure's name behind the split, such as `accuracy`; None where nothing was evaluated."""
    columns = [str(name) for name in run.rounds.columns if run.rounds[name].notna().any()]
    for split in ("test_", "validation_"):
        names = [name.removeprefix(split) for name in columns if name.startswith(split)]
        if names:
            return next((name for name in _FIRST if name in names), names[0])
    return None


def said(name: str) -> str:
    """A figure as people call it."""
    return name.replace("_", " ")
