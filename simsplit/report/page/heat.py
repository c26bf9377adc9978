"""Clients by rounds as heat maps: losses, accuracies, and what detectors made of each client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simsplit.report.detections import malicious_of
from simsplit.report.html.markup import Markup, figure, joined, section, tag, views, void
from simsplit.report.html.subject import Subject
from simsplit.report.thresholds import detectors_of
from simsplit.results import Run

if TYPE_CHECKING:
    import pandas as pd

_ROUNDS, _CLIENTS, _VIEWS = 40, 40, 14
_LEVELS = 9
_CELL, _GAP, _LEFT, _TOP, _BOTTOM = 18, 1.5, 84, 4, 34
_Facts = tuple[int, float, bool, int | None]
"""Of a cell: its round, its value, whether the client was flagged, and the colour."""
_MEASURES = ("train_loss", "train_accuracy", "test_accuracy")
_WIDEST = 6.0
"""Beyond so many robust standard deviations a colour says no more."""


@dataclass(frozen=True)
class _Map:
    """A measure of one run, client by round."""

    run: Run
    column: str
    name: str
    detector: str | None = None

    @property
    def levels(self) -> str:
        """Colours from low to high, or of z away from zero."""
        return "q" if self.detector is None else "d"


def heat(subject: Subject) -> Markup:
    """A map a measure of one run; of several settings, a map a setting."""
    if subject.one is not None:
        maps = _maps(subject.one)
        made = [figure(_drawn(each), _caption(each), each.name) for each in maps]
    else:
        named = list(zip(subject.names, subject.firsts, strict=True))
        named.sort(key=lambda pair: not malicious_of(pair[1].run))  # those come first
        made = [
            figure(_drawn(each), f"{name}, first seed. {_caption(each)}", f"{name}: {each.name}")
            for name, entry in named
            for each in _maps(entry.run)[-1:]
        ]
    return section("Clients", views(made[:_VIEWS], "Heat map of"))


def _maps(run: Run) -> list[_Map]:
    """Losses first, detectors last."""
    table = run.clients
    if table.empty or table["client"].nunique() < 2:
        return []
    known = [name for name in _MEASURES if name in table and table[name].notna().any()]
    maps = [_Map(run, name, name.replace("_", " ")) for name in known]
    return maps + [_Map(run, f"{name}_z", name, name) for name in detectors_of(run)]


def _drawn(made: _Map) -> Markup:
    """Rects by client and round, each with its value in words."""
    table = made.run.clients
    rounds = _thinned(sorted(table["round"].unique()), _ROUNDS)
    bad = malicious_of(made.run)
    clients = _chosen(table, bad, made)
    # duplicates: phases of one round
    wide = table.drop_duplicates(["client", "round"], keep="last").set_index(["client", "round"])
    values = wide[made.column].unstack().reindex(index=clients, columns=rounds).to_numpy(float)
    flags = np.zeros_like(values)
    if made.detector is not None:
        of = wide[f"{made.detector}_flagged"].unstack()
        flags = of.reindex(index=clients, columns=rounds).to_numpy(float)
    levels = _levels(values, diverging=made.detector is not None)
    wide_px = _LEFT + _CELL * len(rounds) + 4
    tall_px = _TOP + _CELL * len(clients) + _BOTTOM
    lines = []
    for place, client in enumerate(clients):
        facts = zip(rounds, values[place], flags[place] == 1, levels[place], strict=True)
        who = f"client {client}{', malicious' if client in bad else ''}"
        cells = [_cell(made, who, place, i, each) for i, each in enumerate(facts)]
        name = _name(place, client, bad=client in bad)
        lines.append(joined((name, tag("g", *cells, data_group=""))))
    drawn = tag(
        "svg",
        *lines,
        _rounds_axis(rounds, len(clients)),
        viewBox=f"0 0 {wide_px} {tall_px}",
        role="group",
        aria_label=f"{made.name} by client and round. Arrow keys move between cells.",
        style=f"width:{1.2 * wide_px:.0f}px",
        data_chart="",
    )
    return joined((_scale(made, values), tag("div", drawn, class_="wide plain")))


def _name(place: int, client: int, *, bad: bool) -> Markup:
    """Before a client's row."""
    at = {"x": _LEFT - 6, "y": _TOP + (place + 0.5) * _CELL, "dy": "0.32em"}
    style = "bad" if bad else None
    words = f"client {client}{' ▲' if bad else ''}"
    return tag("text", words, **at, text_anchor="end", class_=style, aria_hidden="true")


def _cell(made: _Map, who: str, row: int, column: int, facts: _Facts) -> Markup:
    """A client in a round."""
    number, value, flagged, level = facts
    told = "nothing" if np.isnan(value) else f"{value:.3g}"
    colour = "none" if level is None else f"{made.levels}{level}"
    return void(
        "rect",
        x=_LEFT + column * _CELL,
        y=_TOP + row * _CELL,
        width=_CELL - _GAP,
        height=_CELL - _GAP,
        class_=f"cell {colour}{' flagged' if flagged else ''}",
        role="img",
        aria_label=f"{who}, round {number}: {made.name} {told}{', flagged' if flagged else ''}",
        data_p="",
        tabindex="0" if row == column == 0 else "-1",
    )


def _rounds_axis(rounds: Sequence[int], clients: int) -> Markup:
    bottom = _TOP + clients * _CELL + 13
    every = max(1, len(rounds) // 10)
    marks = [
        tag("text", str(number), x=_LEFT + (i + 0.5) * _CELL, y=bottom, text_anchor="middle")
        for i, number in enumerate(rounds)
        if i % every == 0 or (i == len(rounds) - 1 and i % every > every / 2)
    ]
    at = {"x": _LEFT + len(rounds) * _CELL / 2, "y": bottom + 17}
    label = tag("text", "round", **at, text_anchor="middle", class_="label")
    return tag("g", *marks, label, aria_hidden="true")


def _levels(values: np.ndarray, *, diverging: bool) -> list[list[int | None]]:
    """Which of the style's colours a value has; of z the middle one is zero."""
    known = values[np.isfinite(values)]
    if not known.size:
        return [[None] * values.shape[1] for _ in values]
    least, most = _span(known, diverging=diverging)
    shares = np.clip((values - least) / ((most - least) or 1), 0, 1)
    return [
        [None if np.isnan(share) else min(_LEVELS - 1, int(share * _LEVELS)) for share in row]
        for row in shares
    ]


def _span(known: np.ndarray, *, diverging: bool) -> tuple[float, float]:
    """The values that have the first and the last colour; z is as wide below zero as above."""
    if not diverging:
        return float(known.min()), float(known.max())
    most = min(_WIDEST, max(3.0, float(np.abs(known).max())))
    return -most, most


def _scale(made: _Map, values: np.ndarray) -> Markup:
    """From which value to which the colours go."""
    known = values[np.isfinite(values)]
    if not known.size:
        return Markup()
    least, most = float(known.min()), float(known.max())
    if made.detector is not None:
        most = min(_WIDEST, max(3.0, float(np.abs(known).max())))
        least = -most
    steps = [
        void("rect", x=i * 14, width=14, height=12, class_=f"{made.levels}{i}")
        for i in range(_LEVELS)
    ]
    bar = tag("svg", *steps, viewBox=f"0 0 {14 * _LEVELS} 12", class_="scale", aria_hidden="true")
    return tag("p", f"{least:.3g} ", bar, f" {most:.3g}", class_="legend")


def _caption(made: _Map) -> str:
    words = f"{made.name[:1].upper()}{made.name[1:]} of each client in each round"
    if made.detector is not None:
        words = f"Robust z of {made.detector}, client by round; outlined cells were flagged"
    clients, rounds = made.run.clients["client"].nunique(), made.run.clients["round"].nunique()
    if malicious_of(made.run):
        words += "; ▲ marks malicious clients"
    if clients > _CLIENTS:
        words += f"; {_CLIENTS} of {clients} clients, malicious and flagged ones first"
    if rounds > _ROUNDS:
        words += f"; {_ROUNDS} of {rounds} rounds, evenly spaced"
    return f"{words}."


def _chosen(table: "pd.DataFrame", bad: Sequence[int], made: _Map) -> list[int]:
    """As many clients as can be shown."""
    everybody = sorted(int(client) for client in table["client"].unique())
    flagged: list[int] = []
    if made.detector is not None:
        of = table.loc[table[f"{made.detector}_flagged"] == 1, "client"]
        flagged = sorted(int(client) for client in of.unique())
    return sorted(list(dict.fromkeys((*bad, *flagged, *everybody)))[:_CLIENTS])


def _thinned(numbers: Sequence[int], most: int) -> list[int]:
    if len(numbers) <= most:
        return [int(number) for number in numbers]
    places = np.linspace(0, len(numbers) - 1, most).round().astype(int)
    return [int(numbers[place]) for place in places]
