"""How a run shows itself in a terminal: a live line where there is one, plain lines where not."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.text import Text

from simsplit.errors import counted
from simsplit.metrics.headline import headline, said
from simsplit.preflight import size
from simsplit.progress import Observer, Plan, RoundTold, Status
from simsplit.rows import RoundRow
from simsplit.terminal.pace import Pace, clock

QUIET_S = 20.0
"""How long a log may be without a line."""


def observer_for(console: Console, *, quiet: bool) -> Observer:
    """Live progress on a terminal, a line a round elsewhere, nothing if quiet.

    Live progress takes escape codes even where it takes no colours, so NO_COLOR has lines too.
    """
    if quiet:
        return Observer()
    return Live(console) if console.is_terminal and not console.no_color else Lines(console)


def opening(plan: Plan) -> str:
    """The line before training."""
    going_on = f", going on after round {plan.done}" if plan.done else ""
    engine = "" if plan.engine == "inline" else f"\nengine: {plan.engine}"
    return (
        f"{plan.name}: {counted(plan.clients, 'client')}, {counted(plan.samples, 'sample')}, "
        f"{counted(plan.rounds, 'round')}{going_on}\n"
        f"memory: about {plan.memory}{engine}\nrun directory: {plan.path}"
    )


def figures(row: RoundRow) -> str:
    """Say in a few words how a round went: its task's figures, its loss and its bytes."""
    words = []
    for split in ("test", "validation"):
        name = headline(row, split) or ""
        if isinstance(value := row.get(name), int | float):
            words.append(f"{said(name)} {value:.1%}")
    if row.train_loss is not None:
        words.append(f"loss {row.train_loss:.4f}")
    else:
        words.append("methods alone learned" if row.steps else _idle(row))
    words.append(f"{size(row.bytes_total)} sent")
    return "  ".join(words)


def _idle(row: RoundRow) -> str:
    """Say why a round has no training loss."""
    named = {"dropped out": row.dropped, "late": row.late}
    counts = [f"{count} {word}" for word, count in named.items() if count]
    return f"nobody trained ({', '.join(counts) or 'no client could be reached'})"


class Lines(Observer):
    """One plain line a round, and now and then one within it: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, plan: Plan) -> None:
        """Say what is about to run."""
        self.pace = Pace(plan)
        self.said = time.monotonic()
        self._print(opening(plan))

    def warn(self, message: str) -> None:
        """Pass a warning on."""
        self._print(f"warning: {message}")

    def step(self, done: int, total: int) -> None:
        """Say how far a long round is."""
        self.pace.step(done, total)
        if self._due():
            told = f"{done:,} of {total:,} steps  {self.pace.rate}  {clock(self.pace.left())} left"
            self._print(f"{self._numbered(self._now)}  {told}")

    def work(self, what: str, done: int, total: int) -> None:
        """Say how far an attack is, if it takes long."""
        self.pace.work(what, done, total)
        if self._due():
            self._print(f"{self._numbered(self._now)}  {self.pace.beside}")

    def round(self, told: RoundTold) -> None:
        """Print the round on a line."""
        self.pace.round(told)
        left = f"{clock(told.elapsed_s)} gone, {clock(self.pace.left())} left"
        words = (self._numbered(told.number), figures(told.row), self.pace.rate, left)
        self._print("  ".join(filter(None, words)))

    @property
    def _now(self) -> int:
        """The round that is under way; 0 of a run that does not train."""
        return min(self.pace.done + 1, self.pace.rounds)

    def _numbered(self, number: int) -> str:
        rounds = self.pace.rounds
        return f"round {number:>{len(str(rounds))}}/{rounds}"

    def _due(self) -> bool:
        """Whether nothing has been said for long."""
        return time.monotonic() - self.said > QUIET_S

    def _print(self, text: str) -> None:
        self.said = time.monotonic()
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class _TimeLeft(ProgressColumn):
    """Time left at the pace of the run so far."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        super().__init__()

    def render(self, task: object) -> str:
        del task
        return f"{clock(self.pace.left())} left" if self.pace.begun else ""


class _Bar(Progress):
    """A bar, and a line below it of what is going on at the moment."""

    below = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(self.below, no_wrap=True, overflow="ellipsis")


class Live(Lines):
    """A bar that moves with every step, the last round's figures beside it, the rate below it."""

    def begin(self, plan: Plan) -> None:
        """Say what is about to run, and start the bar."""
        super().begin(plan)
        self.bar = _Bar(
            TextColumn("round {task.fields[number]}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}"),
            _TimeLeft(self.pace),
            console=self.console,
            transient=True,
        )
        self.task: TaskID = self.bar.add_task(
            "", total=plan.rounds, completed=plan.done, number=plan.done, figures=""
        )
        self.shown = 0.0
        self.bar.start()

    def step(self, done: int, total: int) -> None:
        """Move the bar, ten times a second at most."""
        self.pace.step(done, total)
        self._move(f"step {done:,} of {total:,}  {self.pace.rate}")

    def work(self, what: str, done: int, total: int) -> None:
        """Say below the bar how far an attack is."""
        self.pace.work(what, done, total)
        self._move(self.pace.beside, at_once=not done)

    def _move(self, below: str, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self.shown > 0.1:
            self.shown, self.bar.below = now, below
            self.bar.update(self.task, completed=self.pace.reached)

    def round(self, told: RoundTold) -> None:
        """Put the round's figures beside the bar."""
        self.pace.round(told)
        self.bar.below = self.pace.rate
        self.bar.update(
            self.task,
            completed=told.number,
            number=told.number,
            figures=figures(told.row),
            refresh=True,
        )

    def end(self, status: Status) -> None:
        """Take the bar away, however the run ends."""
        del status
        if getattr(self, "bar", None) is not None:
            self.bar.stop()


@contextmanager
def counting(
    console: Console, what: str, *, quiet: bool
) -> Iterator[Callable[[str, int, int], None]]:
    """What to tell of an attack's pieces of work: a bar, or a line for every tenth."""
    if quiet or not console.is_terminal or console.no_color:
        yield _Tenths(console, quiet=quiet)
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda name, done, total: bar.update(
            task, description=name, completed=done, total=total or None
        )


class _Tenths:
    def __init__(self, console: Console, *, quiet: bool) -> None:
        self.console, self.quiet = console, quiet
        self.said = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 0
        if tenth > self.said and not self.quiet:
            self.console.print(f"{what}: {done} of {total}", highlight=False, markup=False)
        self.said = tenth
