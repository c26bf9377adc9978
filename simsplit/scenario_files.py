"""Scenario files: safe YAML, `extends`, and `--set`; plain values in, plain values out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from simsplit.errors import ScenarioError, near

Values = dict[str, Any]


def read(path: Path, overrides: Mapping[str, str]) -> Values:
    """A file's values on top of those of the file it extends, and the overrides on top of both."""
    values = _with_parents(path, ())
    for field, text in overrides.items():
        assign(values, field, _parse(text, f"--set {field}"))
    return values


def dump(values: Values) -> str:
    """YAML in the order of the fields."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)


def merge(base: Values, changes: Mapping[str, Any]) -> Values:
    """Mappings merge key by key, anything else is replaced; a mapping of another kind too."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        same_kind = (
            isinstance(below, dict)
            and isinstance(value, Mapping)
            and ("kind" not in value or value["kind"] == below.get("kind"))
        )
        merged[key] = merge(below, value) if same_kind and isinstance(below, dict) else value
    return merged


def assign(values: Values, field: str, value: Any) -> None:  # noqa: ANN401 - any YAML value
    """Set a dotted field (`method.0.ratio`) in place, making mappings on the way."""
    *parents, last = field.split(".")
    here: Any = values
    for index, key in enumerate(parents):
        here = _descend(here, key, ".".join(parents[: index + 1]))
    if isinstance(here, list):
        position = _position(here, last, field)
        here[position : position + 1] = [value]
    else:
        here[last] = value


def _descend(here: Any, key: str, field: str) -> Any:  # noqa: ANN401
    if isinstance(here, list):
        position = _position(here, key, field)
        if position == len(here):
            here.append({})
        return here[position]
    below = here.get(key)
    if isinstance(below, str):
        below = {"kind": below}  # `source: cifar10` is short for `source: {kind: cifar10}`
    elif not isinstance(below, dict | list):
        below = {}
    here[key] = below
    return below


def _position(here: list[Any], key: str, field: str) -> int:
    if not key.isdigit() or int(key) > len(here):
        raise ScenarioError(
            field, f"'{key}' is no position in a list of {len(here)}; allowed: 0 to {len(here)}"
        )
    return int(key)


def _with_parents(path: Path, children: tuple[Path, ...]) -> Values:
    path = path.resolve()
    if path in children:
        chain = " -> ".join(file.name for file in (*children, path))
        raise ScenarioError("extends", f"goes in a circle: {chain}")
    values = _load(path, children)
    parent = values.pop("extends", None)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise ScenarioError("extends", f"must be the path of a YAML file, got {parent!r}")
    return merge(_with_parents(path.parent / parent, (*children, path)), values)


def _load(path: Path, children: tuple[Path, ...]) -> Values:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        named = f"extends in {children[-1].name}: " if children else ""
        raise ScenarioError("", f"{named}cannot read {path}{_nearby(path)} ({error})") from None
    values = _parse(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ScenarioError(
            "", f"{path} must hold a mapping of fields, got {type(values).__name__}"
        )
    return values


def _nearby(path: Path) -> str:
    folder = path.parent
    return near(path.name, [file.name for file in folder.glob("*.yaml")] if folder.is_dir() else [])


def _parse(text: str, where: str) -> Any:  # noqa: ANN401 - any YAML value
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScenarioError("", f"{where} is not valid YAML: {error}") from None
