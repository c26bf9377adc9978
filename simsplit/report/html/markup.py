"""HTML is built here only, so that any other string counts as text and is escaped.

A table's header stays visible while its rows scroll, sideways too.
"""

from collections.abc import Iterable, Sequence
from html import escape

from simsplit.report.tables import Table

_SIDES = {"l": "text", "r": "number"}
_SHORT = 20
"""The most characters of a text that stays on one line."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Join parts to markup; escape the parts that are not markup, and skip None."""
    known = [part for part in parts if part is not None]
    safe = [part if isinstance(part, Markup) else escape(str(part)) for part in known]
    return Markup(escape(between).join(safe))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Make an element; `class_` is written as `class`, `data_p` as `data-p`, None is skipped."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def void(name: str, **attributes: object) -> Markup:
    """Make an element without content, such as an image or a shape."""
    return Markup(tag(name, **attributes).removesuffix(f"></{name}>") + "/>")


def section(title: str, *children: object) -> Markup:
    """Make a part of the page under its heading; return nothing if it has no content."""
    if not any(children):
        return Markup()
    name = title.lower().replace(" ", "-").replace(",", "")
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def details(title: str, *children: object) -> Markup:
    """Make a part that is folded until the reader opens it."""
    return tag("details", tag("summary", title), *children)


def figure(drawing: object, caption: object, view: str | None = None) -> Markup:
    """Make a figure of a drawing and its caption; `view` names it among several in one place."""
    return tag("figure", drawing, tag("figcaption", caption), data_view=view)


def views(figures: Iterable[Markup], what: str) -> Markup:
    """Put figures in one place for the reader to choose from; without scripts all are shown."""
    shown = [each for each in figures if each]
    if len(shown) < 2:
        return join(shown)
    return tag("div", *shown, data_views=what)


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
    breaking = [Markup(escape(name).replace("_", "_<wbr/>")) for name in columns]
    head = [
        tag("th", name, scope="col", class_=side)
        for name, side in zip(breaking, sides, strict=True)
    ]
    lines = []
    for row in rows:
        first, *rest = zip(row, sides, strict=True)
        cells = [tag("th", first[0], scope="row", class_=_style_of(*first))]
        cells += [tag("td", cell, class_=_style_of(cell, side)) for cell, side in rest]
        lines.append(tag("tr", *cells))
    caption = tag("caption", tag("span", capitalise(title))) if title else None
    inner = tag("table", caption, tag("thead", tag("tr", *head)), tag("tbody", *lines))
    label = capitalise(title) or " and ".join(filter(None, columns[:2])) or "figures"
    # a part that scrolls must be reachable by keyboard, so a screen reader needs its name
    return tag(
        "div", inner, class_="wide", tabindex="0", role="region", aria_label=f"Table: {label}"
    )


def mark_up_pairs(rows: Sequence[tuple[str, object]]) -> Markup:
    """Make a list of names and their values."""
    return tag("dl", *(join((tag("dt", name), tag("dd", value))) for name, value in rows))


def _style_of(cell: object, side: str) -> str:
    """Return a cell's style; a short text stays on one line, even in a wide table."""
    return f"{side} short" if side == "text" and len(str(cell)) <= _SHORT else side


def capitalise(text: str) -> str:
    """Return a text with a capital first letter; the others are left as they are."""
    return text[:1].upper() + text[1:]
