"""What `compare` says of runs: a row for those alike but for their seed, beside their baseline.

A row's baseline is the raw run that shares everything with it but the method, as the papers'
"change against Raw" has it. A sweep in which no cell has one is held against its first cell, or any
against the cells that the user names.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from simsplit.errors import RunError
from simsplit.metrics.intervals import half_width
from simsplit.preflight import size
from simsplit.report.bests import values_of, ways_of
from simsplit.report.grouping import (
    Entry,
    Row,
    labels_of,
    methods_in,
    refuse_unfinished,
    rows_of,
)
from simsplit.report.handovers import handed_over
from simsplit.report.privacy import epsilon_of
from simsplit.report.rates import SUCCESS, round_said, success_of
from simsplit.report.tables import Better, Table, best, mean_of
from simsplit.report.timing import duration
from simsplit.results import Run

Numbers = tuple[Sequence[Mapping[str, float]], Mapping[str, Better]]
"""What stands behind a table's cells, row by row, and which way its columns are better."""
_HOW = {"clients", "cohort", "schedule", "aggregation", "network", "engine", "threads"}
"""A sweep over one of these is a question of cost: its table says what a run took."""
_COSTS = ("per client", "per sample", "simulated", "time", "time per sample", "memory")
_PAIRED = "change seed by seed, in brackets its 95 % interval over seeds (Student's)"
_ALIGN = {"run": "l", "setting": "l", "method": "l"}


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
        refuse_unfinished(entry.run)
    rows = rows_of(entries)
    labels = labels_of(rows)
    against = find_baselines(rows, labels, baseline)
    ratio = "of baseline" if against else "of Raw"
    cells = [label | _cells(row, figure, ratio) for label, row in zip(labels, rows, strict=True)]
    values = [values_of(row, figure, ratio) for row in rows]
    said = round_said(figure, (entry.run for row in rows for entry in row.entries))
    title = f"accuracies in % on the test data, at the round: {said}"
    if any("[" in each["change"] for each in cells):
        title += f"; {_PAIRED}"
    held = handed_over(entry.run for entry in entries)
    hands = f"; hand-overs are of {held}" if held else ""
    again = [str(entry.run.path) for row in rows for entry in row.repeated]
    left_out = f"; left out, for their seed is there already: {', '.join(again)}" if again else ""
    return tabled(
        f"{title}{_inference(rows)}{hands}{against}{left_out}",
        cells,
        entries,
        (values, ways_of(values)),
    )


def _inference(rows: Sequence[Row]) -> str:
    """How texts are sent in evaluation, if a method has the choice; rows name it if they differ."""
    found = {
        str(method["inference"])
        for row in rows
        for method in row.entries[0].scenario["method"]
        if isinstance(method.get("inference"), str)
    }
    return f"; {found.pop()} inference" if len(found) == 1 else ""


def find_baselines(
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
    raw = {row.key(method=False): row for row in rows if methods_in(row) == "raw"}
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
            value in (_has(row, name), _has(row, name).replace(" ", "-"))
            for name, value in wanted.items()
        )
    ]
    if chosen:
        return chosen
    known = [
        f"{name}: {', '.join(filter(None, dict.fromkeys(_has(row, name) for row in rows)))}"
        for name in wanted
    ]
    told = ",".join(f"{name}={value}" for name, value in wanted.items())
    raise RunError(f"--baseline: no finished cell has {told}; there are {'; '.join(known)}")


def _has(row: Row, name: str) -> str:
    """What a sweep set a field to; of a cell without methods in one that sets them, raw."""
    return row.settings.get(name) or (methods_in(row) if name == "method" else "")


def _agreement(one: Row, other: Row) -> int:
    return sum(other.settings.get(name) == value for name, value in one.settings.items())


def _told(settings: Mapping[str, str], row: Row) -> str:
    titles = row.entries[0].titles
    return ", ".join(f"{titles.get(name, name)}={value}" for name, value in settings.items())


def _cells(row: Row, figure: str, ratio: str) -> dict[str, str]:
    """Column -> cell; the swept fields stand under their own names."""
    accuracy, balanced = (row.values(figure, name) for name in ("accuracy", "balanced_accuracy"))
    cells = {"seeds": str(len(row.entries)), "accuracy": mean_of("accuracy", accuracy)}
    cells |= {"balanced": mean_of("accuracy", balanced), "change": ""}
    runs = [entry.run for entry in row.entries]
    cells |= {title: success_of(runs, name, figure) for name, title in SUCCESS.items()}
    cells |= {name: mean_of(name, row.values(figure, name)) for name in row.further(figure)}
    cells |= {"bytes": size(row.nbytes), ratio: ""}
    cells |= {"epsilon": epsilon_of([entry.run for entry in row.entries])}
    cells |= _costs(row)
    if row.baseline is not None:
        of_same_seeds = row.baseline.of_the_seeds_of(row)
        if row.baseline is row:
            cells["change"] = "" if ratio == "of Raw" else "baseline"
        else:
            cells["change"] = change_of(row.changes(figure, "accuracy"))
        base = of_same_seeds.nbytes  # nothing, of what is not trained
        cells[ratio] = f"{row.nbytes / base:.3f}" if base else ""
    return cells


def change_of(changes: Sequence[float]) -> str:
    """Mean of the seeds' changes in points, and its interval where there are several."""
    if not changes:
        return ""
    mean, half = 100 * statistics.fmean(changes), half_width(changes)
    told = f"{mean:+.2f}"
    return told if half is None else f"{told} [{mean - 100 * half:+.2f}, {mean + 100 * half:+.2f}]"


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


def tabled(
    title: str,
    rows: Sequence[Mapping[str, str]],
    entries: Sequence[Entry],
    numbers: Numbers = ((), {}),
) -> Table:
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
    cells = [tuple(row.get(name, "") for name in kept) for row in rows]
    return Table(title, tuple(kept), cells, align, best(kept, *numbers))
