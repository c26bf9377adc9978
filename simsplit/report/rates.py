"""A share in a table needs its 95 % interval, be it a count of trials or a mean over seeds.

Figures and pages show one figure of a run first: the measure of its task, if it has that.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simsplit.metrics import find_headline
from simsplit.metrics.intervals import clopper_pearson, compute_half_width
from simsplit.results import Run

SUCCESS = {"attack_success": "attack success", "attack_success_all": "all heads"}
"""Columns of `rounds`, and their titles in tables."""


@dataclass(frozen=True)
class Count:
    """A number of hits in a number of trials."""

    hits: int = 0
    trials: int = 0

    def __add__(self, other: "Count") -> "Count":
        """Return the count over both groups of trials."""
        return Count(self.hits + other.hits, self.trials + other.trials)

    @property
    def cell(self) -> str:
        """A table's cell; empty without any trial."""
        if not self.trials:
            return ""
        share = write_share(self.hits / self.trials, clopper_pearson(self.hits, self.trials))
        return f"{share}, {self.hits} of {self.trials}"


def read_quoted(run: Run, column: str, figure: str) -> float | None:
    """Return a figure at the round that `figure` names, or else at the last that has it."""
    chosen = run.summary.get(figure) or run.summary.get("last") or {}
    if (value := chosen.get(column)) is not None:
        return float(value)
    if column not in run.rounds:
        return None
    known = run.rounds[column].dropna()
    return float(known.iloc[-1]) if len(known) else None


def describe_round(figure: str, runs: Iterable[Run]) -> str:
    """Say which round is quoted; a run without validation data has no best round."""
    without = [not run.summary.get(figure) for run in runs]
    if all(without):
        return "last (no run has validation data)"
    rest = "; last, where there is no validation data" if any(without) else ""
    return figure.replace("_", " ") + rest


def write_success(runs: Sequence[Run], column: str, figure: str) -> str:
    """Write a backdoor's success over seeds, at the round that `figure` names, for a cell.

    The interval covers that of the triggered samples and, for several seeds, Student's over seeds.
    Several heads that are scored on the same samples do not add to the number of samples.
    """
    ends = [(value, run) for run in runs if (value := read_quoted(run, column, figure)) is not None]
    if not ends:
        return ""
    samples = [int(run.summary.get("attack_samples", 0)) for _, run in ends]
    hits = [round(value * size) for (value, _), size in zip(ends, samples, strict=True)]
    values = [value for value, _ in ends]
    mean, spread = statistics.fmean(values), compute_half_width(values)
    if not any(samples):  # older versions did not save the number of samples
        return f"{100 * mean:.1f}%"
    low, high = clopper_pearson(sum(hits), sum(samples))
    if spread is not None:
        low, high = min(low, max(0.0, mean - spread)), max(high, min(1.0, mean + spread))
    return write_share(mean, (low, high))


def write_share(share: float, interval: tuple[float, float]) -> str:
    """Write a share in per cent with its interval."""
    percent = (100 * end for end in interval)
    low, high = (f"{end:.1f}" if end >= 0.1 or not end else f"{end:.1g}" for end in percent)
    return f"{100 * share:.1f}% [{low}, {high}]"


def choose_headline(run: Run) -> str | None:
    """Return the figure's name without its split, such as `accuracy`; None without evaluations."""
    columns = [str(name) for name in run.rounds.columns if run.rounds[name].notna().any()]
    for split in ("test", "validation"):
        names = [name for name in columns if name.startswith(f"{split}_")]
        if names:
            return (find_headline(names, split) or names[0]).removeprefix(f"{split}_")
    return None
