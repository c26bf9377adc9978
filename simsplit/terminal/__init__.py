"""A terminal shows runs and sweeps while they go on, and tables when they are done."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simsplit.progress import Observer, SweepObserver


def show_run() -> "Observer":
    """Make the observer that shows a run on stderr."""
    from simsplit.terminal.runs import make_observer
    from simsplit.terminal.saying import make_console

    return make_observer(make_console(stderr=True), quiet=False)


def show_sweep() -> "AbstractContextManager[SweepObserver]":
    """Open a context with the observer that shows a sweep on stderr."""
    from simsplit.terminal.saying import make_console
    from simsplit.terminal.sweeps import watch_sweep

    return watch_sweep(make_console(stderr=True), quiet=False)
