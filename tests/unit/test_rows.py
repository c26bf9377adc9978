"""Rows of tables: fields in their order, further columns in theirs, and back from a file."""

import csv

import pytest

from simsplit.legs import Leg
from simsplit.results import ledger
from simsplit.results.ledger import Ledger, TableColumns
from simsplit.results.read_tables import read_rows, read_table
from simsplit.rows import ClientRow, RoundRow, TimingRow, WireRow


def test_further_columns_stand_where_the_field_stands_and_in_their_own_order():
    row = RoundRow(
        3, steps=2, train_loss=0.5, further={"test_b": 1.0, "test_a": None}, bytes_total=9
    )
    columns = ["round", "phase", "steps", "samples", "train_loss", "test_b", "test_a"]
    assert list(row) == [*columns, "bytes_up", "bytes_down", "bytes_total"]
    assert row["test_b"] == 1.0
    assert "staleness" not in row


def test_cells_that_are_no_fields_become_further():
    row = ClientRow.of({"round": 1, "client": 2, "leak": 0.5, "steps": 4, "score": 2.0})
    assert (row.client, row.steps) == (2, 4)
    assert row.further == {"leak": 0.5, "score": 2.0}


def test_a_row_is_equal_to_its_cells():
    row = TimingRow(1, 2.0, 3.0, 4.0)
    assert row == {"round": 1, "train_s": 2.0, "evaluate_s": 3.0, "elapsed_s": 4.0}
    assert row != TimingRow(1, 2.0, 3.0, 5.0)


WIRE = [
    WireRow(1, 0, "train", Leg.SMASHED, 2, 80),
    WireRow(1, 1, "train", Leg.HANDOVER, 0, 0, 1, 36, transfer_s=0.1 + 0.2),
]
ROUNDS = [
    RoundRow(1, steps=0, bytes_total=7),
    RoundRow(2, dropped=0, train_loss=1 / 3, further={"test_accuracy": 0.75, "note": "x"}),
]


@pytest.mark.parametrize("rows", [WIRE, ROUNDS], ids=["wire", "rounds"])
def test_rows_come_back_from_csv_and_from_pandas_with_their_types(rows, tmp_path):
    kind, table = type(rows[0]), tmp_path / "table.csv"
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with table.open("w") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    types = [[type(value) for value in row.values()] for row in rows]
    for back in (read_rows(table, kind), list(kind.in_frame(read_table(table)))):
        assert back == rows
        assert [[type(value) for value in row.values()] for row in back] == types


def test_a_table_of_an_older_version_lacks_columns():
    row = RoundRow.from_table({"round": "1", "train_loss": ""})
    assert (row.round, row.steps, row.train_loss) == (1, 0, None)


def test_the_headers_of_a_run_name_fields(tmp_path):
    """A header whose column no row has would leave the column empty without a word."""
    every = TableColumns((), methods=True, cohort=True, staleness=True, malicious=True, handed=True)
    columns = Ledger(tmp_path, every, None).writer.columns
    tables = {"rounds": RoundRow, "clients": ClientRow, "wire": WireRow, "timing": TimingRow}
    for table, kind in tables.items():
        assert set(columns[table]) <= set(kind.columns())
    assert set(ledger.TIME_COLUMNS) <= set(RoundRow.columns())
    assert set(ledger.CLIENT_TIME_COLUMNS) <= set(ClientRow.columns())
