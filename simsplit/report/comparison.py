"""`compare` tabulates runs: one row for runs that differ only in their seed, and its baseline.

A row's baseline is the raw run that differs from it only in the method; this gives the papers'
"change against Raw". If no cell of a sweep has a raw run, its first cell is the baseline. The user
may name other cells as baselines.

The title names the content of hand-overs, since moments can be twice the weights' size.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from simsplit.errors import RunError
from simsplit.metrics import Better, is_lower_better
from simsplit.metrics.intervals import compute_half_width
from simsplit.report.grouping import (
    Entry,
    Row,
    group_rows,
    label_rows,
    list_differing,
    make_key,
    refuse_unfinished,
)
from simsplit.report.privacy import write_epsilon
from simsplit.report.rates import SUCCESS, describe_round, read_quoted, write_success
from simsplit.report.short_names import name_methods
from simsplit.report.tables import Table, find_best, format_change, write_mean
from simsplit.report.timing import write_duration
from simsplit.results import Run
from simsplit.sizes import format_size

Numbers = tuple[Sequence[Mapping[str, Mapping[int, float]]], Mapping[str, Better]]
"""The numbers behind a table's cells by seed, row by row, and the better way of its columns."""
_EXACT = ("bytes", "of Raw", "of baseline", "per client", "per sample")
"""Columns of counts, which chance does not change: one seed decides there."""
_HOW = {"clients", "cohort", "schedule", "aggregation", "network", "engine", "threads"}
"""A sweep over one of these asks about cost, so its table has the columns of costs."""
_COSTS = ("per client", "per sample", "simulated", "time", "time per sample", "memory")
_PAIRED = "change seed by seed, in brackets its 95 % interval over seeds (Student's)"
_ALIGN = {"run": "l", "setting": "l", "method": "l"}
_LONG = 16
"""Letters of a cell that is a text and no number."""
_COST_PLACES = {
    "per sample": ("per_sample", "bytes"),
    "simulated": ("", "simulated_s"),
    "time": ("", "seconds"),
    "time per sample": ("per_sample", "seconds"),
    "memory": ("", "resident_bytes"),
}
"""The place of each column in the summary."""
_LESS = ("bytes", "of Raw", "of baseline", "per client", *_COST_PLACES, *SUCCESS.values())
_HELD = {"state": "weights and the optimizer's moments", "weights": "weights"}


def compare(
    runs: Sequence[Run | Entry],
    figure: str = "best_on_validation",
    baseline: Mapping[str, str] | None = None,
) -> Table:
    """Tabulate accuracy, change against Raw and bytes, a row per group of runs that differ in seed.

    `figure` names the round of a run to quote: last, best_on_validation or best_on_test. A run
    without validation data is quoted at its last round. `baseline` names cells of a sweep, by field
    and value, that replace Raw. Columns that are empty or distinguish no rows are left out.
    """
    entries = [Entry(run) if isinstance(run, Run) else run for run in runs]
    refuse_unfinished(entries)
    rows = group_rows(entries)
    labels = label_rows(rows)
    against = find_baselines(rows, labels, baseline)
    ratio = "of baseline" if against else "of Raw"
    cells = [
        label | _make_cells(row, figure, ratio) for label, row in zip(labels, rows, strict=True)
    ]
    values = [_collect_values(row, figure, ratio) for row in rows]
    quoted = describe_round(figure, (entry.run for row in rows for entry in row.entries))
    title = f"accuracies in % on the test data, at the round: {quoted}"
    if any("[" in each["change"] for each in cells):
        title += f"; {_PAIRED}"
    title += _name_inference(rows)
    if held := describe_handovers(entry.run for entry in entries):
        title += f"; hand-overs are of {held}"
    title += against
    if again := [str(entry.run.path) for row in rows for entry in row.repeated]:
        title += f"; left out, for their seed is there already: {', '.join(again)}"
    return tabulate(title, cells, entries, (values, _find_ways(values)))


def _name_inference(rows: Sequence[Row]) -> str:
    """Say how texts are sent in evaluation, if all methods with the choice agree."""
    methods = [method for row in rows for method in row.entries[0].scenario["method"]]
    chosen = (method.get("inference") for method in methods)
    inferences = {each for each in chosen if isinstance(each, str)}
    # if they differ, the rows' labels name it
    return f"; {inferences.pop()} inference" if len(inferences) == 1 else ""


def find_baselines(
    rows: Sequence[Row], labels: Sequence[Mapping[str, str]], wanted: Mapping[str, str] | None
) -> str:
    """Set the rows' baselines; return words for the title that name them, unless they are raw."""
    if wanted is not None:
        chosen = _choose_baselines(rows, wanted)
        for row in rows:
            if row.settings:
                ours = row.settings
                row.baseline = max(
                    chosen, key=lambda one: sum(ours.get(n) == v for n, v in one.settings.items())
                )
        rest = ", all else equal" if len(chosen) > 1 else ""
        return f"; change is against {_write_cell(wanted, chosen[0])}{rest}"
    keys = [make_key(row.entries[0], method=False) for row in rows]
    methods = [name_methods(row.entries[0].scenario) for row in rows]
    raw = {key: row for key, row, m in zip(keys, rows, methods, strict=True) if m == "raw"}
    for key, row in zip(keys, rows, strict=True):
        row.baseline = raw.get(key)
    names = []
    for sweep in dict.fromkeys(row.entries[0].sweep for row in rows):
        cells = [row for row in rows if row.entries[0].sweep == sweep]
        compared = any(row.baseline not in (None, row) for row in cells)
        if sweep is None or len(cells) == 1 or compared:
            continue
        for row in cells:
            row.baseline = cells[0]
        label = labels[rows.index(cells[0])]
        # the row's label, since variants of one swept method may share its short value
        settings = {n: label.get(n, value) for n, value in cells[0].settings.items()}
        names.append(_write_cell(settings, cells[0]))
    return f"; change is against {' and '.join(names)}" if names else ""


def _choose_baselines(rows: Sequence[Row], wanted: Mapping[str, str]) -> list[Row]:
    """Return the rows that have the wanted settings; raise RunError if there is none."""

    def fits(row: Row) -> bool:
        given = ((_read_setting(row, name), value) for name, value in wanted.items())
        return all(value in (own, own.replace(" ", "-")) for own, value in given)

    if chosen := [row for row in rows if fits(row)]:
        return chosen
    values = {name: dict.fromkeys(_read_setting(row, name) for row in rows) for name in wanted}
    known = [f"{name}: {', '.join(filter(None, each))}" for name, each in values.items()]
    cell = ",".join(f"{name}={value}" for name, value in wanted.items())
    raise RunError(f"--baseline: no finished cell has {cell}; there are {'; '.join(known)}")


def _read_setting(row: Row, name: str) -> str:
    """Return the value that a sweep gave a field; the method of a cell without methods is raw."""
    raw = name_methods(row.entries[0].scenario) if name == "method" else ""
    return row.settings.get(name) or raw


def _write_cell(settings: Mapping[str, str], row: Row) -> str:
    titles = row.entries[0].titles
    return ", ".join(f"{titles.get(name, name)}={value}" for name, value in settings.items())


def _make_cells(row: Row, figure: str, ratio: str) -> dict[str, str]:
    """Return a row's cells by column, without its labels."""
    accuracy, balanced = (row.values(figure, name) for name in ("accuracy", "balanced_accuracy"))
    cells = {"seeds": str(len(row.entries)), "accuracy": write_mean("accuracy", accuracy)}
    cells |= {"balanced": write_mean("accuracy", balanced), "change": ""}
    runs = [entry.run for entry in row.entries]
    cells |= {title: write_success(runs, name, figure) for name, title in SUCCESS.items()}
    cells |= {name: write_mean(name, row.values(figure, name)) for name in row.further(figure)}
    cells |= {"bytes": format_size(row.nbytes), ratio: ""}
    cells |= {"epsilon": write_epsilon(runs)}
    clients = row.entries[0].scenario["clients"]["count"]
    cells["per client"] = format_size(row.nbytes / clients)
    for title, (_, name) in _COST_PLACES.items():
        costs = [cost for run in runs if (cost := _read_cost(run, title)) is not None]
        write = format_size if name.endswith("bytes") else write_duration
        cells[title] = write(statistics.fmean(costs)) if costs else ""
    if row.baseline is not None:
        if row.baseline is row:
            cells["change"] = "" if ratio == "of Raw" else "baseline"
        elif changes := row.changes(figure, "accuracy"):  # in points
            mean, half = 100 * statistics.fmean(changes), compute_half_width(changes)
            ends = None if half is None else (mean - 100 * half, mean + 100 * half)
            cells["change"] = format_change(mean, ends, 2)
        base = row.baseline.of_the_seeds_of(row).nbytes  # zero if the baseline is not trained
        cells[ratio] = f"{row.nbytes / base:.3f}" if base else ""
    return cells


def _read_cost(run: Run, title: str) -> float | None:
    part, name = _COST_PLACES[title]
    cost: float | None = (run.summary.get(part, {}) if part else run.summary).get(name)
    return cost


def tabulate(
    title: str,
    rows: Sequence[Mapping[str, str]],
    entries: Sequence[Entry],
    numbers: Numbers = ((), {}),
) -> Table:
    """Make a table without columns that are empty or distinguish no rows."""
    swept = {title for entry in entries for title in entry.titles.values()} - {"method"}
    every = [name for row in rows for name in row]
    columns = dict.fromkeys(("run", *(name for name in every if name in swept), *every))
    differ = set(list_differing(rows))
    # the swept fields already distinguish a sweep's rows
    idle = {"setting", *swept}
    roots = {name.split(".")[0] for entry in entries for name in entry.settings}
    if not roots & _HOW:
        columns = {name: None for name in columns if name not in _COSTS}
    if len({entry.sweep for entry in entries}) == 1 and differ & {"method", *swept}:
        idle |= {"run", "method"} if differ & swept else {"run"}
    shown = [name for name in columns if name in differ or name not in idle]
    kept = [name for name in shown if any(row.get(name) for row in rows)]
    # texts fold; a number stays whole
    words = {name for name in kept if any(_is_text(row.get(name, "")) for row in rows)}
    texts = {*swept, *(words - _ALIGN.keys())}
    align = "".join(_ALIGN.get(name, "r") if name not in texts else "l" for name in kept)
    cells = [tuple(row.get(name, "") for name in kept) for row in rows]
    return Table(title, tuple(kept), cells, align, find_best(kept, *numbers, _EXACT))


def _is_text(cell: str) -> bool:
    return len(cell) > _LONG and any(letter.isalpha() for letter in cell)


def _collect_values(row: Row, figure: str, ratio: str) -> dict[str, dict[int, float]]:
    """Return the numbers behind each cell of a row by seed, for columns with a better way."""
    known = {"accuracy": "accuracy", "balanced": "balanced_accuracy"}
    known |= {name: name for name in row.further(figure)}
    values = {title: row.by_seed(figure, name) for title, name in known.items()}
    clients = row.entries[0].scenario["clients"]["count"]
    base = row.baseline.nbytes if row.baseline is not None else 0
    for entry in row.entries:
        costs = {title: read_quoted(entry.run, name, figure) for name, title in SUCCESS.items()}
        nbytes = entry.run.summary["bytes"]["total"]
        costs |= {"bytes": nbytes, "per client": nbytes / clients}
        costs |= {ratio: nbytes / base} if base else {}
        costs |= {title: _read_cost(entry.run, title) for title in _COST_PLACES}
        for title, value in costs.items():
            if value is not None:
                values.setdefault(title, {})[entry.scenario["seed"]] = float(value)
    return {title: by_seed for title, by_seed in values.items() if by_seed}


def _find_ways(values: Iterable[Mapping[str, object]]) -> dict[str, Better]:
    """Return each column's better way; for attacks' columns, that of the client under attack."""
    named = dict.fromkeys(name for each in values for name in each)
    return {name: "less" if name in _LESS or is_lower_better(name) else "more" for name in named}


def describe_handovers(runs: Iterable[Run]) -> str:
    """Describe what clients handed over in these runs; return an empty string if none did."""
    return " or ".join(dict.fromkeys(held for run in runs if (held := _describe_handover(run))))


def _describe_handover(run: Run) -> str:
    wire = run.wire
    if not (wire["leg"] == "handover").any():
        return ""
    values = run.fields
    aggregation = values.get("aggregation") or {}
    if bits := aggregation.get("bits"):
        return f"changes of weights in {bits} bits"
    averages = aggregation.get("kind", "none") != "none"
    return _HELD["weights" if averages else values["clients"].get("handover", "state")]
