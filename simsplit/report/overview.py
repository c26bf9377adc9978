"""One table of everything that a sweep asked: what a method costs, hides, and leaves to detectors.

For runs on several kinds of data, whose figures have no scale in common. A leak is told on one that
all have (see `worst_leaks`).
"""

from collections.abc import Sequence

from simsplit.preflight import size
from simsplit.report.comparison import tabled
from simsplit.report.detections import flagged_of, malicious_of
from simsplit.report.grouping import LABEL, Entry, Row, labels_of, rows_of
from simsplit.report.presentations import PRESENTATIONS
from simsplit.report.privacy import epsilon_of
from simsplit.report.tables import Table, mean_of
from simsplit.results import Run

_TEXTS = ("causal_lm", "sequence_classifier")
_UTILITY = ("answers", "accuracy", "perplexity", "loss")
"""What a model is for; the first that was evaluated is told."""
_TITLE = (
    "overview; leak: how far the worst attack, upper bounds included, comes from the best guess "
    "without an attack (0 %) to the original (100 %), no attack being on labels; caught: malicious "
    "clients flagged at the end"
)


def overview_of(entries: Sequence[Entry], figure: str = "best_on_validation") -> Table:
    """A row per cell, over seeds: utility, bytes, epsilon, the worst leak, and who was caught."""
    rows = _by_name(rows_of(entries))
    named = all(LABEL in row.settings for row in rows)
    cells = [label | _cells(r, figure) for label, r in zip(labels_of(rows), rows, strict=True)]
    if named:  # the names of cells say which data, or what else there is to say
        cells = [{n: cell for n, cell in row.items() if n != "setting"} for row in cells]
    return _left_aligned(tabled(_TITLE, cells, entries))


def several_kinds(entries: Sequence[Entry]) -> bool:
    """Whether the runs are on texts and on other data."""
    return len({entry.scenario["model"]["kind"] in _TEXTS for entry in entries}) > 1


def _by_name(rows: Sequence[Row]) -> list[Row]:
    """Those of the same name together, in the order in which names come."""
    names = list(dict.fromkeys(row.settings.get(LABEL, "") for row in rows))
    return sorted(rows, key=lambda row: names.index(row.settings.get(LABEL, "")))


def _cells(row: Row, figure: str) -> dict[str, str]:
    runs = [entry.run for entry in row.entries]
    leaks = [each.overview(runs) for each in PRESENTATIONS.values()]
    return {
        "seeds": str(len(runs)),
        "utility": _utility(row, figure),
        "bytes": size(row.nbytes),
        "epsilon": epsilon_of(runs),
        **{name: cell for cells in leaks for name, cell in cells.items()},
        **_caught(runs),
    }


def _utility(row: Row, figure: str) -> str:
    known = ((name, row.values(figure, name)) for name in _UTILITY)
    name, values = next(((n, values) for n, values in known if values), ("", []))
    kind = row.entries[0].scenario["model"]["kind"]
    told = f"token {name}" if kind == "causal_lm" and name == "accuracy" else name
    unit = " %" if name in ("answers", "accuracy") else ""
    return f"{mean_of(name, values)}{unit} {told}" if values else ""


def _caught(runs: Sequence[Run]) -> dict[str, str]:
    """By detector: malicious clients flagged at the end, and honest ones."""
    names = dict.fromkeys(
        str(name) for run in runs if len(run.detections) for name in run.detections["detector"]
    )
    return {f"{name}: caught, honest flagged": _flagged(runs, name) for name in names}


def _flagged(runs: Sequence[Run], detector: str) -> str:
    caught = malicious = wrong = honest = 0
    for run in runs:
        bad, flagged = set(malicious_of(run)), set(flagged_of(run, detector))
        everybody = set(map(int, run.clients["client"]))
        caught, malicious = caught + len(bad & flagged), malicious + len(bad)
        wrong, honest = wrong + len(flagged - bad), honest + len(everybody - bad)
    of_bad = f"{caught} of {malicious}" if malicious else "none to catch"
    return f"{of_bad}, {wrong} of {honest}"


def _left_aligned(table: Table) -> Table:
    """With words to the left, where a column of figures has words too."""
    wordy = ("utility", "worst attack", "epsilon")
    sides = zip(table.columns, table.align, strict=True)
    align = "".join("l" if name.startswith(wordy) else side for name, side in sides)
    return Table(table.title, table.columns, table.rows, align)
