"""Which rows are stale, why, and what measuring them again costs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from simsplit.errors import format_list
from simsplit.evidence.code_graph import MissingCodeError
from simsplit.evidence.code_sources import DIRTY, read_commit, read_package
from simsplit.evidence.evidence_tables import EvidenceTable
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.row_code import FILES
from simsplit.evidence.selecting import estimate, write_minutes
from simsplit.report.tables import Table

_OF_DIRTY = "counts, but was measured with changes that no commit has"
_OF_UNCHECKED = "counts, but no comparison covers what has changed in its code since"
_MOST = 4
"""Names of changed definitions that are listed, at most."""


@dataclass(frozen=True)
class StaleRows:
    """Rows of one table that are stale for one reason."""

    table: str
    """Its name and tier."""
    why: str
    rows: Sequence[Measurement]
    minutes: float
    """What measuring their cells again takes, one after the other."""
    changed: Sequence[str] = ()
    """Definitions that have changed since the newest of them was measured, with their modules."""
    counts: bool = False
    """Whether they count all the same: nothing that is known has changed."""

    def to_dict(self) -> dict[str, object]:
        """Return which rows are stale, why, and the price, as `--json` prints it."""
        return {
            "table": self.table,
            "why": self.why,
            "rows": len(self.rows),
            "minutes": self.minutes,
            "changed": list(self.changed),
            "counts": self.counts,
            "commits": sorted({row.commit for row in self.rows}),
        }


def find_stale(built: EvidenceTable) -> Iterator[StaleRows]:
    """Find the stale rows of a table by the reason, with the definitions that have changed."""
    minutes, counted = estimate(built), set[str]()
    reasons = {each.row.key: each.reason for each in built.refused}
    by_reason: dict[str, list[Measurement]] = {}
    for row in built.stale:
        by_reason.setdefault(reasons[row.key], []).append(row)
    for why, rows in by_reason.items():
        keys = {(row.setting, row.seed) for row in rows}
        cells = {cell.name for cell in built.lacking if cell.key in keys} - counted
        counted |= cells
        yield StaleRows(
            f"{built.table.full_name}.{built.tier}",
            why,
            rows,
            sum(minutes[name] for name in cells),
            _list_changed(built, max(rows, key=lambda row: row.date)),
        )


def find_unsure(built: EvidenceTable) -> Iterator[StaleRows]:
    """Find the rows that count though nothing shows that they would be measured again as they are.

    They were measured with changes that no commit has, or no comparison covers the code since.
    """
    minutes = estimate(built)
    dirty = [row for row in built.fresh if row.commit.endswith(DIRTY)]
    unchecked = [row for row in built.fresh if row.key in built.unchecked and row not in dirty]
    for rows, why in ((dirty, _OF_DIRTY), (unchecked, _OF_UNCHECKED)):
        keys = {(row.setting, row.seed) for row in rows}
        takes = sum(minutes[cell.name] for cell in built.cells if cell.key in keys)
        if rows:
            name = f"{built.table.full_name}.{built.tier}"
            yield StaleRows(name, why, rows, takes, counts=True)


def _list_changed(built: EvidenceTable, row: Measurement) -> Sequence[str]:
    """List what has changed since the newest row of a reason was measured."""
    parts = [name for name in built.changed.get(row, ()) if not name.startswith(FILES)]
    commit = row.commit.removesuffix(DIRTY)
    return [name for part in parts for name in list_changed_definitions(commit, part)]


@cache
def list_changed_definitions(commit: str, part: str) -> Sequence[str]:
    """List the definitions of a part that have changed since a commit, or are new."""
    if (before := read_commit(commit)) is None:
        return []
    try:
        known = {(name, before.digest(module, name)) for module, name in before.reach(part)}
        now = read_package()
        return [
            f"{module}.{name}".strip(".")
            for module, name in sorted(now.reach(part))
            if (name, now.digest(module, name)) not in known
        ]
    except MissingCodeError:
        return []


def tabulate_stale(found: Sequence[StaleRows]) -> Table:
    """Tabulate stale rows: which, why, what has changed, and what measuring them again costs."""
    rows = [
        (
            each.table,
            str(len(each.rows)),
            each.why,
            format_list(each.changed, _MOST) if each.changed else "",
            write_minutes(each.minutes),
        )
        for each in found
    ]
    return Table("", ("table", "rows", "why", "changed", "time"), rows, "lrllr")
