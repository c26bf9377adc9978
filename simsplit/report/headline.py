"""Which of a run's figures is the one to tell: what its task is judged by, or what there is."""

from simsplit.metrics.headline import headline as judged_by
from simsplit.results import Run


def headline(run: Run) -> str | None:
    """The figure's name behind the split, such as `accuracy`; None where nothing was evaluated."""
    columns = [str(name) for name in run.rounds.columns if run.rounds[name].notna().any()]
    for split in ("test", "validation"):
        names = [name for name in columns if name.startswith(f"{split}_")]
        if names:
            return (judged_by(names, split) or names[0]).removeprefix(f"{split}_")
    return None
