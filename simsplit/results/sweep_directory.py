"""The sweep directory: `sweep.json`, which names its cells, and a run directory for each of them.

A cell's own run directory says whether it finished and how far it came. `sweep.json` adds only what
that cannot know: what the sweep set, and why a cell failed whose process left no word.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.metrics.headline import headline
from simsplit.results.directory import SUMMARY, replace, writing
from simsplit.results.run import rows_in
from simsplit.rows import RoundRow

SWEEP = "sweep.json"


@dataclass(frozen=True)
class CellEntry:
    """A cell as `sweep.json` has it."""

    name: str
    settings: Mapping[str, Any]
    label: str = ""


@dataclass
class SweepDirectory:
    """What a sweep directory says of its cells."""

    path: Path
    name: str
    fields: Mapping[str, str]
    """Every swept field, and the short name that cells are called by."""
    cells: Sequence[CellEntry]
    failed: dict[str, str] = field(default_factory=dict)
    """Cell -> why."""
    process: Mapping[str, Any] | None = None
    """What ran the sweep last, and its command."""

    @classmethod
    def load(cls, path: str | Path) -> "SweepDirectory":
        """Read a sweep directory; RunError where there is none."""
        path = Path(path)
        try:
            told = json.loads((path / SWEEP).read_text(encoding="utf-8"))
            cells = [CellEntry(**cell) for cell in told["cells"]]
            rest = (told["fields"], cells, told["failed"], told.get("process"))
            return cls(path, told["name"], *rest)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"cannot read {path / SWEEP}: {error}") from None

    def save(self) -> None:
        """Write `sweep.json`, whole or not at all."""
        values = asdict(self)
        del values["path"]
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            replace(self.path / SWEEP, json.dumps(values, indent=2).encode() + b"\n")

    def note(self, cell: str, reason: str | None) -> None:
        """Remember why a cell failed; None: that it did not."""
        before = self.failed.pop(cell, None)
        if reason is not None:
            self.failed[cell] = reason
        if before != reason:
            self.save()

    def run_path(self, cell: str) -> Path:
        """A cell's run directory."""
        return self.path / cell

    def finished(self, cell: str) -> bool:
        """Whether a cell ran to its end."""
        return summary_of(self.run_path(cell)).get("status") == "finished"


@dataclass(frozen=True)
class RunProgress:
    """How far a run has come, read while it goes on."""

    done: int = 0
    rounds: int | None = None
    score: float | None = None
    """What the task came to on the test data, at the last round that was evaluated."""
    figure: str = "test_accuracy"
    """Its column."""


def progress_of(path: Path) -> RunProgress:
    """How far the run in a directory has come; nothing of it needs to be there yet."""
    rounds = summary_of(path).get("rounds")
    done, score, figure = 0, None, RunProgress.figure
    for row in rows_in(path / "rounds.csv", RoundRow):
        done, figure = row.round, headline(row) or figure
        if isinstance(value := row.get(figure), int | float):
            score = float(value)
    return RunProgress(done, rounds, score, figure)


def summary_of(path: Path) -> dict[str, Any]:
    """A run's summary as it stands; empty where there is none."""
    try:
        values: dict[str, Any] = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values
