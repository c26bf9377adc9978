"""pydantic's errors are turned into messages that name the field, the value and those allowed."""

import json
import math
import re
import types
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from simsplit.config import read_meanings
from simsplit.errors import ScenarioError, suggest
from simsplit.scenario.kinds import Kinds, explain_missing_kind

_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}
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
"""Levels of a scenario that are searched for a misplaced name, and most places that are named."""
_LONG = 10**6
"""The least bound that is written with commas; `:g` would round it."""
_MOST_EXPLAINED = 50
"""Most mistakes of a scenario that are explained: a file of thousands is no scenario."""
ABSENT = object()
_SURE = 0.85
"""The similarity at which a field of the same part is suggested along with one elsewhere, as
`heads` is for `head`."""


def explain(
    error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]
) -> ScenarioError:
    """Return all problems of a validation as one ScenarioError, a line each."""
    problems = error.errors()
    # pydantic does not count wrong entries, and then reports that their list is too short
    above = {one["loc"][:end] for one in problems for end in range(len(one["loc"]))}
    kept = [one for one in problems if one["type"] != "too_short" or one["loc"] not in above]
    explained = [_explain(one, model, values) for one in kept[:_MOST_EXPLAINED]]
    if (more := len(kept) - len(explained)) > 0:
        explained.append(ScenarioError("", f"{more:,} more mistakes"))
    return ScenarioError.of_many(explained)


def explain_left_over(error: ScenarioError, overrides: Mapping[str, Any]) -> ScenarioError:
    """Return the error, with a remedy for fields left over from a part's kind in the file."""
    problems = []
    for problem in error.problems:
        part = problem.field.rpartition(".")[0]
        if part and f"{part}.kind" in overrides and problem.field not in overrides:
            kind = overrides[f"{part}.kind"]
            cure = f"--set {part}={kind} in place of {part}.kind drops it"
            reason = f"{problem.reason}; if it is left over from another kind, {cure}"
            problem = ScenarioError(problem.field, reason)
        problems.append(problem)
    return ScenarioError.of_many(problems)


def refuse_misread(values: Mapping[str, Any], made: BaseModel) -> None:
    """Raise ScenarioError for a boolean that pydantic read as a number, the reverse, or .nan.

    `made` is the model that pydantic has made from `values`.
    """
    if problems := list(_find_misread(values, made, ())):
        raise ScenarioError.of_many(problems)


def describe_unknown(got: object, known: Sequence[str]) -> str:
    """Return the reason to refuse a name that is none of the known ones, which it lists."""
    allowed = f"allowed: {', '.join(known)}"
    if not isinstance(got, str):
        return f"got {format_value(got)}; {allowed}"
    return f"unknown '{got}'{suggest(got, known) or ','} {allowed}"


def _find_misread(got: Any, made: Any, path: tuple[str, ...]) -> Iterator[ScenarioError]:  # noqa: ANN401
    """Yield an error for each value that pydantic has read as another type."""
    if isinstance(got, Mapping):
        for name, value in got.items():
            # a field without fields of its own, such as `tune`, is still a mapping
            of = made.get(name) if isinstance(made, Mapping) else getattr(made, name, None)
            yield from _find_misread(value, of, (*path, name))
    elif isinstance(got, list | tuple):
        for index, value in enumerate(got):
            yield from _find_misread(value, made[index], (*path, str(index)))
    # pydantic takes true for 1 and 1 for true, which hardly a user means.
    elif isinstance(got, bool) != isinstance(made, bool) and isinstance(made, int | float):
        wanted = "true or false" if isinstance(made, bool) else "a number"
        if not isinstance(got, str):  # pydantic decides which texts, such as yes, it accepts
            yield ScenarioError(".".join(path), f"must be {wanted}, got {format_value(got)}")
    elif isinstance(made, float) and math.isnan(made):
        yield ScenarioError(".".join(path), "must be a number, got .nan")


def _explain(
    error: ErrorDetails, model: type[BaseModel], values: Mapping[str, Any]
) -> ScenarioError:
    """Return one of pydantic's errors as a ScenarioError at the field that the user wrote."""
    path, owner, kinds = _locate(error["loc"], model, values)
    field = ".".join(str(part) for part in path)
    kind, ctx, got = error["type"], error.get("ctx", {}), error["input"]
    if kind in ("extra_forbidden", "invalid_key"):
        return ScenarioError(field, _describe_misplaced(field, error["loc"], owner, model, values))
    if kinds and kind in ("union_tag_invalid", "union_tag_not_found", "model_attributes_type"):
        bare = isinstance(find_value(values, field), str)
        return _explain_kind(field, got, kinds, bare=bare, model=model)
    if kind == "literal_error":
        # pydantic gives the allowed words as a sentence alone.
        known = [word.strip("'") for word in str(ctx["expected"]).replace(" or ", ", ").split(", ")]
        return ScenarioError(field, describe_unknown(got, known))
    if kind == "string_pattern_mismatch" and owner is not None:
        meaning = read_meanings(owner).get(str(path[-1])) or f"what matches {ctx['pattern']}"
        reason = f"got {format_value(got)}; allowed: {' '.join(meaning.split())}"
        if (near := _find_allowed(str(got), ctx["pattern"])) is not None:
            reason = f"{reason.rstrip('.')}; such as '{near}'"
        return ScenarioError(field, reason)
    return ScenarioError(field, _describe_reason(kind, ctx, got, error["msg"]))


def _find_allowed(text: str, pattern: str) -> str | None:
    """Return a text in plain letters that fits a pattern; None if what is left does not."""
    letters = unicodedata.normalize("NFKD", text.replace("ß", "ss")).encode("ascii", "ignore")
    near = re.sub(r"[^A-Za-z0-9.-]+", "-", letters.decode()).strip("-.")
    return near if re.fullmatch(pattern, near) else None


def _describe_misplaced(
    field: str,
    loc: tuple[int | str, ...],
    owner: type[BaseModel] | None,
    model: type[BaseModel],
    values: Mapping[str, Any],
) -> str:
    """Return the reason to refuse a field that its config lacks, and the kinds that have it."""
    # Two less: pydantic puts the kind between a part and its field.
    kinds, name = _locate(loc[:-2], model, values)[2], str(loc[-1])
    if others := [kind for kind, one in kinds.items() if name in one.model_fields]:
        own = ", ".join(owner.model_fields) if owner else "none"
        return f"belongs to kind {' or '.join(others)}; {loc[-2]} has {own}"
    return describe_unknown_field(name, owner, model)


def describe_unknown_field(
    name: str, owner: type[BaseModel] | None, model: type[BaseModel] | None = None
) -> str:
    """Return the reason to refuse a field that its config lacks, and where the model has it."""
    known = list(owner.model_fields) if owner else []
    place = _find_places(name, model) if model is not None else ""
    hint = suggest(name, known)
    if place:
        beside = [f"'{each}'" for each in get_close_matches(name, known, 1, _SURE)]
        hint = f", did you mean {' or '.join([*beside, place])}?"
    return f"unknown field{hint or ','} allowed: {', '.join(known)}"


def _explain_kind(
    field: str, got: object, kinds: Kinds, *, bare: bool, model: type[BaseModel]
) -> ScenarioError:
    """Return the error for a part whose `kind` is missing, unknown or in the wrong place."""
    if isinstance(got, Mapping) and "kind" in got:
        # a validator has spelled out a bare kind, so the user wrote no field `kind` to blame
        wrong = describe_unknown(got["kind"], [*kinds])
        if not suggest(str(got["kind"]), kinds):
            place = _find_places(str(got["kind"]), model)
            own = "a part of your own needs --plugin FILE"
            wrong += f"; '{got['kind']}' goes under {place}" if place else f"; {own}"
        return ScenarioError(field if bare else f"{field}.kind", wrong)
    if isinstance(got, Mapping):
        return explain_missing_kind(field, got, kinds)
    meant = f"; write {{kind: {got}}}" if got in [*kinds] else f"; its kinds: {', '.join(kinds)}"
    return ScenarioError(field, f"must be a mapping of fields, got {format_value(got)}{meant}")


def _describe_reason(kind: str, ctx: Mapping[str, Any], got: object, message: str) -> str:
    """Return the reason of an error by pydantic's type of it and its context."""
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        limit = ctx[name]
        allowed = f"{limit:,}" if isinstance(limit, int) and limit >= _LONG else f"{limit:g}"
        return f"must be {words} {allowed}, got {format_value(got)}"
    if kind == "missing":
        return f"missing, got only {format_value(got)}"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind in ("too_long", "too_short"):
        limit = ctx["max_length" if kind == "too_long" else "min_length"]
        entries = "entry" if limit == 1 else "entries"
        bound = "most" if kind == "too_long" else "least"
        return f"must have at {bound} {limit} {entries}, got {format_value(got)}"
    if (wanted := _TYPES.get(kind.split("_")[0])) is not None:
        return f"must be {wanted}, got {format_value(got)}"
    return f"{message[0].lower()}{message[1:]}, got {format_value(got)}"


def format_value(got: object) -> str:
    """Return a value much as YAML spells it, cut to 60 characters."""
    text = repr(got)
    if not isinstance(got, str):
        with suppress(ValueError):  # YAML's aliases can make a list that contains itself
            text = json.dumps(got, default=str, skipkeys=True)
    return text if len(text) <= 60 else text[:57] + "..."


def _locate(
    loc: tuple[int | str, ...],
    model: type[BaseModel],
    values: Any,  # noqa: ANN401
) -> tuple[list[int | str], type[BaseModel] | None, Kinds]:
    """Return (path of the field, config that has its last field, kinds allowed there, if any).

    pydantic's own path contains the tags of unions, which no user wrote.
    """
    path: list[int | str] = []
    annotation: Any = model
    owner: type[BaseModel] | None = model
    for part in loc:
        below = _open_union(annotation)
        if _map_kinds(below):
            # Twice, since `_map_kinds` takes a single config for no union.
            annotation = next((m for m in below if str(part) in _map_kinds([m, m])), None)
            continue
        if isinstance(part, str) and len(below) > 1 and not any(map(_is_config, below)):
            continue  # pydantic names the member of the union that it tried
        path.append(part)
        config = next((m for m in below if _is_config(m)), None)
        owner = config if isinstance(part, str) else owner
        annotation = _descend(below, config, part)
    return path, owner, _map_kinds(_open_union(annotation))


def _find_places(name: str, model: type[BaseModel]) -> str:
    """Return the places where a scenario has a field or kind of this name, as text.

    At most `_MOST` are named; entries of lists are left out if single parts fit.
    """
    level: list[tuple[str, type[BaseModel]]] = [("", model)]
    single: dict[str, None] = {}
    listed: dict[str, None] = {}
    for _ in range(_DEEPEST):
        below: list[tuple[str, type[BaseModel]]] = []
        for path, config in level:
            for field, info in config.model_fields.items():
                direct = _open_union(info.annotation)
                inner = [m for each in direct for arg in get_args(each) for m in _open_union(arg)]
                place = f"{path}.{field}{'.0' * any(map(_is_config, inner))}".strip(".")
                if name == field or name in _map_kinds([*direct, *inner]):
                    (listed if ".0" in place else single)[place] = None
                below += [(place, member) for member in (*direct, *inner) if _is_config(member)]
        level = below
    return " or ".join([*(single or listed)][:_MOST])


def _map_kinds(members: list[Any]) -> Kinds:
    """Return the configs of a union by their kinds; empty for other annotations."""
    configs = [member for member in members if _is_config(member)]
    if len(configs) < 2:
        return {}
    return {k: c for c in configs for k in get_args(c.model_fields["kind"].annotation)}


def _is_config(member: Any) -> bool:  # noqa: ANN401
    return isinstance(member, type) and issubclass(member, BaseModel)


def _open_union(annotation: Any) -> list[Any]:  # noqa: ANN401
    """Return the alternatives of an annotation, with unions and Annotated opened."""
    if hasattr(annotation, "__metadata__"):
        return _open_union(annotation.__origin__)
    if get_origin(annotation) in (Union, types.UnionType):
        return [m for option in get_args(annotation) for m in _open_union(option)]
    return [annotation]


def _descend(members: list[Any], config: type[BaseModel] | None, part: int | str) -> Any:  # noqa: ANN401
    if isinstance(part, int):
        return next((get_args(m)[0] for m in members if get_args(m)), None)
    field = config.model_fields.get(part) if config else None
    return field.annotation if field else None


def find_value(values: object, field: str) -> object:
    """Return the value that the user wrote at a dotted field; `ABSENT` if there is none."""
    for key in field.split(".") if field else ():
        if isinstance(values, Mapping) and key in values:
            values = values[key]
        elif isinstance(values, list | tuple) and key.isdecimal() and int(key) < len(values):
            values = values[int(key)]
        else:
            return ABSENT
    return values
