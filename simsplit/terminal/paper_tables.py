"""Tables of papers are printed here, and the progress of measuring them is shown."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console

from simsplit.errors import format_count
from simsplit.evidence.evidence_tables import EvidenceTable
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.papers import PaperTable
from simsplit.evidence.presenting import (
    JudgedTable,
    choose_decimals,
    count_verdicts,
    describe_shared,
    list_prospects,
    list_statements,
    tabulate_overview,
    tabulate_printed,
    tabulate_rows,
    write_card,
    write_gaps,
    write_verdict,
)
from simsplit.evidence.refused_rows import RefusedRow, write_refused
from simsplit.evidence.reproducing import CheckedFigure
from simsplit.evidence.selecting import ChosenCell, Selection, write_minutes
from simsplit.evidence.settling import Prospect, find_prospects, sum_minutes
from simsplit.evidence.silences import SILENT
from simsplit.evidence.staleness import StaleRows, tabulate_stale
from simsplit.evidence.verdicts import LOOKS
from simsplit.showing.pace import format_clock
from simsplit.showing.saying import echo_prose
from simsplit.terminal.printing import print_table


def print_overview(tables: Sequence[JudgedTable]) -> None:
    """Print a line for each table, and the counts of verdicts."""
    print_table(tabulate_overview(tables), "table")
    echo_prose(f"{format_count(len(tables), 'table')}: {count_verdicts(tables)}")


def print_refused(refused: Mapping[str, Sequence[RefusedRow]]) -> None:
    """Print which measurements count for nothing, file by file, and why."""
    for name, rows in refused.items():
        for line in write_refused(rows):
            echo_prose(f"{name}: {line}")


def print_evidence(built: EvidenceTable) -> None:
    """Print a table with the paper's figures beside ours, its verdict and how it was measured."""
    claim = built.claim
    echo_prose(f"{built.table.full_name}, {claim.title}, tier {built.tier}: {claim.says}")
    print_table(tabulate_rows(built), "table")
    if shared := describe_shared(built):
        echo_prose(f"all rows: {shared}")
    echo_prose(f"verdict: {write_verdict(built.verdict, built)}")
    for line in list_statements(built):
        echo_prose(f"  {line}")
    # why rows say nothing stands with the statement already
    prospects = find_prospects(built, LOOKS[-1])
    print_prospects([each for each in prospects if not each.why_not.startswith(SILENT)])
    for line in claim.silent:
        echo_prose(f"the paper leaves open: {line}")
    for line in (*write_gaps(built), *write_card(built)):
        echo_prose(line)


def print_prospects(prospects: Sequence[Prospect]) -> None:
    """Print what would settle open statements, and at what price."""
    for line in list_prospects(prospects):
        echo_prose(f"  open: {line}")


def print_open(prospects: Sequence[Prospect]) -> None:
    """Print what would settle the open statements of several tables, and the price of all."""
    for each in prospects:
        (line,) = list_prospects([each])
        echo_prose(f"{each.table.table.full_name}: {line}")
    hopeful = [each for each in prospects if not each.why_not]
    echo_prose(
        f"{format_count(len(prospects), 'statement')} open; more seeds may settle {len(hopeful)}, "
        f"in about {write_minutes(sum_minutes(hopeful))}"
    )


def print_stale(found: Sequence[StaleRows]) -> None:
    """Print which rows are stale, why, and what measuring them again costs."""
    if not found:
        echo_prose("no measurement is stale")
        return
    print_table(tabulate_stale(found), "table")
    stale = [each for each in found if not each.counts]
    rows = sum(len(each.rows) for each in stale)
    minutes = write_minutes(sum(each.minutes for each in stale))
    unsure = sum(len(each.rows) for each in found if each.counts)
    echo_prose(
        f"{format_count(rows, 'measurement')} stale; again in about {minutes}. {unsure} more "
        "count, but nothing shows that they would be the same"
    )


def print_printed(table: PaperTable) -> None:
    """Print what the paper prints of a table that is not measured, and why it is not."""
    claim = table.claim
    echo_prose(f"{table.full_name}, {claim.title}: {claim.says}")
    if claim.rows:
        print_table(tabulate_printed(table), "table")
    word = "describes" if claim.describes else "out of reach"
    echo_prose(f"{word}: {claim.describes or claim.out_of_reach}")


def print_plan(selection: Selection, jobs: int | None, say: Callable[[str], None]) -> None:
    """Say what is about to be measured, and what it will take."""
    tables = list(dict.fromkeys(chosen.group for chosen in selection.cells))
    takes = selection.minutes / (jobs or 1)
    parts = f"{format_count(len(selection.cells), 'cell')} of {format_count(len(tables), 'table')}"
    at_once = f" with {jobs} at a time" if jobs and jobs > 1 else ""
    if selection.cells:
        say(f"{parts}, about {write_minutes(takes)}{at_once}; ends about {_clock_at(takes)}")
    else:
        say("nothing to measure: no cell is missing or stale whose data are at hand")
    if selection.beyond:
        do = "does" if selection.beyond == 1 else "do"
        say(f"{format_count(selection.beyond, 'cell')} more {do} not fit the budget")
    for name, why in selection.absent.items():
        say(f"{name} is left out: {why}")


def print_check(checked: Sequence[CheckedFigure]) -> None:
    """Print each figure that was measured again beside the known one."""
    for each in checked:
        where = ", ".join(each.chosen.cell.axes.values())
        mean, wide = each.known.mean, each.known.half_of_one_more
        interval = "" if wide is None else f" (one more seed: {mean:.4g} ± {wide:.2g})"
        verdict = "agrees" if each.agrees else "DIFFERS"
        echo_prose(
            f"{verdict}: {where}, seed {each.chosen.cell.seed}, {each.figure}: "
            f"known {each.before:.6g}, now {each.now:.6g}{interval}"
        )


class MeasuringLines:
    """An observer that prints a line as each cell ends: what it gave, and when all will end."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, selection: Selection, jobs: int | None) -> None:
        """Note what is to be measured."""
        self.total, self.jobs = len(selection.cells), jobs or 1
        self.left = selection.minutes
        self.ended = 0
        self.started: dict[str, float] = {}
        self.pace: list[tuple[float, float]] = []

    def starts(self, chosen: ChosenCell) -> None:
        """Note when a cell starts, and show it on a terminal until it ends."""
        self.started[_key(chosen)] = time.monotonic()
        if self.console.is_terminal:
            words = f"{_describe(chosen)} ... about {write_minutes(self._adapt(chosen.minutes))}"
            fitted: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis", "end": "\r"}
            self.console.print(f"      {words}", highlight=False, markup=False, **fitted)

    def ends(self, chosen: ChosenCell, rows: Sequence[Measurement], reason: str) -> None:
        """Print what a cell gave."""
        self.ended += 1
        self.left -= chosen.minutes
        begun = self.started.pop(_key(chosen), None)
        took = "" if begun is None else f", {format_clock(time.monotonic() - begun)}"
        if begun is not None and not reason:
            self.pace.append((chosen.minutes, (time.monotonic() - begun) / 60))
        left, more = self._adapt(self.left) / self.jobs, self.total > self.ended
        when = f"; {write_minutes(left)} left, ends {_clock_at(left)}" if more else ""
        gave = f"failed: {reason.splitlines()[0]}" if reason else _describe_rows(chosen, rows)
        self._print(f"[{self.ended}/{self.total}] {_describe(chosen)}: {gave}{took}{when}")

    def warn(self, message: str) -> None:
        """Print a warning on a line of its own, above what is under way."""
        self._print(f"warning: {message}")

    def _adapt(self, minutes: float) -> float:
        """Scale an estimate by how long cells have taken so far."""
        planned, took = (sum(each[place] for each in self.pace) for place in (0, 1))
        return minutes * took / planned if self.pace else minutes

    def _print(self, text: str) -> None:
        self.console.print(f"{text:<79}", highlight=False, markup=False, soft_wrap=True)


def _key(chosen: ChosenCell) -> str:
    return f"{chosen.group}/{chosen.cell.name}"


def _describe(chosen: ChosenCell) -> str:
    claim = chosen.table.claim
    axes = chosen.cell.axes.items()
    values = [claim.name(value) for axis, value in axes if len(claim.values(axis)) > 1]
    return ", ".join([chosen.table.full_name, *values, f"seed {chosen.cell.seed}"])


def _describe_rows(chosen: ChosenCell, rows: Sequence[Measurement]) -> str:
    claim = chosen.table.claim
    printed: Mapping[str, str] = next(
        (texts for axes, texts in claim.texts if axes == chosen.cell.axes), {}
    )
    words = []
    for row in rows:
        paper = f" (paper {printed[row.figure]})" if row.figure in printed else ""
        decimals = choose_decimals(row.value, claim.decimals(row.figure))
        words.append(f"{row.figure} {row.value:.{decimals}f}{paper}")
    return ", ".join(words)


def _clock_at(minutes: float) -> str:
    """Return the time of day after so many minutes, with the date if it is another day."""
    now = datetime.now().astimezone()
    then = now + timedelta(minutes=minutes)
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%a %d %b, %H:%M}"
