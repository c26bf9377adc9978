"""A run in another process is followed by reading its directory while it grows.

Nothing is locked, and nothing is written. A line that is still incomplete is read the next time.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.results import Run, read_summary
from simsplit.results.directory import ENVIRONMENT, SUMMARY
from simsplit.results.processes import is_alive
from simsplit.results.stored import read_rows
from simsplit.rows import RoundRow, TimingRow


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment."""

    rows: Mapping[int, RoundRow] = field(default_factory=dict)
    """Rows of `rounds.csv`, by round."""
    timing: Mapping[int, TimingRow] = field(default_factory=dict)
    """Rows of `timing.csv`, by round."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    alive: bool | None = None
    """Whether the run's process lives; None if unknown."""
    resuming: bool = False
    """Whether another process resumes the run, but has not yet written the summary."""
    still_s: float = 0.0
    """Seconds since the run last wrote a file."""

    @property
    def status(self) -> str:
        """The status in the run's summary, or `killed` if its process is gone without one."""
        status = "running" if self.resuming else str(self.summary.get("status", "running"))
        return "killed" if status == "running" and self.alive is False else status

    @property
    def done(self) -> int:
        """The number of the last round done."""
        return max(self.rows, default=0)

    @property
    def elapsed_s(self) -> float:
        """Seconds of all rounds so far, including those before a resume."""
        return self.timing[max(self.timing)].elapsed_s if self.timing else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until the last round ends, at the mean pace so far."""
        rounds, done = self.summary.get("rounds"), max(self.timing, default=0)
        if rounds is None or not done:
            return None
        each = self.elapsed_s / done
        return max(0.0, each * (int(rounds) - done) - min(self.still_s, each))


def read_snapshot(path: Path) -> Snapshot:
    """Read a run's current state from its directory, which may still be empty."""
    alive = is_alive(_read_process(path))
    # The summary is read after the check: a process that has just ended has written its status.
    summary = read_summary(path)
    resuming = _find_change(path / SUMMARY) < _find_change(path / ENVIRONMENT)
    rounds = {row.round: row for row in read_rows(path / "rounds.csv", RoundRow)}
    timing = {row.round: row for row in read_rows(path / "timing.csv", TimingRow)}
    return Snapshot(rounds, timing, summary, alive, resuming, _measure_silence(path))


def _measure_silence(path: Path) -> float:
    """Return the seconds since a file of the directory was last written."""
    last = max(map(_find_change, path.glob("*.*")), default=0.0)
    return max(0.0, time.time() - last) if last else 0.0


def _find_change(file: Path) -> float:
    """Return the time at which a file was last written, or 0 if there is no such file."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _read_process(path: Path) -> Mapping[str, Any]:
    """Read which process writes a run; nothing if that is unknown."""
    try:
        process: Mapping[str, Any] = Run(path).environment.get("process", {})
    except RunError:
        return {}
    return process
