"""What the server sees of samples as training goes on, coloured by the labels that it is not told
(P3EFT's figures 2 and 3).
"""

from typing import TYPE_CHECKING

from simsplit.results import Run
from simsplit.results.components import load_components

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROUNDS, _ROWS = 5, 6
"""At most so many columns and rows of panels."""
_NAMES = {
    "features": "features",
    "shift": "shift of features",
    "gradient": "gradients of features",
    "direction": "gradients, unit length",
    "adapter_gradient": "gradients of adapters",
}
_LEGEND = 10


def labels_seen(run: Run) -> "Figure | None":
    """The two leading principal components of each view, a row a view and adapter and a column a
    judgement; None where no attack on labels looked.
    """
    seen = load_components(run.path)
    if seen.empty:
        return None
    from matplotlib.figure import Figure

    rounds = _spread(sorted(seen["round"].unique()))
    pairs = seen[["view", "adapter"]].drop_duplicates().head(_ROWS)
    views = list(zip(pairs["view"], pairs["adapter"], strict=True))
    several = seen["adapter"].max() > 0
    figure = Figure(figsize=(2.1 * len(rounds) + 1.6, 2.1 * len(views) + 0.6))
    figure.subplots_adjust(
        left=0.5 / figure.get_figwidth(),
        right=1 - 1.1 / figure.get_figwidth(),
        bottom=0.35 / figure.get_figheight(),
        top=1 - 0.35 / figure.get_figheight(),
        wspace=0.08,
        hspace=0.08,
    )
    panels = figure.subplots(len(views), len(rounds), squeeze=False)
    colours = _colours(sorted(seen["label"].unique()), run)
    for line, (view, adapter) in zip(panels, views, strict=True):
        own = seen[(seen["view"] == view) & (seen["adapter"] == adapter)]
        for ax, number in zip(line, rounds, strict=True):
            _panel(ax, own[own["round"] == number], colours)
        name = _NAMES.get(str(view), str(view))
        line[0].set_ylabel(f"{name}\nadapter {adapter}" if several else name, fontsize=9)
    for ax, number in zip(panels[0], rounds, strict=True):
        ax.set_title(f"round {number}", fontsize=9)
    if len(colours) <= _LEGEND:
        handles, names = panels[0][-1].get_legend_handles_labels()
        right = 1 - 1.05 / figure.get_figwidth()
        figure.legend(
            handles,
            names,
            title="label",
            loc="upper left",
            bbox_to_anchor=(right, 0.95),
            fontsize=8,
        )
    told = "two leading principal components of what the server sees of the targets, a panel each"
    figure.text(0.01, 0.01, told, fontsize=8)
    return figure


def _spread(rounds: list[int]) -> list[int]:
    """A few of the rounds, the first and the last among them."""
    if len(rounds) <= _ROUNDS:
        return rounds
    return [rounds[round(place * (len(rounds) - 1) / (_ROUNDS - 1))] for place in range(_ROUNDS)]


def _colours(labels: list[int], run: Run) -> dict[int, tuple[str, str]]:
    """The colour and the name of each label."""
    from matplotlib import colormaps, colors

    names = dict(enumerate(run.data["classes"]))
    scale = colormaps["tab10" if len(labels) <= _LEGEND else "viridis"]
    steps = max(1, len(labels) - 1)
    shade = [scale(n if len(labels) <= _LEGEND else n / steps) for n in range(len(labels))]
    return {
        label: (colors.to_hex(colour), str(names.get(label, label)))
        for label, colour in zip(labels, shade, strict=True)
    }


def _panel(ax: "Axes", seen: "pd.DataFrame", colours: dict[int, tuple[str, str]]) -> None:
    for label, (colour, name) in colours.items():
        own = seen[seen["label"] == label]
        ax.scatter(own["x"], own["y"], s=9, color=colour, label=name, linewidths=0)
    ax.set(xticks=[], yticks=[])
    ax.margins(0.08)
