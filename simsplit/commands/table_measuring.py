"""What `reproduce` and `board` measure: the cells that tables lack, and seeds until settled."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from simsplit.errors import RunFailedError, SimsplitError, format_count
from simsplit.showing.saying import make_console, say

if TYPE_CHECKING:
    from simsplit.evidence.evidence_tables import EvidenceTable
    from simsplit.evidence.reproducing import Reproduction
    from simsplit.evidence.selecting import Selection
    from simsplit.sweep.nodes import Cluster


def build_again(built: "Sequence[EvidenceTable]") -> "list[EvidenceTable]":
    """Build tables anew from the rows as they are now."""
    from simsplit.evidence.evidence_tables import build_table, read_known_rows

    known = read_known_rows()
    return [build_table(each.table, each.tier, known) for each in built]


@dataclass(frozen=True)
class MeasuringOptions:
    """What a command's options say of how cells are measured."""

    jobs: int | None = None
    """Cells at a time; None: by the machine."""
    minutes: float | None = None
    """How long it may take; None: until all is measured."""
    data: Path | None = None
    """A folder of data, beside those that scenarios name."""
    device: str | None = None
    """The device that cells compute on; None: as scenarios say."""
    cluster: "Cluster | None" = None
    """A cluster that trains the cells."""
    alone: bool = False
    """Whether one table was asked for, so that lacking data are an error."""
    dry: bool = False
    """Whether to say what it would take, and measure nothing."""
    quiet: bool = False
    """Whether to say nothing."""


def read_budget(budget: str | None) -> float | None:
    """Return the minutes that `--budget` names, if it is given."""
    from simsplit.evidence.selecting import parse_minutes

    return None if budget is None else parse_minutes(budget)


def measure_lacking(
    built: "Sequence[EvidenceTable]", only: dict[str, str], options: MeasuringOptions
) -> "Reproduction":
    """Measure the cells that tables lack; `only` has the axes' values of those that are wanted."""
    from simsplit.evidence.placing import names_gpu
    from simsplit.evidence.selecting import select

    on_gpu = names_gpu(options.device, options.cluster)
    return _measure_selection(select(built, only, on_gpu=on_gpu), options)


def settle_open(
    built: "Sequence[EvidenceTable]", only: dict[str, str], most: int, options: MeasuringOptions
) -> "Reproduction":
    """Measure seeds until open statements are settled, or are not to be with `most` seeds.

    `only` has the axes' values of the statements that are wanted.
    """
    from simsplit.evidence.placing import names_gpu
    from simsplit.evidence.reproducing import Reproduction
    from simsplit.evidence.settling import choose_next, find_prospects
    from simsplit.terminal.paper_tables import print_prospects

    minutes = options.minutes
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    on_gpu, outcome = names_gpu(options.device, options.cluster), Reproduction()
    while True:
        prospects = [
            each
            for table in built
            for each in find_prospects(table, most, only=only, on_gpu=on_gpu)
        ]
        if not options.quiet:
            print_prospects(prospects)
        cells, left = choose_next(prospects, outcome.failed), (end - time.monotonic()) / 60
        if outcome.measured and all(left < chosen.minutes for chosen in cells.cells):
            outcome.out_of_time = bool(cells.cells)
            return outcome
        rest = options if minutes is None else replace(options, minutes=left)
        look = _measure_selection(cells, rest)
        outcome.add(look)
        if not look.measured or look.out_of_time:
            return outcome
        built = build_again(built)


def _measure_selection(lacking: "Selection", options: MeasuringOptions) -> "Reproduction":
    """Measure the cells whose data are at hand and that fit the budget."""
    from simsplit.evidence.placing import place_cells, place_data
    from simsplit.evidence.reproducing import Reproduction, choose_jobs, measure_cells
    from simsplit.terminal.paper_tables import MeasuringLines, print_plan

    at_hand = require_data(place_data(lacking, options.data), alone=options.alone)
    selection = place_cells(at_hand, options.device)
    jobs, minutes = choose_jobs(selection, options.jobs, options.cluster), options.minutes
    if minutes is not None:
        selection = selection.within(minutes, jobs or 1)
    if not options.quiet:
        print_plan(selection, jobs, say)
    if options.dry or not selection.cells:
        return Reproduction()
    _rehearse(selection)
    watch = MeasuringLines(make_console(stderr=True, quiet=options.quiet))
    return measure_cells(selection, watch, jobs=jobs, budget_min=minutes, cluster=options.cluster)


def _rehearse(selection: "Selection") -> None:
    """Rehearse plugins' parts of all cells: a broken one is named before others take hours."""
    import torch

    from simsplit.running.rehearsing import rehearse

    bases = {id(each.cell.base): each.cell.base for each in selection.cells}.values()
    heard = (warning for base in bases for warning in rehearse(base, None, torch.device("cpu")))
    for warning in dict.fromkeys(heard):
        say(f"warning: {warning}")


def refuse_failed(outcome: "Reproduction") -> None:
    """Raise RunFailedError with the reasons where cells failed."""
    if outcome.failed:
        reasons = [f"{name}: {why.splitlines()[0]}" for name, why in outcome.failed.items()]
        raise RunFailedError(
            "\n".join([f"{format_count(len(reasons), 'cell')} failed", *reasons[:8]])
        )


def require_data(selection: "Selection", *, alone: bool) -> "Selection":
    """Raise SimsplitError where nothing can be measured for lack of data."""
    if alone and selection.absent:
        ((name, why),) = selection.absent.items()
        raise SimsplitError(f"{name} cannot be measured here: {why}")
    return selection
