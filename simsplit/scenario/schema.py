"""The JSON Schema by which editors check scenario files.

It is the model's schema, with the short forms and the fields that only a file may have.

`simsplit new` copies a shipped scenario, with the schema beside it.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from simsplit.data.tasks import LAYOUTS
from simsplit.detectors import DETECTORS
from simsplit.errors import SimsplitError
from simsplit.plugins import Given
from simsplit.results.directory import replace
from simsplit.scenario.cells import SCHEMA
from simsplit.scenario.files import read
from simsplit.scenario.kinds import list_optional_kinds
from simsplit.scenario.loading import scenario_class
from simsplit.scenario.shipped import SUFFIX, find_folder, locate

SCHEMA_FILE = "scenario.schema.json"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def file_schema(plugins: Given = ()) -> dict[str, Any]:
    """Return the schema of scenario files, which may name the parts of these plugins."""
    schema = scenario_class(plugins).model_json_schema()
    for part in schema["$defs"].values():
        if "kind" in part["properties"]:
            part["properties"]["kind"]["description"] = part.get("description", "")
            # pydantic requires no field with a default, but a union needs `kind` to choose.
            others = (name for name in part.get("required", ()) if name != "kind")
            part["required"] = ["kind", *others]
    parts = {"Scenario": schema, **schema["$defs"]}
    for part, fields in _WORDS.items():
        for field in fields:
            _allow_bare_kind(parts[part]["properties"][field], schema["$defs"])
    for part, field in list_optional_kinds(scenario_class(plugins)):
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
"""Fields, by the part that has them, in which a bare kind is allowed for a part without options."""


_TEXTS = ("PythonDocs", "TextParquet", "TextHub", "TextGiven")
"""Sources of texts whose task may be a layout's name."""


def _allow_bare_kind(field: dict[str, Any], parts: Mapping[str, Any]) -> None:
    """Allow a bare kind in place of a part that requires no other field."""
    union = field.get("items", field)
    union = union if "discriminator" in union else union["anyOf"][0]  # or null
    kinds = union["discriminator"]["mapping"].items()
    _allow([k for k, ref in kinds if parts[ref.split("/")[-1]]["required"] == ["kind"]], union)


def _allow_no_kind(field: dict[str, Any], parts: Mapping[str, Any]) -> None:
    """Allow a part without `kind` that has fields of the default's kind alone."""
    ref = field["discriminator"]["mapping"][field["default"]["kind"]]
    part = parts[ref.split("/")[-1]]
    others = {name: each for name, each in part["properties"].items() if name != "kind"}
    required = [name for name in part["required"] if name != "kind"]
    # At least one property, since `fill_kinds` leaves an empty part alone.
    alone = part | {"properties": others, "required": required, "minProperties": 1}
    field["oneOf"] = [*field["oneOf"], alone]


def _allow(names: list[str], union: dict[str, Any]) -> None:
    """Allow one of these names as another member of a union."""
    union["oneOf"] = [{"enum": names}, *union["oneOf"]]


def start_file(name: str, source: str, into: Path) -> Path:
    """Write NAME.yaml and the schema beside it; raise SimsplitError if NAME.yaml exists."""
    name = name.removesuffix(SUFFIX)
    if not re.fullmatch(_NAME, name):
        raise SimsplitError(
            f"new: '{name}' is not allowed as a name; use letters, digits, dots, dashes and "
            "underscores, with a letter or digit first"
        )
    file, original = into / f"{name}{SUFFIX}", locate(Path(source))
    if file.exists():
        raise SimsplitError(f"new: {file} exists already; choose another name")
    read(original, {})  # raises ScenarioError if the original is no valid file
    # As text, since a dump of its values would lose the comments.
    text = original.read_text(encoding="utf-8")
    text = re.sub(r"^name:\s*\S+", f"name: {name}", text, count=1, flags=re.MULTILINE)
    if not re.search(r"^name:", text, flags=re.MULTILINE):
        text = f"name: {name}\n{text}"
    # Commands in comments name the new file.
    old = rf"(?:scenarios/)?(?:[\w/]+/)?{re.escape(original.stem)}(?:\{SUFFIX})?(?=\s|$)"
    text = re.sub(
        rf"^(#.*simsplit (?:run|sweep) ){old}", rf"\g<1>{file.name}", text, flags=re.MULTILINE
    )
    text = re.sub(
        r"^extends:\s*(\S+)", lambda m: _move_extends(m[1], original), text, flags=re.MULTILINE
    )
    replace(file, f"# yaml-language-server: $schema={SCHEMA_FILE}\n{text}".encode())
    schema = json.dumps(file_schema(), indent=2)
    replace(into / SCHEMA_FILE, f"{schema}\n".encode())
    return file


def _move_extends(parent: str, child: Path) -> str:
    """Return the line `extends` that names the same parent from another folder."""
    path = (child.parent / parent).resolve()
    if path.is_relative_to(find_folder()):
        # By name, since the package lies elsewhere on another machine.
        return f"extends: {path.relative_to(find_folder()).with_suffix('').as_posix()}"
    return f"extends: {path}"
