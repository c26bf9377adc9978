"""pydantic's errors in the scenario's own words: field, what was got, what is allowed, what is near."""

import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simsplit.errors import ScenarioError, near

_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping of fields",
    "path": "a path",
}


def explain(
    error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]
) -> ScenarioError:
    """All of a validation's problems as one ScenarioError, a line each."""
    return ScenarioError.of_many([_explain(one, model, values) for one in error.errors()])


def _explain(
    error: ErrorDetails, model: type[BaseModel], values: Mapping[str, Any]
) -> ScenarioError:
    path, owner = _locate(error["loc"], model, values)
    field = ".".join(str(part) for part in path)
    kind, ctx, got = error["type"], error.get("ctx", {}), error["input"]
    if kind == "extra_forbidden":
        known = sorted(owner.model_fields) if owner else []
        allowed = f"allowed: {', '.join(known)}"
        return ScenarioError(field, f"unknown field{near(str(path[-1]), known) or ','} {allowed}")
    if kind == "union_tag_invalid":
        known = [word.strip().strip("'") for word in str(ctx["expected_tags"]).split(",")]
        return ScenarioError(f"{field}.kind", _unknown(str(ctx["tag"]), known))
    if kind == "union_tag_not_found":
        return ScenarioError(
            f"{field}.kind", f"missing; {_shown(got)} does not say which kind it is"
        )
    if kind == "literal_error":
        known = [word.strip("'") for word in str(ctx["expected"]).replace(" or ", ", ").split(", ")]
        return ScenarioError(field, _unknown(str(got), known))
    return ScenarioError(field, _reason(kind, ctx, got, error["msg"]))


def _reason(kind: str, ctx: Mapping[str, Any], got: object, message: str) -> str:
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"must be {words} {ctx[name]:g}, got {_shown(got)}"
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind == "string_pattern_mismatch":
        return f"must match {ctx['pattern']}, got {_shown(got)}"
    if (wanted := _TYPES.get(kind.split("_")[0])) is not None:
        return f"must be {wanted}, got {_shown(got)}"
    return f"{message[0].lower()}{message[1:]}, got {_shown(got)}"


def _unknown(got: str, known: list[str]) -> str:
    return f"unknown '{got}'{near(got, known) or ','} allowed: {', '.join(known)}"


def _shown(got: object) -> str:
    text = "null" if got is None else repr(got)
    return text if len(text) <= 60 else text[:57] + "..."


def _locate(
    loc: tuple[int | str, ...],
    model: type[BaseModel],
    values: Any,  # noqa: ANN401
) -> tuple[list[int | str], type[BaseModel] | None]:
    """The field path without pydantic's union tags, and the config that holds the last field."""
    path: list[int | str] = []
    annotation: Any = model
    owner: type[BaseModel] | None = model
    here = values
    for part in loc:
        below = _members(annotation)
        if isinstance(part, str) and _tagged(below, part) is not None and not _has(here, part):
            annotation = _tagged(below, part)
            continue
        path.append(part)
        config = next((m for m in below if isinstance(m, type) and issubclass(m, BaseModel)), None)
        owner = config if isinstance(part, str) else owner
        annotation = _below(below, config, part)
        here = _get(here, part)
    return path, owner


def _members(annotation: Any) -> list[Any]:  # noqa: ANN401
    """The alternatives of an annotation, unions and Annotated opened."""
    if hasattr(annotation, "__metadata__"):
        return _members(annotation.__origin__)
    if get_origin(annotation) in (Union, types.UnionType):
        return [m for option in get_args(annotation) for m in _members(option)]
    return [annotation]


def _tagged(members: list[Any], tag: str) -> Any:  # noqa: ANN401
    for member in members:
        if isinstance(member, type) and issubclass(member, BaseModel):
            kind = member.model_fields.get("kind")
            if kind is not None and tag in get_args(kind.annotation):
                return member
    return None


def _below(members: list[Any], config: type[BaseModel] | None, part: int | str) -> Any:  # noqa: ANN401
    if isinstance(part, int):
        return next((get_args(m)[0] for m in members if get_args(m)), None)
    field = config.model_fields.get(part) if config else None
    return field.annotation if field else None


def _has(here: Any, part: str) -> bool:  # noqa: ANN401
    return isinstance(here, Mapping) and part in here


def _get(here: Any, part: int | str) -> Any:  # noqa: ANN401
    try:
        return here[part]
    except (KeyError, IndexError, TypeError):
        return None
