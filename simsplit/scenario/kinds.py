"""Parts of which a file says fields but not the kind: they are of the default's kind.

`train.client.lr` or `schedule.rounds` alone would otherwise need the part spelled out beside them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from simsplit.errors import ScenarioError, near

Kinds = Mapping[str, type[BaseModel]]
"""The configs among which a part's kind chooses."""


def with_kinds(values: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """The values, with the default's kind wherever none is said and all fields would be its own."""
    filled = dict(values)
    for name, field in model.model_fields.items():
        value, default = filled.get(name), field.default
        if not (isinstance(value, Mapping) and isinstance(default, BaseModel)):
            continue
        fields = type(default).model_fields
        if "kind" in fields:
            if value and "kind" not in value and value.keys() <= fields.keys():
                filled[name] = {"kind": getattr(default, "kind"), **value}  # noqa: B009 - its own field
        else:
            filled[name] = with_kinds(value, type(default))
    return filled


def kinds_left_out(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """The fields in which `with_kinds` says the kind: their config's name, and their own."""
    for name, field in model.model_fields.items():
        if not isinstance(field.default, BaseModel):
            continue
        if "kind" in type(field.default).model_fields:
            yield model.__name__, name
        else:
            yield from kinds_left_out(type(field.default))


def without_kind(field: str, got: Mapping[str, Any], kinds: Kinds) -> ScenarioError:
    """What is wrong with a part that names no kind: which kinds have its fields, if any has."""
    having = {name: [k for k, one in kinds.items() if name in one.model_fields] for name in got}
    for name in (name for name, found in having.items() if not found):
        known = dict.fromkeys(each for config in kinds.values() for each in config.model_fields)
        return ScenarioError(
            f"{field}.{name}",
            f"unknown field{near(str(name), known) or ','} allowed: {', '.join(known)}",
        )
    fitting = [kind for kind in kinds if all(kind in found for found in having.values())]
    meant = (
        f"{', '.join(map(str, got))} belongs to {' or '.join(fitting)}; " if got and fitting else ""
    )
    return ScenarioError(f"{field}.kind", f"missing; {meant}allowed: {', '.join(kinds)}")
