"""How a run shows itself in a terminal: a live line where there is one, plain lines where not."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn

from simsplit.preflight import size
from simsplit.progress import Observer, Plan, RoundTold, Row, Status


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
        f"{plan.name}: {plan.clients} clients, {plan.samples:,} samples, {plan.rounds} rounds"
        f"{going_on}\nmemory: about {plan.memory}{engine}\nrun directory: {plan.path}"
    )


def figures(row: Row) -> str:
    """A round's accuracy, loss and bytes in a few words."""
    words = []
    for split in ("test", "validation"):
        value = row.get(f"{split}_accuracy")
        if isinstance(value, float):
            words.append(f"{split} accuracy {value:.1%}")
    if "train_loss" in row:
        words.append(f"loss {row['train_loss']:.4f}")
    else:
        words.append("methods alone learned" if row.get("steps") else _idle(row))
    words.append(f"{size(float(str(row['bytes_total'])))} sent")
    return "  ".join(words)


def _idle(row: Row) -> str:
    """Why a round has no training loss."""
    named = {"dropped": "dropped out", "late": "late"}
    counts = [f"{row[name]} {word}" for name, word in named.items() if row.get(name)]
    return f"nobody trained ({', '.join(counts) or 'no client could be reached'})"


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Pace:
    """How long is left, from how long it took so far."""

    def __init__(self, plan: Plan) -> None:
        self.rounds, self.first = plan.rounds, plan.done
        self.started = time.monotonic()

    def left(self, done: float) -> float:
        """Seconds until the last round, `done` rounds in."""
        passed = time.monotonic() - self.started
        return passed * (self.rounds - done) / max(done - self.first, 1e-9)


class Lines(Observer):
    """One plain line a round: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, plan: Plan) -> None:
        """Say what is about to run."""
        self.pace = Pace(plan)
        self._print(opening(plan))

    def warn(self, message: str) -> None:
        """Pass a warning on."""
        self._print(f"warning: {message}")

    def round(self, told: RoundTold) -> None:
        """Print the round on a line."""
        width = len(str(self.pace.rounds))
        left = f"{clock(told.elapsed_s)} gone, {clock(self.pace.left(told.number))} left"
        self._print(f"round {told.number:>{width}}/{self.pace.rounds}  {figures(told.row)}  {left}")

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


class _TimeLeft(ProgressColumn):
    """Time left at the pace of the run so far."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        super().__init__()

    def render(self, task: object) -> str:
        done = float(getattr(task, "completed", 0.0))
        return f"{clock(self.pace.left(done))} left" if done > self.pace.first else ""


class Live(Lines):
    """A bar that moves with every step, and the last round's figures beside it."""

    def begin(self, plan: Plan) -> None:
        """Say what is about to run, and start the bar."""
        super().begin(plan)
        self.bar = Progress(
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
        self.done = plan.done
        self.shown = 0.0
        self.bar.start()

    def step(self, done: int, total: int) -> None:
        """Move the bar, ten times a second at most."""
        now = time.monotonic()
        if now - self.shown > 0.1:
            self.shown = now
            self.bar.update(self.task, completed=self.done + done / total)

    def round(self, told: RoundTold) -> None:
        """Put the round's figures beside the bar."""
        self.done = told.number
        beside = figures(told.row)
        self.bar.update(
            self.task, completed=self.done, number=self.done, figures=beside, refresh=True
        )

    def end(self, status: Status) -> None:
        """Take the bar away, however the run ends."""
        del status
        if getattr(self, "bar", None) is not None:
            self.bar.stop()


@contextmanager
def counting(console: Console, what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """What to tell of so many of so many: a bar, or a line for every tenth."""
    if quiet or not console.is_terminal or console.no_color:
        yield _Tenths(console, what, quiet=quiet)
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Tenths:
    def __init__(self, console: Console, what: str, *, quiet: bool) -> None:
        self.console, self.what, self.quiet = console, what, quiet
        self.said = 0

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // total
        if tenth > self.said and not self.quiet:
            self.console.print(f"{self.what}: {done} of {total}", highlight=False, markup=False)
        self.said = tenth
