"""The field `sweep` of a scenario file, expanded into drafts of cells: names and settings.

This file handles plain values alone and imports no scenario. A cell's name depends on the cell's
settings alone, so cells keep their names when a sweep grows. Names, such as `ratio=8,seed=0`, are
short and safe as folder names; a digest is added where two would be equal or one too long.
"""

import copy
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simsplit.errors import ScenarioError
from simsplit.report.short_names import short_names
from simsplit.scenario import draws, search_config
from simsplit.scenario.messages import format_value

Settings = dict[str, Any]

FORMS = ("grid", "zip", "list", "random", search_config.FORM)
MOST = 10_000
"""Cells that one sweep may have; more are taken for a mistake."""
_UNSWEEPABLE = {
    "name": "cannot be swept: a cell is named after the sweep and what it sets",
    "extends": "cannot be swept: it belongs to the file, not to a scenario",
    "sweep": "cannot be swept: it belongs to the file, not to a scenario",
}

_LISTS = {"type": ["object", "null"], "additionalProperties": {"type": ["array", "null"]}}
SCHEMA: dict[str, Any] = {
    "description": "Fields, each with a list of its values; every combination is one cell.",
    "type": ["object", "null"],
    "properties": {
        "grid": {**_LISTS, "description": "Every combination of these fields' values."},
        "zip": {**_LISTS, "description": "Lists of one length; a cell takes one entry of each."},
        "list": {
            "type": ["array", "null"],
            "items": {"type": "object"},
            "description": "Fields and values of each cell; an entry's `name` names its cell.",
        },
        "random": draws.SCHEMA,
        search_config.FORM: search_config.SCHEMA,
    },
    "additionalProperties": {"type": ["array", "null"]},
}
"""JSON Schema of the field."""
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9.+_-]+")
_LONGEST_VALUE, _LONGEST_NAME = 40, 120


@dataclass(frozen=True)
class Draft:
    """A cell whose scenario has not been read."""

    name: str
    settings: Settings = field(default_factory=dict)
    label: str = ""
    """The `name` of its entry in `sweep.list`; empty if it has none."""


def expand(declared: Any, tried: Sequence[Settings] | None = None) -> list[Draft]:  # noqa: ANN401
    """Return a sweep's cells: the product of its grid's fields, its zip, its list and its draws.

    `tried` are the settings that a search has chosen so far; by default those of random draws stand
    for them, so that all fields and their ends are checked before a search begins.
    """
    axes = list(_build_axes(_read_forms(declared), tried))
    if not axes:
        raise ScenarioError("sweep", "is empty; write fields and lists: {seed: [0, 1, 2]}")
    _refuse_swept_twice(axes)
    # Counted before they are made, since a mistake can have billions.
    count = math.prod(len(axis) for _, axis in axes)
    if count > MOST:
        raise ScenarioError("sweep", f"has {count:,} cells; at most {MOST:,} are allowed")
    # Of all axes at once: fields that end alike need longer names.
    short = short_names(list(dict.fromkeys(f for _, axis in axes for one in axis for f in one)))
    named = [_name_drafts(axis, short) for _, axis in axes]
    return [_combine(parts) for parts in itertools.product(*named)]


def refuse_sweep(values: Settings, path: Path) -> None:
    """Remove an empty `sweep` from a file's values; raise ScenarioError if the file has cells."""
    declared = values.pop("sweep", None)
    if declared is None:
        return
    raise ScenarioError(
        "sweep",
        f"{path} has {len(expand(declared))} cells; run them with: simsplit sweep {path} (or the "
        "scenario without its sweep, with --set sweep=null)",
    )


def sweep_over(values: Settings, swept: str, value: Any) -> None:  # noqa: ANN401 - any YAML value
    """Set the values of a swept field, as `--set sweep.method.0.ratio=[8,16]` does."""
    sweep = values.get("sweep")
    if not isinstance(sweep, dict):
        sweep = values["sweep"] = {}
    form, _, below = swept.partition(".")
    if swept in FORMS or (form in FORMS and not below):
        sweep[swept] = value
    elif form in FORMS:
        _open_form(sweep, form)[below] = value
    elif any(known in sweep for known in FORMS):
        # Where the field is swept already: on a second axis it would be refused.
        forms = ("zip", "random", search_config.FORM)
        home = next((form for form in forms if swept in (sweep.get(form) or {})), "grid")
        _open_form(sweep, home)[swept] = value
    else:
        sweep[swept] = value


def _open_form(sweep: Settings, form: str) -> Settings:
    """Return the mapping under a form of the sweep, a new one where there is none."""
    if form == "list":
        raise ScenarioError("sweep.list", "must be set as a whole: --set 'sweep.list=[...]'")
    if not isinstance(sweep.get(form), dict):
        sweep[form] = {}
    below: Settings = sweep[form]
    return below


def _read_forms(declared: Any) -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401
    """Yield (form, field, content) of a sweep; the short form, without forms' names, is a grid."""
    if not isinstance(declared, Mapping):
        raise ScenarioError(
            "sweep", f"must map fields to lists of values, got {format_value(declared)}"
        )
    if not any(form in declared for form in FORMS):
        yield "grid", "sweep", declared
        return
    for key in declared:
        if key not in FORMS:
            beside = f"{', '.join(FORMS[:-1])} or {FORMS[-1]}"
            raise ScenarioError(
                f"sweep.{key}",
                f"is beside {beside}: a field belongs below one of them, such as sweep.grid.{key}",
            )
    for form in FORMS:
        if declared.get(form) is not None:
            yield form, f"sweep.{form}", declared[form]


Axis = tuple[str, list[Settings]]
"""A field of the file, and the settings of each of its choices."""


def _build_axes(
    forms: Iterator[tuple[str, str, Any]], tried: Sequence[Settings] | None
) -> Iterator[Axis]:
    """Yield the axes of a sweep, whose product the cells are."""
    for form, where, content in forms:
        if form == "list":
            yield where, _read_entries(where, content)
            continue
        if not isinstance(content, Mapping):
            raise ScenarioError(
                where, f"must map fields to lists of values, got {format_value(content)}"
            )
        for key in content:
            _refuse_unsweepable(f"{where}.{key}", key)
        if form == "random":
            yield where, draws.draw_cells(where, content, MOST)
        elif form == search_config.FORM:
            drawn = search_config.draw_cells(where, content, MOST)
            yield where, drawn if tried is None else list(tried)
        else:
            # null takes a field out again, in a child file or with --set
            yield from _build_list_axes(
                form, where, {k: v for k, v in content.items() if v is not None}
            )


def _build_list_axes(form: str, where: str, lists: Mapping[str, Any]) -> Iterator[Axis]:
    """Yield an axis for each field of a grid, or one axis for all fields of a zip."""
    for key, values in lists.items():
        _require_list(f"{where}.{key}", values)
    if form == "grid":
        for key, values in lists.items():
            _refuse_twins(f"{where}.{key}", values)
            yield where, [{key: value} for value in values]
    elif lists:
        lengths = {key: len(values) for key, values in lists.items()}
        if len(set(lengths.values())) > 1:
            each = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise ScenarioError(where, f"must have lists of one length, got: {each}")
        rows = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        _refuse_twins(where, rows)
        yield where, rows


def _read_entries(where: str, content: Any) -> list[Settings]:  # noqa: ANN401
    """Return the entries of `sweep.list`; raise ScenarioError for one that is not allowed."""
    _require_list(where, content)
    for index, entry in enumerate(content):
        here = f"{where}.{index}"
        if not isinstance(entry, Mapping):
            raise ScenarioError(here, f"must map fields to values, got {format_value(entry)}")
        for key in entry:
            if key != "name":
                _refuse_unsweepable(f"{here}.{key}", key)
        # x stands for any allowed name, where an entry has none.
        label = entry.get("name", "x")
        if not (isinstance(label, str) and LABEL.fullmatch(label)):
            raise ScenarioError(
                f"{here}.name",
                f"must be letters, digits, dots and dashes, got {format_value(label)}",
            )
    _refuse_twins(where, content)
    return [dict(entry) for entry in content]


def _refuse_unsweepable(where: str, key: str) -> None:
    """Raise ScenarioError for a field that a sweep may not set."""
    if (reason := _UNSWEEPABLE.get(key.partition(".")[0])) is not None:
        raise ScenarioError(where, reason)


def _require_list(where: str, values: Any) -> None:  # noqa: ANN401
    if not isinstance(values, list):
        raise ScenarioError(where, f"must be a list of values, got {format_value(values)}")
    if not values:
        raise ScenarioError(where, "must have at least one value, got []")


def _refuse_twins(where: str, values: Sequence[Any]) -> None:
    """Raise ScenarioError for a value that is listed twice."""
    seen: set[str] = set()
    for value in values:
        # As text, since lists and mappings cannot be in a set.
        spelled = json.dumps(value, sort_keys=True, default=str)
        if spelled in seen:
            raise ScenarioError(where, f"has {format_value(value)} twice")
        seen.add(spelled)


def _refuse_swept_twice(axes: Sequence[Axis]) -> None:
    """Raise ScenarioError for a field on two axes."""
    homes: dict[str, str] = {}
    for where, axis in axes:
        for key in dict.fromkeys(key for one in axis for key in one if key != "name"):
            if key in homes:
                raise ScenarioError(f"{where}.{key}", f"is swept in {homes[key]} already")
            homes[key] = where


def _name_drafts(axis: list[Settings], short: Mapping[str, str]) -> list[Draft]:
    """Return an axis' choices as drafts, each with a name of its own."""
    labels = [str(one["name"]) for one in axis if "name" in one]
    if twin := next((label for label in labels if labels.count(label) > 1), None):
        raise ScenarioError("sweep.list", f"has the name '{twin}' twice")
    taken = {label.casefold() for label in labels}
    drafts = []
    for one in axis:
        settings = {key: value for key, value in one.items() if key != "name"}
        label = str(one.get("name", ""))
        name = label or name_choice(settings, short, taken)
        taken.add(name.casefold())
        drafts.append(Draft(name, settings, label))
    return drafts


def _combine(parts: Sequence[Draft]) -> Draft:
    """Return the cell that combines one choice of every axis."""
    settings = {key: value for part in parts for key, value in part.settings.items()}
    name = _cut(",".join(part.name for part in parts), _LONGEST_NAME, settings)
    label = next((part.label for part in parts if part.label), "")
    return Draft(name, copy.deepcopy(settings), label)


def name_choice(settings: Mapping[str, Any], short: Mapping[str, str], taken: set[str]) -> str:
    """Return a name for one choice of settings that is not in `taken` (names in lower case)."""
    words = []
    for swept, value in settings.items():
        # Without a method raw activations are sent, so such a cell is called that.
        text = _abbreviate(value, nothing="raw" if swept == "method" else "none")
        words.append(f"{short[swept]}={_cut(text, _LONGEST_VALUE, value)}")
    name = ",".join(words) or "base"
    # In lower case, since some file systems hold `A` and `a` for one folder.
    return f"{name}~{_digest(settings)}" if name.casefold() in taken else name


def name_scenario(sweep: str, cell: str) -> str:
    """Return the name of a cell's scenario: the sweep's and the cell's, in allowed characters."""
    return f"{sweep}_" + re.sub(r"[^A-Za-z0-9._-]", "-", cell.replace(",", "_"))


def _cut(text: str, most: int, named: object) -> str:
    """Return a name of at most so many characters, a longer one cut before a digest."""
    return text if len(text) <= most else f"{text[: most - 10]}~{_digest(named)}"


def _abbreviate(value: Any, nothing: str = "none") -> str:  # noqa: ANN401
    """Return a value in characters that are safe in a folder's name; `nothing` if it is empty."""
    if isinstance(value, Mapping):
        # Its kind, then what it sets; `true` alone would not say what is true.
        kind = [_abbreviate(value["kind"])] if "kind" in value else []
        sets = [
            f"{name}-{_abbreviate(each)}" if isinstance(each, bool) else _abbreviate(each)
            for name, each in value.items()
            if name != "kind"
        ]
        return "-".join([*kind, *sets]) or nothing
    if isinstance(value, list):
        return "+".join(map(_abbreviate, value)) or nothing
    if isinstance(value, str):
        return _UNSAFE.sub("-", value).strip("-") or "text"
    return _UNSAFE.sub("-", json.dumps(value, default=str))


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()
