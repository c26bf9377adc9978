"""What figures are drawn on and saved with; matplotlib is imported when the first one is."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HONEST = "0.6"
"""The grey of what stands behind."""


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
