"""Figures show a run client by client: how each learned, and who helps or hurts."""

from typing import TYPE_CHECKING

from simsplit.report.canvas import (
    COLOURS,
    HONEST,
    MARKS,
    escape_text,
    make_shown_figure,
    mark_whole_rounds,
)
from simsplit.report.client_tables import rank_clients
from simsplit.report.detections import list_malicious
from simsplit.report.privacy import mark_view
from simsplit.results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MEASURES = {"train_loss": "training loss", "train_accuracy": "training accuracy"}
_BAD = "crimson"
_NAMED = len(COLOURS)
"""The most clients with a colour of their own; of more, malicious ones and the last stand out."""
_BARS = 40
"""The most clients with a bar: of more, those that help and hurt most."""


def draw_clients(run: Run) -> "Figure":
    """Draw each client's loss and accuracy over rounds, and what it changes if it was measured."""
    known = [name for name in _MEASURES if name in run.clients and run.clients[name].notna().any()]
    ranked = rank_clients(run)
    bars = min(len(ranked), _BARS)
    count = max(1, len(known) + bool(ranked))
    figure = make_shown_figure(4.6 * count, max(3.4, 1.2 + 0.24 * bars))
    axes = list(figure.subplots(1, count, squeeze=False)[0])
    for ax, name in zip(axes, known, strict=False):
        _draw_measure(run, name, ax)
    if known and run.clients["client"].nunique() <= _NAMED:
        axes[0].legend(fontsize=8, frameon=False)
    if ranked:
        _draw_contributions(run, ranked, axes[-1])
    return figure


def _draw_measure(run: Run, name: str, ax: "Axes") -> None:
    bad = set(list_malicious(run))
    clients = sorted(int(each) for each in run.clients["client"].unique())
    few, ranked = len(clients) <= _NAMED, rank_clients(run)
    for place, client in enumerate(clients):
        rows = run.clients[run.clients["client"] == client].dropna(subset=[name])
        colour = COLOURS[place] if few else HONEST
        if not few and (client in bad or (ranked and client == ranked[-1])):
            colour = _BAD
        label = run.client_names.label(client) + (", malicious" if client in bad else "")
        ax.plot(
            rows["round"],
            rows[name],
            color=colour,
            marker=MARKS[place % len(MARKS)] if few else None,
            markersize=4,
            linestyle="--" if client in bad else "-",
            zorder=3 if colour == _BAD else 2,
            label=escape_text(label),
        )
    ax.set(xlabel="round", ylabel=_MEASURES[name])
    ax.set_title(f"{_MEASURES[name]}{mark_view(run, name)} by client")
    mark_whole_rounds(ax)
    ax.grid(color="0.92")


def _draw_contributions(run: Run, ranked: list[int], ax: "Axes") -> None:
    """Draw a bar per client and way of measuring, with its interval; the most helpful on top."""
    shown = ranked if len(ranked) <= _BARS else [*ranked[: _BARS // 2], *ranked[-_BARS // 2 :]]
    made = run.contributions.set_index(["by", "client"])
    ways = list(dict.fromkeys(run.contributions["by"]))
    height = 0.8 / len(ways)
    for index, way in enumerate(ways):
        rows = made.loc[way].reindex(shown)
        places = [place + (index - (len(ways) - 1) / 2) * height for place in range(len(shown))]
        errors = (rows["high"] - rows["value"]).fillna(0)
        colour = COLOURS[index]
        ax.barh(places, rows["value"], height, xerr=errors, color=colour, ecolor="0.3", label=way)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(range(len(shown)), [escape_text(run.client_names.label(c)) for c in shown])
    ax.invert_yaxis()
    score = str(run.contributions["score"].iloc[0]).replace("_", " ")
    ax.set(xlabel=f"change of {score}", title="who helps (right) and who hurts (left)")
    if len(ways) > 1:
        ax.legend(fontsize=8, frameon=False)
