"""pydantic's errors in the scenario's own words: field, what was got, what is allowed, near."""

import json
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simsplit.errors import ScenarioError, near
from simsplit.scenario.kinds import Kinds, without_kind

_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
_RENAMED = {
    "evaluate.new_words": "max_new_tokens",
    "evaluate.written": "generated_texts",
}
"""Fields of older scenarios, and what they are called now."""
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping of fields",
    "path": "a path",
}
_DEEPEST, _MOST = 3, 2
"""Levels of a scenario that are searched for a misplaced name, and places that are named."""
_SURE = 0.85
"""How like a field's name a word must be to be named before its like elsewhere: `head`, `heads`."""


def explain(
    error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]
) -> ScenarioError:
    """All of a validation's problems as one ScenarioError, a line each."""
    found = error.errors()
    wrong = [one["loc"] for one in found]
    # an entry that is wrong is not counted by pydantic, which then finds the list too short
    said = [one for one in found if one["type"] != "too_short" or not _within(one["loc"], wrong)]
    return ScenarioError.of_many([_explain(one, model, values) for one in said])


def _within(loc: tuple[int | str, ...], others: Sequence[tuple[int | str, ...]]) -> bool:
    """Whether one of the others is further down the same path."""
    return any(len(other) > len(loc) and other[: len(loc)] == loc for other in others)


def left_over(error: ScenarioError, overrides: Mapping[str, Any]) -> ScenarioError:
    """The error; of a field that a part of another kind left behind, with what drops it."""
    return ScenarioError.of_many([_left_over(one, overrides) for one in error.problems])


def _left_over(problem: ScenarioError, overrides: Mapping[str, Any]) -> ScenarioError:
    part = problem.field.rpartition(".")[0]
    if not part or f"{part}.kind" not in overrides or problem.field in overrides:
        return problem
    kind = overrides[f"{part}.kind"]
    cure = f"--set {part}={kind} in place of {part}.kind drops it"
    reason = f"{problem.reason}; if it is left over from another kind, {cure}"
    return ScenarioError(problem.field, reason)


def refuse_misread(values: Mapping[str, Any], made: BaseModel) -> None:
    """ScenarioError where pydantic made a number of what nobody meant as one: true, false, .nan."""
    if found := list(_misread(values, made, ())):
        raise ScenarioError.of_many(found)


def unknown(got: object, known: Sequence[str]) -> str:
    """What is wrong with a word that is none of the known ones."""
    allowed = f"allowed: {', '.join(known)}"
    if not isinstance(got, str):
        return f"got {shown(got)}; {allowed}"
    return f"unknown '{got}'{near(got, known) or ','} {allowed}"


def _misread(got: Any, made: Any, path: tuple[str, ...]) -> Iterator[ScenarioError]:  # noqa: ANN401
    if isinstance(got, Mapping):
        for name, value in got.items():
            yield from _misread(value, getattr(made, name, None), (*path, name))
    elif isinstance(got, list | tuple):
        for index, value in enumerate(got):
            yield from _misread(value, made[index], (*path, str(index)))
    elif isinstance(got, bool) != isinstance(made, bool) and isinstance(made, int | float):
        wanted = "true or false" if isinstance(made, bool) else "a number"
        if not isinstance(got, str):  # words such as yes are for pydantic to judge
            yield ScenarioError(".".join(path), f"must be {wanted}, got {shown(got)}")
    elif isinstance(made, float) and math.isnan(made):
        yield ScenarioError(".".join(path), "must be a number, got .nan")


def _explain(
    error: ErrorDetails, model: type[BaseModel], values: Mapping[str, Any]
) -> ScenarioError:
    path, owner, kinds = _locate(error["loc"], model, values)
    field = ".".join(str(part) for part in path)
    kind, ctx, got = error["type"], error.get("ctx", {}), error["input"]
    if kind in ("extra_forbidden", "invalid_key"):
        return ScenarioError(field, _misplaced(field, error["loc"], owner, model, values))
    if kinds and kind in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type"):
        bare = isinstance(_at(values, path), str)
        return _which_kind(field, got, kinds, bare=bare, model=model)
    if kind == "literal_error":
        known = [word.strip("'") for word in str(ctx["expected"]).replace(" or ", ", ").split(", ")]
        return ScenarioError(field, unknown(got, known))
    if kind == "string_pattern_mismatch" and owner is not None:
        meaning = owner.model_fields[str(path[-1])].description or f"what matches {ctx['pattern']}"
        return ScenarioError(field, f"got {shown(got)}; allowed: {' '.join(meaning.split())}")
    return ScenarioError(field, _reason(kind, ctx, got, error["msg"]))


def _misplaced(
    field: str,
    loc: tuple[int | str, ...],
    owner: type[BaseModel] | None,
    model: type[BaseModel],
    values: Mapping[str, Any],
) -> str:
    """What is wrong with a field that its config does not have, though another kind may."""
    if field in _RENAMED:
        return f"renamed, use {_RENAMED[field]}"
    kinds, name = _locate(loc[:-2], model, values)[2], str(loc[-1])
    if others := [kind for kind, one in kinds.items() if name in one.model_fields]:
        own = ", ".join(owner.model_fields) if owner else "none"
        return f"belongs to kind {' or '.join(others)}; {loc[-2]} has {own}"
    return unknown_field(name, owner, model)


def unknown_field(
    name: str, owner: type[BaseModel] | None, model: type[BaseModel] | None = None
) -> str:
    """What is wrong with a field that its config does not have; the model may have it elsewhere."""
    known = list(owner.model_fields) if owner else []
    place = _place_of(name, model) if model is not None else ""
    hint = near(name, known)
    if place:
        beside = [f"'{each}'" for each in get_close_matches(name, known, 1, _SURE)]
        hint = f", did you mean {' or '.join([*beside, place])}?"
    return f"unknown field{hint or ','} allowed: {', '.join(known)}"


def _which_kind(
    field: str, got: object, kinds: Kinds, *, bare: bool, model: type[BaseModel]
) -> ScenarioError:
    """A part whose `kind` is missing, unknown, or not in its place."""
    if isinstance(got, Mapping) and "kind" in got:
        # a bare word has been spelled out on the way: blame what the user wrote
        wrong = unknown(got["kind"], [*kinds])
        if not near(str(got["kind"]), kinds) and (place := _place_of(str(got["kind"]), model)):
            wrong += f"; '{got['kind']}' goes under {place}"
        return ScenarioError(field if bare else f"{field}.kind", wrong)
    if isinstance(got, Mapping):
        return without_kind(field, got, kinds)
    meant = f"; write {{kind: {got}}}" if got in [*kinds] else f"; its kinds: {', '.join(kinds)}"
    return ScenarioError(field, f"must be a mapping of fields, got {shown(got)}{meant}")


def _reason(kind: str, ctx: Mapping[str, Any], got: object, message: str) -> str:
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"must be {words} {ctx[name]:g}, got {shown(got)}"
    if kind == "missing":
        return f"missing, got only {shown(got)}"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind in ("too_long", "too_short"):
        limit = ctx["max_length" if kind == "too_long" else "min_length"]
        entries = "entry" if limit == 1 else "entries"
        bound = "most" if kind == "too_long" else "least"
        return f"must have at {bound} {limit} {entries}, got {shown(got)}"
    if (wanted := _TYPES.get(kind.split("_")[0])) is not None:
        return f"must be {wanted}, got {shown(got)}"
    return f"{message[0].lower()}{message[1:]}, got {shown(got)}"


def shown(got: object) -> str:
    """A value much as YAML spells it, cut short where it is long."""
    text = repr(got)
    if not isinstance(got, str):
        with suppress(ValueError):  # a list that holds itself, as YAML's aliases can make one
            text = json.dumps(got, default=str, skipkeys=True)
    return text if len(text) <= 60 else text[:57] + "..."


def _locate(
    loc: tuple[int | str, ...],
    model: type[BaseModel],
    values: Any,  # noqa: ANN401
) -> tuple[list[int | str], type[BaseModel] | None, Kinds]:
    """(field path, config that holds the last field, kinds it chooses among, if it does).

    pydantic's own path has the tags of unions in it, which no user wrote.
    """
    path: list[int | str] = []
    annotation: Any = model
    owner: type[BaseModel] | None = model
    for part in loc:
        below = _members(annotation)
        if _kinds(below):
            annotation = _tagged(below, str(part))
            continue
        if isinstance(part, str) and len(below) > 1 and not any(map(_is_config, below)):
            continue  # which of a union's members has been tried
        path.append(part)
        config = next((m for m in below if _is_config(m)), None)
        owner = config if isinstance(part, str) else owner
        annotation = _below(below, config, part)
    return path, owner, _kinds(_members(annotation))


def _place_of(name: str, model: type[BaseModel]) -> str:
    """Where a scenario has fields, or parts of a kind, of this name, in words; few, and single
    parts before those of lists.
    """
    level: list[tuple[str, type[BaseModel]]] = [("", model)]
    single: dict[str, None] = {}
    listed: dict[str, None] = {}
    for _ in range(_DEEPEST):
        below: list[tuple[str, type[BaseModel]]] = []
        for path, config in level:
            for field, info in config.model_fields.items():
                direct = _members(info.annotation)
                inner = [m for each in direct for arg in get_args(each) for m in _members(arg)]
                place = f"{path}.{field}{'.0' * any(map(_is_config, inner))}".strip(".")
                if name == field or name in _kinds([*direct, *inner]):
                    (listed if ".0" in place else single)[place] = None
                below += [(place, member) for member in (*direct, *inner) if _is_config(member)]
        level = below
    return " or ".join([*(single or listed)][:_MOST])


def _kinds(members: list[Any]) -> Kinds:
    """The configs of a union by the kinds that tell them apart; empty where it is no such union."""
    configs = [member for member in members if _is_config(member)]
    if len(configs) < 2:
        return {}
    return {k: c for c in configs for k in get_args(c.model_fields["kind"].annotation)}


def _is_config(member: Any) -> bool:  # noqa: ANN401
    return isinstance(member, type) and issubclass(member, BaseModel)


def _members(annotation: Any) -> list[Any]:  # noqa: ANN401
    """The alternatives of an annotation, unions and Annotated opened."""
    if hasattr(annotation, "__metadata__"):
        return _members(annotation.__origin__)
    if get_origin(annotation) in (Union, types.UnionType):
        return [m for option in get_args(annotation) for m in _members(option)]
    return [annotation]


def _tagged(members: list[Any], tag: str) -> Any:  # noqa: ANN401
    return next((member for member in members if tag in _kinds([member, member])), None)


def _below(members: list[Any], config: type[BaseModel] | None, part: int | str) -> Any:  # noqa: ANN401
    if isinstance(part, int):
        return next((get_args(m)[0] for m in members if get_args(m)), None)
    field = config.model_fields.get(part) if config else None
    return field.annotation if field else None


def _at(values: Any, path: list[int | str]) -> Any:  # noqa: ANN401
    """What the user wrote at a path, or None."""
    for part in path:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return None
    return values
