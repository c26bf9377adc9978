"""Digests of the data and models in folders that a scenario names, by the content of their files.

Large files are read once: the user's cache keeps their digests by size and time.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from simsplit.caching import get_cache_folder
from simsplit.evidence.code_definitions import digest_texts
from simsplit.evidence.row_code import FILES
from simsplit.foreign import MOST_FACTS, read_bytes

_ODD = re.compile(r"[\s=>]+")
_LENGTH = 8


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


def digest_folder(path: str) -> str | None:
    """Return the digest of a file, or of all files below a folder; None where there is none."""
    place = Path(path)
    if place.is_file():
        files = [place]
    elif place.is_dir():
        files = sorted(file for file in place.rglob("*") if file.is_file())
    else:
        return None
    return _digest_files(tuple((str(file.resolve()), *_stamp(file)) for file in files))


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


@cache
def _digest_files(files: tuple[tuple[str, int, int], ...]) -> str:
    known = _read_known()
    digests, is_new = [], False
    for name, size, time in files:
        stamped = known.get(name)
        if not (isinstance(stamped, list) and stamped[:2] == [size, time]):
            stamped, is_new = [size, time, _digest_file(name)], True
            known[name] = stamped
        digests.append(f"{Path(name).name} {stamped[2]}")
    if is_new:
        with suppress(OSError):
            _cache_file().parent.mkdir(parents=True, exist_ok=True)
            _cache_file().write_text(json.dumps(known), encoding="utf-8")
    return digest_texts(digests, _LENGTH // 2)


def _digest_file(name: str) -> str:
    with Path(name).open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _read_known() -> dict[str, Any]:
    # a cache that cannot be read is made anew
    with suppress(OSError, ValueError):
        known = json.loads(read_bytes(_cache_file(), most=MOST_FACTS))
        return known if isinstance(known, dict) else {}
    return {}


def _cache_file() -> Path:
    return get_cache_folder() / "code" / "files.json"
