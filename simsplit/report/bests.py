"""`compare` marks the best cell of a column, which takes the numbers behind its cells."""

import statistics
from collections.abc import Iterable, Mapping

from simsplit.metrics import is_lower_better
from simsplit.report.grouping import Row
from simsplit.report.rates import SUCCESS, read_quoted
from simsplit.report.tables import Better

_COSTS = {
    "simulated": ("", "simulated_s"),
    "time": ("", "seconds"),
    "memory": ("", "resident_bytes"),
    "per sample": ("per_sample", "bytes"),
    "time per sample": ("per_sample", "seconds"),
}
"""The place of each column in the summary."""
_LESS = ("bytes", "of Raw", "of baseline", "per client", *_COSTS, *SUCCESS.values())


def collect_values(row: Row, figure: str, ratio: str) -> dict[str, float]:
    """Return the number behind each cell of a row, for columns that have a better way."""
    known = {"accuracy": "accuracy", "balanced": "balanced_accuracy"}
    known |= {name: name for name in row.further(figure)}
    means = {title: row.values(figure, name) for title, name in known.items()}
    values = {title: statistics.fmean(each) for title, each in means.items() if each}
    for name, title in SUCCESS.items():
        ends = [v for e in row.entries if (v := read_quoted(e.run, name, figure)) is not None]
        values |= {title: statistics.fmean(ends)} if ends else {}
    values |= {"bytes": row.nbytes}
    if row.baseline is not None and row.baseline.nbytes:
        values[ratio] = row.nbytes / row.baseline.nbytes
    values["per client"] = row.nbytes / row.entries[0].scenario["clients"]["count"]
    for title, (part, name) in _COSTS.items():
        parts = [e.run.summary.get(part, {}) if part else e.run.summary for e in row.entries]
        costs = [each[name] for each in parts if each.get(name) is not None]
        values |= {title: statistics.fmean(costs)} if costs else {}
    return values


def find_ways(values: Iterable[Mapping[str, float]]) -> dict[str, Better]:
    """Return each column's better way; for attacks' columns, that of the client under attack."""
    named = dict.fromkeys(name for each in values for name in each)
    return {name: "less" if name in _LESS or is_lower_better(name) else "more" for name in named}


def find_way(name: str, ways: Mapping[str, Better]) -> Better | None:
    """Find a figure's better way by the end of its name; return None if `ways` has no such end."""
    return next((way for end, way in ways.items() if name.endswith(f"_{end}")), None)
