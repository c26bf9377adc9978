"""What two outcomes of a case differ in, in words."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]

MOVED = frozenset({"recovered", "labels", "sessions"})
"""Tables of one kind of leak each; their figures have stood in `leaks` since."""
_TARGETS = ("target", "image", "text", "row", "session")
_KEYS = frozenset({"round", "attack", *_TARGETS, "view", "side", "adapter", "figure"})
_FIGURES = ("label", "value", "low", "high", "samples", "known")
FEW = 4
"""How many names of columns, tensors or files are listed before the rest is counted."""


def differences(older: Found, newer: Found) -> list[str]:
    """Return a line for each table, checkpoint or file that differs; none where all is equal."""
    failed = [
        f"{which} {each['failed']}" for which, each in _both(older, newer) if "failed" in each
    ]
    if failed:
        return [f"failed: {'; '.join(failed)}"]
    tables = _leave_out_moved(older["tables"], newer["tables"])
    return [
        *_of_parts(tables, newer["tables"], "table", _tables),
        *_of_parts(older["tensors"], newer["tensors"], "tensors of", _tensors),
        *_of_parts(older["texts"], newer["texts"], "file", _texts),
    ]


def _leave_out_moved(older: Found, newer: Found) -> Found:
    """Leave out tables of one kind of leak whose figures all stand in the newer `leaks`."""
    return {
        name: table
        for name, table in older.items()
        if name in newer
        or (leaks := newer.get(f"{name.rpartition('/')[0]}/leaks".lstrip("/"))) is None
        or name.rpartition("/")[2] not in MOVED
        or not _is_moved(table["columns"], leaks["columns"])
    }


def _is_moved(older: Mapping[str, Sequence[str]], leaks: Mapping[str, Sequence[str]]) -> bool:
    """Tell whether each figure of an attack in a round stands in `leaks`, to the letter."""
    known: dict[tuple[str, ...], set[str]] = {}
    for cells in _rows(leaks):
        known.setdefault(_place(cells), set()).update(cells[name] for name in _FIGURES)
    return all(
        value in known.get(_place(cells), ())
        for cells in _rows(older)
        for name, value in cells.items()
        if value and name not in _KEYS
    )


def _place(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Return where a figure was read, by the names that the columns have, or had."""
    target = next((cells[name] for name in _TARGETS if name in cells), "")
    return cells["round"], cells["attack"], target, cells.get("view", cells.get("side", ""))


def _rows(columns: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _both(older: Found, newer: Found) -> tuple[tuple[str, Found], tuple[str, Found]]:
    return ("older:", older), ("newer:", newer)


def _of_parts(older: Found, newer: Found, what: str, compare: Any) -> Iterator[str]:
    for name in [*older, *(name for name in newer if name not in older)]:
        if name not in newer:
            yield f"{what} {name}: missing"
        elif name not in older:
            yield f"{what} {name}: added"
        elif older[name] != newer[name]:
            yield f"{what} {name}: {compare(older[name], newer[name])}"


def _tables(older: Found, newer: Found) -> str:
    ours, theirs = older["columns"], newer["columns"]
    changes = _list_missing_and_added("columns", ours, theirs)
    if older["rows"] != newer["rows"]:
        changes.append(f"{older['rows']} rows became {newer['rows']}")
    shared = [name for name in ours if name in theirs]
    if not changes and list(ours) != list(theirs):
        changes.append("columns in another order")
    changed = [_column(name, ours[name], theirs[name]) for name in shared]
    changes += _some([each for each in changed if each])
    return "; ".join(changes) or "other bytes, equal values"


def _column(name: str, older: Sequence[str], newer: Sequence[str]) -> str:
    """Count how many rows of a column differ; name the first, and for numbers by how much."""
    pairs = list(zip(older, newer, strict=False))
    apart = [(row, *pair) for row, pair in enumerate(pairs) if pair[0] != pair[1]]
    if not apart:
        return ""
    row, before, now = apart[0]
    sizes = [_relative(*each[1:]) for each in apart]
    much = "" if None in sizes else f", by at most {max(sizes):.1g} of its size"
    return f"{name} in {len(apart)} of {len(pairs)} rows{much} (row {row}: {before} -> {now})"


def _relative(older: str, newer: str) -> float | None:
    """Compute the relative difference; None unless both are numbers."""
    try:
        one, other = float(older), float(newer)
    except ValueError:
        return None
    return abs(one - other) / max(abs(one), abs(other), math.ulp(0.0))


def _tensors(older: Mapping[str, str], newer: Mapping[str, str]) -> str:
    gone = {name: facts for name, facts in older.items() if name not in newer}
    new = {name: facts for name, facts in newer.items() if name not in older}
    changed = [name for name in older if name in newer and older[name] != newer[name]]
    changes = _list_missing_and_added("tensors", older, newer)
    moved = sum((Counter(gone.values()) & Counter(new.values())).values())
    if moved:
        changes.append(f"{moved} of those missing are among the added, to the bit")
    shapes = [name for name in changed if _laid_out(older[name]) != _laid_out(newer[name])]
    words = [
        f"{name} ({_laid_out(older[name])} -> {_laid_out(newer[name])})" if name in shapes else name
        for name in changed
    ]
    if words:
        changes.append(f"{len(words)} of {len(older)} differ: {', '.join(_some(words))}")
    return "; ".join(changes)


def _laid_out(description: str) -> str:
    """Return a tensor's description without its values."""
    return description.split(" ")[0]


def _texts(older: Sequence[str], newer: Sequence[str]) -> str:
    if len(older) != len(newer):
        return f"{len(older)} lines became {len(newer)}"
    apart = [row for row, pair in enumerate(zip(older, newer, strict=True)) if pair[0] != pair[1]]
    row = apart[0]
    return f"{len(apart)} of {len(older)} lines (line {row}: {older[row]} -> {newer[row]})"


def _list_missing_and_added(what: str, older: Found, newer: Found) -> list[str]:
    apart = {
        "missing": [name for name in older if name not in newer],
        "added": [name for name in newer if name not in older],
    }
    return [
        f"{len(names)} {what} {how}: {', '.join(_some(names))}"
        for how, names in apart.items()
        if names
    ]


def _some(words: Sequence[str]) -> list[str]:
    """Return the first few, and how many more there are."""
    more = [f"and {len(words) - FEW} more"] if len(words) > FEW else []
    return [*words[:FEW], *more]
