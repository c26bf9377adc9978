"""What a run or a sweep in another process leaves on the disk, read while it grows.

Nothing is locked, and nothing is written: lines that are not whole yet are left for the next look.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simsplit.results import read_summary
from simsplit.results.directory import ENVIRONMENT, SUMMARY
from simsplit.results.processes import is_alive
from simsplit.results.run import read_rows
from simsplit.rows import RoundRow, TimingRow


@dataclass(frozen=True)
class Look:
    """A run as it was at one moment."""

    rows: Mapping[int, RoundRow] = field(default_factory=dict)
    """Of `rounds.csv`, by round."""
    timing: Mapping[int, TimingRow] = field(default_factory=dict)
    """Of `timing.csv`."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    alive: bool | None = None
    """Whether its process is; None where that cannot be known."""
    resuming: bool = False
    """Whether another process goes on with it, which has not yet said so in the summary."""
    still_s: float = 0.0
    """Seconds since it last wrote anything."""

    @property
    def status(self) -> str:
        """What the run says of itself, or that it was killed."""
        status = "running" if self.resuming else str(self.summary.get("status", "running"))
        return "killed" if status == "running" and self.alive is False else status

    @property
    def done(self) -> int:
        """Rounds that are done."""
        return max(self.rows, default=0)

    @property
    def elapsed_s(self) -> float:
        """Seconds that its rounds took, those before a resume included."""
        return self.timing[max(self.timing)].elapsed_s if self.timing else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds until the last round ends, at the pace of all so far."""
        rounds, done = self.summary.get("rounds"), max(self.timing, default=0)
        if rounds is None or not done:
            return None
        each = self.elapsed_s / done
        return max(0.0, each * (int(rounds) - done) - min(self.still_s, each))


def look(path: Path) -> Look:
    """A run directory as it is now; nothing of it needs to be there yet."""
    alive = is_alive(_read(path / ENVIRONMENT).get("process"))
    summary = read_summary(path)  # after its process: one that has just ended has left its status
    resuming = _changed(path / SUMMARY) < _changed(path / ENVIRONMENT)
    rounds = {row.round: row for row in read_rows(path / "rounds.csv", RoundRow)}
    timing = {row.round: row for row in read_rows(path / "timing.csv", TimingRow)}
    return Look(rounds, timing, summary, alive, resuming, _still_s(path))


def _still_s(path: Path) -> float:
    last = max(map(_changed, path.glob("*.*")), default=0.0)
    return max(0.0, time.time() - last) if last else 0.0


def _changed(file: Path) -> float:
    """When a file was last written; 0 where there is none (any more)."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _read(file: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told
