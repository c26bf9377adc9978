"""A request to terminate (SIGTERM, of docker, slurm or `kill`) interrupts a command as Ctrl-C does.

So the run writes its status, and the same command with --resume continues it.
"""

import signal
import threading
from types import FrameType
from typing import NoReturn

import typer

from simsplit.terminal.saying import say

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes: 128 and the number of the signal."""


class Terminated(KeyboardInterrupt):
    """The interrupt that a request to terminate raises."""


def heed_termination() -> None:
    """Raise Terminated in the main thread whenever the process is asked to terminate."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise Terminated


def end_interrupted(interrupt: KeyboardInterrupt, message: str) -> NoReturn:
    """Print how to continue, and exit with the code of the signal."""
    say(f"\ninterrupted; {message}")
    raise typer.Exit(TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED) from None
