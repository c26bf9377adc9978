"""JSON Schema of scenario files, for editors: the model's own, and what only a file may have."""

from collections.abc import Mapping
from typing import Any, get_args

from simsplit.data.tasks import LAYOUTS
from simsplit.detectors import DETECTORS
from simsplit.plugins import Given
from simsplit.scenario.cells import SCHEMA
from simsplit.scenario.kinds import kinds_left_out
from simsplit.scenario.loading import scenario_class


def file_schema(plugins: Given = ()) -> dict[str, Any]:
    """Of a file that may name the parts of plugins, too."""
    schema = scenario_class(plugins).model_json_schema()
    for part in schema["$defs"].values():
        _name_kind(part)
    parts = {"Scenario": schema, **schema["$defs"]}
    for part, fields in _WORDS.items():
        for field in fields:
            _allow_word(parts[part]["properties"][field], schema["$defs"])
    for part, field in kinds_left_out(scenario_class(plugins)):
        _allow_no_kind(parts[part]["properties"][field], schema["$defs"])
    for part in _TEXTS:
        _allow(list(LAYOUTS), parts[part]["properties"]["task"])
    extends = {"type": "string", "description": "A scenario file whose fields this one overrides."}
    schema["properties"] = {"extends": extends, **schema["properties"], "sweep": SCHEMA}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


_WORDS = {
    "DataConfig": ("source", "public", "support", "partition"),
    "Scenario": (
        *("engine", "aggregation", "schedule", "model"),
        *("method", "detectors", "attacks", "observers"),
    ),
    "SplitFedV1": ("strategy",),
    "SplitFedV2": ("strategy",),
    "Fused": ("strategy",),
    **{
        each.__name__: ("threshold",)
        for each in DETECTORS.values()
        if get_args(each.model_fields["threshold"].annotation)
    },
}
"""Fields, by the part that has them, in which a bare kind stands for a part without options."""


_TEXTS = ("PythonDocs", "TextParquet", "TextHub", "TextGiven")
"""Parts whose task may be named by a word."""


def _name_kind(part: dict[str, Any]) -> None:
    """Require a part's `kind`, which tells the parts apart, and say what it stands for."""
    if "kind" in part["properties"]:
        part["properties"]["kind"]["description"] = part.get("description", "")
        part["required"] = ["kind", *(name for name in part.get("required", ()) if name != "kind")]


def _allow_word(field: dict[str, Any], parts: Mapping[str, Any]) -> None:
    """Let a bare kind stand for a part that needs no other field."""
    union = field.get("items", field)
    union = union if "discriminator" in union else union["anyOf"][0]  # or null
    kinds = union["discriminator"]["mapping"].items()
    _allow([k for k, ref in kinds if parts[ref.split("/")[-1]]["required"] == ["kind"]], union)


def _allow_no_kind(field: dict[str, Any], parts: Mapping[str, Any]) -> None:
    """Let fields of the default's kind stand without that kind."""
    ref = field["discriminator"]["mapping"][field["default"]["kind"]]
    part = parts[ref.split("/")[-1]]
    others = {name: each for name, each in part["properties"].items() if name != "kind"}
    required = [name for name in part["required"] if name != "kind"]
    alone = part | {"properties": others, "required": required, "minProperties": 1}
    field["oneOf"] = [*field["oneOf"], alone]


def _allow(words: list[str], union: dict[str, Any]) -> None:
    union["oneOf"] = [{"enum": words}, *union["oneOf"]]
