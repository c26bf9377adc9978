"""Tables and blocks in Markdown, of texts that know nothing of Markdown."""

import textwrap
from collections.abc import Iterable, Sequence

_ESCAPES = str.maketrans({"<": "&lt;", ">": "&gt;", **{mark: f"\\{mark}" for mark in "\\*_[]#"}})


def plain(text: str) -> str:
    """Return a text in which no character stands for markup; code between backquotes stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backquote without its other one
        return _escape(text)
    return "".join(f"`{part}`" if odd % 2 else _escape(part) for odd, part in enumerate(parts))


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)


def code(text: str) -> str:
    """Format a word of a scenario or a command."""
    return f"`{text}`" if text else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format rows as a table; a bar within a cell is no border."""
    lines = [_row(columns), _row(["---"] * len(columns)), *(_row(row) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |"


def fold(title: str, inside: str) -> str:
    """Format a block that is closed until somebody opens it."""
    return f'??? note "{title}"\n\n{textwrap.indent(inside, "    ")}'


def fence(text: str, language: str = "") -> str:
    """Format a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"
