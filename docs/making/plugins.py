"""What a plugin may export, and the base classes of its parts, as a page."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from making.markup import code, plain, table
from making.signatures import fields, format_docstring, members
from simsplit.plugins import PARTS
from simsplit.plugins.parts import EXPORTS, METRICS, SHAPES
from simsplit.topologies import Topology

_EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
_HEAD = """\
# Plugins

A plugin is a Python module that exports one or more of these dicts. A key is the kind that a scenario names. A value is a config
class: its fields are what a scenario may set, and their docstrings are what `simsplit list` says of them. `METRICS` holds functions
and `TOPOLOGIES` holds values. [Your own method](../howto/own-method.md) is the place to start.
"""


def page() -> str:
    """Return the table of dicts, and each base class with its hooks."""
    rows = [(code(name), _bases(name), _examples(name)) for name in EXPORTS]
    head = table(("dict", "base class", "example in `examples/plugins/`"), rows)
    return "\n\n".join([_HEAD, head, *_sections()])


def _bases(name: str) -> str:
    if name == METRICS:
        return "none: functions of `(outputs, labels)` that return a number"
    if name == SHAPES:
        return code(_path(Topology))
    return ", ".join(code(_path(base)) for base in PARTS[name].bases)


def _path(made: type) -> str:
    return f"{made.__module__}.{made.__name__}"


def _examples(name: str) -> str:
    files = (file for file in sorted(_EXAMPLES.glob("*.py")))
    return ", ".join(code(file.name) for file in files if name in vars_of(file))


def vars_of(file: Path) -> set[str]:
    """Return the names of upper case that a plugin's file assigns."""
    return set(re.findall(r"^([A-Z_]+) = ", file.read_text(encoding="utf-8"), re.MULTILINE))


def _sections() -> Iterator[str]:
    for name in EXPORTS:
        bases = (Topology,) if name == SHAPES else () if name == METRICS else PARTS[name].bases
        for base in bases:
            yield from _section(base)
            for made in _builds(base):
                yield from _section(made)


def _builds(base: type) -> Iterator[type]:
    """Yield the abstract class that a config's `build` returns, if it says so."""
    build = getattr(base, "build", None)
    returns: Any = get_type_hints(build).get("return") if build else None
    if inspect.isclass(returns):
        yield returns


def _section(made: type) -> Iterator[str]:
    yield f"## {made.__name__}\n\n`from {made.__module__} import {made.__name__}`\n\n{format_docstring(made)}"
    if rows := [(code(name), code(kind), plain(words)) for name, kind, words in fields(made)]:
        yield table(("field", "type", "meaning"), rows)
    for member, text in members(made):
        yield f"### {made.__name__}.{member}\n\n{text}"
