"""Tables show how much attacks recovered of inputs, in one run and in several runs compared.

Below them stand the first private texts and sessions, each above what every attack read of it. An
overview of runs on all kinds of data needs the worst leak of inputs on one scale: from the best
guess without an attack (0 %) to the original (100 %), by the mean squared error of images and rows,
and by ROUGE-L of texts.
"""

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simsplit.metrics import METRICS, SCALE_FREE, SMALLEST
from simsplit.metrics.intervals import bootstrap_interval
from simsplit.report.comparison import tabulate
from simsplit.report.grouping import Baseline, Entry, Row, group_rows, label_rows
from simsplit.report.leak_tables import tabulate_leaks
from simsplit.report.tables import Table, write_mean
from simsplit.results import Run
from simsplit.results.leak_table import ATTACK, FLOOR, INPUTS, has_role, take_last_judged
from simsplit.results.recovered_files import TEXTS, load_curves, load_sessions, load_texts
from simsplit.results.recovered_kinds import KINDS, PROMPT, RESPONSE, entitle, find_kinds

if TYPE_CHECKING:
    import pandas as pd

_OF_TEXTS = ("rouge_l", "meteor", "best_rouge_l")
_COMPARED = ("mse", "ssim", "lpips", *SCALE_FREE, "fg_mse", "fg_ssim", *_OF_TEXTS)
"""Figures that runs are compared by."""
_GUESSES = [words for kind in INPUTS for words in KINDS[kind].guesses.values()]
_PERFECT = {"rouge_l": 1.0, "mse": 0.0}
"""Figures of a leak, with the original's value; a run is measured by the first that it has."""
_Groups = dict[str, "pd.DataFrame"]
"""A run's last judgement, by the attacks' titles."""


def find_kind(run: Run) -> str:
    """Return the kind of the run's inputs that attacks recovered; images if there are none."""
    return "images" if run.recovered.empty else str(run.recovered["kind"].iloc[0])


def show_recoveries(run: Run) -> list[Table]:
    """Make all tables that `show` prints of a run."""
    return [tabulate_recoveries(run), tabulate_convergence(run), tabulate_texts(run)]


def show_attack_on_inputs(run: Run) -> list[Table]:
    """Make the tables of a run that has just been attacked."""
    return [tabulate_recoveries(run), tabulate_texts(run)]


def tabulate_recoveries(run: Run) -> Table:
    """Tabulate a row per attack and per blind guess: last judged means over targets."""
    last = take_last_judged(run.recovered)
    table = tabulate_leaks(run, find_kind(run))
    count = int(last.groupby("attack").size().max()) if len(last) else 0
    title = f"what attacks recovered of {count} {find_kind(run)}{_describe_dropped([last])}"
    return Table(title, table.columns, table.rows, table.align)


def tabulate_convergence(run: Run) -> Table:
    """Tabulate a row per attack: its first figure after each share of its iterations."""
    curves = load_curves(run.path)
    if curves.empty:
        return Table("", ("attack",), [])
    figure = next(name for name in ("token_accuracy", "mse") if name in curves)
    wide = curves.pivot_table(index="attack", columns="share", values=figure, sort=False)
    rows = [
        (str(name), *("" if math.isnan(value) else f"{value:.4g}" for value in values))
        for name, values in zip(wide.index, wide.values, strict=True)
    ]
    shares = tuple(f"{share:.0%}" for share in wide.columns)
    title = f"{METRICS[figure].words} by part of an attack's iterations"
    return Table(title, ("attack", *shares), rows)


def tabulate_texts(run: Run, most: int = 3) -> Table:
    """Tabulate the first private texts, each above what every attack recovered of it.

    A published run has none.
    """
    rows: list[tuple[str, ...]] = []
    kept = "texts" in find_kinds(run.leaks) and TEXTS.list_newest(run.path)
    texts = load_texts(run.path) if kept else None
    for number, group in [] if texts is None else texts[texts["text"] < most].groupby("text"):
        rows.append((str(number), "(private)", shorten(group["private"].iloc[0])))
        attacks = group[~group["attack"].isin(KINDS["texts"].guesses)]
        made = zip(attacks["attack"], attacks["recovered"], strict=True)
        rows += [("", str(attack), shorten(text)) for attack, text in made]
    return Table("recovered texts", ("text", "by", "content"), rows, "lll")


def tabulate_dialogues(run: Run, most: int = 2) -> Table:
    """Tabulate the first prompts and responses, each above what every attack read of it."""
    texts, judged = load_sessions(run.path), run.sessions
    rows: list[tuple[str, ...]] = []
    roles = {} if judged.empty else dict(zip(judged["attack"], judged["role"], strict=True))
    for number in [] if texts.empty else sorted(texts["session"].unique())[:most]:
        group = texts[texts["session"] == number]
        private = group.iloc[0]
        sides = (shorten(private[f"private_{side}"], 60) for side in (PROMPT, RESPONSE))
        rows.append((str(number), "(private)", *sides))
        for _, row in group[~group["attack"].isin(KINDS["sessions"].guesses)].iterrows():
            read = (shorten(row[side], 60) for side in (PROMPT, RESPONSE))
            title = entitle("sessions", str(row["attack"]), str(roles.get(row["attack"])))
            rows.append(("", title, *read))
    return Table("sessions as they were read", ("session", "by", PROMPT, RESPONSE), rows, "llll")


def shorten(text: object, width: int = 100) -> str:
    """Return a text on one line, cut to a number of characters."""
    # a tokenizer's stray bytes decode to no characters; one mark replaces a sequence of them
    words = " ".join(re.sub(r"\ufffd+", "\ufffd", str(text)).split())
    return words if len(words) <= width else f"{words[: width - 1]}…"


def compare_recoveries(entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate each figure: a row per cell, over seeds, and a column per attack.

    Means of texts have 95 % intervals over texts and seeds (see `intervals`), others a deviation.
    Blind guesses, such as a black image, stand in the title if they are the same for all cells.
    Figures of the best of several messages are left out if no cell sent several.
    """
    entries = [entry for entry in entries if len(entry.run.recovered)]
    rows = [
        (row, [_group_last(take_last_judged(each.run.recovered)) for each in row.entries])
        for row in group_rows(entries)
    ]
    tables: dict[str, list[dict[str, str]]] = {}
    for figure in _COMPARED:
        cells = [_average(figure, row, lasts) for row, lasts in rows]
        of_one = tables.get(figure.removeprefix("best_")) if figure.startswith("best_") else None
        if any(cells) and cells != of_one:
            tables[figure] = cells
    return [_tabulate_figure(figure, cells, rows, entries) for figure, cells in tables.items()]


def _average(figure: str, row: Row, lasts: Sequence[_Groups]) -> dict[str, str]:
    """Return each attack's mean of a figure over seeds, of texts with its interval."""
    scenario = row.entries[0].scenario
    own = scenario.get("targets", {}).get("batch_size")
    cells: dict[str, str] = {}
    for attack in dict.fromkeys(name for last in lasts for name in last):
        groups = [last[attack] for last in lasts if attack in last and figure in last[attack]]
        known = [mean for group in groups if not math.isnan(mean := group[figure].mean())]
        if not known:
            continue
        cells[attack] = write_mean(figure, known)
        if figure in _OF_TEXTS:
            cells[attack] = write_mean(figure, [statistics.fmean(known)])
            runs = [group[figure].dropna().to_numpy(float) for group in groups]
            bounds = bootstrap_interval(runs, int(own or scenario["train"]["batch_size"]))
            if bounds is not None:
                low, high = (write_mean(figure, [bound]) for bound in bounds)
                cells[attack] += f" ({low} to {high})"
    return cells


def _describe_dropped(lasts: Sequence["pd.DataFrame"]) -> str:
    """Say for how many images a table has the foreground SSIM, if not for all.

    SSIM's window needs a minimum width, and a thin digit's rectangle is narrower.
    """
    scored = [last for last in lasts if {"ssim", "fg_ssim"} <= set(last)]
    having = [last for last in scored if last["ssim"].notna().any()]  # whole images are wide enough
    kept = sum(int((last.groupby("target")["fg_ssim"].count() > 0).sum()) for last in having)
    images = sum(int(last["target"].nunique()) for last in having)
    if kept == images:
        return ""
    return (
        f"; foreground SSIM: of {kept} of {images}, the others' is less than {SMALLEST} pixels wide"
    )


def _tabulate_figure(
    figure: str,
    cells: Sequence[dict[str, str]],
    rows: Sequence[tuple[Row, Sequence[_Groups]]],
    entries: Sequence[Entry],
) -> Table:
    """Tabulate one figure, with the number of images or texts that it is a mean of in its title."""
    having = [lasts for cell, (_, lasts) in zip(cells, rows, strict=True) if cell]
    groups = (group for lasts in having for last in lasts for group in last.values())
    count = max(map(len, groups), default=0)
    rows_alone = all(find_kind(entry.run) == "rows" for entry in entries)
    what = "texts" if figure in _OF_TEXTS else "rows" if rows_alone else "images"
    title = f"{METRICS[figure].words} of {count} recovered {what[: None if count > 1 else -1]}"
    floors = {n: {row.get(n, "").partition(" ")[0] for row in cells} for n in _GUESSES}
    same = [name for name, means in floors.items() if len(means) == 1]
    guesses = [f"{name[1:-1]}: {mean}" for name in same for mean in floors[name] if mean]
    title += f" ({'; '.join(guesses)})" if guesses else ""
    if figure == "fg_ssim":
        title += _describe_dropped([take_last_judged(entry.run.recovered) for entry in entries])
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
    figure: str, row: Row, lasts: Sequence[_Groups]
) -> dict[str, dict[int, float]]:
    """Return each attack's mean of a figure by seed, without the blind guesses."""
    by_attack: dict[str, dict[int, float]] = {}
    for entry, last in zip(row.entries, lasts, strict=True):
        for attack, group in last.items():
            if figure in group and (group["role"] == ATTACK).all():
                by_seed = by_attack.setdefault(attack, {})
                by_seed[entry.scenario["seed"]] = float(group[figure].mean())
    return by_attack


def _group_last(last: "pd.DataFrame") -> _Groups:
    """Return the last judgement by attack's title, with the blind guesses at the end."""
    if last.empty:
        return {}
    groups = [(str(name), group) for name, group in last.groupby("attack", sort=False)]
    groups.sort(key=lambda each: bool((each[1]["role"] == FLOOR).all()))
    return {
        entitle(group["kind"].iloc[0], name, group["role"].iloc[0]): group for name, group in groups
    }


class WorstLeak(NamedTuple):
    """An attack's recoveries, over runs that differ only in their seed."""

    attack: str
    shares: list[float]
    """Each run's share: 0 is the best guess without an attack, 1 the original."""
    figure: str
    reached: float
    floor: float


def make_leak_cells(runs: Sequence[Run]) -> Mapping[str, str]:
    """Make the cells of a row in the overview; return none if no attack recovered inputs."""
    leak = find_worst_leak([run for run in runs if len(run.recovered)])
    if leak is None:
        return {}
    reached, floor = (write_mean(leak.figure, [each]) for each in (leak.reached, leak.floor))
    share = f"{100 * statistics.fmean(leak.shares):.0f}"
    if len(leak.shares) > 1:
        share += f" ± {100 * statistics.stdev(leak.shares):.0f}"
    worst = f"{leak.attack}: {METRICS[leak.figure].words} {reached} / {floor}"
    return {"leak": f"{share} %", "worst attack: its figure / the guess's": worst}


def find_worst_leak(runs: Sequence[Run]) -> WorstLeak | None:
    """Find the attack that recovers most on average over runs; return None without attacks."""
    lasts = [take_last_judged(run.recovered) for run in runs]
    known = [name for name in _PERFECT if lasts and all(name in last for last in lasts)]
    leaks = _measure_leaks(lasts, known[0]) if known else ()
    return max(leaks, key=lambda leak: statistics.fmean(leak.shares), default=None)


def _measure_leaks(lasts: Sequence["pd.DataFrame"], figure: str) -> Iterator[WorstLeak]:
    """Yield how far each attack came in all runs, beside the best guess of each run."""
    means = [last.groupby("attack")[figure].mean() for last in lasts]
    blind = {str(name) for last in lasts for name in has_role(last, FLOOR)["attack"]}
    guesses = [[float(mean[name]) for name in blind if name in mean.index] for mean in means]
    perfect = _PERFECT[figure]
    for name in dict.fromkeys(str(name) for mean in means for name in mean.index):
        if name in blind or not all(name in mean.index for mean in means) or not all(guesses):
            continue
        reached = [float(mean[name]) for mean in means]
        if not any(map(math.isnan, reached)):
            floors = [(min if perfect == 0 else max)(guess) for guess in guesses]
            shares = [
                (floor - got) / (floor - perfect) if floor != perfect else 0.0
                for floor, got in zip(floors, reached, strict=True)
            ]
            floor = statistics.fmean(floors)
            yield WorstLeak(name, shares, figure, statistics.fmean(reached), floor)
