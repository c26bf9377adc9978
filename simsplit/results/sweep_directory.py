"""A sweep directory has `sweep.json`, which names its cells, and a run directory for each cell.

A cell's own run directory shows whether the cell finished and how far it is. `sweep.json` adds what
is not there: the settings of the sweep, and why a cell failed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.metrics import find_headline
from simsplit.results.directory import SUMMARY, make_directory, replace, writing
from simsplit.results.read_tables import read_rows
from simsplit.results.shapes import SummaryShape, SweepShape, read_shaped
from simsplit.rows import RoundRow

SWEEP = "sweep.json"


@dataclass(frozen=True)
class CellEntry:
    """An entry of `sweep.json` for a cell."""

    name: str
    settings: Mapping[str, Any]
    label: str = ""


@dataclass
class SweepDirectory:
    """The content of `sweep.json`."""

    path: Path
    name: str
    fields: Mapping[str, str]
    """Every swept field, with its short name in the names of cells."""
    cells: Sequence[CellEntry]
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons of failed cells, by cell."""
    process: Mapping[str, Any] | None = None
    """The process that ran the sweep last, and its command."""
    batches: Sequence[int] = ()
    """How many settings a search chose at a time, so that a resumed one chooses the same."""

    @classmethod
    def load(cls, path: str | Path) -> "SweepDirectory":
        """Read a sweep directory; raise RunError if the path is none."""
        path = Path(path)
        values = read_shaped(path / SWEEP, SweepShape)
        known = [each.name for each in fields(CellEntry)]
        cells = [CellEntry(**{k: cell[k] for k in known if k in cell}) for cell in values["cells"]]
        batches = values.get("batches", [])
        rest = (values["fields"], cells, values["failed"], values.get("process"), batches)
        return cls(path, values["name"], *rest)

    def save(self) -> None:
        """Write `sweep.json`, completely or not at all."""
        values = asdict(self)
        del values["path"]
        with writing(self.path):
            make_directory(self.path)
            replace(self.path / SWEEP, json.dumps(values, indent=2).encode() + b"\n")

    def note(self, cell: str, reason: str | None) -> None:
        """Save why a cell failed; None means that it did not fail."""
        before = self.failed.pop(cell, None)
        if reason is not None:
            self.failed[cell] = reason
        if before != reason:
            self.save()

    def run_path(self, cell: str) -> Path:
        """Return a cell's run directory."""
        return self.path / cell

    def is_finished(self, cell: str) -> bool:
        """Return whether a cell ran to its end."""
        return read_summary(self.run_path(cell)).get("status") == "finished"

    def is_pruned(self, cell: str) -> bool:
        """Return whether a search gave a cell up."""
        return read_summary(self.run_path(cell)).get("status") == "pruned"


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run, read while it goes on."""

    done: int = 0
    rounds: int | None = None
    score: float | None = None
    """The task's main figure on the test data, at the last evaluated round."""
    figure: str = "test_accuracy"
    """The column of that figure."""


def read_progress(path: Path) -> RunProgress:
    """Read the progress of the run in a directory, which may still be empty."""
    rounds = read_summary(path).get("rounds")
    done, score, figure = 0, None, RunProgress.figure
    for row in read_rows(path / "rounds.csv", RoundRow):
        done, figure = row.round, find_headline(row) or figure
        if isinstance(value := row.get(figure), int | float):
            score = float(value)
    return RunProgress(done, rounds, score, figure)


def read_summary(path: Path) -> dict[str, Any]:
    """Read a run's current summary; it is empty if there is none yet, or none that can be read."""
    try:
        return read_shaped(path / SUMMARY, SummaryShape)
    except RunError:
        return {}
