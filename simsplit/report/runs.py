"""What `show` and `compare` say of runs: one run's figures and bytes; several beside their baseline.

Runs that differ in nothing but their seed are one row, a mean and a spread. A row's baseline is the
raw run that shares everything with it but the method, as the papers' "change against Raw" has it.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from simsplit.errors import RunError
from simsplit.preflight import size
from simsplit.report.tables import Table
from simsplit.results import SCENARIO, Run

_INCIDENTAL = ("seed", "name", "output", "threads", "device", "checkpoint")
_LEGS = ("smashed", "features", "features_grad", "smashed_grad", "labels", "handover", "broadcast")


def show(run: Run) -> list[Table]:
    """A run's figures and its bytes by leg."""
    summary = run.summary
    tables = [_figures(summary), _bytes(run)]
    return [table for table in tables if table.rows]


def _figures(summary: dict[str, Any]) -> Table:
    """Last, best on validation, and best on test, a row each."""
    named = {
        "last": "last round",
        "best_on_validation": "best on validation",
        "best_on_test": "best on test (as papers select)",
    }
    chosen = {title: summary[key] for key, title in named.items() if summary.get(key)}
    metrics = list(dict.fromkeys(name for row in chosen.values() for name in row))
    rows = [
        (title, *(_cell(name, row.get(name)) for name in metrics)) for title, row in chosen.items()
    ]
    return Table("", ("", *(name.replace("_", " ") for name in metrics)), rows)


def _bytes(run: Run) -> Table:
    """Packets and bytes by leg; each direction's share of what was sent."""
    wire = run.wire
    if wire.empty:
        return Table("", ("leg", "packets", "bytes"), [])
    training = wire[wire["phase"] != "evaluate"]
    total = int(training["bytes"].sum())
    rows = []
    for leg in _LEGS:
        of_leg = training[training["leg"] == leg]
        if len(of_leg):
            nbytes = int(of_leg["bytes"].sum())
            share = f"{nbytes / total:.1%}"
            rows.append(
                (leg, f"{int(of_leg['packets'].sum()):,}", f"{nbytes:,}", size(nbytes), share)
            )
    rows.append(("all", f"{int(training['packets'].sum()):,}", f"{total:,}", size(total), "100.0%"))
    return Table("", ("leg", "packets", "bytes", "", "share"), rows)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "round":
        return f"{value:.0f}"
    return f"{value:.4f}" if name.endswith("loss") else f"{100 * value:.2f}%"


def compare(runs: Sequence[Run], figure: str = "best_on_validation") -> Table:
    """A row per group of runs alike but for their seed: accuracy, change against Raw, bytes.

    `figure` is which of a run's rounds to quote: last, best_on_validation or best_on_test. A run
    without validation data is quoted at its last round.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run, _INCIDENTAL), []).append(run)
    baselines = {
        _key(group[0], (*_INCIDENTAL, "method")): group
        for group in groups.values()
        if _methods(group[0]) == "raw"
    }
    columns = ("run", "method", "seeds", "accuracy", "balanced", "change", "bytes", "of Raw")
    rows = [
        _compared(group, baselines.get(_key(group[0], (*_INCIDENTAL, "method"))), figure)
        for group in groups.values()
    ]
    return Table("", columns, rows)


def _compared(group: list[Run], baseline: list[Run] | None, figure: str) -> tuple[str, ...]:
    accuracy, balanced = (
        _values(group, figure, name) for name in ("accuracy", "balanced_accuracy")
    )
    nbytes = statistics.fmean(run.summary["bytes"]["total"] for run in group)
    change = ratio = ""
    if baseline is not None:
        base = statistics.fmean(_values(baseline, figure, "accuracy"))
        change = f"{100 * (statistics.fmean(accuracy) - base):+.2f}" if baseline != group else ""
        ratio = f"{nbytes / statistics.fmean(r.summary['bytes']['total'] for r in baseline):.3f}"
    return (
        group[0].summary["name"],
        _methods(group[0]),
        str(len(group)),
        spread(accuracy),
        spread(balanced),
        change,
        size(nbytes),
        ratio,
    )


def spread(values: Iterable[float]) -> str:
    """A percentage, with the standard deviation where there are several."""
    values = [100 * value for value in values]
    if not values:
        return ""
    mean = statistics.fmean(values)
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def _values(group: list[Run], figure: str, metric: str) -> list[float]:
    found = []
    for run in group:
        if run.summary.get("status") != "finished":
            raise RunError(
                f"{run.path} has not finished ({run.summary.get('status')}); --resume it first"
            )
        row = run.summary.get(figure) or run.summary["last"]
        if f"test_{metric}" in row:
            found.append(row[f"test_{metric}"])
    return found


def _scenario(run: Run) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((run.path / SCENARIO).read_text(encoding="utf-8"))
    return values


def _key(run: Run, without: tuple[str, ...]) -> str:
    values = {name: value for name, value in _scenario(run).items() if name not in without}
    return json.dumps(values, sort_keys=True)


def _methods(run: Run) -> str:
    """A short name of what happens at the cut, such as `lightsplit 8 fixed + wcc 0.01`."""
    methods = [method for method in _scenario(run)["method"] if method["kind"] != "raw"]
    return " + ".join(_method(method) for method in methods) or "raw"


def _method(method: dict[str, Any]) -> str:
    telling = ("ratio", "k", "lift", "weight", "to")
    words = [str(method[name]) for name in telling if method.get(name) is not None]
    words = [word.removesuffix(".0") for word in words]
    if "features" in method.get("legs", ()):
        words.append("both legs" if "smashed" in method["legs"] else "features")
    return " ".join([method["kind"], *words])
