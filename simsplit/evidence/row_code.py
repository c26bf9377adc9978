"""The code of a row: the digests of each part that its cell uses, of the centre, of how the row
reads figures, and of its files.

A row has it in words, `centre=3350554a attacks.sdar=286c92e6 ...`, so that it says by itself which
part has changed. A name that begins with `files.` is that of data or of a model in a folder.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from simsplit.evidence.code_graph import (
    AREAS,
    CENTRE,
    READING,
    ROOMS,
    TOPOLOGIES,
    CodeGraph,
    MissingCodeError,
)

Code = Mapping[str, str]
"""Part -> its digest."""
FILES = "files."
"""What names of data and models begin with."""


def list_parts(values: Mapping[str, Any], graph: CodeGraph) -> tuple[str, ...]:
    """List the parts of a scenario's plain values, and the areas, with what all rows have."""
    names = [CENTRE, READING, *(area for field, area in AREAS.items() if values.get(field))]
    for field, value in values.items():
        if field == "topology":
            names.append(f"{TOPOLOGIES}.{value}")
        for kind in _list_kinds(value):
            # a kind is a part of the field's own room, else of any
            own = ROOMS.get(field, "")
            rooms = [own] if (own, kind) in graph.parts else {*ROOMS.values()}
            names += [f"{room}.{kind}" for room in rooms if (room, kind) in graph.parts]
    return tuple(sorted({*names}))


def _list_kinds(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(kind := value.get("kind"), str):
            yield kind
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from _list_kinds(each)


def digest_parts(names: Iterable[str], graph: CodeGraph) -> Code:
    """Return the digests of parts; a version that lacks one has none of it."""
    made = {}
    for name in names:
        with suppress(MissingCodeError):
            made[name] = graph.digest_part(name)
    return made


def write_code(code: Code) -> str:
    """Write a code as one cell of a table."""
    return " ".join(f"{name}={digest}" for name, digest in sorted(code.items()))


@lru_cache(maxsize=100_000)
def read_code(text: str) -> Code:
    """Read what `write_code` wrote; raise ValueError for what is no code."""
    pairs = [word.partition("=") for word in text.split()]
    if wrong := [word for word, equals, digest in pairs if not (word and equals and digest)]:
        raise ValueError(f"code: '{wrong[0]}' has no digest")
    return {name: digest for name, _, digest in pairs}
