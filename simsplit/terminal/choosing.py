"""One part of what `simsplit list` shows: `simsplit list attacks tag`."""

from collections.abc import Sequence

from simsplit.errors import SimsplitError, near
from simsplit.report.tables import Table


def chosen(tables: Sequence[Table], what: str | None, part: str | None) -> Sequence[Table]:
    """The table of a part, or the rows of that name; all tables where no part is named."""
    if part is None:
        return tables
    titled = {kind: table for table in tables for kind in _kinds(table)}
    if part in titled:
        return [titled[part]]
    alike = [(table, [row for row in table.rows if row[0] == part]) for table in tables]
    if found := [Table(t.title, t.columns, rows, t.align) for t, rows in alike if rows]:
        return found
    known = [*titled] or [row[0] for table in tables for row in table.rows]
    hint = near(part, known) or ","
    raise SimsplitError(f"nothing called '{part}' under {what}{hint} allowed: {', '.join(known)}")


def _kinds(table: Table) -> list[str]:
    """Those that a table is of: its title begins with them, and says after a colon what it is."""
    kinds, colon, _ = table.title.partition(": ")
    return kinds.split(", ") if colon else []
