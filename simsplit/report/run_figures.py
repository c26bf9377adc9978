"""A run's own pictures, in `figures/`: drawn from its tables when it ends, and again by `report`.

They are made without pyplot, so that no window and no backend of a notebook has a part in them.
"""

import warnings
from typing import TYPE_CHECKING, Any

from simsplit.metrics.headline import said
from simsplit.preflight import size
from simsplit.report.canvas import colour_of_leg, saved
from simsplit.report.figures import signal
from simsplit.report.headline import headline
from simsplit.report.presentations import PRESENTATIONS, Drawing
from simsplit.report.thresholds import cut_of, detectors_of
from simsplit.results import HOLDINGS, Run
from simsplit.topologies import describe_leg, sort_legs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "figures"
_BLUE, _ORANGE = "#0072b2", "#d55e00"
_MIB = 2**20
_LEGEND = 20
"""Classes that a legend names; of more, colours show the order alone."""
_MOST = 6
"""Detectors in a picture: each takes a tenth of a second."""


def draw_figures(run: Run) -> list[str]:
    """Draw a run's pictures anew; a line for each that could not be drawn, and why."""
    failed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a letter that the font has not, say
        for name, drawing in _all_drawings().items():
            try:
                if (figure := drawing.draw(run)) is not None:
                    saved(figure, run.path / FOLDER / f"{name}.png", fitted=drawing.fitted)
            except Exception as error:  # noqa: BLE001 - a picture must not cost a run
                why = str(error) or type(error).__name__
                failed.append(f"{FOLDER}/{name}.png was not drawn: {why}")
    return failed


def _all_drawings() -> dict[str, Drawing]:
    drawings = dict(_DRAWINGS)
    for each in PRESENTATIONS.values():
        drawings |= each.drawings
    return drawings


def learning_curve(run: Run) -> "Figure | None":
    """The task's own figure over rounds, and over bytes; an attack's success below it."""
    name = headline(run)
    if name is None:
        return None
    figure = _figure(9, 3.4, left=0.7, bottom=0.6)
    rounds = run.rounds.assign(sent=run.rounds["bytes_total"] / _MIB)
    looks = {
        f"test_{name}": {"ls": "-", "color": _BLUE},
        f"validation_{name}": {"ls": "--", "color": _BLUE},
        "attack_success": {"ls": ":", "color": _ORANGE},
    }
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, x, label in ((left, "round", "round"), (right, "sent", "MiB sent")):
        for column, look in looks.items():
            if column in rounds:
                known = rounds.dropna(subset=[column])
                ax.plot(known[x], known[column], **look, marker=".", label=said(column))
        ax.set(xlabel=label)
        ax.grid(color="0.92")
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set(ylabel=said(name))
    left.legend(frameon=False)
    return figure


def bytes_by_leg(run: Run) -> "Figure | None":
    """What was sent in training, a bar a leg."""
    training = run.wire[run.wire["phase"] != "evaluate"]
    sent = training.groupby("leg", sort=False)["bytes"].sum() / _MIB
    sent = sent.reindex(sort_legs(sent.index[sent > 0]))  # what nobody sent would only take a line
    if sent.empty:
        return None
    figure = _figure(7, 0.9 + 0.4 * len(sent), left=1.9, bottom=0.6)
    ax = figure.subplots()
    bars = ax.barh(
        [describe_leg(leg) for leg in sent.index],
        sent.to_numpy(),
        color=[colour_of_leg(leg) for leg in sent.index],
    )
    ax.bar_label(bars, [size(value * _MIB) for value in sent], padding=3)
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)
    ax.set(xlabel=f"MiB sent in training, {size(sent.sum() * _MIB)} in all")
    ax.margins(x=0.2)
    return figure


def holdings(run: Run) -> "Figure | None":
    """Who holds what: a bar a client, a colour a class; of runs that have kept it."""
    if not (run.path / HOLDINGS).exists():
        return None
    from matplotlib import colormaps

    table = run.holdings.pivot_table(
        index="client", columns="class", values="samples", fill_value=0, aggfunc="sum"
    )
    named: dict[Any, str] = dict(enumerate(run.data["classes"]))
    clients = list(table.index)
    figure = _figure(9, max(2.2, min(8.0, 0.9 + 0.22 * len(clients))), left=0.7, bottom=0.6)
    figure.subplots_adjust(right=0.8)
    ax, before = figure.subplots(), [0.0] * len(clients)
    colours = colormaps["tab10" if table.shape[1] <= 10 else "viridis"]
    for place, number in enumerate(table.columns):
        share = place if table.shape[1] <= 10 else place / (table.shape[1] - 1)
        counts = table[number].tolist()
        label = named.get(number, str(number)) if table.shape[1] <= _LEGEND else None
        ax.barh(clients, counts, left=before, height=0.85, color=colours(share), label=label)
        before = [start + count for start, count in zip(before, counts, strict=True)]
    ax.invert_yaxis()
    ax.set(xlabel="training samples", ylabel="client")
    ax.spines[["top", "right"]].set_visible(False)
    if table.shape[1] <= _LEGEND:
        ax.legend(title="class", frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def signals(run: Run) -> "Figure | None":
    """Each detector's signal of every client over rounds, and the threshold that it had."""
    named = detectors_of(run)
    if not named:
        return None
    shown = named[:_MOST]
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure = _figure(4.2 * columns, 3 * lines, left=0.7, bottom=0.7, gap=0.5)
    for place, detector in enumerate(shown, start=1):
        ax = figure.add_subplot(lines, columns, place)
        _signal(run, detector, ax)
        if (legend := ax.get_legend()) is not None and place > 1:
            legend.remove()
    told = "red: malicious; circled: flagged; dotted: the threshold"
    if len(named) > _MOST:
        told += f"; {len(named) - _MOST} more detectors are in `simsplit report`"
    figure.text(0.01, 0.02, told, fontsize=8)
    return figure


def _signal(run: Run, detector: str, ax: "Axes") -> None:
    """One detector's scores per client over rounds, with its threshold."""
    cut = cut_of(run, detector)
    absolute = cut is not None and cut.of_scores
    signal(run, detector, z=not absolute, ax=ax, cuts=() if cut is None else cut.lines)
    flagged = run.clients[run.clients[f"{detector}_flagged"] == 1]
    values = flagged[detector if absolute else f"{detector}_z"]
    ax.scatter(flagged["round"], values, s=50, facecolors="none", edgecolors="black", linewidths=1)
    threshold = run.detections.loc[run.detections["detector"] == detector, "threshold"].iloc[-1]
    ax.set_title(f"{detector}\nthreshold: {threshold}", fontsize=8)
    ax.set(ylabel="score" if absolute else "robust z")
    ax.tick_params(labelsize=7)


def _figure(
    width: float, height: float, *, left: float, bottom: float, gap: float = 0.0
) -> "Figure":
    """An empty figure with margins in inches: to fit them to their texts takes twice as long."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(
        left=left / width,
        right=1 - 0.2 / width,
        bottom=bottom / height,
        top=1 - (0.2 + gap / 2) / height,
        hspace=gap,
        wspace=0.25 if gap else 0.08,
    )
    return figure


_DRAWINGS = {
    "learning_curve": Drawing(learning_curve),
    "bytes_by_leg": Drawing(bytes_by_leg),
    "holdings": Drawing(holdings),
    "signals": Drawing(signals),
}
"""By the names of their files; what attacks recovered has drawings of its own."""
