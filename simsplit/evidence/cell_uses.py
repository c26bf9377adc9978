"""What a cell uses beside its scenario's fields: code, by its parts, and files.

Files are data and models in folders that the scenario names. Large ones are read once: the user's
cache keeps their digests by size and time.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simsplit.caching import get_cache_folder
from simsplit.evidence import code_sources
from simsplit.evidence.code_definitions import digest_texts
from simsplit.evidence.equal_code import Carried
from simsplit.evidence.measurements import Measurement
from simsplit.evidence.row_code import (
    FILES,
    Code,
    digest_parts,
    list_parts,
    read_code,
)

UNKNOWN = "unknown"
"""In place of parts that have changed: the code of a row is not known."""
_ODD = re.compile(r"[\s=>]+")
_CONFIG = 1 << 16
"""The bytes of the largest file that is read as a model's settings."""
_ORIGINS = frozenset({"_name_or_path", "name_or_path", "_commit_hash", "transformers_version"})
"""What a model's settings say of where and by what they were saved."""


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
        found = {name: _digest_folder(Path(path)) for name, path in self.folders}
        return {name: digest for name, digest in found.items() if digest is not None}


@cache
def digest_here(parts: tuple[str, ...]) -> Code:
    """Return the digests of parts as their code stands here."""
    return digest_parts(parts, code_sources.read_package())


def find_uses(fields: Mapping[str, Any]) -> CellUses:
    """Find what a scenario uses by its fields as plain values."""
    return CellUses(list_parts(fields, code_sources.read_package()), list_folders(fields))


def find_changed_parts(row: Measurement, uses: CellUses, carried: Carried) -> tuple[str, ...]:
    """Return the parts of a cell that have changed since a row was measured, or UNKNOWN."""
    if not uses.parts:
        return ()
    if not row.code:
        return (UNKNOWN,)
    code = read_code(row.code)
    now = {**uses.code, **uses.files} if FILES in row.code else uses.code
    return carried.find_changed(code, now)


def list_folders(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """List what a scenario's plain values read from: its name in a row's code, and its path."""
    named = {}
    for path in (*_list_paths(values.get("data")), (values.get("model") or {}).get("name")):
        if isinstance(path, str) and path:
            named[f"{FILES}{_ODD.sub('_', Path(path).name)}"] = path
    return tuple(sorted(named.items()))


def _list_paths(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield value.get("path")
        for each in value.values():
            yield from _list_paths(each)


def _digest_folder(place: Path) -> str | None:
    """Return the digest of a file, or of all files below a folder; None where there is none."""
    if not place.is_file() and not place.is_dir():
        return None
    files = [place] if place.is_file() else sorted(_list_files(place))
    kept = _keep_digests()
    # a hub's cache links to files by other names
    digests = [f"{file.name} {kept.read(file.resolve())}" for file in files]
    kept.write()
    return digest_texts(digests, 4)


def _list_files(place: Path) -> Iterator[Path]:
    """Yield the files below a folder, without hidden ones: a download's times lie in such."""
    for file in place.rglob("*"):
        hidden = any(part.startswith(".") for part in file.relative_to(place).parts)
        if not hidden and file.is_file():
            yield file


@cache
def _keep_digests() -> code_sources.KeptFiles[str]:
    return code_sources.KeptFiles(get_cache_folder() / "code" / "contents.json", str, _digest_file)


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(_CONFIG)
        if path.stat().st_size <= _CONFIG and (config := _read_config(start)) is not None:
            return hashlib.blake2b(config).hexdigest()[:32]
        file.seek(0)
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _read_config(content: bytes) -> bytes | None:
    """Return a model's settings without where they came from; None for what is none.

    The same weights from another folder, or saved by another version, are the same model.
    """
    try:
        settings = json.loads(content)
    except ValueError:
        return None
    if not isinstance(settings, dict) or not _ORIGINS & settings.keys():
        return None
    kept = {name: value for name, value in settings.items() if name not in _ORIGINS}
    return json.dumps(kept, sort_keys=True).encode()
