"""How a sweep shows itself in a terminal: a table of its cells that follows them, or plain lines.

How far a cell has come is read from its run directory, whichever process writes it.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from simsplit.errors import counted
from simsplit.metrics.headline import said
from simsplit.progress import SilentSweep, SweepObserver
from simsplit.results import RunProgress, read_progress
from simsplit.terminal.pace import clock

_URGENT = ("running", "failed", "killed", "interrupted", "waiting", "finished", "kept")
"""Which cells to show first where there is no room for all."""
_COLOURS = {"running": "bold", "failed": "red", "waiting": "dim", "kept": "dim"}
_FRAME_LINES = 7
"""Of the terminal, taken by the table's header, the counts and the prompt."""


@contextmanager
def watching_sweep(console: Console, *, quiet: bool) -> Iterator[SweepObserver]:
    """An observer for the length of a sweep; a live table is taken away however it ends."""
    if quiet:
        yield SilentSweep()
    elif not console.is_terminal or console.no_color:
        yield SweepLines(console)
    else:
        live = SweepLive(console)
        try:
            yield live
        finally:
            live.close()


@dataclass
class _Seen:
    """A cell as it is shown."""

    status: str = "waiting"
    started: float = 0.0
    elapsed_s: float | None = None
    progress: RunProgress = field(default_factory=RunProgress)

    def refresh(self, path: Path) -> None:
        """Look into the run directory again."""
        if self.status == "running":
            self.elapsed_s = time.monotonic() - self.started
        if self.status != "waiting":
            self.progress = read_progress(path)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Status, rounds, what the task came to, elapsed."""
        done, rounds, score = self.progress.done, self.progress.rounds, self.progress.score
        return (
            self.status,
            f"{done}/{rounds}" if rounds is not None else "",
            f"{score:.1%}" if score is not None else "",
            clock(self.elapsed_s) if self.elapsed_s is not None else "",
        )


class SweepLines:
    """A plain line as a cell starts, and one as it ends: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, path: Path, cells: Sequence[str], jobs: int) -> None:
        """Say what is about to run."""
        self.path, self.seen = path, {cell: _Seen() for cell in cells}
        at_once = f", {jobs} at a time" if jobs > 1 else ""
        self.say(f"{counted(len(cells), 'cell')}{at_once}\nsweep directory: {path}")

    def starts(self, cell: str) -> None:
        """Print that a cell starts."""
        seen = self.seen[cell]
        seen.status, seen.started = "running", time.monotonic()
        self.say(f"{cell}: starts")

    def ends(self, cell: str, status: str, reason: str = "") -> None:
        """Print how a cell ended."""
        seen = self.seen[cell]
        seen.refresh(self.path / cell)
        seen.status = status
        over = sum(1 for other in self.seen.values() if other.status not in ("waiting", "running"))
        self.say(f"{cell}: {_ending(seen, reason)}  ({over} of {len(self.seen)} done)")

    def warn(self, message: str) -> None:
        """Pass a warning on."""
        self.say(f"warning: {message}")

    def say(self, text: str) -> None:
        """A line, as it is."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class SweepLive(SweepLines):
    """One table of all cells, drawn anew twice a second."""

    def begin(self, path: Path, cells: Sequence[str], jobs: int) -> None:
        """Say what is about to run, and draw the table."""
        super().begin(path, cells, jobs)
        self.live = RichLive(
            get_renderable=self.render,
            console=self.console,
            refresh_per_second=2,
            transient=True,
        )
        self.live.start()

    def starts(self, cell: str) -> None:
        """Mark the cell's row as running."""
        seen = self.seen[cell]
        seen.status, seen.started = "running", time.monotonic()

    def ends(self, cell: str, status: str, reason: str = "") -> None:
        """Mark the row; a failure stays on the screen when the table has gone."""
        seen = self.seen[cell]
        seen.refresh(self.path / cell)
        seen.status = status
        if status == "failed":
            self.say(f"{cell}: {_ending(seen, reason)}")

    def render(self) -> RenderableType:
        """The table as it is now: all cells in order, or those that matter most."""
        room = max(3, self.console.height - _FRAME_LINES)
        shown = list(self.seen)
        if len(shown) > room:
            shown.sort(key=lambda cell: _URGENT.index(self.seen[cell].status))
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        figures = dict.fromkeys(said(seen.progress.figure) for seen in self.seen.values())
        titles = ("cell", "status", "round", " / ".join(figures), "elapsed")
        for index, title in enumerate(titles):
            table.add_column(title, justify="left" if index < 2 else "right", no_wrap=True)
        for cell in shown[:room]:
            seen = self.seen[cell]
            if seen.status == "running":
                seen.refresh(self.path / cell)
            table.add_row(*map(Text, (cell, *seen.cells)), style=_COLOURS.get(seen.status, ""))
        counts = Counter(seen.status for seen in self.seen.values())
        told = ", ".join(f"{counts[status]} {status}" for status in _URGENT if counts[status])
        hidden = len(shown) - room
        more = f" ({hidden} not shown)" if hidden > 0 else ""
        return Group(table, Text(f"{counted(len(shown), 'cell')}: {told}{more}"))

    def close(self) -> None:
        """Take the table away."""
        if getattr(self, "live", None) is not None:
            self.live.stop()


def _ending(seen: _Seen, reason: str) -> str:
    _, rounds, score, elapsed = seen.cells
    words = [
        seen.status,
        f"{rounds} rounds" if rounds else "",
        f"{said(seen.progress.figure)} {score}" if score else "",
        elapsed,
    ]
    told = ", ".join(word for word in words if word)
    return f"{told}: {reason.splitlines()[0]}" if reason else told
