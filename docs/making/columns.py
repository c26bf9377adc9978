"""The columns of a run's tables that every run may have, as their rows declare them."""

import dataclasses
import inspect
from collections.abc import Iterator

from making.markup import code, plain, table
from making.signatures import fields
from simsplit import rows

_HEAD = """\
# Columns of tables

The columns that every run may have. A column is empty, or left out, where a run has no use for it. Columns that depend on the scenario
(metrics of evaluated splits, what methods report, detectors' scores) stand where it says "further columns". The other tables of
[the run directory](run-directory.md) depend on the attacks and the noise of a scenario.
"""
_KINDS = {
    "int": "whole number",
    "float": "number",
    "str": "text",
    "ClientId": "client",
    "Leg": "leg",
}
_FURTHER = "further"


def page() -> str:
    """Return a section for each table, with its columns in their order."""
    return "\n\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for made in vars(rows).values():
        if inspect.isclass(made) and dataclasses.is_dataclass(made):
            yield f"## {made.__name__.removesuffix('Row').lower()}\n\n{plain(inspect.getdoc(made) or '')}"
            yield table(("column", "type", "meaning"), _columns(made))


def _columns(made: type) -> Iterator[tuple[str, str, str]]:
    words = {name: meaning for name, _, meaning in fields(made)}
    for each in dataclasses.fields(made):
        kind = getattr(each.type, "__name__", str(each.type)).split(" | ")[0]
        if each.name == _FURTHER:
            yield "*further columns*", "", plain(words.get(each.name, ""))
        else:
            yield code(each.name), _KINDS.get(kind, kind), plain(words.get(each.name, ""))
