"""Tables show how much attacks recovered of inputs, in one run and in several runs compared."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simsplit.metrics.images import SCALE_FREE, SMALLEST
from simsplit.metrics.intervals import bootstrap_interval
from simsplit.report.comparison import find_way, tabulate
from simsplit.report.grouping import Baseline, Entry, Row, group_rows, label_rows
from simsplit.report.tables import Better, Table, write_mean
from simsplit.results import Run
from simsplit.results.input_results import take_last_judged
from simsplit.results.kept import load_curves, load_texts

if TYPE_CHECKING:
    import pandas as pd

TITLES = {
    "mse": "MSE",
    "psnr": "PSNR",
    "ssim": "SSIM",
    "lpips": "LPIPS",
    "stretched_mse": "MSE at full brightness",
    "correlation": "correlation with the truth",
    "fg_mse": "foreground MSE",
    "fg_psnr": "foreground PSNR",
    "fg_ssim": "foreground SSIM",
    "fg_lpips": "foreground LPIPS",
    "label_accuracy": "label accuracy of its simulator",
    "rouge_l": "ROUGE-L",
    "token_rouge_l": "ROUGE-L of tokens",
    "meteor": "METEOR",
    "token_accuracy": "token accuracy",
    "best_rouge_l": "best ROUGE-L",
    "best_meteor": "best METEOR",
    "best_token_accuracy": "best token accuracy",
}
_OF_TEXTS = ("rouge_l", "meteor", "best_rouge_l")
_COMPARED = ("mse", "ssim", "lpips", *SCALE_FREE, "fg_mse", "fg_ssim", *_OF_TEXTS)
"""Figures that runs are compared by."""
WAYS: Mapping[str, Better] = {
    **dict.fromkeys(("mse", "stretched_mse", "lpips"), "more"),
    **dict.fromkeys(("psnr", "ssim", "correlation", "label_accuracy"), "less"),
    **dict.fromkeys(("rouge_l", "token_rouge_l", "meteor", "token_accuracy"), "less"),
}
"""The better way of each figure for the client under attack: less leaked is better."""
_WIDTH = 100
"""The most characters of a text that a table shows."""
BLIND = {
    "black": "(a black image)",
    "mean_image": "(the mean image)",
    "mean_row": "(the mean row)",
    "random_tokens": "(random tokens)",
    "frequent_token": "(the most frequent token)",
}
"""Baselines: guesses that need no attack, and their names in tables."""


def tabulate_recoveries(run: Run) -> Table:
    """Tabulate a row per attack and per blind guess: last judged means over targets."""
    last = keep_last_judged(run)
    shown = [name for name in TITLES if name in last and last[name].notna().any()]
    rows = [
        (BLIND.get(name, name), *(_format(group[figure].mean()) for figure in shown))
        for name, group in _group_last(last)
    ]
    count = int(last.groupby("attack").size().max()) if len(last) else 0
    what = next(f"{name}s" for name in ("text", "row", "image") if name in last or name == "image")
    title = f"what attacks recovered of {count} {what}{_describe_dropped([last])}"
    return Table(title, ("attack", *(TITLES[name] for name in shown)), rows)


def show_recoveries(run: Run) -> list[Table]:
    """Make all tables that `show` prints of a run."""
    return [tabulate_recoveries(run), tabulate_convergence(run), tabulate_texts(run)]


def show_attack_on_inputs(run: Run) -> list[Table]:
    """Make the tables of a run that has just been attacked."""
    return [tabulate_recoveries(run), *([tabulate_texts(run)] if "text" in run.recovered else [])]


def measure_recoveries(run: Run) -> dict[str, float]:
    """Return the last judged means over targets, by attack and figure.

    Where `targets.curve` has such a point, those with half of the iterations are among them.
    """
    if run.attacks.empty:
        return {}
    means = take_last_judged(run.attacks).drop(columns="round")
    curves = load_curves(run.path)
    halves = curves[curves["share"] == 0.5] if "share" in curves else curves
    made = [(f"{attack}_{{}}", row) for attack, row in means.iterrows()]
    for _, row in halves.iterrows():
        figures = row.drop(["round", "attack", "share"]).astype(float)
        made.append((f"{row['attack']}_{{}}_at_half", figures))
    return {
        name.format(figure): float(value)
        for name, row in made
        for figure, value in row.items()
        if not math.isnan(value)
    }


def describe_recoveries(run: Run) -> dict[str, Any]:
    """Return means over targets of each attack and guess, as plain values."""
    last = take_last_judged(run.attacks)
    return {str(each): row.dropna().to_dict() for each, row in last.iterrows()}


def tabulate_texts(run: Run, most: int = 3) -> Table:
    """Tabulate the first private texts, each above what every attack recovered of it."""
    if "text" not in run.recovered:
        return Table("", ("text", "by", "content"), [])
    texts = load_texts(run.path)
    rows: list[tuple[str, str, str]] = []
    for number, group in texts[texts["text"] < most].groupby("text", sort=True):
        rows.append((str(number), "(private)", _shorten(group["private"].iloc[0])))
        attacks = group[~group["attack"].isin(BLIND)]
        made = zip(attacks["attack"], attacks["recovered"], strict=True)
        rows += [("", str(attack), _shorten(text)) for attack, text in made]
    return Table("recovered texts", ("text", "by", "content"), rows, "lll")


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
    return Table(f"{TITLES[figure]} by part of an attack's iterations", ("attack", *shares), rows)


def compare_recoveries(entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate each figure: a row per cell, over seeds, and a column per attack.

    Means of texts have 95 % intervals over texts and seeds (see `intervals`), others a deviation.
    Blind guesses, such as a black image, stand in the title if they are the same for all cells.
    Figures of the best of several messages are left out if no cell sent several.
    """
    entries = [entry for entry in entries if len(entry.run.recovered)]
    rows = [
        (row, [dict(_group_last(keep_last_judged(entry.run))) for entry in row.entries])
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
    dropped = _describe_dropped([keep_last_judged(entry.run) for entry in entries])
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
    kind = figure.removeprefix("best_").removeprefix("fg_")
    for attack in dict.fromkeys(name for last in lasts for name in last):
        groups = [last[attack] for last in lasts if attack in last]
        means = [group[figure].mean() for group in groups if figure in group]
        known = [mean for mean in means if not math.isnan(mean)]
        if known and figure in _OF_TEXTS:
            runs = [group[figure].dropna().to_numpy(float) for group in groups if figure in group]
            cells[BLIND.get(attack, attack)] = _write_interval(
                kind, known, bootstrap_interval(runs, size)
            )
        elif known:
            cells[BLIND.get(attack, attack)] = write_mean(kind, known)
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
    kept = sum(
        int((last.groupby("image")["fg_ssim"].count() > 0).sum())
        for last in lasts
        if _has_image_ssim(last)
    )
    images = sum(int(last["image"].nunique()) for last in lasts if _has_image_ssim(last))
    if kept == images:
        return ""
    return (
        f"; foreground SSIM: of {kept} of {images}, the others' is less than {SMALLEST} pixels wide"
    )


def _has_image_ssim(last: "pd.DataFrame") -> bool:
    """Tell whether whole images are large enough for SSIM."""
    return {"image", "ssim", "fg_ssim"} <= set(last) and bool(last["ssim"].notna().any())


def _tabulate_figure(
    figure: str,
    cells: Sequence[dict[str, str]],
    rows: Sequence[tuple[Row, Sequence[Mapping[str, "pd.DataFrame"]]]],
    entries: Sequence[Entry],
    count_and_dropped: tuple[int, str],
) -> Table:
    """Tabulate one figure; the last argument has the number of targets and the title's end."""
    count, dropped = count_and_dropped
    rows_alone = all("row" in entry.run.recovered for entry in entries)
    kind = "text" if figure in _OF_TEXTS else "row" if rows_alone else "image"
    what = kind + "s" * (count > 1)
    title = f"{TITLES[figure]} of {count} recovered {what}"
    floors = {n: {row.get(n, "").partition(" ")[0] for row in cells} for n in BLIND.values()}
    same = [name for name, means in floors.items() if len(means) == 1]
    guesses = [f"{name[1:-1]}: {mean}" for name in same for mean in floors[name] if mean]
    title += (f" ({'; '.join(guesses)})" if guesses else "") + dropped
    if any(" (" in cell for row in cells for cell in row.values()):
        title += ", with 95 % intervals over texts and seeds"
    of_attacks = [{n: cell for n, cell in row.items() if n not in same} for row in cells]
    labels = label_rows([row for row, _ in rows])
    both = [label | row for label, row in zip(labels, of_attacks, strict=True)]
    way = find_way(f"attack_{figure}", WAYS)
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
            if attack not in BLIND and figure in group:
                by_seed = by_attack.setdefault(attack, {})
                by_seed[entry.scenario["seed"]] = float(group[figure].mean())
    return by_attack


def keep_last_judged(run: Run) -> "pd.DataFrame":
    """Return the rows of each attack's last judgement."""
    table = run.recovered
    if table.empty:
        return table
    latest = table.groupby("attack")["round"].transform("max")
    return table[table["round"] == latest]


def _group_last(last: "pd.DataFrame") -> list[tuple[str, "pd.DataFrame"]]:
    """Return the last judgement by attack, with the blind guesses at the end."""
    if last.empty:
        return []
    groups = {str(name): group for name, group in last.groupby("attack", sort=False)}
    own = [name for name in groups if name not in BLIND]
    return [(name, groups[name]) for name in (*own, *BLIND) if name in groups]


def _shorten(text: object) -> str:
    """Return a text on one line, cut to the width that a table shows."""
    # a tokenizer's stray bytes decode to no characters; one mark replaces a sequence of them
    words = " ".join(re.sub(r"\ufffd+", "\ufffd", str(text)).split())
    return words if len(words) <= _WIDTH else f"{words[: _WIDTH - 1]}…"


def _format(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"
