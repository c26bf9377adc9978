"""This room shows on a terminal how runs and sweeps go on."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simsplit.progress import Observer, SweepObserver


def show_run() -> "Observer":
    """Make the observer that shows a run on stderr."""
    from simsplit.showing.run_output import make_observer
    from simsplit.showing.saying import make_console

    return make_observer(make_console(stderr=True), quiet=False)


def show_sweep() -> "AbstractContextManager[SweepObserver]":
    """Open a context with the observer that shows a sweep on stderr."""
    from simsplit.showing.saying import make_console
    from simsplit.showing.sweep_output import watch_sweep

    return watch_sweep(make_console(stderr=True), quiet=False)
