"""Tables of papers are drawn: each row as the paper prints it, and ours with its interval."""

from typing import TYPE_CHECKING

from simsplit.evidence.tables import EvidenceRow, EvidenceTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PAPER, _OURS = "0.45", "#0072b2"
_ROW_INCHES, _LEAST_INCHES = 0.2, 1.8


def list_drawn(built: EvidenceTable) -> list[str]:
    """List the figures of a table of which something is measured, and can be drawn."""
    names = built.claim.figures
    return [name for name in names if any(name in row.known for row in built.rows)]


def draw_table(built: EvidenceTable, name: str) -> "Figure":
    """Draw one figure of a table over its rows that are measured."""
    from matplotlib.figure import Figure

    rows = [row for row in built.rows if name in row.known]
    height = _LEAST_INCHES + _ROW_INCHES * len(rows)
    picture = Figure(figsize=(7, height), layout="constrained")
    ax = picture.subplots()
    _draw_rows(ax, rows, name)
    claim = built.claim
    ax.set_yticks(range(len(rows)), [_label(built, row) for row in rows], fontsize=8)
    unit = claim.figures[name].unit
    ax.set(xlabel=f"{name}, {unit}" if unit else name)
    ax.set_title(f"{claim.title}, tier {built.tier}", loc="left", fontsize=10)
    ax.invert_yaxis()
    ax.grid(axis="x", color="0.92")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2)
    return picture


def _draw_rows(ax: "Axes", rows: list[EvidenceRow], name: str) -> None:
    printed = [(row.printed[name], place) for place, row in enumerate(rows) if name in row.printed]
    if printed:
        x, y = zip(*printed, strict=True)
        ax.plot(x, y, "D", color=_PAPER, fillstyle="none", markersize=5, label="paper")
    known = [row.known[name] for row in rows]
    ax.errorbar(
        [each.mean for each in known],
        range(len(rows)),
        xerr=[each.half or 0 for each in known],
        fmt="o",
        color=_OURS,
        markersize=4,
        capsize=2,
        label="here, 95 % interval over seeds",
    )


def _label(built: EvidenceTable, row: EvidenceRow) -> str:
    claim, shown = built.claim, [each for each in built.rows if each.known]
    varied = [axis for axis in claim.axes if len({each.axes[axis] for each in shown}) > 1]
    return ", ".join(claim.name(row.axes[axis]) for axis in varied) or claim.title
