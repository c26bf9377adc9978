"""A table of a paper beside its measurements: each printed row with ours, and the verdict."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from simsplit.evidence.cells import MeasuringCell, list_cells
from simsplit.evidence.claims import FIGURE, Axes, Claim, Figure, Statement, Tier
from simsplit.evidence.measurements import (
    OWN,
    Measurement,
    find_shipped_results,
    read,
    write_setting,
)
from simsplit.evidence.papers import PaperTable
from simsplit.evidence.statements import Comparison
from simsplit.evidence.verdicts import BySeed, ClaimVerdict, Judged, judge, together
from simsplit.metrics.intervals import compute_half_width
from simsplit.results.session_results import SILENT


@dataclass(frozen=True)
class Known:
    """A figure of one row over its seeds."""

    by_seed: BySeed

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def half(self) -> float | None:
        """Half the width of its 95 % interval; None with fewer than two seeds."""
        return compute_half_width([*self.by_seed.values()])


@dataclass(frozen=True)
class EvidenceRow:
    """A printed row beside what was measured of it."""

    axes: Axes
    printed: Mapping[str, float]
    known: Mapping[str, Known]
    """Figure -> ours, where it is measured and not stale."""
    stale: int = 0
    """Measurements of it that were made with another scenario than the one that ships."""
    reachable: bool = True
    """Whether a cell of the tier measures it."""

    @property
    def seeds(self) -> int:
        """The fewest seeds of its measured figures; 0 where none is."""
        return min((len(known.by_seed) for known in self.known.values()), default=0)


@dataclass(frozen=True)
class JudgedStatement:
    """One comparison of a claim, where it is made, and how it was judged."""

    statement: Statement
    where: Axes
    judged: Judged

    def __str__(self) -> str:
        where = ", ".join(self.where.values())
        return f"{self.judged.comparison}{f' ({where})' if where else ''}"


@dataclass(frozen=True)
class EvidenceTable:
    """A table of a paper at one tier: printed rows beside ours, and verdicts."""

    table: PaperTable
    tier: Tier
    cells: Sequence[MeasuringCell]
    fresh: Sequence[Measurement]
    stale: Sequence[Measurement]
    """Measurements with scenarios that have changed since, or of rows that are no more."""

    @property
    def claim(self) -> Claim:
        """The paper's claim, with its printed rows."""
        return self.table.claim

    @cached_property
    def rows(self) -> Sequence[EvidenceRow]:
        """All printed rows, in the paper's order."""
        known: dict[str, dict[str, dict[int, float]]] = {}
        for row in self.fresh:
            known.setdefault(row.setting, {}).setdefault(row.figure, {})[row.seed] = row.value
        reachable = {cell.setting for cell in self.cells}
        made = []
        for axes, printed in self.claim.rows:
            setting = write_setting(axes)
            of_row = known.get(setting, {})
            figures = {name: Known(of_row[name]) for name in self.claim.figures if name in of_row}
            old = sum(1 for row in self.stale if row.setting == setting)
            made.append(EvidenceRow(axes, printed, figures, old, setting in reachable))
        made += _add_silent(made, self.claim)
        return [_put_against_others(row, made, self.claim) for row in made]

    @cached_property
    def judgements(self) -> Sequence[JudgedStatement]:
        """All comparisons that the tier can make, judged."""
        return [
            JudgedStatement(statement, where, _judge(statement, comparison, values))
            for statement, where, comparison in self.claim.comparisons()
            if (values := self._find_values(statement, where, comparison)) is not None
        ]

    def _find_values(
        self, statement: Statement, where: Axes, comparison: Comparison
    ) -> dict[str, BySeed] | None:
        """Return what is measured of the sides of a comparison; None beyond the tier's reach."""
        here = [
            row
            for row in self.rows
            if row.reachable and all(row.axes[name] == value for name, value in where.items())
        ]
        if statement.along == FIGURE:
            return (
                {name: k.by_seed for row in here for name, k in row.known.items()} if here else None
            )
        rows = {row.axes[statement.along]: row for row in here}
        if any(name not in rows for name in comparison.rows):
            return None
        known_rows = {name: row.known.get(statement.in_) for name, row in rows.items()}
        return {name: known.by_seed for name, known in known_rows.items() if known is not None}

    @property
    def verdict(self) -> ClaimVerdict:
        """The verdict on all that the claim says and that is within reach."""
        return together(each.judged.verdict for each in self.judgements)

    @property
    def seeds(self) -> int:
        """The fewest seeds that a measured row has; 0 where nothing is measured."""
        return min((row.seeds for row in self.rows if row.seeds), default=0)

    @property
    def lacking(self) -> Sequence[MeasuringCell]:
        """The cells of which a figure is missing or stale."""
        known: dict[tuple[str, int], set[str]] = {}
        for row in self.fresh:
            known.setdefault((row.setting, row.seed), set()).add(row.figure)
        return [cell for cell in self.cells if set(cell.digests) - known.get(cell.key, set())]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: rows, statements and verdict."""
        return {
            "table": self.table.full_name,
            "title": self.claim.title,
            "says": self.claim.says,
            "tier": self.tier,
            "verdict": self.verdict.value,
            "seeds": self.seeds,
            "stale": len(self.stale),
            "missing": len(self.lacking),
            "statements": [_describe_judged(each) for each in self.judgements],
            "rows": [_describe_row(row) for row in self.rows],
        }


def _judge(statement: Statement, comparison: Comparison, values: Mapping[str, BySeed]) -> Judged:
    """Judge a comparison of a statement; one without measurements may be out of reach."""
    judged = judge(comparison, values)
    if judged.missing and statement.out_of_reach:
        return replace(judged, verdict=ClaimVerdict.OUT_OF_REACH)
    return judged


def _put_against_others(row: EvidenceRow, rows: Sequence[EvidenceRow], claim: Claim) -> EvidenceRow:
    """Add a row's figures against other rows, seed by seed."""
    against = {name: figure for name, figure in claim.figures.items() if figure.of in row.known}
    added: dict[str, Known] = {}
    for name, figure in against.items():
        if figure.as_ == "variation":
            spread = _find_variation(row.known[figure.of])
            added |= {name: spread} if spread else {}
            continue
        axes = {**row.axes, **figure.against}
        other = next((each for each in rows if each.axes == axes), None)
        if other is None or figure.of not in other.known:
            continue
        values = _compare_by_seed(figure, row, other)
        if known := {seed: value for seed, value in values.items() if math.isfinite(value)}:
            added[name] = Known(known)
    return replace(row, known={**row.known, **added})


def _add_silent(rows: Sequence[EvidenceRow], claim: Claim) -> list[EvidenceRow]:
    """Make a row of a silent model beside each undefended one, in tables that score defences.

    It is a control: nothing is read of it, and nothing that it says is of use.
    """
    scores = [figure for figure in claim.figures.values() if figure.as_ == "dcs"]
    made: dict[str, EvidenceRow] = {}
    for figure, row in itertools.product(scores, rows):
        undefended = row.known.get(figure.of)
        if undefended is None or row.axes != {**row.axes, **figure.against}:
            continue
        nothing = Known(dict.fromkeys(undefended.by_seed, 0.0))
        axes = {**row.axes, **dict.fromkeys(figure.against, SILENT)}
        known = dict.fromkeys((figure.of, *figure.leaked), nothing)
        before = made.get(write_setting(axes))
        made[write_setting(axes)] = EvidenceRow(
            axes, {}, {**(before.known if before else {}), **known}
        )
    return [*made.values()]


def _compare_by_seed(figure: Figure, row: EvidenceRow, other: EvidenceRow) -> dict[int, float]:
    """Put a figure of a row against the other row's, on each seed that has all it takes."""
    mine, theirs = row.known[figure.of].by_seed, other.known[figure.of].by_seed
    leaks = {name: row.known[name].by_seed for name in figure.leaked if name in row.known}
    if len(leaks) < len(figure.leaked):
        return {}
    made = {}
    for seed in set(mine).intersection(theirs, *leaks.values()):
        leak = sum(weight * leaks[name][seed] for name, weight in figure.leaked.items())
        made[seed] = figure.compare(mine[seed], theirs[seed], leak)
    return dict(sorted(made.items()))


def _find_variation(known: Known) -> Known | None:
    """Compute the coefficient of variation over seeds, in per cent, by the jackknife.

    Each seed has its pseudo-value, so that their mean and interval are those of the coefficient.
    """
    values = known.by_seed
    if len(values) < 3:
        return None
    whole, count = _vary(values.values()), len(values)
    made = {
        seed: count * whole - (count - 1) * _vary(v for other, v in values.items() if other != seed)
        for seed in values
    }
    return Known(made) if all(map(math.isfinite, made.values())) else None


def _vary(values: Iterable[float]) -> float:
    every = list(values)
    mean = statistics.fmean(every)
    return 100 * statistics.stdev(every) / abs(mean) if mean else math.nan


@dataclass(frozen=True)
class KnownRows:
    """All rows of measurements: the shipped ones, and the ones that were measured here."""

    by_digest: Mapping[str, Mapping[int, Measurement]]
    """Digest -> seed -> the row; tables that share a scenario share its rows."""
    by_file: Mapping[tuple[str, str, str], Sequence[Measurement]]
    """(paper, table, tier) -> the rows of its files."""


def read_known_rows() -> KnownRows:
    """Read all rows of all tables; one that was measured here comes before a shipped one."""
    by_digest: dict[str, dict[int, Measurement]] = {}
    by_file: dict[tuple[str, str, str], list[Measurement]] = {}
    folders = {folder.resolve(): folder for folder in (find_shipped_results(), OWN)}
    for folder in folders.values():
        for file in sorted(folder.glob("*/*.*.csv")):
            table, _, tier = file.stem.rpartition(".")
            rows = read(file)
            by_file.setdefault((file.parent.name, table, tier), []).extend(rows)
            for row in rows:
                by_digest.setdefault(row.digest, {})[row.seed] = row
    return KnownRows(by_digest, by_file)


def build_table(
    table: PaperTable,
    tier: Tier,
    known: KnownRows | None = None,
    seeds: Sequence[int] | None = None,
) -> EvidenceTable:
    """Put a table beside its measurements at a tier.

    `known` are all rows, by default read now; `seeds` are the ones that its cells should have.
    """
    return put_beside(table, tier, list_cells(table.claim, tier, table.folder, seeds), known)


def put_beside(
    table: PaperTable, tier: Tier, cells: Sequence[MeasuringCell], known: KnownRows | None = None
) -> EvidenceTable:
    """Put the cells of a table beside what is known of them; by default all rows are read now."""
    known = known or read_known_rows()
    digests = {
        (cell.setting, name): digest for cell in cells for name, digest in cell.digests.items()
    }
    fresh = [
        replace(row, setting=setting, figure=figure)
        for (setting, figure), digest in digests.items()
        for row in known.by_digest.get(digest, {}).values()
    ]
    kept = {row.key for row in fresh}
    own = known.by_file.get((table.paper, table.name, tier), ())
    stale = {row.key: row for row in own if row.key not in kept}
    return EvidenceTable(table, tier, cells, fresh, [*stale.values()])


def judge_table(table: PaperTable, known: KnownRows) -> tuple[ClaimVerdict, EvidenceTable | None]:
    """Judge a table by the fullest tier that is measured, else by its cheapest one."""
    if not table.tiers:
        return (ClaimVerdict.NO_CLAIM if table.claim.describes else ClaimVerdict.OUT_OF_REACH), None
    # a tier of which no table has rows cannot be measured, and its cells take long to load
    have_rows = {tier for _, _, tier in known.by_file}
    tiers = [tier for tier in table.tiers if tier in have_rows or tier == table.tiers[0]]
    built = [build_table(table, tier, known) for tier in tiers]
    measured = [each for each in built if each.fresh]
    chosen = (measured or built[:1])[-1]
    if table.claim.out_of_reach and not measured:
        return ClaimVerdict.OUT_OF_REACH, chosen
    return chosen.verdict if table.claim.holds else ClaimVerdict.NO_CLAIM, chosen


def _describe_judged(each: JudgedStatement) -> dict[str, Any]:
    judged = each.judged
    return {
        "that": str(judged.comparison),
        "in": each.statement.in_,
        "where": dict(each.where),
        "verdict": judged.verdict.value,
        "seeds": judged.seeds,
        "difference": judged.mean if math.isfinite(judged.mean) else None,
        "half_width": judged.half,
    }


def _describe_row(row: EvidenceRow) -> dict[str, Any]:
    return {
        **row.axes,
        "printed": dict(row.printed),
        "measured": {
            name: {"mean": known.mean, "half_width": known.half, "by_seed": dict(known.by_seed)}
            for name, known in row.known.items()
        },
        "stale": row.stale,
    }
