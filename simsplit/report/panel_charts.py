"""The report page shows what the server saw of samples, coloured by their hidden labels."""

from collections.abc import Sequence

from simsplit.report.html.chart import COLOURS, draw_legend, make_drawing, make_reachable
from simsplit.report.html.markup import Markup, capitalise, figure, join, tag, views, void
from simsplit.report.html.subject import Subject
from simsplit.report.label_views import Panel, Strip, make_strips, name_classes, write_caption
from simsplit.results import Run

_SIDE, _GAP, _LEFT, _TOP = 118, 6, 150, 20
_LEGEND = 2 * COLOURS
"""The most classes that a legend names: each colour has round and angular marks."""
_SETTINGS = 12


def draw_seen(subject: Subject) -> Markup:
    """Draw what the server saw in each setting's first seed."""
    named = zip(subject.names, subject.firsts, strict=True)
    several = subject.one is None
    seen = [_draw_views(entry.run, name, several) for name, entry in list(named)[:_SETTINGS]]
    return views(seen, "What is seen of")


def _draw_views(run: Run, name: str, several: bool) -> Markup:
    """Draw panels of what the server saw, a row per view and a column per judged round."""
    strips = make_strips(run)
    if not strips:
        return Markup()
    classes = name_classes(run, strips)
    rounds = list(dict.fromkeys(panel.round for strip in strips for panel in strip.panels))
    heads = [
        tag("text", f"round {number}", x=_LEFT + (i + 0.5) * (_SIDE + _GAP), y=_TOP - 7,
            text_anchor="middle", class_="label")
        for i, number in enumerate(rounds)
    ]  # fmt: skip
    wide, tall = _LEFT + len(rounds) * (_SIDE + _GAP), _TOP + len(strips) * (_SIDE + _GAP)
    drawn = [_draw_strip(strip, row, rounds, list(classes)) for row, strip in enumerate(strips)]
    chart = make_drawing(
        [tag("g", *heads, aria_hidden="true"), *drawn],
        (wide, tall),
        "What the server saw, by view and round. Arrow keys move between panels.",
        f"width:{1.15 * wide:.0f}px",
    )
    words = f"{capitalise(write_caption(strips, run))}."
    legend = Markup()
    if len(classes) > _LEGEND:
        words += f" Of {len(classes)} classes, several share a colour."
    else:
        dots = [void("path", d="M6 6h0", class_=_style_of(i)) for i in range(len(classes))]
        legend = draw_legend(zip(dots, classes.values(), strict=True))
    whole = join((legend, tag("div", chart, class_="wide plain")))
    return figure(whole, f"{name}, first seed. {words}" if several else words, name)


def _draw_strip(strip: Strip, row: int, rounds: Sequence[int], labels: Sequence[int]) -> Markup:
    """Draw a view's name and its panels."""
    top = _TOP + row * (_SIDE + _GAP)
    middle = top + _SIDE / 2
    names = [
        tag("text", line, x=_LEFT - 8, y=middle + 14 * i, text_anchor="end", class_="label")
        for i, line in enumerate(strip.words.split("\n"))
    ]
    panels = [
        _draw_panel(panel, strip, (_LEFT + rounds.index(panel.round) * (_SIDE + _GAP), top), labels,
               first=row == place == 0)
        for place, panel in enumerate(strip.panels)
    ]  # fmt: skip
    return join((tag("g", *names, aria_hidden="true"), tag("g", *panels, data_group="")))


def _draw_panel(
    panel: Panel, strip: Strip, at: tuple[float, float], labels: Sequence[int], *, first: bool
) -> Markup:
    """Draw dots by label, and over them a box that a reader can point at."""
    left, right, low, high = panel.frame
    points = panel.points
    xs = (at[0] + _SIDE * (points["x"] - left) / (right - left)).round(1)
    ys = (at[1] + _SIDE * (high - points["y"]) / (high - low)).round(1)
    dots = []
    for index, label in enumerate(labels):
        own = points["label"] == label
        path = "".join(f"M{x:g} {y:g}h0" for x, y in zip(xs[own], ys[own], strict=True))
        dots.append(void("path", class_=_style_of(index), d=path) if path else None)
    words = strip.words.replace("\n", ", ") + f", round {panel.round}"
    corner = None
    if panel.leak is not None:
        leak = f"{100 * panel.leak:.0f} %"
        words += f": the worst attack tells {leak}"
        corner = tag("text", leak, x=at[0] + _SIDE - 5, y=at[1] + 14, text_anchor="end",
                     aria_hidden="true")  # fmt: skip
    box = void("rect", x=at[0], y=at[1], width=_SIDE, height=_SIDE, class_="panel",
               **make_reachable(words, first=first))  # fmt: skip
    return join((*dots, corner, box))


def _style_of(index: int) -> str:
    angular = " angular" if index // COLOURS % 2 else ""
    return f"dots c{index % COLOURS}{angular}"
