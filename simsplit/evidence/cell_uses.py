"""What a cell uses beside its scenario's fields: code, by its parts, and files."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from simsplit.evidence import code_sources
from simsplit.evidence.code_definitions import digest_texts
from simsplit.evidence.equal_code import Carried
from simsplit.evidence.file_contents import digest_folder, list_folders
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.row_code import (
    FILES,
    Code,
    digest_parts,
    list_parts,
    read_code,
    write_code,
)


@dataclass(frozen=True)
class CellUses:
    """The code and the folders that a cell uses."""

    parts: tuple[str, ...] = ()
    """Parts of the package, areas, and the centre."""
    folders: tuple[tuple[str, str], ...] = ()
    """Name in a row's code -> path."""

    @property
    def code(self) -> Code:
        """The digests of its code as it stands here."""
        return digest_here(self.parts)

    @property
    def files(self) -> Code:
        """The digests of its folders, as far as they are here."""
        found = {name: digest_folder(path) for name, path in self.folders}
        return {name: digest for name, digest in found.items() if digest is not None}

    @property
    def code_digest(self) -> str:
        """One short digest of all of its code."""
        return digest_texts([write_code(self.code)], 4)


@cache
def digest_here(parts: tuple[str, ...]) -> Code:
    """Return the digests of parts as their code stands here."""
    return digest_parts(parts, code_sources.read_package())


def find_uses(fields: Mapping[str, Any]) -> CellUses:
    """Find what a scenario uses by its fields as plain values."""
    return CellUses(list_parts(fields, code_sources.read_package()), list_folders(fields))


UNKNOWN = "unknown"
"""In place of parts that have changed: the code of a row is not known."""


def find_changed_parts(row: Measurement, uses: CellUses, carried: Carried) -> tuple[str, ...]:
    """Return the parts of a cell that have changed since a row was measured, or UNKNOWN."""
    if not uses.parts:
        return ()
    if not row.code:
        return (UNKNOWN,)
    code = read_code(row.code)
    now = {**uses.code, **uses.files} if FILES in row.code else uses.code
    return carried.find_changed(code, now)
