"""This module defines the base of every part's config: frozen, and strict about unknown fields.

A part (a method, a partition, an optimizer, ...) keeps its config beside its code; the room
`scenario` composes them. So the schema, the errors and `simsplit list` come from these classes.
"""

import ast
import inspect
import operator
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache, reduce
from itertools import pairwise
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema

MOST_PARTS = 100
"""Methods, attacks, detectors and other parts in a list, at most: each one takes time to check."""


class Config(BaseModel):
    """The base of all parts of a scenario: frozen, strict, with field docstrings as help."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add what each field means to the schema."""
        schema = handler(core_schema)
        fields = handler.resolve_ref_schema(schema).get("properties", {})
        for name, meaning in read_meanings(cls).items():
            if name in fields:
                fields[name].setdefault("description", meaning)
        return schema

    @property
    def kind_name(self) -> str:
        """The part's `kind` in a scenario."""
        return str(getattr(self, "kind"))  # noqa: B009 - only parts with a kind are asked


def map_kinds(part: object) -> dict[str, type[Any]]:
    """Return the configs of a part with several kinds, `Annotated[A | B, ...]`, by their kinds."""
    configs = get_args(get_args(part)[0])
    return {
        kind: each for each in configs for kind in get_args(each.model_fields["kind"].annotation)
    }


def expand_kind(value: object) -> object:
    """Return a bare kind as a part without other fields."""
    return {"kind": value} if isinstance(value, str) else value


def join_configs(configs: Collection[type[Config]]) -> Any:  # noqa: ANN401 - a type, made here
    """Return configs as one type, which `kind` distinguishes."""
    together: Any = reduce(operator.or_, configs)
    return together if len(configs) == 1 else Annotated[together, Discriminator("kind")]


@cache
def read_meanings(config: type[Any]) -> Mapping[str, str]:
    """Return what a config's fields mean: the docstrings below them, or below what they inherit.

    They are read when somebody asks: as classes are made, this was a seventh of a command's start.
    """
    found: dict[str, str] = {}
    for each in reversed([each for each in config.__mro__ if issubclass(each, Config)]):
        found |= _read_module(each.__module__).get(each.__qualname__, {})
    return found


@cache
def _read_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings of fields by their class; nothing where there is no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError):
        return {}
    return dict(_read_classes(tree, ""))


def _read_classes(inside: ast.AST, place: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each class's qualified name and its fields' docstrings, nested ones too."""
    for node in ast.iter_child_nodes(inside):
        if isinstance(node, ast.ClassDef):
            yield f"{place}{node.name}", dict(_read_fields(node))
            yield from _read_classes(node, f"{place}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _read_classes(node, f"{place}{node.name}.<locals>.")
        else:
            yield from _read_classes(node, place)


def _read_fields(owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield annotated names with the strings that stand below them."""
    for field, below in pairwise(owner.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield field.target.id, inspect.cleandoc(text)
