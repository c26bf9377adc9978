"""`compare --plot` draws settings by two figures, with deviations and the Pareto front.

If the first of the two is a swept field, the figures are drawn as lines over its values instead. An
axis has one figure of all settings, with its words, its unit and its better way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product, takewhile, zip_longest
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError, suggest
from simsplit.metrics import METRICS, Better, find_better, find_metric
from simsplit.report.canvas import COLOURS, MARKS, escape_text, make_shown_figure
from simsplit.report.grouping import Entry, write_label
from simsplit.report.numbers import label_settings, make_frame

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
_LEAK, _CHANCE = "_leak", "_chance"
"""Ends of names: of a share that an attack tells, and of what chance tells."""
_ALIKE = 5
"""If chance differs by more points than this, the settings are of different tasks."""
LOG_SPAN = 30.0
"""From this ratio of the largest value to the smallest on, an axis is logarithmic."""


@dataclass(frozen=True)
class Along:
    """A figure of each setting: its mean and deviation over seeds, in the axis' unit."""

    name: str
    means: Sequence[float]
    deviations: Sequence[float]
    chance: tuple[float, float] | None = None
    """A leak's least and greatest chance over settings, if these are close to each other."""
    called: str | None = None
    """The common part of the names of several figures on one axis."""
    unit: str = ""
    """The unit, written after the words."""

    @property
    def better(self) -> Better | None:
        """The better way, more or less, or None."""
        return find_better(self.name)

    @property
    def words(self) -> str:
        """The figure's name in words."""
        name = self.name if self.called is None else self.called
        for each in METRICS.values():
            if each.axis and name.endswith(each.name):
                whose = name.removesuffix(each.name).strip("_").replace("_", " ")
                return f"{each.axis} by {whose}" if whose else each.axis
        return name.replace("_", " ")

    def label(self) -> str:
        """Return the axis' label: the words, the unit, and an arrow towards better values."""
        if self.better is None:
            return f"{self.words}{self.unit}"
        hint = "better →" if self.better == "more" else "← better"
        return f"{self.words}{self.unit}   ({hint})"


def read_along(table: "pd.DataFrame", name: str, beside: Sequence[str] = ()) -> Along:
    """Read a figure from the rows of `numbers.frame`; the figures in `beside` share its axis."""
    largest = max(float(table[f"{each}_mean"].max()) for each in (name, *beside))
    scale, unit = choose_unit(name, largest)
    means, deviations = (
        (table[f"{name}_{what}"].astype(float) * scale) for what in ("mean", "std")
    )
    between = None
    floor = f"{name.removesuffix(_LEAK)}{_CHANCE}_mean"
    if name.endswith(_LEAK) and floor in table:
        known = table[floor].dropna().astype(float) * scale
        if known.max() - known.min() <= _ALIKE:
            between = (float(known.min()), float(known.max()))
    return Along(name, means.tolist(), deviations.fillna(0).tolist(), between, unit=unit)


def join_figures(figures: Sequence[Along], called: str) -> Along:
    """Join several figures to one axis; `called` is the common part of their names."""
    if len(figures) == 1:
        return figures[0]
    if len({each.unit for each in figures}) > 1:
        raise RunError("--plot: these figures have no unit in common; draw them one by one")
    means, deviations = (
        [value for each in figures for value in getattr(each, what)]
        for what in ("means", "deviations")
    )
    return Along(figures[0].name, means, deviations, called=called, unit=figures[0].unit)


_MANY_BYTES = 10 * 2**30
"""From this many bytes on, an axis in MiB would have too many digits."""


def choose_unit(name: str, largest: float) -> tuple[float, str]:
    """Return the factor that converts a figure to its axis' unit, and the unit's words."""
    if name.startswith("bytes") and name != "bytes_ratio":
        return (1 / 2**30, ", GiB") if largest >= _MANY_BYTES else (1 / 2**20, ", MiB")
    metric = find_metric(name)
    return (100, ", %") if metric is not None and metric.is_share else (1, "")


def is_log(values: Sequence[float]) -> bool:
    """Return whether a field's values belong on a logarithmic axis."""
    low, high = min(values), max(values)
    return low > 0 and high / low >= LOG_SPAN and len(set(values)) > 2


def scatter(entries: Sequence[Entry], pair: str, figure: str, names: Sequence[str]) -> "Figure":
    """Draw the figures that `pair` names: `X,Y`, or `X,Y,Y` over a swept field.

    Raise RunError for a figure that is not known, or that no setting has. `names` are the settings'
    names, in the order of `make_frame`.
    """
    settings = label_settings(entries)
    labels = [label for label, _ in settings]
    table, numbers = make_frame(entries, figure), _find_numeric_fields(labels)
    first, others = _parse_pair(pair, table, numbers)
    picture = make_shown_figure(6.4, 4.6)
    ax = picture.subplots()
    chosen: list[str] = []
    if first in numbers:
        given = _describe_rest(first, labels)
        x, y, families = _place_over_swept(table, (first, numbers[first]), others, given)
        _draw_lines(ax, x, y, families)
        _draw_points(ax, x, y, families)
        if is_log(x.means):
            ax.set_xscale("log")
    else:
        known = _keep_known(table, [first, *others])
        x, y = read_along(known, first), read_along(known, others[0])
        chosen = [names[index] for index in known.index]
        methods = [row.entries[0].scenario["method"] for _, row in settings]
        kinds = [" + ".join(each["kind"] for each in methods[index]) for index in known.index]
        _draw_front(ax, x, y)
        _draw_points(ax, x, y, [each or "raw" for each in kinds])
    for each, draw in ((x, ax.axvspan), (y, ax.axhspan)):
        if each.chance is not None:
            draw(*each.chance, color="0.75", lw=1.5, zorder=0, label="chance")
    ax.set(xlabel=x.label(), ylabel=y.label())
    ax.set_title(f"{y.words} over {x.words}", fontsize=10)
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(0.12)
    handles, words = ax.get_legend_handles_labels()
    if words:  # below the axes, where it hides nothing
        ax.legend(handles, words, frameon=False, fontsize=8, ncols=min(4, len(words)),
                  loc="upper center", bbox_to_anchor=(0.5, -0.14))  # fmt: skip
    if chosen:
        lines = [_trace_front(x, y)]
        for a, b, wide, tall in zip(x.means, y.means, x.deviations, y.deviations, strict=True):
            lines += [[(a - wide, b), (a + wide, b)], [(a, b - tall), (a, b + tall)]]
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
    """Return the words that all names end with beside words of their own, such as `_ap_prompt`."""
    for each in METRICS.values():
        if each.axis and all(name.endswith(f"_{each.name}") for name in names):
            return f"_{each.name}"
    turned = [name.split("_")[:0:-1] for name in names]
    alike = list(takewhile(lambda words: len(set(words)) == 1, zip(*turned, strict=False)))
    return "".join(f"_{words[0]}" for words in reversed(alike))


def _find_numeric_fields(labels: Sequence[Mapping[str, str]]) -> dict[str, list[float]]:
    """Return each field that differs between settings and is a number in all, with its values."""
    numbers = {}
    for name in dict.fromkeys(name for label in labels for name in label):
        try:
            numbers[name] = [float(label[name]) for label in labels]
        except (KeyError, ValueError):
            continue
    return {name: values for name, values in numbers.items() if len(set(values)) > 1}


def _describe_rest(name: str, labels: Sequence[Mapping[str, str]]) -> list[str]:
    """Return for each setting the values that differ beside the swept field, one for each line."""
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
    """Return x, a figure or a swept field, and the y figures; raise RunError if one is unknown."""
    columns = map(str, table.columns)
    known = [name.removesuffix("_mean") for name in columns if name.endswith("_mean")]
    x, *ys = (part.strip() for part in pair.split(","))
    if not ys or not all((x, *ys)):
        raise RunError(f"--plot takes X,Y, got '{pair}'; allowed: {', '.join(known)}")
    x = next((name for name in numbers if x == name or x.endswith(f".{name}")), x)
    for name in ys if x in numbers else (x, *ys):
        if name not in known:
            known = [*known, *numbers] if name == x else known
            # `suggest` finds no `test_accuracy` for `accuracy`: their lengths differ too much
            near = (f", did you mean '{containing}'?" for containing in known if name in containing)
            hint = suggest(name, known) or next(near, ",")
            raise RunError(f"--plot: unknown '{name}'{hint} allowed: {', '.join(known)}")
    if len(ys) > 1 and x not in numbers:
        raise RunError(f"--plot: several figures are drawn over a swept field, and {x} is none")
    return x, ys


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
    places = list(zip(families, zip(x.means, y.means, strict=True), strict=True))
    for number, family in enumerate(dict.fromkeys(families)):
        points = sorted(point for one, point in places if one == family)
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
        text.set(position=place[:2], ha=place[2], va=place[3])
        return text.get_window_extent(renderer)

    costs: dict[_Place, float] = {}
    across, up = {1: "left", 0: "center", -1: "right"}, {1: "bottom", 0: "center", -1: "top"}
    for away, (dx, dy) in product((9, 18, 30, 46, 66), _PLACES):  # the nearest first
        place = dx * away, dy * away, across[dx], up[dy]
        box = put(place)
        covered = sum(_measure_overlap(box, other) for other in taken)
        outside = float(box.width * box.height) - _measure_overlap(box, inside)
        costs[place] = covered + outside
        if not costs[place]:
            break
    least = min(costs, key=lambda place: costs[place])
    return put(least), max(abs(least[0]), abs(least[1]))


def _measure_overlap(one: Any, other: Any) -> float:  # noqa: ANN401 - matplotlib's boxes
    """Return the area that two boxes share."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    tall = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(0, wide) * max(0, tall))
