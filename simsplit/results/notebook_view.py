"""What a notebook shows of a run: how far it is, its score, its bytes, and what to do next.

Everything in it may be another's, so it is escaped, and stripped of control characters.
"""

import shlex
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from simsplit.errors import format_count
from simsplit.foreign import strip_controls
from simsplit.metrics import find_headline, format_column
from simsplit.sizes import format_size

Facts = Mapping[str, Any]
PAGE = "report.html"
_COMMANDS = ("show", "report", "clients")


def write_html(path: Path, facts: Facts) -> str:
    """Write a run in a few lines of HTML, from its path and its summary."""
    rows = [("status", _describe_status(facts)), *_list_figures(facts), ("next", _list_next(path))]
    lines = "".join(
        f'<tr><th style="text-align:left">{name}</th><td style="text-align:left">{cell}</td></tr>'
        for name, cell in rows
        if cell
    )
    return f"<table><caption>Run <code>{_write(path)}</code></caption>{lines}</table>"


def _write(text: object) -> str:
    return escape(strip_controls(str(text)))


def _describe_status(facts: Facts) -> str:
    why = f": {facts['reason']}" if "reason" in facts else ""
    if not {"status", "rounds", "rounds_done"} <= facts.keys():
        return _write(f"without a summary{why}")
    rounds = format_count(facts["rounds"], "round")
    return _write(f"{facts['status']}, {facts['rounds_done']} of {rounds}{why}")


def _list_figures(facts: Facts) -> list[tuple[str, str]]:
    """Return the score of a finished run, at the round that `compare` quotes, and its bytes."""
    best, last = facts.get("best_on_validation"), facts.get("last")
    chosen, which = (best, ", best on validation") if best else (last or {}, "")
    found, headline = [], find_headline(chosen)
    name = headline or next((n for n in chosen if n != "round"), None)
    if name is not None:
        value = f"{chosen[name]:.1%}" if headline else f"{chosen[name]:.4f}"
        found.append(
            (_write(format_column(name)), f"{value} (round {chosen.get('round', '?')}{which})")
        )
    if total := facts.get("bytes", {}).get("total"):
        found.append(("sent in training", _write(format_size(total))))
    return found


def _list_next(path: Path) -> str:
    """Return a link to the report, if there is one, and commands that show more."""
    page = path / PAGE
    link = [f'<a href="{_write(quote(str(page)))}">report</a>'] if page.is_file() else []
    commands = (shlex.join(["simsplit", name, str(path)]) for name in _COMMANDS)
    return " &middot; ".join([*link, *(f"<code>{_write(each)}</code>" for each in commands)])
