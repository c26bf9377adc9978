"""The report's tables become HTML whose headers stay visible and whose wide rows scroll."""

from collections.abc import Sequence

from simsplit.report.html.markup import Markup, join, tag
from simsplit.report.tables import Table

_SIDES = {"l": "text", "r": "number"}
_SHORT = 20
"""The most characters of a text that stays on one line."""


def mark_up(made: Table | None) -> Markup:
    """Make a table's markup under its title; return nothing for a table without rows."""
    if made is None or not made.rows:
        return Markup()
    rows = [
        [tag("b", cell) if (i, j) in made.bold else cell for j, cell in enumerate(row)]
        for i, row in enumerate(made.rows)
    ]
    return mark_up_rows(made.columns, rows, made.align, made.heading)


def mark_up_rows(
    columns: Sequence[str], rows: Sequence[Sequence[object]], align: str, title: str = ""
) -> Markup:
    """Make a table's markup from columns and rows; the first cell of a row is its heading."""
    sides = [_SIDES[side] for side in align]
    head = [
        tag("th", _allow_breaks(name), scope="col", class_=side)
        for name, side in zip(columns, sides, strict=True)
    ]
    lines = []
    for row in rows:
        first, *rest = zip(row, sides, strict=True)
        cells = [tag("th", first[0], scope="row", class_=_style_of(*first))]
        cells += [tag("td", cell, class_=_style_of(cell, side)) for cell, side in rest]
        lines.append(tag("tr", *cells))
    caption = tag("caption", tag("span", _capitalise(title))) if title else None
    inner = tag("table", caption, tag("thead", tag("tr", *head)), tag("tbody", *lines))
    label = _capitalise(title) or " and ".join(filter(None, columns[:2])) or "figures"
    # a part that scrolls must be reachable by keyboard, so a screen reader needs its name
    return tag(
        "div", inner, class_="wide", tabindex="0", role="region", aria_label=f"Table: {label}"
    )


def mark_up_pairs(rows: Sequence[tuple[str, object]]) -> Markup:
    """Make a list of names and their values."""
    return tag("dl", *(join((tag("dt", name), tag("dd", value))) for name, value in rows))


def _allow_breaks(name: str) -> Markup:
    """Allow a heading to break after each underscore."""
    first, *rest = name.split("_")
    return join((first, *(join(("_", Markup("<wbr/>"), part)) for part in rest)))


def _style_of(cell: object, side: str) -> str:
    """Return a cell's style; a short text stays on one line, even in a wide table."""
    return f"{side} short" if side == "text" and len(str(cell)) <= _SHORT else side


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]
