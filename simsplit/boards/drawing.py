"""A board is drawn as leak against utility: what a defence hides, and what it costs."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simsplit.boards.entries import Board
from simsplit.boards.scoring import Strength, score_strengths
from simsplit.boards.track import NONE
from simsplit.errors import RunError
from simsplit.evidence.verdicts import BySeed
from simsplit.metrics.intervals import compute_half_width
from simsplit.report.canvas import COLOURS, MARKS
from simsplit.report.scatter import find_front

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_AREA = 36.0
"""The area of a point that sends as many bytes as the undefended run, in square points."""


def draw_board(board: Board) -> "Figure":
    """Draw every strength of every defence, with 95 % intervals and the front of the best.

    Raises:
        RunError: where nothing is measured.
    """
    from matplotlib.figure import Figure

    strengths = [each for each in score_strengths(board) if each.is_complete]
    if not strengths:
        raise RunError(f"no defence of {board.name} is measured against every attack: no figure")
    picture = Figure(figsize=(8.4, 4.8), layout="constrained")
    ax = picture.subplots()
    for index, defence in enumerate(dict.fromkeys(each.defence for each in strengths)):
        own = [each for each in strengths if each.defence == defence]
        # where bytes are what is drawn upwards, an area would say it twice
        sized = board.track.has_attacks
        _draw_defence(ax, own, index, is_own=defence in board.own, sized=sized)
    _draw_front(ax, strengths)
    _frame_means(ax, strengths)
    ax.axhline(0, color="0.6", linewidth=0.8, linestyle=":")
    ax.axhline(1, color="0.6", linewidth=0.8, linestyle=":")
    unit = board.track.utility.unit
    worst = " to the worst attack" if board.track.has_attacks else ""
    ax.set(
        title=f"{board.track.title}, tier {board.tier}",
        xlabel=f"utility, {unit} (more is better)",
        ylabel=f"{board.track.leak.called}{worst} (less is better)",
    )
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    title = "area: bytes on the wire" if board.track.has_attacks else None
    picture.legend(loc="outside right upper", frameon=False, title=title, alignment="left")
    return picture


def _draw_defence(
    ax: "Axes", own: Sequence[Strength], index: int, *, is_own: bool, sized: bool
) -> None:
    x, y = ([_mean(of) for of in each] for each in _split(own))
    # colours come again after the last one, and each time with another mark
    colour = "black" if own[0].defence == NONE else COLOURS[index % len(COLOURS)]
    mark = "*" if is_own else MARKS[(index + index // len(COLOURS)) % len(MARKS)]
    ax.errorbar(
        x,
        y,
        xerr=[_half(each.utility) for each in own],
        yerr=[_half(each.leak) for each in own],
        color=colour,
        linestyle="-",
        linewidth=0.7,
        elinewidth=0.7,
        capsize=2,
    )
    areas = [_AREA * (_measure_size(each) if sized else 1) for each in own]
    label = f"{own[0].defence} (yours)" if is_own else own[0].defence
    ax.scatter(x, y, [3 * each for each in areas] if is_own else areas, c=colour, marker=mark)
    ax.plot([], [], mark, color=colour, markersize=10 if is_own else 6, label=label)


def _frame_means(ax: "Axes", strengths: Sequence[Strength]) -> None:
    """Let the picture end around the means, since an interval of few seeds can be wider than all.

    Half of the intervals of utility fit; a bar that reaches the edge goes on beyond it.
    """
    x, y = ([_mean(of) for of in each] for each in _split(strengths))
    usual = statistics.median(_half(each.utility) for each in strengths)
    margin = max(0.15 * (max(x) - min(x)), 1.2 * usual) or 1.0
    ax.set_xlim(min(x) - margin, max(x) + margin)
    ax.set_ylim(min(0.0, *y) - 0.05, max(1.0, *y) + 0.05)


def _measure_size(strength: Strength) -> float:
    """Return a point's area for the bytes of a strength, within what still can be seen."""
    known = strength.bytes_ratio
    return min(4.0, max(0.3, _mean(known))) if known else 1.0


def _draw_front(ax: "Axes", strengths: Sequence[Strength]) -> None:
    points = [(_mean(each.utility), _mean(each.leak)) for each in strengths]
    front = [points[index] for index in find_front(points, ("more", "less"))]
    if len(front) > 1:
        ax.plot(*zip(*front, strict=True), color="0.35", linewidth=1, linestyle="--", zorder=1)


def _split(own: Sequence[Strength]) -> tuple[list[BySeed], list[BySeed]]:
    return [each.utility for each in own], [each.leak for each in own]


def _mean(by_seed: BySeed) -> float:
    return statistics.fmean(by_seed.values())


def _half(by_seed: BySeed) -> float:
    return (compute_half_width([*by_seed.values()]) or 0.0) if len(by_seed) > 1 else 0.0
