"""Settings by two of their figures: a point each, deviations over seeds, and the Pareto front; or
figures over a swept field.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile, zip_longest
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError, near
from simsplit.report.along import Along, along, joined, words_of_ends
from simsplit.report.grouping import Entry, in_words
from simsplit.report.numbers import frame, settings
from simsplit.report.tables import Better

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
"""Of Okabe and Ito, and grey: told apart by colour-blind readers too."""
_MARKS = "osD^vPX"
_FRONT = "0.35"
_PLACES = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]
"""Around a point, where its label may stand."""
Point = tuple[float, float]
_Place = tuple[float, float, str, str]
"""(dx, dy, horizontal, vertical alignment) of a name."""


def scatter(entries: Sequence[Entry], pair: str, figure: str, names: Sequence[str]) -> "Figure":
    """Draw what `X,Y` names, over a swept field also several Y; RunError where there is no such
    figure.

    `names` are what the settings are called, in the order of `frame`.
    """
    from matplotlib.figure import Figure

    table, numbers = frame(entries, figure), _numbers(entries)
    first, others = _wanted(pair, table, numbers)
    drawn = Figure(figsize=(6.4, 4.6), layout="constrained")
    ax = drawn.subplots()
    chosen: list[str] = []
    if first in numbers:
        given = _but(first, entries)
        x, y, families = _over_swept(table, (first, numbers[first]), others, given)
        _draw_lines(ax, x, y, families)
        _draw_points(ax, x, y, families)
    else:
        known = _known(table, [first, *others])
        x, y = along(known, first), along(known, others[0])
        families, chosen = _families(entries), [names[index] for index in known.index]
        _draw_front(ax, x, y)
        _draw_points(ax, x, y, [families[index] for index in known.index])
    _draw_chance(ax, x, y)
    ax.set(xlabel=x.label(), ylabel=y.label())
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(0.12)
    _legend(ax)
    if chosen:
        _label(ax, list(zip(x.means, y.means, strict=True)), chosen, _corners(x, y))
    return drawn


def front(points: Sequence[Point], ways: tuple[Better, Better]) -> list[int]:
    """Those that no other is better than, or as good in one and better in the other; by x."""
    signs = [1 if way == "more" else -1 for way in ways]
    scores = [(a * signs[0], b * signs[1]) for a, b in points]
    kept = [
        index
        for index, (a, b) in enumerate(scores)
        if not any(c >= a and d >= b and (c, d) != (a, b) for c, d in scores)
    ]
    return sorted(kept, key=lambda index: points[index])


def _over_swept(
    table: "pd.DataFrame",
    swept: tuple[str, Sequence[float]],
    figures: Sequence[str],
    given: Sequence[str],
) -> tuple[Along, Along, list[str]]:
    """The two axes, and of each point the line that it is on: its figure, and what is `given`."""
    field, values = swept
    end = _common_end(figures) if len(figures) > 1 else ""
    lines: list[str] = []
    at: list[float] = []
    parts = [_known(table, [name]) for name in figures]
    for name, known in zip(figures, parts, strict=True):
        own = name.removesuffix(end) if len(figures) > 1 else ""
        lines += [", ".join(filter(None, (own, given[index]))) for index in known.index]
        at += [values[index] for index in known.index]
    y = joined(
        [along(each, name, figures) for each, name in zip(parts, figures, strict=True)], end[1:]
    )
    return Along(field, at, [0.0] * len(at)), y, lines


def _known(table: "pd.DataFrame", names: Sequence[str]) -> "pd.DataFrame":
    """The settings that have these figures; RunError where there is none."""
    known = table.dropna(subset=[f"{name}_mean" for name in names])
    if known.empty:
        raise RunError(f"--plot: no setting has {' and '.join(names)}")
    return known


def _common_end(names: Sequence[str]) -> str:
    """The words that all names end with, and the line before them: `_ap_prompt`. Each name has at
    least a word of its own.
    """
    for end in words_of_ends():
        if all(name.endswith(f"_{end}") for name in names):
            return f"_{end}"
    turned = [name.split("_")[:0:-1] for name in names]
    alike = list(takewhile(lambda words: len(set(words)) == 1, zip(*turned, strict=False)))
    return "".join(f"_{words[0]}" for words in reversed(alike))


def _numbers(entries: Sequence[Entry]) -> dict[str, list[float]]:
    """What tells settings apart and is a number in all of them, by its name in tables."""
    labels, found = [label for label, _ in settings(entries)], {}
    for name in dict.fromkeys(name for label in labels for name in label):
        try:
            found[name] = [float(label[name]) for label in labels]
        except (KeyError, ValueError):
            continue
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def _but(name: str, entries: Sequence[Entry]) -> list[str]:
    """What tells settings apart beside a swept field: the points of a line have it in common."""
    labels = [label for label, _ in settings(entries)]
    others = [n for n in dict.fromkeys(n for label in labels for n in label) if n != name]
    if len({label.get("run") for label in labels}) == len(labels):
        others = [n for n in others if n != "run"]  # runs of no sweep have names of their own
    given = {label[name] for label in labels}
    differ = [  # not what is swept along with it
        n for n in others if len({(label[name], label.get(n, "")) for label in labels}) > len(given)
    ]
    return [in_words({n: label.get(n, "") for n in differ}) for label in labels]


def _wanted(
    pair: str, table: "pd.DataFrame", numbers: Mapping[str, Sequence[float]]
) -> tuple[str, list[str]]:
    """The two figures, or a swept field and figures over it; RunError names what there is."""
    ends = "_mean"
    known = [str(name).removesuffix(ends) for name in table.columns if str(name).endswith(ends)]
    x, *ys = (part.strip() for part in pair.split(","))
    if not ys or not all((x, *ys)):
        raise RunError(f"--plot takes X,Y, got '{pair}'; allowed: {', '.join(known)}")
    x = next((name for name in numbers if x == name or x.endswith(f".{name}")), x)
    for name in ys if x in numbers else (x, *ys):
        if name not in known:
            known = [*known, *numbers] if name == x else known
            hint = near(name, known) or _holding(name, known) or ","
            raise RunError(f"--plot: unknown '{name}'{hint} allowed: {', '.join(known)}")
    if len(ys) > 1 and x not in numbers:
        raise RunError(f"--plot: several figures are drawn over a swept field, and {x} is none")
    return x, ys


def _holding(name: str, known: Sequence[str]) -> str:
    """`accuracy` is near `test_accuracy`, which is too long for `near`."""
    found = [each for each in known if name in each]
    return f", did you mean '{found[0]}'?" if found else ""


def _families(entries: Sequence[Entry]) -> list[str]:
    """The kinds of each setting's methods, by which points are coloured."""
    return [
        " + ".join(method["kind"] for method in row.entries[0].scenario["method"]) or "raw"
        for _, row in settings(entries)
    ]


def _draw_points(ax: "Axes", x: Along, y: Along, families: Sequence[str]) -> None:
    """A colour and mark a family, if a method has several settings; hollow off the front."""
    kept = set(_kept(x, y) or range(len(families)))
    known = list(dict.fromkeys(families))
    told = any(families.count(family) > 1 for family in known if family != "raw")
    bars: Mapping[str, Any] = {"ecolor": "0.6", "elinewidth": 1, "capsize": 2}
    for index, family in enumerate(families):
        number = known.index(family) if told else 0
        colour = _COLOURS[number % len(_COLOURS)]
        mark = _MARKS[(number + number // len(_COLOURS)) % len(_MARKS)]  # no pair comes twice
        first = told and families.index(family) == index
        if first:  # filled in the legend, whether on the front or not
            ax.plot([], [], mark, color=colour, label=family)
        spread = (y.deviations[index] or None, x.deviations[index] or None)
        ax.errorbar(x.means[index], y.means[index], *spread, fmt=mark, color=colour,
                    mfc=colour if index in kept else "white", ms=6, zorder=3, **bars)  # fmt: skip


def _kept(x: Along, y: Along) -> list[int]:
    """Who is on the front; nobody where there is none."""
    if x.better is None or y.better is None:
        return []
    return front(list(zip(x.means, y.means, strict=True)), (x.better, y.better))


def _draw_lines(ax: "Axes", x: Along, y: Along, families: Sequence[str]) -> None:
    """Through the settings that differ in the swept field alone."""
    for number, family in enumerate(dict.fromkeys(families)):
        points = sorted(
            (x.means[index], y.means[index]) for index, one in enumerate(families) if one == family
        )
        colour = _COLOURS[number % len(_COLOURS)]
        ax.plot(*zip(*points, strict=True), color=colour, lw=1, zorder=1)


def _draw_front(ax: "Axes", x: Along, y: Along) -> None:
    """The Pareto front in steps: between two settings nobody has shown anything better."""
    if not _kept(x, y):
        lacking = " and ".join(each.name for each in (x, y) if each.better is None)
        ax.plot([], [], " ", label=f"no Pareto front: neither way is better of {lacking}")
        return
    corners = zip(*_corners(x, y), strict=True)
    ax.plot(*corners, color=_FRONT, lw=1, ls="--", label="Pareto front (filled)", zorder=1)


def _corners(x: Along, y: Along) -> list[Point]:
    """Where the front's steps turn, its settings among them."""
    points = [(x.means[index], y.means[index]) for index in _kept(x, y)]
    turns = [
        (after[0], before[1]) if x.better == "less" else (before[0], after[1])
        for before, after in pairwise(points)
    ]
    return [each for pair in zip_longest(points, turns) for each in pair if each is not None]


def _draw_chance(ax: "Axes", x: Along, y: Along) -> None:
    """What chance tells, beside a leak."""
    for each, draw in ((x, ax.axvspan), (y, ax.axhspan)):
        if each.chance is not None:
            draw(*each.chance, color="0.75", lw=1.5, zorder=0, label="chance")


def _legend(ax: "Axes") -> None:
    """Below the axes, where it hides nothing."""
    handles, names = ax.get_legend_handles_labels()
    if not names:
        return
    ax.legend(handles, names, frameon=False, fontsize=8, ncols=min(4, len(names)),
              loc="upper center", bbox_to_anchor=(0.5, -0.14))  # fmt: skip


def _label(
    ax: "Axes", points: Sequence[Point], names: Sequence[str], line: Sequence[Point]
) -> None:
    """Names beside their points, none over another name, point or the line; further away where it
    is full.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    figure: Any = ax.figure
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()  # where points stand is known once the layout is
    figure.set_layout_engine(None)  # names must not move them again
    at = [tuple(map(float, ax.transData.transform(point))) for point in points]
    taken: list[Any] = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    turns = [tuple(map(float, ax.transData.transform(point))) for point in line]
    for (x0, y0), (x1, y1) in pairwise(turns):
        ends = (min(x0, x1) - 1, min(y0, y1) - 1, max(x0, x1) + 1, max(y0, y1) + 1)
        taken.append(Bbox.from_extents(*ends))
    for point, name in zip(points, names, strict=True):
        text = ax.annotate(name, point, (0, 0), textcoords="offset points", fontsize=8)
        box, distance = _placed(text, taken, ax.get_window_extent(), canvas.get_renderer())
        taken.append(box)
        if distance > 20:
            thread = {"arrowstyle": "-", "color": "0.6", "lw": 0.6}
            away = text.get_position()
            ax.annotate("", point, away, textcoords="offset points", arrowprops=thread)


def _placed(text: Any, taken: Sequence[Any], inside: Any, renderer: Any) -> tuple[Any, float]:  # noqa: ANN401
    """Put a name where it covers least of what is there; its box, and how far away it stands."""

    def put(place: _Place) -> Any:  # noqa: ANN401 - one of matplotlib's boxes
        dx, dy, across, up = place
        text.set(position=(dx, dy), ha=across, va=up)
        return text.get_window_extent(renderer)

    costs: dict[_Place, float] = {}
    for place in _offsets():
        box = put(place)
        costs[place] = sum(_shared(box, other) for other in taken) + _outside(box, inside)
        if not costs[place]:
            break
    least = min(costs, key=lambda place: costs[place])
    return put(least), max(abs(least[0]), abs(least[1]))


def _offsets() -> Iterator[_Place]:
    """Places for a label around its point, those nearest to the point first."""
    across, up = {1: "left", 0: "center", -1: "right"}, {1: "bottom", 0: "center", -1: "top"}
    for distance in (9, 18, 30, 46, 66):
        for dx, dy in _PLACES:
            yield dx * distance, dy * distance, across[dx], up[dy]


def _shared(one: Any, other: Any) -> float:  # noqa: ANN401 - matplotlib's boxes
    """The area that two boxes share."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    tall = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(0, wide) * max(0, tall))


def _outside(box: Any, frame_box: Any) -> float:  # noqa: ANN401 - matplotlib's boxes
    """The area of a box that is out of the axes."""
    return float(box.width * box.height) - _shared(box, frame_box)
