"""Tables of papers are written with digits that say something, and by the paper's names."""

import pytest

from simsplit.evidence.evidence_tables import Known, build_table
from simsplit.evidence.papers import find_table
from simsplit.evidence.presenting import (
    describe_shared,
    tabulate_printed,
    tabulate_rows,
    tabulate_statements,
    write_known,
    write_value,
)
from simsplit.evidence.statements import parse_statement
from simsplit.results.recovered_kinds import SILENT


@pytest.mark.parametrize(
    ("values", "decimals", "written"),
    [
        ((0.0657, 0.0657, 0.0657), 1, "0.0657"),  # no spread: as many digits as show it
        ((0.5, -2.0, 1.8), 2, "0.10 ± 4.80"),  # digits beyond the interval's say nothing
        ((52.0, 54.0, 53.0), 2, "53.00 ± 2.48"),  # the paper's decimals at least
        ((0.0101, 0.0102, 0.0103), 1, "0.0102 ± 0.0002"),
        ((3.25,), 1, "3.25"),
    ],
)
def test_digits_are_the_papers_or_what_the_interval_leaves(values, decimals, written):
    assert write_known(Known(dict(enumerate(values))), decimals) == written


def test_a_bound_is_what_the_second_side_is_without_rows():
    left, right = parse_statement("a - b >= -4.3 > c", ["a", "b", "c"], "holds")
    assert (left.bound, right.bound) == (-4.3, None)
    assert left.write(str.upper) == "A - B >= -4.3"


def test_a_table_is_written_by_the_papers_names_without_what_all_rows_share():
    built = build_table(find_table("lightsplit/table1"), "small")
    rows = tabulate_rows(built)
    assert rows.columns[0] == "method"
    assert [row[0] for row in rows.rows][:2] == ["Raw", "LightSplit-F 8x"]
    assert "payload values, here" not in rows.columns
    shared = describe_shared(built)
    assert all(word in shared for word in ("IID", "SCH", "L2H"))
    raw = dict(zip(rows.columns, rows.rows[0], strict=True))
    assert raw["share, here"] == ""  # of Raw against itself
    statements = tabulate_statements(built)
    assert {row[-1] for row in statements.rows} <= {"holds", "fails", "not settled", "not measured"}
    assert all("LightSplit-F" in " ".join(row) for row in statements.rows)


def test_what_the_paper_prints_has_no_columns_of_ours():
    columns = tabulate_printed(find_table("lightsplit/table1")).columns
    assert columns[-1] == "gigabytes"
    assert "in all" not in columns


def test_a_bare_number_has_its_axis_before_it():
    claim = find_table("lightsplit/table8").claim
    assert write_value(claim, "clients", "100") == "clients 100"
    assert write_value(claim, "method", "raw") == "Raw"


def test_a_silent_models_row_is_ours_alone():
    table = tabulate_rows(build_table(find_table("pidi/table2"), "small"))
    printed = [name for name in table.columns if name.endswith(", paper")]
    silent = [row for row in table.rows if SILENT in row]
    assert silent, "rows of the demo model ship"
    for row in silent:
        assert not any(row[table.columns.index(name)] for name in printed)
