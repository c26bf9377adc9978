"""Figures show recovered images beside the originals, or how much attacks read of texts."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simsplit.errors import RunError, suggest
from simsplit.metrics import METRICS
from simsplit.report.canvas import (
    COLOURS,
    HONEST,
    MARKS,
    escape_text,
    figure_of,
    mark_whole_rounds,
    save_figure,
)
from simsplit.report.input_tables import find_kind
from simsplit.results import Run
from simsplit.results.leak_table import INPUTS, ORIGINALS, PICTURE, take_last_judged
from simsplit.results.recovered_files import IMAGES, load_images
from simsplit.results.recovered_kinds import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NO_ATTACK = (ORIGINALS, *(guess for kind in INPUTS for guess in KINDS[kind].guesses))
_CURVES = ("rouge_l", "correlation")


def recovered(
    runs: "Path | Mapping[str, Path]",
    attacks: Sequence[str] | None = None,
    *,
    count: int = 10,
    number: int | None = None,
) -> "Figure":
    """Draw originals above reconstructions, a row per attack and run directory.

    A folder of an attack on a finished run can stand for a run directory. `number` is the round, by
    default the last judged one.
    """
    from matplotlib import pyplot as plt

    several = runs if isinstance(runs, Mapping) else {"": runs}
    held = {title: load_images(path, number) for title, path in several.items()}
    own = [name for images in held.values() for name in images if name not in _NO_ATTACK]
    named = list(attacks or [*dict.fromkeys(own), "mean_image"])
    rows = [("originals", next(iter(held.values()))["originals"])]
    for name in named:  # attack by attack, so that a method's effect can be compared row by row
        for title, images in held.items():
            alone = name in _NO_ATTACK
            again = alone and len(rows) > 1 and rows[-1][0] == _write_words(name)
            if name in images and not again:
                rows.append((_write_words(name if alone else f"{title} {name}"), images[name]))
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
    above = grid[0, 0].get_position().y1 + 0.08 / figure.get_figheight()
    title = "Private images, and what attacks made of them"
    figure.suptitle(title, fontsize=10, y=above, va="bottom")  # near the rows, however many
    return figure


def read(
    runs: "Run | Mapping[str, Run]", figure: str = "rouge_l", ax: "Axes | None" = None
) -> "Axes":
    """Draw how much of private texts each attack read.

    A bar is the guess that the attack is surest of, the line above it the best of all its guesses.
    The dashed line is the best blind guess, which needs no attack.
    """
    several = runs if isinstance(runs, Mapping) else {"": runs}
    for run in several.values():
        _refuse_figure(run, figure)
    lasts = {n: take_last_judged(run.attacks).set_index("attack") for n, run in several.items()}
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
    names = [_write_words(name).replace(" ", "\n") for name in named]
    ax.set(xticks=np.arange(len(named)), xticklabels=names, ylabel=METRICS[figure].words)
    ax.set_ylim(0, 1)
    ax.set_title("How much of private texts was read (dashed: guessed)", fontsize=10)
    if len(lasts) > 1:
        ax.legend(fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def attacked(runs: Mapping[str, Run]) -> "Figure":
    """Draw recoveries of several runs: originals and reconstructions, or shares of texts read."""
    texts = {title: run for title, run in runs.items() if find_kind(run) == "texts"}
    if texts:
        return figure_of(read(texts))
    return recovered({title: run.path for title, run in runs.items()})


def has_pictures(run: Run) -> bool:
    """Tell whether attacks on a run recovered images or texts; rows of numbers are not drawn."""
    return not run.recovered.empty and find_kind(run) != "rows"


def draw_recovered(run: Run) -> "Figure | None":
    """Draw a run's recovered images, or how much attacks read of its texts.

    Return None if only attacks on the finished run recovered images: each has a picture already.
    """
    without = find_kind(run) == "images" and not IMAGES.list_all(run.path)
    return attacked({"": run}) if has_pictures(run) and not without else None


def draw_attack_curves(run: Run) -> "Figure | None":
    """Draw over rounds what each attack made of the targets, and the best guess without one.

    Return None if the targets were judged less than twice.
    """
    means = run.attacks
    figure = next((name for name in _CURVES if name in means), None)
    if figure is None or means["round"].nunique() < 2:
        return None
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(7, 4), layout="constrained")
    ax: Any = drawn.subplots()
    own = means[~means["attack"].isin(_NO_ATTACK)]
    for place, (name, rows) in enumerate(own.groupby("attack", sort=False)):
        style = {"color": COLOURS[place % len(COLOURS)], "marker": MARKS[place % len(MARKS)]}
        ax.plot(rows["round"], rows[figure], **style, label=escape_text(_write_words(str(name))))
    guessed = means[means["attack"].isin(_NO_ATTACK)].groupby("round")[figure].max()
    ax.plot(guessed.index, guessed, color=HONEST, ls="--", label="best guess without an attack")
    mark_whole_rounds(ax)
    ax.set(xlabel="round", ylabel=METRICS[figure].words)
    ax.grid(color="0.92")
    ax.legend(frameon=False)
    ax.set_title("What attacks made of private inputs, over rounds", fontsize=10)
    return drawn


def draw_attack(run: Run, name: str) -> "Figure":
    """Draw the recoveries of one attack on a finished run."""
    if find_kind(run) == "texts":
        return figure_of(read(run))
    return recovered(run.path / "attacks" / name)


def save_attacked(runs: Mapping[str, Run], sweep: Path) -> Path | None:
    """Save the recoveries of a sweep's cells of the first seed; return None if there are none.

    If some cells have texts and others images, texts have a second file.
    """
    with_attacks = {name: run for name, run in runs.items() if has_pictures(run)}
    if not with_attacks:
        return None
    first = next(iter(with_attacks.values())).summary["seed"]
    shown = {
        re.sub(r",?seed=[^,]*", "", name).strip(","): run
        for name, run in with_attacks.items()
        if run.summary["seed"] == first
    }
    texts = {name: run for name, run in shown.items() if find_kind(run) == "texts"}
    if texts and len(texts) < len(shown):
        save_figure(attacked(texts), sweep / "figures" / "read.png")
        shown = {name: run for name, run in shown.items() if name not in texts}
    return save_figure(attacked(shown), sweep / PICTURE)


def _write_words(name: str) -> str:
    return name.strip().replace("_", " ")


def _refuse_figure(run: Run, figure: str) -> None:
    """Raise RunError if no attack on texts was scored by this figure."""
    columns = map(str, run.attacks.columns)
    scored = [name.removeprefix("best_") for name in columns if name.startswith("best_")]
    if figure not in scored:
        near = suggest(figure, scored) or ";"
        raise RunError(
            f"{run.path} has no recovered texts scored by '{figure}'{near} "
            f"{'it has ' + ', '.join(scored) if scored else 'nor by anything else'}"
        )
