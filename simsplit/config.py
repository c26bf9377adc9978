"""The base of every part's config: frozen, and strict about unknown fields.

A part (a method, a partition, an optimizer, ...) keeps its config beside its code; `scenario.py`
composes them. So the schema, the errors and `simsplit list` all come from these classes.
"""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Base of all fields of a scenario: frozen, strict, with field docstrings as help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=True
    )

    @property
    def word(self) -> str:
        """The part's `kind`, as scenarios name it."""
        return str(getattr(self, "kind"))  # noqa: B009 - parts without a kind are not asked
