"""A part whose `kind` is left out in a file has the kind of the field's default.

Without this rule `train.client.lr` or `schedule.rounds` alone would need a kind beside them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from simsplit.errors import ScenarioError, suggest

Kinds = Mapping[str, type[BaseModel]]
"""Configs by kind, of a part that can have one of these kinds."""


def fill_kinds(values: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return the values with the default's kind in each part that names none.

    A part is left alone if it has a field that the default's kind lacks.
    """
    filled = dict(values)
    for name, field in model.model_fields.items():
        value, default = filled.get(name), field.default
        if not (isinstance(value, Mapping) and isinstance(default, BaseModel)):
            continue
        fields = type(default).model_fields
        if "kind" in fields:
            # With a foreign field another kind is meant; the error lists kinds that have it.
            if value and "kind" not in value and value.keys() <= fields.keys():
                filled[name] = {"kind": getattr(default, "kind"), **value}  # noqa: B009 - its own field
        else:
            filled[name] = fill_kinds(value, type(default))
    return filled


def list_optional_kinds(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield (config's name, field's name) of each field whose kind `fill_kinds` can fill in."""
    for name, field in model.model_fields.items():
        if not isinstance(field.default, BaseModel):
            continue
        if "kind" in type(field.default).model_fields:
            yield model.__name__, name
        else:
            yield from list_optional_kinds(type(field.default))


def explain_missing_kind(field: str, got: Mapping[str, Any], kinds: Kinds) -> ScenarioError:
    """Return the error for a part that names no kind, with the kinds that have its fields."""
    having = {name: [k for k, one in kinds.items() if name in one.model_fields] for name in got}
    for name in (name for name, owners in having.items() if not owners):
        known = dict.fromkeys(each for config in kinds.values() for each in config.model_fields)
        return ScenarioError(
            f"{field}.{name}",
            f"unknown field{suggest(str(name), known) or ','} allowed: {', '.join(known)}",
        )
    fitting = [kind for kind in kinds if all(kind in owners for owners in having.values())]
    meant = (
        f"{', '.join(map(str, got))} belongs to {' or '.join(fitting)}; " if got and fitting else ""
    )
    return ScenarioError(f"{field}.kind", f"missing; {meant}allowed: {', '.join(kinds)}")
