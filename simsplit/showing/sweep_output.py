"""A sweep shows its cells as a live table in a terminal, and as plain lines elsewhere.

The progress of a cell is read from its run directory, whichever process writes it.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from simsplit.errors import format_count
from simsplit.metrics import format_column
from simsplit.progress import SweepObserver
from simsplit.results import RunProgress, read_progress
from simsplit.showing.pace import format_clock

QUIET_S = 60.0
"""A log gets a line on the running cells after at most this many seconds."""
LOOK_S = 5.0
_URGENT = ("running", "failed", "killed", "interrupted", "waiting", "pruned", "finished", "kept")
"""The order of cells by status, for a terminal that has no room for all."""
_COLOURS = {"running": "bold", "failed": "red", "waiting": "dim", "pruned": "dim", "kept": "dim"}
_FRAME_LINES = 7
"""The terminal's lines that the table's header, the counts and the prompt take."""


@contextmanager
def watch_sweep(console: Console, *, quiet: bool) -> Iterator[SweepObserver]:
    """Open a context with an observer of a sweep; a live table is always removed at its end."""
    if quiet:
        yield SweepObserver()
    elif not console.is_terminal or console.no_color:
        lines = SweepLines(console)
        with lines.speak_up():
            yield lines
    else:
        with closing(SweepLive(console)) as live:
            yield live


@dataclass
class _ShownCell:
    """The state of a cell that is shown."""

    status: str = "waiting"
    started: float = 0.0
    elapsed_s: float | None = None
    progress: RunProgress = field(default_factory=RunProgress)

    def start(self) -> None:
        """Note that the cell runs from now on."""
        self.status, self.started = "running", time.monotonic()

    def end(self, path: Path, status: str) -> None:
        """Read the run directory for the last time, and note how the cell ended."""
        self.refresh(path)
        self.status = status

    def refresh(self, path: Path) -> None:
        """Read the run directory again."""
        if self.status == "running":
            self.elapsed_s = time.monotonic() - self.started
        if self.status != "waiting":
            self.progress = read_progress(path)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The status, the rounds, the task's main figure, and the elapsed time."""
        done, rounds, score = self.progress.done, self.progress.rounds, self.progress.score
        return (
            self.status,
            f"{done}/{rounds}" if rounds is not None else "",
            f"{score:.1%}" if score is not None else "",
            format_clock(self.elapsed_s) if self.elapsed_s is not None else "",
        )


class SweepLines(SweepObserver):
    """An observer that prints a line when a cell starts or ends: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.path, self.seen = Path(), dict[str, _ShownCell]()
        self.said_at = time.monotonic()

    def begin(self, path: Path, cells: Sequence[str], jobs: int) -> None:
        """Print what is about to run."""
        self.path, self.seen = path, {cell: _ShownCell() for cell in cells}
        at_once = f", {jobs} at a time" if jobs > 1 else ""
        self.say(f"{format_count(len(cells), 'cell')}{at_once}\nsweep directory: {path}")

    def grow(self, cells: Sequence[str]) -> None:
        """Take further cells in."""
        self.seen |= {cell: _ShownCell() for cell in cells}

    def start_cell(self, cell: str) -> None:
        """Print that a cell starts."""
        self.seen[cell].start()
        self.say(f"{cell}: starts")

    def end_cell(self, cell: str, status: str, reason: str = "") -> None:
        """Print how a cell ended."""
        seen = self.seen[cell]
        seen.end(self.path / cell, status)
        over = sum(1 for other in self.seen.values() if other.status not in ("waiting", "running"))
        self.say(f"{cell}: {_describe_end(seen, reason)}  ({over} of {len(self.seen)} done)")

    def warn(self, message: str) -> None:
        """Print a warning on a line of its own, above the table."""
        self.say(f"warning: {message}")

    @contextmanager
    def speak_up(self) -> Iterator[None]:
        """Open a context in which running cells are named after a long silence, as logs need it."""
        over = threading.Event()

        def speak() -> None:
            while not over.wait(LOOK_S):
                if time.monotonic() - self.said_at > QUIET_S:
                    self.say_running()

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def say_running(self) -> None:
        """Print how far each running cell is."""
        for name, cell in list(self.seen.items()):
            if cell.status == "running":
                cell.refresh(self.path / name)
                _, rounds, score, elapsed = cell.cells
                self.say(f"{name}: {'  '.join(filter(None, (rounds, score, elapsed)))}")

    def say(self, text: str) -> None:
        """Print a line without markup or wrapping."""
        self.said_at = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class SweepLive(SweepLines):
    """An observer with one table of all cells, which is drawn again twice a second."""

    def begin(self, path: Path, cells: Sequence[str], jobs: int) -> None:
        """Print what is about to run, and draw the table."""
        super().begin(path, cells, jobs)
        self.live = RichLive(
            get_renderable=self.render,
            console=self.console,
            refresh_per_second=2,
            transient=True,
        )
        self.live.start()

    def start_cell(self, cell: str) -> None:
        """Mark the cell's row as running."""
        self.seen[cell].start()

    def end_cell(self, cell: str, status: str, reason: str = "") -> None:
        """Mark the row, and print a failure, because the table is removed at the end."""
        self.seen[cell].end(self.path / cell, status)
        if status == "failed":
            self.say(f"{cell}: {_describe_end(self.seen[cell], reason)}")

    def render(self) -> RenderableType:
        """Return the current table: all cells in order, or the most urgent ones that have room."""
        room = max(3, self.console.height - _FRAME_LINES)
        shown = list(self.seen)
        if len(shown) > room:
            shown.sort(key=lambda cell: _URGENT.index(self.seen[cell].status))
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        figures = dict.fromkeys(format_column(seen.progress.figure) for seen in self.seen.values())
        titles = ("cell", "status", "round", " / ".join(figures), "elapsed")
        for index, title in enumerate(titles):
            table.add_column(title, justify="left" if index < 2 else "right", no_wrap=True)
        for cell in shown[:room]:
            seen = self.seen[cell]
            if seen.status == "running":
                seen.refresh(self.path / cell)
            table.add_row(*map(Text, (cell, *seen.cells)), style=_COLOURS.get(seen.status, ""))
        counts = Counter(seen.status for seen in self.seen.values())
        words = ", ".join(f"{counts[status]} {status}" for status in _URGENT if counts[status])
        hidden = len(shown) - room
        more = f" ({hidden} not shown)" if hidden > 0 else ""
        return Group(table, Text(f"{format_count(len(shown), 'cell')}: {words}{more}"))

    def close(self) -> None:
        """Remove the table from the terminal, if it is there."""
        if getattr(self, "live", None) is not None:
            self.live.stop()


def _describe_end(seen: _ShownCell, reason: str) -> str:
    _, rounds, score, elapsed = seen.cells
    reached = f"{format_column(seen.progress.figure)} {score}" if score else ""
    words = (seen.status, f"{rounds} rounds" if rounds else "", reached, elapsed)
    end = ", ".join(filter(None, words))
    return f"{end}: {reason.splitlines()[0]}" if reason else end
