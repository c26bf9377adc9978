"""What `compare` says of runs: a row for those alike but for their seed, beside their baseline.

A row's baseline is the raw run that shares everything with it but the method, as the papers'
"change against Raw" has it. A sweep in which no cell has one is held against its first cell, or any
against the cells that the user names.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from simsplit.errors import RunError
from simsplit.preflight import size
from simsplit.report.handovers import handed_over
from simsplit.report.privacy import epsilon_of
from simsplit.report.short_names import (
    methods_of,
    setting_of,
    short_names,
    told_apart,
    value_of,
)
from simsplit.report.tables import Table, mean_of
from simsplit.report.timing import duration
from simsplit.results import SCENARIO, Run

LABEL = "name"
"""The setting that holds what a sweep's list calls a cell."""
_INCIDENTAL = ("seed", "name", "output", "threads", "device", "checkpoint", "engine", "observers")
_HOW = {"clients", "cohort", "schedule", "aggregation", "network", "engine", "threads"}
"""A sweep over one of these is a question of cost: its table says what a run took."""
_COSTS = ("per client", "per sample", "simulated", "time", "time per sample", "memory")
_USUAL = ("accuracy", "balanced_accuracy", "loss")
"""Figures that every run has; those named first have their own columns."""
_ALIGN = {"run": "l", "setting": "l", "method": "l"}


@dataclass(frozen=True)
class Entry:
    """A run to compare; as the cell of a sweep, with what the sweep gave it."""

    run: Run
    sweep: Path | None = None
    sweep_name: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Swept field -> value in words."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Swept field -> its short name."""

    @cached_property
    def scenario(self) -> dict[str, Any]:
        """The saved scenario's plain values."""
        text = (self.run.path / SCENARIO).read_text(encoding="utf-8")
        values: dict[str, Any] = yaml.safe_load(text)
        return values

    @property
    def titles(self) -> dict[str, str]:
        """The columns of its settings."""
        return {name: "cell" if name == LABEL else self.short[name] for name in self.settings}


@dataclass(eq=False)
class Row:
    """Runs alike but for their seed."""

    entries: list[Entry]
    baseline: "Row | None" = None
    repeated: list[Entry] = field(default_factory=list)
    """Further runs of a seed that is there; they say nothing of the spread, and are left out."""

    @property
    def settings(self) -> dict[str, str]:
        """What the sweep gave all of them."""
        return {name: v for name, v in self.entries[0].settings.items() if name != "seed"}

    def key(self, *, method: bool) -> str:
        """What rows must share to be one row, or to be another's raw baseline."""
        return _key(self.entries[0], method=method)

    def values(self, figure: str, metric: str) -> list[float]:
        """One of the figures, run by run."""
        return [row[f"test_{metric}"] for row in self._at(figure) if f"test_{metric}" in row]

    def further(self, figure: str) -> list[str]:
        """What else was evaluated, such as perplexity."""
        names = dict.fromkeys(name for row in self._at(figure) for name in row)
        tested = [name.removeprefix("test_") for name in names if name.startswith("test_")]
        controls = tuple(f"{name}_" for name in _USUAL[1:])
        return [n for n in tested if n not in _USUAL and not n.startswith(controls)]

    def _at(self, figure: str) -> list[dict[str, float]]:
        return [e.run.summary.get(figure) or e.run.summary["last"] for e in self.entries]

    @property
    def nbytes(self) -> float:
        """Bytes of a run, on average."""
        return statistics.fmean(entry.run.summary["bytes"]["total"] for entry in self.entries)

    def of_the_seeds_of(self, other: "Row") -> "Row":
        """Its runs that pair with the other's, if each of the other's has a partner."""
        seeds = {entry.scenario["seed"] for entry in other.entries}
        paired = [entry for entry in self.entries if entry.scenario["seed"] in seeds]
        return Row(paired) if len(paired) == len(seeds) else self


def compare(
    runs: Sequence[Run | Entry],
    figure: str = "best_on_validation",
    baseline: Mapping[str, str] | None = None,
) -> Table:
    """A row per group of runs alike but for their seed: accuracy, change against Raw, bytes.

    `figure` is which of a run's rounds to quote: last, best_on_validation or best_on_test. A run
    without validation data is quoted at its last round. `baseline` names cells of a sweep, by field
    and value, that stand in for Raw. What would be the same in every row, or empty, is left out.
    """
    entries = [Entry(run) if isinstance(run, Run) else run for run in runs]
    for entry in entries:
        _refuse_unfinished(entry.run)
    rows = rows_of(entries)
    labels = labels_of(rows)
    against = _find_baselines(rows, labels, baseline)
    ratio = "of baseline" if against else "of Raw"
    cells = [label | _cells(row, figure, ratio) for label, row in zip(labels, rows, strict=True)]
    title = f"accuracies in % on the test data, at the round: {_said(figure, rows)}"
    held = handed_over(entry.run for entry in entries)
    hands = f"; hand-overs are of {held}" if held else ""
    again = [str(entry.run.path) for row in rows for entry in row.repeated]
    left_out = f"; left out, for their seed is there already: {', '.join(again)}" if again else ""
    return tabled(f"{title}{_inference(rows)}{hands}{against}{left_out}", cells, entries)


def _said(figure: str, rows: Sequence[Row]) -> str:
    """Which round is quoted, in words; a run without validation data has no best round."""
    without = [not entry.run.summary.get(figure) for row in rows for entry in row.entries]
    if all(without):
        return "last (no run has validation data)"
    rest = "; last, where there is no validation data" if any(without) else ""
    return figure.replace("_", " ") + rest


def _inference(rows: Sequence[Row]) -> str:
    """How texts are sent in evaluation, if a method has the choice; rows name it if they differ."""
    found = {
        str(method["inference"])
        for row in rows
        for method in row.entries[0].scenario["method"]
        if isinstance(method.get("inference"), str)
    }
    return f"; {found.pop()} inference" if len(found) == 1 else ""


def rows_of(entries: Iterable[Entry]) -> list[Row]:
    """Runs that differ in nothing but their seed together."""
    rows: dict[str, Row] = {}
    for entry in entries:
        row = rows.setdefault(_key(entry, method=True), Row([]))
        known = {each.scenario["seed"] for each in row.entries}
        (row.repeated if entry.scenario["seed"] in known else row.entries).append(entry)
    return list(rows.values())


def _find_baselines(
    rows: Sequence[Row], labels: Sequence[Mapping[str, str]], wanted: Mapping[str, str] | None
) -> str:
    """Give rows their baselines; says which they are, if not the raw ones."""
    if wanted is not None:
        chosen = _chosen(rows, wanted)
        for row in rows:
            if row.settings:
                row.baseline = max(chosen, key=lambda one: _agreement(one, row))
        rest = ", all else equal" if len(chosen) > 1 else ""
        return f"; change is against {_told(wanted, chosen[0])}{rest}"
    raw = {row.key(method=False): row for row in rows if _methods(row) == "raw"}
    for row in rows:
        row.baseline = raw.get(row.key(method=False))
    said = []
    for sweep in dict.fromkeys(row.entries[0].sweep for row in rows):
        cells = [row for row in rows if row.entries[0].sweep == sweep]
        if (
            sweep is None
            or len(cells) == 1
            or any(row.baseline not in (None, row) for row in cells)
        ):
            continue
        for row in cells:
            row.baseline = cells[0]
        label = labels[rows.index(cells[0])]
        # as its row calls it: a swept method's short value does not tell variants of it apart
        settings = {n: label.get(n, value) for n, value in cells[0].settings.items()}
        said.append(_told(settings, cells[0]))
    return f"; change is against {' and '.join(said)}" if said else ""


def _chosen(rows: Sequence[Row], wanted: Mapping[str, str]) -> list[Row]:
    """The rows that have the wanted settings; RunError if none has."""
    chosen = [
        row
        for row in rows
        if all(
            value in (row.settings.get(name), row.settings.get(name, "").replace(" ", "-"))
            for name, value in wanted.items()
        )
    ]
    if chosen:
        return chosen
    known = [
        f"{name}: {', '.join(dict.fromkeys(r.settings[name] for r in rows if name in r.settings))}"
        for name in wanted
    ]
    told = ",".join(f"{name}={value}" for name, value in wanted.items())
    raise RunError(f"--baseline: no finished cell has {told}; there are {'; '.join(known)}")


def _agreement(one: Row, other: Row) -> int:
    return sum(other.settings.get(name) == value for name, value in one.settings.items())


def _told(settings: Mapping[str, str], row: Row) -> str:
    titles = row.entries[0].titles
    return ", ".join(f"{titles[name]}={value}" for name, value in settings.items())


def _cells(row: Row, figure: str, ratio: str) -> dict[str, str]:
    """Column -> cell; the swept fields stand under their own names."""
    accuracy, balanced = (row.values(figure, name) for name in ("accuracy", "balanced_accuracy"))
    cells = {"seeds": str(len(row.entries)), "accuracy": mean_of("accuracy", accuracy)}
    cells |= {"balanced": mean_of("accuracy", balanced), "change": ""}
    cells |= {name: mean_of(name, row.values(figure, name)) for name in row.further(figure)}
    cells |= {"bytes": size(row.nbytes), ratio: ""}
    cells |= {"epsilon": epsilon_of([entry.run for entry in row.entries])}
    cells |= _costs(row)
    if row.baseline is not None:
        of_same_seeds = row.baseline.of_the_seeds_of(row)
        base = of_same_seeds.values(figure, "accuracy")
        if row.baseline is row:
            cells["change"] = "" if ratio == "of Raw" else "baseline"
        elif base and accuracy:
            change = statistics.fmean(accuracy) - statistics.fmean(base)
            cells["change"] = f"{100 * change:+.2f}"
        cells[ratio] = f"{row.nbytes / of_same_seeds.nbytes:.3f}"
    return cells


def labels_of(rows: Sequence[Row]) -> list[dict[str, str]]:
    """What tells rows apart: their runs, what was swept, their settings and their methods."""
    methods = told_apart([row.entries[0].scenario for row in rows])
    labels = []
    for row, method in zip(rows, methods, strict=True):
        first = row.entries[0]
        cells = {"run": first.sweep_name or first.run.summary["name"]}
        # the method's own column says it better
        cells |= {first.titles[name]: v for name, v in row.settings.items() if name != "method"}
        labels.append(cells | {"setting": setting_of(first.scenario), "method": method})
    return _but_what_names_say(rows, _told_further(rows, labels))


def _but_what_names_say(
    rows: Sequence[Row], labels: Sequence[dict[str, str]]
) -> list[dict[str, str]]:
    """A name that several rows share stands for what is the same in all of them."""
    names = [row.settings.get(LABEL) for row in rows]
    if None in names or len(set(names)) == len(names):
        return list(labels)
    said = {
        title
        for name, title in rows[0].entries[0].titles.items()
        if name not in (LABEL, "method")
        if len({(n, label.get(title)) for n, label in zip(names, labels, strict=True)})
        == len(set(names))
    }
    return [{n: cell for n, cell in label.items() if n not in said} for label in labels]


def _told_further(rows: Sequence[Row], labels: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """With a column for each field in which rows differ that would be called alike."""
    fields = [_flat(row.entries[0].scenario) for row in rows]
    alike: dict[str, list[dict[str, str]]] = {}
    for label, values in zip(labels, fields, strict=True):
        told = {name: cell for name, cell in label.items() if name != "run"}
        alike.setdefault(json.dumps(told), []).append(values)
    differing = [
        field
        for group in alike.values()
        for field in dict.fromkeys(name for values in group for name in values)
        if len({values.get(field) for values in group}) > 1
    ]
    names = short_names(list(dict.fromkeys(differing)))
    return [
        label | {short: values.get(field, "") for field, short in names.items()}
        for label, values in zip(labels, fields, strict=True)
    ]


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Fields by their dotted names, but for those that results do not depend on, and methods."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if not above and name in (*_INCIDENTAL, "method"):
            continue
        below = isinstance(value, Mapping)
        flat |= _flat(value, f"{above}{name}.") if below else {f"{above}{name}": value_of(value)}
    return flat


def _costs(row: Row) -> dict[str, str]:
    """What a run of the row took, on average."""

    def mean(values: Iterable[float | None], told: Callable[[float], str]) -> str:
        known = [value for value in values if value is not None]
        return told(statistics.fmean(known)) if known else ""

    clients = row.entries[0].scenario["clients"]["count"]
    runs = [entry.run for entry in row.entries]
    samples = [run.summary.get("per_sample", {}) for run in runs]
    return {
        "per client": size(row.nbytes / clients),
        "per sample": mean((each.get("bytes") for each in samples), size),
        "simulated": mean((run.summary.get("simulated_s") for run in runs), duration),
        "time": mean((run.summary.get("seconds") for run in runs), duration),
        "time per sample": mean((each.get("seconds") for each in samples), duration),
        "memory": mean((run.summary.get("resident_bytes") for run in runs), size),
    }


def tabled(title: str, rows: Sequence[Mapping[str, str]], entries: Sequence[Entry]) -> Table:
    """Without the columns that are empty, and without those that tell no row from another."""
    swept = {title for entry in entries for title in entry.titles.values()} - {"method"}
    columns = dict.fromkeys(["run", *(name for row in rows for name in row if name in swept)])
    columns |= dict.fromkeys(name for row in rows for name in row)
    differ = {name for name in columns if len({row.get(name, "") for row in rows}) > 1}
    # a sweep's rows are told apart by what it swept
    idle = {"setting", *swept}
    roots = {name.split(".")[0] for entry in entries for name in entry.settings}
    if not roots & _HOW:
        columns = {name: None for name in columns if name not in _COSTS}
    if len({entry.sweep for entry in entries}) == 1 and differ & {"method", *swept}:
        idle |= {"run", "method"} if differ & swept else {"run"}
    kept = [
        name
        for name in columns
        if any(row.get(name) for row in rows) and (name in differ or name not in idle)
    ]
    align = "".join(_ALIGN.get(name, "r") if name not in swept else "l" for name in kept)
    return Table(title, tuple(kept), [tuple(row.get(n, "") for n in kept) for row in rows], align)


def _refuse_unfinished(run: Run) -> None:
    status = run.summary.get("status")
    if status != "finished":
        raise RunError(f"{run.path} has not finished (it is {status}); go on with it with --resume")


def _methods(row: Row) -> str:
    return methods_of(row.entries[0].scenario)


def _key(entry: Entry, *, method: bool) -> str:
    values = {name: value for name, value in entry.scenario.items() if name not in _INCIDENTAL}
    swept = {name: value for name, value in entry.settings.items() if name != "seed"}
    if method and "method" in values:  # `[{kind: raw}]` is the same as an empty list
        values["method"] = [one for one in values["method"] if one["kind"] != "raw"]
    if not method:
        values.pop("method", None)
        swept = {n: v for n, v in swept.items() if n.split(".")[0] not in ("method", LABEL)}
    return json.dumps([values, swept], sort_keys=True)
