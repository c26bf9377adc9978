"""All figures share axes, colours and the way to a file; matplotlib is imported when first used."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError
from simsplit.protocols import LEGS
from simsplit.results.directory import make_folder, replace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HONEST = "0.6"
"""The grey of honest clients and other background."""
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#7f7f7f", "#332288", "#882255", "#44aa99", "#8c6d00", "#000000"),
)
"""The colours of Okabe and Ito, then of Tol: colour-blind readers can tell them apart too."""
MARKS = "osD^vPX<>*hp"
"""Marks of points, as many as colours: two lines of near colours still differ in their marks."""
HATCHES = ("", "", "", "", "", "", "//", "//", "//", "//", "//", "//")
"""Fillings of areas: those of the second half of the colours are hatched."""
_LEG_COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#8c6d00"),
    *("#56b4e9", "#d55e00", "#6a3d9a", "#999999", "#000000"),
)
"""A colour per leg: those of Okabe and Ito, distinct for colour-blind readers, and two more."""


def colour_of_leg(leg: str) -> str:
    """Return the colour of a leg, the same in every figure; a plugin's legs share the last one."""
    return _LEG_COLOURS[LEGS.index(leg) % len(_LEG_COLOURS) if leg in LEGS else -1]


def escape_text(text: str) -> str:
    """Return a text that matplotlib draws as it stands: no formula, and in every legend."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def ensure_axes(ax: "Axes | None", size: tuple[float, float] = (7, 4)) -> "Axes":
    """Return the given axes, or those of a new figure of so many inches."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    axes = plt.subplots(figsize=size, layout="constrained")[1]
    use_cycle(axes)
    return axes


def make_shown_figure(width: float, height: float) -> "Figure":
    """Return an empty figure of so many inches that a notebook shows without pyplot."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """A figure that a notebook asks for its picture."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=90)
            return content.getvalue()

    return ShownFigure(figsize=(width, height), layout="constrained")


def use_cycle(ax: "Axes") -> None:
    """Give the lines and areas of axes the colours of all pictures, and lines a mark each."""
    from cycler import cycler

    ax.set_prop_cycle(cycler(color=COLOURS) + cycler(marker=list(MARKS)))


def mark_whole_rounds(ax: "Axes") -> None:
    """Write whole numbers alone at an axis of rounds."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def finish_axes(ax: "Axes", title: str) -> "Axes":
    """Give axes their title and, if anything is named, a legend on their right; return them.

    Small axes of a larger figure keep it inside, since their neighbours have no room for it.
    """
    ax.set_title(title, fontsize=10)
    if ax.get_legend_handles_labels()[1]:
        alone = len(figure_of(ax).axes) == 1
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if alone else {}
        ax.legend(frameon=False, fontsize="small", **place)
    return ax


def figure_of(ax: "Axes") -> "Figure":
    """Return the figure that contains the axes."""
    from matplotlib.figure import Figure

    figure = ax.figure
    assert isinstance(figure, Figure), "no axes of simsplit are in a nested figure"
    return figure


def save_figure(figure: "Figure", file: Path, *, fitted: bool = True) -> Path:
    """Write a figure to a file and close it; `fitted` crops it to its content."""
    content = io.BytesIO()
    form = file.suffix.removeprefix(".") or None
    figure.savefig(content, format=form, dpi=120, bbox_inches="tight" if fitted else None)
    make_folder(file.parent)
    replace(file, content.getvalue())
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close(figure)
    return file


def save_figure_as(figure: "Figure", file: Path) -> Path:
    """Write a figure into a file that a user names; raise RunError if it cannot be written."""
    try:
        return save_figure(figure, file)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot write {file}: {error}") from None
