"""Pictures of what the server sees of labels, of which the page's are here, are made of panels.

A panel has the two leading principal components of what was seen of each target, for one view and
judgement. Their signs are arbitrary, so they are matched to the previous judgement. If all targets
lie on one line, the second component is almost zero, and each label has a lane instead. Among
several adapters, the one with the worst leak is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simsplit.report.html.chart import COLOURS, draw_legend, make_drawing, make_reachable
from simsplit.report.html.markup import Markup, capitalise, figure, join, tag, views, void
from simsplit.report.html.subject import Subject
from simsplit.report.tables import thin
from simsplit.results import Run
from simsplit.results.recovered_files import load_components
from simsplit.results.recovered_kinds import KINDS
from simsplit.results.worst_views import keep_blind, summarise_worst

if TYPE_CHECKING:
    import pandas as pd

VIEWS = KINDS["labels"].views
_ROUNDS = 5
"""The most columns of panels."""
_LINE = 5e-3
"""The ratio of standard deviations below which points look like one line."""
_FLATTEST = 0.35
"""The least height of a panel's content, relative to its width."""
_ROOM, _ABOVE = 0.08, 0.14
"""Margins around a panel's content, and above it for the leak."""
_SIDE, _GAP, _LEFT, _TOP = 118, 6, 150, 20
_LEGEND = 2 * COLOURS
"""The most classes that a legend names: each colour has round and angular marks."""
_SETTINGS = 12


@dataclass(frozen=True)
class Panel:
    """One view of the targets at one judgement."""

    round: int
    points: "pd.DataFrame"
    """Columns: target, label, x, y."""
    leak: float | None
    """The leak of the worst attack on this view."""

    @property
    def frame(self) -> tuple[float, float, float, float]:
        """The limits of the axes: x from, to; y from, to."""
        x, y = self.points["x"], self.points["y"]
        x0, x1, y0, y1 = float(x.min()), float(x.max()), float(y.min()), float(y.max())
        wide = (x1 - x0) or (y1 - y0) or 1.0
        tall = max(y1 - y0, _FLATTEST * wide)
        middle, half = (y0 + y1) / 2, (0.5 + _ROOM) * tall
        return (x0 - _ROOM * wide, x1 + _ROOM * wide, middle - half, middle + half + _ABOVE * tall)


@dataclass(frozen=True)
class Strip:
    """One view over all judgements."""

    view: str
    adapter: int | None
    """The adapter's number, if there are several."""
    panels: Sequence[Panel]

    @property
    def words(self) -> str:
        """The label of its row in a figure: the view, and the adapter if there are several."""
        name = VIEWS.get(self.view, self.view)
        return name if self.adapter is None else f"{name}\nadapter {self.adapter}"


def make_strips(run: Run) -> list[Strip]:
    """Make a strip per view; return none for a run without attacks on labels."""
    seen = load_components(run.path)
    if seen.empty:
        return []
    rounds = thin(sorted(seen["round"].unique()), _ROUNDS)
    leaks = find_leaks_by_view(run)
    known = [*VIEWS, *seen["view"].unique()]
    strips = []
    for view in (name for name in dict.fromkeys(known) if (seen["view"] == name).any()):
        own = seen[seen["view"] == view]
        adapter = _find_worst_adapter(leaks, view, own["adapter"].unique())
        own = own[own["adapter"] == adapter]
        panels: list[Panel] = []
        before: pd.DataFrame | None = None
        for number in rounds:
            points = own.loc[own["round"] == number, ["target", "label", "x", "y"]]
            if len(points):
                before = _match_signs(points, before)
                leak = leaks.get((number, view, adapter))
                panels.append(Panel(number, _separate_lanes(before), leak))
        several = seen["adapter"].nunique() > 1
        strips.append(Strip(view, adapter if several else None, panels))
    return strips


def write_caption(strips: Sequence[Strip], run: Run) -> str:
    """Write the caption of pictures of these strips."""
    words = "two leading principal components of what the server sees of each target"
    words += "; where that is one line, a lane a label"
    if any(strip.adapter is not None for strip in strips):
        words += "; of several adapters the one that tells most"
    words += "; in the corner: labels that the worst attack tells by it"
    chance = read_chance(run)
    return words if chance is None else f"{words} (chance {100 * chance:.0f} %)"


def read_chance(run: Run) -> float | None:
    """Return the chance of the worst leak's figure, or None without attacks."""
    worst = summarise_worst(run.labels)
    chance: float | None = next((each.get("chance") for each in worst.values()), None)
    return chance


def find_leaks_by_view(run: Run) -> dict[tuple[int, str, int], float]:
    """Return the worst leak by (round, view, adapter)."""
    if run.labels.empty:
        return {}
    keys = ["round", "view", "adapter"]
    worst = keep_blind(run.labels).groupby(keys, as_index=False)["value"].max()
    return {
        (int(row["round"]), str(row["view"]), int(row["adapter"])): float(row["value"])
        for _, row in worst.iterrows()
    }


def name_classes(run: Run, strips: Sequence[Strip]) -> dict[int, str]:
    """Return the labels in these strips and their names."""
    names = dict(enumerate(run.data["classes"]))
    labels = {label for s in strips for panel in s.panels for label in panel.points["label"]}
    return {int(label): str(names.get(label, label)) for label in sorted(labels)}


def _find_worst_adapter(
    leaks: dict[tuple[int, str, int], float], view: str, adapters: Sequence[int]
) -> int:
    """Return the adapter with the worst leak in this view, the first if several are equal."""
    worst: dict[int, float] = {}
    for (_, name, adapter), leak in leaks.items():
        if name == view:
            worst[adapter] = max(leak, worst.get(adapter, 0.0))
    return max(adapters, key=lambda adapter: worst.get(adapter, 0.0))


def _separate_lanes(points: "pd.DataFrame") -> "pd.DataFrame":
    """Give each label a lane if all points lie on one line, where they would hide one another."""
    if points["y"].std(ddof=0) > _LINE * points["x"].std(ddof=0):
        return points
    lane = points["label"].rank(method="dense")
    within = (points["target"] * 0.618) % 1  # spread evenly, and the same in each picture
    height = (float(points["x"].max()) - float(points["x"].min()) or 1.0) / (2 * lane.max())
    return points.assign(y=height * (lane + 0.6 * within))


def _match_signs(points: "pd.DataFrame", before: "pd.DataFrame | None") -> "pd.DataFrame":
    """Choose the signs that bring the targets nearest to their places in the panel before."""
    if before is None:
        return points
    both = points.merge(before, on="target", suffixes=("", "_before"))
    turned = points.copy()
    for name in "xy":
        if (both[name] * both[f"{name}_before"]).sum() < 0:
            turned[name] = -turned[name]
    return turned


def draw_seen(subject: Subject) -> Markup:
    """Draw what the server saw in each setting's first seed."""
    named = zip(subject.names, subject.firsts, strict=True)
    several = subject.one is None
    seen = [_draw_views(entry.run, name, several) for name, entry in list(named)[:_SETTINGS]]
    return views(seen, "What is seen of")


def _draw_views(run: Run, name: str, several: bool) -> Markup:
    """Draw panels of what the server saw, a row per view and a column per judged round."""
    strips = make_strips(run)
    if not strips:
        return Markup()
    classes = name_classes(run, strips)
    rounds = list(dict.fromkeys(panel.round for strip in strips for panel in strip.panels))
    heads = [
        tag("text", f"round {number}", x=_LEFT + (i + 0.5) * (_SIDE + _GAP), y=_TOP - 7,
            text_anchor="middle", class_="label")
        for i, number in enumerate(rounds)
    ]  # fmt: skip
    wide, tall = _LEFT + len(rounds) * (_SIDE + _GAP), _TOP + len(strips) * (_SIDE + _GAP)
    drawn = [_draw_strip(strip, row, rounds, list(classes)) for row, strip in enumerate(strips)]
    chart = make_drawing(
        [tag("g", *heads, aria_hidden="true"), *drawn],
        (wide, tall),
        "What the server saw, by view and round. Arrow keys move between panels.",
        f"width:{1.15 * wide:.0f}px",
    )
    words = f"{capitalise(write_caption(strips, run))}."
    legend = Markup()
    if len(classes) > _LEGEND:
        words += f" Of {len(classes)} classes, several share a colour."
    else:
        dots = [void("path", d="M6 6h0", class_=_style_of(i)) for i in range(len(classes))]
        legend = draw_legend(zip(dots, classes.values(), strict=True))
    whole = join((legend, tag("div", chart, class_="wide plain")))
    return figure(whole, f"{name}, first seed. {words}" if several else words, name)


def _draw_strip(strip: Strip, row: int, rounds: Sequence[int], labels: Sequence[int]) -> Markup:
    """Draw a view's name and its panels."""
    top = _TOP + row * (_SIDE + _GAP)
    middle = top + _SIDE / 2
    names = [
        tag("text", line, x=_LEFT - 8, y=middle + 14 * i, text_anchor="end", class_="label")
        for i, line in enumerate(strip.words.split("\n"))
    ]
    panels = [
        _draw_panel(panel, strip, (_LEFT + rounds.index(panel.round) * (_SIDE + _GAP), top), labels,
               first=row == place == 0)
        for place, panel in enumerate(strip.panels)
    ]  # fmt: skip
    return join((tag("g", *names, aria_hidden="true"), tag("g", *panels, data_group="")))


def _draw_panel(
    panel: Panel, strip: Strip, at: tuple[float, float], labels: Sequence[int], *, first: bool
) -> Markup:
    """Draw dots by label, and over them a box that a reader can point at."""
    left, right, low, high = panel.frame
    points = panel.points
    xs = (at[0] + _SIDE * (points["x"] - left) / (right - left)).round(1)
    ys = (at[1] + _SIDE * (high - points["y"]) / (high - low)).round(1)
    dots = []
    for index, label in enumerate(labels):
        own = points["label"] == label
        path = "".join(f"M{x:g} {y:g}h0" for x, y in zip(xs[own], ys[own], strict=True))
        dots.append(void("path", class_=_style_of(index), d=path) if path else None)
    words = strip.words.replace("\n", ", ") + f", round {panel.round}"
    corner = None
    if panel.leak is not None:
        leak = f"{100 * panel.leak:.0f} %"
        words += f": the worst attack tells {leak}"
        corner = tag("text", leak, x=at[0] + _SIDE - 5, y=at[1] + 14, text_anchor="end",
                     aria_hidden="true")  # fmt: skip
    box = void("rect", x=at[0], y=at[1], width=_SIDE, height=_SIDE, class_="panel",
               **make_reachable(words, first=first))  # fmt: skip
    return join((*dots, corner, box))


def _style_of(index: int) -> str:
    angular = " angular" if index // COLOURS % 2 else ""
    return f"dots c{index % COLOURS}{angular}"
