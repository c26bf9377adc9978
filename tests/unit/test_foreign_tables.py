"""Tables of others are read within bounds: pipes, devices, wide cells, and millions of rows."""

import os
import tracemalloc
from contextlib import contextmanager

import pandas as pd
import pytest
from gists import gist

from simsplit.errors import RunError
from simsplit.evidence import measurements
from simsplit.foreign import MOST_CELLS, MOST_COLUMNS, read_bytes, read_csv
from simsplit.results.read_tables import MOST_ROUNDS, read_rows, read_table
from simsplit.rows import RoundRow

ROUNDS = b"round,phase,steps,samples,bytes_up,bytes_down,bytes_total\n"
ROUND = b"1,main,1,1,1,1,1\n"
NAMES = (
    "setting,seed,figure,value,digest,code,version,commit,command,machine,threads,minutes,date\n"
)
ROW = "method=raw,{},accuracy,1.0,d,centre=1,1,c,simsplit run,m,1,1,2026-01-01\n"


@contextmanager
def take_at_most(nbytes):
    """Hold what the block allocates, beyond what is imported, below some bytes."""
    assert pd is not None, "imported before"
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < nbytes
    finally:
        tracemalloc.stop()


def make_pipe(file):
    os.mkfifo(file)


def make_link(file):
    file.symlink_to("/dev/zero")


def make_wide(file):
    file.write_text(NAMES + ROW.format(0).replace("raw", "r" * 135_000))


def make_long(file):
    with file.open("w") as opened:
        opened.write(NAMES)
        opened.writelines("x\n" for _ in range(measurements.MOST_ROWS + 1))


def make_large(file):
    with file.open("w") as opened:
        opened.truncate(2**40)


CASES = {
    make_pipe: "regular file",
    make_link: "regular file",
    make_wide: "line 2",
    make_long: "200,001",
    make_large: "1,099,511,627,776",
}


@pytest.mark.parametrize(
    ("make", "why"), CASES.items(), ids=lambda case: getattr(case, "__name__", "")
)
def test_rows_of_measurements_are_read_within_bounds(make, why, tmp_path):
    file = tmp_path / "table1.small.csv"
    make(file)
    with take_at_most(2**20), pytest.raises(RunError, match=gist(f"{file} ... {why}")):
        measurements.read(file)


def test_rows_of_measurements_come_back(tmp_path):
    file = tmp_path / "a" / "table1.small.csv"
    assert measurements.read(file) == []
    file.parent.mkdir()
    file.write_text(NAMES + "".join(ROW.format(seed) for seed in range(3)))
    assert [row.seed for row in measurements.read(file)] == [0, 1, 2]
    file.write_text(file.read_text().replace("\n", "\r\n"))
    assert [row.seed for row in measurements.read(file)] == [0, 1, 2]
    file.write_text(NAMES.replace("seed,", ""))
    with pytest.raises(RunError, match=gist(f"{file} ... seed, ... date")):
        measurements.read(file)


def test_papers_and_boards_name_the_file_that_they_cannot_read(simsplit, tmp_path):
    (tmp_path / "results" / "tiny").mkdir(parents=True)
    make_pipe(tmp_path / "results" / "tiny" / "table1.small.csv")
    for words in (("papers",), ("board", "backdoor", "--show")):
        code, _, err = simsplit(*words)
        assert (code, "results/tiny/table1.small.csv" in err) == (2, True)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (ROUNDS + ROUND * 3_000_000, "3,000,000 ... 1,000,000"),
        (ROUNDS + (ROUND * (MOST_ROUNDS + 1)).replace(b"\n", b"\r"), "1,000,001"),
        (ROUNDS.replace(b"\n", b",x" * MOST_COLUMNS * 2 + b"\n") + ROUND, "4,096"),
        (ROUNDS + b"," * MOST_COLUMNS * 3 + b"\n", "4,096"),
        (ROUNDS + (b"," * 2000 + b"\n") * (MOST_CELLS // 2000), "50,0"),
    ],
    ids=["rows", "rows by another end", "columns", "columns of a row", "cells"],
)
def test_a_table_of_a_run_has_bounds(content, why, tmp_path):
    file = tmp_path / "rounds.csv"
    file.write_bytes(content)
    copies = 2.1 if b"\r" in content else 1.1  # its text, and nothing made of it
    with take_at_most(copies * len(content) + 2**20):
        with pytest.raises(RunError, match=gist(f"{file} ... {why}")):
            read_table(file)
        assert read_rows(file, RoundRow) == []


def test_a_table_comes_back_without_its_torn_last_line(tmp_path):
    file = tmp_path / "rounds.csv"
    file.write_bytes(ROUNDS + ROUND * 3 + b"2,main")
    assert read_table(file)["round"].tolist() == [1, 1, 1]
    assert [row.round for row in read_rows(file, RoundRow)] == [1, 1, 1]
    file.write_bytes((ROUNDS + ROUND).replace(b"\n", b"\r\n"))
    assert read_table(file)["bytes_total"].tolist() == [1]
    assert [row.bytes_total for row in read_rows(file, RoundRow)] == [1]


def test_a_file_with_a_large_size_is_refused_unread(tmp_path):
    make_large(tmp_path / "a")
    with take_at_most(2**20), pytest.raises(ValueError, match="1,099,511,627,776"):
        read_bytes(tmp_path / "a", 2**30)
    (tmp_path / "b").write_bytes(b"a\nb")
    assert read_csv(tmp_path / "b", most=3) == b"a\nb"
