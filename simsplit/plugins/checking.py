"""A plugin's exports are checked when it is loaded, so that errors name the plugin's own parts."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

from simsplit.errors import SimsplitError, suggest
from simsplit.metrics.classification import METRICS as SHIPPED
from simsplit.plugins.parts import EXPORTS, METRICS, PARTS, SHAPES, WORDS, Part
from simsplit.results.recovers import RECOVERS
from simsplit.topologies import TOPOLOGIES, Topology

Parts = Mapping[str, Mapping[str, Any]]
"""Exported parts: the name of a dict -> a kind -> a config class or function."""

_KIND = re.compile(r"[a-z][a-z0-9_]*")
"""A kind must fit field values, columns of tables and names of folders."""


def check_exports(plugin: str, exported: Mapping[str, Any]) -> Parts:
    """Return the parts among a module's names; raise SimsplitError if one is unfit, or none is."""
    own = {name: exported[name] for name in EXPORTS if _is_own(name, exported)}
    if not own:
        hint = _suggest_name(exported)
        raise SimsplitError(f"plugin {plugin}: has none of {', '.join(EXPORTS)}{hint}")
    for name, parts in own.items():
        for problem in _list_problems(name, parts):
            raise SimsplitError(f"plugin {plugin}: {problem}")
    return own


def _is_own(name: str, exported: Mapping[str, Any]) -> bool:
    """Return whether a module has a dict of its own by this name.

    A module may also have imported the dict that ships, to build on it.
    """
    shipped = _VALUES[name].shipped if name in _VALUES else PARTS[name].shipped
    return name in exported and exported[name] is not shipped


def _suggest_name(exported: Mapping[str, Any]) -> str:
    """Return a hint on a dict whose name is nearly one of a plugin's exports."""
    for name, value in exported.items():
        if isinstance(value, dict) and (suggestion := suggest(name.upper(), EXPORTS)):
            return f"; it has {name}{suggestion}"
    return ""


def _list_problems(name: str, parts: Any) -> Iterator[str]:  # noqa: ANN401 - any export
    wanted = _VALUES[name].wanted if name in _VALUES else f"{_name_bases(PARTS[name])} classes"
    if not isinstance(parts, Mapping):
        yield f"{name} must be a dict of names -> {wanted}, got {type(parts).__name__}"
        return
    for kind, part in parts.items():
        if not (isinstance(kind, str) and _KIND.fullmatch(kind)):
            yield f"{name}[{kind!r}] must be named in lower case, digits and underscores"
        problem = (
            _find_value_problem(name, kind, part)
            if name in _VALUES
            else _find_problem(PARTS[name], kind, part)
        )
        if problem is not None:
            yield f"{name}['{kind}'] {problem}"


class _Values(NamedTuple):
    """Parts that are not configs, and how they are checked."""

    word: str
    wanted: str
    shipped: Mapping[str, Any]
    fits: Callable[[object], bool]
    misfit: str


_VALUES = {
    METRICS: _Values(
        "metric",
        "functions",
        SHIPPED,
        lambda part: callable(part) and not isinstance(part, type),
        "is no function of outputs and labels",
    ),
    SHAPES: _Values(
        "topology",
        "Topology values",
        TOPOLOGIES,
        lambda part: isinstance(part, Topology),
        "is no Topology",
    ),
}


def _find_value_problem(name: str, kind: str, part: object) -> str | None:
    """Return why a part that is not a config cannot join its kind of parts, or None."""
    values = _VALUES[name]
    if not values.fits(part):
        return values.misfit
    if any(kind in words for words, home in WORDS.items() if home == name):
        word = values.word
        return f"is there already: '{kind}' is a {word} that ships; choose another name"
    return None


def _find_problem(part: Part, kind: str, config: object) -> str | None:
    """Return why a config cannot join its kind of parts, or None."""
    if not (isinstance(config, type) and issubclass(config, part.bases)):
        return f"is no {_name_bases(part)} class"
    if missing := sorted(getattr(config, "__abstractmethods__", ())):
        return f"is not complete: {config.__name__} does not define {', '.join(missing)}"
    recovers = getattr(config, "recovers", None)
    if recovers is not None and recovers not in RECOVERS:
        known = f"{suggest(recovers, RECOVERS) or ','} allowed: {', '.join(RECOVERS)}"
        return f"recovers unknown '{recovers}'{known}"
    field = config.model_fields.get("kind")
    default = None if field is None else field.default
    is_literal = field is not None and get_origin(field.annotation) is Literal
    values = get_args(field.annotation if field else None)
    if default != kind or not is_literal or values != (kind,):
        return f"needs `kind: Literal['{kind}'] = '{kind}'`, got {default!r}"
    if kind in part.shipped:
        return f"is there already: '{kind}' is a {part.word} that ships; choose another name"
    return None


def _name_bases(part: Part) -> str:
    return " or ".join(base.__name__ for base in part.bases)
