"""Line charts are inline SVG, so that a mouse, a keyboard and a screen reader reach every point."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simsplit.report.html.markup import Markup, join, tag, void

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
        count = len(self.x)
        if count <= _POINTS:
            return self
        kept = sorted({round(i * (count - 1) / (_POINTS - 1)) for i in range(_POINTS)})

        def of(values: Sequence[float]) -> list[float]:
            return [values[i] for i in kept]

        low, high = (None if v is None else of(v) for v in (self.low, self.high))
        words = [self.words[i] for i in kept]
        return Series(self.name, of(self.x), of(self.y), words, low, high, step=self.step)


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
        return [
            value
            for value in choose_ticks(self.least, self.most)
            if self.least <= value <= self.most
        ]


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
    drawing = tag(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="group",
        aria_label=f"{name}: {y[0]} by {x[0]}. Arrow keys move between points.",
        data_chart="",
    )
    return join((draw_legend([each.name for each in shown]), drawing))


def draw_legend(names: Sequence[str]) -> Markup:
    """Draw a legend that names the curves."""
    items = []
    for index, name in enumerate(names):
        stroke = void("path", d="M0 6H26", class_=_stroke_of(index))
        mark = void(
            "path", d=_mark_of(index), transform="translate(13 6)", class_=f"c{index % COLOURS}"
        )
        swatch = tag("svg", stroke, mark, viewBox="0 0 26 12", class_="swatch", aria_hidden="true")
        items.append(tag("li", swatch, name))
    return tag("ul", *items, class_="legend")


def _fit_axes(
    series: Sequence[Series], x: tuple[str, Write], y: tuple[str, Write]
) -> tuple[Axis, Axis]:
    xs = [value for each in series for value in each.x]
    ys = [
        value
        for each in series
        for values in (each.y, each.low, each.high)
        for value in values or ()
    ]
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
        parts.append(
            void("line", class_="grid", x1=_LEFT, x2=right, y1=y.at(value), y2=y.at(value))
        )
        parts.append(
            tag("text", y.write(value), x=_LEFT - 7, y=y.at(value), dy="0.32em", text_anchor="end")
        )
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
            role="img",
            aria_label=words,
            data_p="",
            tabindex="0" if index == place == 0 else "-1",
        )
        for place, ((a, b), words) in enumerate(zip(ats, series.words, strict=True))
    ]
    line = void("path", class_=_stroke_of(index), d=path)
    return tag("g", line, *points, data_group="")


def _stroke_of(index: int) -> str:
    return f"curve c{index % COLOURS} dash{index // COLOURS % 3}"


def _mark_of(index: int) -> str:
    return _MARKS[index % len(_MARKS)]
