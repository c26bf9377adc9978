"""A table summarises a run's rounds: how many clients took part or dropped out, and busy times."""

from simsplit.report.tables import Table
from simsplit.report.timing import write_duration
from simsplit.results import Run

_MEANINGS = {
    "clients": "clients that took part",
    "dropped": "of them dropped out in a step",
    "late": "of them past the deadline",
    "staleness": "trunk steps between forward and backward",
    "simulated_s": "simulated time",
    "server_busy": "server computing",
    "waiting": "clients waiting",
}


def tabulate_rounds(run: Run) -> Table:
    """Tabulate the mean and the extremes over rounds of the columns that the run has."""
    known = [name for name in _MEANINGS if name in run.rounds]
    rows = []
    for name in known:
        values = run.rounds[name].dropna()
        if len(values):
            figures = (values.mean(), values.min(), values.max())
            rows.append((_MEANINGS[name], *(_write_cell(name, float(value)) for value in figures)))
    return Table("", ("per round", "mean", "least", "most"), rows)


def _write_cell(name: str, value: float) -> str:
    if name.endswith("_s"):
        return write_duration(value)
    if name in ("server_busy", "waiting"):
        return f"{value:.1%}"
    return f"{value:.0f}" if value == round(value) else f"{value:.2f}"
