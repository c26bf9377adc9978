"""HTML is built here only, so that any other string counts as text and is escaped."""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Join parts to markup; escape the parts that are not markup, and skip None."""
    return Markup(escape(between).join(_escape_unsafe(part) for part in parts if part is not None))


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


def _escape_unsafe(part: object) -> str:
    return part if isinstance(part, Markup) else escape(str(part))
