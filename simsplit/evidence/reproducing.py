"""Measures cells of tables: each is trained and attacked as an ordinary run, and becomes rows.

The runs lie in ./runs/reproduce, so whatever ends the command loses at most one round, and the same
command goes on. Rows are written as cells end. On a cluster a run comes home when it ends: there
the command loses the cells that are under way.
"""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from simsplit.errors import RunError, SimsplitError
from simsplit.evidence import code_sources
from simsplit.evidence.digests import digest_of
from simsplit.evidence.evidence_rows import Known
from simsplit.evidence.evidence_tables import EvidenceTable
from simsplit.evidence.measurements import OWN, Measurement, add, hold_alone
from simsplit.evidence.measuring_cells import MeasuringCell
from simsplit.evidence.reading_runs import find_runs, read_run
from simsplit.evidence.selecting import ChosenCell, Selection
from simsplit.plugins import NO_PLUGINS
from simsplit.progress import SweepObserver
from simsplit.results import CHECKPOINTS, SCENARIO, Run, checkpoints, read_summary
from simsplit.scenario import Cell, Sweep, load_scenario
from simsplit.seeds import numpy_rng_for
from simsplit.sweep import Cluster, run_sweep

WORK = Path("runs") / "reproduce"
"""The folder of the runs that measure, from which an interrupted command goes on."""


class MeasuringObserver(Protocol):
    """An observer of cells that are measured."""

    def begin(self, selection: Selection, jobs: int | None) -> None:
        """Note that these cells are about to be measured."""

    def starts(self, chosen: ChosenCell) -> None:
        """Note that a cell starts, or goes on from where it was interrupted."""

    def ends(self, chosen: ChosenCell, rows: Sequence[Measurement], reason: str) -> None:
        """Note that a cell has ended with these rows, or failed for a reason."""

    def warn(self, message: str) -> None:
        """Show a warning of the run that measures a cell."""


@dataclass
class Reproduction:
    """What became of the cells that were to be measured."""

    measured: list[ChosenCell] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Table and cell -> why it failed."""
    rows: dict[tuple[str, str], list[Measurement]] = field(default_factory=dict)
    """(table and tier, name of a cell) -> the rows of that cell."""
    out_of_time: bool = False
    """Whether the budget ended before the cells did."""

    def add(self, more: "Reproduction") -> None:
        """Add what became of further cells."""
        self.measured += more.measured
        self.failed |= more.failed
        self.rows |= more.rows
        self.out_of_time = self.out_of_time or more.out_of_time


class _OutOfTimeError(Exception):
    """The budget has no room for the next cell."""


def measure_cells(
    selection: Selection,
    watch: MeasuringObserver,
    *,
    jobs: int | None = None,
    budget_min: float | None = None,
    cluster: Cluster | None = None,
) -> Reproduction:
    """Measure cells in order and write their rows to ./results as they end."""
    with hold_alone(chosen.group for chosen in selection.cells):
        end = math.inf if budget_min is None else time.monotonic() + 60 * budget_min
        return _run_cells(
            selection, watch, WORK, jobs=jobs, keep=_write_rows, end=end, cluster=cluster
        )


def measure_again(
    selection: Selection,
    watch: MeasuringObserver,
    lot: int,
    *,
    jobs: int | None = None,
    cluster: Cluster | None = None,
) -> Reproduction:
    """Measure cells whose rows are known, beside them: no row is written."""
    work = WORK / f"check-{lot}"
    with hold_alone(f"{chosen.group}.check" for chosen in selection.cells):
        return _run_cells(
            selection, watch, work, jobs=jobs, keep=lambda *_: None, end=math.inf, cluster=cluster
        )


def choose_jobs(selection: Selection, jobs: int | None, cluster: Cluster | None) -> int | None:
    """Return how many cells run at a time: as asked for, or as a cluster has room for."""
    if cluster is None or not selection.cells:
        return jobs
    scenarios = [chosen.cell.base for chosen in selection.cells]
    with cluster.join():
        room = cluster.count_room(scenarios)
    return min(room, len(scenarios)) if jobs is None else jobs


Keep = Callable[[ChosenCell, Sequence[Measurement]], None]
"""What is done with the rows of a cell that has ended."""


def _run_cells(
    selection: Selection,
    watch: MeasuringObserver,
    work: Path,
    *,
    jobs: int | None,
    keep: Keep,
    end: float,
    cluster: Cluster | None,
) -> Reproduction:
    outcome = Reproduction()
    # a cluster is joined once for all tables
    with nullcontext() if cluster is None else cluster.join():
        jobs = choose_jobs(selection, jobs, cluster)
        watch.begin(selection, jobs)
        # a table's cells are one sweep; the tables follow each other as their first cells do
        for group in dict.fromkeys(chosen.group for chosen in selection.cells):
            cells = [chosen for chosen in selection.cells if chosen.group == group]
            folder = work / group
            for chosen in cells:
                _share_run(work, folder / chosen.cell.folder, chosen.cell)
                _drop_outdated(folder / chosen.cell.folder, chosen)
            observer = _CellObserver(cells, folder, watch, outcome, keep=keep, end=end)
            sweep = _make_sweep(group, cells, on_gpus=cluster is not None and cluster.gpus > 0)
            try:
                run_sweep(sweep, folder, jobs=jobs, resume=True, watch=observer, cluster=cluster)
            except _OutOfTimeError:
                outcome.out_of_time = True
                break
    return outcome


def _share_run(work: Path, folder: Path, cell: MeasuringCell) -> None:
    """Copy a cell's run from another table whose cell has the same scenario, seed and code."""
    if folder.exists():
        return
    same = folder.name[folder.name.rindex("seed=") :]
    for other in sorted(work.glob(f"*/*/*{same}")):
        if _is_run_of(cell, other):
            copy = work / f"{same}.copy"  # whole or not at all
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(other, copy, ignore=shutil.ignore_patterns(CHECKPOINTS))
            folder.parent.mkdir(parents=True, exist_ok=True)
            copy.rename(folder)
            return


def _is_run_of(cell: MeasuringCell, folder: Path) -> bool:
    """Return whether a folder has the finished run of a cell: names have a part of its digest."""
    if read_summary(folder).get("status") != "finished":
        return False
    scenario = load_scenario(folder / SCENARIO)
    return digest_of(scenario) == cell.digest and scenario.device == cell.scenario.device


def _drop_outdated(folder: Path, chosen: ChosenCell) -> None:
    """Remove a cell's run that is of no use: it must be measured from its start again.

    A finished run may lack a figure that the table has come to ask for; one that was interrupted
    may be of an older version, whose scenario had other fields, and cannot go on.
    """
    try:
        if read_summary(folder).get("status") == "finished":
            read_run(Run.load(folder), chosen.cell, chosen.table, chosen.tier, "")
        else:
            identity = chosen.cell.scenario.identity()
            checkpoints.load(folder / CHECKPOINTS, checkpoints.compute_digest(identity))
    except RunError:
        shutil.rmtree(folder, ignore_errors=True)


def _make_sweep(group: str, cells: Sequence[ChosenCell], *, on_gpus: bool) -> Sweep:
    """Make a sweep of a table's cells; figures of single runs are of no use, and are not drawn.

    With `on_gpus`, cells compute on the GPUs that they ask a cluster for: a row names its machine,
    and its digest has no device.
    """
    made = []
    for cell in (chosen.cell for chosen in cells):
        output = cell.scenario.output.model_copy(update={"figures": False})
        device = "auto" if on_gpus and cell.scenario.device == "cpu" else cell.scenario.device
        scenario = cell.scenario.model_copy(update={"output": output, "device": device})
        made.append(Cell(cell.folder, {**cell.axes, "seed": cell.seed}, scenario))
    given = (cell.scenario.plugins for cell in made if cell.scenario.plugins.origins)
    return Sweep(group.replace("/", "-"), tuple(made), next(given, NO_PLUGINS))


class _CellObserver(SweepObserver):
    """An observer of a table's sweep that turns ended cells into rows."""

    def __init__(
        self,
        cells: Sequence[ChosenCell],
        folder: Path,
        watch: MeasuringObserver,
        outcome: Reproduction,
        *,
        keep: Keep,
        end: float,
    ) -> None:
        self.cells = {chosen.cell.folder: chosen for chosen in cells}
        self.folder, self.watch, self.outcome = folder, watch, outcome
        self.end, self.keep, self.jobs = end, keep, 1
        self.commit = code_sources.find_commit()

    def begin(self, path: Path, cells: Sequence[str], jobs: int) -> None:
        """Note how many cells run at a time."""
        self.jobs = jobs

    def start_cell(self, cell: str) -> None:
        """Note that a cell starts; refuse one that would not end in time."""
        chosen = self.cells[cell]
        # with several jobs a refusal would take the cells beside it down
        late = time.monotonic() + 60 * chosen.minutes > self.end
        if late and self.jobs == 1 and self.outcome.measured:
            raise _OutOfTimeError
        self.watch.starts(chosen)

    def end_cell(self, cell: str, status: str, reason: str = "") -> None:
        """Write the rows of a cell that has finished."""
        chosen = self.cells[cell]
        if status == "failed":
            self.outcome.failed[chosen.name] = reason
            self.watch.ends(chosen, (), reason)
            return
        run = Run.load(self.folder / cell)
        try:
            code_sources.refuse_moved_code(self.commit)
            rows = read_run(run, chosen.cell, chosen.table, chosen.tier, self.commit)
        except RunError as error:  # the claim asks for what its runs do not have; others go on
            self.end_cell(cell, "failed", str(error))
            return
        self.keep(chosen, rows)
        # its rows are what is kept of a run; the weights of hundreds of runs fill a disk
        shutil.rmtree(run.path / CHECKPOINTS, ignore_errors=True)
        self.outcome.measured.append(chosen)
        self.outcome.rows[chosen.group, chosen.cell.name] = rows
        self.watch.ends(chosen, rows, "")

    def warn(self, message: str) -> None:
        """Pass a warning on."""
        self.watch.warn(message)


def import_runs(table: EvidenceTable, folder: Path) -> list[Measurement]:
    """Write the rows of finished runs in a folder whose scenarios are the table's own.

    Cells that are known already keep their rows. A folder of which no run fits is refused.
    """
    cells = {(cell.digest, cell.seed): cell for cell in table.cells}
    lacking = {cell.name for cell in table.lacking}
    pairs = [
        (cells.get((digest, int(run.fields["seed"]))), run) for digest, run in find_runs(folder)
    ]
    if not any(cell is not None for cell, _ in pairs):
        raise RunError(
            f"{folder}: none of its {len(pairs)} finished runs was made with a scenario that "
            f"measures {table.table.full_name} at tier {table.tier}; nothing is written"
        )
    rows = [
        row
        for cell, run in pairs
        if cell is not None and cell.name in lacking
        for row in read_run(run, cell, table.table, table.tier)
    ]
    with hold_alone([f"{table.table.full_name}.{table.tier}"]):
        _write_rows(table, rows)
    return rows


def _write_rows(of: ChosenCell | EvidenceTable, rows: Sequence[Measurement]) -> None:
    add(OWN / of.table.paper / f"{of.table.name}.{of.tier}.csv", rows)


@dataclass(frozen=True)
class CheckedFigure:
    """A figure that was measured again."""

    chosen: ChosenCell
    figure: str
    before: float
    now: float
    known: Known
    """What is known of the row, over its seeds."""

    @property
    def agrees(self) -> bool:
        """Whether it is the same, where one more seed would lie, or near to what it was."""
        if math.isclose(self.before, self.now, rel_tol=1e-6):
            return True
        half, wide = self.known.half, self.known.half_of_one_more
        if half is None or wide is None:
            return False
        return abs(self.now - self.known.mean) <= wide or abs(self.now - self.before) <= half


def draw_cells(selection: Selection, share: float, lot: int) -> Selection:
    """Draw a share of the cells by lot, at least one."""
    if not 0 < share <= 1:
        raise SimsplitError(
            f"--check takes a share of the cells above 0 and up to 1, got {share:g}"
        )
    count = min(len(selection.cells), max(1, round(share * len(selection.cells))))
    drawn = numpy_rng_for(lot, "check").permutation(len(selection.cells))[:count]
    return replace(selection, cells=[selection.cells[place] for place in sorted(drawn)])


def compare_with_known(table: EvidenceTable, outcome: Reproduction) -> list[CheckedFigure]:
    """Compare what was measured again with the rows that are known."""
    known: dict[tuple[str, str], dict[int, float]] = {}
    for row in table.fresh:
        known.setdefault((row.setting, row.figure), {})[row.seed] = row.value
    checked = []
    for chosen in outcome.measured:
        for row in outcome.rows[chosen.group, chosen.cell.name]:
            seeds = Known(known[row.setting, row.figure])
            before = seeds.by_seed[row.seed]
            checked.append(CheckedFigure(chosen, row.figure, before, row.value, seeds))
    return checked
