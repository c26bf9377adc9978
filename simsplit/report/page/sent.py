"""The section on cost draws bytes by leg as bars, and tabulates rounds and simulated time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simsplit.protocols import LEGS, describe_leg, sort_legs
from simsplit.report.grouping import Row
from simsplit.report.html.chart import draw_legend, make_reachable
from simsplit.report.html.markup import Markup, figure, join, mark_up, section, tag, void
from simsplit.report.html.subject import Subject
from simsplit.report.run_tables import tabulate_costs
from simsplit.results import Run
from simsplit.sizes import format_size

if TYPE_CHECKING:
    import pandas as pd

Bar = tuple[str, list[tuple[str, float]]]
"""A name and its parts: (leg, bytes)."""


def draw_sent(subject: Subject) -> Markup:
    """Draw the bytes sent in training: a bar per leg of one run, or per setting of several."""
    run = subject.one
    if run is not None:
        legs = _sum_by_leg(run)
        bars: list[Bar] = [(describe_leg(leg), [(leg, nbytes)]) for leg, nbytes in legs.items()]
        plain = int(run.rounds["bytes_plain"].sum()) if "bytes_plain" in run.rounds else 0
        bars += [("a plain cut", [("plain", plain)])] if plain else []
        caption = "Bytes sent in training, by leg. Evaluation is not counted."
    else:
        named = zip(subject.names, subject.rows, strict=True)
        bars = [(name, _average(row)) for name, row in named]
        caption = "Bytes sent in training, a bar a setting and a colour a leg; means over seeds."
    if not any(parts for _, parts in bars):
        return Markup()
    tables = [mark_up(each) for each in tabulate_costs(run)] if run is not None else []
    legend = None
    if run is None:
        shown = dict.fromkeys(leg for _, parts in bars for leg, _ in parts)
        swatches = [void("rect", width=12, height=12, class_=_colour_of(leg)) for leg in shown]
        legend = draw_legend(zip(swatches, map(describe_leg, shown), strict=True))
    drawing = join((legend, _draw_bars(bars)))
    return section("Bytes and time", figure(drawing, caption), *tables)


def _sum_by_leg(run: Run) -> dict[str, float]:
    """Return a run's bytes by leg, in the order of a step."""
    wire: pd.DataFrame = run.wire[run.wire["phase"] != "evaluate"]
    totals = {str(leg): float(total) for leg, total in wire.groupby("leg")["bytes"].sum().items()}
    return {leg: totals[leg] for leg in sort_legs(totals)}


def _average(row: Row) -> list[tuple[str, float]]:
    legs = [_sum_by_leg(entry.run) for entry in row.entries]
    names = sort_legs(name for each in legs for name in each)
    means = {name: sum(each.get(name, 0.0) for each in legs) / len(legs) for name in names}
    return [(name, mean) for name, mean in means.items() if mean]


def _draw_bars(bars: Sequence[Bar]) -> Markup:
    most = max(sum(nbytes for _, nbytes in parts) for _, parts in bars) or 1
    lines = []
    for place, (name, parts) in enumerate(bars):
        total, at, pieces = sum(nbytes for _, nbytes in parts), 0.0, []
        for index, (leg, nbytes) in enumerate(parts):
            whose = f"{name}, {describe_leg(leg)}" if len(parts) > 1 else name
            wide = 100 * nbytes / most
            piece = void(
                "rect",
                x=f"{at:.3f}",
                y=0,
                width=f"{max(wide, 0.15):.3f}",
                height=10,
                class_=f"piece {_colour_of(leg)}",
                **make_reachable(f"{whose}: {format_size(nbytes)}", first=place == index == 0),
            )
            pieces.append(piece)
            at += wide
        bar = tag("svg", *pieces, viewBox="0 0 100 10", preserveAspectRatio="none", data_group="")
        value = tag("span", format_size(total), class_="value")
        lines.append(tag("li", tag("span", name, class_="name"), bar, value))
    label = "Bytes sent. Arrow keys move between bars."
    return tag("ul", *lines, class_="bars", data_chart="", aria_label=label)


def _colour_of(leg: str) -> str:
    """Return the class of a leg's colour; legs that only a plugin knows share the last one."""
    if leg == "plain":
        return "muted"
    return f"c{LEGS.index(leg) if leg in LEGS else len(LEGS)}"
