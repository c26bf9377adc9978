"""Whatever a terminal shows passes through here, without control characters that others wrote.

Names in files, reasons of clients and texts of models may hold escape sequences; those of rich
itself, for colours and live lines, are kept.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from simsplit.foreign import strip_controls

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str) -> None:
    """Print a message for the user on stderr; stdout is for results."""
    typer.echo(strip_controls(text), err=True)


def echo(text: str) -> None:
    """Print a result on stdout."""
    typer.echo(strip_controls(text))


def make_console(*, stderr: bool = False, force_terminal: bool | None = None) -> "Console":
    """Make a console for live lines and tables."""
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

    return CleanConsole(stderr=stderr, force_terminal=force_terminal)
