"""All plugins of a scenario as one value, which knows where each came from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from simsplit.errors import RunError, SimsplitError
from simsplit.plugins.checking import Parts, checked
from simsplit.plugins.loading import Origin, Plugin, again, loaded


@dataclass(frozen=True)
class Plugins:
    """The parts of all plugins; one plugin's kinds are no other's."""

    parts: Parts = field(default_factory=dict)
    origins: tuple[Origin, ...] = ()

    def __hash__(self) -> int:
        return hash((self.origins, *((name, *parts) for name, parts in self.parts.items())))

    def of(self, name: str) -> Mapping[str, Any]:
        """What they add to one registry, such as METHODS: kind -> config class, or function."""
        return self.parts.get(name, MappingProxyType({}))

    def told(self) -> list[dict[str, object]]:
        """Where they came from, as plain values."""
        return [asdict(origin) for origin in self.origins]

    def portable(self) -> tuple[Origin, ...]:
        """Where other processes import them from; RunError where one is in a script or notebook."""
        for origin in self.origins:
            if not origin.portable:
                raise RunError(
                    f"workers cannot import the plugin {origin.name}: move it from the script to a "
                    "module, and name that"
                )
        return self.origins


NO_PLUGINS = Plugins()
Given = Plugins | Plugin | Sequence[Plugin]
"""What a Python call takes for plugins."""


def gathered(given: Given = ()) -> Plugins:
    """Import and check them; SimsplitError at what is no plugin, or takes another's names."""
    if isinstance(given, Plugins):
        return given
    several = [given] if isinstance(given, str | Path | ModuleType | Mapping) else given
    parts: dict[str, dict[str, Any]] = {}
    origins: dict[str | int, Origin] = {}
    owners: dict[tuple[str, str], str] = {}
    for each in several:
        origin, exported = loaded(each)
        if (origin.module or id(each)) in origins:
            continue  # named twice
        origins[origin.module or id(each)] = origin
        for name, found in checked(origin.name, exported).items():
            for kind in found:
                _refuse_taken(origin.name, name, kind, owners)
                owners[name, kind] = origin.name
            parts.setdefault(name, {}).update(found)
    return Plugins(parts, tuple(origins.values())) if origins else NO_PLUGINS


def _refuse_taken(plugin: str, name: str, kind: str, owners: Mapping[tuple[str, str], str]) -> None:
    if (owner := owners.get((name, kind))) is not None:
        raise SimsplitError(
            f"plugin {plugin}: {name}['{kind}'] is there already, from the plugin {owner}"
        )


@lru_cache(maxsize=8)
def gathered_again(origins: tuple[Origin, ...]) -> Plugins:
    """In another process, what `gathered` gave in the first."""
    return replace(gathered([again(origin) for origin in origins]), origins=origins)
