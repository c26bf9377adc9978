"""The report's tables as HTML: headers that stay in sight, and their own scroll bar if wide."""

from collections.abc import Sequence

from simsplit.report.html.markup import Markup, joined, tag
from simsplit.report.tables import Table

_SIDES = {"l": "text", "r": "number"}
_SHORT = 20
"""Characters."""


def table(made: Table | None) -> Markup:
    """A table under its title; nothing where it has no rows."""
    if made is None or not made.rows:
        return Markup()
    rows = [
        [tag("b", cell) if (i, j) in made.bold else cell for j, cell in enumerate(row)]
        for i, row in enumerate(made.rows)
    ]
    return plain(made.columns, rows, made.align, made.heading)


def plain(
    columns: Sequence[str], rows: Sequence[Sequence[object]], align: str, title: str = ""
) -> Markup:
    """Rows below a header; the first cell of a row is its heading."""
    sides = [_SIDES[side] for side in align]
    head = [
        tag("th", _breakable(name), scope="col", class_=side)
        for name, side in zip(columns, sides, strict=True)
    ]
    lines = []
    for row in rows:
        first, *rest = zip(row, sides, strict=True)
        cells = [tag("th", first[0], scope="row", class_=_style(*first))]
        cells += [tag("td", cell, class_=_style(cell, side)) for cell, side in rest]
        lines.append(tag("tr", *cells))
    caption = tag("caption", tag("span", _sentence(title))) if title else None
    inner = tag("table", caption, tag("thead", tag("tr", *head)), tag("tbody", *lines))
    label = _sentence(title) or " and ".join(filter(None, columns[:2])) or "figures"
    # a part that scrolls must be reachable by keyboard, and so it needs a name
    return tag(
        "div", inner, class_="wide", tabindex="0", role="region", aria_label=f"Table: {label}"
    )


def pairs(rows: Sequence[tuple[str, object]]) -> Markup:
    """Names and what they stand for."""
    return tag("dl", *(joined((tag("dt", name), tag("dd", value))) for name, value in rows))


def _breakable(name: str) -> Markup:
    """A long heading may go on below behind an underscore."""
    first, *rest = name.split("_")
    return joined((first, *(joined(("_", Markup("<wbr/>"), part)) for part in rest)))


def _style(cell: object, side: str) -> str:
    """A short text stays on one line, also where the table is wide."""
    return f"{side} short" if side == "text" and len(str(cell)) <= _SHORT else side


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
