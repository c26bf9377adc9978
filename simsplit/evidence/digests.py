"""The digest of a cell's scenario: rows were measured with it, or they are stale.

It covers every field that can change a figure. What cannot is left out: names, where output goes,
how often a checkpoint is written, where the data lie, on how many threads or hosts a run was
trained. A field that came later is left out while it has the value that it behaves like before.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simsplit.scenario import Scenario

_INCIDENTAL = ("name", "seed", "output", "checkpoint", "threads", "device", "engine", "observers")
_PLACES = ("cache", "download")
"""Fields of a data source that say where its files lie, or how they come there."""
ADDED: Mapping[str, object] = {}
"""Dotted field that came after rows were measured -> the value that changes nothing."""


def digest_of(scenario: Scenario) -> str:
    """Return the digest of all fields of a scenario that can change a figure, but for the seed."""
    values = scenario.model_dump(mode="json", exclude=set(_INCIDENTAL))
    source = values["data"]["source"]
    kept = {name: value for name, value in source.items() if name not in _PLACES}
    if kept.get("path"):
        kept["path"] = Path(kept["path"]).name  # which data they are, wherever they lie
    values["data"]["source"] = kept
    return digest_of_values(values)


def digest_of_values(values: Mapping[str, Any]) -> str:
    """Return the digest of plain values; null fields and ADDED ones count for nothing."""
    flat = {name: value for name, value in _flatten(values, "") if ADDED.get(name, ...) != value}
    text = json.dumps(flat, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _flatten(value: Any, name: str) -> list[tuple[str, Any]]:  # noqa: ANN401 - plain values
    """List the leaves of plain values by dotted name."""
    if isinstance(value, Mapping):
        return [
            leaf
            for key, each in value.items()
            for leaf in _flatten(each, f"{name}.{key}".strip("."))
        ]
    if isinstance(value, list):
        return [
            leaf for index, each in enumerate(value) for leaf in _flatten(each, f"{name}.{index}")
        ]
    return [] if value is None else [(name, value)]
