"""Rows of measurements that no verdict counts, each with the reason: none is dropped in silence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simsplit.errors import format_count, format_list, suggest
from simsplit.evidence.cell_uses import UNKNOWN
from simsplit.evidence.claims import Claim, Tier
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.measuring_cells import MeasuringCell
from simsplit.evidence.row_code import FILES

_COUNTED = "another measurement of the same row and seed counts, with today's scenario and code"


@dataclass(frozen=True)
class RefusedRow:
    """A row that counts for nothing, and why."""

    row: Measurement
    reason: str


def refuse_rows(
    claim: Claim,
    tier: Tier,
    cells: Sequence[MeasuringCell],
    rows: Sequence[Measurement],
    *,
    counted: set[tuple[str, int, str]],
    changed: Mapping[Measurement, Sequence[str]],
) -> list[RefusedRow]:
    """Find the reason why each of these rows counts for nothing.

    `counted` are the keys of the rows that count; `changed` are the parts whose code has changed
    since a row was measured.
    """
    figures: dict[str, set[str]] = {}
    for cell in cells:
        figures.setdefault(cell.setting, set()).update(cell.digests)
    made = []
    for row in rows:
        if row.key in counted and row in changed:
            why = _COUNTED
        elif row in changed:
            why = f"stale, for {write_changed(changed[row])}"
        else:
            why = _explain(claim, tier, figures, row, is_counted=row.key in counted)
        made.append(RefusedRow(row, why))
    return made


def refuse_of_no_table(
    name: str, rows: Sequence[Measurement], known: Sequence[str]
) -> list[RefusedRow]:
    """Refuse all rows of a file of a table, or of a tier of it, that there is not."""
    hint = suggest(name, known)
    return [RefusedRow(row, f"there is no table {name} with a scenario{hint}") for row in rows]


def write_refused(refused: Sequence[RefusedRow]) -> Iterator[str]:
    """Write a line for each reason: how many rows it refuses, and the first of them."""
    by_reason: dict[str, list[Measurement]] = {}
    for each in refused:
        by_reason.setdefault(each.reason, []).append(each.row)
    for reason, rows in by_reason.items():
        first = f"{rows[0].setting or 'its one row'}; seed {rows[0].seed}; {rows[0].figure}"
        more = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
        count = format_count(len(rows), "measurement")
        yield f"{count} without effect: {reason} ({first}{more})"


def describe_refused(refused: Sequence[RefusedRow]) -> list[dict[str, object]]:
    """Describe refused rows as plain values."""
    names = ("setting", "seed", "figure")
    return [
        {**{name: getattr(each.row, name) for name in names}, "reason": each.reason}
        for each in refused
    ]


def _explain(
    claim: Claim,
    tier: Tier,
    figures: Mapping[str, set[str]],
    row: Measurement,
    *,
    is_counted: bool,
) -> str:
    if row.figure not in claim.figures:
        return f"the table has no figure '{row.figure}'{suggest(row.figure, claim.figures)}"
    if wrong := _find_wrong_axis(claim, row):
        return wrong
    if row.setting not in figures:
        return f"no scenario of tier {tier} measures this row"
    if row.figure not in figures[row.setting]:
        return f"no scenario of tier {tier} measures {row.figure} of this row"
    if is_counted:
        return _COUNTED
    return "stale, for its scenario, or how the figure is read of it, has changed since"


def write_changed(parts: Sequence[str]) -> str:
    """Write which parts of a row's cell have changed since it was measured."""
    if UNKNOWN in parts:
        return "the code that it was measured with is not known"
    words = [part.removeprefix(FILES) for part in parts]
    files = "the files of " if all(part.startswith(FILES) for part in parts) else ""
    return f"{files}{format_list(words, 6)} changed since"


def _find_wrong_axis(claim: Claim, row: Measurement) -> str:
    """Return in which axis a row fits no printed one; empty: in none."""
    if odd := sorted(set(row.axes) ^ set(claim.axes)):
        return f"its axes are not those of the table: {', '.join(odd)}"
    for axis, value in row.axes.items():
        if value not in (known := claim.values(axis)):
            return f"the table has no row with {axis}={value}{suggest(value, known)}"
    return ""
