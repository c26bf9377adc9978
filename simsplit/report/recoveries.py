"""What attacks recovered: of one run, and of several beside each other."""

import json
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simsplit.report.comparison import Entry
from simsplit.report.tables import Table
from simsplit.results import Run
from simsplit.results.texts import load_texts

if TYPE_CHECKING:
    import pandas as pd

_TITLES = {
    "mse": "MSE",
    "psnr": "PSNR",
    "ssim": "SSIM",
    "lpips": "LPIPS",
    "fg_mse": "foreground MSE",
    "fg_psnr": "foreground PSNR",
    "fg_ssim": "foreground SSIM",
    "fg_lpips": "foreground LPIPS",
    "rouge_l": "ROUGE-L",
    "meteor": "METEOR",
    "words": "words",
    "best_rouge_l": "best ROUGE-L",
    "best_meteor": "best METEOR",
    "best_words": "best words",
}
_WIDTH = 100
"""Characters of a text that are shown."""
_BLIND = {
    "black": "(a black image)",
    "mean_image": "(the mean image)",
    "random_words": "(random words)",
    "frequent_word": "(the most frequent word)",
}
"""Guesses that need no attack, and what tables call them."""


def recovered(run: Run) -> Table:
    """A row per attack, and per guess that needs none; means over targets, judged last."""
    last = _last(run)
    shown = [name for name in _TITLES if name in last and last[name].notna().any()]
    rows = [
        (_BLIND.get(name, name), *(_figure(group[figure].mean()) for figure in shown))
        for name, group in _blind_last(last)
    ]
    count = int(last.groupby("attack").size().max()) if len(last) else 0
    what = "texts" if "text" in last else "images"
    title = f"what attacks recovered of {count} {what}"
    return Table(title, ("attack", *(_TITLES[name] for name in shown)), rows)


def sentences(run: Run, most: int = 3) -> Table:
    """Private texts, each above what attacks made of it; of several messages the nearest."""
    if "text" not in run.recovered:
        return Table("", ("text", "by", "words"), [])
    texts = load_texts(run.path)
    rows: list[tuple[str, str, str]] = []
    for number, group in texts.groupby("text", sort=True):
        if len(rows) and int(str(number)) >= most:
            break
        rows.append((str(number), "(private)", _line(group["private"].iloc[0])))
        attacks = group[~group["attack"].isin(_BLIND)]
        made = zip(attacks["attack"], attacks["recovered"], strict=True)
        rows += [("", str(attack), _line(text)) for attack, text in made]
    return Table("what they read", ("text", "by", "words"), rows, "lll")


def recoveries_of(entries: Sequence[Entry]) -> Table | None:
    """A row per cell and attack, over seeds; None where nobody attacked."""
    entries = [entry for entry in entries if len(entry.run.recovered)]
    if not entries:
        return None
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(json.dumps(_told(entry)), []).append(entry)
    rows: list[dict[str, str]] = []
    for members in groups.values():
        lasts = [dict(_blind_last(_last(entry.run))) for entry in members]
        for attack in lasts[0]:
            row = {**_told(members[0]), "attack": _BLIND.get(attack, attack)}
            found = [last[attack] for last in lasts if attack in last]
            for figure, title in _TITLES.items():
                means = [part[figure].mean() for part in found if figure in part]
                known = [mean for mean in means if not math.isnan(mean)]
                row |= {title: _spread(known)} if known else {}
            rows.append(row)
    swept = dict.fromkeys(name for entry in entries for name in _told(entry))
    figures = [name for name in _TITLES.values() if any(row.get(name) for row in rows)]
    columns = (*swept, "attack", *figures)
    cells = [tuple(row.get(name, "") for name in columns) for row in rows]
    align = "l" * (len(swept) + 1) + "r" * len(figures)
    return Table("what attacks recovered: means over targets", columns, cells, align)


def _told(entry: Entry) -> dict[str, str]:
    """What a sweep gave a cell, but for its seed."""
    return {name: value for name, value in entry.settings.items() if name != "seed"}


def _last(run: Run) -> "pd.DataFrame":
    """Each attack's last judgement."""
    table = run.recovered
    if table.empty:
        return table
    latest = table.groupby("attack")["round"].transform("max")
    return table[table["round"] == latest]


def _blind_last(last: "pd.DataFrame") -> list[tuple[str, "pd.DataFrame"]]:
    """By attack, in their order, the guesses at the end."""
    if last.empty:
        return []
    groups = {str(name): group for name, group in last.groupby("attack", sort=False)}
    own = [name for name in groups if name not in _BLIND]
    return [(name, groups[name]) for name in (*own, *_BLIND) if name in groups]


def _line(text: object) -> str:
    """On one line, and not a long one."""
    words = " ".join(str(text).split())
    return words if len(words) <= _WIDTH else f"{words[: _WIDTH - 1]}…"


def _spread(values: Sequence[float]) -> str:
    """A mean, with the standard deviation where there are several."""
    mean = f"{statistics.fmean(values):.4g}"
    return f"{mean} ± {statistics.stdev(values):.2g}" if len(values) > 1 else mean


def _figure(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"
