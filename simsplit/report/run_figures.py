"""A run's pictures in `figures/` are drawn from its tables when it ends, and again by `report`.

They are made without pyplot, so that no window opens and no notebook's backend affects them.
"""

import warnings
from typing import TYPE_CHECKING, Any

from simsplit.legs import is_crowd
from simsplit.metrics import format_column
from simsplit.protocols import describe_leg, sort_legs
from simsplit.report.canvas import (
    COLOURS,
    HATCHES,
    colour_of_leg,
    escape_text,
    mark_whole_rounds,
    save_figure,
)
from simsplit.report.detections import find_cut, list_detectors
from simsplit.report.figures import signal
from simsplit.report.presentations import Drawing, list_presentations
from simsplit.report.rates import choose_headline
from simsplit.results import HOLDINGS, Run
from simsplit.sizes import format_size

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "figures"
_BLUE, _ORANGE = "#0072b2", "#d55e00"
_MIB = 2**20
_NAMED = 60
"""The most clients whose names stand beside their bars."""
_LEGEND = 20
"""The most classes that a legend names; for more classes, colours show only their order."""
_MOST = 6
"""The most detectors in a picture, since each takes a tenth of a second to draw."""


def draw_figures(run: Run) -> list[str]:
    """Draw a run's pictures again; return a line with the reason for each that failed."""
    failed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example that the font lacks a letter
        drawings = dict(_DRAWINGS)
        for _, each in list_presentations():
            drawings |= each.drawings
        for name, drawing in drawings.items():
            try:
                if (figure := drawing.draw(run)) is not None:
                    save_figure(figure, run.path / FOLDER / f"{name}.png", fitted=drawing.fitted)
            except Exception as error:  # noqa: BLE001 - a failed picture must not fail the run
                why = str(error) or type(error).__name__
                failed.append(f"{FOLDER}/{name}.png was not drawn: {why}")
    return failed


def draw_learning_curve(run: Run) -> "Figure | None":
    """Draw the task's figure over rounds and over bytes, with an attack's success."""
    name = choose_headline(run)
    if name is None:
        return None
    words = f"{format_column(name)} over rounds and over bytes"
    figure = _make_figure(run, words, 9, 3.7, left=0.7)
    rounds = run.rounds.assign(sent=run.rounds["bytes_total"] / _MIB)
    styles = {
        f"test_{name}": {"ls": "-", "color": _BLUE},
        f"validation_{name}": {"ls": "--", "color": _BLUE},
        "attack_success": {"ls": ":", "color": _ORANGE},
    }
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, x, label in ((left, "round", "round"), (right, "sent", "MiB sent")):
        for column, style in styles.items():
            if column in rounds:
                known = rounds.dropna(subset=[column])
                ax.plot(known[x], known[column], **style, marker=".", label=format_column(column))
        ax.set(xlabel=label)
        ax.grid(color="0.92")
    mark_whole_rounds(left)
    left.set(ylabel=format_column(name))
    left.legend(frameon=False)
    return figure


def draw_bytes_by_leg(run: Run) -> "Figure | None":
    """Draw the bytes sent in training, a bar per leg."""
    sent = sum_by_leg(run)
    if sent.empty:
        return None
    words = "bytes sent in training, by leg"
    figure = _make_figure(run, words, 7, 1.2 + 0.4 * len(sent), left=2.2)
    draw_bars_of_legs(figure.subplots(), sent)
    return figure


def sum_by_leg(run: Run) -> "pd.Series[float]":
    """Sum the MiB that were sent in training on each leg that carried anything."""
    training = run.wire[run.wire["phase"] != "evaluate"]
    sent = training.groupby("leg", sort=False)["bytes"].sum() / _MIB
    return sent.reindex(sort_legs(sent.index[sent > 0]))


def draw_bars_of_legs(ax: "Axes", sent: "pd.Series[float]") -> None:
    """Draw a bar for each leg into the axes, with its size."""
    bars = ax.barh(
        [describe_leg(leg) for leg in sent.index],
        sent.to_numpy(),
        color=[colour_of_leg(leg) for leg in sent.index],
    )
    ax.bar_label(bars, [format_size(value * _MIB) for value in sent], padding=3)
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    ax.set(xlabel=f"MiB sent in training, {format_size(sent.sum() * _MIB)} in all")
    ax.margins(x=0.2)


def draw_holdings(run: Run) -> "Figure | None":
    """Draw the classes of each client's data as bars; return None if the run did not keep them.

    A crowd's bars would be too thin to see, and take longer to draw than to train.
    """
    if not (run.path / HOLDINGS).exists() or is_crowd(int(run.holdings["client"].max()) + 1):
        return None
    from matplotlib import colormaps

    table = run.holdings.pivot_table(
        index="client", columns="class", values="samples", fill_value=0, aggfunc="sum"
    )
    named: dict[Any, str] = dict(enumerate(run.data["classes"]))
    clients = list(table.index)
    longest = max(map(len, run.client_names.names), default=0) if len(clients) <= _NAMED else 0
    left = max(0.7, 0.3 + 0.078 * longest)
    tall = max(2.5, min(8.3, 1.2 + 0.22 * len(clients)))
    figure = _make_figure(run, "who holds what", 9, tall, left=left)
    figure.subplots_adjust(right=0.8)
    ax, before = figure.subplots(), [0.0] * len(clients)
    few = table.shape[1] <= len(COLOURS)
    for place, number in enumerate(table.columns):
        colour = COLOURS[place] if few else colormaps["viridis"](place / (table.shape[1] - 1))
        hatch = HATCHES[place] if few else ""
        counts = table[number].tolist()
        label = named.get(number, str(number)) if table.shape[1] <= _LEGEND else None
        ax.barh(clients, counts, left=before, height=0.85, color=colour, hatch=hatch,
                edgecolor="white", linewidth=0, label=label)  # fmt: skip
        before = [start + count for start, count in zip(before, counts, strict=True)]
    ax.invert_yaxis()
    ax.set(xlabel="training samples", ylabel="" if run.client_names else "client")
    if run.client_names and len(clients) <= _NAMED:
        ax.set_yticks(clients, [escape_text(run.client_names.get(int(c))) for c in clients])
    ax.spines[["top", "right"]].set_visible(False)
    if table.shape[1] <= _LEGEND:
        ax.legend(title="class", frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def draw_signals(run: Run) -> "Figure | None":
    """Draw each detector's signal of every client over rounds, with its threshold."""
    named = list_detectors(run)
    if not named:
        return None
    shown = named[:_MOST]
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    seen, size = "what detectors see of each client", (4.2 * columns, 3 * lines + 0.3)
    figure = _make_figure(run, seen, *size, left=0.7, bottom=0.7, top=0.5, gap=0.5)
    for place, detector in enumerate(shown, start=1):
        ax = figure.add_subplot(lines, columns, place)
        _draw_signal(run, detector, ax)
        if (legend := ax.get_legend()) is not None:
            legend.remove()  # the words below say what red is
    words = "red: malicious; circled: flagged; dotted: the threshold"
    if len(named) > _MOST:
        words += f"; {len(named) - _MOST} more detectors are in `simsplit report`"
    figure.text(0.01, 0.02, words, fontsize=8)
    return figure


def _draw_signal(run: Run, detector: str, ax: "Axes") -> None:
    """Draw one detector's scores of every client over rounds, with its threshold."""
    cut = find_cut(run, detector)
    absolute = cut is not None and cut.of_scores
    signal(run, detector, z=not absolute, ax=ax, cuts=() if cut is None else cut.lines)
    flagged = run.clients[run.clients[f"{detector}_flagged"] == 1]
    values = flagged[detector if absolute else f"{detector}_z"]
    ax.scatter(flagged["round"], values, s=50, facecolors="none", edgecolors="black", linewidths=1)
    threshold = run.detections.loc[run.detections["detector"] == detector, "threshold"].iloc[-1]
    ax.set_title(f"{detector}\nthreshold: {threshold}", fontsize=8)
    ax.set(ylabel="score" if absolute else "robust z")
    ax.tick_params(labelsize=7)


def _make_figure(
    run: Run,
    words: str,
    width: float,
    height: float,
    *,
    left: float,
    bottom: float = 0.6,
    top: float = 0.4,
    gap: float = 0.0,
) -> "Figure":
    """Make an empty figure, entitled with the run's name and `words`.

    Margins are in inches, since fitting them to texts is slow.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.suptitle(escape_text(f"{run.summary['name']}: {words}"), fontsize=10)
    figure.subplots_adjust(
        left=left / width,
        right=1 - 0.2 / width,
        bottom=bottom / height,
        top=1 - (top + gap / 2) / height,
        hspace=gap,
        wspace=0.25 if gap else 0.08,
    )
    return figure


_DRAWINGS = {
    "learning_curve": Drawing(draw_learning_curve),
    "bytes_by_leg": Drawing(draw_bytes_by_leg),
    "holdings": Drawing(draw_holdings),
    "signals": Drawing(draw_signals),
}
"""Drawings by the names of their files; `presentations` adds those of what attacks recovered."""
