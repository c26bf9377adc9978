"""Heat maps show clients by rounds: losses, accuracies and detectors' scores.

A malicious client or a bad round stands out on a map where a table would hide it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simsplit.report.detections import list_detectors, list_malicious
from simsplit.report.html.chart import make_drawing, make_reachable
from simsplit.report.html.markup import Markup, figure, join, section, tag, views, void
from simsplit.report.html.subject import Subject
from simsplit.report.privacy import mark_view
from simsplit.report.tables import thin
from simsplit.results import Run
from simsplit.rows import LEARNED

if TYPE_CHECKING:
    import pandas as pd

_ROUNDS, _CLIENTS, _VIEWS = 40, 40, 14
_LEVELS = 9
_CELL, _GAP, _TOP, _BOTTOM = 18, 1.5, 4, 34
_LEFT, _WIDEST_LEFT, _LETTER = 84, 210, 7
"""Pixels before the cells, at least and at most, and of a letter of a client's name."""
_Facts = tuple[int, float, bool, int | None]
"""A cell's round, value, whether the client was flagged, and colour."""
_MEASURES = (*LEARNED, "test_accuracy")
_WIDEST = 6.0
"""Robust standard deviations from which on all values have the same colour."""


@dataclass(frozen=True)
class _Map:
    """A measure of one run, by client and round."""

    run: Run
    column: str
    name: str
    detector: str | None = None

    @property
    def levels(self) -> str:
        """The name of the colour scale: from low to high, or for z away from zero."""
        return "q" if self.detector is None else "d"

    @property
    def left(self) -> int:
        """The pixels before the cells, where clients' names stand."""
        longest = max((len(name) for name in self.run.client_names.names), default=0)
        return max(_LEFT, min(_WIDEST_LEFT, _LETTER * (longest + 3)))


def draw_heat_maps(subject: Subject) -> Markup:
    """Draw a map per measure of one run, or one map per setting of several."""
    if subject.one is not None:
        maps = _list_maps(subject.one)
        made = [figure(_draw_map(each), _write_caption(each), each.name) for each in maps]
    else:
        named = list(zip(subject.names, subject.firsts, strict=True))
        named.sort(key=lambda pair: not list_malicious(pair[1].run))  # attacked settings come first
        last = [(name, each) for name, entry in named for each in _list_maps(entry.run)[-1:]]
        made = []
        for name, each in last:
            caption = f"{name}, first seed. {_write_caption(each)}"
            made.append(figure(_draw_map(each), caption, f"{name}: {each.name}"))
    return section("Clients", views(made[:_VIEWS], "Heat map of"))


def _list_maps(run: Run) -> list[_Map]:
    """List the maps of a run, losses first and detectors last."""
    table = run.clients
    if table.empty or table["client"].nunique() < 2:
        return []
    known = [name for name in _MEASURES if name in table and table[name].notna().any()]
    maps = [_Map(run, name, name.replace("_", " ") + mark_view(run, name)) for name in known]
    return maps + [_Map(run, f"{name}_z", name, name) for name in list_detectors(run)]


def _draw_map(made: _Map) -> Markup:
    """Draw a map as rectangles by client and round, each with its value in words."""
    table = made.run.clients
    rounds = thin([int(number) for number in sorted(table["round"].unique())], _ROUNDS)
    bad = list_malicious(made.run)
    clients = _choose_clients(table, bad, made)
    # a client has several rows in a round with several phases
    wide = table.drop_duplicates(["client", "round"], keep="last").set_index(["client", "round"])
    values = wide[made.column].unstack().reindex(index=clients, columns=rounds).to_numpy(float)
    flags = np.zeros_like(values)
    if made.detector is not None:
        of = wide[f"{made.detector}_flagged"].unstack()
        flags = of.reindex(index=clients, columns=rounds).to_numpy(float)
    span = _find_span(made, values)
    levels = _choose_levels(values, span)
    lines = []
    for place, client in enumerate(clients):
        facts = zip(rounds, values[place], flags[place] == 1, levels[place], strict=True)
        who = f"{made.run.client_names.label(client)}{', malicious' if client in bad else ''}"
        cells = [_draw_cell(made, who, place, i, each) for i, each in enumerate(facts)]
        name = _write_client(made, place, client, bad=client in bad)
        lines.append(join((name, tag("g", *cells, data_group=""))))
    across = made.left + _CELL * len(rounds) + 4
    drawing = make_drawing(
        [*lines, _draw_rounds_axis(rounds, len(clients), made.left)],
        (across, _TOP + _CELL * len(clients) + _BOTTOM),
        f"{made.name} by client and round. Arrow keys move between cells.",
        f"width:{1.2 * across:.0f}px",
    )
    scale = _draw_scale(made.levels, *span) if span else None
    return join((scale, tag("div", drawing, class_="wide plain")))


def _write_client(made: _Map, place: int, client: int, *, bad: bool) -> Markup:
    """Write a client's name before its row, as much of it as there is room for."""
    at = {"x": made.left - 6, "y": _TOP + (place + 0.5) * _CELL, "dy": "0.32em"}
    style = "bad" if bad else None
    name = made.run.client_names.label(client)
    most = made.left // _LETTER - 3
    if made.run.client_names and len(name) > most:
        name = name[: most - 1] + "…"
    words = f"{name}{' ▲' if bad else ''}"
    return tag("text", words, **at, text_anchor="end", class_=style, aria_hidden="true")


def _draw_cell(made: _Map, who: str, row: int, column: int, facts: _Facts) -> Markup:
    """Draw the cell of one client in one round."""
    number, value, flagged, level = facts
    shown = "nothing" if np.isnan(value) else f"{value:.3g}"
    colour = "none" if level is None else f"{made.levels}{level}"
    words = f"{who}, round {number}: {made.name} {shown}{', flagged' if flagged else ''}"
    return void(
        "rect",
        x=made.left + column * _CELL,
        y=_TOP + row * _CELL,
        width=_CELL - _GAP,
        height=_CELL - _GAP,
        class_=f"cell {colour}{' flagged' if flagged else ''}",
        **make_reachable(words, first=row == column == 0),
    )


def _draw_rounds_axis(rounds: Sequence[int], clients: int, left: int) -> Markup:
    bottom = _TOP + clients * _CELL + 13
    every = max(1, len(rounds) // 10)
    marks = [
        tag("text", str(number), x=left + (i + 0.5) * _CELL, y=bottom, text_anchor="middle")
        for i, number in enumerate(rounds)
        if i % every == 0 or (i == len(rounds) - 1 and i % every > every / 2)
    ]
    at = {"x": left + len(rounds) * _CELL / 2, "y": bottom + 17}
    label = tag("text", "round", **at, text_anchor="middle", class_="label")
    return tag("g", *marks, label, aria_hidden="true")


def _choose_levels(values: np.ndarray, span: tuple[float, float] | None) -> list[list[int | None]]:
    """Choose each value's colour from the style's levels; for z the middle one is zero."""
    if span is None:
        return [[None] * values.shape[1] for _ in values]
    least, most = span
    shares = np.clip((values - least) / ((most - least) or 1), 0, 1)
    return [
        [None if np.isnan(share) else min(_LEVELS - 1, int(share * _LEVELS)) for share in row]
        for row in shares
    ]


def _find_span(made: _Map, values: np.ndarray) -> tuple[float, float] | None:
    """Return the values of the first and the last colour, if any; the range of z is symmetric."""
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    if made.detector is None:
        return float(known.min()), float(known.max())
    most = min(_WIDEST, max(3.0, float(np.abs(known).max())))
    return -most, most


def _draw_scale(levels: str, least: float, most: float) -> Markup:
    """Draw the legend of colours with the least and the greatest value."""
    steps = [
        void("rect", x=i * 14, width=14, height=12, class_=f"{levels}{i}") for i in range(_LEVELS)
    ]
    bar = tag("svg", *steps, viewBox=f"0 0 {14 * _LEVELS} 12", class_="scale", aria_hidden="true")
    return tag("p", f"{least:.3g} ", bar, f" {most:.3g}", class_="legend")


def _write_caption(made: _Map) -> str:
    words = f"{made.name[:1].upper()}{made.name[1:]} of each client in each round"
    if made.detector is not None:
        words = f"Robust z of {made.detector}, client by round; outlined cells were flagged"
    clients, rounds = made.run.clients["client"].nunique(), made.run.clients["round"].nunique()
    if list_malicious(made.run):
        words += "; ▲ marks malicious clients"
    if clients > _CLIENTS:
        words += f"; {_CLIENTS} of {clients} clients, malicious and flagged ones first"
    if rounds > _ROUNDS:
        words += f"; {_ROUNDS} of {rounds} rounds, evenly spaced"
    return f"{words}."


def _choose_clients(table: "pd.DataFrame", bad: Sequence[int], made: _Map) -> list[int]:
    """Choose the clients to show, malicious and flagged ones before others."""
    everybody = sorted(int(client) for client in table["client"].unique())
    flagged: list[int] = []
    if made.detector is not None:
        of = table.loc[table[f"{made.detector}_flagged"] == 1, "client"]
        flagged = sorted(int(client) for client in of.unique())
    return sorted(list(dict.fromkeys((*bad, *flagged, *everybody)))[:_CLIENTS])
