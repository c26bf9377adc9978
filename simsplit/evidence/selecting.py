"""Which cells are to be measured, in which order, and how long they will take."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simsplit.errors import RunError, SimsplitError, format_list, suggest
from simsplit.evidence.claims import Tier
from simsplit.evidence.evidence_tables import EvidenceTable
from simsplit.evidence.measuring_cells import MeasuringCell
from simsplit.evidence.papers import PaperTable

_LEAST_MIN = 0.05
_UNITS = {"h": 60.0, "m": 1.0, "s": 1 / 60}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([hms])")


@dataclass(frozen=True)
class ChosenCell:
    """A cell that is to be measured, and its estimated minutes."""

    table: PaperTable
    tier: Tier
    cell: MeasuringCell
    minutes: float
    is_open: bool = True
    """Whether more measurements could change its table's verdict."""

    @property
    def name(self) -> str:
        """The table and the cell of it, as they are printed."""
        return f"{self.table.full_name}, {self.cell.name}"

    @property
    def group(self) -> str:
        """The table and tier that its rows belong to."""
        return f"{self.table.full_name}.{self.tier}"


@dataclass(frozen=True)
class Selection:
    """The cells that are to be measured, in order."""

    cells: Sequence[ChosenCell]
    beyond: int = 0
    """Cells that a budget has no room for."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Table -> the reason why it cannot be measured here."""

    @property
    def minutes(self) -> float:
        """The minutes that the cells take one after the other."""
        return sum(cell.minutes for cell in self.cells)

    def within(self, budget_min: float, jobs: int) -> "Selection":
        """Return the first cells that fit a budget of minutes; raise RunError where none does."""
        taken: list[ChosenCell] = []
        spent = 0.0
        for cell in self.cells:
            if (spent + cell.minutes) / jobs <= budget_min or (
                len(taken) < jobs and cell.minutes <= budget_min
            ):
                spent += cell.minutes
                taken.append(cell)
        if self.cells and not taken:
            least = min(cell.minutes for cell in self.cells)
            raise RunError(
                f"the cheapest cell takes about {write_minutes(least)}, more than the budget of "
                f"{write_minutes(budget_min)}; give --budget {math.ceil(least)}m or more"
            )
        return replace(self, cells=taken, beyond=len(self.cells) - len(taken))


def select(
    tables: Iterable[EvidenceTable],
    only: Mapping[str, str] | None = None,
    *,
    on_gpu: bool = False,
) -> Selection:
    """Choose the cells that tables lack: open verdicts first, and then the cheap ones.

    `on_gpu` is whether they will compute on a GPU, by which their minutes are estimated.
    """
    chosen: list[ChosenCell] = []
    for table in tables:
        minutes = estimate(table, on_gpu=on_gpu)
        chosen += [
            ChosenCell(table.table, table.tier, cell, minutes[cell.name], table.verdict.is_open)
            for cell in pick(table.table, table.lacking, only or {})
        ]
    chosen.sort(key=lambda each: (not each.is_open, each.minutes))
    # tables that share a scenario share its rows
    alone = {(*each.cell.digests.values(), each.cell.seed): each for each in reversed(chosen)}
    return Selection([*reversed(alone.values())])


def select_known(
    table: EvidenceTable, only: Mapping[str, str], *, on_gpu: bool = False
) -> Selection:
    """Choose the cells of a table all of whose figures are known; raise SimsplitError for none."""
    lacking = {cell.name for cell in table.lacking}
    cells = [cell for cell in pick(table.table, table.cells, only) if cell.name not in lacking]
    if not cells:
        raise SimsplitError(
            f"{table.table.full_name} has no measurement at tier {table.tier} that could be checked"
        )
    minutes = estimate(table, on_gpu=on_gpu)
    chosen = [ChosenCell(table.table, table.tier, cell, minutes[cell.name]) for cell in cells]
    return Selection(chosen)


def pick(
    table: PaperTable, cells: Sequence[MeasuringCell], only: Mapping[str, str]
) -> list[MeasuringCell]:
    """Pick the cells that have these values of axes; raise SimsplitError for unknown ones."""
    refuse_unknown_axes(table, only)
    return [cell for cell in cells if all(cell.axes[a] == value for a, value in only.items())]


def refuse_unknown_axes(table: PaperTable, only: Mapping[str, str]) -> None:
    """Raise SimsplitError for axes, or values of them, that a table does not have."""
    for axis, value in only.items():
        if axis not in table.claim.axes:
            axes = format_list(table.claim.axes)
            hint = suggest(axis, table.claim.axes) or ","
            raise SimsplitError(
                f"--only: {table.full_name} has no axis '{axis}'{hint} it has: {axes}"
            )
        if value not in (known := table.claim.values(axis)):
            hint = suggest(value, known) or ","
            raise SimsplitError(
                f"--only: {axis} has no value '{value}'{hint} it has: {format_list(known, 20)}"
            )


def estimate(
    table: EvidenceTable, cells: Sequence[MeasuringCell] = (), *, on_gpu: bool = False
) -> Mapping[str, float]:
    """Estimate the minutes of each cell by its name: as measured, else as the claim says.

    `cells` are by default the table's. What a GPU took says nothing of processors, nor what another
    scenario took of this one. `on_gpu`: as a GPU took, where that is known.
    """
    took: dict[tuple[str, str, str], float] = {}
    # of rows with one key the last counts: a GPU's, if cells are to compute on one
    for row in sorted((*table.stale, *table.fresh), key=lambda row: row.on_gpu):
        if on_gpu or not row.on_gpu:
            took[row.setting, row.figure, row.digest] = max(row.minutes, _LEAST_MIN)
    minutes = {}
    for cell in cells or table.cells:
        # scenarios with other figures may share a setting
        places = [(cell.setting, name, digest) for name, digest in cell.digests.items()]
        known = [took[place] for place in places if place in took]
        minutes[cell.name] = known[0] if known else cell.takes_min
    return minutes


def parse_minutes(text: str) -> float:
    """Parse a duration such as `2h`, `90m` or `1h30m` as minutes; refuse what is none."""
    parts = _DURATION.findall(text)
    minutes = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if _DURATION.sub("", text).strip() or not minutes:
        raise SimsplitError(f"--budget takes a duration such as 2h, 90m or 1h30m, got '{text}'")
    return minutes


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds such as `0-2` or `0,3,5`; refuse what is none."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise SimsplitError(f"--seeds takes numbers such as 0-2 or 0,3, got '{text}'")
        seeds += range(int(first), int(last if dash else first) + 1)
    if not seeds:
        raise SimsplitError(f"--seeds: '{text}' names none")
    return tuple(dict.fromkeys(seeds))


def write_minutes(minutes: float) -> str:
    """Write minutes as people say them: `40 s`, `12 min`, `3.5 h`."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
