"""Cells of a track: each strength of each defence with each seed, and a user's own beside them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from simsplit.boards.track import (
    NONE,
    Fields,
    StrengthFields,
    Track,
    load_track,
    merge_fields,
    name_attack,
)
from simsplit.errors import ScenarioError, SimsplitError
from simsplit.evidence.cells import MeasuringCell, make_digests
from simsplit.evidence.claims import Claim, Figure, Tier
from simsplit.evidence.digests import digest_figure
from simsplit.evidence.papers import PaperTable
from simsplit.evidence.tables import EvidenceTable, KnownRows, put_beside
from simsplit.plugins import NO_PLUGINS, Plugins
from simsplit.report.short_names import value_of
from simsplit.scenario import Scenario, parse
from simsplit.scenario.shipped import BOARDS, find_folder

DEFENCE, THREAT = "defence", "threat"
"""The axes of a track's rows: the strength of a defence by its name, and an attack in training."""
UTILITY, BYTES, FLOOR = "utility", "bytes", "floor"
"""Figures of every row, beside those of attacks."""
LEAKS = "leaks_"
"""The beginning of the names of figures that leak."""
CHOSEN = "chosen_"
"""The beginning of the names of figures that an attacker chose by `tune`."""
TUNING = "tuning_seconds"
"""The figure of what that took."""
HALF = "half_"
"""The beginning of the names of figures of what an attack reads with half of its iterations."""
CONTROL = "control_"
"""The beginning of the names of the utility of controls, which the undefended run has."""


@dataclass(frozen=True)
class BoardTable(PaperTable):
    """A track as a table whose rows are measured as those of papers are."""

    @property
    def command(self) -> Sequence[str]:
        """The words of the command that measures it."""
        return ("simsplit", "board", self.name)

    @property
    def models(self) -> Mapping[str, str]:
        """Folder of a model that the track's scenarios name -> the command that makes it."""
        return load_track(self.name).models


@dataclass(frozen=True)
class Guest:
    """What a user has beside what ships: methods and attacks, and the plugins that have them."""

    methods: Sequence[Fields] = ()
    attacks: Sequence[Fields] = ()
    plugins: Plugins = NO_PLUGINS

    @cached_property
    def strengths(self) -> Mapping[str, Mapping[str, Sequence[Fields]]]:
        """Name of a method of the user's -> name of a strength -> its methods."""
        made: dict[str, dict[str, Sequence[Fields]]] = {}
        for method in self.methods:
            options = [value_of(value) for name, value in method.items() if name != "kind"]
            name = "-".join([str(method["kind"]), *options]).replace(" ", "").replace(",", "-")
            made.setdefault(str(method["kind"]), {})[name] = [method]
        return made

    def write_options(self, strength: str) -> tuple[str, ...]:
        """Write what the command has that measures a strength with what the user has."""
        methods = [each for of in self.strengths.values() for each in of.get(strength, ())]
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


def _write_part(fields: Fields) -> str:
    """Write a method or an attack as a command takes it."""
    return str(fields["kind"]) if len(fields) == 1 else json.dumps(fields)


@dataclass(frozen=True)
class Board:
    """A track at a tier beside all that is measured of it."""

    name: str
    track: Track
    tier: Tier
    table: EvidenceTable
    defences: Mapping[str, Sequence[str]]
    """Name of a defence -> the names of its strengths, a user's own last."""
    attacks: Sequence[str]
    """The names of what attacks, or of the threats in training."""
    bounds: Sequence[str] = ()
    """Those of the attacks that know what no server knows."""
    own: Sequence[str] = ()
    """The defences and attacks that are the user's."""
    own_cells: Sequence[MeasuringCell] = ()
    """The cells that measure what is the user's."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Name of a strength -> why the track cannot have it."""


def build_board(
    name: str,
    tier: Tier,
    guest: Guest | None = None,
    *,
    seeds: Sequence[int] | None = None,
    known: KnownRows | None = None,
) -> Board:
    """Put a track at a tier beside what is measured of it, with a user's methods and attacks.

    Raises:
        SimsplitError: for an unknown track or tier.
        ScenarioError: where no strength of a user's method fits the track.
    """
    guest, track = guest or Guest(), load_track(name)
    sized = track.find_tier(tier)
    _refuse_taken(track.defences, guest)
    if guest.attacks and (track.threats or track.leak.figures):
        raise SimsplitError(
            f"--attack: nothing is attacked after training on {name}, so an attack would change "
            "nothing there"
        )
    defences = {**track.defences, **guest.strengths}
    refused: dict[str, str] = {}
    drafts = list(_list_drafts(track, tier, defences, guest, refused))
    _refuse_all_refused(guest, refused)
    figures = _name_figures(track, [draft.scenario for draft in drafts])
    table = BoardTable(BOARDS, name, _make_claim(track, figures, drafts), find_folder() / BOARDS)
    wanted = seeds or sized.seeds
    of_drafts = [
        _list_cells(each, figures, track, guest=guest, takes_min=sized.takes_min, seeds=wanted)
        for each in drafts
    ]
    pairs = [(cell, draft) for each, draft in zip(of_drafts, drafts, strict=True) for cell in each]
    cells = [cell for cell, _ in pairs]
    kept = {
        each: [strength for strength in strengths if strength not in refused]
        for each, strengths in defences.items()
    }
    attacks = [*track.threats] or [
        each.removeprefix(LEAKS) for each in figures if each.startswith(LEAKS)
    ]
    own = [*guest.strengths, *(str(each.get("name", each["kind"])) for each in guest.attacks)]
    beside = put_beside(table, tier, cells, known)
    settings = {cell.setting for cell in cells}
    # rows of a user's method that is not given here are no rows of this board
    beside = replace(beside, stale=[row for row in beside.stale if row.setting in settings])
    own_cells = [cell for cell, draft in pairs if draft.is_guest]
    every = {attack.title: attack for draft in drafts for attack in draft.scenario.attacks}
    bounds = [title for title, attack in every.items() if attack.privileged and title in attacks]
    return Board(name, track, tier, beside, kept, attacks, bounds, own, own_cells, refused)


@dataclass(frozen=True)
class _Draft:
    """One scenario of a track: a strength, and a threat or a user's attack, where it has one."""

    axes: Mapping[str, str]
    scenario: Scenario
    is_guest: bool
    """Whether a user's plugins have a part in it."""
    is_of_attack: bool = False
    """Whether it measures attacks alone: the others' figures are measured without them."""


def _list_drafts(
    track: Track,
    tier: Tier,
    defences: Mapping[str, Mapping[str, StrengthFields]],
    guest: Guest,
    refused: dict[str, str],
) -> Iterator[_Draft]:
    """Yield the scenarios of a track; note a user's strengths that it refuses, with the reason."""
    fields, beside = track.list_fields(tier), track.find_tier(tier).attacks_beside
    for defence, strengths in defences.items():
        own = defence in guest.strengths
        for strength, own_fields in strengths.items():
            for threat, changes in (track.threats or {"": {}}).items():
                axes = {DEFENCE: strength} | ({THREAT: threat} if threat else {})
                values = merge_fields(fields, {**changes, "name": f"board-{strength}"})
                values = merge_fields(values, _as_fields(own_fields))
                plugins = guest.plugins if own else NO_PLUGINS
                try:
                    yield _Draft(axes, parse(values, plugins), is_guest=own)
                except ScenarioError as error:
                    if not own:
                        raise
                    refused[strength] = str(error)
                    continue
                if beside:
                    alone = parse({**values, "attacks": list(beside)}, plugins)
                    yield _Draft(axes, alone, is_guest=own, is_of_attack=True)
                if guest.attacks:
                    _refuse_taken_attacks([*values.get("attacks", []), *beside], guest)
                    alone = parse({**values, "attacks": list(guest.attacks)}, guest.plugins)
                    yield _Draft(axes, alone, is_guest=True, is_of_attack=True)


def _as_fields(strength: StrengthFields) -> Fields:
    return strength if isinstance(strength, Mapping) else {"method": list(strength)}


def _list_cells(
    draft: _Draft,
    figures: Mapping[str, Figure],
    track: Track,
    *,
    guest: Guest,
    takes_min: float,
    seeds: Sequence[int],
) -> Iterator[MeasuringCell]:
    scenario = draft.scenario
    names = [*_name_leaks(track, scenario), *_name_halves(track, scenario)]
    floors = [*_name_floors(track, scenario)]
    names += [*(each for each in floors if each != FLOOR or not draft.is_of_attack)]
    names += [*_name_chosen(scenario), *(() if draft.is_of_attack else (UTILITY, BYTES))]
    names += name_controls(track) if draft.axes[DEFENCE] == NONE and UTILITY in names else []
    digest, digests = make_digests(scenario, names, figures)
    options: tuple[str, ...] = ()
    if draft.is_guest:
        options, recipe = guest.write_options(draft.axes[DEFENCE]), guest.recipe
        # an edited plugin is another scenario: neither its rows nor its runs may be taken up again
        digest = digest_figure(digest, recipe)
        digests = {name: digest_figure(each, recipe) for name, each in digests.items()}
    for seed in seeds:
        yield MeasuringCell(scenario, seed, draft.axes, takes_min, digest, digests, options)


def _name_leaks(track: Track, scenario: Scenario) -> dict[str, Figure]:
    """Return the figures that leak in a run of a scenario, by their names in rows."""
    leak = track.leak
    names = {name: name for name in leak.figures} or {
        attack.title: leak.reads.format(attack=attack.title) for attack in scenario.attacks
    }
    return {LEAKS + name: Figure.model_validate({"is": of}) for name, of in names.items()}


def _name_halves(track: Track, scenario: Scenario) -> dict[str, Figure]:
    """Return what attacks read with half of their iterations, where the scenario has a curve."""
    if not track.leak.reads or scenario.targets.curve % 2 or not scenario.targets.curve:
        return {}
    names = {
        attack.title: f"{track.leak.reads.format(attack=attack.title)}_at_half"
        for attack in scenario.attacks
        if attack.recovers == "inputs" and not attack.online
    }
    return {HALF + name: Figure.model_validate({"is": of}) for name, of in names.items()}


def _name_floors(track: Track, scenario: Scenario) -> dict[str, Figure]:
    """Return the figures that need no attack in a run of a scenario, by their names in rows."""
    floor = track.leak.floor
    if not isinstance(floor, str):
        return {}
    if "{attack}" not in floor:
        return {FLOOR: Figure.model_validate({"is": floor})}
    return {
        f"{FLOOR}_{attack.title}": Figure.model_validate({"is": floor.format(attack=attack.title)})
        for attack in scenario.attacks
    }


def name_controls(track: Track) -> dict[str, Figure]:
    """Return the figures of controls that are measured, by their names in rows."""
    return {
        CONTROL + name.replace(" ", "_"): of
        for name, of in track.controls.items()
        if isinstance(of, Figure)
    }


def _name_chosen(scenario: Scenario) -> dict[str, Figure]:
    """Return the numbers that the attacker chooses, and what choosing takes, by names in rows."""
    names = {
        f"{CHOSEN}{attack.title}_{field}": f"tuned_{attack.title}_{field}"
        for attack in scenario.attacks
        for field, values in (attack.tune or {}).items()
        if all(isinstance(value, int | float) for value in values)
    }
    names |= {TUNING: TUNING} if any(attack.tune for attack in scenario.attacks) else {}
    return {name: Figure.model_validate({"is": of}) for name, of in names.items()}


def _name_figures(track: Track, scenarios: Sequence[Scenario]) -> dict[str, Figure]:
    """Return all figures of a track: utility, bytes, the floor, and what each attack reads."""
    figures = {UTILITY: track.utility, BYTES: Figure.model_validate({"is": "bytes_total"})}
    figures |= name_controls(track)
    for scenario in scenarios:
        figures |= _name_leaks(track, scenario) | _name_floors(track, scenario)
        figures |= _name_halves(track, scenario) | _name_chosen(scenario)
    return figures


def _make_claim(track: Track, figures: Mapping[str, Figure], drafts: Sequence[_Draft]) -> Claim:
    """Make a claim whose rows are the strengths and threats; nobody has printed figures of them."""
    axes = [DEFENCE, *([THREAT] if track.threats else [])]
    lines = dict.fromkeys(", ".join(draft.axes[axis] for axis in axes) for draft in drafts)
    return Claim(
        title=track.title,
        says=track.says,
        figures=figures,
        printed="\n".join([", ".join(axes), *lines]),
        describes=track.says,
    )


def _refuse_taken(shipped: Mapping[str, Mapping[str, Any]], guest: Guest) -> None:
    """Raise SimsplitError for a user's method that has the name of a shipped defence."""
    taken = {*shipped, *(name for each in shipped.values() for name in each)}
    for name, strengths in guest.strengths.items():
        if both := sorted(taken & {name, *strengths}):
            raise SimsplitError(
                f"--method: the track has a defence '{both[0]}' of its own; give yours other "
                "options, or another kind"
            )


def _refuse_taken_attacks(shipped: Sequence[Fields], guest: Guest) -> None:
    """Raise SimsplitError for a user's attack that has the name of a shipped one."""
    taken = {name_attack(each) for each in shipped}
    for attack in guest.attacks:
        if (name := name_attack(attack)) in taken:
            raise SimsplitError(
                f"--attack: the track has an attack '{name}' of its own; give yours another name: "
                f"'{{kind: {attack['kind']}, name: other, ...}}'"
            )


def _refuse_all_refused(guest: Guest, refused: Mapping[str, str]) -> None:
    """Raise SimsplitError where the track refuses all strengths of a user's method."""
    for name, strengths in guest.strengths.items():
        if all(each in refused for each in strengths):
            raise SimsplitError(
                f"--method {name} does not fit the track: {refused[next(iter(strengths))]}"
            )
