"""A board is drawn as leak against utility: what a defence hides, and what it costs."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simsplit.boards.entries import Board
from simsplit.boards.scoring import Strength, half_of, mean_of, score_strengths
from simsplit.boards.track import NONE
from simsplit.errors import RunError
from simsplit.report.canvas import COLOURS, MARKS
from simsplit.report.scatter import find_front

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_AREA = 36.0
"""The area of a point that sends as many bytes as the undefended run, in square points."""
_NEAR = 5.0
"""How far from the undefended run's utility a strength may lie to stand in the panel of its own."""
_CROWD = 4
"""How many strengths lie near it before they have such a panel."""
_FAINT = 0.45
"""The opacity of intervals, so that points are seen through them."""


def draw_board(board: Board) -> "Figure":
    """Draw every strength of every defence, with 95 % intervals and the front of the best."""
    from matplotlib.figure import Figure

    strengths = [each for each in score_strengths(board) if each.is_complete]
    if not strengths:
        raise RunError(f"no defence of {board.name} is measured against every attack: no figure")
    near = _find_near(strengths)
    picture = Figure(figsize=(10.4 if near else 8.4, 4.8), layout="constrained")
    panels = [*picture.subplots(1, 2 if near else 1, sharey=True, squeeze=False)[0]]
    for ax in panels:
        _draw_strengths(ax, board, strengths)
    _frame_means(panels[0], strengths)
    worst = " to the worst attack" if board.track.has_attacks else ""
    title = f"{board.track.title}, tier {board.tier}"
    panels[0].set(
        title="all strengths" if near else title,
        ylabel=f"{board.track.leak.called_by}{worst} (less is better)",
    )
    if near:
        picture.suptitle(title)
        low, high = near
        within = f"within {_NEAR:g} {board.track.utility.unit} of undefended"
        panels[1].set(title=within, xlim=(low, high))
    labels = panels[0].get_legend_handles_labels()
    area = "area: bytes on the wire" if board.track.has_attacks else None
    picture.legend(*labels, loc="outside right upper", frameon=False, title=area, alignment="left")
    return picture


def _find_near(strengths: Sequence[Strength]) -> tuple[float, float] | None:
    """Return the ends of a panel of what lies near the undefended run, where that crowds a picture.

    None where nothing lies far enough away to crowd it.
    """
    plain = [mean_of(each.utility) for each in strengths if each.defence == NONE]
    means = [mean_of(each.utility) for each in strengths]
    if not plain or max(means) - min(means) < 2 * _NEAR:
        return None
    near = [mean for mean in means if abs(mean - plain[0]) <= _NEAR]
    if len(near) < _CROWD:
        return None
    margin = 0.1 * _NEAR
    return min(near) - margin, max(near) + margin


def _draw_strengths(ax: "Axes", board: Board, strengths: Sequence[Strength]) -> None:
    """Draw every strength, the front and the bounds into one panel."""
    for index, defence in enumerate(dict.fromkeys(each.defence for each in strengths)):
        own = [each for each in strengths if each.defence == defence]
        # where bytes are what is drawn upwards, an area would say it twice
        sized = board.track.has_attacks
        _draw_defence(ax, own, index, is_own=defence in board.own, sized=sized)
    points = _place(strengths)
    front = [points[index] for index in find_front(points, ("more", "less"))]
    if len(front) > 1:
        ax.plot(*zip(*front, strict=True), color="0.35", linewidth=1, linestyle="--", zorder=1)
    ax.axhline(0, color="0.6", linewidth=0.8, linestyle=":")
    ax.axhline(1, color="0.6", linewidth=0.8, linestyle=":")
    ax.set_xlabel(f"utility, {board.track.utility.unit} (more is better)")
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_defence(
    ax: "Axes", own: Sequence[Strength], index: int, *, is_own: bool, sized: bool
) -> None:
    x, y = zip(*_place(own), strict=True)
    # colours come again after the last one, and each time with another mark
    colour = "black" if own[0].defence == NONE else COLOURS[index % len(COLOURS)]
    mark = "*" if is_own else MARKS[(index + index // len(COLOURS)) % len(MARKS)]
    ax.errorbar(
        x,
        y,
        xerr=[(half_of(each.utility) or 0) for each in own],
        yerr=[(half_of(each.leak) or 0) for each in own],
        color=colour,
        linestyle="-",
        linewidth=0.7,
        elinewidth=0.7,
        capsize=2,
        alpha=_FAINT,
    )
    # a point's area for the bytes of a strength, within what still can be seen
    ratios = [mean_of(each.bytes_ratio) if sized and each.bytes_ratio else 1.0 for each in own]
    areas = [_AREA * min(4.0, max(0.3, ratio)) for ratio in ratios]
    label = f"{own[0].defence} (yours)" if is_own else own[0].defence
    sizes = [3 * each for each in areas] if is_own else areas
    ax.scatter(x, y, sizes, c=colour, marker=mark, zorder=3)
    ax.plot([], [], mark, color=colour, markersize=10 if is_own else 6, label=label)


def _frame_means(ax: "Axes", strengths: Sequence[Strength]) -> None:
    """Let the picture end around the means, since an interval of few seeds can be wider than all.

    Half of the intervals of utility fit; a bar that reaches the edge goes on beyond it.
    """
    x, y = zip(*_place(strengths), strict=True)
    usual = statistics.median((half_of(each.utility) or 0) for each in strengths)
    margin = max(0.15 * (max(x) - min(x)), 1.2 * usual) or 1.0
    ax.set_xlim(min(x) - margin, max(x) + margin)
    ax.set_ylim(min(0.0, *y) - 0.05, max(1.0, *y) + 0.05)


def _place(strengths: Sequence[Strength]) -> list[tuple[float, float]]:
    return [(mean_of(each.utility), mean_of(each.leak)) for each in strengths]
