"""Lines of results/equal.csv: between which commits which parts of the code give equal results.

A part is carried over if a case that is equal to the bit uses it, and no case that differs is to be
blamed on it. A column that is merely added moves nothing. What no case uses at all, such as a
source of data, is carried while its own code is the same.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simsplit import load_scenario
from simsplit.boards.entries import build_board
from simsplit.boards.track import list_tracks, load_track
from simsplit.evidence.code_graph import AREAS, CENTRE, READING, CodeGraph
from simsplit.evidence.code_sources import find_checkout, find_commit, read_commit, read_package
from simsplit.evidence.digests import dump_fields
from simsplit.evidence.equal_code import NAME, EqualCode, add_line
from simsplit.evidence.evidence_tables import (
    EvidenceTable,
    KnownRows,
    build_table,
    read_known_rows,
)
from simsplit.evidence.papers import list_tables
from simsplit.evidence.row_code import Code, digest_parts, list_parts

Parts = Collection[str]
_SHARED = {CENTRE, READING, *AREAS.values()}
_ADDITION = re.compile(r"[^:]*: (added|\d+ columns added: [^;]*)")
_OLDER = "failed: older:"
_ACTING = ("attacks", "methods", "detectors", "poisons")
_UNDOING, _READERS, _AVERAGES = "efb5f6b17680", "6d7dcfbc048d", "3754baf359d3"
_COIN = "the coin's share of members at few false alarms, which no table reads"
_UNDONE = "a first round that is undone, after which moments of its steps were left"
_BROADCAST = "clients at their own pace that begin before they have an average"
EXPLAINED = {
    "tamper-rollback": (_UNDOING, _UNDONE),
    "tamper-rollback-v2": (_UNDOING, _UNDONE),
    "shipped-poisons": (_READERS, "FoolsGold of clients of which all are unlike each other"),
    "shipped-everything": (_READERS, "public samples that are encoded behind fresh noise"),
    "asynchronous-lockstep-averaged": (_AVERAGES, _BROADCAST),
    "dropout-asynchronous-averaged-vanilla": (_AVERAGES, _BROADCAST),
    "members": (_READERS, _COIN),
    "private-audited": (_READERS, _COIN),
}
"""Case -> the commit that mended a fault, and what alone moved in the case by that.

Against an older commit no part is blamed for it: no row has it, or those that had it were measured
again.
"""


class NothingEqualError(Exception):
    """No line can be written, and why."""


def list_case_parts(job: Mapping[str, Any]) -> Parts:
    """List the parts that a case uses: its run, what resumes it, and an attack on it."""
    files = [file for file in (job["file"], job["then"]) if file]
    parts = {part for file in files for part in _list_file(file)}
    return parts | ({f"attacks.{job['attack'][0]}", "attacking"} if job["attack"] else set())


def _list_file(file: str) -> Iterator[str]:
    yield from list_parts(dump_fields(load_scenario(file)), read_package())


def record(
    older: Mapping[str, Any],
    newer: Mapping[str, Any],
    results: Mapping[str, Sequence[str]],
    parts: Mapping[str, Parts],
) -> EqualCode:
    """Write a line of equal code, of outcomes that are compared.

    `parts` are those of all cases, compared or not.

    Raises:
        NothingEqualError: where no line can be written, and why.
    """
    if older["made_with"] != newer["made_with"]:
        raise NothingEqualError("the two were run with other versions, or on another processor")
    before, now = older.get("commit") or "", find_commit()
    old_code, here = read_commit(before), find_checkout()
    if old_code is None or here is None or not now:
        raise NothingEqualError(f"'{before}' and '{now}' are not both commits of this checkout")
    codes = [digest_parts(_list_all(graph), graph) for graph in (old_code, read_package())]
    explained = [case for case, (mended, _) in EXPLAINED.items() if not _has(here, before, mended)]
    carried = find_carried(results, parts, codes[0], codes[1], explained)
    if CENTRE not in carried:
        raise NothingEqualError("cases differ by code that all runs share: nothing is carried over")
    line = EqualCode(before, now, write_cases(results, parts), _describe(newer), carried)
    add_line(here / "results" / NAME, line)
    return line


def _has(checkout: Path, commit: str, earlier: str) -> bool:
    """Return whether a commit comes after an earlier one, or is it."""
    asked = ["git", "-C", str(checkout), "merge-base", "--is-ancestor", earlier, commit]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def find_carried(
    results: Mapping[str, Sequence[str]],
    parts: Mapping[str, Parts],
    before: Code,
    now: Code,
    explained: Collection[str] = (),
) -> Mapping[str, tuple[str, str]]:
    """Return the parts whose rows are carried over, with their digests in both codes.

    A case that differs is blamed on the parts that no equal case uses; if there are none, on those
    of its parts that have changed; if there are none either, on all of them, the centre included.
    One whose difference is `explained` counts as equal.
    """
    moved_by_case = {
        case: [] if case in explained else list_moved(found) for case, found in results.items()
    }
    used = {part for case, found in moved_by_case.items() if not found for part in parts[case]}
    blamed: set[str] = set()
    for case, found in moved_by_case.items():
        if found and not found[0].startswith(_OLDER):
            own = set(parts[case])
            moved = {part for part in own - _SHARED if before.get(part) != now.get(part)}
            blamed |= own - used or moved or own
    if CENTRE in blamed:  # all runs share it
        return {}
    anywhere = {part for each in parts.values() for part in each}
    same = {part for part in now if part not in anywhere and before.get(part) == now[part]}
    names = sorted(((used & now.keys()) | same) - blamed)
    return {name: (before.get(name, ""), now[name]) for name in names}


def list_moved(found: Sequence[str]) -> list[str]:
    """List the differences by which something that was there has moved: nothing is merely added."""
    return [line for line in found if not _ADDITION.fullmatch(line)]


def write_cases(results: Mapping[str, Sequence[str]], parts: Mapping[str, Parts]) -> str:
    """Write which cases are equal: all of them, all but a few, or these."""
    equal = [case for case in parts if case in results and not list_moved(results[case])]
    others = [case for case in parts if case not in equal]
    if len(others) < len(equal):
        return f"all but {' '.join(others)}" if others else "all"
    return " ".join(equal)


def _list_all(graph: CodeGraph) -> list[str]:
    return [*_SHARED, *(".".join(part) for part in graph.parts)]


def _describe(outcomes: Mapping[str, Any]) -> str:
    made = outcomes["made_with"]
    versions = ", ".join(f"{name} {made[name]}" for name in ("torch", "numpy", "python"))
    return f"{made['processor']}, {versions}"


@dataclass(frozen=True)
class StaleCommit:
    """A commit that stale rows name, whose code no line carries over."""

    commit: str
    rows: int
    parts: frozenset[str]
    """The parts that these rows use."""

    def list_uncovered(self, parts: Mapping[str, Parts]) -> list[str]:
        """List the parts of the rows that no case uses, and that have changed since."""
        anywhere = {part for each in parts.values() for part in each}
        old, here = read_commit(self.commit), read_package()
        lacking = sorted(self.parts - anywhere)
        if old is None:
            return lacking
        before, now = digest_parts(lacking, old), digest_parts(lacking, here)
        return [part for part in lacking if before.get(part) != now.get(part)]


def list_stale() -> list[StaleCommit]:
    """List the commits of rows that no comparison carries over, the most rows first."""
    rows: Counter[str] = Counter()
    parts: dict[str, set[str]] = {}
    known = read_known_rows()
    for built in _build_all(replace(known, carried=known.carried.checked)):
        uses = {digest: cell.uses.parts for cell in built.cells for digest in cell.digests.values()}
        for row in {*built.stale} & built.changed.keys():
            commit = row.commit.removesuffix("-dirty")
            if row.code:
                rows[commit] += 1
                parts.setdefault(commit, set()).update(uses[row.digest])
    return [StaleCommit(name, count, frozenset(parts[name])) for name, count in rows.most_common()]


def _build_all(known: KnownRows) -> Iterator[EvidenceTable]:
    for table in list_tables():
        for tier in table.tiers:
            if (table.paper, table.name, tier) in known.by_file:
                yield build_table(table, tier, known)
    for name in list_tracks():
        for tier in load_track(name).tiers:
            yield build_board(name, tier, known=known).table


def choose_cases(stale: StaleCommit, parts: Mapping[str, Parts]) -> list[str]:
    """Choose the cases that show whether stale rows would be measured again as they are.

    They are all that use an attack, a method, a detector or a poison of the rows, and few more that
    use the rest.
    """
    acting = {part for part in stale.parts if part.partition(".")[0] in _ACTING}
    chosen = [name for name, each in parts.items() if acting & set(each)]
    needed = set(stale.parts).difference(*(parts[name] for name in chosen))
    while needed:
        best = max(parts, key=lambda name: (len(needed & set(parts[name])), -len(parts[name])))
        if not needed & set(parts[best]):
            break
        chosen.append(best)
        needed -= set(parts[best])
    return chosen
