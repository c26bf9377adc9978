"""Settings of many fields are drawn as lines over parallel axes, the last one the figure's."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from simsplit.errors import RunError
from simsplit.metrics import format_column
from simsplit.report.canvas import make_shown_figure
from simsplit.report.ranking import Ranking
from simsplit.report.scatter import choose_unit, is_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
_NAMED = 6
"""Values of a field that are written at its axis one by one; of more numbers, some are."""
_BEST, _TIED, _OTHER = ("#d55e00", 2.4), ("#0072b2", 1.2), ("0.7", 0.9)
"""The colour and the width of lines."""


class _Axis(NamedTuple):
    """A field's axis: where each setting lies on it, and what is written at it."""

    title: str
    places: Sequence[float]
    """From 0, at the foot, to 1."""
    ticks: Sequence[tuple[float, str]]


def draw_parallel(ranking: Ranking) -> "Figure":
    """Draw each setting as a line over one axis a field: the best, those as good, and the rest."""
    names = list(ranking.best.label)
    if not names:
        raise RunError("--plot: there is one setting, and so no field to draw")
    axes = [_build_axis(name, [place.label[name] for place in ranking.places]) for name in names]
    scale, unit = choose_unit(ranking.by, ranking.best.mean)
    means = [scale * place.mean for place in ranking.places]
    axes.append(_build_numeric(f"{format_column(ranking.by)}{unit}", means))
    picture = make_shown_figure(max(6.4, 1.7 * len(axes)), 4.8)
    ax = picture.subplots()
    # The best is drawn last, above the others.
    for index in reversed(range(len(ranking.places))):
        colour, wide = _OTHER if ranking.places[index].is_resolved else _TIED
        colour, wide = _BEST if index == 0 else (colour, wide)
        ax.plot([axis.places[index] for axis in axes], color=colour, lw=wide, marker="o", ms=3)
    _draw_frame(ax, axes, ranking)
    return picture


def _build_axis(title: str, words: Sequence[str]) -> _Axis:
    try:
        return _build_numeric(title, [float(word) for word in words])
    except ValueError:
        kinds = list(dict.fromkeys(words))
        at = {kind: place / max(1, len(kinds) - 1) for place, kind in enumerate(kinds)}
        return _Axis(title, [at[word] for word in words], [(at[kind], kind) for kind in kinds])


def _build_numeric(title: str, values: Sequence[float]) -> _Axis:
    log = is_log(values)
    low, high = min(values), max(values)

    def put(value: float) -> float:
        if low == high:
            return 0.5
        if log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    distinct = sorted(set(values))
    if len(distinct) > _NAMED:
        ends = [n / 4 for n in range(5)]
        distinct = [low * (high / low) ** n if log else low + n * (high - low) for n in ends]
    ticks = [(put(value), f"{value:.3g}") for value in distinct]
    return _Axis(f"{title} (log)" if log else title, [put(value) for value in values], ticks)


def _draw_frame(ax: "Axes", axes: Sequence[_Axis], ranking: Ranking) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    for number, axis in enumerate(axes):
        ax.axvline(number, color="0.3", lw=0.8, zorder=0)
        for height, words in axis.ticks:
            ax.annotate(words, (number, height), xytext=(5, 0), textcoords="offset points",
                        fontsize=8, va="center", bbox=box)  # fmt: skip
    ax.set_xticks(range(len(axes)), [axis.title for axis in axes])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(-0.15, len(axes) - 1 + 0.45)
    ax.set_title(f"{len(ranking.places)} settings, ranked by {format_column(ranking.by)}")
    others = len(ranking.places) - 1 - ranking.ties
    looks = ((_BEST, 1, "the best"), (_TIED, ranking.ties, "may be as good"))
    for (colour, wide), count, words in (*looks, (_OTHER, others, "worse")):
        if count:
            ax.plot([], [], color=colour, lw=wide, label=words)
    ax.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.08))
