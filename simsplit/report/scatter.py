"""`compare --plot` draws settings by two figures, with deviations and the Pareto front.

If the first of the two is a swept field, the figures are drawn as lines over its values instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile, zip_longest
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError, suggest
from simsplit.metrics import Better
from simsplit.report.along import Along, join_figures, list_words_of_ends, read_along
from simsplit.report.canvas import COLOURS, MARKS, escape_text, make_shown_figure
from simsplit.report.grouping import Entry, write_label
from simsplit.report.numbers import label_settings, make_frame
from simsplit.report.parallel import is_log

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FRONT = "0.35"
_PLACES = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]
"""Directions from a point in which its label may stand."""
Point = tuple[float, float]
_Place = tuple[float, float, str, str]
"""(dx, dy, horizontal alignment, vertical alignment) of a label."""


def scatter(entries: Sequence[Entry], pair: str, figure: str, names: Sequence[str]) -> "Figure":
    """Draw the figures that `pair` names as `X,Y`; raise RunError if a setting has no such figure.

    Over a swept field, `pair` may name several figures: `X,Y,Y`. `names` are the settings' names,
    in the order of `frame`.
    """
    table, numbers = make_frame(entries, figure), _find_numeric_fields(entries)
    first, others = _parse_pair(pair, table, numbers)
    picture = make_shown_figure(6.4, 4.6)
    ax = picture.subplots()
    chosen: list[str] = []
    if first in numbers:
        given = _describe_rest(first, entries)
        x, y, families = _place_over_swept(table, (first, numbers[first]), others, given)
        _draw_lines(ax, x, y, families)
        _draw_points(ax, x, y, families)
        if is_log(x.means):
            ax.set_xscale("log")
    else:
        known = _keep_known(table, [first, *others])
        x, y = read_along(known, first), read_along(known, others[0])
        families, chosen = _name_families(entries), [names[index] for index in known.index]
        _draw_front(ax, x, y)
        _draw_points(ax, x, y, [families[index] for index in known.index])
    _draw_chance(ax, x, y)
    ax.set(xlabel=x.label(), ylabel=y.label())
    ax.set_title(f"{y.words} over {x.words}", fontsize=10)
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(0.12)
    _draw_legend(ax)
    if chosen:
        lines = [_trace_front(x, y), *_trace_bars(x, y)]
        _label_points(ax, list(zip(x.means, y.means, strict=True)), chosen, lines)
    return picture


def find_front(points: Sequence[Point], ways: tuple[Better, Better]) -> list[int]:
    """Return the indices of the points on the Pareto front, ordered by x.

    A point is on it if no other point is at least as good in both figures and better in one.
    """
    signs = [1 if way == "more" else -1 for way in ways]
    scores = [(a * signs[0], b * signs[1]) for a, b in points]
    kept = [
        index
        for index, (a, b) in enumerate(scores)
        if not any(c >= a and d >= b and (c, d) != (a, b) for c, d in scores)
    ]
    return sorted(kept, key=lambda index: points[index])


def _place_over_swept(
    table: "pd.DataFrame",
    swept: tuple[str, Sequence[float]],
    figures: Sequence[str],
    given: Sequence[str],
) -> tuple[Along, Along, list[str]]:
    """Return both axes and the name of each point's line: its figure, and the values `given`."""
    field, values = swept
    end = _find_common_end(figures) if len(figures) > 1 else ""
    lines: list[str] = []
    at: list[float] = []
    parts = [_keep_known(table, [name]) for name in figures]
    for name, known in zip(figures, parts, strict=True):
        own = name.removesuffix(end) if len(figures) > 1 else ""
        lines += [", ".join(filter(None, (own, given[index]))) for index in known.index]
        at += [values[index] for index in known.index]
    y = join_figures(
        [read_along(each, name, figures) for each, name in zip(parts, figures, strict=True)],
        end[1:],
    )
    return Along(field, at, [0.0] * len(at)), y, lines


def _keep_known(table: "pd.DataFrame", names: Sequence[str]) -> "pd.DataFrame":
    """Return the rows of settings that have all these figures; raise RunError if there is none."""
    known = table.dropna(subset=[f"{name}_mean" for name in names])
    if known.empty:
        raise RunError(f"--plot: no setting has {' and '.join(names)}")
    return known


def _find_common_end(names: Sequence[str]) -> str:
    """Return the words that all names end with, such as `_ap_prompt`, or an empty string.

    Each name keeps at least one word of its own.
    """
    for end in list_words_of_ends():
        if all(name.endswith(f"_{end}") for name in names):
            return f"_{end}"
    turned = [name.split("_")[:0:-1] for name in names]
    alike = list(takewhile(lambda words: len(set(words)) == 1, zip(*turned, strict=False)))
    return "".join(f"_{words[0]}" for words in reversed(alike))


def _find_numeric_fields(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """Return each field that differs between settings and is a number in all, with its values."""
    labels, numbers = [label for label, _ in label_settings(entries)], {}
    for name in dict.fromkeys(name for label in labels for name in label):
        try:
            numbers[name] = [float(label[name]) for label in labels]
        except (KeyError, ValueError):
            continue
    return {name: values for name, values in numbers.items() if len(set(values)) > 1}


def _describe_rest(name: str, entries: Sequence[Entry]) -> list[str]:
    """Return for each setting the values that differ beside the swept field `name`.

    Points that share these values are joined by one line.
    """
    labels = [label for label, _ in label_settings(entries)]
    others = [n for n in dict.fromkeys(n for label in labels for n in label) if n != name]
    if len({label.get("run") for label in labels}) == len(labels):
        # runs outside a sweep all have different names, so each would get a line of its own
        others = [n for n in others if n != "run"]
    given = {label[name] for label in labels}
    differ = [  # without fields that change together with the swept one
        n for n in others if len({(label[name], label.get(n, "")) for label in labels}) > len(given)
    ]
    return [escape_text(write_label({n: label.get(n, "") for n in differ})) for label in labels]


def _parse_pair(
    pair: str, table: "pd.DataFrame", numbers: Mapping[str, Sequence[float]]
) -> tuple[str, list[str]]:
    """Return the x and the y figures that `pair` names; raise RunError if one is unknown.

    x may also be a swept field; then several y figures are allowed.
    """
    ends = "_mean"
    known = [str(name).removesuffix(ends) for name in table.columns if str(name).endswith(ends)]
    x, *ys = (part.strip() for part in pair.split(","))
    if not ys or not all((x, *ys)):
        raise RunError(f"--plot takes X,Y, got '{pair}'; allowed: {', '.join(known)}")
    x = next((name for name in numbers if x == name or x.endswith(f".{name}")), x)
    for name in ys if x in numbers else (x, *ys):
        if name not in known:
            known = [*known, *numbers] if name == x else known
            hint = suggest(name, known) or _suggest_containing(name, known) or ","
            raise RunError(f"--plot: unknown '{name}'{hint} allowed: {', '.join(known)}")
    if len(ys) > 1 and x not in numbers:
        raise RunError(f"--plot: several figures are drawn over a swept field, and {x} is none")
    return x, ys


def _suggest_containing(name: str, known: Sequence[str]) -> str:
    """Return a hint at a known name that contains `name`, or an empty string.

    `near` finds no `test_accuracy` for `accuracy`, because their lengths differ too much.
    """
    containing = [each for each in known if name in each]
    return f", did you mean '{containing[0]}'?" if containing else ""


def _name_families(entries: Sequence[Entry]) -> list[str]:
    """Return the kinds of each setting's methods; points are coloured by them."""
    return [
        " + ".join(method["kind"] for method in row.entries[0].scenario["method"]) or "raw"
        for _, row in label_settings(entries)
    ]


def _draw_points(ax: "Axes", x: Along, y: Along, families: Sequence[str]) -> None:
    """Draw points, hollow off the front; families have colours and marks if one is repeated."""
    kept = set(_find_front_of(x, y) or range(len(families)))
    known = list(dict.fromkeys(families))
    in_legend = any(families.count(family) > 1 for family in known if family != "raw")
    bars: Mapping[str, Any] = {"ecolor": "0.6", "elinewidth": 1, "capsize": 2}
    for index, family in enumerate(families):
        number = known.index(family) if in_legend else 0
        colour = COLOURS[number % len(COLOURS)]
        mark = MARKS[(number + number // len(COLOURS)) % len(MARKS)]  # no pair comes twice
        first = in_legend and families.index(family) == index
        if first:  # the legend's mark is filled even if the family's first point is off the front
            ax.plot([], [], mark, color=colour, label=family)
        spread = (y.deviations[index] or None, x.deviations[index] or None)
        ax.errorbar(x.means[index], y.means[index], *spread, fmt=mark, color=colour,
                    mfc=colour if index in kept else "white", ms=6, zorder=3, **bars)  # fmt: skip


def _find_front_of(x: Along, y: Along) -> list[int]:
    """Return the indices of the points on the front, or none if an axis has no better way."""
    if x.better is None or y.better is None:
        return []
    return find_front(list(zip(x.means, y.means, strict=True)), (x.better, y.better))


def _draw_lines(ax: "Axes", x: Along, y: Along, families: Sequence[str]) -> None:
    """Draw a line through the settings that differ only in the swept field."""
    for number, family in enumerate(dict.fromkeys(families)):
        points = sorted(
            (x.means[index], y.means[index]) for index, one in enumerate(families) if one == family
        )
        colour = COLOURS[number % len(COLOURS)]
        ax.plot(*zip(*points, strict=True), color=colour, lw=1, zorder=1)


def _draw_front(ax: "Axes", x: Along, y: Along) -> None:
    """Draw the Pareto front in steps: no measured setting lies beyond them."""
    if not _find_front_of(x, y):
        lacking = " and ".join(each.name for each in (x, y) if each.better is None)
        ax.plot([], [], " ", label=f"no Pareto front: neither way is better of {lacking}")
        return
    corners = zip(*_trace_front(x, y), strict=True)
    ax.plot(*corners, color=_FRONT, lw=1, ls="--", label="Pareto front (filled)", zorder=1)


def _trace_front(x: Along, y: Along) -> list[Point]:
    """Return the corners of the front's steps, including its settings."""
    points = [(x.means[index], y.means[index]) for index in _find_front_of(x, y)]
    turns = [
        (after[0], before[1]) if x.better == "less" else (before[0], after[1])
        for before, after in pairwise(points)
    ]
    return [each for pair in zip_longest(points, turns) for each in pair if each is not None]


def _draw_chance(ax: "Axes", x: Along, y: Along) -> None:
    """Draw a band at the share of a leak that chance reaches."""
    for each, draw in ((x, ax.axvspan), (y, ax.axhspan)):
        if each.chance is not None:
            draw(*each.chance, color="0.75", lw=1.5, zorder=0, label="chance")


def _draw_legend(ax: "Axes") -> None:
    """Draw the legend below the axes, where it hides nothing."""
    handles, names = ax.get_legend_handles_labels()
    if not names:
        return
    ax.legend(handles, names, frameon=False, fontsize=8, ncols=min(4, len(names)),
              loc="upper center", bbox_to_anchor=(0.5, -0.14))  # fmt: skip


def _trace_bars(x: Along, y: Along) -> Iterator[list[Point]]:
    """Yield the ends of each point's two bars of deviations."""
    for a, b, wide, tall in zip(x.means, y.means, x.deviations, y.deviations, strict=True):
        yield [(a - wide, b), (a + wide, b)]
        yield [(a, b - tall), (a, b + tall)]


def _label_points(
    ax: "Axes", points: Sequence[Point], names: Sequence[str], lines: Sequence[Sequence[Point]]
) -> None:
    """Write names beside their points, further away where names, points or lines are dense."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    figure: Any = ax.figure
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()  # positions in pixels are known only after the layout
    figure.set_layout_engine(None)  # a layout with room for names would move the points
    at = [tuple(map(float, ax.transData.transform(point))) for point in points]
    taken: list[Any] = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    for line in lines:
        turns = [tuple(map(float, ax.transData.transform(point))) for point in line]
        for (x0, y0), (x1, y1) in pairwise(turns):
            ends = (min(x0, x1) - 1, min(y0, y1) - 1, max(x0, x1) + 1, max(y0, y1) + 1)
            taken.append(Bbox.from_extents(*ends))
    for point, name in zip(points, names, strict=True):
        text = ax.annotate(escape_text(name), point, (0, 0), textcoords="offset points", fontsize=8)
        box, distance = _place_label(text, taken, ax.get_window_extent(), canvas.get_renderer())
        taken.append(box)
        if distance > 20:
            thread = {"arrowstyle": "-", "color": "0.6", "lw": 0.6}
            away = text.get_position()
            ax.annotate("", point, away, textcoords="offset points", arrowprops=thread)


def _place_label(text: Any, taken: Sequence[Any], inside: Any, renderer: Any) -> tuple[Any, float]:  # noqa: ANN401
    """Place a name where it covers least; return its box and its distance from the point."""

    def put(place: _Place) -> Any:  # noqa: ANN401 - one of matplotlib's boxes
        dx, dy, across, up = place
        text.set(position=(dx, dy), ha=across, va=up)
        return text.get_window_extent(renderer)

    costs: dict[_Place, float] = {}
    for place in _generate_offsets():
        box = put(place)
        costs[place] = sum(_measure_overlap(box, other) for other in taken) + _measure_outside(
            box, inside
        )
        if not costs[place]:
            break
    least = min(costs, key=lambda place: costs[place])
    return put(least), max(abs(least[0]), abs(least[1]))


def _generate_offsets() -> Iterator[_Place]:
    """Yield places for a label around its point, nearest first."""
    across, up = {1: "left", 0: "center", -1: "right"}, {1: "bottom", 0: "center", -1: "top"}
    for distance in (9, 18, 30, 46, 66):
        for dx, dy in _PLACES:
            yield dx * distance, dy * distance, across[dx], up[dy]


def _measure_overlap(one: Any, other: Any) -> float:  # noqa: ANN401 - matplotlib's boxes
    """Return the area that two boxes share."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    tall = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(0, wide) * max(0, tall))


def _measure_outside(box: Any, frame_box: Any) -> float:  # noqa: ANN401 - matplotlib's boxes
    """Return the area of a box that lies outside the axes."""
    return float(box.width * box.height) - _measure_overlap(box, frame_box)
