"""A run shows its progress as a live line in a terminal, and as plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from simsplit.errors import format_count, format_list
from simsplit.metrics import find_headline, format_column
from simsplit.progress import Observer, RoundEnded, RunPlan, Status
from simsplit.rows import RoundRow
from simsplit.showing.pace import Pace, format_clock
from simsplit.sizes import format_size

QUIET_S = 20.0
"""A log gets a line after at most this many seconds."""


def make_observer(console: Console, *, quiet: bool) -> Observer:
    """Make an observer: live progress on a terminal, a line a round elsewhere, nothing if quiet.

    Live progress needs escape codes even without colours, so NO_COLOR gets lines too.
    """
    if quiet:
        return Observer()
    return Live(console) if console.is_terminal and not console.no_color else Lines(console)


def describe_plan(plan: RunPlan) -> str:
    """Return the lines that are printed before training."""
    going_on = f", going on after round {plan.done}" if plan.done else ""
    engine = "" if plan.engine == "inline" else f"\nengine: {plan.engine}"
    named = f" ({format_list(plan.client_names, 6)})" if plan.client_names else ""
    return (
        f"{plan.name}: {format_count(plan.clients, 'client')}{named}, "
        f"{format_count(plan.samples, 'sample')}, {format_count(plan.rounds, 'round')}{going_on}\n"
        f"memory: about {plan.memory}{engine}\nrun directory: {plan.path}"
    )


def describe_round(row: RoundRow) -> str:
    """Return a round's main figures, its loss and its bytes in a few words."""
    words = []
    for split in ("test", "validation"):
        name = find_headline(row, split) or ""
        if isinstance(value := row.get(name), int | float):
            words.append(f"{format_column(name)} {value:.1%}")
    idle = "methods alone learned" if row.steps else _explain_idle(row)
    words.append(idle if row.train_loss is None else f"loss {row.train_loss:.4f}")
    words.append(f"{format_size(row.bytes_total)} sent")
    return "  ".join(words)


def _explain_idle(row: RoundRow) -> str:
    """Return why a round has no training loss."""
    if row.round == 0:
        return "before any training"
    named = {"dropped out": row.dropped, "late": row.late}
    counts = [f"{count} {word}" for word, count in named.items() if count]
    return f"nobody trained ({', '.join(counts) or 'no client could be reached'})"


class Lines(Observer):
    """An observer that prints a line a round, and lines within long rounds: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, plan: RunPlan) -> None:
        """Print what is about to run."""
        self.pace = Pace(plan)
        self.printed_at = time.monotonic()
        self._print(describe_plan(plan))

    def warn(self, message: str) -> None:
        """Print a warning on a line of its own, above what is under way."""
        self._print(f"warning: {message}")

    def step(self, done: int, total: int) -> None:
        """Print the progress of a long round."""
        self.pace.step(done, total)
        if self._is_due():
            left = format_clock(self.pace.estimate_left())
            words = f"{done:,} of {total:,} steps  {self.pace.rate}  {left} left"
            self._print(f"{self._number(self._now)}  {words}")

    def work(self, what: str, done: int, total: int) -> None:
        """Print the progress of a long attack."""
        self.pace.work(what, done, total)
        if self._is_due():
            self._print(f"{self._number(self._now)}  {self.pace.beside}")

    def round(self, ended: RoundEnded) -> None:
        """Print the round on a line."""
        self.pace.round(ended)
        gone, left = format_clock(ended.elapsed_s), format_clock(self.pace.estimate_left())
        clocks = f"{gone} gone, {left} left"
        words = (self._number(ended.number), describe_round(ended.row), self.pace.rate, clocks)
        self._print("  ".join(filter(None, words)))

    @property
    def _now(self) -> int:
        """The number of the current round; 0 if the run does not train."""
        return min(self.pace.done + 1, self.pace.rounds)

    def _number(self, number: int) -> str:
        rounds = self.pace.rounds
        return f"round {number:>{len(str(rounds))}}/{rounds}"

    def _is_due(self) -> bool:
        """Return whether the last line was printed long ago."""
        return time.monotonic() - self.printed_at > QUIET_S

    def _print(self, text: str) -> None:
        self.printed_at = time.monotonic()
        print_words(self.console, text)


def print_words(console: Console, text: str) -> None:
    """Print a text, which a terminal gets wrapped between words, and a pipe or log as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


class _TimeLeft(ProgressColumn):
    """A column with the time left at the pace of the run so far."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        super().__init__(Column(no_wrap=True))

    def render(self, task: object) -> str:
        return f"{format_clock(self.pace.estimate_left())} left" if self.pace.has_begun else ""


class _Figures(ProgressColumn):
    """A column with the round's figures, of which a narrow terminal cuts the end."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields["figures"]), no_wrap=True, overflow="ellipsis")


class _Bar(Progress):
    """A bar, with a line below it for what is going on at the moment."""

    below = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(self.below, no_wrap=True, overflow="ellipsis")


_WIDE = 100
"""Columns of a terminal that has room for the bar beside the figures."""


class Live(Lines):
    """An observer with a bar that moves with every step; figures and the rate are beside it."""

    def begin(self, plan: RunPlan) -> None:
        """Print what is about to run, and start the bar."""
        super().begin(plan)
        narrow = self.console.width < _WIDE
        rounds = "round {task.fields[number]}/{task.total:.0f}"
        columns: list[ProgressColumn] = [TextColumn(rounds, table_column=Column(no_wrap=True))]
        columns += [] if narrow else [BarColumn(bar_width=24)]
        columns += [_TimeLeft(self.pace), _Figures()]
        self.bar = _Bar(*columns, console=self.console, transient=True)
        done = plan.done
        self.task: TaskID = self.bar.add_task(
            "", total=plan.rounds, completed=done, number=done, figures=""
        )
        self.shown = 0.0
        self.bar.start()

    def step(self, done: int, total: int) -> None:
        """Move the bar, ten times a second at most."""
        self.pace.step(done, total)
        self._move(f"step {done:,} of {total:,}  {self.pace.rate}")

    def work(self, what: str, done: int, total: int) -> None:
        """Show the progress of an attack below the bar."""
        self.pace.work(what, done, total)
        self._move(self.pace.beside, at_once=not done)

    def _move(self, below: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self.shown > 0.1:
            self.shown, self.bar.below = now, below
            self.bar.update(self.task, completed=self.pace.reached)

    def round(self, ended: RoundEnded) -> None:
        """Show the round's figures beside the bar."""
        self.pace.round(ended)
        self.bar.below = self.pace.rate
        number, figures = ended.number, describe_round(ended.row)
        self.bar.update(self.task, completed=number, number=number, figures=figures, refresh=True)

    def end(self, status: Status) -> None:
        """Remove the bar, whatever the status is."""
        if getattr(self, "bar", None) is not None:
            self.bar.stop()


@contextmanager
def count_work(
    console: Console, what: str, *, quiet: bool
) -> Iterator[Callable[[str, int, int], None]]:
    """Open a context with a function that shows an attack's progress: a bar, or lines."""
    if quiet or not console.is_terminal or console.no_color:
        printed = 0

        def print_tenths(what: str, done: int, total: int) -> None:
            nonlocal printed
            tenth = 10 * done // total if total else 0
            if tenth > printed and not quiet:
                console.print(f"{what}: {done} of {total}", highlight=False, markup=False)
            printed = tenth

        yield print_tenths
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda name, done, total: bar.update(
            task, description=name, completed=done, total=total or None
        )
