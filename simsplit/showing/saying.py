"""Whatever a terminal shows passes through here, without control characters that others wrote.

Names in files, reasons of clients and texts of models may hold escape sequences; those of rich
itself, for colours and live lines, are kept. What libraries print on stderr is hushed.

A request to terminate (SIGTERM, of docker, slurm or `kill`) interrupts a command as Ctrl-C does. So
the run writes its status, and the same command with --resume continues it.
"""

import logging
import os
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import typer

from simsplit.foreign import strip_controls

if TYPE_CHECKING:
    from rich.console import Console


_LIBRARIES = {
    "huggingface_hub": "HF_HUB_VERBOSITY",
    "datasets": "DATASETS_VERBOSITY",
    "transformers": "TRANSFORMERS_VERBOSITY",
}
"""The libraries' loggers, and the variable from which each reads its level on import."""
_NO_BARS = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
INTERRUPTED, TERMINATED = 130, 143
"""Exit codes: 128 and the number of the signal."""


def say(text: str) -> None:
    """Print a message for the user on stderr; stdout is for results."""
    typer.echo(strip_controls(text), err=True)


def echo(text: str) -> None:
    """Print a result on stdout."""
    typer.echo(strip_controls(text))


def echo_prose(text: str) -> None:
    """Print a line of prose on stdout; a terminal gets it wrapped between words.

    A line with a command stays whole, so that it can be copied.
    """
    if (sys.stdout.isatty() or "COLUMNS" in os.environ) and ": simsplit " not in text:
        width = shutil.get_terminal_size().columns
        indent = text[: len(text) - len(text.lstrip())]
        text = textwrap.fill(
            text,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    echo(text)


def make_console(
    *, stderr: bool = False, force_terminal: bool | None = None, quiet: bool = False
) -> "Console":
    """Make a console for live lines and tables; a quiet one shows nothing."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class CleanConsole(Console):
        """A console that strips control characters from all texts, but not those of rich."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else strip_controls(segment.text)
                yield Segment(text, segment.style, segment.control)

    return CleanConsole(stderr=stderr, force_terminal=force_terminal, quiet=quiet)


def hush() -> None:
    """Have the libraries print errors only, unless the user has set their levels."""
    for name, variable in _LIBRARIES.items():
        if variable not in os.environ:
            os.environ[variable] = "error"
            logging.getLogger(name).setLevel(logging.ERROR)
    for variable in _NO_BARS:
        os.environ.setdefault(variable, "1")


_was_terminated = threading.Event()
"""Whether this process was asked to terminate.

The exception cannot say it: Ray drops the one that arises in its calls, and raises its own.
"""


def heed_termination() -> None:
    """Raise KeyboardInterrupt in the main thread whenever the process is asked to terminate."""
    if threading.current_thread() is threading.main_thread():
        _was_terminated.clear()
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _was_terminated.set()
    raise KeyboardInterrupt


def end_interrupted(message: str) -> NoReturn:
    """Print how to continue, and exit with the code of the signal."""
    say(f"\ninterrupted; {message}")
    raise typer.Exit(TERMINATED if _was_terminated.is_set() else INTERRUPTED) from None
