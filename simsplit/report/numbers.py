"""Users who compute with results need numbers: a row per setting, with means over its seeds.

`compare` on a terminal prints text tables of the same runs; with --format csv it writes these
numbers, one table at a time.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simsplit.errors import RunError, suggest
from simsplit.metrics.intervals import compute_deviation, compute_half_width
from simsplit.report.comparison import find_baselines
from simsplit.report.detections import list_detectors
from simsplit.report.grouping import (
    Baseline,
    Entry,
    Row,
    group_rows,
    label_rows,
    load_entries,
    refuse_unfinished,
)
from simsplit.report.leak_numbers import measure_leaks
from simsplit.report.presentations import list_presentations
from simsplit.report.privacy import measure_epsilon
from simsplit.report.tables import escape_formula
from simsplit.results import Run

if TYPE_CHECKING:
    import pandas as pd


Values = dict[str, list[float]]
"""A figure's values in the runs that have it, by its name."""

_TOTALS = ("seconds", "simulated_s", "resident_bytes")
_DETECTED = ("auroc", "tpr_at_1pct_fpr", "precision", "recall", "f1", "fpr")
_AGAINST = ("accuracy_change", "accuracy_change_low", "accuracy_change_high", "bytes_ratio")
_ROUNDS = ("last", "best_on_validation", "best_on_test")
"""The entries of a summary that have a round's figures."""
SETTINGS, DETECTIONS = "settings", "detections"


def compare(*runs: str | Path | Run, figure: str = "best_on_validation") -> "pd.DataFrame":
    """Compare runs and sweeps: a row per setting with each figure's mean and deviation over seeds.

    Shares are between 0 and 1, sizes in bytes, times in seconds. A deviation needs two seeds.
    `figure` names the round to quote: last, best_on_validation or best_on_test.

    >>> compare("runs/seeds")[["method", "test_accuracy_mean", "seeds"]]  # doctest: +SKIP
    """
    if figure not in _ROUNDS:  # a summary without this round is quoted at its last one
        raise RunError(
            f"figure: unknown '{figure}'{suggest(figure, _ROUNDS) or ','} "
            f"allowed: {', '.join(_ROUNDS)}"
        )
    paths = [run.path if isinstance(run, Run) else run for run in runs]
    return make_frame(load_entries(paths)[0], figure)


def make_frame(
    entries: Sequence[Entry],
    figure: str = "best_on_validation",
    baseline: Mapping[str, str] | None = None,
) -> "pd.DataFrame":
    """Make the table of `compare` from loaded entries, with changes against a baseline."""
    import pandas as pd

    rows = label_settings(entries)
    find_baselines([row for _, row in rows], [label for label, _ in rows], baseline)
    values = [measure([entry.run for entry in row.entries], figure) for _, row in rows]
    made = [
        {**label, "seeds": len(row.entries), **_measure_changes(row, figure), **_summarise(each)}
        for (label, row), each in zip(rows, values, strict=True)
    ]
    names = dict.fromkeys(name for label, _ in rows for name in label)
    against = [name for name in _AGAINST if any(name in each for each in made)]
    figures = dict.fromkeys(name for each in values for name in each)
    ends = [f"{name}_{what}" for name in figures for what in ("mean", "std")]
    return pd.DataFrame(made, columns=pd.Index([*names, "seeds", *against, *ends]))


def _measure_changes(row: Row, figure: str) -> dict[str, float]:
    """Return a row's mean differences from its baseline, with a 95 % interval over seeds."""
    if row.baseline is None:
        return {}
    base = row.baseline.of_the_seeds_of(row)
    numbers = {"bytes_ratio": row.nbytes / base.nbytes} if base.nbytes else {}
    if changes := row.changes(figure, "accuracy"):
        mean, half = statistics.fmean(changes), compute_half_width(changes)
        numbers["accuracy_change"] = mean
        if half is not None and row.baseline is not row:
            numbers |= {"accuracy_change_low": mean - half, "accuracy_change_high": mean + half}
    return numbers


def label_settings(entries: Sequence[Entry]) -> list[tuple[dict[str, str], Row]]:
    """Group runs that differ only in their seed, and label each group; refuse unfinished runs."""
    refuse_unfinished(entries)
    return label_groups(entries)


def label_groups(entries: Sequence[Entry]) -> list[tuple[dict[str, str], Row]]:
    """Group runs that differ only in their seed, and label each group."""
    rows = group_rows(entries)
    return list(zip(label_rows(rows), rows, strict=True))


def measure(runs: Sequence[Run], figure: str) -> Values:
    """Return all figures of runs at the round that `figure` names, run by run."""
    values: Values = {}
    for run in runs:
        for name, value in _measure_run(run, figure).items():
            values.setdefault(name, []).append(value)
    return values


def _measure_run(run: Run, figure: str) -> dict[str, float]:
    summary = run.summary
    chosen: Mapping[str, float] = summary.get(figure) or summary["last"]
    figures = {name: float(value) for name, value in chosen.items()}
    figures |= {f"bytes_{leg}": float(total) for leg, total in summary["bytes"].items()}
    if "bytes_plain" in run.rounds:
        figures["bytes_plain"] = float(run.rounds["bytes_plain"].sum())
    figures |= {name: float(summary[name]) for name in _TOTALS if summary.get(name) is not None}
    samples = summary.get("per_sample", {})
    figures |= {f"{name}_per_sample": float(value) for name, value in samples.items()}
    figures |= measure_leaks(run) | measure_epsilon(summary)
    return figures | _measure_detectors(run) | _measure_distances(run) | _measure_tuned(run)


def _measure_detectors(run: Run) -> dict[str, float]:
    if run.detections.empty:
        return {}
    last = run.detections.groupby("detector", sort=False).last()
    # Where nobody is flagged there is no precision, and that of an earlier round is not this one's.
    scored = run.detections.dropna(subset=["recall"]).groupby("detector").tail(1)
    last["precision"] = scored.set_index("detector")["precision"]
    return {
        f"{detector}_{figure}": float(row[figure])
        for detector, row in last.iterrows()
        for figure in _DETECTED
        if figure in row and not math.isnan(row[figure])
    }


def _measure_distances(run: Run) -> dict[str, float]:
    """Return the mean |z| of malicious clients by detector, in the last round that it judged."""
    if run.detections.empty:  # clients.csv can be large, and need not be read
        return {}
    figures: dict[str, float] = {}
    for detector in list_detectors(run):
        column = f"{detector}_z"
        judged = run.clients.dropna(subset=[column])
        last = judged[(judged["round"] == judged["round"].max()) & (judged["malicious"] == 1)]
        if len(last):
            figures[f"{detector}_z_malicious"] = float(last[column].abs().mean())
    return figures


def _measure_tuned(run: Run) -> dict[str, float]:
    """Return the numbers that an attacker chose for its attacks, and the seconds that it took."""
    chosen = {
        f"tuned_{each['attack']}_{name}": float(value)
        for each in run.tuned.get("attacks", ())
        for name, value in each["chosen"].items()
        if isinstance(value, int | float)
    }
    return chosen | ({"tuning_seconds": float(run.tuned.get("seconds", 0.0))} if run.tuned else {})


def _summarise(values: Values) -> dict[str, float]:
    spread = {}
    for name, each in values.items():
        spread[f"{name}_mean"] = statistics.fmean(each)
        if len(each) > 1:
            spread[f"{name}_std"] = compute_deviation(each)
    return spread


def list_tables() -> tuple[str, ...]:
    """Return the names that `--table` takes."""
    return (SETTINGS, *_collect_long_tables(), *list_shown_tables())


def list_shown_tables() -> tuple[str, ...]:
    """Return the names of tables whose cells are words; their CSV has the same cells."""
    asked = [name for _, each in list_presentations() for name in each.compare_on_request]
    return ("overview", *asked)


def _collect_long_tables() -> "dict[str, tuple[Sequence[str], Callable[[Run], pd.DataFrame]]]":
    """Return the columns that distinguish a setting's rows, and the rows of a run, by table."""
    tables = {name: (each.keys, each.frame) for name, each in list_presentations()}
    detections = ("detector", "window", "threshold"), lambda run: run.detections
    return {**tables, DETECTIONS: detections}


def write_csv(entries: Sequence[Entry], figure: str, name: str, baseline: Baseline = None) -> str:
    """Write one of the tables as comma-separated values, without a line end after the last."""
    made = make_frame(entries, figure, baseline) if name == SETTINGS else _make_long(entries, name)
    for column in made.select_dtypes(exclude="number"):
        words = [escape_formula(cell) if isinstance(cell, str) else cell for cell in made[column]]
        made[column] = words
    return made.to_csv(index=False, lineterminator="\n").rstrip("\n")


def refuse_table(name: str) -> None:
    """Raise RunError if there is no such table."""
    known = list_tables()
    if name not in known:
        raise RunError(
            f"--table: unknown '{name}'{suggest(name, known) or ','} allowed: {', '.join(known)}"
        )


def _make_long(entries: Sequence[Entry], what: str) -> "pd.DataFrame":
    """Make a row per setting and attack or detector, as judged last, over seeds."""
    import pandas as pd

    keys, frame_of = _collect_long_tables()[what]
    parts = []
    for label, row in label_settings(entries):
        tables = [table for entry in row.entries if not (table := frame_of(entry.run)).empty]
        if not tables:
            continue
        # An attack on the finished run may be of another round than the run's own.
        lasts = [
            table[table["round"] == table.groupby(keys[0])["round"].transform("max")]
            for table in tables
        ]
        together = pd.concat(lasts).drop(columns=["round", "kind", "role"], errors="ignore")
        groups = together.groupby([key for key in keys if key in together], sort=False)
        spread: Any = groups.agg(["mean", "std"])  # its columns are pairs
        spread.columns = pd.Index([f"{name}_{end}" for name, end in spread.columns])
        spread.insert(0, "seeds", groups.size())
        made = spread.reset_index()
        for place, (name, value) in enumerate(label.items()):
            made.insert(place, name, value)
        parts.append(made)
    if not parts:
        raise RunError(f"--table {what}: none of these runs has such figures")
    whole: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return whole
