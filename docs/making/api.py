"""The Python API: every name of `simsplit.__all__`, with its signature and docstring."""

import inspect
from collections.abc import Iterator

import simsplit
from making.signatures import format_docstring, function, initial, members

_HEAD = """\
# Python

All names below are imported from `simsplit`. Tables are pandas DataFrames. [From Python](../howto/python.md) has them in use;
[Plugins](plugins.md) has the base classes of other parts.
"""
_WITHOUT_MEMBERS = ("Scenario",)
"""Whose fields are in the reference of scenarios, and whose methods are for the package itself."""


def page() -> str:
    """Return a section for each public name: functions first, then classes, then errors."""
    names = sorted(simsplit.__all__, key=_rank)
    return "\n\n".join([_HEAD, *(_section(name) for name in names)])


def _rank(name: str) -> tuple[int, str]:
    made = getattr(simsplit, name)
    if not inspect.isclass(made):
        return 0, name
    return 2 if issubclass(made, BaseException) else 1, name


def _section(name: str) -> str:
    made = getattr(simsplit, name)
    if not inspect.isclass(made):
        return f"## {name}\n\n{function(made)}"
    return "\n\n".join([f"## {name}", *_of_class(name, made)])


def _of_class(name: str, made: type) -> Iterator[str]:
    if signature := initial(made):
        yield signature
    yield format_docstring(made)
    if name in _WITHOUT_MEMBERS:
        yield "Its fields: [scenario](scenario.md)."
    elif not issubclass(made, BaseException):
        for member, text in members(made):
            yield f"### {name}.{member}\n\n{text}"
