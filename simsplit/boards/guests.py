"""A user's methods and attacks, which stand on a board beside what ships."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from simsplit.attacks import AttackConfig
from simsplit.boards.track import Fields, Track, name_attack
from simsplit.errors import SimsplitError, format_list
from simsplit.plugins import NO_PLUGINS, Plugins
from simsplit.report.short_names import value_of

_UNNAMED = re.compile(r"[^A-Za-z0-9._-]")
"""A character that no run's name has."""


@dataclass(frozen=True)
class Guest:
    """What a user has beside what ships: methods and attacks, and the plugins that have them."""

    methods: Sequence[Fields] = ()
    attacks: Sequence[Fields] = ()
    plugins: Plugins = NO_PLUGINS

    def __post_init__(self) -> None:
        """Raise SimsplitError for a method or an attack without a kind."""
        given: dict[str, Sequence[object]] = {"methods": self.methods, "attacks": self.attacks}
        for option, parts in given.items():
            for part in parts:
                if not (isinstance(part, Mapping) and isinstance(part.get("kind"), str)):
                    raise SimsplitError(
                        f"{option}: each is a mapping with a kind, such as "
                        f"{{'kind': 'mine', 'k': 8}}, got {part!r}"
                    )

    @cached_property
    def strengths(self) -> Mapping[str, Mapping[str, Sequence[Fields]]]:
        """Name of a method of the user's -> name of a strength -> its methods."""
        made: dict[str, dict[str, Sequence[Fields]]] = {}
        for method in self.methods:
            own = made.setdefault(str(method["kind"]), {})
            name = _name_strength(method)
            if own.get(name, [method]) != [method]:  # another field has the same value there
                name = _name_strength(method, by_field=True)
            if own.setdefault(name, [method]) != [method]:
                raise SimsplitError(
                    f"--method: two of yours would be called '{name}'; give one other options"
                )
        return made

    def write_options(self, strength: str | None = None) -> tuple[str, ...]:
        """Write what the command has that measures a strength, or all, with what the user has."""
        own = [named for of in self.strengths.values() for named in of.items()]
        methods = [each for name, made in own if strength in (None, name) for each in made]
        # whose folder a plugin lay in is nobody's business
        named = [Path(origin.name) for origin in self.plugins.origins]
        given = [("--plugin", path.name if path.is_absolute() else str(path)) for path in named]
        given += [("--method", _write_part(each)) for each in methods]
        given += [("--attack", _write_part(each)) for each in self.attacks]
        return tuple(word for pair in given for word in pair)

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The digests of its plugins: an edited plugin makes its rows stale."""
        return {"plugins": [origin["digest"] for origin in self.plugins.describe_origins()]}


def _name_strength(method: Fields, *, by_field: bool = False) -> str:
    """Name a strength by its options' values, in characters that a run's name may have."""
    options = {name: value_of(value) for name, value in method.items() if name != "kind"}
    words = [f"{name}-{value}" if by_field else value for name, value in options.items()]
    return _UNNAMED.sub("-", "-".join([str(method["kind"]), *words]).replace(" ", ""))


def _write_part(fields: Fields) -> str:
    """Write a method or an attack as a command takes it."""
    return str(fields["kind"]) if len(fields) == 1 else json.dumps(fields)


def refuse_taken(shipped: Mapping[str, Mapping[str, Any]], guest: Guest) -> None:
    """Raise SimsplitError for a user's method that has the name of a shipped defence."""
    taken = {*shipped, *(name for each in shipped.values() for name in each)}
    for name, strengths in guest.strengths.items():
        if both := sorted(taken & {name, *strengths}):
            raise SimsplitError(
                f"--method: the track has a defence '{both[0]}' of its own; give yours other "
                "options, or another kind"
            )


def refuse_taken_attacks(shipped: Sequence[Fields], guest: Guest) -> None:
    """Raise SimsplitError for a user's attack that has the name of a shipped one."""
    taken = {name_attack(each) for each in shipped}
    for attack in guest.attacks:
        if (name := name_attack(attack)) in taken:
            raise SimsplitError(
                f"--attack: the track has an attack '{name}' of its own; give yours another name: "
                f"'{{kind: {attack['kind']}, name: other, ...}}'"
            )


def refuse_unseen(track: Track, attacks: Sequence[AttackConfig]) -> None:
    """Raise SimsplitError for a user's attack that reads by none of the track's views."""
    for attack in attacks:
        if track.leak.views and not {*track.leak.views} & {*attack.view_groups}:
            raise SimsplitError(
                f"--attack: '{attack.title}' reads by none of what the track scores: "
                f"{format_list(track.leak.views)}"
            )


def refuse_all_refused(guest: Guest, refused: Mapping[str, str]) -> None:
    """Raise SimsplitError where the track refuses all strengths of a user's method."""
    for name, strengths in guest.strengths.items():
        if all(each in refused for each in strengths):
            raise SimsplitError(
                f"--method {name} does not fit the track: {refused[next(iter(strengths))]}"
            )
