"""Digests of what rows were measured with: when a scenario changes, its rows become stale.

A digest covers every field of a scenario that can change a figure. Names, the seed, where output
goes, how often a checkpoint is written, where data lie, and the threads or hosts of a run cannot,
and are left out. Of a data set's path the last folder counts: it says which data they are. Of a
pretrained model that ships the files count, since all figures on it move when it is made anew.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simsplit.scenario import Scenario

_INCIDENTAL = ("name", "seed", "output", "checkpoint", "threads", "device", "engine", "observers")
_PLACES = ("root", "cache", "download")
"""Fields of data that say where their files lie, or how they come there."""
_PLACE = re.compile(r"\.\d+(?=\.|$)")
ADDED: Mapping[str, object] = {
    "method.*.at": "cut",
    "attacks.*.by": "server",
    "attacks.*.precision": "fp32",
    "attacks.*.channels_last": False,
    "attacks.*.words": "all",
    "attacks.*.critic": "described",
    "attacks.*.critic_width": 256,
    "attacks.*.components": 1,
    "attacks.*.exposures": 1,
    "attacks.*.method_losses": False,
    "attacks.*.picks": "surest",
    "detectors.*.rounds": "first",
    "method.*.scaled": False,
    "method.*.shift_alpha": 0.0,
    "method.*.draws": 1,
    "method.*.partners": "permutation",
    "model.dtype": "float32",
    "noise": "cpu",
    "train.accumulate": 1,
    "train.checkpointing": False,
}
"""Field that came after rows were measured, such as `method.*.lift`, with `*` for a place in a list
-> the value with which all is as before. A new field whose default is null need not stand here."""


def dump_fields(scenario: Scenario) -> dict[str, Any]:
    """Return all fields of a scenario that can change a figure, as plain values."""
    fields = scenario.model_dump(mode="json", exclude=set(_INCIDENTAL))
    # Stacked clients' losses differ by rounding.
    if scenario.inline_engine.stack != "off":
        fields["engine.stack"] = scenario.inline_engine.stack
    return fields


def digest_of(scenario: Scenario, fields: Mapping[str, Any] | None = None) -> str:
    """Return the digest of all fields of a scenario that can change a figure.

    `fields` are what `dump_fields` returned, where the caller has it.
    """
    values = dict(dump_fields(scenario) if fields is None else fields)
    # what an attacker chooses is a result: the values among which it does are in `tune`
    values["attacks"] = [
        {name: value for name, value in attack.items() if name not in (attack["tune"] or {})}
        for attack in values["attacks"]
    ]
    content = {"content": scenario.model.digest_content()}
    return _hash({**values, **content, "data": _without_places(values["data"])})


def digest_figure(scenario: str, recipe: Mapping[str, Any]) -> str:
    """Return the digest of a figure: of its scenario's, and of how it is read from the run."""
    return _hash({"scenario": scenario, **recipe})


def _hash(values: Mapping[str, Any]) -> str:
    # a field with the value that all scenarios had before there was the field is left out
    leaves = {
        name: value
        for name, value in _flatten(values, "")
        if (place := _PLACE.sub(".*", name)) not in ADDED or ADDED[place] != value
    }
    text = json.dumps(leaves, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _without_places(value: Any) -> Any:  # noqa: ANN401 - plain values
    """Leave out where data lie, however deep in the fields of data."""
    if isinstance(value, list):
        return [_without_places(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    kept = {name: _without_places(each) for name, each in value.items() if name not in _PLACES}
    if isinstance(kept.get("path"), str):
        kept["path"] = Path(kept["path"]).name
    return kept


def _flatten(value: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - plain values
    """Yield the leaves of plain values by dotted name; null is as good as a missing field."""
    if isinstance(value, Mapping | list):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _flatten(each, f"{name}.{key}".strip("."))
    elif value is not None:
        yield name, value
