"""Before a sweep runs, its plan settles its directory, and which cells are still to be run."""

from pathlib import Path

from simsplit.errors import RunError, ScenarioError
from simsplit.machine import count_processors
from simsplit.report.short_names import short_names
from simsplit.results import SCENARIO, SWEEP, CellEntry, SweepDirectory
from simsplit.results.locking import refuse_locked
from simsplit.running.directories import choose_free_name, explain_path_errors
from simsplit.scenario import Cell, Scenario, Sweep, differences, load_scenario

_MAY_CHANGE = {"output", "checkpoint", "threads", "device", "engine", "observers"}
"""A finished cell is kept even if these fields differ from the scenario's."""


def choose_sweep_directory(sweep: Sweep, out: str | Path | None, *, resume: bool) -> Path:
    """Return a sweep's directory.

    Raise RunError if the sweep would overwrite files, or if the directory cannot exist.
    """
    path = sweep.cells[0].scenario.output.root / sweep.name if out is None else Path(out)
    with explain_path_errors(path):
        if out is None:
            return choose_free_name(path, resume=resume, foreign=SCENARIO)
        refuse_locked(path)
        refuse_overwriting(sweep, path, resume=resume)
    return path


def refuse_overwriting(sweep: Sweep, path: Path, *, resume: bool) -> None:
    """Raise RunError if the directory holds a run, or a sweep that is not to be resumed."""
    if (path / SCENARIO).exists():
        raise RunError(f"{path} holds a run, not a sweep; give another --out")
    if not resume and holds_sweep(sweep, path):
        raise RunError(
            f"{path} already holds a sweep; give another --out, or --resume to go on with it"
        )


def holds_sweep(sweep: Sweep, path: Path) -> bool:
    """Return whether a directory holds a sweep, or the run of one of its cells."""
    cells = [path / cell.name / SCENARIO for cell in sweep.cells]
    return any(file.exists() for file in (path / SWEEP, *cells))


def choose_jobs(sweep: Sweep) -> int:
    """Return how many cells run at a time by default: as processors allow for their threads."""
    threads = [cell.scenario.threads for cell in sweep.cells]
    pinned = [count for count in threads if count is not None]
    if len(pinned) < len(threads):
        return 1  # without a number of threads, torch takes all processors for one cell
    return max(1, min(count_processors() // max(pinned), len(sweep.cells)))


def open_directory(sweep: Sweep, path: Path) -> SweepDirectory:
    """Return the directory with the sweep's cells, and other cells of an earlier sweep in it."""
    entries = [CellEntry(cell.name, dict(cell.settings), cell.label) for cell in sweep.cells]
    directory = SweepDirectory(path, sweep.name, sweep.fields, entries)
    if (path / SWEEP).exists():
        before = SweepDirectory.load(path)
        if before.name != sweep.name:
            raise RunError(
                f"{path} holds the sweep '{before.name}', and this one is '{sweep.name}'; give "
                "another --out"
            )
        names = {entry.name for entry in entries}
        directory.cells = [*entries, *(entry for entry in before.cells if entry.name not in names)]
        directory.fields = short_names(list({**sweep.fields, **before.fields}))
        directory.failed = before.failed
        directory.batches = before.batches
    return directory


def list_unfinished(sweep: Sweep, directory: SweepDirectory) -> list[Cell]:
    """List the cells to run; raise RunError if a cell's folder has a run of another scenario."""
    todo = []
    for cell in sweep.cells:
        path = directory.run_path(cell.name)
        if not (path / SCENARIO).exists():
            todo.append(cell)
            continue
        try:
            saved = load_scenario(path / SCENARIO, plugins=sweep.plugins)
        except ScenarioError as error:
            raise RunError(f"cell {cell.name}: {path / SCENARIO}: {error}") from None
        if changes := differences(saved, cell.scenario):
            raise RunError(
                f"cell {cell.name}: {path} was run with another scenario: {'; '.join(changes)}. "
                "Give another --out, or remove that folder to run the cell anew"
            )
        if sweep.search is not None and sweep.search.pruner and directory.is_pruned(cell.name):
            continue  # without a pruner it goes on to its end
        # A finished cell may get more rounds or another stopping rule; then its run goes on.
        if not directory.is_finished(cell.name) or _encode(saved) != _encode(cell.scenario):
            todo.append(cell)
    return todo


def _encode(scenario: Scenario) -> str:
    """Return the fields that a finished cell must share with the scenario to be kept."""
    return scenario.model_dump_json(exclude=_MAY_CHANGE)
