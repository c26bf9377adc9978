"""What a file's `sweep:` declares, opened into drafts of cells: a name, and what it sets.

Plain values in, plain values out: nothing here knows what a scenario is. A cell's name depends on
what the cell sets and on nothing else, so a longer sweep keeps the names of the cells it had.
"""

import copy
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simsplit.errors import ScenarioError
from simsplit.report.short_names import short_names
from simsplit.scenario import draws
from simsplit.scenario.cell_names import LABEL, joined, labelled
from simsplit.scenario.messages import shown

Settings = dict[str, Any]

FORMS = ("grid", "zip", "list", "random")
MOST = 10_000
"""Cells that one sweep may have; more is a slip of the pen."""
_NO_FIELDS = {
    "name": "cannot be swept: a cell is named after the sweep and what it sets",
    "extends": "cannot be swept: it belongs to the file, not to a scenario",
    "sweep": "cannot be swept: it belongs to the file, not to a scenario",
}

_LISTS = {"type": ["object", "null"], "additionalProperties": {"type": ["array", "null"]}}
SCHEMA: dict[str, Any] = {
    "description": "Fields, each with the values that it is swept over; one cell a combination.",
    "type": ["object", "null"],
    "properties": {
        "grid": {**_LISTS, "description": "Every combination of these fields' values."},
        "zip": {**_LISTS, "description": "These fields' values, walked together."},
        "list": {
            "type": ["array", "null"],
            "items": {"type": "object"},
            "description": "Fields and values of each cell; its `name` labels it.",
        },
        "random": draws.SCHEMA,
    },
    "additionalProperties": {"type": ["array", "null"]},
}
"""JSON Schema of the field."""


@dataclass(frozen=True)
class Draft:
    """A cell before its scenario is read."""

    name: str
    settings: Settings = field(default_factory=dict)
    label: str = ""
    """What an entry of a list calls itself."""


def expand(declared: Any) -> list[Draft]:  # noqa: ANN401 - any YAML value
    """The cells of a sweep: the product of its grid's fields, its zip, its list and its draws."""
    axes = list(_axes(_forms(declared)))
    if not axes:
        raise ScenarioError("sweep", "is empty; write fields and lists: {seed: [0, 1, 2]}")
    _refuse_swept_twice(axes)
    count = math.prod(len(axis) for _, axis in axes)
    if count > MOST:
        raise ScenarioError("sweep", f"has {count:,} cells; at most {MOST:,} are allowed")
    short = short_names(list(dict.fromkeys(f for _, axis in axes for one in axis for f in one)))
    named = [_drafts(axis, short) for _, axis in axes]
    return [_crossed(parts) for parts in itertools.product(*named)]


def refuse(values: Settings, path: Path) -> None:
    """Take `sweep` out of a file's values; ScenarioError if the file does have one."""
    declared = values.pop("sweep", None)
    if declared is None:
        return
    raise ScenarioError(
        "sweep",
        f"{path} has {len(expand(declared))} cells; run them with: simsplit sweep {path} (or the "
        "scenario without its sweep, with --set sweep=null)",
    )


def sweep_over(values: Settings, swept: str, value: Any) -> None:  # noqa: ANN401 - any YAML value
    """Sweep a dotted field over other values, as `--set sweep.method.0.ratio=[8,16]` does."""
    sweep = values.get("sweep")
    if not isinstance(sweep, dict):
        sweep = values["sweep"] = {}
    form, _, below = swept.partition(".")
    if swept in FORMS or (form in FORMS and not below):
        sweep[swept] = value
    elif form in FORMS:
        _mapping(sweep, form)[below] = value
    elif any(known in sweep for known in FORMS):
        homes = (known for known in ("zip", "random") if swept in (sweep.get(known) or {}))
        home = next(homes, "grid")
        _mapping(sweep, home)[swept] = value
    else:
        sweep[swept] = value


def _mapping(sweep: Settings, form: str) -> Settings:
    if form == "list":
        raise ScenarioError("sweep.list", "is changed as a whole: --set 'sweep.list=[...]'")
    if not isinstance(sweep.get(form), dict):
        sweep[form] = {}
    below: Settings = sweep[form]
    return below


def _forms(declared: Any) -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401
    """(form, where it is written, what is in it) of the short form or the long one."""
    if not isinstance(declared, Mapping):
        raise ScenarioError("sweep", f"must map fields to lists of values, got {shown(declared)}")
    if not any(form in declared for form in FORMS):
        yield "grid", "sweep", declared
        return
    for key in declared:
        if key not in FORMS:
            beside = f"{', '.join(FORMS[:-1])} or {FORMS[-1]}"
            raise ScenarioError(
                f"sweep.{key}",
                f"stands beside {beside}: a field belongs below one of them, such as "
                f"sweep.grid.{key}",
            )
    for form in FORMS:
        if declared.get(form) is not None:
            yield form, f"sweep.{form}", declared[form]


Axis = tuple[str, list[Settings]]
"""Where it is written, and what it sets, one choice after another."""


def _axes(forms: Iterator[tuple[str, str, Any]]) -> Iterator[Axis]:
    for form, where, content in forms:
        if form == "list":
            yield where, _entries(where, content)
            continue
        if not isinstance(content, Mapping):
            raise ScenarioError(where, f"must map fields to lists of values, got {shown(content)}")
        for key in content:
            _refuse_no_field(f"{where}.{key}", key)
        if form == "random":
            yield where, draws.drawn(where, content, MOST)
        else:
            # null takes a field out again, in a child file or with --set
            yield from _listed(form, where, {k: v for k, v in content.items() if v is not None})


def _listed(form: str, where: str, lists: Mapping[str, Any]) -> Iterator[Axis]:
    """A grid's fields, an axis each; or those of a zip, one axis."""
    for key, values in lists.items():
        _refuse_no_list(f"{where}.{key}", values)
    if form == "grid":
        for key, values in lists.items():
            _refuse_twins(f"{where}.{key}", values)
            yield where, [{key: value} for value in values]
    elif lists:
        yield where, _walked(where, lists)


def _walked(where: str, lists: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Several lists, walked together."""
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise ScenarioError(where, f"walks its lists together, so they must be as long: {told}")
    rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    _refuse_twins(where, rows)
    return rows


def _entries(where: str, content: Any) -> list[Settings]:  # noqa: ANN401
    _refuse_no_list(where, content)
    for index, entry in enumerate(content):
        here = f"{where}.{index}"
        if not isinstance(entry, Mapping):
            raise ScenarioError(here, f"must map fields to values, got {shown(entry)}")
        for key in entry:
            if key != "name":
                _refuse_no_field(f"{here}.{key}", key)
        label = entry.get("name", "x")
        if not (isinstance(label, str) and LABEL.fullmatch(label)):
            raise ScenarioError(
                f"{here}.name", f"must be letters, digits, dots and dashes, got {shown(label)}"
            )
    _refuse_twins(where, content)
    return [dict(entry) for entry in content]


def _refuse_no_field(where: str, key: str) -> None:
    if (reason := _NO_FIELDS.get(key.partition(".")[0])) is not None:
        raise ScenarioError(where, reason)


def _refuse_no_list(where: str, values: Any) -> None:  # noqa: ANN401
    if not isinstance(values, list):
        raise ScenarioError(where, f"must be a list of values, got {shown(values)}")
    if not values:
        raise ScenarioError(where, "must have at least one value, got []")


def _refuse_twins(where: str, values: Sequence[Any]) -> None:
    seen: set[str] = set()
    for value in values:
        spelled = json.dumps(value, sort_keys=True, default=str)
        if spelled in seen:
            raise ScenarioError(where, f"has {shown(value)} twice")
        seen.add(spelled)


def _refuse_swept_twice(axes: Sequence[Axis]) -> None:
    homes: dict[str, str] = {}
    for where, axis in axes:
        for key in dict.fromkeys(key for one in axis for key in one if key != "name"):
            if key in homes:
                raise ScenarioError(f"{where}.{key}", f"is swept in {homes[key]} already")
            homes[key] = where


def _drafts(axis: list[Settings], short: Mapping[str, str]) -> list[Draft]:
    """An axis' choices under names of their own."""
    labels = [str(one["name"]) for one in axis if "name" in one]
    if twin := next((label for label in labels if labels.count(label) > 1), None):
        raise ScenarioError("sweep.list", f"has the name '{twin}' twice")
    taken = {label.casefold() for label in labels}
    drafts = []
    for one in axis:
        settings = {key: value for key, value in one.items() if key != "name"}
        label = str(one.get("name", ""))
        name = label or labelled(settings, short, taken)
        taken.add(name.casefold())
        drafts.append(Draft(name, settings, label))
    return drafts


def _crossed(parts: Sequence[Draft]) -> Draft:
    """One choice of every axis."""
    settings = {key: value for part in parts for key, value in part.settings.items()}
    return Draft(
        joined([part.name for part in parts], settings),
        copy.deepcopy(settings),
        next((part.label for part in parts if part.label), ""),
    )
