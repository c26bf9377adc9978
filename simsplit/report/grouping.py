"""What makes a row of a table: runs that differ in their seed alone, and what they are called."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.report.short_names import methods_of, setting_of, short_names, told_apart, value_of
from simsplit.results import Run

Baseline = Mapping[str, str] | None
"""The cells, by field and value, that others are held against; None: raw ones, or the first."""
LABEL = "name"
"""The setting that holds what a sweep's list calls a cell."""
_INCIDENTAL = ("seed", "name", "output", "threads", "device", "checkpoint", "engine", "observers")
_BARE = ("method", "setting", "cell", "run")
"""Labels that need no name before them."""
_UNSET = value_of(None)
_USUAL = ("accuracy", "balanced_accuracy", "loss")
"""Figures that every run has; those named first have their own columns."""


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

    @property
    def scenario(self) -> dict[str, Any]:
        """The saved scenario's plain values."""
        return self.run.scenario

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

    def changes(self, figure: str, metric: str) -> list[float]:
        """The differences to the baseline, each to its run of the same seed; of one that shares no
        seed the difference of means, if both have the figure.
        """
        if self.baseline is None:
            return []
        theirs = self.baseline.by_seed(figure, metric)
        ours = self.by_seed(figure, metric)
        paired = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
        if paired or not (ours and theirs):
            return paired
        return [statistics.fmean(ours.values()) - statistics.fmean(theirs.values())]

    def by_seed(self, figure: str, metric: str) -> dict[int, float]:
        """One of the figures by seed, of the runs that have it."""
        known = zip(self.entries, self._at(figure), strict=True)
        name = f"test_{metric}"
        return {entry.scenario["seed"]: row[name] for entry, row in known if name in row}

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


def rows_of(entries: Iterable[Entry]) -> list[Row]:
    """Runs that differ in nothing but their seed together."""
    rows: dict[str, Row] = {}
    for entry in entries:
        row = rows.setdefault(_key(entry, method=True), Row([]))
        known = {each.scenario["seed"] for each in row.entries}
        (row.repeated if entry.scenario["seed"] in known else row.entries).append(entry)
    return list(rows.values())


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


def names_of(entries: Sequence[Entry]) -> list[str]:
    """Each row's name: the fewest words that tell it from the others."""
    rows = rows_of(entries)
    labels = labels_of(rows)
    keys = dict.fromkeys(key for label in labels for key in label)
    differ = [key for key in keys if len({label.get(key, "") for label in labels}) > 1]
    without = [key for key in differ if key != "run"]
    for chosen in (["cell"], without, differ):
        told = [in_words({key: label.get(key, "") for key in chosen}) for label in labels]
        if all(told) and len(set(told)) == len(told):
            return told
    return [row.entries[0].run.path.name for row in rows]


def in_words(label: Mapping[str, str]) -> str:
    """What tells a row from others, in a line."""
    words = (value if key in _BARE else f"{key} {value}" for key, value in label.items() if value)
    return ", ".join(words)


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
        if len({values.get(field, _UNSET) for values in group}) > 1
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


def refuse_unfinished(run: Run) -> None:
    """RunError where a run has not finished."""
    status = run.summary.get("status")
    if status != "finished":
        raise RunError(f"{run.path} has not finished (it is {status}); go on with it with --resume")


def methods_in(row: Row) -> str:
    """A row's methods in short."""
    return methods_of(row.entries[0].scenario)


def _key(entry: Entry, *, method: bool) -> str:
    values = {name: value for name, value in entry.scenario.items() if name not in _INCIDENTAL}
    swept = {name: value for name, value in entry.settings.items() if name != "seed"}
    if method and "method" in values:  # `[{kind: raw}]` is the same as an empty list
        values["method"] = [one for one in values["method"] if one["kind"] != "raw"]
    if not method:
        values.pop("method", None)
        swept = {n: v for n, v in swept.items() if n.split(".")[0] not in ("method", LABEL)}
    return json.dumps([_but_nulls(values), swept], sort_keys=True)


def _but_nulls(values: Any) -> Any:  # noqa: ANN401 - plain values
    """All fields but those that are null, as are, in older runs, fields that came since."""
    if isinstance(values, Mapping):
        return {name: _but_nulls(value) for name, value in values.items() if value is not None}
    return [_but_nulls(value) for value in values] if isinstance(values, list) else values
