"""Shares in tables, each with its 95 % interval: how many of how many, or a mean over seeds."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simsplit.metrics.intervals import clopper_pearson, half_width
from simsplit.results import Run

SUCCESS = {"attack_success": "attack success", "attack_success_all": "all heads"}
"""Columns of `rounds`, and what they are called."""


@dataclass(frozen=True)
class Count:
    """So many of so many."""

    hits: int = 0
    trials: int = 0

    def __add__(self, other: "Count") -> "Count":
        """The count over both groups of trials."""
        return Count(self.hits + other.hits, self.trials + other.trials)

    @property
    def said(self) -> str:
        """A table's cell; empty without a single trial."""
        return f"{self.bracketed}, {self.hits} of {self.trials}" if self.trials else ""

    @property
    def bracketed(self) -> str:
        """The share and its interval alone."""
        return _bracketed(self.hits / self.trials, clopper_pearson(self.hits, self.trials))


def ended_at(run: Run, column: str) -> float | None:
    """A figure at the last round that was evaluated."""
    if column not in run.rounds:
        return None
    known = run.rounds[column].dropna()
    return float(known.iloc[-1]) if len(known) else None


def quoted_at(run: Run, column: str, figure: str) -> float | None:
    """A figure at the round that `figure` names: that of the accuracy beside it.

    At the last one of a run that has not finished, or has no such round.
    """
    chosen = run.summary.get(figure) or run.summary.get("last") or {}
    value = chosen.get(column)
    return ended_at(run, column) if value is None else float(value)


def round_said(figure: str, runs: Iterable[Run]) -> str:
    """Which round is quoted, in words; a run without validation data has no best round."""
    without = [not run.summary.get(figure) for run in runs]
    if all(without):
        return "last (no run has validation data)"
    rest = "; last, where there is no validation data" if any(without) else ""
    return figure.replace("_", " ") + rest


def success_of(runs: Sequence[Run], column: str, figure: str) -> str:
    """A backdoor's success over seeds, at the round that `figure` names.

    Its interval is that of the triggered samples, and Student's over seeds where there are several:
    from the lower of the lower ends to the higher of the higher ones. Heads that are scored on the
    same samples add no samples.
    """
    ends = [(value, run) for run in runs if (value := quoted_at(run, column, figure)) is not None]
    if not ends:
        return ""
    samples = [int(run.summary.get("attack_samples", 0)) for _, run in ends]
    hits = [round(value * size) for (value, _), size in zip(ends, samples, strict=True)]
    values = [value for value, _ in ends]
    mean, spread = statistics.fmean(values), half_width(values)
    if not any(samples):  # of a version that did not say
        return f"{100 * mean:.1f}%"
    low, high = clopper_pearson(sum(hits), sum(samples))
    if spread is not None:
        low, high = min(low, max(0.0, mean - spread)), max(high, min(1.0, mean + spread))
    return _bracketed(mean, (low, high))


def _bracketed(share: float, interval: tuple[float, float]) -> str:
    low, high = (_short(100 * end) for end in interval)
    return f"{100 * share:.1f}% [{low}, {high}]"


def _short(percent: float) -> str:
    return f"{percent:.1f}" if percent >= 0.1 or not percent else f"{percent:.1g}"
