"""Runs beside each other as numbers: a row a setting, with means and deviations over its seeds.

What `compare` prints is written from the same runs; this is for whoever goes on computing.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.metrics import falls
from simsplit.metrics.intervals import half_width
from simsplit.report.bests import way_of
from simsplit.report.comparison import find_baselines
from simsplit.report.entries import entries_of
from simsplit.report.grouping import (
    Entry,
    Row,
    labels_of,
    refuse_unfinished,
    rows_of,
)
from simsplit.report.presentations import PRESENTATIONS
from simsplit.report.tables import Better
from simsplit.results import Run

if TYPE_CHECKING:
    import pandas as pd

Values = dict[str, list[float]]
"""Figure -> its value in each run that has it."""

_TOTALS = ("seconds", "simulated_s", "resident_bytes")
_DETECTED = ("auroc", "tpr_at_1pct_fpr", "precision", "recall", "f1", "fpr")
_WAYS: Mapping[str, Better] = {**dict.fromkeys(_DETECTED, "more"), "fpr": "less"}
_COSTS = ("attack_success", "bytes", "seconds", "simulated", "resident")
_AGAINST = ("accuracy_change", "accuracy_change_low", "accuracy_change_high", "bytes_ratio")


def compare(*runs: str | Path | Run, figure: str = "best_on_validation") -> "pd.DataFrame":
    """A row per setting of runs and sweeps, and of each figure its mean and deviation over seeds.

    Shares are between 0 and 1, sizes in bytes, times in seconds. A deviation needs two seeds.

    >>> compare("runs/seeds")[["method", "test_accuracy_mean", "seeds"]]  # doctest: +SKIP
    """
    paths = [run.path if isinstance(run, Run) else run for run in runs]
    return frame(entries_of(paths)[0], figure)


def frame(
    entries: Sequence[Entry],
    figure: str = "best_on_validation",
    baseline: Mapping[str, str] | None = None,
) -> "pd.DataFrame":
    """The same of runs that have been read, held against the baseline that `compare` would take."""
    import pandas as pd

    rows = settings(entries)
    find_baselines([row for _, row in rows], [label for label, _ in rows], baseline)
    values = [measured([entry.run for entry in row.entries], figure) for _, row in rows]
    made = [
        {**label, "seeds": len(row.entries), **_against(row, figure), **_spread(each)}
        for (label, row), each in zip(rows, values, strict=True)
    ]
    names = dict.fromkeys(name for label, _ in rows for name in label)
    against = [name for name in _AGAINST if any(name in each for each in made)]
    columns = [*names, "seeds", *against, *_spread_names(values)]
    return pd.DataFrame(made, columns=pd.Index(columns))


def _against(row: Row, figure: str) -> dict[str, float]:
    """What a row differs by from its baseline, seed by seed, with a 95 % interval over seeds."""
    if row.baseline is None:
        return {}
    base = row.baseline.of_the_seeds_of(row)
    found = {"bytes_ratio": row.nbytes / base.nbytes} if base.nbytes else {}
    if changes := row.changes(figure, "accuracy"):
        mean, half = statistics.fmean(changes), half_width(changes)
        found["accuracy_change"] = mean
        if half is not None and row.baseline is not row:
            found |= {"accuracy_change_low": mean - half, "accuracy_change_high": mean + half}
    return found


def settings(entries: Sequence[Entry]) -> list[tuple[dict[str, str], Row]]:
    """Runs alike but for their seed together, and what tells them from the others."""
    for entry in entries:
        refuse_unfinished(entry.run)
    rows = rows_of(entries)
    return list(zip(labels_of(rows), rows, strict=True))


def measured(runs: Sequence[Run], figure: str) -> Values:
    """All that runs alike came to, at the round that `figure` names."""
    values: Values = {}
    for run in runs:
        for name, value in _of_run(run, figure).items():
            values.setdefault(name, []).append(value)
    return values


def better(name: str) -> Better | None:
    """Whether more or less of a figure is better; None where neither is.

    Of attacks: for those who are attacked.
    """
    if name.startswith(("test_", "validation_")):
        return "less" if falls(name) else "more"
    if name.startswith(_COSTS):
        return "less"
    kinds = (each.ways for each in PRESENTATIONS.values())
    return next((way for ways in (*kinds, _WAYS) if (way := way_of(name, ways))), None)


def _of_run(run: Run, figure: str) -> dict[str, float]:
    summary = run.summary
    chosen: Mapping[str, float] = summary.get(figure) or summary["last"]
    found = {name: float(value) for name, value in chosen.items()}
    found |= {f"bytes_{leg}": float(total) for leg, total in summary["bytes"].items()}
    if "bytes_plain" in run.rounds:
        found["bytes_plain"] = float(run.rounds["bytes_plain"].sum())
    found |= {name: float(summary[name]) for name in _TOTALS if summary.get(name) is not None}
    samples = summary.get("per_sample", {})
    found |= {f"{name}_per_sample": float(value) for name, value in samples.items()}
    for each in PRESENTATIONS.values():
        found |= each.measure(run)
    return found | _detected(run)


def _detected(run: Run) -> dict[str, float]:
    if run.detections.empty:
        return {}
    last = run.detections.groupby("detector", sort=False).last()
    return {
        f"{detector}_{figure}": float(row[figure])
        for detector, row in last.iterrows()
        for figure in _DETECTED
        if figure in row and not math.isnan(row[figure])
    }


def _spread(values: Values) -> dict[str, float]:
    spread = {}
    for name, each in values.items():
        spread[f"{name}_mean"] = statistics.fmean(each)
        if len(each) > 1:
            spread[f"{name}_std"] = statistics.stdev(each)
    return spread


def _spread_names(values: Sequence[Values]) -> list[str]:
    names = dict.fromkeys(name for each in values for name in each)
    return [f"{name}_{what}" for name in names for what in ("mean", "std")]
