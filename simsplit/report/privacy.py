"""Runs with noise state their guarantee: an epsilon, or the reason why there is none."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from simsplit.report.tables import Table
from simsplit.results import Run


def tabulate_guarantees(run: Run) -> Table:
    """Tabulate a row per protected item; the table has no rows without a method of noise."""
    entries = run.summary.get("privacy", [])
    columns = ("noise", "protects", "sent", "delta", "epsilon")
    rows = [_make_row(each) for each in entries]
    title = (
        "differential privacy of all that is sent in training, of the client that fares worst "
        "(neighbours: one of its samples replaced)"
    )
    has_reasons = any(each["epsilon"] is None for each in entries)
    return Table(title, columns, rows, "llrrl" if has_reasons else "llrrr")


def write_epsilon(runs: Sequence[Run]) -> str:
    """Write a row's epsilon, `8.31 (a sample's input)` or `none`; empty if no method adds noise."""
    entries = [run.summary.get("privacy", []) for run in runs]
    if not any(entries):
        return ""
    epsilons: dict[str, list[float]] = {}
    for each in (entry for several in entries for entry in several):
        if each["epsilon"] is not None:
            epsilons.setdefault(each["protects"], []).append(each["epsilon"])
    cells = [
        f"{_write_number(statistics.fmean(values))} ({what})" for what, values in epsilons.items()
    ]
    return ", ".join(cells) or "none"


def _make_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    if entry["epsilon"] is None:
        return entry["method"], entry["protects"] or "nothing", "", "", f"none: {entry['none']}"
    times = entry["times_sent"]
    sent = f"{times} time" + "s" * (times != 1)
    figures = (f"{entry['delta']:.2g}", _write_number(entry["epsilon"]))
    return (entry["method"], entry["protects"], sent, *figures)


def _write_number(epsilon: float) -> str:
    """Write an epsilon with three digits, or with all digits before the point."""
    return f"{epsilon:,.0f}" if epsilon >= 1000 else f"{epsilon:.3g}"
