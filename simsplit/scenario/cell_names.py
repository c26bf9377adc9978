"""Names of a sweep's cells, such as `ratio=8,seed=0`: short, readable, safe as folder names.

A name is made from the values that the cell sets. A digest of the values is added where two names
would be equal or one too long. A position is never used: a longer sweep would shift it.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9.+_-]+")
_LONGEST_VALUE, _LONGEST_NAME = 40, 120


def name_choice(settings: Mapping[str, Any], short: Mapping[str, str], taken: set[str]) -> str:
    """Return a name for one choice of settings that is not in `taken` (names in lower case)."""
    words = [
        f"{short[field]}={_abbreviate_value(field, value)}" for field, value in settings.items()
    ]
    name = ",".join(words) or "base"
    # In lower case, since some file systems hold `A` and `a` for one folder.
    return f"{name}~{_digest(settings)}" if name.casefold() in taken else name


def join_names(names: Sequence[str], settings: Mapping[str, Any]) -> str:
    """Return the name of a cell that combines choices of these names."""
    name = ",".join(names)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 10]}~{_digest(settings)}"


def name_scenario(sweep: str, cell: str) -> str:
    """Return the name of a cell's scenario: the sweep's and the cell's, in allowed characters."""
    return f"{sweep}_" + re.sub(r"[^A-Za-z0-9._-]", "-", cell.replace(",", "_"))


def _abbreviate_value(field: str, value: Any) -> str:  # noqa: ANN401 - any YAML value
    """Return a value in few characters; a part is named by its kind and the values that it sets."""
    # Without a method raw activations are sent, so such a cell is called that.
    text = _abbreviate(value, nothing="raw" if field == "method" else "none")
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[: _LONGEST_VALUE - 10]}~{_digest(value)}"


def _abbreviate(value: Any, nothing: str = "none") -> str:  # noqa: ANN401
    """Return a value in characters that are safe in a folder's name; `nothing` if it is empty."""
    if isinstance(value, Mapping):
        return "-".join(_abbreviate_part(value)) or nothing
    if isinstance(value, list):
        return "+".join(map(_abbreviate, value)) or nothing
    if isinstance(value, str):
        return _UNSAFE.sub("-", value).strip("-") or "text"
    return _UNSAFE.sub("-", json.dumps(value, default=str))


def _abbreviate_part(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield a part's kind, then every value that it sets; true and false with their field."""
    if "kind" in part:
        yield _abbreviate(part["kind"])
    for name, value in part.items():
        if name != "kind":
            # `true` alone would not say what is true.
            yield f"{name}-{_abbreviate(value)}" if isinstance(value, bool) else _abbreviate(value)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()
