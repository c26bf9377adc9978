"""Which code a run executes: what its parts and the centre use, definition by definition.

The centre is what `simsplit.whole_run` reaches and every run shares. A part (an attack, a method,
a detector, ...) is what the config of its kind reaches beside that; lists of kinds lead nowhere, so
that another attack changes nothing. Two rooms belong to the runs alone that have attacks or
detectors. Rooms that move no figure do not count: they refuse, forecast, show and carry. How rows
read figures from a finished run is a part of its own, which all rows have.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from simsplit.evidence.code_definitions import (
    PACKAGE,
    Definition,
    ModuleCode,
    Target,
    digest_texts,
)

CENTRE = "centre"
"""The name of the code that every run shares."""
READING = "reading"
"""The name of the code by which rows read figures from finished runs."""
AREAS: Mapping[str, str] = {"attacks": "attacking", "detectors": "detection"}
"""Field of a scenario -> the room that only runs with such parts use."""
ROOMS: Mapping[str, str] = {
    "attacks": "attacks",
    "method": "methods",
    "detectors": "detectors",
    "clients": "poisons",
    "model": "models",
    "data": "data",
    "schedule": "schedules",
    "aggregation": "schedules",
}
"""Field of a scenario -> the room of its parts, which have a field `kind`."""
TOPOLOGIES = "topologies"
"""The room whose parts have no kind but a file each."""
_IDLE_ROOMS = (
    *("bench", "boards", "catalogue", "commands", "deploy", "errors", "evidence", "forecasting"),
    *("foreign", "observers", "opened_run", "plugins", "preflight", "pretrain", "progress"),
    *("publishing", "rehearsal", "renamed", "report", "showing", "sizes", "sweep", "terminal"),
    "valuing",
)
_IDLE_FILES = (
    *("engine.cluster", "engine.ray_pool", "results.checkpoints", "results.directory"),
    *("results.environment", "results.locking", "results.notebook_view", "results.row_file"),
    *("results.run", "results.sweep_directory", "scenario.cells", "scenario.extending"),
    *("scenario.files", "scenario.hiding", "scenario.kinds", "scenario.loading"),
    *("scenario.messages", "scenario.search_config", "scenario.shipped"),
    *("scenario.unmet_needs", "scenario.warnings"),
)
IDLE = frozenset((*_IDLE_ROOMS, *_IDLE_FILES))
"""Rooms, and files of rooms, that move no figure: they refuse, forecast, show, carry and keep."""
_ROOT, _ABOVE = f"{PACKAGE}.experiment", f"{PACKAGE}.whole_run"
"""Where a run begins; older versions have the first alone."""
_READ = (f"{PACKAGE}.report.numbers", "measure"), (f"{PACKAGE}.results.run", "Run")
"""Where rows read figures, and from what."""
_CONFIG = f"{PACKAGE}.config", "Config"
_LEAST = 8
"""Characters of a part's digest: it is compared with those of the same part alone."""


def room_of(module: str) -> str:
    """Return the room of a module: `attacks` of simsplit.attacks.sdar."""
    return module.split(".")[1] if "." in module else ""


def _is_idle(module: str, name: str) -> bool:
    """Return whether a module moves no figure of a part."""
    places = {room_of(module), module.removeprefix(f"{PACKAGE}.")}
    if name == READING:
        places -= {"report", "results.run"}
    return not IDLE.isdisjoint(places)


class MissingCodeError(Exception):
    """The code of a commit lacks what every version has."""


@dataclass(frozen=True)
class CodeGraph:
    """The code of one version of the package."""

    names: frozenset[str]
    """The names of all modules."""
    load: Callable[[str], ModuleCode]
    """Reads a module by its name; the same module is read once."""
    _digests: dict[str, str] = field(default_factory=dict, init=False, compare=False)
    _reached: dict[str, frozenset[Target]] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def parts(self) -> Mapping[tuple[str, str], Target]:
        """(room, kind) -> the class of the part's config, or the module of a topology."""
        made: dict[tuple[str, str], Target] = {}
        for module in sorted(self.names):
            room, _, last = module.removeprefix(f"{PACKAGE}.").partition(".")
            if room == TOPOLOGIES and last:
                made[room, last] = module, ""
            if room in ROOMS.values():
                for name, definition in self.load(module).definitions.items():
                    made |= {(room, kind): (module, name) for kind in definition.kinds}
        return made

    def digest_part(self, name: str) -> str:
        """Return the digest of a part (`attacks.sdar`), of an area (`attacking`) or the centre."""
        if name not in self._digests:
            records = sorted(self._record(target, name) for target in self.reach(name))
            self._digests[name] = digest_texts(records, _LEAST // 2)
        return self._digests[name]

    def digest(self, module: str, name: str) -> str:
        """Return the digest of one definition, without what it uses."""
        return self._definition((module, name)).digest

    def reach(self, name: str) -> frozenset[Target]:
        """Return the definitions of a part, an area, or the centre; refuse what this code lacks."""
        if name not in self._reached:
            if name != CENTRE:
                self._reached[name] = self._reach_beside(name)
            else:
                roots = self._list_root(_ROOT)
                roots += self._list_root(_ABOVE) if _ABOVE in self.names else []
                self._reached[name] = frozenset(self._walk(roots, set(), name))
        return self._reached[name]

    def _reach_beside(self, name: str) -> frozenset[Target]:
        """Return what a part or an area reaches that the centre does not."""
        beside = set(self.reach(CENTRE))
        if name == READING:
            roots = [target for target in _READ if self._is_there(target)]
            if len(roots) < len(_READ):
                raise MissingCodeError("rows were read in another way")
        elif name in AREAS.values():
            mine = [m for m in sorted(self.names) if room_of(m) == name]
            roots = [target for module in mine for target in self._list_root(module)]
        else:
            room, _, kind = name.partition(".")
            beside |= {t for area in AREAS.values() for t in self.reach(area)}
            if (room, kind) not in self.parts:
                raise MissingCodeError(f"there is no part {name}")
            module, config = self.parts[room, kind]
            roots = [(module, config)] if config else self._list_root(module)
        return frozenset(self._walk(roots, beside, name))

    def _is_there(self, target: Target) -> bool:
        module, name = target
        return module in self.names and name in self.load(module).definitions

    def _list_root(self, module: str) -> list[Target]:
        if module not in self.names:
            raise MissingCodeError(f"there is no module {module}")
        return [(module, name) for name in self.load(module).definitions]

    def _walk(self, roots: Iterable[Target], known: set[Target], name: str) -> Iterator[Target]:
        waiting, seen = [*roots], {*known}
        while waiting:
            target = waiting.pop()
            if target in seen:
                continue
            seen.add(target)
            yield target
            waiting += [each for each in self._follow(target) if self._is_open(each, name)]

    def _is_open(self, target: Target, name: str) -> bool:
        """Return whether a walk goes on to a definition, rather than end before it."""
        module, _ = target
        room, definition = room_of(module), self._definition(target)
        if module not in self.names or _is_idle(module, name) or self._is_registry(target):
            return False
        if room in AREAS.values() and name == CENTRE:
            return False
        # of a part that a run does not use, the centre can ask no more than whether it does
        return not (definition.kinds and room in _PART_ROOMS and "." not in name)

    def _is_registry(self, target: Target) -> bool:
        """Return whether a definition lists parts, directly or by other lists."""
        room = room_of(target[0])
        if room not in _PART_ROOMS or not self._definition(target).lists:
            return False
        named = self._follow(target)
        return room == TOPOLOGIES or any(
            self._definition(each).kinds or self._is_registry(each) for each in named
        )

    def _is_config(self, target: Target) -> bool:
        """Return whether a class is a part of scenarios, which have the values of its fields."""
        bases = self._definition(target).bases
        found = [each for base in bases for each in self._resolve(target[0], base)]
        return any(each == _CONFIG or self._is_config(each) for each in found)

    def _definition(self, target: Target) -> Definition:
        module, name = target
        code = self.load(module)
        return code.definitions.get(name, code.loose)

    def _follow(self, target: Target) -> Iterator[Target]:
        """Yield the definitions of the package that a definition uses, and its module's loose ones.

        They may lie in rooms that do not count.
        """
        module, name = target
        definition = self._definition(target)
        if name:
            yield module, ""
        for use in dict.fromkeys((*definition.uses, *definition.fields)):
            yield from self._resolve(module, use)

    def _resolve(self, module: str, use: str, depth: int = 0) -> Iterator[Target]:
        """Yield what a name in a module stands for, through imports of imports."""
        code = self.load(module)
        first, _, attribute = use.partition(".")
        if first in code.definitions:
            yield module, first
            return
        for origin, name in code.imports.get(first, ()) if depth < 9 else ():
            yield from self._find(origin, name, attribute, depth + 1)

    def _find(self, origin: str, name: str, attribute: str, depth: int) -> Iterator[Target]:
        whole = f"{origin}.{name}" if name else origin
        if whole in self.names:  # a module: what is taken of it, or all of it
            if attribute:
                yield from self._resolve(whole, attribute, depth)
            else:
                yield from ((whole, each) for each in self.load(whole).definitions)
        elif origin in self.names:
            yield from self._resolve(origin, name, depth)

    def _record(self, target: Target, name: str) -> str:
        """Write a definition with what its names stand for, wherever that lies."""
        module, _ = target
        code, definition = self.load(module), self._definition(target)
        words = [definition.bare if self._is_config(target) else definition.digest]
        for use in definition.uses:
            places = [*self._resolve(module, use)]
            # another version's rooms may lie elsewhere, so what does not count has no digest here
            words += [self._definition(p).digest for p in places if self._is_open(p, name)]
            words += [
                f"{use}={origin}.{name}"
                for origin, name in code.imports.get(use.partition(".")[0], ())
                if origin.partition(".")[0] != PACKAGE
            ]
        return " ".join(words)


_PART_ROOMS = frozenset({*ROOMS.values(), TOPOLOGIES})
