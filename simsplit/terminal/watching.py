"""`simsplit watch`: a run or a sweep that goes on in another process, followed from the disk."""

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from simsplit.errors import RunError, counted
from simsplit.results import SCENARIO, SWEEP, SweepDirectory, read_summary
from simsplit.results.processes import is_alive
from simsplit.terminal.following import Look, look
from simsplit.terminal.pace import clock, rate_of
from simsplit.terminal.runs import figures
from simsplit.terminal.sweeps import SweepLines, watching_sweep

LOOK_EVERY_S = 1.0
_EARLIER = 10
"""Rounds that are shown of those before the first look."""
_STILL_S = 600.0
"""Without a sign of life for so long, a run that cannot be asked is said to be silent."""

_OVER = ("finished", "interrupted", "failed", "killed")


def watch(path: Path, console: Console) -> bool:
    """Follow a run or sweep until it ends; whether it has finished."""
    if (path / SWEEP).exists():
        return _Sweep(path, console).follow()
    if not (path / SCENARIO).exists():
        raise RunError(f"{path} holds no run and no sweep (neither {SCENARIO} nor {SWEEP} in it)")
    return _Run(path, console).follow()


class _Run:
    """A run that is followed."""

    def __init__(self, path: Path, console: Console) -> None:
        self.path, self.console = path, console
        self.shown = 0
        self.silent = False

    def follow(self) -> bool:
        seen = look(self.path)
        self._say(f"{seen.summary.get('name', self.path.name)}: {self.path}")
        if (skipped := seen.done - _EARLIER) > 0:
            self.shown = skipped
            self._say(f"(before: {counted(skipped, 'round')}, not shown)")
        with _line_below(self.console) as below:
            while True:
                self._tell(seen)
                if seen.status in _OVER:
                    break
                below(_now(seen))
                time.sleep(LOOK_EVERY_S)
                seen = look(self.path)
        self._say(self._ending(seen))
        return seen.status == "finished"

    def _tell(self, seen: Look) -> None:
        """A line for each round that has not been told of, and one for a long silence."""
        if seen.done < self.shown:
            self._say(f"(going on after round {seen.done}, from the last checkpoint)")
            self.shown = seen.done
        for number in sorted(seen.rows):
            timed = number in seen.timing or seen.status in _OVER
            if number > self.shown and timed:
                self._say(_round(seen, number))
                self.shown = number
        if seen.alive is None and seen.still_s > _STILL_S and not self.silent:
            self.silent = True
            self._say(
                f"(it has written nothing for {clock(seen.still_s)}, and its process cannot be "
                f"asked from here; if it is gone: {_resumed(self.path)})"
            )

    def _ending(self, seen: Look) -> str:
        """How the run ended, and what to do next."""
        rounds = seen.summary.get("rounds")
        of_all = counted(rounds, "round") if rounds else "? rounds"
        how = f"{seen.status}, {seen.done} of {of_all}, {clock(seen.elapsed_s)}"
        if seen.status == "finished":
            return f"{how}  ({shlex.join(['simsplit', 'show', str(self.path)])})"
        why = f": {seen.summary['reason']}" if "reason" in seen.summary else ""
        return f"{how}{why}\ngo on with: {_resumed(self.path)}"

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class _Sweep:
    """A sweep that is followed."""

    def __init__(self, path: Path, console: Console) -> None:
        self.path, self.console = path, console
        self.told: dict[str, str] = {}

    def follow(self) -> bool:
        directory = SweepDirectory.load(self.path)
        with watching_sweep(self.console, quiet=False) as lines:
            assert isinstance(lines, SweepLines), "it is not quiet"
            lines.begin(self.path, [cell.name for cell in directory.cells], 1)
            while True:
                alive = is_alive(directory.process)
                directory = SweepDirectory.load(self.path)
                for cell in directory.cells:
                    self._tell(lines, directory, cell.name)
                if self._over(directory, alive):
                    break
                time.sleep(LOOK_EVERY_S)
        self._end(directory, lines)
        return all(status == "finished" for status in self.told.values())

    def _tell(self, lines: SweepLines, directory: SweepDirectory, cell: str) -> None:
        """Tell of a cell's change."""
        if self.told.get(cell) == "finished":
            return
        path = directory.run_path(cell)
        status = "failed" if cell in directory.failed else look(path).status
        if not path.exists() or self.told.get(cell) == status:
            self.told.setdefault(cell, "waiting")
            return
        if self.told.get(cell) != "running":
            lines.starts(cell)
            lines.seen[cell].started -= look(path).elapsed_s
        if status != "running":
            reason = directory.failed.get(cell) or read_summary(path).get("reason", "")
            lines.ends(cell, status, str(reason))
        self.told[cell] = status

    def _over(self, directory: SweepDirectory, alive: bool | None) -> bool:
        waited_for = [s for s in self.told.values() if s in ("waiting", "running")]
        nobody = directory.process is None and "running" not in waited_for
        return alive is False or nobody or not waited_for

    def _end(self, directory: SweepDirectory, lines: SweepLines) -> None:
        done = sum(status == "finished" for status in self.told.values())
        how = f"finished: {done} of {counted(len(self.told), 'cell')}"
        if done == len(self.told):
            lines.say(f"{how}  ({shlex.join(['simsplit', 'compare', str(self.path)])})")
            return
        command = (directory.process or {}).get("command", ())
        lines.say(f"the sweep has ended; {how}\ngo on with: {_swept_again(command, self.path)}")


def _round(seen: Look, number: int) -> str:
    """A finished round in a line."""
    row, timing = seen.rows[number], seen.timing.get(number)
    rounds = seen.summary.get("rounds", "?")
    rate = rate_of(row.steps, row.samples, timing.train_s) if timing else ""
    gone = f"{clock(timing.elapsed_s)} gone" if timing else ""
    words = (f"round {number:>{len(str(rounds))}}/{rounds}", figures(row), rate, gone)
    return "  ".join(filter(None, words))


def _now(seen: Look) -> str:
    """What goes on: the round, since when, and how long all of it will take."""
    left = f"  {clock(seen.left_s)} left" if seen.left_s is not None else ""
    rounds = seen.summary.get("rounds")
    if rounds is None:
        return "starting"
    return f"in round {min(seen.done + 1, rounds)} of {rounds} for {clock(seen.still_s)}{left}"


def _resumed(path: Path) -> str:
    """The command that goes on with a run; its own file says all of it but plugins."""
    from simsplit.plugins.record import flags_of

    words = ["simsplit", "run", str(path / SCENARIO), "--out", str(path), "--resume"]
    return shlex.join([*words, *flags_of(path)])


def _swept_again(command: Sequence[str], path: Path) -> str:
    """The command of a sweep, to go on with it."""
    if "sweep" not in command[1:2]:
        return f"simsplit sweep FILE --out {shlex.quote(str(path))} --resume"
    words = ["simsplit", *command[1:]]
    words += [] if "--out" in words else ["--out", str(path)]
    return shlex.join([*words, *([] if "--resume" in words else ["--resume"])])


@contextmanager
def _line_below(console: Console) -> Iterator[Callable[[str], None]]:
    """A line that is written anew, below all others; none where there is no terminal."""
    if not console.is_terminal or console.no_color:
        yield lambda text: None
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(Text(text, style="bold"), refresh=True)
