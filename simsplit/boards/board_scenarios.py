"""The scenarios of a track, a strength of a defence each, and the cells that measure them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simsplit.boards.figure_names import (
    BYTES,
    DEFENCE,
    FLOOR,
    THREAT,
    UTILITY,
    name_controls,
    name_read,
)
from simsplit.boards.guests import Guest, refuse_taken_attacks, refuse_unseen
from simsplit.boards.track import NONE, Fields, StrengthFields, Track, merge_fields
from simsplit.errors import ScenarioError
from simsplit.evidence.claims import Figure, Tier
from simsplit.evidence.digests import digest_figure
from simsplit.evidence.measuring_cells import MeasuringCell, describe_scenario
from simsplit.plugins import NO_PLUGINS
from simsplit.scenario import Scenario, parse


@dataclass(frozen=True)
class BoardScenario:
    """One scenario of a track: a strength, and a threat or a user's attack, where it has one."""

    axes: Mapping[str, str]
    scenario: Scenario
    is_guest: bool
    """Whether a user's plugins have a part in it."""
    is_of_attack: bool = False
    """Whether it measures attacks alone: the others' figures are measured without them."""


def list_scenarios(
    track: Track,
    tier: Tier,
    defences: Mapping[str, Mapping[str, StrengthFields]],
    guest: Guest,
    refused: dict[str, str],
) -> Iterator[BoardScenario]:
    """Yield the scenarios of a track; note a user's strengths that it refuses, with the reason."""
    fields, beside = track.list_fields(tier), track.find_tier(tier).attacks_beside
    for defence, strengths in defences.items():
        own = defence in guest.strengths
        for strength, given in strengths.items():
            changed: Fields = given if isinstance(given, Mapping) else {"method": list(given)}
            for threat, changes in (track.threats or {"": {}}).items():
                axes = {DEFENCE: strength} | ({THREAT: threat} if threat else {})
                values = merge_fields(fields, {**changes, "name": f"board-{strength}"})
                values = merge_fields(values, changed)
                plugins = guest.plugins if own else NO_PLUGINS
                try:
                    yield BoardScenario(axes, parse(values, plugins), is_guest=own)
                except ScenarioError as error:
                    if not own:
                        raise
                    refused[strength] = str(error)
                    continue
                if beside:
                    alone = parse({**values, "attacks": list(beside)}, plugins)
                    yield BoardScenario(axes, alone, is_guest=own, is_of_attack=True)
                if guest.attacks:
                    refuse_taken_attacks([*values.get("attacks", []), *beside], guest)
                    alone = parse({**values, "attacks": list(guest.attacks)}, guest.plugins)
                    refuse_unseen(track, alone.attacks)
                    yield BoardScenario(axes, alone, is_guest=True, is_of_attack=True)


def list_cells(
    tried: BoardScenario,
    figures: Mapping[str, Figure],
    track: Track,
    *,
    guest: Guest,
    takes_min: float,
    seeds: Sequence[int],
) -> list[MeasuringCell]:
    """List the cells of a scenario, one for each seed, with the digests of its figures."""
    scenario, names = tried.scenario, [*name_read(track, tried.scenario)]
    if tried.is_of_attack:
        names = [name for name in names if name != FLOOR]
    else:
        names += [UTILITY, BYTES]
        names += name_controls(track) if tried.axes[DEFENCE] == NONE else []
    digest, digests, uses = describe_scenario(scenario, names, figures)
    options: tuple[str, ...] = ()
    if tried.is_guest:
        options, recipe = guest.write_options(tried.axes[DEFENCE]), guest.recipe
        # an edited plugin is another scenario: neither its rows nor its runs may be taken up again
        digest = digest_figure(digest, recipe)
        digests = {name: digest_figure(each, recipe) for name, each in digests.items()}
    given = (tried.axes, takes_min, digest, digests, uses)
    return [MeasuringCell(scenario, seed, *given, options=options) for seed in seeds]
