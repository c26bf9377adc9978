"""What the server sees of samples as training goes on, coloured by the labels that it is not told
(P3EFT's figures 2 and 3), and what attacks tell over rounds.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simsplit.errors import RunError, near
from simsplit.report.canvas import axes_of
from simsplit.report.label_views import (
    Panel,
    Strip,
    caption,
    chance_of,
    classes_of,
    leaks_by_view,
    strips_of,
)
from simsplit.results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGEND = 10
_SIDE, _LEFT, _RIGHT, _EDGE = 1.75, 0.55, 1.15, 0.4
"""Inches: a panel, and what lies around all of them."""
_LETTER, _LINE = 0.058, 0.13
"""Inches: a letter and a line of the caption."""
_TWO = ("#0072b2", "#e69f00")
"""Colours of two classes that are told apart by colour-blind readers, and in grey."""
_Named = Sequence[tuple[str, Strip]]


def labels_seen(run: Run) -> "Figure | None":
    """A row of panels a view and a column a judgement; None where no attack on labels looked."""
    strips = strips_of(run)
    if not strips:
        return None
    return _drawn([(strip.words, strip) for strip in strips], classes_of(run, strips), run)


def components(runs: Mapping[str, Run], view: str = "gradient") -> "Figure":
    """One view of several runs: a row of panels a run."""
    named: list[tuple[str, Strip]] = []
    known: dict[str, None] = {}
    for name, run in runs.items():
        strips = strips_of(run)
        known |= dict.fromkeys(strip.view for strip in strips)
        named += [(f"{name}\n{s.words}", s) for s in strips if s.view == view]
    if not named:
        hint = near(view, list(known)) or ","
        raise RunError(f"components: no run has '{view}'{hint} allowed: {', '.join(known)}")
    run = next(iter(runs.values()))
    return _drawn(named, classes_of(run, [strip for _, strip in named]), run)


def leak(runs: Mapping[str, Run], ax: "Axes | None" = None) -> "Axes":
    """The worst leak of each judged round over attacks, views and adapters; dotted: chance."""
    from matplotlib.ticker import MaxNLocator

    ax = axes_of(ax)
    for name, run in runs.items():
        worst: dict[int, float] = {}
        for (number, _, _), value in leaks_by_view(run).items():
            worst[number] = max(value, worst.get(number, 0))
        ax.plot(list(worst), [100 * value for value in worst.values()], marker=".", label=name)
    chances = [c for run in runs.values() if (c := chance_of(run)) is not None]
    for chance in sorted(set(chances)):
        ax.axhline(100 * chance, color="0.6", lw=1, ls=":")
    ax.set(xlabel="round", ylabel="labels told by the worst attack, %")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend()
    return ax


def _drawn(rows: _Named, classes: Mapping[int, str], run: Run) -> "Figure":
    from matplotlib.figure import Figure

    rounds = list(dict.fromkeys(panel.round for _, strip in rows for panel in strip.panels))
    wide = _SIDE * len(rounds) + _LEFT + _RIGHT
    told = textwrap.wrap(caption([strip for _, strip in rows], run), int(wide / _LETTER))
    below = 0.12 + _LINE * len(told)
    tall = _SIDE * len(rows) + _EDGE + below
    figure = Figure(figsize=(wide, tall))
    around = {"left": _LEFT / wide, "right": 1 - _RIGHT / wide}
    figure.subplots_adjust(
        **around, bottom=below / tall, top=1 - _EDGE / tall, wspace=0.06, hspace=0.06
    )
    panels = figure.subplots(len(rows), len(rounds), squeeze=False)
    colours = _colours(list(classes))
    for line, (name, strip) in zip(panels, rows, strict=True):
        by_round = {panel.round: panel for panel in strip.panels}
        for ax, number in zip(line, rounds, strict=True):
            _draw(ax, by_round.get(number), colours)
        line[0].set_ylabel(name, fontsize=8)
    for ax, number in zip(panels[0], rounds, strict=True):
        ax.set_title(f"round {number}", fontsize=9)
    if len(classes) <= _LEGEND:
        _legend(figure, {classes[label]: colour for label, colour in colours.items()})
    figure.text(0.1 / wide, 0.06 / tall, "\n".join(told), fontsize=7, va="bottom")
    return figure


def _colours(labels: Sequence[int]) -> dict[int, str]:
    """The colour of each label."""
    from matplotlib import colormaps, colors

    if len(labels) <= len(_TWO):
        return dict(zip(labels, _TWO, strict=False))
    few = len(labels) <= _LEGEND
    scale = colormaps["tab10" if few else "viridis"]
    shades = [scale(n if few else n / (len(labels) - 1)) for n in range(len(labels))]
    return {label: colors.to_hex(shade) for label, shade in zip(labels, shades, strict=True)}


def _draw(ax: "Axes", panel: Panel | None, colours: Mapping[int, str]) -> None:
    """The targets in their own order, so that no class hides the others."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_color("0.7")
    if panel is None:
        return
    points = panel.points
    shades = [colours[label] for label in points["label"]]
    ax.scatter(points["x"], points["y"], s=9, c=shades, alpha=0.8, linewidths=0)
    left, right, low, high = panel.frame
    ax.set(xlim=(left, right), ylim=(low, high))
    if panel.leak is not None:
        box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8}
        ax.text(0.97, 0.96, f"{100 * panel.leak:.0f} %", transform=ax.transAxes, fontsize=8,
                ha="right", va="top", bbox=box)  # fmt: skip


def _legend(figure: "Figure", colours: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D

    dots = [Line2D([], [], marker="o", ls="", ms=4, color=colour) for colour in colours.values()]
    wide, tall = figure.get_size_inches()
    at = (1 - (_RIGHT - 0.05) / wide, 1 - _EDGE / tall)
    figure.legend(dots, list(colours), title="label", loc="upper left", bbox_to_anchor=at,
                  fontsize=8, frameon=False, handletextpad=0.1, borderpad=0)  # fmt: skip
