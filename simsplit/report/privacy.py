"""What a run's noise guarantees: an epsilon, or why there is none."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from simsplit.report.tables import Table
from simsplit.results import Run


def guarantees(run: Run) -> Table:
    """A row for each thing that noise is there to protect; no rows without such a method."""
    entries = run.summary.get("privacy", [])
    columns = ("noise", "protects", "sent", "delta", "epsilon")
    rows = [_said(each) for each in entries]
    title = (
        "differential privacy of all that is sent in training, of the client that fares worst "
        "(neighbours: one of its samples replaced)"
    )
    return Table(title, columns, rows, "llrrl" if _lacking(entries) else "llrrr")


def epsilon_of(runs: Sequence[Run]) -> str:
    """A cell for runs alike: `8.31 (a sample's input)`, or `none`; empty without noise methods."""
    entries = [run.summary.get("privacy", []) for run in runs]
    if not any(entries):
        return ""
    told: dict[str, list[float]] = {}
    for each in (entry for several in entries for entry in several):
        if each["epsilon"] is not None:
            told.setdefault(each["protects"], []).append(each["epsilon"])
    cells = [f"{_short(statistics.fmean(values))} ({what})" for what, values in told.items()]
    return ", ".join(cells) or "none"


def _lacking(entries: Sequence[Mapping[str, Any]]) -> bool:
    return any(each["epsilon"] is None for each in entries)


def _said(entry: Mapping[str, Any]) -> tuple[str, ...]:
    if entry["epsilon"] is None:
        return entry["method"], entry["protects"] or "nothing", "", "", f"none: {entry['none']}"
    times = entry["times_sent"]
    sent = f"{times} time" + "s" * (times != 1)
    figures = (f"{entry['delta']:.2g}", _short(entry["epsilon"]))
    return (entry["method"], entry["protects"], sent, *figures)


def _short(epsilon: float) -> str:
    """Three digits, or all those before the point."""
    return f"{epsilon:,.0f}" if epsilon >= 1000 else f"{epsilon:.3g}"
