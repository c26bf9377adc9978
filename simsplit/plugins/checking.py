"""Whether what a plugin exports can join a scenario: said when it is loaded, in its own words."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

from simsplit.errors import SimsplitError, near
from simsplit.metrics.classification import METRICS as SHIPPED
from simsplit.plugins.parts import EXPORTS, METRICS, PARTS, SHAPES, WORDS, Part
from simsplit.results.recovers import RECOVERS
from simsplit.topologies import TOPOLOGIES, Topology

Parts = Mapping[str, Mapping[str, Any]]
"""What is exported: name of a dict -> kind -> config class, or function."""

_KIND = re.compile(r"[a-z][a-z0-9_]*")
"""Kinds are field values, columns of tables and names of folders."""


def checked(plugin: str, exported: Mapping[str, Any]) -> Parts:
    """The dicts among what a module has; SimsplitError where one is unfit, or there is none."""
    found = {name: exported[name] for name in EXPORTS if _is_own(name, exported)}
    if not found:
        raise SimsplitError(f"plugin {plugin}: has none of {', '.join(EXPORTS)}{_meant(exported)}")
    for name, parts in found.items():
        for wrong in _problems(name, parts):
            raise SimsplitError(f"plugin {plugin}: {wrong}")
    return found


def _is_own(name: str, exported: Mapping[str, Any]) -> bool:
    """Whether it is there; a module may have imported what ships, to build on it."""
    shipped = _VALUES[name].shipped if name in _VALUES else PARTS[name].shipped
    return name in exported and exported[name] is not shipped


def _meant(exported: Mapping[str, Any]) -> str:
    for name, value in exported.items():
        if isinstance(value, dict) and (meant := near(name.upper(), EXPORTS)):
            return f"; it has {name}{meant}"
    return ""


def _problems(name: str, parts: Any) -> Iterator[str]:  # noqa: ANN401 - whatever it exports
    wanted = _VALUES[name].wanted if name in _VALUES else f"{_bases(PARTS[name])} classes"
    if not isinstance(parts, Mapping):
        yield f"{name} must be a dict of names -> {wanted}, got {type(parts).__name__}"
        return
    for kind, part in parts.items():
        if not (isinstance(kind, str) and _KIND.fullmatch(kind)):
            yield f"{name}[{kind!r}] must be named in lower case, digits and underscores"
        wrong = (
            _wrong_value(name, kind, part) if name in _VALUES else _wrong(PARTS[name], kind, part)
        )
        if wrong is not None:
            yield f"{name}['{kind}'] {wrong}"


class _Values(NamedTuple):
    """Parts that are no configs."""

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


def _wrong_value(name: str, kind: str, part: object) -> str | None:
    values = _VALUES[name]
    if not values.fits(part):
        return values.misfit
    if any(kind in words for words, home in WORDS.items() if home == name):
        word = values.word
        return f"is there already: '{kind}' is a {word} that ships; choose another name"
    return None


def _wrong(part: Part, kind: str, config: object) -> str | None:
    """Why a config cannot join its kind of parts; None where it can."""
    if not (isinstance(config, type) and issubclass(config, part.bases)):
        return f"is no {_bases(part)} class"
    if missing := sorted(getattr(config, "__abstractmethods__", ())):
        return f"is not complete: {config.__name__} does not define {', '.join(missing)}"
    recovers = getattr(config, "recovers", None)
    if recovers is not None and recovers not in RECOVERS:
        known = f"{near(recovers, RECOVERS) or ','} allowed: {', '.join(RECOVERS)}"
        return f"recovers unknown '{recovers}'{known}"
    field = config.model_fields.get("kind")
    told = None if field is None else field.default
    is_word = field is not None and get_origin(field.annotation) is Literal
    if told != kind or not is_word or get_args(field.annotation if field else None) != (kind,):
        return f"needs `kind: Literal['{kind}'] = '{kind}'`, got {told!r}"
    if kind in part.shipped:
        return f"is there already: '{kind}' is a {part.word} that ships; choose another name"
    return None


def _bases(part: Part) -> str:
    return " or ".join(base.__name__ for base in part.bases)
