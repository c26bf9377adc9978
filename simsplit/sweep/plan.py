"""Where a sweep goes and what of it is still to be run: settled before anything runs."""

from pathlib import Path

from simsplit.errors import RunError, ScenarioError
from simsplit.machine import processors
from simsplit.report.short_names import short_names
from simsplit.results import SCENARIO, SWEEP, CellEntry, SweepDirectory
from simsplit.running.directories import choose_free_name
from simsplit.scenario import Cell, Scenario, Sweep, differences, load_scenario

_MAY_CHANGE = {"output", "checkpoint", "threads", "device", "engine", "observers"}
"""What a finished cell need not share with the scenario to be kept."""


def sweep_directory(sweep: Sweep, out: str | Path | None, *, resume: bool) -> Path:
    """Where a sweep goes; RunError rather than writing over what is there."""
    if out is None:
        base = sweep.cells[0].scenario.output.root / sweep.name
        return choose_free_name(base, resume=resume, foreign=SCENARIO)
    path = Path(out)
    if (path / SCENARIO).exists():
        raise RunError(f"{path} holds a run, not a sweep; give another --out")
    cells = [path / cell.name / SCENARIO for cell in sweep.cells]
    if not resume and any(file.exists() for file in (path / SWEEP, *cells)):
        raise RunError(
            f"{path} already holds a sweep; give another --out, or --resume to go on with it"
        )
    return path


def default_jobs(sweep: Sweep) -> int:
    """As many cells at a time as there are processors for their threads."""
    threads = [cell.scenario.threads for cell in sweep.cells]
    pinned = [count for count in threads if count is not None]
    if len(pinned) < len(threads):
        return 1  # torch takes all processors for one cell
    return max(1, min(processors() // max(pinned), len(sweep.cells)))


def opened(sweep: Sweep, path: Path) -> SweepDirectory:
    """The directory with these cells, and those that an earlier sweep left in it."""
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
    return directory


def unfinished(sweep: Sweep, directory: SweepDirectory) -> list[Cell]:
    """The cells to run; RunError where a folder holds a run of another scenario."""
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
        # its schedule and when it stops may change, and then the run goes on
        if not directory.is_finished(cell.name) or _kept(saved) != _kept(cell.scenario):
            todo.append(cell)
    return todo


def _kept(scenario: Scenario) -> str:
    return scenario.model_dump_json(exclude=_MAY_CHANGE)
