"""Writes into rows of results the code that they were measured with, by the commit that they name.

    python tools/row_code.py            # rows that have none
    python tools/row_code.py --all      # all rows: after a change of how code is digested
    python tools/row_code.py --unchecked     # rows that are stale count on, and are marked for it

With --unchecked, lines of results/equal.csv that no comparison has shown carry the code of rows
over to today's. `simsplit papers --stale` lists these rows until `tools/golden/against.py --record`
has shown it. It is for one occasion: when a digest comes to cover what it had left out.

A row with a `-dirty` commit gets the code of that commit, and keeps the mark until it is measured
again. One whose commit this checkout lacks gets the mark too, and the code of the newest commit
before its date. One whose scenario is no more gets none: it is stale.
"""

import argparse
import csv
import io
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path

from simsplit.boards.entries import build_board
from simsplit.boards.track import list_tracks, load_track
from simsplit.evidence import code_sources
from simsplit.evidence.cell_uses import CellUses, find_changed_parts
from simsplit.evidence.code_sources import read_commit
from simsplit.evidence.equal_code import (
    NAME,
    UNCHECKED,
    Carried,
    EqualCode,
    read_lines,
    write_lines,
)
from simsplit.evidence.evidence_tables import KnownRows
from simsplit.evidence.measurements import Measurement, read
from simsplit.evidence.measuring_cells import MeasuringCell, list_cells
from simsplit.evidence.papers import list_tables
from simsplit.evidence.row_code import digest_parts, read_code, write_code

RESULTS = Path(__file__).resolve().parents[1] / "results"
_FIRST: dict[str, str] = {}
"""Commit that this checkout lacks -> the date of a row of it: all its rows have one code."""
_COLUMNS = [field.name for field in fields(Measurement)]


def main() -> None:
    """Fill in the column of all files, and say how many rows have it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="write it anew where it is known too")
    parser.add_argument("--unchecked", action="store_true", help="carry rows over, marked")
    asked = parser.parse_args()
    uses = {digest: cell.uses for cell in _list_all_cells() for digest in cell.digests.values()}
    if asked.unchecked:
        _carry_unchecked(uses)
        return
    outcome: Counter[str] = Counter()
    for path in sorted(RESULTS.glob("*/*.*.csv")):
        rows = [*csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))]
        for row in rows:
            if asked.all or not row.get("code"):
                row["code"] = _find_code(row, uses.get(row["digest"]), outcome)
        out = io.StringIO()
        writer = csv.DictWriter(out, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(out.getvalue(), encoding="utf-8")
    sys.stdout.write("".join(f"{count:6} {what}\n" for what, count in sorted(outcome.items())))


def _list_all_cells() -> Iterator[MeasuringCell]:
    for table in list_tables():
        for tier in table.tiers:
            yield from list_cells(table.claim, tier, table.folder)
    for name in list_tracks():
        for tier in load_track(name).tiers:
            yield from build_board(name, tier, known=KnownRows({}, {})).table.cells


def _find_code(row: dict[str, str], uses: CellUses | None, outcome: Counter[str]) -> str:
    named, mark, _ = row["commit"].partition(code_sources.DIRTY)
    if uses is None:
        outcome["scenario is no more"] += 1
        return ""
    graph = read_commit(named)
    if graph is None:
        first = _FIRST.setdefault(named, row["date"])
        graph, mark = read_commit(_find_before(first)), code_sources.DIRTY
        row["commit"] = named + mark
    assert graph is not None
    outcome["with its code, but for changes that no commit has" if mark else "with its code"] += 1
    return write_code(digest_parts(uses.parts, graph))


@cache
def _find_before(date: str) -> str:
    words = ["git", "-C", str(RESULTS.parent), "rev-list", "-1", f"--before={date}", "HEAD"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def _carry_unchecked(uses: Mapping[str, CellUses]) -> None:
    """Write lines that carry the code of all rows to today's, but for what comparisons carry."""
    file, here = RESULTS / NAME, code_sources.find_commit()
    checked = [line for line in read_lines(file) if line.cases != UNCHECKED]
    carried, now = Carried(checked), code_sources.read_package()
    states: dict[str, dict[str, tuple[str, str]]] = {}
    for path in sorted(RESULTS.glob("*/*.*.csv")):
        for row in read(path):
            used = uses.get(row.digest)
            if row.code and used is not None and find_changed_parts(row, used, carried):
                code, today = read_code(row.code), digest_parts(used.parts, now)
                parts = states.setdefault(row.commit.removesuffix(code_sources.DIRTY), {})
                parts |= {name: (code.get(name, ""), today[name]) for name in today}
    lines = [EqualCode(commit, here, UNCHECKED, "", parts) for commit, parts in states.items()]
    write_lines(file, [*checked, *lines])
    sys.stdout.write(f"{len(lines)} lines that no comparison has shown\n")


if __name__ == "__main__":
    main()
