"""Parts of which a file says fields but not the kind: they are of the default's kind.

`train.client.lr` or `schedule.rounds` alone would otherwise need the part spelled out beside them.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


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
