"""Tables show how much attacks read of sessions' prompts and responses, in one run or several.

The section on sessions has these tables.
"""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError
from simsplit.metrics.text import compute_defence_score
from simsplit.report.comparison import find_baselines, tabulate
from simsplit.report.grouping import Baseline, Entry, Row, group_rows, label_rows
from simsplit.report.html.markup import Markup, mark_up, section
from simsplit.report.html.subject import Subject
from simsplit.report.tables import Table, format_mean
from simsplit.results import Run
from simsplit.results.kept import load_sessions
from simsplit.results.session_results import (
    BOTH,
    FLOORS,
    LEARNED,
    PROMPT,
    RESPONSE,
    SIDES,
    SILENT,
    WRITTEN,
    average_last_judged,
    find_highest_ap,
    get_figure,
    get_utility,
    is_ceiling,
)

if TYPE_CHECKING:
    import pandas as pd


BLIND = dict(
    zip(
        FLOORS,
        ("(random tokens)", "(the most frequent token)", "(what the model says to nothing)"),
        strict=True,
    )
)
WORDS = {
    "ap": "AP",
    "meteor": "METEOR",
    "token_rouge_l": "ROUGE-L of tokens",
    "token_accuracy": "tokens",
    "entity_f1": "entities F1",
    "bert_score": "BERTScore",
    "bleurt": "BLEURT",
}
_ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
_WIDTH = 60
"""The most characters of a prompt or response that a table shows."""


def tabulate_sessions(run: Run) -> Table:
    """Tabulate a row per attack and per blind guess: last judged means over sessions.

    The table may have no rows.
    """
    last = average_last_judged(run.sessions)
    left_out = {
        "meteor",
        "token_rouge_l",
        *(name for name in LEARNED if f"{name}_{PROMPT}" not in last),
    }
    shown = {name: title for name, title in WORDS.items() if name not in left_out}
    heads = [f"{title}, {side}" for title in shown.values() for side in (PROMPT, RESPONSE)]
    columns = ("attack", heads[0], heads[1], "AP, both", *heads[2:])
    if last.empty:
        return Table("", columns, [])
    figures = [f"{name}_{side}" for name in shown for side in (PROMPT, RESPONSE)]
    figures.insert(2, f"ap_{BOTH}")
    rows = [
        (_entitle(str(name)), *(_format(row[figure]) for figure in figures))
        for name, row in last.drop(index=WRITTEN).iterrows()
    ]
    count = int(last["sessions"].max())
    title = (
        f"what attacks read of {count} sessions, at both ends; what was written: METEOR (MP) "
        f"{get_utility(last):.4g} against the references"
    )
    return Table(title, columns, rows)


def tabulate_dialogues(run: Run, most: int = 2) -> Table:
    """Tabulate the first prompts and responses, each above what every attack read of it."""
    texts = load_sessions(run.path)
    rows: list[tuple[str, ...]] = []
    numbers = [] if texts.empty else sorted(texts["session"].unique())[:most]
    for number in numbers:
        group = texts[texts["session"] == number]
        private = group.iloc[0]
        sides = (_shorten(private[f"private_{side}"]) for side in (PROMPT, RESPONSE))
        rows.append((str(number), "(private)", *sides))
        for _, row in group[~group["attack"].isin(FLOORS)].iterrows():
            read = (_shorten(row[side]) for side in (PROMPT, RESPONSE))
            rows.append(("", _entitle(str(row["attack"])), *read))
    return Table("sessions as they were read", ("session", "by", PROMPT, RESPONSE), rows, "llll")


def compare_sessions(entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate a row per cell, over seeds: utility, AP of both ends by each attack, and DCS.

    DCS is that of the strongest attack, with the utility relative to the baseline's.
    """
    entries = _keep_with_sessions(entries)
    if not entries:
        return []
    rows, labels, against = _find_rows_and_baselines(entries, baseline)
    cells = [label | _make_cells(row) for label, row in zip(labels, rows, strict=True)]
    for label, scores in _list_silent(rows, labels, [None]):
        cells.append({**label, "MP": "0", "DCS": scores[0]})
    title = (
        "AP of both ends by attack on sessions; MP: METEOR of what is written; DCS: of the "
        f"strongest attack, 1 where nothing is read and no utility lost{against}"
    )
    return [tabulate(title, cells, entries)]


def show_sessions(run: Run) -> list[Table]:
    """Make all tables of a run's sessions."""
    return [tabulate_sessions(run), tabulate_dialogues(run)]


def measure_sessions(run: Run) -> dict[str, float]:
    """Return the last judged AP of each attack by side, the strongest AP, and the utility."""
    last = average_last_judged(run.sessions)
    if last.empty:
        return {}
    figures = [f"ap_{side}" for side in SIDES]
    measures = {
        f"{attack}_{figure}": float(row[figure])
        for attack, row in last.iterrows()
        for figure in figures
        if figure in row and not math.isnan(row[figure])
    }
    return {**measures, "sessions_ap": find_highest_ap(last), "sessions_mp": get_utility(last)}


def describe_sessions(run: Run) -> dict[str, Any]:
    """Return the means of each attack by side, as plain values."""
    return {
        str(each): row.dropna().to_dict()
        for each, row in average_last_judged(run.sessions).iterrows()
    }


def _keep_with_sessions(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if len(entry.run.sessions)]


def _find_rows_and_baselines(
    entries: Sequence[Entry], baseline: Baseline
) -> tuple[list[Row], list[dict[str, str]], str]:
    """Return rows with their baselines set, their labels, and words that name the baselines."""
    rows = group_rows(entries)
    labels = label_rows(rows)
    return rows, labels, find_baselines(rows, labels, baseline).replace("change", "DCS")


def _make_cells(row: Row) -> dict[str, str]:
    lasts = [average_last_judged(entry.run.sessions) for entry in row.entries]
    means: dict[str, list[float]] = {}
    for last in lasts:
        for name in last.index.drop(WRITTEN):
            title = _entitle(str(name))
            means.setdefault(title, []).append(get_figure(last, str(name), f"ap_{BOTH}"))
    cells = {"MP": format_mean([get_utility(last) for last in lasts], 3)}
    cells |= {name: format_mean(values, 3) for name, values in means.items()}
    return cells | {"DCS": _write_defence(row, lasts)}


def compare_weighted_defences(entries: Sequence[Entry], baseline: Baseline = None) -> list[Table]:
    """Tabulate a row per cell, over seeds: DCS at several weights of prompt against response."""
    entries = _keep_with_sessions(entries)
    if not entries:
        return []
    rows, labels, against = _find_rows_and_baselines(entries, baseline)
    if all(row.baseline in (None, row) for row in rows):
        raise RunError(
            "DCS is held against an undefended run, and there is none among these: add one, or "
            "name one by --baseline FIELD=VALUE"
        )
    cells = []
    for label, row in zip(labels, rows, strict=True):
        lasts = [average_last_judged(entry.run.sessions) for entry in row.entries]
        scores = {f"alpha {alpha:g}": _write_defence(row, lasts, alpha) for alpha in _ALPHAS}
        cells.append(label | scores)
    for label, silent in _list_silent(rows, labels, _ALPHAS):
        columns = (f"alpha {alpha:g}" for alpha in _ALPHAS)
        cells.append({**label, **dict(zip(columns, silent, strict=True))})
    title = (
        "DCS of the attack that is strongest at each alpha, which is the prompt's weight against "
        f"the response's (0: the response alone, 1: the prompt alone){against}"
    )
    return [tabulate(title, cells, entries)]


def _list_silent(
    rows: Sequence[Row], labels: Sequence[dict[str, str]], alphas: Sequence[float | None]
) -> list[tuple[dict[str, str], list[str]]]:
    """List a silent model beside each baseline: its label, and its DCS at each alpha.

    It sends and says nothing, so an attack reads nothing at any alpha. It is a control: a defence
    that scores no better has shown nothing.
    """
    made = []
    for base, label in zip(rows, labels, strict=True):
        if not any(row.baseline is base and row is not base for row in rows):
            continue
        utility = [get_utility(average_last_judged(entry.run.sessions)) for entry in base.entries]
        score = format_mean([compute_defence_score(0.0, 0.0, statistics.fmean(utility))], 3)
        named = next((name for name in ("cell", "method") if name in label), next(iter(label)))
        rest = {name: value for name, value in label.items() if name != "method"}
        made.append(({**rest, named: SILENT}, [score] * len(alphas)))
    return made


def _entitle(name: str) -> str:
    """Return the title of an attack, a guess or an upper bound in tables."""
    return f"{name} (ceiling)" if is_ceiling(name) else BLIND.get(name, name)


def _write_defence(row: Row, lasts: Sequence["pd.DataFrame"], alpha: float | None = None) -> str:
    """Write the mean DCS of runs against the baseline's mean utility; empty for the baseline."""
    if row.baseline is None or row.baseline is row:
        return ""
    base = row.baseline.of_the_seeds_of(row)
    undefended = statistics.fmean(
        get_utility(average_last_judged(entry.run.sessions)) for entry in base.entries
    )
    scores = [
        compute_defence_score(find_highest_ap(last, alpha), get_utility(last), undefended)
        for last in lasts
    ]
    return format_mean(scores, 3)


def _format(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"


def _shorten(text: object) -> str:
    words = " ".join(str(text).replace("\ufffd", "?").split())
    return words if len(words) <= _WIDTH else f"{words[: _WIDTH - 1]}…"


def show_session_results(subject: Subject) -> Markup:
    """Show one run's attacks and the texts that they read, or AP, utility and DCS of settings."""
    if not any(len(entry.run.sessions) for entry in subject.entries):
        return Markup()
    one = subject.one
    tables = compare_sessions(subject.entries) if one is None else show_sessions(one)
    return section("Sessions", *map(mark_up, tables))
