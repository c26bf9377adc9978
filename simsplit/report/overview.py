"""One table shows all results of a sweep: a method's cost, its leak, and the clients caught.

It is for runs on several kinds of data, whose figures have no common scale. A leak is given on a
scale that all have (see `worst_leaks`).
"""

from collections.abc import Sequence

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
_TITLE = (
    "overview; leak: how far the worst attack, upper bounds included, comes from the best guess "
    "without an attack (0 %) to the original (100 %), no attack being on labels; caught: malicious "
    "clients flagged at the end"
)


def tabulate_overview(entries: Sequence[Entry], figure: str = "best_on_validation") -> Table:
    """Tabulate a row per cell, over seeds: utility, bytes, epsilon, worst leak, clients caught."""
    rows = _sort_by_name(group_rows(entries))
    named = all(LABEL in row.settings for row in rows)
    cells = [
        label | _make_cells(r, figure) for label, r in zip(label_rows(rows), rows, strict=True)
    ]
    if named:  # a cell's name already describes its setting
        cells = [{n: cell for n, cell in row.items() if n != "setting"} for row in cells]
    return _align_left(tabulate(_TITLE, cells, entries))


def has_several_kinds(entries: Sequence[Entry]) -> bool:
    """Tell whether the runs are on texts as well as on other data."""
    return len({entry.scenario["model"]["kind"] in _TEXTS for entry in entries}) > 1


def _sort_by_name(rows: Sequence[Row]) -> list[Row]:
    """Sort rows so that those of one name follow each other, in the names' first order."""
    names = list(dict.fromkeys(row.settings.get(LABEL, "") for row in rows))
    return sorted(rows, key=lambda row: names.index(row.settings.get(LABEL, "")))


def _make_cells(row: Row, figure: str) -> dict[str, str]:
    runs = [entry.run for entry in row.entries]
    leaks = [each.overview(runs) for _, each in list_presentations()]
    return {
        "seeds": str(len(runs)),
        "utility": _write_utility(row, figure),
        "bytes": format_size(row.nbytes),
        "epsilon": write_epsilon(runs),
        **{name: cell for cells in leaks for name, cell in cells.items()},
        **_write_caught(runs),
    }


def _write_utility(row: Row, figure: str) -> str:
    known = ((name, row.values(figure, name)) for name in _UTILITY)
    name, values = next(((n, values) for n, values in known if values), ("", []))
    kind = row.entries[0].scenario["model"]["kind"]
    title = f"token {name}" if kind == "causal_lm" and name == "accuracy" else name
    unit = " %" if name in ("answers", "accuracy") else ""
    return f"{write_mean(name, values)}{unit} {title}" if values else ""


def _write_caught(runs: Sequence[Run]) -> dict[str, str]:
    """Return by detector the malicious and the honest clients flagged at the end."""
    names = dict.fromkeys(
        str(name) for run in runs if len(run.detections) for name in run.detections["detector"]
    )
    return {f"{name}: caught, honest flagged": _count_flagged(runs, name) for name in names}


def _count_flagged(runs: Sequence[Run], detector: str) -> str:
    caught = malicious = wrong = honest = 0
    for run in runs:
        bad, flagged = set(list_malicious(run)), set(list_flagged(run, detector))
        everybody = set(map(int, run.clients["client"]))
        caught, malicious = caught + len(bad & flagged), malicious + len(bad)
        wrong, honest = wrong + len(flagged - bad), honest + len(everybody - bad)
    of_bad = f"{caught} of {malicious}" if malicious else "none to catch"
    return f"{of_bad}, {wrong} of {honest}"


def _align_left(table: Table) -> Table:
    """Align columns to the left whose figures have words beside them."""
    wordy = ("utility", "worst attack", "epsilon")
    sides = zip(table.columns, table.align, strict=True)
    align = "".join("l" if name.startswith(wordy) else side for name, side in sides)
    return Table(table.title, table.columns, table.rows, align)
