"""Runs that differ only in their seed make one row of a table, and each row needs a name.

Runs are loaded from run and sweep directories, where a sweep stands for its finished cells.
"""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simsplit.errors import RunError
from simsplit.report.short_names import (
    describe_setting,
    distinguish_methods,
    short_names,
    value_of,
)
from simsplit.results import SWEEP, CellEntry, Run, SweepDirectory, read_summary

Baseline = Mapping[str, str] | None
"""The cells, by field and value, that others are compared with; None: raw ones, or the first."""
LABEL = "name"
"""The setting that holds the name that a sweep's list gives a cell."""
INCIDENTAL = ("seed", "name", "output", "threads", "device", "checkpoint", "engine", "observers")
"""Fields that do not affect results, and the seed."""
_BARE = ("method", "setting", "cell", "run")
"""Labels that are clear without their column's name."""
_UNSET = value_of(None)
_LONGEST = 60
"""Letters of a row's name, at most, where folders have names of their own."""
_USUAL = ("accuracy", "balanced_accuracy", "loss")
"""Figures that every run has; the first two have columns of their own."""


@dataclass(frozen=True)
class Entry:
    """A run to compare; if it is a sweep's cell, with the settings that the sweep gave it."""

    run: Run
    sweep: Path | None = None
    sweep_name: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Swept fields and their values in words."""
    short: Mapping[str, str] = field(default_factory=dict)
    """Swept fields and their short names."""

    @property
    def scenario(self) -> dict[str, Any]:
        """The saved scenario's plain values."""
        return self.run.fields

    @property
    def titles(self) -> dict[str, str]:
        """The columns' titles of its settings."""
        return {name: "cell" if name == LABEL else self.short[name] for name in self.settings}


@dataclass(eq=False)
class Row:
    """Runs that differ only in their seed."""

    entries: list[Entry]
    baseline: "Row | None" = None
    repeated: list[Entry] = field(default_factory=list)
    """Further runs of a seed already present, left out because they add nothing to a deviation."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings that the sweep gave all of the runs."""
        return {name: v for name, v in self.entries[0].settings.items() if name != "seed"}

    def values(self, figure: str, metric: str) -> list[float]:
        """Return one of the figures, run by run."""
        return [row[f"test_{metric}"] for row in self._at(figure) if f"test_{metric}" in row]

    def changes(self, figure: str, metric: str) -> list[float]:
        """Return the differences from the baseline, each from the baseline's run of the same seed.

        If no seed is shared, return the difference of means, if both have the figure.
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
        """Return one of the figures by seed, for the runs that have it."""
        known = zip(self.entries, self._at(figure), strict=True)
        name = f"test_{metric}"
        return {entry.scenario["seed"]: row[name] for entry, row in known if name in row}

    def further(self, figure: str) -> list[str]:
        """List the other evaluated figures, such as perplexity."""
        names = dict.fromkeys(name for row in self._at(figure) for name in row)
        tested = [name.removeprefix("test_") for name in names if name.startswith("test_")]
        controls = tuple(f"{name}_" for name in _USUAL[1:])
        return [n for n in tested if n not in _USUAL and not n.startswith(controls)]

    def _at(self, figure: str) -> list[dict[str, float]]:
        return [e.run.summary.get(figure) or e.run.summary["last"] for e in self.entries]

    @property
    def nbytes(self) -> float:
        """The mean of the runs' bytes."""
        return statistics.fmean(entry.run.summary["bytes"]["total"] for entry in self.entries)

    def of_the_seeds_of(self, other: "Row") -> "Row":
        """Return a row of only the other's seeds, or this row if it lacks one of these seeds."""
        seeds = {entry.scenario["seed"] for entry in other.entries}
        paired = [entry for entry in self.entries if entry.scenario["seed"] in seeds]
        return Row(paired) if len(paired) == len(seeds) else self


def group_rows(entries: Iterable[Entry]) -> list[Row]:
    """Group runs that differ only in their seed into rows."""
    rows: dict[str, Row] = {}
    for entry in entries:
        row = rows.setdefault(make_key(entry, method=True), Row([]))
        known = {each.scenario["seed"] for each in row.entries}
        (row.repeated if entry.scenario["seed"] in known else row.entries).append(entry)
    return list(rows.values())


def label_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Label each row by its run, swept fields, setting and methods."""
    methods = distinguish_methods([row.entries[0].scenario for row in rows])
    names = _name_runs([row.entries[0] for row in rows])
    labels = []
    for row, method in zip(rows, methods, strict=True):
        first = row.entries[0]
        cells = {"run": names[first.run.path]}
        # the column of methods describes a swept method in more detail
        cells |= {first.titles[name]: v for name, v in row.settings.items() if name != "method"}
        labels.append(cells | {"setting": describe_setting(first.scenario), "method": method})
    return _drop_implied_columns(rows, _add_differing_fields(rows, labels))


def _name_runs(entries: Sequence[Entry]) -> dict[Path, str]:
    """Return the name of each run or its sweep by path: its folder's where two runs share one."""
    names = {each.run.path: each.sweep_name or each.run.summary["name"] for each in entries}
    alone = [each.run.path for each in entries if each.sweep is None]
    counts = Counter(names[path] for path in alone)
    return names | {path: path.name for path in alone if counts[names[path]] > 1}


def _drop_implied_columns(
    rows: Sequence[Row], labels: Sequence[dict[str, str]]
) -> list[dict[str, str]]:
    """Drop columns that the names of cells determine, if several rows share a name."""
    names = [row.settings.get(LABEL) for row in rows]
    if None in names or len(set(names)) == len(names):
        return list(labels)
    titles = {t for n, t in rows[0].entries[0].titles.items() if n not in (LABEL, "method")}
    cells = {t: set(zip(names, (each.get(t) for each in labels), strict=True)) for t in titles}
    implied = {title for title, known in cells.items() if len(known) == len(set(names))}
    return [{n: cell for n, cell in label.items() if n not in implied} for label in labels]


def name_rows(entries: Sequence[Entry]) -> list[str]:
    """Name each row with the fewest words that distinguish it from the others."""
    rows = group_rows(entries)
    labels = label_rows(rows)
    differ = list_differing(labels)
    folders = [row.entries[0].run.path.name for row in rows]
    for chosen in (["cell"], [key for key in differ if key != "run"], differ):
        names = [write_label({key: label.get(key, "") for key in chosen}) for label in labels]
        if all(names) and len(set(names)) == len(names):
            if max(map(len, names)) > _LONGEST and len({*folders}) == len(folders):
                return folders
            return names
    return folders


def list_differing(labels: Sequence[Mapping[str, str]]) -> list[str]:
    """List the parts of labels that are not the same in all of them."""
    names = dict.fromkeys(name for label in labels for name in label)
    return [name for name in names if len({label.get(name, "") for label in labels}) > 1]


def write_label(label: Mapping[str, str]) -> str:
    """Write a row's label in one line."""
    words = (value if key in _BARE else f"{key} {value}" for key, value in label.items() if value)
    return ", ".join(words)


def _add_differing_fields(
    rows: Sequence[Row], labels: Sequence[dict[str, str]]
) -> list[dict[str, str]]:
    """Add a column to labels for each field in which rows with equal labels differ."""
    fields = _title_parts([_flatten(row.entries[0].scenario) for row in rows])
    alike: dict[str, list[dict[str, str]]] = {}
    for label, values in zip(labels, fields, strict=True):
        shown = {name: cell for name, cell in label.items() if name != "run"}
        alike.setdefault(json.dumps(shown), []).append(values)
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


def _title_parts(fields: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Write each row's fields in words: lists of parts by their kinds, where these distinguish."""
    names = list(dict.fromkeys(name for values in fields for name in values))
    written: list[dict[str, str]] = [{} for _ in fields]
    for name in names:
        whole = [value_of(values[name]) if name in values else _UNSET for values in fields]
        short = [_name_parts(values[name]) if name in values else _UNSET for values in fields]
        cells = short if len({*short}) == len({*whole}) else whole
        for row, values, cell in zip(written, fields, cells, strict=True):
            row |= {name: cell} if name in values else {}
    return written


def _name_parts(value: Any) -> str:  # noqa: ANN401 - any plain value
    """Name the parts of a list by their own names or kinds; write another value in words."""
    is_parts = isinstance(value, list) and all(
        isinstance(each, Mapping) and "kind" in each for each in value
    )
    if not (is_parts and value):
        return value_of(value)
    return " + ".join(str(each.get("name") or each["kind"]) for each in value)


def _flatten(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten fields to dotted names, without methods and fields that do not affect results."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if not above and name in (*INCIDENTAL, "method"):
            continue
        below = isinstance(value, Mapping)
        flat |= _flatten(value, f"{above}{name}.") if below else {f"{above}{name}": value}
    return flat


def refuse_unfinished(entries: Iterable[Entry]) -> None:
    """Raise RunError if a run has not finished."""
    for run in (entry.run for entry in entries):
        if (status := run.summary.get("status")) != "finished":
            was = "running, or killed" if status == "running" else status
            raise RunError(
                f"{run.path} has not finished (it is {was}); go on with it with --resume"
            )


def make_key(entry: Entry, *, method: bool) -> str:
    """Make the key that a row's runs share; without `method`, the raw baseline shares it."""
    values = {name: value for name, value in entry.scenario.items() if name not in INCIDENTAL}
    swept = {name: value for name, value in entry.settings.items() if name != "seed"}
    if method and "method" in values:  # `[{kind: raw}]` is the same as an empty list
        values["method"] = [one for one in values["method"] if one["kind"] != "raw"]
    if not method:
        values.pop("method", None)
        swept = {n: v for n, v in swept.items() if n.split(".")[0] not in ("method", LABEL)}
    return json.dumps([_drop_nulls(values), swept], sort_keys=True)


def _drop_nulls(values: Any) -> Any:  # noqa: ANN401 - plain values
    """Drop fields that are null: an older run lacks fields that were added since."""
    if isinstance(values, Mapping):
        return {name: _drop_nulls(value) for name, value in values.items() if value is not None}
    return [_drop_nulls(value) for value in values] if isinstance(values, list) else values


@dataclass
class Loaded:
    """The runs of directories, by what tables do with them."""

    entries: list[Entry] = field(default_factory=list)
    """Those to compare."""
    pruned: list[Entry] = field(default_factory=list)
    """Those that a search gave up, which have fewer rounds."""
    left_out: list[str] = field(default_factory=list)
    """A line with the reason for each cell that is in neither."""


def load_entries(paths: Iterable[str | Path]) -> tuple[list[Entry], list[str]]:
    """Load the entries to compare; return them, and a line with why for each cell left out.

    Raise RunError if a directory is neither a run nor a sweep, or a sweep has no finished cell.
    """
    loaded = load_search(paths)
    pruned = [
        f"left out: {entry.run.path} was {entry.run.summary.get('reason') or 'given up'}"
        for entry in loaded.pruned
    ]
    return loaded.entries, [*loaded.left_out, *pruned]


def load_search(paths: Iterable[str | Path]) -> Loaded:
    """Load runs and sweeps; raise RunError if one is neither, or a sweep has no finished cell."""
    loaded = Loaded()
    for path in map(Path, paths):
        if not (path / SWEEP).exists():
            loaded.entries.append(Entry(Run.load(path)))
            continue
        directory = SweepDirectory.load(path)
        known = len(loaded.entries)
        for cell in directory.cells:
            status = read_summary(directory.run_path(cell.name)).get("status")
            if status == "finished":
                loaded.entries.append(_load_entry(directory, cell))
            elif status == "pruned":
                loaded.pruned.append(_load_entry(directory, cell))
            else:
                reason = _describe_state(directory, cell, status)
                loaded.left_out.append(f"left out: {directory.run_path(cell.name)} {reason}")
        if len(loaded.entries) == known:
            raise RunError(f"{path}: no cell of this sweep has finished; go on with it: --resume")
    return loaded


def _load_entry(directory: SweepDirectory, cell: CellEntry) -> Entry:
    settings = {name: value_of(value) for name, value in cell.settings.items()}
    if settings.get("method") == value_of([]):
        settings["method"] = "raw"
    label = {LABEL: cell.label} if cell.label else {}
    run = Run.load(directory.run_path(cell.name))
    return Entry(run, directory.path, directory.name, {**label, **settings}, directory.fields)


def _describe_state(directory: SweepDirectory, cell: CellEntry, status: str | None) -> str:
    if cell.name in directory.failed:
        return f"failed: {directory.failed[cell.name].splitlines()[0]}"
    if status == "running":
        status = "running, or killed"
    return f"has not finished (it is {status})" if status else "has not run"


def parse_baseline(text: str | None, entries: Sequence[Entry]) -> Mapping[str, str] | None:
    """Parse `FIELD=VALUE,...` to full names of fields; raise RunError if no cell has a field."""
    if text is None:
        return None
    fields = {name: entry.titles[name] for entry in entries for name in entry.settings}
    chosen = {}
    for pair in text.split(","):
        field, equals, value = pair.partition("=")
        full = [name for name, short in fields.items() if field in (name, short)]
        if not equals or not full:
            known = ", ".join(fields.values()) or "none, as no sweep is compared"
            raise RunError(f"--baseline takes FIELD=VALUE, got '{pair}'; fields: {known}")
        chosen[full[0]] = value
    return chosen
