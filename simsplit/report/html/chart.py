"""Charts are inline SVG, so that a mouse, a keyboard and a screen reader reach every point."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from simsplit.report.html.markup import Markup, join, tag, void
from simsplit.report.tables import thin

Write = Callable[[float], str]
_WIDTH, _HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 12, 46
_MARKS = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0Z",
    "M-3.2-3.2H3.2V3.2H-3.2Z",
    "M0-4.4L4.2 3.2H-4.2Z",
    "M0-4.6L4.4 0L0 4.6L-4.4 0Z",
)
COLOURS = 8
"""The number of colours in the style."""
MOST = 24
"""The most series of a chart: further ones would repeat a colour and stroke."""
_POINTS = 150


@dataclass(frozen=True)
class Series:
    """A curve, and each of its points in words."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    words: Sequence[str]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    step: bool = False

    def thin(self) -> "Series":
        """Return the series with only as many points as can be seen, keeping both ends."""
        x, y, words = thin(self.x, _POINTS), thin(self.y, _POINTS), thin(self.words, _POINTS)
        low, high = (each and thin(each, _POINTS) for each in (self.low, self.high))
        return Series(self.name, x, y, words, low, high, step=self.step)


@dataclass(frozen=True)
class Axis:
    """One direction of a chart: the place and the words of its values."""

    label: str
    least: float
    most: float
    write: Write
    start: float
    end: float

    def at(self, value: float) -> str:
        """Return a value's coordinate on the chart."""
        share = (value - self.least) / ((self.most - self.least) or 1)
        return f"{self.start + share * (self.end - self.start):.1f}"

    @property
    def ticks(self) -> list[float]:
        """Round values within the axis."""
        round_values = choose_ticks(self.least, self.most)
        return [value for value in round_values if self.least <= value <= self.most]


def choose_ticks(least: float, most: float) -> list[float]:
    """Return about five round values that span an interval.

    >>> choose_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    """
    span = (most - least) or 1.0
    raw = span / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.floor(least / step)
    return [round((first + i) * step, 12) for i in range(math.ceil((most - least) / step) + 2)]


def write_whole(value: float) -> str:
    """Write a whole number; nothing for others."""
    return f"{value:g}" if value == round(value) else ""


def write_percent(value: float) -> str:
    """Write a share in per cent."""
    return f"{100 * value:g} %"


def draw_lines(
    name: str,
    series: Sequence[Series],
    x: tuple[str, Write],
    y: tuple[str, Write],
    diagonal: bool = False,
) -> Markup:
    """Draw curves with a legend; `x` and `y` have each axis' label and the format of its values."""
    shown = [each.thin() for each in series[:MOST] if len(each.x)]
    if not shown:
        return Markup()
    across, up = _fit_axes(shown, x, y)
    parts = [_draw_frame(across, up)]
    if diagonal:
        ends = {"x1": across.at(0), "y1": up.at(0), "x2": across.at(1), "y2": up.at(1)}
        parts.append(void("line", class_="chance", **ends))
    parts += [_draw_band(each, i, across, up) for i, each in enumerate(shown)]
    parts += [_draw_curve(each, i, across, up) for i, each in enumerate(shown)]
    words = f"{name}: {y[0]} by {x[0]}. Arrow keys move between points."
    drawing = make_drawing(parts, (_WIDTH, _HEIGHT), words)
    legend = draw_legend([(_draw_swatch(i), each.name) for i, each in enumerate(shown)], width=26)
    return join((legend, drawing))


def make_drawing(
    parts: Iterable[object], size: tuple[float, float], words: str, style: str | None = None
) -> Markup:
    """Make a drawing that a reader can walk through with keys; `words` say what it is."""
    box = f"0 0 {size[0]} {size[1]}"
    return tag(
        "svg", *parts, viewBox=box, role="group", aria_label=words, style=style, data_chart=""
    )


def make_reachable(words: str, *, first: bool) -> dict[str, str]:
    """Return the attributes by which a reader reaches a point of a chart; `words` describe it."""
    return {"role": "img", "aria_label": words, "data_p": "", "tabindex": "0" if first else "-1"}


def draw_legend(entries: Iterable[tuple[Markup, object]], *, width: int = 12) -> Markup:
    """Draw a legend from pairs of what stands in a swatch and the name of that."""
    style = "swatch square" if width == 12 else "swatch"
    items = []
    for drawn, name in entries:
        box = f"0 0 {width} 12"
        swatch = tag("svg", drawn, viewBox=box, class_=style, aria_hidden="true")
        items.append(tag("li", swatch, name))
    return tag("ul", *items, class_="legend")


def _draw_swatch(index: int) -> Markup:
    style, place = f"c{index % COLOURS}", "translate(13 6)"
    stroke = void("path", d="M0 6H26", class_=_stroke_of(index))
    return join((stroke, void("path", d=_mark_of(index), transform=place, class_=style)))


def _fit_axes(
    series: Sequence[Series], x: tuple[str, Write], y: tuple[str, Write]
) -> tuple[Axis, Axis]:
    xs = [value for each in series for value in each.x]
    ys = [value for each in series for value in (*each.y, *(each.low or ()), *(each.high or ()))]
    least, most = min(ys), max(ys)
    room = (most - least) * 0.04 or abs(most) * 0.05 or 0.5
    if least >= 0 and most <= 1:  # a share cannot leave 0 to 1, so the axis does not either
        low, high = max(0.0, least - room), min(1.0, most + room)
    else:
        low, high = least - room, most + room
    across = Axis(x[0], min(xs), max(xs), x[1], _LEFT, _WIDTH - _RIGHT)
    return across, Axis(y[0], low, high, y[1], _HEIGHT - _BOTTOM, _TOP)


def _draw_frame(x: Axis, y: Axis) -> Markup:
    """Draw grid lines, their values and the axes' labels."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value in y.ticks:
        up, words = y.at(value), y.write(value)
        parts.append(void("line", class_="grid", x1=_LEFT, x2=right, y1=up, y2=up))
        parts.append(tag("text", words, x=_LEFT - 7, y=up, dy="0.32em", text_anchor="end"))
    parts += [
        tag("text", x.write(value), x=x.at(value), y=bottom + 18, text_anchor="middle")
        for value in x.ticks
    ]
    middle = (_LEFT + right) / 2
    parts.append(void("line", class_="axis", x1=_LEFT, x2=right, y1=bottom, y2=bottom))
    parts.append(
        tag("text", x.label, class_="label", x=middle, y=_HEIGHT - 6, text_anchor="middle")
    )
    return tag("g", *parts, aria_hidden="true")


def _draw_band(series: Series, index: int, x: Axis, y: Axis) -> Markup:
    if series.low is None or series.high is None:
        return Markup()
    up = [f"{x.at(a)} {y.at(b)}" for a, b in zip(series.x, series.high, strict=True)]
    back = [f"{x.at(a)} {y.at(b)}" for a, b in zip(series.x, series.low, strict=True)][::-1]
    return void("path", class_=f"band c{index % COLOURS}", d=f"M{' '.join([*up, *back])}Z")


def _draw_curve(series: Series, index: int, x: Axis, y: Axis) -> Markup:
    ats = [(x.at(a), y.at(b)) for a, b in zip(series.x, series.y, strict=True)]
    path = "M{} {}".format(*ats[0]) + "".join(
        f"H{a}V{b}" if series.step else f"L{a} {b}" for a, b in ats[1:]
    )
    points = [
        tag(
            "path",
            d=_mark_of(index),
            transform=f"translate({a} {b})",
            class_=f"point c{index % COLOURS}",
            **make_reachable(words, first=index == place == 0),
        )
        for place, ((a, b), words) in enumerate(zip(ats, series.words, strict=True))
    ]
    line = void("path", class_=_stroke_of(index), d=path)
    return tag("g", line, *points, data_group="")


def _stroke_of(index: int) -> str:
    return f"curve c{index % COLOURS} dash{index // COLOURS % 3}"


def _mark_of(index: int) -> str:
    return _MARKS[index % len(_MARKS)]
