"""What would settle an open statement, and at what price, by what was seen of it.

The differences that were measured give the chance that a statement is settled at each number of
seeds at which it is looked at. Where even the most seeds give little hope, more are not measured.
Three seeds say little of mean and spread, so the chance allows for both, and each look plans anew.
"""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from simsplit.evidence.claims import FIGURE, Axes, Claim
from simsplit.evidence.evidence_tables import EvidenceTable
from simsplit.evidence.judging_claims import JudgedStatement
from simsplit.evidence.measuring_cells import MeasuringCell, list_cells
from simsplit.evidence.selecting import ChosenCell, Selection, estimate, refuse_unknown_axes
from simsplit.evidence.verdicts import LOOKS, ClaimVerdict, Judged, find_confidence

ENOUGH = 0.8
"""The chance with which a number of seeds is said to settle a statement."""
HOPELESS = 0.2
"""The chance at the most seeds below which they are not measured."""
NO_AXES: Axes = MappingProxyType({})
_FUTURES = 4000
"""Draws for a chance, whose error they make 1 % at most."""


@dataclass(frozen=True)
class Prospect:
    """What would settle an open statement."""

    table: EvidenceTable
    each: JudgedStatement
    seeds: int
    """The number of seeds that would settle it, or the most that are measured."""
    chance: float
    """The chance that it is settled then, by what was seen."""
    cells: Sequence[ChosenCell]
    """What must be measured for that, the first seeds first."""
    why_not: str = ""
    """Why more seeds would not settle it; empty: they may."""

    @property
    def minutes(self) -> float:
        """The minutes that its cells take one after the other."""
        return sum(chosen.minutes for chosen in self.cells)

    def to_dict(self) -> dict[str, object]:
        """Return what would settle the statement, and its price, as `--json` prints it."""
        return {
            "table": self.table.table.full_name,
            "that": str(self.each.judged.comparison),
            "in": self.each.statement.in_,
            "where": dict(self.each.where),
            "seeds": self.seeds,
            "chance": self.chance,
            "cells": len(self.cells),
            "minutes": self.minutes,
            "why_not": self.why_not,
        }


def find_prospects(
    table: EvidenceTable, most: int, *, only: Axes = NO_AXES, on_gpu: bool = False
) -> list[Prospect]:
    """Find what would settle each open statement of a table with at most so many seeds.

    `only` keeps the statements all of whose rows have these values of axes; unknown ones are
    refused.
    """
    refuse_unknown_axes(table.table, only)
    open_ones = [
        each
        for each in table.judgements
        if each.judged.verdict.is_open and _is_made_of(table, each, only)
    ]
    if not open_ones:
        return []
    seeds = range(max(most, *(each.judged.seeds for each in open_ones), table.planned))
    cells = list_cells(table.claim, table.tier, table.table.folder, seeds)
    minutes = estimate(table, cells, on_gpu=on_gpu)
    lacking = [
        ChosenCell(table.table, table.tier, cell, minutes[cell.name])
        for cell in table.list_lacking(cells)
    ]
    return [_find_prospect(table, each, most, lacking) for each in open_ones]


def _is_made_of(table: EvidenceTable, each: JudgedStatement, only: Axes) -> bool:
    if not only:
        return True
    needed = list_needed(table.claim, each)
    cells = (dict(cell.axes) for cell in table.cells if _measures(cell, needed))
    return all(only.items() <= axes.items() for axes in cells)


def _find_prospect(
    table: EvidenceTable, each: JudgedStatement, most: int, lacking: Sequence[ChosenCell]
) -> Prospect:
    judged = each.judged
    looks = [n for n in LOOKS if judged.seeds < n <= most]
    chances = {n: find_chance(judged, n, table.planned) for n in looks}
    seeds = next((n for n in looks if chances[n] >= ENOUGH), looks[-1] if looks else judged.seeds)
    chance = chances.get(seeds, 0.0)
    needed = list_needed(table.claim, each)
    cells = [
        chosen
        for chosen in lacking
        if chosen.cell.seed in range(seeds) and _measures(chosen.cell, needed)
    ]
    why = _explain_hopelessness(judged, looks, chance, most)
    return Prospect(table, each, seeds, chance, () if why else cells, why)


def _explain_hopelessness(judged: Judged, looks: Sequence[int], chance: float, most: int) -> str:
    if judged.why_open:
        return judged.why_open
    if not looks:
        return f"it has {judged.seeds} seeds already, and at most {most} are measured"
    if chance >= HOPELESS:
        return ""
    return (
        f"with {looks[-1]} seeds the chance is {chance:.0%}: the difference is "
        f"{abs(_find_margin(judged)):.2g} from where it would settle, and varies by "
        f"{judged.spread:.2g} over seeds"
    )


def find_chance(judged: Judged, seeds: int, planned: int) -> float:
    """Return the chance that so many seeds settle a comparison, by the few that were seen of it.

    Mean and spread of three seeds are known poorly, and large effects shrink with further ones. So
    this is the share of futures that settle: each draws a true mean and spread that may lie behind
    what was seen, and further seeds by them. Without a spread nothing is known: a first look is
    worth its price.
    """
    from scipy.special import stdtrit

    margin = _find_margin(judged)
    if judged.verdict is ClaimVerdict.NOT_MEASURED or not math.isfinite(judged.spread):
        return 0.5
    if not judged.spread:
        return float(bool(margin))
    mean, squares = _draw_futures(margin / judged.spread, judged.seeds, seeds)
    quantile = float(stdtrit(seeds - 1, (1 + find_confidence(seeds, planned)) / 2))
    half = quantile * np.sqrt(squares / (seeds - 1) / seeds)
    return float((np.abs(mean) > half).mean())


def _draw_futures(mean: float, seen: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw means of so many seeds, and sums of their squares, after a mean with a spread of 1.

    The true mean and spread have the usual flat prior, of the mean and of the spread's logarithm.
    """
    rng = np.random.default_rng(seeds)
    further = seeds - seen
    variance = (seen - 1) / rng.chisquare(seen - 1, _FUTURES)
    # The mean of further seeds varies by their own spread, and by what is unknown of the true mean.
    apart = np.sqrt(variance * (1 / seen + 1 / further)) * rng.standard_normal(_FUTURES)
    squares = seen - 1 + apart**2 * seen * further / seeds
    if further > 1:
        squares += variance * rng.chisquare(further - 1, _FUTURES)
    return mean + apart * further / seeds, squares


def _find_margin(judged: Judged) -> float:
    """Return how far the mean lies from the edge of what would settle it."""
    comparison = judged.comparison
    if comparison.sign != "~":
        return judged.mean
    return comparison.within - abs(judged.mean)


def list_needed(claim: Claim, each: JudgedStatement) -> list[tuple[Axes, frozenset[str]]]:
    """List the printed rows whose figures a comparison needs, each with these figures.

    Figures against another row need that row's too.
    """
    statement, comparison = each.statement, each.judged.comparison
    is_of_figures = statement.along == FIGURE
    needs: list[tuple[Axes, frozenset[str]]] = []
    for side in comparison.rows:
        name = side if is_of_figures else statement.in_
        where = each.where if is_of_figures else {**each.where, statement.along: side}
        base, figure = claim.base_figure(name), claim.figures[name]
        needs.append((where, frozenset((base, *figure.leaked))))
        if figure.against:
            needs.append(({**where, **figure.against}, frozenset((base,))))
    return needs


def _measures(cell: MeasuringCell, needed: Iterable[tuple[Axes, frozenset[str]]]) -> bool:
    return any(
        figures & cell.digests.keys() and where.items() <= dict(cell.axes).items()
        for where, figures in needed
    )


def sort_prospects(prospects: Iterable[Prospect]) -> list[Prospect]:
    """Sort prospects: the cheapest for their chance first, and last what is not to be settled."""
    return sorted(
        prospects,
        key=lambda each: (bool(each.why_not), each.minutes / max(each.chance, HOPELESS)),
    )


def sum_minutes(prospects: Iterable[Prospect]) -> float:
    """Sum the minutes of all cells, each of which counts once."""
    minutes = {
        (*chosen.cell.digests.values(), chosen.cell.seed): chosen.minutes
        for each in prospects
        for chosen in each.cells
    }
    return sum(minutes.values())


def choose_next(prospects: Sequence[Prospect], failed: Container[str] = ()) -> Selection:
    """Choose what the next looks lack: of the statements that are cheapest for their chance first.

    What several statements share is measured once. A statement that needs a cell that has failed
    gets no look: it would fail again.
    """
    chosen: dict[tuple[str | int, ...], ChosenCell] = {}
    for each in sort_prospects(prospects):
        if any(cell.name in failed for cell in each.cells):
            continue
        planned = max((cell.cell.planned for cell in each.cells), default=0)
        # the level of the planned seeds allows for no look before them
        look = next((n for n in LOOKS if n > each.each.judged.seeds and n >= planned), 0)
        for cell in each.cells:
            if cell.cell.seed in range(look):
                chosen.setdefault((*cell.cell.digests.values(), cell.cell.seed), cell)
    return Selection([*chosen.values()])
