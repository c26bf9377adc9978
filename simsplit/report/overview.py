"""One table shows all results of a sweep: a method's cost, its leak, and the clients caught.

It is for runs on several kinds of data, whose figures have no common scale. A leak is given on a
scale that all have (see `input_tables`).
"""

from collections.abc import Sequence
from dataclasses import replace

from simsplit.report.comparison import tabulate
from simsplit.report.detections import list_flagged, list_malicious
from simsplit.report.grouping import LABEL, Entry, Row, group_rows, label_rows
from simsplit.report.presentations import list_presentations
from simsplit.report.privacy import write_epsilon
from simsplit.report.tables import Table, write_mean
from simsplit.results import Run
from simsplit.sizes import format_size

_TEXTS = ("causal_lm", "sequence_classifier")
_UTILITY = ("answers", "accuracy", "perplexity", "loss")
"""Figures of utility; the first that was evaluated is shown."""
_WORDY = ("utility", "worst attack", "epsilon")
"""Beginnings of columns whose figures have words beside them."""
_TITLE = (
    "overview; leak: how far the worst attack, upper bounds included, comes from the best guess "
    "without an attack (0 %) to the original (100 %), no attack being on labels; caught: malicious "
    "clients flagged at the end"
)


def tabulate_overview(entries: Sequence[Entry], figure: str = "best_on_validation") -> Table:
    """Tabulate a row per cell, over seeds: utility, bytes, epsilon, worst leak, clients caught."""
    rows = group_rows(entries)
    names = list(dict.fromkeys(row.settings.get(LABEL, "") for row in rows))
    rows.sort(key=lambda row: names.index(row.settings.get(LABEL, "")))
    named = all(LABEL in row.settings for row in rows)
    cells = [
        label | _make_cells(r, figure) for label, r in zip(label_rows(rows), rows, strict=True)
    ]
    if named:  # a cell's name already describes its setting
        cells = [{n: cell for n, cell in row.items() if n != "setting"} for row in cells]
    made = tabulate(_TITLE, cells, entries)
    sides = zip(made.columns, made.align, strict=True)
    align = "".join("l" if name.startswith(_WORDY) else side for name, side in sides)
    return replace(made, align=align)


def has_several_kinds(entries: Sequence[Entry]) -> bool:
    """Tell whether the runs are on texts as well as on other data."""
    return len({entry.scenario["model"]["kind"] in _TEXTS for entry in entries}) > 1


def _make_cells(row: Row, figure: str) -> dict[str, str]:
    runs = [entry.run for entry in row.entries]
    leaks = [each.overview(runs) for _, each in list_presentations()]
    judged = [run.detections["detector"] for run in runs if len(run.detections)]
    detectors = dict.fromkeys(str(name) for names in judged for name in names)
    return {
        "seeds": str(len(runs)),
        "utility": _write_utility(row, figure),
        "bytes": format_size(row.nbytes),
        "epsilon": write_epsilon(runs),
        **{name: cell for cells in leaks for name, cell in cells.items()},
        **{f"{name}: caught, honest flagged": _count_flagged(runs, name) for name in detectors},
    }


def _write_utility(row: Row, figure: str) -> str:
    known = ((name, row.values(figure, name)) for name in _UTILITY)
    name, values = next(((n, values) for n, values in known if values), ("", []))
    kind = row.entries[0].scenario["model"]["kind"]
    title = f"token {name}" if kind == "causal_lm" and name == "accuracy" else name
    unit = " %" if name in ("answers", "accuracy") else ""
    return f"{write_mean(name, values)}{unit} {title}" if values else ""


def _count_flagged(runs: Sequence[Run], detector: str) -> str:
    caught = malicious = wrong = honest = 0
    for run in runs:
        bad, flagged = set(list_malicious(run)), set(list_flagged(run, detector))
        everybody = set(map(int, run.clients["client"]))
        caught, malicious = caught + len(bad & flagged), malicious + len(bad)
        wrong, honest = wrong + len(flagged - bad), honest + len(everybody - bad)
    of_bad = f"{caught} of {malicious}" if malicious else "none to catch"
    return f"{of_bad}, {wrong} of {honest}"
