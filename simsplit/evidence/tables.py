"""A claim beside its measurements: each printed row with ours, and the verdict."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from simsplit.evidence.cells import MeasuringCell, cells_of
from simsplit.evidence.claims import Axes, Claim, Statement, Tier
from simsplit.evidence.measurements import Measurement, merge, path_of, read
from simsplit.evidence.verdicts import Judged, Verdict, judge, together
from simsplit.metrics.intervals import half_width


@dataclass(frozen=True)
class Known:
    """A figure of one row over its seeds."""

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        """The mean over seeds; nan without any."""
        return statistics.fmean(self.by_seed.values()) if self.by_seed else math.nan

    @property
    def half(self) -> float | None:
        """Half the width of its 95 % interval; None with fewer than two seeds."""
        return half_width([*self.by_seed.values()])


@dataclass(frozen=True)
class TableRow:
    """A printed row beside what was measured of it."""

    axes: Axes
    printed: Mapping[str, float]
    known: Mapping[str, Known]
    stale: int = 0
    """Seeds that were measured with another scenario than the one that ships."""


@dataclass(frozen=True)
class Statements:
    """One comparison of a claim, where it is made, and how it was judged."""

    statement: Statement
    where: Axes
    judged: Judged


@dataclass(frozen=True)
class Table:
    """A table of a paper at one tier: the claim, rows and verdicts."""

    paper: str
    name: str
    claim: Claim
    tier: Tier
    rows: Sequence[TableRow]
    judged: Sequence[Statements]
    measurements: Sequence[Measurement] = field(default=(), repr=False)
    """Those that are not stale."""
    stale: int = 0
    """Measurements of scenarios that have changed since."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on all that the claim says."""
        if not self.measurements and self.claim.out_of_reach:
            return Verdict.OUT_OF_REACH
        return together(each.judged.verdict for each in self.judged)

    @property
    def seeds(self) -> int:
        """The fewest seeds that a measured row has; 0 where nothing is measured."""
        counts = [len(known.by_seed) for row in self.rows for known in row.known.values()]
        return min((count for count in counts if count), default=0)

    @property
    def minutes(self) -> float:
        """What the runs behind its rows took, together."""
        runs = {(row.setting, row.seed): row.minutes for row in self.measurements}
        return sum(runs.values())


def build_table(
    paper: str,
    name: str,
    claim: Claim,
    tier: Tier,
    *,
    folder: Path,
    results: Iterable[Path],
) -> Table:
    """Put a claim beside its measurements at a tier.

    `folder` is where the claims lie; `results` are folders of rows, later ones before earlier.
    """
    found: list[Measurement] = []
    for place in results:
        found = merge(found, read(path_of(place, paper, claim.rows_of or name, tier)))
    if claim.rows_of:  # the others of that table's rows are no business of this one
        found = [row for row in found if any(_is_of(axes, row) for axes, _ in claim.rows)]
    cells = cells_of(claim, tier, folder) if found else []
    fresh, stale = split_stale(found, cells)
    own = [_row(claim, axes, printed, fresh, stale) for axes, printed in claim.rows]
    rows = [_put_against_others(row, own, claim) for row in own]
    return Table(paper, name, claim, tier, rows, _judge(claim, rows), fresh, len(stale))


def split_stale(
    rows: Iterable[Measurement], cells: Sequence[MeasuringCell]
) -> tuple[list[Measurement], list[Measurement]]:
    """Split measurements into those of the scenarios as they are, and stale ones."""
    digests = {cell.setting: cell.digest for cell in cells}
    fresh: list[Measurement] = []
    stale: list[Measurement] = []
    for row in rows:
        (fresh if digests.get(row.setting) == row.digest else stale).append(row)
    return fresh, stale


def _row(
    claim: Claim,
    axes: Axes,
    printed: Mapping[str, float],
    fresh: Iterable[Measurement],
    stale: Iterable[Measurement],
) -> TableRow:
    known: dict[str, dict[int, float]] = {}
    for row in fresh:
        if _is_of(axes, row):
            known.setdefault(row.figure, {})[row.seed] = row.value
    figures = {name: Known(known[name]) for name in claim.figures if name in known}
    old = {row.seed for row in stale if _is_of(axes, row)}
    return TableRow(axes, printed, figures, len(old))


def _put_against_others(row: TableRow, rows: Sequence[TableRow], claim: Claim) -> TableRow:
    """Add a row's figures against other rows, seed by seed."""
    against = {name: figure for name, figure in claim.figures.items() if figure.of in row.known}
    added: dict[str, Known] = {}
    for name, figure in against.items():
        axes = {**row.axes, **figure.against}
        other = next((each for each in rows if each.axes == axes), None)
        if other is None or figure.of not in other.known:
            continue
        mine, theirs = row.known[figure.of].by_seed, other.known[figure.of].by_seed
        values = {seed: figure.compare(mine[seed], theirs[seed]) for seed in mine if seed in theirs}
        if known := {seed: value for seed, value in values.items() if math.isfinite(value)}:
            added[name] = Known(known)
    return replace(row, known={**row.known, **added})


def _is_of(axes: Axes, row: Measurement) -> bool:
    return all(row.axes.get(name) == value for name, value in axes.items())


def _judge(claim: Claim, rows: Sequence[TableRow]) -> list[Statements]:
    judged = []
    for statement, where, comparison in claim.comparisons():
        here = [row for row in rows if all(row.axes[n] == v for n, v in where.items())]
        values = {
            row.axes[statement.along]: row.known[statement.in_].by_seed
            for row in here
            if statement.in_ in row.known
        }
        judged.append(Statements(statement, where, judge(comparison, values)))
    return judged
