"""What the server saw of labels, as pictures have it: a panel a view and judgement.

A panel has the two leading principal components of what was seen of each target. Their signs are
arbitrary, and are turned to those of the judgement before. Where all targets lie on one line, the
second is next to nothing, and each label has a lane in its place. Of several adapters the one is
shown that told most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simsplit.results import Run
from simsplit.results.kept import load_components
from simsplit.results.label_results import PURITY, attacks_on_labels, summarise_labels

if TYPE_CHECKING:
    import pandas as pd

VIEWS = {
    "gradient": "gradients of features",
    "direction": "gradients, unit length",
    "features": "features",
    "shift": "shift of features",
    "adapter_gradient": "gradients of adapters",
}
"""What is seen, in words, and in the order of P3EFT's figures."""
_ROUNDS = 5
"""At most so many columns of panels."""
_LINE = 5e-3
"""What is flatter than this, by standard deviations, is one line to the eye."""
_FLATTEST = 0.35
"""The least height of what is drawn, over its width."""
_ROOM, _ABOVE = 0.08, 0.14
"""Around what is drawn, and above it for the leak."""


@dataclass(frozen=True)
class Panel:
    """A view of the targets in one judgement."""

    round: int
    points: "pd.DataFrame"
    """target, label, x, y."""
    leak: float | None
    """What the worst attack told by this view."""

    @property
    def frame(self) -> tuple[float, float, float, float]:
        """What is drawn: x from, to; y from, to."""
        x0, x1, y0, y1 = _ends(self.points)
        wide = (x1 - x0) or (y1 - y0) or 1.0
        tall = max(y1 - y0, _FLATTEST * wide)
        middle, half = (y0 + y1) / 2, (0.5 + _ROOM) * tall
        return (x0 - _ROOM * wide, x1 + _ROOM * wide, middle - half, middle + half + _ABOVE * tall)


@dataclass(frozen=True)
class Strip:
    """A view over the judgements."""

    view: str
    adapter: int | None
    """Which, where there are several."""
    panels: Sequence[Panel]

    @property
    def words(self) -> str:
        """The label of its row in a figure: the view, and which adapter where there are several."""
        name = VIEWS.get(self.view, self.view)
        return name if self.adapter is None else f"{name}\nadapter {self.adapter}"


def strips_of(run: Run) -> list[Strip]:
    """A strip a view; none where no attack on labels looked."""
    seen = load_components(run.path)
    if seen.empty:
        return []
    rounds = _spread(sorted(seen["round"].unique()))
    leaks = leaks_by_view(run)
    known = [*VIEWS, *seen["view"].unique()]
    strips = []
    for view in (name for name in dict.fromkeys(known) if (seen["view"] == name).any()):
        own = seen[seen["view"] == view]
        adapter = _telling(leaks, view, own["adapter"].unique())
        own = own[own["adapter"] == adapter]
        panels: list[Panel] = []
        before: pd.DataFrame | None = None
        for number in rounds:
            points = own.loc[own["round"] == number, ["target", "label", "x", "y"]]
            if len(points):
                turned = _turned(points, before)
                before = turned
                panels.append(Panel(number, _apart(turned), leaks.get((number, view, adapter))))
        several = seen["adapter"].nunique() > 1
        strips.append(Strip(view, adapter if several else None, panels))
    return strips


def caption(strips: Sequence[Strip], run: Run) -> str:
    """What is seen on such pictures."""
    told = "two leading principal components of what the server sees of each target"
    told += "; where that is one line, a lane a label"
    if any(strip.adapter is not None for strip in strips):
        told += "; of several adapters the one that tells most"
    told += "; in the corner: labels that the worst attack tells by it"
    chance = chance_of(run)
    return told if chance is None else f"{told} (chance {100 * chance:.0f} %)"


def chance_of(run: Run) -> float | None:
    """What chance comes to beside the worst leak."""
    worst = summarise_labels(run.labels)
    found: float | None = next((each.get("chance") for each in worst.values()), None)
    return found


def blind(run: Run) -> "pd.DataFrame":
    """What attacks told that know no labels, and floors; without such, what all attacks told."""
    rows = attacks_on_labels(run.labels[run.labels["figure"] != PURITY])
    known = rows[rows["known"] == 0]
    return known if len(known) else rows


def leaks_by_view(run: Run) -> dict[tuple[int, str, int], float]:
    """(round, view, adapter) -> the worst leak."""
    if run.labels.empty:
        return {}
    keys = ["round", "view", "adapter"]
    worst = blind(run).groupby(keys, as_index=False)["leak"].max()
    return {
        (int(row["round"]), str(row["view"]), int(row["adapter"])): float(row["leak"])
        for _, row in worst.iterrows()
    }


def classes_of(run: Run, strips: Sequence[Strip]) -> dict[int, str]:
    """The labels that are there, and what they are called."""
    names = dict(enumerate(run.data["classes"]))
    labels = {label for s in strips for panel in s.panels for label in panel.points["label"]}
    return {int(label): str(names.get(label, label)) for label in sorted(labels)}


def _spread(rounds: Sequence[int]) -> list[int]:
    """A few of the rounds, the first and the last among them."""
    if len(rounds) <= _ROUNDS:
        return list(rounds)
    return [rounds[round(place * (len(rounds) - 1) / (_ROUNDS - 1))] for place in range(_ROUNDS)]


def _telling(leaks: dict[tuple[int, str, int], float], view: str, adapters: Sequence[int]) -> int:
    """The adapter by which this view told most; the first of those alike."""
    worst = {
        adapter: max(
            (v for (_, name, n), v in leaks.items() if (name, n) == (view, adapter)), default=0
        )
        for adapter in adapters
    }
    return max(adapters, key=lambda adapter: worst[adapter])


def _ends(points: "pd.DataFrame") -> tuple[float, float, float, float]:
    """x from, to; y from, to."""
    x, y = points["x"], points["y"]
    return float(x.min()), float(x.max()), float(y.min()), float(y.max())


def _apart(points: "pd.DataFrame") -> "pd.DataFrame":
    """Where all lie on one line, each label in a lane of its own: else they hide one another."""
    if points["y"].std(ddof=0) > _LINE * points["x"].std(ddof=0):
        return points
    x0, x1, _, _ = _ends(points)
    lane = points["label"].rank(method="dense")
    within = (points["target"] * _GOLDEN) % 1  # spread evenly, and the same in each picture
    height = (x1 - x0 or 1.0) / (2 * lane.max())
    return points.assign(y=height * (lane + 0.6 * within))


_GOLDEN = 0.618


def _turned(points: "pd.DataFrame", before: "pd.DataFrame | None") -> "pd.DataFrame":
    """With the signs under which targets lie nearest to where they lay before."""
    if before is None:
        return points
    both = points.merge(before, on="target", suffixes=("", "_before"))
    turned = points.copy()
    for name in "xy":
        if (both[name] * both[f"{name}_before"]).sum() < 0:
            turned[name] = -turned[name]
    return turned
