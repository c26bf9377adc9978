"""HTML that cannot be broken out of: whatever is not made here is text, and is escaped."""

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Parts behind one another; those that are no markup are escaped, None is left out."""
    return Markup(escape(between).join(_safe(part) for part in parts if part is not None))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element; of its attributes `class_` is `class`, `data_p` is `data-p`, None is left out."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{told}>{joined(children)}</{name}>")


def void(name: str, **attributes: object) -> Markup:
    """An element without content: an image, a shape."""
    return Markup(tag(name, **attributes).removesuffix(f"></{name}>") + "/>")


def section(title: str, *children: object) -> Markup:
    """A part of the page under its heading; empty where nothing but the heading is left."""
    if not any(children):
        return Markup()
    name = title.lower().replace(" ", "-").replace(",", "")
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def details(title: str, *children: object) -> Markup:
    """What is folded away until it is asked for."""
    return tag("details", tag("summary", title), *children)


def figure(drawing: object, caption: object, view: str | None = None) -> Markup:
    """A drawing and what is seen on it; `view` is its name among several that share a place."""
    return tag("figure", drawing, tag("figcaption", caption), data_view=view)


def views(figures: Iterable[Markup], what: str) -> Markup:
    """Figures in one place, of which the reader chooses; all, where scripts do not run."""
    shown = [each for each in figures if each]
    if len(shown) < 2:
        return joined(shown)
    return tag("div", *shown, data_views=what)


def _safe(part: object) -> str:
    return part if isinstance(part, Markup) else escape(str(part))
