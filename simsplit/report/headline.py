"""Figures and pages show one figure of a run first: the measure of its task, if it has that."""

from simsplit.metrics.headline import find_headline
from simsplit.results import Run


def choose_headline(run: Run) -> str | None:
    """Return the figure's name without its split, such as `accuracy`; None without evaluations."""
    columns = [str(name) for name in run.rounds.columns if run.rounds[name].notna().any()]
    for split in ("test", "validation"):
        names = [name for name in columns if name.startswith(f"{split}_")]
        if names:
            return (find_headline(names, split) or names[0]).removeprefix(f"{split}_")
    return None
