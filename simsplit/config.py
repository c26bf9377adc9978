"""This module defines the base of every part's config: frozen, and strict about unknown fields.

A part (a method, a partition, an optimizer, ...) keeps its config beside its code; the room
`scenario` composes them. So the schema, the errors and `simsplit list` come from these classes.
"""

from pydantic import BaseModel, ConfigDict

from simsplit.renamed import Renamed


class Config(Renamed, BaseModel):
    """The base of all parts of a scenario: frozen, strict, with field docstrings as help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=True
    )

    @property
    def kind_name(self) -> str:
        """The part's `kind` in a scenario."""
        return str(getattr(self, "kind"))  # noqa: B009 - only parts with a kind are asked
