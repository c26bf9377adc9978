"""A table of a paper beside its measurements: each printed row with ours, and the verdict."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from simsplit.evidence.cell_uses import find_changed_parts
from simsplit.evidence.claims import Claim, Statement, Tier
from simsplit.evidence.equal_code import Carried, read_carried
from simsplit.evidence.evidence_rows import (
    EvidenceRow,
    Known,
    add_silent,
    put_against_others,
)
from simsplit.evidence.judging_claims import (
    JudgedStatement,
    count_of,
    judge_claim,
    judge_sentence,
    list_beyond,
)
from simsplit.evidence.measurements import (
    OWN,
    Measurement,
    find_shipped_results,
    read,
    write_setting,
)
from simsplit.evidence.measuring_cells import MeasuringCell, list_cells
from simsplit.evidence.papers import PaperTable
from simsplit.evidence.refused_rows import (
    RefusedRow,
    describe_refused,
    refuse_of_no_table,
    refuse_rows,
)
from simsplit.evidence.verdicts import LOOKS, ClaimVerdict, VerdictCounts
from simsplit.scenario.shipped import BOARDS


@dataclass(frozen=True)
class EvidenceTable:
    """A table of a paper at one tier: printed rows beside ours, and verdicts."""

    table: PaperTable
    tier: Tier
    cells: Sequence[MeasuringCell]
    fresh: Sequence[Measurement]
    stale: Sequence[Measurement]
    """Measurements with scenarios that have changed since, or of rows that are no more."""
    superseded: Sequence[Measurement] = ()
    """Measurements with other scenarios or code beside one that counts, of one row and seed."""
    changed: Mapping[Measurement, tuple[str, ...]] = field(default_factory=dict)
    """Measurement with today's scenario -> the parts whose code, or files, have changed since."""
    unchecked: Collection[tuple[str, int, str]] = ()
    """Keys of rows that count, though no comparison shows that the code since moves no figure."""

    @property
    def claim(self) -> Claim:
        """The paper's claim, with its printed rows."""
        return self.table.claim

    @property
    def refused(self) -> Sequence[RefusedRow]:
        """All measurements that count for nothing, with the reasons."""
        counted = {row.key for row in self.fresh}
        every = [*self.stale, *self.superseded]
        return refuse_rows(
            self.claim, self.tier, self.cells, every, counted=counted, changed=self.changed
        )

    @cached_property
    def rows(self) -> Sequence[EvidenceRow]:
        """All printed rows, in the paper's order."""
        known: dict[str, dict[str, dict[int, float]]] = {}
        for row in self.fresh:
            known.setdefault(row.setting, {}).setdefault(row.figure, {})[row.seed] = row.value
        reached: defaultdict[str, set[str]] = defaultdict(set)
        for cell in self.cells:
            reached[cell.setting].update(cell.digests)
        made = []
        for axes, printed in self.claim.rows:
            setting = write_setting(axes)
            of_row = known.get(setting, {})
            figures = {name: Known(of_row[name]) for name in self.claim.figures if name in of_row}
            old = sum(1 for row in self.stale if row.setting == setting)
            made.append(EvidenceRow(axes, printed, figures, old, frozenset(reached[setting])))
        made += add_silent(made, self.claim)
        return [put_against_others(row, made, self.claim) for row in made]

    @cached_property
    def judgements(self) -> Sequence[JudgedStatement]:
        """All comparisons that the tier can make, judged."""
        return judge_claim(self.claim, self.tier, self.rows, self.planned)

    @property
    def planned(self) -> int:
        """The fewest seeds that a scenario of the tier plans."""
        return min((cell.planned for cell in self.cells), default=LOOKS[0])

    @property
    def verdict(self) -> ClaimVerdict:
        """The verdict on what the table's sentence says and is within reach."""
        return judge_sentence(self.claim, self.judgements)

    @property
    def beyond(self) -> Sequence[Statement]:
        """The statements of the sentence of a kind that the tier does not measure at all."""
        return list_beyond(self.claim, self.judgements)

    @property
    def counts(self) -> VerdictCounts:
        """How many comparisons of the sentence hold, fail and are open."""
        counts = count_of(self.judgements, ours=False)
        return replace(counts, beyond_tier=len(self.beyond))

    @property
    def counts_ours(self) -> VerdictCounts:
        """How many comparisons that go beyond the sentence hold, fail and are open."""
        return count_of(self.judgements, ours=True)

    @property
    def seeds(self) -> int:
        """The fewest seeds that a measured row has; 0 where nothing is measured."""
        return min((row.seeds for row in self.rows if row.seeds), default=0)

    @property
    def lacking(self) -> Sequence[MeasuringCell]:
        """The cells of which a figure is missing or stale."""
        return self.list_lacking(self.cells)

    def list_lacking(self, cells: Iterable[MeasuringCell]) -> list[MeasuringCell]:
        """List those of some cells of which a figure is missing or stale."""
        known = {row.key for row in self.fresh}
        return [
            cell for cell in cells if any((*cell.key, name) not in known for name in cell.digests)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: rows, statements and verdict."""
        return {
            "table": self.table.full_name,
            "title": self.claim.title,
            "says": self.claim.says,
            "tier": self.tier,
            "verdict": self.verdict.value,
            "counts": asdict(self.counts),
            "counts_ours": asdict(self.counts_ours),
            "seeds": self.seeds,
            "stale": len(self.stale),
            "refused": describe_refused(self.refused),
            "missing": len(self.lacking),
            "statements": [each.to_dict() for each in self.judgements],
            "rows": [row.to_dict() for row in self.rows],
        }


@dataclass(frozen=True)
class KnownRows:
    """All rows of measurements: the shipped ones, and the ones that were measured here."""

    by_digest: Mapping[str, Mapping[int, Sequence[Measurement]]]
    """Digest -> seed -> its rows, those that come first last; tables that share a scenario share
    its rows."""
    by_file: Mapping[tuple[str, str, str], Sequence[Measurement]]
    """(paper, table, tier) -> the rows of its files."""
    carried: Carried = field(default_factory=Carried)
    """What carries rows over from one commit's code to another's."""


def read_known_rows() -> KnownRows:
    """Read all rows of all tables; one that was measured here comes before a shipped one."""
    by_digest: dict[str, dict[int, list[Measurement]]] = {}
    by_file: dict[tuple[str, str, str], list[Measurement]] = {}
    folders = {folder.resolve(): folder for folder in (find_shipped_results(), OWN)}
    for folder in folders.values():
        for file in sorted(folder.glob("*/*.*.csv")):
            table, _, tier = file.stem.rpartition(".")
            rows = read(file)
            by_file.setdefault((file.parent.name, table, tier), []).extend(rows)
            for row in rows:
                by_digest.setdefault(row.digest, {}).setdefault(row.seed, []).append(row)
    return KnownRows(by_digest, by_file, read_carried(folders.values()))


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
    uses = {
        (cell.setting, name): (digest, cell.uses)
        for cell in cells
        for name, digest in cell.digests.items()
    }
    fresh: list[Measurement] = []
    changed: dict[Measurement, tuple[str, ...]] = {}
    unchecked = set()
    for (setting, figure), (digest, used) in uses.items():
        for rows in known.by_digest.get(digest, {}).values():
            current = []
            for row in rows:
                if parts := find_changed_parts(row, used, known.carried):
                    changed[row] = parts
                else:
                    current.append(row)
            if current:
                fresh.append(replace(current[-1], setting=setting, figure=figure))
                if find_changed_parts(current[-1], used, known.carried.checked):
                    unchecked.add(fresh[-1].key)
    kept = {row.key for row in fresh}
    own = known.by_file.get((table.paper, table.name, tier), ())
    stale = {row.key: row for row in own if row.key not in kept}
    known_digests = {digest for digest, _ in uses.values()}
    superseded = [
        row
        for row in own
        if row.key in kept and (row.digest not in known_digests or row in changed)
    ]
    return EvidenceTable(
        table,
        tier,
        cells,
        fresh,
        stale=[*stale.values()],
        superseded=superseded,
        changed=changed,
        unchecked=unchecked,
    )


def find_refused(
    known: KnownRows, tables: Sequence[PaperTable], paper: str | None = None
) -> Mapping[str, Sequence[RefusedRow]]:
    """Find all rows of papers' files that count for nothing, by table and tier."""
    by_file = {(table.paper, table.name, tier): table for table in tables for tier in table.tiers}
    names = [f"{table.full_name}.{tier}" for table in tables for tier in table.tiers]
    refused: dict[str, Sequence[RefusedRow]] = {}
    for (folder, name, tier), rows in known.by_file.items():
        if folder == BOARDS or paper not in (None, folder):  # a board's files are no paper's
            continue
        full = f"{folder}/{name}.{tier}"
        if full not in names:
            refused[full] = refuse_of_no_table(full, rows, names)
    for (folder, name, tier), table in by_file.items():
        if (folder, name, tier) in known.by_file and paper in (None, folder):
            refused[f"{folder}/{name}.{tier}"] = build_table(table, tier, known).refused
    return {name: rows for name, rows in refused.items() if rows}


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
