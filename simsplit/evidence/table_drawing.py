"""Tables of papers are drawn: each row as the paper prints it, and ours with its interval."""

from typing import TYPE_CHECKING

from simsplit.evidence.evidence_rows import EvidenceRow
from simsplit.evidence.evidence_tables import EvidenceTable
from simsplit.evidence.presenting import write_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PAPER, _OURS = "0.45", "#0072b2"
_ROW_INCHES, _LEAST_INCHES = 0.22, 1.5
_WIDTH_INCHES = 6
_ORDERS = 20
"""Figures that lie further apart than this, all of them above zero, are drawn on a log scale."""


def list_drawn(built: EvidenceTable) -> list[str]:
    """List the figures of a table that are measured and that the paper prints, or a claim names."""
    claim = built.claim
    named = {each.statement.in_ for each in built.judgements}
    return [
        name
        for name in claim.figures
        if len(_list_rows(built, name)) > 1
        and any(name in row.known and (name in named or name in row.printed) for row in built.rows)
    ]


def _list_rows(built: EvidenceTable, name: str) -> list[EvidenceRow]:
    """List the rows with a figure, but for those that it would put against themselves."""
    own = built.claim.is_own
    return [row for row in built.rows if name in row.known and not own(name, row.axes)]


def draw_table(built: EvidenceTable, name: str) -> "Figure":
    """Draw one figure of a table over its rows that are measured."""
    from matplotlib.figure import Figure

    rows = _list_rows(built, name)
    height = _LEAST_INCHES + _ROW_INCHES * len(rows)
    picture = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    ax = picture.subplots()
    _draw_rows(ax, rows, name)
    claim, known = built.claim, [row for row in built.rows if row.known]
    varied = [axis for axis in claim.axes if len({row.axes[axis] for row in known}) > 1]
    labels = [", ".join(claim.name(row.axes[axis]) for axis in varied) for row in rows]
    ax.set_yticks(range(len(rows)), [label or claim.title for label in labels])
    figure = claim.figures[name]
    title = write_words(name)
    ax.set(xlabel=f"{title}, {figure.unit}" if figure.unit else title)
    values = [row.known[name].mean for row in rows]
    values += [row.printed[name] for row in rows if name in row.printed]
    if min(values) > 0 and max(values) > _ORDERS * min(values):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(axis="x", color="0.92")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    picture.legend(frameon=False, loc="outside upper left", ncols=2)
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
        label="here; bars are 95 % intervals over seeds, where there are several",
    )
