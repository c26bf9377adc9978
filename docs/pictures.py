"""Draw the gallery's pictures: run shipped scenarios, and draw what came out as small SVG.

`python docs/pictures.py vertical table` draws these; without names, the ones in QUICK.
A run that lies in runs/gallery already is drawn and not made again.
"""

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from making.gallery import SHORT
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from simsplit.metrics import METRICS
from simsplit.report.canvas import COLOURS, use_cycle
from simsplit.report.detections import list_detectors, list_flagged, list_malicious
from simsplit.report.figures import accuracy
from simsplit.report.grouping import Entry, Row, group_rows, load_entries, name_rows
from simsplit.report.numbers import make_frame
from simsplit.report.rates import choose_headline
from simsplit.report.run_figures import draw_bars_of_legs, sum_by_leg
from simsplit.report.scatter import read_along, scatter
from simsplit.results import Run
from simsplit.results.leak_table import FLOOR, WRITTEN, has_role
from simsplit.results.mean_leaks import average_by_attack
from simsplit.scenario import has_sweep

QUICK = (
    "quickstart",
    "hospitals",
    "vertical",
    "vertical-images",
    "hundred-thousand",
    "crowd",
    "digits-table",
    "table",
)
"""The scenarios that take about a minute or less on two cores."""
PLOTS: Mapping[str, str] = {
    "table": "ridge_mse,test_accuracy",
    "digits-table": "ridge_mse,test_accuracy",
    "p3eft": "labels_leak,test_accuracy",
}
"""Of sweeps, the two figures by which settings are drawn; else bytes and accuracy."""
LINES: Mapping[str, Sequence[str]] = {
    "asynchronous": ("train_accuracy", "staleness"),
    "backdoor": ("test_accuracy", "attack_success"),
}
"""Of sweeps whose settings differ as they train, the figures that are drawn over rounds."""
BARS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "everything": {
        "images": ("test_accuracy", "ridge_ssim"),
        "texts": ("test_accuracy", "sip_token_accuracy"),
    },
    "labels": {
        "images": ("test_accuracy", "labels_leak"),
        "texts": ("test_accuracy", "labels_leak"),
    },
    "generation-defences": {"": ("test_accuracy", "sessions_ap", "known_pairs_ap_both")},
    "reconstruction": {
        "": ("ridge_ssim", "whitebox_ssim", "unsplit_ssim", "naive_sda_ssim", "mean_image_ssim"),
    },
}
"""Of sweeps whose figures are shares: what is drawn as bars, by how cells' names begin."""
READ: Mapping[str, tuple[str, Sequence[str]]] = {
    "sessions": ("ap", ("_response", "_prompt")),
    "texts": ("rouge_l", ("",)),
}
"""Of runs whose attacks read texts, by their kind: the metric, and the ends of its columns."""
CONVERGING: Mapping[str, str] = {"convergence": "ssim"}
"""Sweeps whose attacks are judged after every round, and the metric that is drawn."""
FLAGGED = ("poisons", "caught", "caught-root", "caught-samples", "late", "skewed", "watched")
"""Sweeps that are drawn by the clients that detectors flag."""
INCHES = (8.6, 3.2)
"""The width of a page's text, so that letters have the size of the page's."""
_FEW = 2
"""So few points make no curve."""
RUNS, OUT = Path("runs/gallery"), Path(__file__).parent / "gallery"


def make_run(name: str, runs: Path) -> Path:
    """Return the folder of a scenario's run or sweep, which is made unless it is there."""
    folder = runs / name
    if not folder.is_dir():
        command = "sweep" if has_sweep(Path(name)) else "run"
        words = [command, name, "--out", str(folder), "--quiet"]
        words += [word for field in SHORT.get(name, ()) for word in ("--set", field)]
        subprocess.run([sys.executable, "-m", "simsplit", *words], check=True)
    return folder


def draw_read(run: Run, kind: str) -> Figure:
    """Draw how much each attack read of texts, or of sessions; dotted is the best blind guess."""
    means, (metric, ends) = average_by_attack(run.leaks, kind), READ[kind]
    figure = Figure(figsize=INCHES, layout="constrained")
    ax = figure.subplots()
    bars = means[~means["role"].isin((FLOOR, WRITTEN))][::-1]
    height = 0.8 / len(ends)
    for place, (end, colour) in enumerate(zip(ends, COLOURS, strict=False)):
        at = [index + height * place for index in range(len(bars))]
        column, of = f"{metric}{end}", end[1:] or "what was read"
        ax.barh(at, bars[column], height=0.9 * height, color=colour, label=of)
        guess = has_role(means, FLOOR)[column].max()
        label = f"{end[1:]}, best guess" if end else "the best guess"
        ax.axvline(guess, color=colour, ls=":", lw=1.2, label=label)
    ax.set_yticks([index + (0.8 - height) / 2 for index in range(len(bars))], bars.index)
    ax.set(xlim=(0, 1), xlabel=f"read of {kind} ({METRICS[metric].words})")
    ax.spines[["top", "right"]].set_visible(False)
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False, fontsize=9)
    return figure


def draw_run(run: Run) -> Figure:
    """Draw a run's figure over rounds, of training where it was seldom tested, and its bytes."""
    for kind in READ:
        if not average_by_attack(run.leaks, kind).empty:
            return draw_read(run, kind)
    known = run.rounds.count()
    names = (f"test_{choose_headline(run)}", "train_accuracy")
    curves = [name for name in names if known.get(name, 0) > _FEW][:1]
    figure = Figure(figsize=INCHES, layout="constrained")
    *lefts, right = figure.subplots(1, len(curves) + 1, squeeze=False)[0]
    for name, ax in zip(curves, lefts, strict=True):
        use_cycle(ax)
        accuracy({"": run}, figure=name, ax=ax)
        ax.grid(color="0.92")
    draw_bars_of_legs(right, sum_by_leg(run))
    return figure


def draw_lines(entries: Sequence[Entry], names: Sequence[str]) -> Figure:
    """Draw figures over rounds, with a line for each setting of one seed."""
    runs = dict(zip(name_rows(entries), (entry.run for entry in entries), strict=True))
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.subplots(1, len(names))
    for name, ax in zip(names, axes, strict=True):
        use_cycle(ax)
        accuracy(runs, figure=name, ax=ax)
        ax.grid(color="0.92")
    for ax in axes[:-1]:
        ax.get_legend().remove()
    return figure


def draw_bars(entries: Sequence[Entry], panels: Mapping[str, Sequence[str]]) -> Figure:
    """Draw shares as bars: a panel for each kind of cells, a row of bars for each setting."""
    bars = len(name_rows(entries)) * max(map(len, panels.values())) / len(panels)
    figure = Figure(figsize=(INCHES[0], max(INCHES[1], 0.13 * bars)), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (kind, columns) in zip(axes, panels.items(), strict=True):
        chosen = [each for each in entries if each.settings.get("name", "").startswith(kind)]
        _draw_panel(ax, chosen, columns)
        ax.set_title(kind)
        beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12)}
        ax.legend(**(below if len(panels) > 1 else beside), frameon=False, fontsize=9)
    return figure


def _draw_panel(ax: Axes, entries: Sequence[Entry], columns: Sequence[str]) -> None:
    table, names = make_frame(entries, "best_on_validation"), name_rows(entries)
    height = 0.8 / len(columns)
    for place, (column, colour) in enumerate(zip(columns, COLOURS, strict=False)):
        at = [-index - height * place for index in range(len(names))]
        label = read_along(table, column).words
        ax.barh(at, table[f"{column}_mean"], 0.9 * height, color=colour, label=label)
    ax.set_yticks([-index - 0.4 + height / 2 for index in range(len(names))], names)
    ax.set(xlim=(0, 1))
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.spines[["top", "right"]].set_visible(False)


def draw_flagged(entries: Sequence[Entry]) -> Figure:
    """Draw which share of attackers, and of honest clients, each detector flags."""
    rows, names = group_rows(entries), name_rows(entries)
    detectors = list_detectors(rows[0].entries[0].run)
    figure = Figure(figsize=(INCHES[0], 1.6 + 0.26 * len(rows)), layout="constrained")
    for ax, attackers in zip(figure.subplots(1, 2, sharey=True), (True, False), strict=True):
        shares = [
            [_share_flagged(row, each, attackers=attackers) for each in detectors] for row in rows
        ]
        ax.imshow(shares, cmap="Oranges", vmin=0, vmax=1.4, aspect="auto")
        for y, line in enumerate(shares):
            for x, share in enumerate(line):
                text = "" if math.isnan(share) else f"{share:.0%}"
                ax.text(x, y, text, ha="center", va="center", fontsize=8)
        ax.set_title("attackers flagged" if attackers else "honest clients flagged", fontsize=10)
        ax.set_xticks(range(len(detectors)), detectors, rotation=35, ha="right", fontsize=8)
        ax.set_yticks(range(len(rows)), names, fontsize=8)
        ax.spines[:].set_visible(False)
    return figure


def _share_flagged(row: Row, detector: str, *, attackers: bool) -> float:
    """Return the share of these clients that are flagged when last judged; NaN without any."""
    flagged = clients = 0
    for run in (entry.run for entry in row.entries):
        bad = set(list_malicious(run))
        chosen = bad if attackers else {*map(int, run.clients["client"])} - bad
        flagged += len(chosen & set(list_flagged(run, detector)))
        clients += len(chosen)
    return flagged / clients if clients else math.nan


def draw_convergence(entries: Sequence[Entry], metric: str) -> Figure:
    """Draw how much the attack of each cell reads over rounds; dotted is the best blind guess."""
    figure = Figure(figsize=INCHES, layout="constrained")
    ax = figure.subplots()
    use_cycle(ax)
    for entry, name in zip(entries, name_rows(entries), strict=True):
        leaks = entry.run.leaks
        read = leaks[leaks["metric"] == metric]
        ours = read[~read["role"].isin((FLOOR, WRITTEN))].groupby("round")["value"].mean()
        ax.plot(ours.index, ours, label=name)
        guesses = has_role(read, FLOOR).groupby(["attack", "round"])["value"].mean()
    ax.axhline(guesses.max(), color="0.35", ls=":", lw=1.2, label="the best guess")
    ax.set(xlabel="round", ylabel=f"what is read ({METRICS[metric].words})")
    ax.grid(color="0.92")
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def draw_sweep(folder: Path) -> Figure:
    """Draw a sweep's settings over rounds, or by two of their figures."""
    entries, _ = load_entries([folder])
    if names := LINES.get(folder.name):
        return draw_lines(entries, names)
    if folder.name in CONVERGING:
        return draw_convergence(entries, CONVERGING[folder.name])
    if folder.name in FLAGGED:
        return draw_flagged(entries)
    if panels := BARS.get(folder.name):
        return draw_bars(entries, panels)
    pair = PLOTS.get(folder.name, "bytes_total,test_accuracy")
    return scatter(entries, pair, "best_on_validation", name_rows(entries))


def draw(names: Sequence[str], runs: Path = RUNS, out: Path = OUT) -> None:
    """Draw a picture for each of these scenarios."""
    out.mkdir(parents=True, exist_ok=True)
    # letters stay letters, of one font, else each names ten; and the same run gives the same file
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "simsplit"})
    mpl.rcParams["font.sans-serif"] = ["DejaVu Sans"]
    for name in names:
        folder = make_run(name, runs)
        figure = draw_sweep(folder) if has_sweep(Path(name)) else draw_run(Run.load(folder))
        figure.savefig(out / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw(sys.argv[1:] or QUICK)
