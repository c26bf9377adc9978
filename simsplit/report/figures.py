"""Figures of runs: small functions that draw into axes, for notebooks and for whoever writes a
paper.

Each takes runs (`Run.load`, or what `run` gave back) and optionally the axes to draw into, and
gives the axes back. matplotlib is imported when the first one is drawn.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simsplit.errors import RunError, near
from simsplit.report.detections import flagged_of, malicious_of
from simsplit.results import Run
from simsplit.results.images import load_images

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HONEST, MALICIOUS = "0.6", "crimson"
_NO_ATTACK = ("originals", "black", "mean_image", "random_tokens", "frequent_token")
_READ = {"rouge_l": "ROUGE-L", "meteor": "METEOR", "token_accuracy": "token accuracy"}
_LEGS = ("smashed", "features", "features_grad", "smashed_grad", "labels", "handover", "broadcast")


def accuracy(
    runs: Mapping[str, Run],
    x: str = "round",
    figure: str = "test_accuracy",
    ax: "Axes | None" = None,
) -> "Axes":
    """A figure of the `rounds` table over rounds, bytes (`bytes_total`) or simulated seconds."""
    ax = _axes(ax)
    for name, run in runs.items():
        known = run.rounds.dropna(subset=[figure])
        ax.plot(known[x], known[figure], marker=".", label=name)
    ax.set(xlabel=x.replace("_", " "), ylabel=figure.replace("_", " "))
    if x.startswith("bytes"):
        ax.xaxis.set_major_formatter(lambda value, _: f"{value / 2**20:,.0f} MiB")
    ax.legend()
    return ax


def bytes_by_leg(runs: Mapping[str, Run], ax: "Axes | None" = None) -> "Axes":
    """What each run sent while training, stacked by leg, in MiB."""
    ax = _axes(ax)
    bottom = np.zeros(len(runs))
    totals = ("total", "evaluation")
    own = [leg for run in runs.values() for leg in run.summary["bytes"] if leg not in totals]
    for leg in dict.fromkeys((*_LEGS, *own)):  # a plugin's topology may have others
        sent = np.array([run.summary["bytes"].get(leg, 0) / 2**20 for run in runs.values()])
        if sent.any():
            ax.bar(list(runs), sent, bottom=bottom, label=leg)
        bottom += sent
    ax.set(ylabel="MiB sent")
    ax.legend()
    return ax


def signal(run: Run, detector: str, *, z: bool = True, ax: "Axes | None" = None) -> "Axes":
    """A detector's score, or its robust z, of every client over rounds; malicious ones in red."""
    ax = _axes(ax)
    column = f"{detector}_z" if z else detector
    _refuse_unknown(run, detector)
    bad = malicious_of(run)
    for client, table in run.clients.groupby("client"):
        known = table.dropna(subset=[column])
        is_bad = client in bad
        colour, front = (MALICIOUS, 3) if is_bad else (HONEST, 2)
        label = f"client {client}, malicious" if is_bad else None
        ax.plot(known["round"], known[column], color=colour, zorder=front, marker=".", label=label)
    if z:
        for cut in (-3, 3):
            ax.axhline(cut, color="black", linewidth=0.8, linestyle=":")
        _spread_out(ax)
    ax.set(xlabel="round", ylabel=f"{detector}, z" if z else detector)
    if bad:
        ax.legend()
    return ax


def attack(runs: Mapping[str, Run], ax: "Axes | None" = None) -> "Axes":
    """Attack success (solid) beside test accuracy (dashed) over rounds."""
    ax = _axes(ax)
    for name, run in runs.items():
        known = run.rounds.dropna(subset=["attack_success"])
        (line,) = ax.plot(known["round"], known["attack_success"], marker=".", label=name)
        ax.plot(known["round"], known["test_accuracy"], color=line.get_color(), linestyle="--")
    ax.set(xlabel="round", ylabel="attack success (dashed: accuracy)", ylim=(-0.02, 1.02))
    ax.legend()
    return ax


def roc(runs: Sequence[Run], detectors: Sequence[str], ax: "Axes | None" = None) -> "Axes":
    """Each detector's ROC over the clients of all runs, by how far they are from the others at the
    last round.
    """
    from sklearn.metrics import auc, roc_curve

    ax = _axes(ax)
    for detector in detectors:
        bad, away = _pooled(runs, detector)
        fpr, tpr, _ = roc_curve(bad, away)
        ax.step(fpr, tpr, where="post", label=f"{detector} ({auc(fpr, tpr):.2f})")
    ax.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":")
    ax.set(xlabel="honest clients flagged", ylabel="malicious clients caught")
    ax.legend()
    return ax


def caught(runs: Mapping[str, Run], detectors: Sequence[str], ax: "Axes | None" = None) -> "Axes":
    """Which detector catches what: F1 at the end, a row per run; a clean run shows its alarms."""
    ax = _axes(ax)
    values = np.array([[_f1(run, name) for name in detectors] for run in runs.values()])
    ax.imshow(values, cmap="RdYlGn", vmin=0, vmax=1, aspect="auto")
    ax.set_xticks(range(len(detectors)), detectors, rotation=20, ha="right")
    ax.set_yticks(range(len(runs)), list(runs))
    for row, run in enumerate(runs.values()):
        for column, name in enumerate(detectors):
            alarms = len(set(flagged_of(run, name)) - set(malicious_of(run)))
            told = f"{values[row, column]:.2f}" if malicious_of(run) else f"{alarms} flagged"
            dark = abs(values[row, column] - 0.5) > 0.35
            colour = "white" if dark else "black"
            ax.text(column, row, told, ha="center", va="center", color=colour)
    return ax


def against(
    runs: Mapping[float, Run],
    detectors: Sequence[str],
    ax: "Axes | None" = None,
    xlabel: str = "",
) -> "Axes":
    """How far malicious clients and the worst honest one are from the others, over a setting."""
    ax = _axes(ax)
    settings = sorted(runs)
    for detector in detectors:
        bad, honest = zip(*(_extremes(runs[value], detector) for value in settings), strict=True)
        (line,) = ax.plot(settings, bad, marker="o", label=f"{detector}, malicious")
        ax.plot(settings, honest, marker="x", linestyle=":", color=line.get_color())
    ax.set(xlabel=xlabel, ylabel="|z| (dotted: the worst honest client)")
    _spread_out(ax)
    ax.legend()
    return ax


def recovered(
    runs: "Path | Mapping[str, Path]",
    attacks: Sequence[str] | None = None,
    *,
    count: int = 10,
    number: int | None = None,
) -> "Figure":
    """Originals above reconstructions, a row per attack; of several run directories (or folders of
    attacks), a row each. `number` is the round; the last judged one if none is given.
    """
    from matplotlib import pyplot as plt

    several = runs if isinstance(runs, Mapping) else {"": runs}
    held = {title: load_images(path, number) for title, path in several.items()}
    own = [name for images in held.values() for name in images if name not in _NO_ATTACK]
    named = list(attacks or [*dict.fromkeys(own), "mean_image"])
    rows = [("originals", next(iter(held.values()))["originals"])]
    for name in named:  # attack by attack, so that what a method changes stands side by side
        for title, images in held.items():
            alone = name in _NO_ATTACK
            if name in images and not (alone and len(rows) > 1 and rows[-1][0] == _words(name)):
                rows.append((_words(name if alone else f"{title} {name}"), images[name]))
    columns = min(count, *(len(row) for _, row in rows))
    shape = (len(rows), columns)
    figure, grid = plt.subplots(*shape, figsize=(columns, len(rows) * 1.02), squeeze=False)
    for axes, (label, row) in zip(grid, rows, strict=True):
        for ax, image in zip(axes, row, strict=False):
            ax.imshow(image.transpose(1, 2, 0).squeeze(), cmap="gray", vmin=0, vmax=255)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        axes[0].set_ylabel(label, rotation=0, ha="right", va="center")
    figure.subplots_adjust(wspace=0.04, hspace=0.04)
    return figure


def read(
    runs: "Run | Mapping[str, Run]", figure: str = "rouge_l", ax: "Axes | None" = None
) -> "Axes":
    """How much of private texts each attack read: a bar the guesses that it is surest of, the line
    above it the best of all; dashed, the best guess that needs no attack.
    """
    several = runs if isinstance(runs, Mapping) else {"": runs}
    lasts = {
        title: run.attacks.groupby("attack", sort=False).last() for title, run in several.items()
    }
    named = list(dict.fromkeys(n for last in lasts.values() for n in last.index))
    named = [name for name in named if name not in _NO_ATTACK]
    if ax is None:
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(1.5 + 0.28 * len(named) * (len(lasts) + 1), 3.4))[1]
    width = 0.8 / len(lasts)
    for index, (title, last) in enumerate(lasts.items()):
        own = last.reindex(named)
        at = np.arange(len(named)) + (index - (len(lasts) - 1) / 2) * width
        bars = ax.bar(at, own[figure], width * 0.92, label=title or None)
        ax.vlines(at, own[figure], own[f"best_{figure}"], colors=bars[0].get_facecolor(), lw=2)
    guessed = [last.loc[last.index.isin(_NO_ATTACK), figure].max() for last in lasts.values()]
    ax.axhline(max(guessed), color=HONEST, ls="--", lw=1)
    names = [_words(name).replace(" ", "\n") for name in named]
    ax.set(xticks=np.arange(len(named)), xticklabels=names, ylabel=_READ.get(figure, figure))
    ax.set_ylim(0, 1)
    if len(lasts) > 1:
        ax.legend(fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def attacked(runs: Mapping[str, Run]) -> "Figure":
    """What attacks recovered of several runs: originals and reconstructions, or how much was read
    of texts.
    """
    if any("text" in run.recovered for run in runs.values()):
        return drawn(read(runs))
    return recovered({title: run.path for title, run in runs.items()})


def save_attacked(runs: Mapping[str, Run], sweep: Path) -> Path | None:
    """The same of a sweep's cells, of the seed that comes first, in a file; None: no attacks.

    Where cells are on texts and on images, texts have a second file.
    """
    with_attacks = {name: run for name, run in runs.items() if len(run.recovered)}
    if not with_attacks:
        return None
    first = next(iter(with_attacks.values())).summary["seed"]
    shown = {
        re.sub(r",?seed=[^,]*", "", name).strip(","): run
        for name, run in with_attacks.items()
        if run.summary["seed"] == first
    }
    texts = {name: run for name, run in shown.items() if "text" in run.recovered}
    if texts and len(texts) < len(shown):
        saved(attacked(texts), sweep / "figures" / "read.png")
        shown = {name: run for name, run in shown.items() if name not in texts}
    return saved(attacked(shown), sweep / "figures" / "recovered.png")


def _words(name: str) -> str:
    return name.strip().replace("_", " ")


def drawn(ax: "Axes") -> "Figure":
    """The figure that axes stand in."""
    from matplotlib.figure import Figure

    figure = ax.figure
    assert isinstance(figure, Figure), "drawn by this module, which nests none"
    return figure


def saved(figure: "Figure", file: Path) -> Path:
    """Write a figure into a file, and let go of it."""
    from matplotlib import pyplot as plt

    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120, bbox_inches="tight")
    plt.close(figure)
    return file


def _spread_out(ax: "Axes") -> None:
    """Linear up to five sigma and logarithmic beyond, in plain numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ax.set_yscale("symlog", linthresh=5)
    ax.yaxis.set_major_locator(FixedLocator([-100, -30, -10, -5, -3, 0, 3, 5, 10, 30, 100]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter("{x:g}")


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6, 4))[1]


def _refuse_unknown(run: Run, detector: str) -> None:
    """RunError where the run had no such detector."""
    columns = [str(name) for name in run.clients.columns]
    if f"{detector}_z" not in columns:
        had = [name.removesuffix("_z") for name in columns if name.endswith("_z")]
        raise RunError(
            f"{run.path} has no detector '{detector}'{near(detector, had) or ';'} "
            f"{'it has ' + ' and '.join(had) if had else 'nor any other'}"
        )


def _last(run: Run, detector: str) -> tuple[np.ndarray, np.ndarray]:
    """Of the last round in which a detector judged: who is malicious, and how far each is away."""
    _refuse_unknown(run, detector)
    known = run.clients.dropna(subset=[f"{detector}_z"])
    last = known[known["round"] == known["round"].max()]
    return last["malicious"].to_numpy(), last[f"{detector}_z"].abs().to_numpy()


def _pooled(runs: Sequence[Run], detector: str) -> tuple[np.ndarray, np.ndarray]:
    bad, away = zip(*(_last(run, detector) for run in runs), strict=True)
    return np.concatenate(bad), np.concatenate(away)


def _extremes(run: Run, detector: str) -> tuple[float, float]:
    bad, away = _last(run, detector)
    return (float(away[bad == 1].min()) if bad.any() else np.nan), float(away[bad == 0].max())


def _f1(run: Run, detector: str) -> float:
    """Of a clean run: 1 where nobody is flagged."""
    bad, flagged = set(malicious_of(run)), set(flagged_of(run, detector))
    if not bad:
        return 1 - len(flagged) / run.clients["client"].nunique()
    return 2 * len(bad & flagged) / (len(bad) + len(flagged))
