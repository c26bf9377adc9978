"""One table of everything that a sweep asked: what a method costs, hides, and leaves to detectors.

For runs on several kinds of data, whose figures have no scale in common. A leak is told on one that
all have: how far the worst attack comes from the best guess that takes no attack (0 %) to the
original (100 %); by mean squared error of images and rows, and by ROUGE-L of texts. No attack is on
labels, so there is no column for them.
"""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from simsplit.preflight import size
from simsplit.report.comparison import tabled
from simsplit.report.detections import flagged_of, malicious_of
from simsplit.report.grouping import LABEL, Entry, Row, labels_of, rows_of
from simsplit.report.privacy import epsilon_of
from simsplit.report.recoveries import BLIND, TITLES, last_judged
from simsplit.report.tables import Table, mean_of
from simsplit.results import Run

if TYPE_CHECKING:
    import pandas as pd

_TEXTS = ("causal_lm", "sequence_classifier")
_UTILITY = ("answers", "accuracy", "perplexity", "loss")
"""What a model is for; the first that was evaluated is told."""
_PERFECT = {"rouge_l": 1.0, "mse": 0.0}
"""The figure by which a leak is told, the first that a run has, and what the original has of it."""
_TITLE = (
    "overview; leak: how far the worst attack, upper bounds included, comes from the best guess "
    "without an attack (0 %) to the original (100 %), no attack being on labels; caught: malicious "
    "clients flagged at the end"
)


class Leak(NamedTuple):
    """What the worst attack recovered, over runs alike."""

    attack: str
    shares: list[float]
    """Run by run: 0 at the best guess without an attack, 1 at the original."""
    figure: str
    reached: float
    floor: float

    @property
    def cells(self) -> dict[str, str]:
        """The columns of a row."""
        against = f"{mean_of(self.figure, [self.reached])} / {mean_of(self.figure, [self.floor])}"
        share = f"{100 * statistics.fmean(self.shares):.0f} %"
        if len(self.shares) > 1:
            share = f"{share[:-2]} ± {100 * statistics.stdev(self.shares):.0f} %"
        told = f"{self.attack}: {TITLES[self.figure]} {against}"
        return {"leak": share, "worst attack: its figure / the guess's": told}


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


def worst_leak(runs: Sequence[Run]) -> Leak | None:
    """The attack that recovers most of runs alike, on average; None where there is none."""
    lasts = [last_judged(run) for run in runs]
    known = [name for name in _PERFECT if lasts and all(name in last for last in lasts)]
    if not known:
        return None
    figure = known[0]
    means = [last.groupby("attack")[figure].mean() for last in lasts]
    leaks = [leak for name in _attacks(means) if (leak := _leak(name, figure, means)) is not None]
    return max(leaks, key=lambda leak: statistics.fmean(leak.shares), default=None)


def _by_name(rows: Sequence[Row]) -> list[Row]:
    """Those of the same name together, in the order in which names come."""
    names = list(dict.fromkeys(row.settings.get(LABEL, "") for row in rows))
    return sorted(rows, key=lambda row: names.index(row.settings.get(LABEL, "")))


def _cells(row: Row, figure: str) -> dict[str, str]:
    runs = [entry.run for entry in row.entries]
    leak = worst_leak([run for run in runs if len(run.recovered)])
    return {
        "seeds": str(len(runs)),
        "utility": _utility(row, figure),
        "bytes": size(row.nbytes),
        "epsilon": epsilon_of(runs),
        **(leak.cells if leak else {}),
        **_caught(runs),
    }


def _utility(row: Row, figure: str) -> str:
    known = ((name, row.values(figure, name)) for name in _UTILITY)
    name, values = next(((n, values) for n, values in known if values), ("", []))
    kind = row.entries[0].scenario["model"]["kind"]
    told = f"token {name}" if kind == "causal_lm" and name == "accuracy" else name
    unit = " %" if name in ("answers", "accuracy") else ""
    return f"{mean_of(name, values)}{unit} {told}" if values else ""


def _attacks(means: Sequence["pd.Series[Any]"]) -> list[str]:
    names = dict.fromkeys(str(name) for mean in means for name in mean.index)
    return [n for n in names if n not in BLIND and all(n in mean.index for mean in means)]


def _leak(attack: str, figure: str, means: Sequence["pd.Series[Any]"]) -> Leak | None:
    best = min if _PERFECT[figure] == 0 else max
    guesses = [[float(mean[name]) for name in BLIND if name in mean.index] for mean in means]
    reached = [float(mean[attack]) for mean in means]
    if not all(guesses) or any(map(math.isnan, reached)):
        return None
    floors = [best(guess) for guess in guesses]
    perfect = _PERFECT[figure]
    shares = [
        (floor - got) / (floor - perfect) if floor != perfect else 0.0
        for floor, got in zip(floors, reached, strict=True)
    ]
    return Leak(attack, shares, figure, statistics.fmean(reached), statistics.fmean(floors))


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
