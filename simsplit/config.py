"""This module defines the base of every part's config: frozen, and strict about unknown fields.

A part (a method, a partition, an optimizer, ...) keeps its config beside its code; the room
`scenario` composes them. So the schema, the errors and `simsplit list` come from these classes.
"""

import functools
import operator
from collections.abc import Collection
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Discriminator

MOST_PARTS = 100
"""Methods, attacks, detectors and other parts in a list, at most: each one takes time to check."""


class Config(BaseModel):
    """The base of all parts of a scenario: frozen, strict, with field docstrings as help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=True
    )

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
    together: Any = functools.reduce(operator.or_, configs)
    return together if len(configs) == 1 else Annotated[together, Discriminator("kind")]
