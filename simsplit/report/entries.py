"""Commands compare run and sweep directories, where a sweep stands for its finished cells."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from simsplit.errors import RunError
from simsplit.report.grouping import LABEL, Entry
from simsplit.report.short_names import value_of
from simsplit.results import SWEEP, CellEntry, Run, SweepDirectory, read_summary


def load_entries(paths: Iterable[str | Path]) -> tuple[list[Entry], list[str]]:
    """Load the entries to compare; return them, and a line with the reason for each cell left out.

    Raise RunError if a directory is neither a run nor a sweep, or a sweep has no finished cell.
    """
    entries: list[Entry] = []
    left_out: list[str] = []
    for path in map(Path, paths):
        if not (path / SWEEP).exists():
            entries.append(Entry(Run.load(path)))
            continue
        directory = SweepDirectory.load(path)
        cells = [cell for cell in directory.cells if directory.is_finished(cell.name)]
        if not cells:
            raise RunError(f"{path}: no cell of this sweep has finished; go on with it: --resume")
        entries += [_load_entry(directory, cell) for cell in cells]
        left_out += [
            f"left out: {directory.run_path(cell.name)} {_describe_state(directory, cell)}"
            for cell in directory.cells
            if cell not in cells
        ]
    return entries, left_out


def _load_entry(directory: SweepDirectory, cell: CellEntry) -> Entry:
    settings = {name: value_of(value) for name, value in cell.settings.items()}
    if settings.get("method") == value_of([]):
        settings["method"] = "raw"
    label = {LABEL: cell.label} if cell.label else {}
    run = Run.load(directory.run_path(cell.name))
    return Entry(run, directory.path, directory.name, {**label, **settings}, directory.fields)


def _describe_state(directory: SweepDirectory, cell: CellEntry) -> str:
    if cell.name in directory.failed:
        return f"failed: {directory.failed[cell.name].splitlines()[0]}"
    status = read_summary(directory.run_path(cell.name)).get("status")
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
