"""`simsplit watch` follows a run or a sweep in another process by what it writes to the disk.

Nothing is locked, and nothing is written but the page that was asked for. A line that is still
incomplete is read the next time.
"""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from simsplit.errors import RunError, format_count, format_list
from simsplit.results import SCENARIO, SWEEP, Run, SweepDirectory, read_summary
from simsplit.results.directory import ENVIRONMENT, SUMMARY
from simsplit.results.environment import is_alive
from simsplit.results.read_tables import read_rows
from simsplit.rows import RoundRow, TimingRow
from simsplit.showing.pace import format_clock, format_rate
from simsplit.showing.run_output import describe_round, print_words
from simsplit.showing.sweep_output import SweepLines, watch_sweep

if TYPE_CHECKING:
    from simsplit.terminal.live_page import LivePage

READ_EVERY_S = 1.0
_EARLIER = 10
"""So many of the earlier rounds are shown at first."""
_STILL_S = 600.0
"""After so many seconds without a file, a run whose process is unknown is reported as silent."""

_OVER = ("finished", "interrupted", "failed", "killed", "pruned")


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


def watch(path: Path, console: Console, page: "LivePage | None" = None) -> bool:
    """Follow a run or sweep until it ends, with a page kept up; return whether it has finished."""
    if (path / SWEEP).exists():
        return _follow_sweep(path, console, page)
    if not (path / SCENARIO).exists():
        raise RunError(f"{path} holds no run and no sweep (neither {SCENARIO} nor {SWEEP} in it)")
    return _FollowedRun(path, console, page).follow()


class _FollowedRun:
    """A run that is followed."""

    def __init__(self, path: Path, console: Console, page: "LivePage | None") -> None:
        self.path, self.console, self.page = path, console, page
        self.shown = 0
        self.silent = False

    def follow(self) -> bool:
        seen = read_snapshot(self.path)
        self._say(f"{seen.summary.get('name', self.path.name)}: {self.path}")
        with suppress(RunError):  # the run may not have written its clients' names
            if names := Run(self.path).client_names.names:
                print_words(self.console, f"clients: {format_list(names)}")
        if (skipped := seen.done - _EARLIER) > 0:
            self.shown = skipped
            self._say(f"(before: {format_count(skipped, 'round')}, not shown)")
        with _line_below(self.console) as below:
            while True:
                self._print_news(seen)
                if self.page is not None:
                    self.page.update(over=seen.status in _OVER)
                if seen.status in _OVER:
                    break
                below(_describe_now(seen))
                time.sleep(READ_EVERY_S)
                seen = read_snapshot(self.path)
        self._say(self._describe_end(seen))
        return seen.status == "finished"

    def _print_news(self, seen: Snapshot) -> None:
        """Print a line for each new round, and one for a long silence."""
        if seen.done < self.shown:
            self._say(f"(going on after round {seen.done}, from the last checkpoint)")
            self.shown = seen.done
        for number in sorted(seen.rows):
            timed = number in seen.timing or seen.status in _OVER
            if number > self.shown and timed:
                print_words(self.console, _describe_round(seen, number))
                self.shown = number
        if seen.alive is None and seen.still_s > _STILL_S and not self.silent:
            self.silent = True
            self._say(
                f"(it has written nothing for {format_clock(seen.still_s)}, and its process cannot "
                f"be asked from here; if it is gone: {_make_resume_command(self.path)})"
            )

    def _describe_end(self, seen: Snapshot) -> str:
        """Return how the run ended, and the command to go on with."""
        rounds = seen.summary.get("rounds")
        of_all = format_count(rounds, "round") if rounds else "? rounds"
        how = f"{seen.status}, {seen.done} of {of_all}, {format_clock(seen.elapsed_s)}"
        if seen.status == "finished":
            return f"{how}  ({shlex.join(['simsplit', 'show', str(self.path)])})"
        why = f": {seen.summary['reason']}" if "reason" in seen.summary else ""
        return f"{how}{why}\ngo on with: {_make_resume_command(self.path)}"

    def _say(self, text: str) -> None:
        """Print a text without line ends of ours: it may hold a path or a command to copy."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _follow_sweep(path: Path, console: Console, page: "LivePage | None") -> bool:
    directory = SweepDirectory.load(path)
    statuses: dict[str, str] = {}  # of cells that have been shown
    over = False
    with watch_sweep(console, quiet=False) as lines:
        assert isinstance(lines, SweepLines), "only a quiet sweep has another observer"
        lines.begin(path, [cell.name for cell in directory.cells], 1)
        while not over:
            alive = is_alive(directory.process)
            directory = SweepDirectory.load(path)
            for cell in directory.cells:
                statuses[cell.name] = _show_cell(lines, directory, cell.name, statuses)
            waited_for = [s for s in statuses.values() if s in ("waiting", "running")]
            # A sweep without a named process has nobody who would start the waiting cells.
            nobody = directory.process is None and "running" not in waited_for
            over = alive is False or nobody or not waited_for
            if page is not None:
                page.update(over=over)
            if not over:
                time.sleep(READ_EVERY_S)
    done = sum(status == "finished" for status in statuses.values())
    how = f"finished: {done} of {format_count(len(statuses), 'cell')}"
    if done == len(statuses):
        lines.say(f"{how}  ({shlex.join(['simsplit', 'compare', str(path)])})")
    else:
        again = _make_sweep_command((directory.process or {}).get("command", ()), path)
        lines.say(f"the sweep has ended; {how}\ngo on with: {again}")
    return all(status in ("finished", "pruned") for status in statuses.values())


def _show_cell(
    lines: SweepLines, directory: SweepDirectory, cell: str, statuses: Mapping[str, str]
) -> str:
    """Show a cell's status if it is not the one that was shown; return what is shown."""
    before = statuses.get(cell, "waiting")
    if before in ("finished", "pruned"):
        return before
    path = directory.run_path(cell)
    status = "failed" if cell in directory.failed else read_snapshot(path).status
    if not path.exists() or before == status:
        return before
    if before != "running":
        lines.start_cell(cell)
        lines.seen[cell].started -= read_snapshot(path).elapsed_s
    if status != "running":
        reason = directory.failed.get(cell) or read_summary(path).get("reason", "")
        lines.end_cell(cell, status, str(reason))
    return status


def _describe_round(seen: Snapshot, number: int) -> str:
    """Return the line of a finished round."""
    row, timing = seen.rows[number], seen.timing.get(number)
    rounds = seen.summary.get("rounds", "?")
    rate = format_rate(row.steps, row.samples, timing.train_s) if timing else ""
    gone = f"{format_clock(timing.elapsed_s)} gone" if timing else ""
    words = (f"round {number:>{len(str(rounds))}}/{rounds}", describe_round(row), rate, gone)
    return "  ".join(filter(None, words))


def _describe_now(seen: Snapshot) -> str:
    """Return the current round, its time so far, and the time left of the run."""
    if (rounds := seen.summary.get("rounds")) is None:
        return "starting"
    left = f"  {format_clock(seen.left_s)} left" if seen.left_s is not None else ""
    number, still = min(seen.done + 1, rounds), format_clock(seen.still_s)
    return f"in round {number} of {rounds} for {still}{left}"


def _make_resume_command(path: Path) -> str:
    """Return the command that resumes a run; its scenario file has everything except plugins."""
    from simsplit.plugins.gathering import list_flags

    words = ["simsplit", "run", str(path / SCENARIO), "--out", str(path), "--resume"]
    return shlex.join([*words, *list_flags(path)])


def _make_sweep_command(command: Sequence[str], path: Path) -> str:
    """Return the command that resumes a sweep, from the one that started it."""
    if "sweep" not in command[1:2]:
        return f"simsplit sweep FILE --out {shlex.quote(str(path))} --resume"
    words = ["simsplit", *command[1:]]
    words += [] if "--out" in words else ["--out", str(path)]
    return shlex.join([*words, *([] if "--resume" in words else ["--resume"])])


@contextmanager
def _line_below(console: Console) -> Iterator[Callable[[str], None]]:
    """Open a context with a function that rewrites the lowest line; it does nothing in a pipe."""
    if not console.is_terminal or console.no_color:
        yield lambda text: None
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(Text(text, style="bold"), refresh=True)


def read_snapshot(path: Path) -> Snapshot:
    """Read a run's current state from its directory, which may still be empty."""
    process: Mapping[str, Any] = {}
    with suppress(RunError):  # then it is not known which process writes the run
        process = Run(path).environment.get("process", {})
    alive = is_alive(process)
    # The summary is read after the check: a process that has just ended has written its status.
    summary = read_summary(path)
    resuming = _find_change(path / SUMMARY) < _find_change(path / ENVIRONMENT)
    rounds = {row.round: row for row in read_rows(path / "rounds.csv", RoundRow)}
    timing = {row.round: row for row in read_rows(path / "timing.csv", TimingRow)}
    last = max(map(_find_change, path.glob("*.*")), default=0.0)
    still_s = max(0.0, time.time() - last) if last else 0.0
    return Snapshot(rounds, timing, summary, alive, resuming, still_s)


def _find_change(file: Path) -> float:
    """Return the time at which a file was last written, or 0 if there is no such file."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
