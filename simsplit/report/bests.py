"""The numbers behind `compare`'s cells, by which the best of a column is found."""

import statistics
from collections.abc import Iterable, Mapping

from simsplit.metrics import falls
from simsplit.report.grouping import Row
from simsplit.report.rates import SUCCESS, quoted_at
from simsplit.report.tables import Better

_COSTS = {
    "simulated": ("", "simulated_s"),
    "time": ("", "seconds"),
    "memory": ("", "resident_bytes"),
    "per sample": ("per_sample", "bytes"),
    "time per sample": ("per_sample", "seconds"),
}
"""Column -> where the summary has it."""
_LESS = ("bytes", "of Raw", "of baseline", "per client", *_COSTS, *SUCCESS.values())


def values_of(row: Row, figure: str, ratio: str) -> dict[str, float]:
    """Column -> the number behind its cell, of those that can be good or bad."""
    known = {"accuracy": "accuracy", "balanced": "balanced_accuracy"}
    known |= {name: name for name in row.further(figure)}
    means = {title: row.values(figure, name) for title, name in known.items()}
    found = {title: statistics.fmean(each) for title, each in means.items() if each}
    for name, title in SUCCESS.items():
        ends = [v for e in row.entries if (v := quoted_at(e.run, name, figure)) is not None]
        found |= {title: statistics.fmean(ends)} if ends else {}
    found |= {"bytes": row.nbytes}
    if row.baseline is not None and row.baseline.nbytes:
        found[ratio] = row.nbytes / row.baseline.nbytes
    found["per client"] = row.nbytes / row.entries[0].scenario["clients"]["count"]
    for title, (part, name) in _COSTS.items():
        told = [e.run.summary.get(part, {}) if part else e.run.summary for e in row.entries]
        taken = [each[name] for each in told if each.get(name) is not None]
        found |= {title: statistics.fmean(taken)} if taken else {}
    return found


def ways_of(values: Iterable[Mapping[str, float]]) -> dict[str, Better]:
    """Column -> which way is better; attacks as those who are attacked have it."""
    named = dict.fromkeys(name for each in values for name in each)
    return {name: "less" if name in _LESS or falls(name) else "more" for name in named}


def way_of(name: str, ways: Mapping[str, Better]) -> Better | None:
    """Find which way a figure is better by the end of its name; None where `ways` has no such."""
    return next((way for end, way in ways.items() if name.endswith(f"_{end}")), None)
