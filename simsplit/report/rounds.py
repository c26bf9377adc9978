"""What a run's rounds were like: who took part, who fell out, how busy everyone was."""

from simsplit.report.tables import Table
from simsplit.report.timing import duration
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


def round_by_round(run: Run) -> Table:
    """Mean and extremes over the rounds of whatever is not the same for every scenario."""
    known = [name for name in _MEANINGS if name in run.rounds]
    rows = []
    for name in known:
        values = run.rounds[name].dropna()
        if len(values):
            figures = (values.mean(), values.min(), values.max())
            rows.append((_MEANINGS[name], *(_cell(name, float(value)) for value in figures)))
    return Table("", ("per round", "mean", "least", "most"), rows)


def _cell(name: str, value: float) -> str:
    if name.endswith("_s"):
        return duration(value)
    if name in ("server_busy", "waiting"):
        return f"{value:.1%}"
    return f"{value:.0f}" if value == round(value) else f"{value:.2f}"
