"""What figures are drawn on and saved with; matplotlib is imported when the first one is."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.topologies import LEGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HONEST = "0.6"
"""The grey of what stands behind."""
_LEG_COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#8c6d00"),
    *("#56b4e9", "#d55e00", "#6a3d9a", "#999999", "#000000"),
)
"""Okabe and Ito's colours, which the colour-blind can tell apart, and two more; a leg each."""


def colour_of_leg(leg: str) -> str:
    """Return the colour of a leg, the same in every figure; a plugin's legs share the last one."""
    return _LEG_COLOURS[LEGS.index(leg) % len(_LEG_COLOURS) if leg in LEGS else -1]


def axes_of(ax: "Axes | None") -> "Axes":
    """The axes that were given, or those of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6, 4))[1]


def drawn(ax: "Axes") -> "Figure":
    """The figure that axes stand in."""
    from matplotlib.figure import Figure

    figure = ax.figure
    assert isinstance(figure, Figure), "drawn by this module, which nests none"
    return figure


def saved(figure: "Figure", file: Path, *, fitted: bool = True) -> Path:
    """Write a figure into a file, and let go of it; `fitted` cuts it to what is drawn."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120, bbox_inches="tight" if fitted else None)
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(figure)
    return file
