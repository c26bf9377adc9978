"""Rows outlive a refactor: `equal.csv` says which commits give equal results to the bit.

A line (from, to, cases, machine, parts) is written by `tools/golden/against.py --record`, which has
run the cases with the code of both commits. `parts` has the digests of the parts that equal cases
use, before and after. A row is carried from the code that it was measured with to today's by any
chain of lines that begin where all of its parts are as they were.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from simsplit.errors import RunError
from simsplit.evidence.code_graph import READING
from simsplit.evidence.row_code import FILES, Code
from simsplit.foreign import read_csv, split_rows
from simsplit.results.directory import replace

UNCHECKED = "unchecked"
"""In place of cases: rows count on, though no comparison has shown yet that nothing moved."""
NAME = "equal.csv"
"""The file's name, in a folder of results."""
_COLUMNS = ("from", "to", "cases", "machine", "parts")
_MOST_BYTES, _MOST_LINES = 2**24, 10_000
_BECAME = ">"


@dataclass(frozen=True)
class EqualCode:
    """Two commits between which some cases are equal to the bit."""

    before: str
    """The older commit."""
    now: str
    """The newer one."""
    cases: str
    """The cases of tools/golden that were compared and are equal."""
    machine: str
    parts: Mapping[str, tuple[str, str]]
    """Part -> its digest at both commits; empty where a commit lacks it."""

    def carry(self, code: Code) -> Code | None:
        """Carry a code over; None where the line says nothing of a part, or of such code."""
        if any(self._find(name, digest)[0] != digest for name, digest in code.items()):
            return None
        return {name: self._find(name, digest)[1] for name, digest in code.items()}

    def _find(self, name: str, digest: str) -> tuple[str, str]:
        """Return a part's digests at both commits; an older line says nothing of READING."""
        return self.parts.get(name, (digest, digest) if name == READING else ("?", ""))


@dataclass(frozen=True)
class Carried:
    """The lines by which rows are carried over."""

    lines: Sequence[EqualCode] = ()
    _known: dict[tuple[tuple[str, str], ...], tuple[str, ...]] = field(
        default_factory=dict, init=False, compare=False
    )

    @cached_property
    def checked(self) -> "Carried":
        """The lines that a comparison has shown."""
        return Carried([line for line in self.lines if line.cases != UNCHECKED])

    def find_changed(self, code: Code, now: Code) -> tuple[str, ...]:
        """Return the parts that have changed since a row was measured; none: it is as of today.

        Files are compared where both are known; no line carries them over.
        """
        names = [name for name in now if name.startswith(FILES) and name in code]
        files = tuple(name for name in names if now[name] != code[name])
        wanted = {name: digest for name, digest in now.items() if not name.startswith(FILES)}
        mine = {name: code.get(name, "") for name in wanted}
        key = (*mine.items(), *wanted.items())
        if key not in self._known:
            self._known[key] = self._search(mine, wanted)
        return (*self._known[key], *files)

    def _search(self, code: Code, wanted: Code) -> tuple[str, ...]:
        """Walk from code to code; return what is changed in the one that comes nearest."""
        seen, waiting, nearest = [code], [code], tuple(wanted)
        while waiting:
            here = waiting.pop()
            changed = tuple(name for name in wanted if here[name] != wanted[name])
            nearest = min(nearest, changed, key=len)
            for line in self.lines:
                there = line.carry(here)
                if there is not None and there not in seen:
                    seen.append(there)
                    waiting.append(there)
        return nearest


def read_carried(folders: Iterable[Path]) -> Carried:
    """Read the lines of all folders of results."""
    return Carried([line for folder in folders for line in read_lines(folder / NAME)])


def read_lines(path: Path) -> list[EqualCode]:
    """Read a file of lines, if there is one; raise RunError, by its line, for what is none."""
    try:
        rows = [*split_rows(read_csv(path, most=_MOST_BYTES, most_rows=_MOST_LINES))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from None
    made = []
    for number, row in enumerate(rows, 2):
        try:
            made.append(_read_line(row))
        except (ValueError, KeyError, AttributeError) as error:
            raise RunError(f"{path}, line {number}: no line of equal code ({error})") from None
    return made


def _read_line(row: Mapping[str, str | None]) -> EqualCode:
    words = {name: str(row[name] or "") for name in _COLUMNS}
    parts = {}
    for word in words["parts"].split():
        name, equals, digests = word.partition("=")
        before, became, now = digests.partition(_BECAME)
        if not equals:
            raise ValueError(f"parts: '{word}' has no digest")
        parts[name] = before, now if became else before
    return EqualCode(words["from"], words["to"], words["cases"], words["machine"], parts)


def add_line(path: Path, line: EqualCode) -> None:
    """Add a line to a file, in place of one of the same commits and cases."""
    known = read_lines(path)
    mine = (line.before, line.now, line.cases)
    kept = [each for each in known if (each.before, each.now, each.cases) != mine]
    write_lines(path, [*kept, line])


def write_lines(path: Path, lines: Iterable[EqualCode]) -> None:
    """Write a file of lines anew."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for each in lines:
        parts = " ".join(
            f"{name}={before}" + (f"{_BECAME}{now}" if now != before else "")
            for name, (before, now) in sorted(each.parts.items())
        )
        writer.writerow([each.before, each.now, each.cases, each.machine, parts])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, out.getvalue().encode())
