"""How the cells of a sweep are called: `ratio=8,seed=0`; short, readable, safe as folder names.

A name is made of what the cell sets. Only where two would be the same, or one too long, does a
digest of the values stand in; never a position, which a longer sweep would shift.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9.+_-]+")
_LONGEST_VALUE, _LONGEST_NAME = 40, 120


def labelled(settings: Mapping[str, Any], short: Mapping[str, str], taken: set[str]) -> str:
    """A name for one choice of settings, none of those that are `taken` (in lower case)."""
    words = [f"{short[field]}={_value(field, value)}" for field, value in settings.items()]
    name = ",".join(words) or "base"
    return f"{name}~{_digest(settings)}" if name.casefold() in taken else name


def joined(names: Sequence[str], settings: Mapping[str, Any]) -> str:
    """The name of a cell that makes several choices."""
    name = ",".join(names)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 10]}~{_digest(settings)}"


def scenario_name(sweep: str, cell: str) -> str:
    """A cell's name as a scenario may have it, after the sweep's."""
    return f"{sweep}_" + re.sub(r"[^A-Za-z0-9._-]", "-", cell.replace(",", "_"))


def _value(field: str, value: Any) -> str:  # noqa: ANN401 - any YAML value
    """A value in a word: a number as it is, a part by its kind and what it sets."""
    text = _word(value, nothing="raw" if field == "method" else "none")
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[: _LONGEST_VALUE - 10]}~{_digest(value)}"


def _word(value: Any, nothing: str = "none") -> str:  # noqa: ANN401
    if isinstance(value, Mapping):
        return "-".join(_words(value)) or nothing
    if isinstance(value, list):
        return "+".join(map(_word, value)) or nothing
    if isinstance(value, str):
        return _UNSAFE.sub("-", value).strip("-") or "text"
    return _UNSAFE.sub("-", json.dumps(value, default=str))


def _words(part: Mapping[str, Any]) -> Iterator[str]:
    """The kind, then every value that the part sets, true and false by their field."""
    if "kind" in part:
        yield _word(part["kind"])
    for name, value in part.items():
        if name != "kind":
            yield f"{name}-{_word(value)}" if isinstance(value, bool) else _word(value)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()
