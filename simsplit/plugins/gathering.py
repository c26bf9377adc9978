"""All plugins of a scenario are gathered in one value, which knows the origin of each."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from simsplit.errors import RunError, SimsplitError
from simsplit.plugins.checking import Parts, check_exports
from simsplit.plugins.guard import guard_parts
from simsplit.plugins.loading import Origin, Plugin, load_again, load_plugin


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
        """Return the origins for other processes; raise RunError if one cannot be imported there.

        Plugins in a script or a notebook cannot.
        """
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
    parts: dict[str, dict[str, Any]] = {}
    origins: dict[str | int, Origin] = {}
    owners: dict[tuple[str, str], str] = {}
    for each in several:
        origin, exported = load_plugin(each)
        if (origin.module or id(each)) in origins:
            continue  # the user has named it twice
        origins[origin.module or id(each)] = origin
        for name, own in check_exports(origin.name, exported).items():
            for kind in own:
                _refuse_taken(origin.name, name, kind, owners)
                owners[name, kind] = origin.name
            parts.setdefault(name, {}).update(guard_parts(origin.name, name, own))
    return Plugins(parts, tuple(origins.values())) if origins else NO_PLUGINS


def _refuse_taken(plugin: str, name: str, kind: str, owners: Mapping[tuple[str, str], str]) -> None:
    if (owner := owners.get((name, kind))) is not None:
        raise SimsplitError(
            f"plugin {plugin}: {name}['{kind}'] is there already, from the plugin {owner}"
        )


@lru_cache(maxsize=8)
def gather_again(origins: tuple[Origin, ...]) -> Plugins:
    """Gather the same plugins in another process, from their origins in the first one."""
    return replace(gather_plugins([load_again(origin) for origin in origins]), origins=origins)
