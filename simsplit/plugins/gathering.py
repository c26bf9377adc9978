"""All plugins of a scenario are gathered in one value, which knows the origin of each.

A plugin's exports are checked when it is loaded, so that errors name the plugin's own parts.
A run directory records the run's plugins, to be named in messages; they are never imported.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from simsplit.errors import RunError, ScenarioError, SimsplitError, suggest
from simsplit.foreign import read_facts
from simsplit.metrics.classification import METRICS as SHIPPED
from simsplit.models.fresh import LaidOut
from simsplit.plugins.guard import guard_parts
from simsplit.plugins.parts import EXPORTS, METRICS, PARTS, SHAPES, WORDS, Part
from simsplit.plugins.plugin_modules import Origin, Plugin, load_again, load_plugin
from simsplit.results.directory import ENVIRONMENT
from simsplit.results.recovered_kinds import list_recovered
from simsplit.topologies import TOPOLOGIES, Topology

Parts = Mapping[str, Mapping[str, Any]]
"""Exported parts: the name of a dict -> a kind -> a config class or function."""

_KIND = re.compile(r"[a-z][a-z0-9_]*")
"""A kind must fit field values, columns of tables and names of folders."""


@dataclass(frozen=True)
class Plugins:
    """The parts of all plugins; no two plugins have the same kind."""

    parts: Parts = field(default_factory=dict)
    origins: tuple[Origin, ...] = ()

    def __hash__(self) -> int:
        return hash((self.origins, *((name, *parts) for name, parts in self.parts.items())))

    def of(self, name: str) -> Mapping[str, Any]:
        """Return the additions to one registry, such as METHODS: kind -> config or function."""
        return self.parts.get(name, MappingProxyType({}))

    def describe_origins(self) -> list[dict[str, object]]:
        """Return the plugins' origins as plain values."""
        return [asdict(origin) for origin in self.origins]

    def require_portable(self) -> tuple[Origin, ...]:
        """Return the origins for other processes; raise RunError for a script's or notebook's."""
        for origin in self.origins:
            if not origin.portable:
                raise RunError(
                    f"workers cannot import the plugin {origin.name}: move it from the script to a "
                    "module, and name that"
                )
        return self.origins


NO_PLUGINS = Plugins()
Given = Plugins | Plugin | Sequence[Plugin]
"""The types that a Python call accepts for plugins."""


def gather_plugins(given: Given = ()) -> Plugins:
    """Import and check plugins; raise SimsplitError if one is unfit, or uses another's names."""
    if isinstance(given, Plugins):
        return given
    several = [given] if isinstance(given, str | Path | ModuleType | Mapping) else given
    return _gather(map(load_plugin, several))


def _gather(loaded: Iterable[tuple[Origin, Mapping[str, Any]]]) -> Plugins:
    parts: dict[str, dict[str, Any]] = {}
    origins: dict[str | int, Origin] = {}
    owners: dict[tuple[str, str], str] = {}
    for origin, exported in loaded:
        if (origin.module or id(exported)) in origins:
            continue  # the user has named it twice
        origins[origin.module or id(exported)] = origin
        plugin = origin.name
        for name, own in check_exports(plugin, exported).items():
            for kind in own:
                if (owner := owners.get((name, kind))) is not None:
                    raise SimsplitError(
                        f"plugin {plugin}: {name}['{kind}'] is there already, from the plugin "
                        f"{owner}"
                    )
                owners[name, kind] = plugin
            parts.setdefault(name, {}).update(guard_parts(plugin, name, own))
    return Plugins(parts, tuple(origins.values())) if origins else NO_PLUGINS


@lru_cache(maxsize=8)
def gather_again(origins: tuple[Origin, ...]) -> Plugins:
    """Gather the same plugins in another process, from their origins in the first one."""
    # Under the names that the user gave: a file's module has one that nobody has typed.
    return _gather([(origin, vars(load_again(origin))) for origin in origins])


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
    """Return whether a module has a dict of its own by this name, not one imported to build on."""
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
    # Names that nothing asks would leave weights of files unfound, or exported under other names.
    if issubclass(config, LaidOut) and hasattr(config, "get_name_prefix"):
        return "defines get_name_prefix, which nothing asks; list the prefixes in name_prefixes"
    recovers = getattr(config, "recovers", None)
    if recovers is not None and recovers not in (allowed := list_recovered()):
        known = f"{suggest(recovers, allowed) or ','} allowed: {', '.join(allowed)}"
        return f"recovers unknown '{recovers}'{known}"
    field = config.model_fields.get("kind")
    default = None if field is None else field.default
    is_literal = field is not None and get_origin(field.annotation) is Literal
    values = get_args(field.annotation if field else None)
    if default != kind or not is_literal or values != (kind,):
        return f"needs `kind: Literal['{kind}'] = '{kind}'`, got {default!r}"
    ships = f"is there already: '{kind}' is a {part.word} that ships; choose another name"
    return ships if kind in part.shipped else None


def _name_bases(part: Part) -> str:
    return " or ".join(base.__name__ for base in part.bases)


def remind(error: ScenarioError, folder: Path, plugins: Plugins, *, cells: bool = False) -> None:
    """Raise RunError if a kind is unknown because plugins of the run in a folder are missing.

    `cells`: consider the runs in the folders below it too, as a sweep has them.
    """
    if not any(problem.reason.startswith("unknown '") for problem in error.problems):
        return
    runs = [folder, *(sorted(folder.glob("*/")) if cells else ())]
    before = [origin for run in runs for origin in _read_origins(run)]
    missing = {
        _format_flag(one): None
        for one in before
        if not any(_is_same(one, given) for given in plugins.origins)
    }
    if missing:
        again = "it" if len(missing) == 1 else "them"
        raise RunError(f"{folder} was made with {' '.join(missing)}; pass {again} again") from None


def list_changed(folder: Path, plugins: Plugins) -> list[str]:
    """List warnings about plugins whose files have changed since a run began."""
    return [
        f"the plugin {now.name} has changed since this run began; what is resumed may not be what "
        "an uninterrupted run would have come to"
        for before in _read_origins(folder)
        for now in plugins.origins
        if _is_same(before, now) and before.digest != now.digest
    ]


def _read_origins(folder: Path) -> Iterator[Origin]:
    """Yield the plugins of the run in a folder; none if its record cannot be read."""
    known = {field.name for field in fields(Origin)}
    # The file may be missing, or be another program's.
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
        plugins = read_facts(folder / ENVIRONMENT).get("plugins", [])
        yield from [Origin(**{name: one[name] for name in known}) for one in plugins]


def list_flags(folder: Path) -> list[str]:
    """List the words that name the plugins of a folder's run on a command line."""
    return [word for origin in _read_origins(folder) for word in _format_flag(origin).split(" ", 1)]


def _is_same(one: Origin, other: Origin) -> bool:
    return one.name == other.name or (one.file is not None and one.file == other.file)


def _format_flag(origin: Origin) -> str:
    """Return the option that names a plugin again."""
    if not origin.portable:
        return "plugins given from Python"
    if not origin.by_file:
        return f"--plugin {origin.module}"
    file, here = Path(str(origin.file)), Path.cwd()
    return f"--plugin {file.relative_to(here) if file.is_relative_to(here) else file}"
