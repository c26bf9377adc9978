"""Tables show how much attacks recovered of inputs, in one run and in several runs compared."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simsplit.metrics import METRICS, SCALE_FREE, SMALLEST
from simsplit.metrics.intervals import bootstrap_interval
from simsplit.report.comparison import tabulate
from simsplit.report.grouping import Baseline, Entry, Row, group_rows, label_rows
from simsplit.report.leak_tables import tabulate_leaks
from simsplit.report.read_texts import tabulate_texts
from simsplit.report.tables import Table, write_mean
from simsplit.results import Run
from simsplit.results.leak_table import ATTACK, FLOOR, INPUTS, take_last_judged
from simsplit.results.recovered_files import load_curves
from simsplit.results.recovered_kinds import KINDS, entitle

if TYPE_CHECKING:
    import pandas as pd

_OF_TEXTS = ("rouge_l", "meteor", "best_rouge_l")
_COMPARED = ("mse", "ssim", "lpips", *SCALE_FREE, "fg_mse", "fg_ssim", *_OF_TEXTS)
"""Figures that runs are compared by."""
_GUESSES = [words for kind in INPUTS for words in KINDS[kind].guesses.values()]


def find_kind(run: Run) -> str:
    """Return the kind of the run's inputs that attacks recovered; images if there are none."""
    return "images" if run.recovered.empty else str(run.recovered["kind"].iloc[0])


def tabulate_recoveries(run: Run) -> Table:
    """Tabulate a row per attack and per blind guess: last judged means over targets."""
    last = take_last_judged(run.recovered)
    table = tabulate_leaks(run, find_kind(run))
    count = int(last.groupby("attack").size().max()) if len(last) else 0
    title = f"what attacks recovered of {count} {find_kind(run)}{_describe_dropped([last])}"
    return Table(title, table.columns, table.rows, table.align)


def show_recoveries(run: Run) -> list[Table]:
    """Make all tables that `show` prints of a run."""
    return [tabulate_recoveries(run), tabulate_convergence(run), tabulate_texts(run)]


def show_attack_on_inputs(run: Run) -> list[Table]:
    """Make the tables of a run that has just been attacked."""
    return [tabulate_recoveries(run), tabulate_texts(run)]


def tabulate_convergence(run: Run) -> Table:
    """Tabulate a row per attack: its first figure after each share of its iterations."""
    curves = load_curves(run.path)
    if curves.empty:
        return Table("", ("attack",), [])
    figure = next(name for name in ("token_accuracy", "mse") if name in curves)
    wide = curves.pivot_table(index="attack", columns="share", values=figure, sort=False)
    rows = [
        (str(name), *map(_format, row)) for name, row in zip(wide.index, wide.values, strict=True)
    ]
    shares = tuple(f"{share:.0%}" for share in wide.columns)
    title = f"{METRICS[figure].words} by part of an attack's iterations"
    return Table(title, ("attack", *shares), rows)


def compare_recoveries(entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate each figure: a row per cell, over seeds, and a column per attack.

    Means of texts have 95 % intervals over texts and seeds (see `intervals`), others a deviation.
    Blind guesses, such as a black image, stand in the title if they are the same for all cells.
    Figures of the best of several messages are left out if no cell sent several.
    """
    entries = [entry for entry in entries if len(entry.run.recovered)]
    rows = [
        (row, [dict(_group_last(take_last_judged(e.run.recovered))) for e in row.entries])
        for row in group_rows(entries)
    ]
    tables: dict[str, list[dict[str, str]]] = {}
    for figure in _COMPARED:
        cells = [_average(figure, lasts, _read_batch_size(row)) for row, lasts in rows]
        best_of_one = figure.startswith("best_") and cells == tables.get(
            figure.removeprefix("best_")
        )
        if any(cells) and not best_of_one:
            tables[figure] = cells
    dropped = _describe_dropped([take_last_judged(entry.run.recovered) for entry in entries])
    return [
        _tabulate_figure(
            figure,
            cells,
            rows,
            entries,
            (
                _count_judged(cells, [lasts for _, lasts in rows]),
                dropped if figure == "fg_ssim" else "",
            ),
        )
        for figure, cells in tables.items()
    ]


def _count_judged(
    cells: Sequence[Mapping[str, str]], lasts: Sequence[Sequence[Mapping[str, "pd.DataFrame"]]]
) -> int:
    """Return the number of images or texts that a figure is a mean of, in runs that have it."""
    having = [runs for cell, runs in zip(cells, lasts, strict=True) if cell]
    return max(
        (len(group) for runs in having for last in runs for group in last.values()), default=0
    )


def _read_batch_size(row: Row) -> int:
    """Return the number of targets that shared a batch."""
    scenario = row.entries[0].scenario
    own = scenario.get("targets", {}).get("batch_size")
    return int(own or scenario["train"]["batch_size"])


def _average(
    figure: str, lasts: Sequence[Mapping[str, "pd.DataFrame"]], size: int
) -> dict[str, str]:
    """Return each attack's mean of a figure over seeds; `lasts` are of runs of one row."""
    cells: dict[str, str] = {}
    for attack in dict.fromkeys(name for last in lasts for name in last):
        groups = [last[attack] for last in lasts if attack in last and figure in last[attack]]
        known = [mean for group in groups if not math.isnan(mean := group[figure].mean())]
        if not known:
            continue
        cells[attack] = write_mean(figure, known)
        if figure in _OF_TEXTS:
            runs = [group[figure].dropna().to_numpy(float) for group in groups]
            cells[attack] = _write_interval(figure, known, bootstrap_interval(runs, size))
    return cells


def _write_interval(kind: str, means: Sequence[float], bounds: tuple[float, float] | None) -> str:
    """Write the mean of runs' means and its interval: `0.085 (0.070 to 0.101)`."""
    mean = write_mean(kind, [statistics.fmean(means)])
    if bounds is None:
        return mean
    low, high = (write_mean(kind, [bound]) for bound in bounds)
    return f"{mean} ({low} to {high})"


def _describe_dropped(lasts: Sequence["pd.DataFrame"]) -> str:
    """Say for how many images a table has the foreground SSIM, if not for all.

    SSIM's window needs a minimum width, and a thin digit's rectangle is narrower.
    """
    having = [last for last in lasts if _has_image_ssim(last)]
    kept = sum(int((last.groupby("target")["fg_ssim"].count() > 0).sum()) for last in having)
    images = sum(int(last["target"].nunique()) for last in having)
    if kept == images:
        return ""
    return (
        f"; foreground SSIM: of {kept} of {images}, the others' is less than {SMALLEST} pixels wide"
    )


def _has_image_ssim(last: "pd.DataFrame") -> bool:
    """Tell whether whole images are large enough for SSIM."""
    return {"ssim", "fg_ssim"} <= set(last) and bool(last["ssim"].notna().any())


def _tabulate_figure(
    figure: str,
    cells: Sequence[dict[str, str]],
    rows: Sequence[tuple[Row, Sequence[Mapping[str, "pd.DataFrame"]]]],
    entries: Sequence[Entry],
    count_and_dropped: tuple[int, str],
) -> Table:
    """Tabulate one figure; the last argument has the number of targets and the title's end."""
    count, dropped = count_and_dropped
    rows_alone = all(find_kind(entry.run) == "rows" for entry in entries)
    what = "texts" if figure in _OF_TEXTS else "rows" if rows_alone else "images"
    title = f"{METRICS[figure].words} of {count} recovered {what[: None if count > 1 else -1]}"
    floors = {n: {row.get(n, "").partition(" ")[0] for row in cells} for n in _GUESSES}
    same = [name for name, means in floors.items() if len(means) == 1]
    guesses = [f"{name[1:-1]}: {mean}" for name in same for mean in floors[name] if mean]
    title += (f" ({'; '.join(guesses)})" if guesses else "") + dropped
    if any(" (" in cell for row in cells for cell in row.values()):
        title += ", with 95 % intervals over texts and seeds"
    of_attacks = [{n: cell for n, cell in row.items() if n not in same} for row in cells]
    labels = label_rows([row for row, _ in rows])
    both = [label | row for label, row in zip(labels, of_attacks, strict=True)]
    way = METRICS[figure].better
    numbers = [_collect_by_seed(figure, row, lasts) for row, lasts in rows]
    ways = {name: way for row in numbers for name in row if way is not None}
    return tabulate(title, both, entries, (numbers, ways))


def _collect_by_seed(
    figure: str, row: Row, lasts: Sequence[Mapping[str, "pd.DataFrame"]]
) -> dict[str, dict[int, float]]:
    """Return each attack's mean of a figure by seed, without the blind guesses."""
    by_attack: dict[str, dict[int, float]] = {}
    for entry, last in zip(row.entries, lasts, strict=True):
        for attack, group in last.items():
            if figure in group and (group["role"] == ATTACK).all():
                by_seed = by_attack.setdefault(attack, {})
                by_seed[entry.scenario["seed"]] = float(group[figure].mean())
    return by_attack


def _group_last(last: "pd.DataFrame") -> list[tuple[str, "pd.DataFrame"]]:
    """Return the last judgement by attack's title, with the blind guesses at the end."""
    if last.empty:
        return []
    groups = [(str(name), group) for name, group in last.groupby("attack", sort=False)]
    groups.sort(key=lambda each: bool((each[1]["role"] == FLOOR).all()))
    return [
        (entitle(group["kind"].iloc[0], name, group["role"].iloc[0]), group)
        for name, group in groups
    ]


def _format(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"
