"""What `show` and `compare` say of runs: one's figures and bytes; several beside their baseline.

Runs that differ in nothing but their seed are one row, a mean and a spread. A row's baseline is the
raw run that shares everything with it but the method, as the papers' "change against Raw" has it.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from simsplit.errors import RunError
from simsplit.preflight import size
from simsplit.report.tables import Table
from simsplit.report.timing import time_to_accuracy
from simsplit.results import SCENARIO, Run

_INCIDENTAL = ("seed", "name", "output", "threads", "device", "checkpoint", "engine")
_LEGS = ("smashed", "features", "features_grad", "smashed_grad", "labels", "handover", "broadcast")


def heading(run: Run) -> str:
    """Which run it is, how far it came, and why it stopped if it says so."""
    summary = run.summary
    finished = summary["status"] == "finished"
    done = summary["rounds_done"] if finished else len(run.rounds)  # a killed run wrote no summary
    status = "running, or killed" if summary["status"] == "running" else summary["status"]
    why = f"\nwhy: {summary['reason']}" if "reason" in summary else ""
    return f"{summary['name']}: {status}, {done} of {summary['rounds']} rounds{why}"


def show(run: Run) -> list[Table]:
    """A run's figures, its bytes by leg, and the simulated time that its accuracies took."""
    summary = run.summary
    if summary["status"] != "finished":
        summary = {**summary, "last": _latest(run)}
    tables = [_figures(summary), _bytes(run)]
    if "flops" in summary:
        tables.append(time_to_accuracy(run))
    return [table for table in tables if table.rows]


def _latest(run: Run) -> dict[str, float]:
    """The figures of the last evaluated round of a run that has not finished."""
    columns = map(str, run.rounds.columns)
    figures = [name for name in columns if name.startswith(("test_", "validation_"))]
    evaluated = run.rounds.dropna(subset=figures)
    if evaluated.empty:
        return {}
    return {name: float(evaluated[name].iloc[-1]) for name in ("round", *figures)}


def _figures(summary: dict[str, Any]) -> Table:
    """Last, best on validation, and best on test beside each other, a row per figure."""
    named = {
        "last": "last round",
        "best_on_validation": "best on validation",
        "best_on_test": "best on test (as papers select)",
    }
    chosen = {title: summary[key] for key, title in named.items() if summary.get(key)}
    figures = dict.fromkeys(name for values in chosen.values() for name in values)
    rows = [
        (name.replace("_", " "), *(_cell(name, values.get(name)) for values in chosen.values()))
        for name in figures
    ]
    return Table("", ("", *chosen), rows)


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
    return Table("", ("leg", "packets", "bytes", "size", "share"), rows)


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name == "round":
        return f"{value:.0f}"
    return f"{value:.4f}" if name.endswith("loss") else f"{100 * value:.2f}%"


def compare(runs: Sequence[Run], figure: str = "best_on_validation") -> Table:
    """A row per group of runs alike but for their seed: accuracy, change against Raw, bytes.

    `figure` is which of a run's rounds to quote: last, best_on_validation or best_on_test. A run
    without validation data is quoted at its last round. What would be the same in every row, or
    empty, is left out.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        _refuse_unfinished(run)
        groups.setdefault(_key(run, _INCIDENTAL), []).append(run)
    baselines = {
        _key(group[0], (*_INCIDENTAL, "method")): group
        for group in groups.values()
        if _methods(group[0]) == "raw"
    }
    rows = [
        _compared(group, baselines.get(_key(group[0], (*_INCIDENTAL, "method"))), figure)
        for group in groups.values()
    ]
    title = f"accuracies in % on the test data, at the round: {figure.replace('_', ' ')}"
    return _without_idle(Table(title, tuple(_COLUMNS), rows, "".join(_COLUMNS.values())))


_COLUMNS = {
    "run": "l",
    "setting": "l",
    "method": "l",
    "seeds": "r",
    "accuracy": "r",
    "balanced": "r",
    "change": "r",
    "bytes": "r",
    "of Raw": "r",
}


def _without_idle(table: Table) -> Table:
    """Without the columns that are empty, and without the setting where it is always the same."""
    kept = [
        index
        for index, column in enumerate(table.columns)
        if any(cells := [row[index] for row in table.rows])
        and (column != "setting" or len(set(cells)) > 1)
    ]

    def pick(cells: Sequence[str]) -> tuple[str, ...]:
        return tuple(cells[index] for index in kept)

    rows = [pick(row) for row in table.rows]
    return Table(table.title, pick(table.columns), rows, "".join(pick(table.align)))


def _compared(group: list[Run], baseline: list[Run] | None, figure: str) -> tuple[str, ...]:
    accuracy, balanced = (
        _values(group, figure, name) for name in ("accuracy", "balanced_accuracy")
    )
    nbytes = statistics.fmean(run.summary["bytes"]["total"] for run in group)
    change = ratio = ""
    if baseline is not None:
        raw = _of_the_same_seeds(baseline, group)
        base = _values(raw, figure, "accuracy")
        if baseline is not group and base and accuracy:
            change = f"{100 * (statistics.fmean(accuracy) - statistics.fmean(base)):+.2f}"
        ratio = f"{nbytes / statistics.fmean(r.summary['bytes']['total'] for r in raw):.3f}"
    return (
        group[0].summary["name"],
        _setting(group[0]),
        _methods(group[0]),
        str(len(group)),
        spread(accuracy),
        spread(balanced),
        change,
        size(nbytes),
        ratio,
    )


def _of_the_same_seeds(baseline: list[Run], group: list[Run]) -> list[Run]:
    """The baseline's runs that pair with the group's, if each of the group's has a partner."""
    seeds = {_scenario(run)["seed"] for run in group}
    paired = [run for run in baseline if _scenario(run)["seed"] in seeds]
    return paired if len(paired) == len(seeds) else baseline


def spread(values: Iterable[float]) -> str:
    """A percentage, with the standard deviation where there are several."""
    values = [100 * value for value in values]
    if not values:
        return ""
    mean = statistics.fmean(values)
    return f"{mean:.2f} ± {statistics.stdev(values):.2f}" if len(values) > 1 else f"{mean:.2f}"


def _refuse_unfinished(run: Run) -> None:
    status = run.summary.get("status")
    if status != "finished":
        raise RunError(f"{run.path} has not finished (it is {status}); go on with it with --resume")


def _values(group: list[Run], figure: str, metric: str) -> list[float]:
    rows = [run.summary.get(figure) or run.summary["last"] for run in group]
    return [row[f"test_{metric}"] for row in rows if f"test_{metric}" in row]


def _scenario(run: Run) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((run.path / SCENARIO).read_text(encoding="utf-8"))
    return values


def _key(run: Run, without: tuple[str, ...]) -> str:
    values = {name: value for name, value in _scenario(run).items() if name not in without}
    if "method" in values:  # `[{kind: raw}]` is the same as an empty list
        values["method"] = [method for method in values["method"] if method["kind"] != "raw"]
    return json.dumps(values, sort_keys=True)


def _setting(run: Run) -> str:
    """What else tells rows apart, such as `cifar10, dirichlet 0.1, PCH, vanilla, parallel`."""
    scenario = _scenario(run)
    source, partition = scenario["data"]["source"], scenario["data"]["partition"]
    name = Path(source.get("path") or source.get("name") or source["kind"]).name
    alpha = f" {partition['alpha']:g}" if "alpha" in partition else ""
    heads = "SCH" if scenario["clients"]["heads"] == "shared" else "PCH"
    vanilla = ["vanilla"] if scenario["topology"] == "vanilla" else []
    return ", ".join([name, f"{partition['kind']}{alpha}", heads, *vanilla, *_course(scenario)])


def _course(scenario: dict[str, Any]) -> list[str]:
    """Schedule and aggregation, where they are not the usual ones."""
    schedule, aggregation = scenario["schedule"]["kind"], scenario.get("aggregation") or {}
    strategy = aggregation.get("strategy", {}).get("kind", "fedavg")
    averages = " ".join([aggregation.get("kind", "none"), *_but(strategy, "fedavg")])
    return [*_but(schedule, "round_robin"), *_but(averages, "none")]


def _but(word: str, usual: str) -> list[str]:
    return [] if word == usual else [word]


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
