"""Figures show what the server sees of samples during training, coloured by their hidden labels.

These are P3EFT's figures 2 and 3. Another figure shows attacks' leaks over rounds.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simsplit.errors import RunError, suggest
from simsplit.report.canvas import (
    COLOURS,
    ensure_axes,
    finish_axes,
    make_shown_figure,
    mark_whole_rounds,
)
from simsplit.report.label_views import (
    Panel,
    Strip,
    find_leaks_by_view,
    make_strips,
    name_classes,
    read_chance,
    write_caption,
)
from simsplit.results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGEND = 10
_SIDE, _LEFT, _RIGHT, _EDGE = 1.75, 0.55, 1.15, 0.4
"""Inches: a panel's side, and the margins around all panels."""
_LETTER, _LINE = 0.058, 0.13
"""Inches: the width of a letter and the height of a line in the caption."""
_TWO = ("#0072b2", "#e69f00")
"""Colours of two classes, distinct for colour-blind readers and in grey."""
_Named = Sequence[tuple[str, Strip]]


def labels_seen(run: Run) -> "Figure | None":
    """Draw a row of panels per view, a column per judgement; return None without label attacks."""
    strips = make_strips(run)
    if not strips:
        return None
    return _draw_panels([(strip.words, strip) for strip in strips], name_classes(run, strips), run)


def components(runs: Mapping[str, Run], view: str = "gradient") -> "Figure":
    """Draw one view of several runs, with a row of panels per run."""
    named: list[tuple[str, Strip]] = []
    known: dict[str, None] = {}
    for name, run in runs.items():
        strips = make_strips(run)
        known |= dict.fromkeys(strip.view for strip in strips)
        named += [(f"{name}\n{s.words}", s) for s in strips if s.view == view]
    if not named:
        hint = suggest(view, list(known)) or ","
        raise RunError(f"components: no run has '{view}'{hint} allowed: {', '.join(known)}")
    run = next(iter(runs.values()))
    return _draw_panels(named, name_classes(run, [strip for _, strip in named]), run)


def leak(runs: Mapping[str, Run], ax: "Axes | None" = None) -> "Axes":
    """Draw each judged round's worst leak over attacks, views and adapters; chance is dotted."""
    ax = ensure_axes(ax)
    for name, run in runs.items():
        worst: dict[int, float] = {}
        for (number, _, _), value in find_leaks_by_view(run).items():
            worst[number] = max(value, worst.get(number, 0))
        ax.plot(list(worst), [100 * value for value in worst.values()], label=name)
    chances = [c for run in runs.values() if (c := read_chance(run)) is not None]
    for chance in sorted(set(chances)):
        ax.axhline(100 * chance, color="0.6", lw=1, ls=":")
    ax.set(xlabel="round", ylabel="labels inferred by the worst attack, %")
    mark_whole_rounds(ax)
    mark_whole_rounds(ax)
    return finish_axes(ax, "What the worst attack learns of labels (dotted: chance)")


def _draw_panels(rows: _Named, classes: Mapping[int, str], run: Run) -> "Figure":
    rounds = list(dict.fromkeys(panel.round for _, strip in rows for panel in strip.panels))
    wide = _SIDE * len(rounds) + _LEFT + _RIGHT
    lines = textwrap.wrap(write_caption([strip for _, strip in rows], run), int(wide / _LETTER))
    below = 0.12 + _LINE * len(lines)
    tall = _SIDE * len(rows) + _EDGE + below
    figure = make_shown_figure(wide, tall)
    figure.set_layout_engine(None)
    around = {"left": _LEFT / wide, "right": 1 - _RIGHT / wide}
    figure.subplots_adjust(
        **around, bottom=below / tall, top=1 - _EDGE / tall, wspace=0.06, hspace=0.06
    )
    panels = figure.subplots(len(rows), len(rounds), squeeze=False)
    colours = _choose_colours(list(classes))
    for line, (name, strip) in zip(panels, rows, strict=True):
        by_round = {panel.round: panel for panel in strip.panels}
        for ax, number in zip(line, rounds, strict=True):
            _draw_panel(ax, by_round.get(number), colours)
        line[0].set_ylabel(name, fontsize=8)
    for ax, number in zip(panels[0], rounds, strict=True):
        ax.set_title(f"round {number}", fontsize=9)
    if len(classes) <= _LEGEND:
        _draw_legend(figure, {classes[label]: colour for label, colour in colours.items()})
    figure.text(0.1 / wide, 0.06 / tall, "\n".join(lines), fontsize=7, va="bottom")
    return figure


def _choose_colours(labels: Sequence[int]) -> dict[int, str]:
    """Choose the colour of each label."""
    from matplotlib import colormaps, colors

    for few in (_TWO, COLOURS):
        if len(labels) <= len(few):
            return dict(zip(labels, few, strict=False))
    scale = colormaps["viridis"]
    shades = [scale(n / (len(labels) - 1)) for n in range(len(labels))]
    return {label: colors.to_hex(shade) for label, shade in zip(labels, shades, strict=True)}


def _draw_panel(ax: "Axes", panel: Panel | None, colours: Mapping[int, str]) -> None:
    """Draw the targets of a panel in their own order, so that no class hides the others."""
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


def _draw_legend(figure: "Figure", colours: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D

    dots = [Line2D([], [], marker="o", ls="", ms=4, color=colour) for colour in colours.values()]
    wide, tall = figure.get_size_inches()
    at = (1 - (_RIGHT - 0.05) / wide, 1 - _EDGE / tall)
    figure.legend(dots, list(colours), title="label", loc="upper left", bbox_to_anchor=at,
                  fontsize=8, frameon=False, handletextpad=0.1, borderpad=0)  # fmt: skip
