"""Settings by two of their figures: a point each, deviations over seeds, and the Pareto front."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError, near
from simsplit.report.grouping import Entry
from simsplit.report.numbers import better as better_way
from simsplit.report.numbers import frame
from simsplit.report.tables import Better

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _FRONT = "#0072b2", "#d55e00"
_PLACES = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]
"""Around a point, where its label may stand."""
_BYTES = 2**20
Point = tuple[float, float]
_Place = tuple[float, float, str, str]
"""(dx, dy, horizontal, vertical alignment) of a name."""


@dataclass(frozen=True)
class _Along:
    """One of the two figures."""

    name: str
    means: Sequence[float]
    deviations: Sequence[float]

    @property
    def better(self) -> Better | None:
        """Which way is better."""
        return better_way(self.name)

    @property
    def label(self) -> str:
        """As an axis names it."""
        unit = " (MiB)" if self.name.startswith("bytes") else ""
        return f"{self.name}{unit}"


def scatter(entries: Sequence[Entry], pair: str, figure: str, names: Sequence[str]) -> "Figure":
    """Draw what `X,Y` names; RunError where there is no such figure.

    `names` are what the settings are called, in the order of `frame`.
    """
    from matplotlib.figure import Figure

    table = frame(entries, figure)
    wanted = _wanted(pair, table)
    known = table.dropna(subset=[f"{name}_mean" for name in wanted])
    if known.empty:
        raise RunError(f"--plot: no setting has both {wanted[0]} and {wanted[1]}")
    x, y = (_along(known, name) for name in wanted)
    drawn = Figure(figsize=(7.5, 5.5), layout="constrained")
    ax = drawn.subplots()
    told = "mean of a setting, deviation over seeds"
    bars: Mapping[str, Any] = {"ecolor": "0.6", "elinewidth": 1, "capsize": 2}
    ax.errorbar(x.means, y.means, y.deviations, x.deviations, "o", color=_BLUE, label=told, **bars)
    _draw_front(ax, x, y)
    ax.set(xlabel=x.label, ylabel=y.label)
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    ax.margins(0.12)
    ax.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    chosen = [names[index] for index in known.index]
    _label(ax, list(zip(x.means, y.means, strict=True)), chosen)
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


def _wanted(pair: str, table: "pd.DataFrame") -> tuple[str, str]:
    """The two figures; RunError names what there is."""
    ends = "_mean"
    known = [str(name).removesuffix(ends) for name in table.columns if str(name).endswith(ends)]
    x, comma, y = (part.strip() for part in pair.partition(","))
    if not comma or not x or not y:
        raise RunError(f"--plot takes X,Y, got '{pair}'; allowed: {', '.join(known)}")
    for name in (x, y):
        if name not in known:
            hint = near(name, known) or _holding(name, known) or ","
            raise RunError(f"--plot: unknown '{name}'{hint} allowed: {', '.join(known)}")
    return x, y


def _holding(name: str, known: Sequence[str]) -> str:
    """`accuracy` is near `test_accuracy`, which is too long for `near`."""
    found = [each for each in known if name in each]
    return f", did you mean '{found[0]}'?" if found else ""


def _along(table: "pd.DataFrame", name: str) -> _Along:
    scale = _BYTES if name.startswith("bytes") else 1
    means, deviations = (table[f"{name}_{what}"].astype(float) / scale for what in ("mean", "std"))
    return _Along(name, means.tolist(), deviations.fillna(0).tolist())


def _draw_front(ax: "Axes", x: _Along, y: _Along) -> None:
    """The Pareto front as a line, and in the legend which way is better."""
    if x.better is None or y.better is None:
        lacking = " and ".join(each.name for each in (x, y) if each.better is None)
        ax.plot([], [], " ", label=f"no Pareto front: neither way is better of {lacking}")
        return
    points = list(zip(x.means, y.means, strict=True))
    kept = [points[index] for index in front(points, (x.better, y.better))]
    told = f"Pareto front: {x.better} {x.name} and {y.better} {y.name} are better"
    ax.plot(*zip(*kept, strict=True), color=_FRONT, lw=1.2, ls="--", marker="o", mfc="none", ms=11,
            label=told, zorder=1)  # fmt: skip


def _label(ax: "Axes", points: Sequence[Point], names: Sequence[str]) -> None:
    """Names beside their points, none over another name or point; further away where it is full."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    figure: Any = ax.figure
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()  # where points stand is known once the layout is
    figure.set_layout_engine(None)  # names must not move them again
    at = [tuple(map(float, ax.transData.transform(point))) for point in points]
    taken: list[Any] = [Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    for point, name in zip(points, names, strict=True):
        text = ax.annotate(name, point, (0, 0), textcoords="offset points", fontsize=8)
        box, distance = _placed(text, taken, ax.get_window_extent(), canvas.get_renderer())
        taken.append(box)
        if distance > 20:
            line = {"arrowstyle": "-", "color": "0.6", "lw": 0.6}
            ax.annotate("", point, text.get_position(), textcoords="offset points", arrowprops=line)


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
