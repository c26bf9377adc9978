"""What the server sees of labels is prepared as panels, for figures and the report page.

A panel has the two leading principal components of what was seen of each target, for one view and
judgement. Their signs are arbitrary, so they are matched to the previous judgement. If all targets
lie on one line, the second component is almost zero, and each label has a lane instead. Among
several adapters, the one with the worst leak is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
