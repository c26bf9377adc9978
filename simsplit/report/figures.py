"""Small functions draw runs into axes, for notebooks and papers.

Each takes runs (`Run.load`, or what `run` returned) and optionally the axes to draw into, and
returns the axes. matplotlib is imported when the first figure is drawn. `input_figures` draws what
attacks recovered.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from simsplit.errors import RunError, suggest
from simsplit.metrics import format_column
from simsplit.protocols import describe_leg, sort_legs
from simsplit.report.canvas import (
    HONEST,
    colour_of_leg,
    ensure_axes,
    escape_text,
    finish_axes,
    mark_whole_rounds,
)
from simsplit.report.canvas import figure_of as drawn
from simsplit.report.canvas import save_figure as saved
from simsplit.report.detections import list_flagged, list_malicious, rank_suspicion, score_f1
from simsplit.report.grouping import Entry, name_rows
from simsplit.report.input_figures import attacked, read, recovered, save_attacked
from simsplit.report.label_figures import components, labels_seen, leak
from simsplit.report.scatter import scatter
from simsplit.report.session_figures import session, sessions
from simsplit.results import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "accuracy",
    "against",
    "attack",
    "attacked",
    "bytes_by_leg",
    "caught",
    "components",
    "drawn",
    "labels_seen",
    "leak",
    "pareto",
    "read",
    "recovered",
    "roc",
    "save_attacked",
    "saved",
    "session",
    "sessions",
    "signal",
]
MALICIOUS = "crimson"


def accuracy(
    runs: Mapping[str, Run],
    x: str = "round",
    figure: str = "test_accuracy",
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw a column of the `rounds` table over rounds, bytes (`bytes_total`) or simulated time."""
    ax = ensure_axes(ax)
    for name, run in runs.items():
        _refuse_column(run, x, figure)
        known = run.rounds.dropna(subset=[figure])
        # In MiB, so that the numbers beside the axis are round.
        along = known[x] / 2**20 if x.startswith("bytes") else known[x]
        ax.plot(along, known[figure], markersize=4, label=name)
    ax.set(xlabel=x.replace("_", " "), ylabel=figure.replace("_", " "))
    if x.startswith("bytes"):
        ax.set_xlabel(f"{x.replace('_', ' ')}, MiB")
        ax.locator_params(axis="x", nbins=4)  # a narrow panel has no room for more numbers
    if x == "round":
        mark_whole_rounds(ax)
    over = "rounds" if x == "round" else format_column(x)
    return finish_axes(ax, f"{format_column(figure)} over {over}")


def pareto(runs: Mapping[str, Run], x: str, y: str) -> "Figure":
    """Draw runs by two figures, like `compare --plot`; seeds of one setting are one point."""
    entries = [Entry(run) for run in runs.values()]
    names = name_rows(entries)
    shown = list(runs) if len(names) == len(runs) else names
    return scatter(entries, f"{x},{y}", "best_on_validation", shown)


def bytes_by_leg(runs: Mapping[str, Run], ax: "Axes | None" = None) -> "Axes":
    """Draw the MiB that each run sent in training, stacked by leg."""
    ax = ensure_axes(ax)
    bottom = np.zeros(len(runs))
    totals = ("total", "evaluation")
    own = [leg for run in runs.values() for leg in run.summary["bytes"] if leg not in totals]
    for leg in sort_legs(own):
        sent = np.array([run.summary["bytes"].get(leg, 0) / 2**20 for run in runs.values()])
        if sent.any():
            words, colour = describe_leg(leg), colour_of_leg(leg)
            ax.bar(list(runs), sent, bottom=bottom, label=words, color=colour)
        bottom += sent
    ax.set(ylabel="MiB sent")
    return finish_axes(ax, "Bytes sent in training, by leg")


def signal(
    run: Run,
    detector: str,
    *,
    z: bool = True,
    ax: "Axes | None" = None,
    cuts: Sequence[float] | None = None,
) -> "Axes":
    """Draw a detector's score, or its robust z, of every client by round; malicious ones in red.

    Dotted lines mark `cuts`; by default three sigma for z, and none for scores.
    """
    _refuse_unknown(run, detector)
    ax = ensure_axes(ax)
    column = f"{detector}_z" if z else detector
    bad = list_malicious(run)
    for client, table in run.clients.groupby("client"):
        known = table[["round", column]].dropna()
        is_bad = client in bad
        colour, front = (MALICIOUS, 3) if is_bad else (HONEST, 2)
        who = escape_text(run.client_names.label(int(str(client))))
        label = f"{who}, malicious" if is_bad else None
        ax.plot(known["round"], known[column], color=colour, zorder=front, marker=".", label=label)
    for cut in cuts if cuts is not None else (-3, 3) * z:
        ax.axhline(cut, color="black", linewidth=0.8, linestyle=":")
    if z:
        _spread_out(ax)
    ax.set(xlabel="round", ylabel=f"{detector}, z" if z else detector)
    mark_whole_rounds(ax)
    return finish_axes(ax, "What the detector sees of each client")


def attack(runs: Mapping[str, Run], ax: "Axes | None" = None) -> "Axes":
    """Draw attack success (solid) and test accuracy (dashed) over rounds."""
    ax = ensure_axes(ax)
    for name, run in runs.items():
        _refuse_column(run, "attack_success", "test_accuracy")
        known = run.rounds.dropna(subset=["attack_success"])
        (line,) = ax.plot(known["round"], known["attack_success"], markersize=4, label=name)
        colour, beside = line.get_color(), known["test_accuracy"]
        ax.plot(known["round"], beside, color=colour, linestyle="--", marker="")
    ax.set(xlabel="round", ylabel="attack success (dashed: accuracy)", ylim=(-0.02, 1.02))
    mark_whole_rounds(ax)
    return finish_axes(ax, "Success of the backdoor, and accuracy beside it")


def roc(runs: Sequence[Run], detectors: Sequence[str], ax: "Axes | None" = None) -> "Axes":
    """Draw each detector's ROC curve over the clients of all runs.

    Clients are ranked as the detector ranks them in the last judged round: of one that looks to one
    side, a client far away on the other is not suspicious.
    """
    from sklearn.metrics import auc, roc_curve

    ax = ensure_axes(ax)
    for detector in detectors:
        bad, away = zip(*(_rank(run, detector) for run in runs), strict=True)
        fpr, tpr, _ = roc_curve(np.concatenate(bad), np.concatenate(away))
        ax.step(fpr, tpr, where="post", markersize=4, label=f"{detector} ({auc(fpr, tpr):.2f})")
    ax.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":")
    ax.set(xlabel="honest clients flagged", ylabel="malicious clients caught")
    return finish_axes(ax, "ROC of each detector, with its area")


def caught(runs: Mapping[str, Run], detectors: Sequence[str], ax: "Axes | None" = None) -> "Axes":
    """Draw each detector's F1 at the end, a row per run; a clean run shows its false alarms."""
    for run in runs.values():
        for name in detectors:
            _refuse_unknown(run, name)
    size = (2.5 + 0.8 * len(detectors), max(3.0, 1.5 + 0.4 * len(runs)))
    ax = ensure_axes(ax, size)
    scores = [[_score(run, name) for name in detectors] for run in runs.values()]
    values = np.array([[value for value, _ in row] for row in scores])
    ax.imshow(values, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    ax.set_xticks(range(len(detectors)), detectors, rotation=35, ha="right", fontsize=8)
    ax.set_title("F1 of each detector; of a clean run, clients flagged", fontsize=10)
    ax.set_yticks(range(len(runs)), list(runs))
    for row, shown in enumerate(scores):
        for column, (value, cell) in enumerate(shown):
            colour = "white" if value < 0.5 else "black"
            ax.text(column, row, cell, ha="center", va="center", color=colour, fontsize=8)
    return ax


def against(
    runs: Mapping[float, Run],
    detectors: Sequence[str],
    ax: "Axes | None" = None,
    xlabel: str = "",
) -> "Axes":
    """Draw malicious clients' least suspicion and honest ones' greatest over a setting.

    It is z towards the side to which a detector looks, either way if it looks to both, and what a
    detector with a fixed threshold compares with it.
    """
    ax = ensure_axes(ax)
    settings = sorted(runs)
    for detector in detectors:
        last = [_rank(runs[value], detector) for value in settings]
        least = [away[bad == 1].min() if bad.any() else np.nan for bad, away in last]
        (line,) = ax.plot(settings, least, label=detector)
        most = [away[bad == 0].max() for bad, away in last]
        ax.plot(settings, most, marker="x", linestyle=":", color=line.get_color())
    ax.set(xlabel=xlabel, ylabel="z of malicious clients (dotted: the worst honest one)")
    _spread_out(ax)
    return finish_axes(ax, "How far malicious clients stand out from honest ones")


def _spread_out(ax: "Axes") -> None:
    """Scale the y axis linearly up to five sigma and logarithmically beyond, in plain numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ax.set_yscale("symlog", linthresh=5)
    ax.yaxis.set_major_locator(FixedLocator([-100, -30, -10, -5, -3, 0, 3, 5, 10, 30, 100]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter("{x:g}")


def _refuse_column(run: Run, *wanted: str) -> None:
    """Raise RunError if the run's `rounds` table lacks a column."""
    columns = [str(name) for name in run.rounds.columns]
    for name in wanted:
        if name not in columns:
            raise RunError(
                f"{run.path} has no column '{name}' in rounds.csv{suggest(name, columns) or ';'} "
                f"it has {', '.join(columns)}"
            )


def _refuse_unknown(run: Run, detector: str) -> None:
    """Raise RunError if the run had no such detector."""
    columns = [str(name) for name in run.clients.columns]
    if f"{detector}_z" not in columns:
        had = [name.removesuffix("_z") for name in columns if name.endswith("_z")]
        raise RunError(
            f"{run.path} has no detector '{detector}'{suggest(detector, had) or ';'} "
            f"{'it has ' + ' and '.join(had) if had else 'nor any other'}"
        )


def _rank(run: Run, detector: str) -> tuple[np.ndarray, np.ndarray]:
    """Return which clients are malicious, and each one's suspicion, in the last judged round."""
    _refuse_unknown(run, detector)
    return rank_suspicion(run, detector)


def _score(run: Run, detector: str) -> tuple[float, str]:
    """Return a detector's F1, or of a clean run the share that it did not flag, and the cell."""
    if list_malicious(run):
        return (f1 := score_f1(run, detector)), f"{f1:.2f}"
    alarms = len(list_flagged(run, detector))
    return 1 - alarms / run.clients["client"].nunique(), f"{alarms} flagged"
