"""The figures that a track's runs have, by their names in rows: what leaks, floors, controls."""

from collections.abc import Iterator, Sequence

from simsplit.attacks import AttackConfig
from simsplit.boards.track import Track
from simsplit.evidence.claims import Figure
from simsplit.privacy.accounting import has_audit, list_guarantees
from simsplit.scenario import Scenario

DEFENCE, THREAT = "defence", "threat"
"""The axes of a track's rows: the strength of a defence by its name, and an attack in training."""
UTILITY, BYTES, FLOOR = "utility", "bytes", "floor"
"""Figures of every row, beside those of attacks."""
LEAKS = "leaks_"
"""The beginning of the names of figures that leak."""
BESIDE = "beside_"
"""The beginning of the names of figures that leak by another view than the one that places."""
CHOSEN = "chosen_"
"""The beginning of the names of figures that an attacker chose by `tune`."""
TUNING = "tuning_seconds"
"""The figure of what that took."""
EPSILON, AUDITED = "epsilon", "audited_epsilon"
"""The figures of a run with an audit: what the accountant says at most, and the audit at least."""
HALF = "half_"
"""The beginning of the names of figures of what an attack reads with half of its iterations."""
CONTROL = "control_"
"""The beginning of the names of the utility of controls, which the undefended run has."""


def _name_leaks(track: Track, scenario: Scenario) -> dict[str, str]:
    return {LEAKS + name: name for name in track.leak.figures} or {
        (f"{BESIDE}{view}_" if number else LEAKS) + attack.title: track.leak.reads.format(
            attack=attack.title, view=view
        )
        for number, view, attack in _list_views(track, scenario)
    }


def _list_views(track: Track, scenario: Scenario) -> Iterator[tuple[int, str, AttackConfig]]:
    """Yield the number and name of each view of a track with each attack that reads by it."""
    for number, view in enumerate(track.leak.views or ("",)):
        for attack in scenario.attacks:
            # An audit finds samples that it has planted itself, which are no leak of clients'.
            if not attack.audited and (not view or view in attack.view_groups):
                yield number, view, attack


def _name_halves(track: Track, scenario: Scenario) -> dict[str, str]:
    """Return what attacks read with half of their iterations, where the scenario has a curve."""
    if not track.leak.reads or scenario.targets.curve % 2 or not scenario.targets.curve:
        return {}
    return {
        HALF + attack.title: f"{track.leak.reads.format(attack=attack.title, view='')}_at_half"
        for attack in scenario.attacks
        if attack.recovers == "inputs" and not attack.threat.follows_training
    }


def _name_floors(track: Track, scenario: Scenario) -> dict[str, str]:
    """Return the figures that need no attack in a run of a scenario."""
    floor = track.leak.floor
    if not isinstance(floor, str):
        return {}
    if "{attack}" not in floor:
        return {FLOOR: floor}
    return {
        f"{FLOOR}_{f'{view}_' if number else ''}{attack.title}": floor.format(
            attack=attack.title, view=view
        )
        for number, view, attack in _list_views(track, scenario)
    }


def _name_chosen(scenario: Scenario) -> dict[str, str]:
    """Return the numbers that the attacker chooses, and what choosing takes."""
    names = {
        f"{CHOSEN}{attack.title}_{field}": f"tuned_{attack.title}_{field}"
        for attack in scenario.attacks
        for field, values in (attack.tune or {}).items()
        if all(isinstance(value, int | float) for value in values)
    }
    return names | ({TUNING: TUNING} if any(attack.tune for attack in scenario.attacks) else {})


def _name_bounds(scenario: Scenario) -> dict[str, str]:
    """Return the bounds of epsilon that a run with an audit has."""
    audits = [attack.audited for attack in scenario.attacks if attack.audited]
    names = [AUDITED] if any(has_audit(scenario, each) for each in audits) else []
    names += [EPSILON] if audits and any(not g.lacks for g in list_guarantees(scenario)) else []
    return {name: name for name in names}


def name_read(track: Track, scenario: Scenario) -> dict[str, str]:
    """Return the figures of what attacks read in a scenario's run, by their names in rows."""
    return {
        **_name_leaks(track, scenario),
        **_name_halves(track, scenario),
        **_name_floors(track, scenario),
        **_name_chosen(scenario),
        **_name_bounds(scenario),
    }


def name_controls(track: Track) -> dict[str, Figure]:
    """Return the figures of controls that are measured, by their names in rows."""
    return {
        CONTROL + name.replace(" ", "_"): of
        for name, of in track.controls.items()
        if isinstance(of, Figure)
    }


def name_figures(track: Track, scenarios: Sequence[Scenario]) -> dict[str, Figure]:
    """Return all figures of a track: utility, bytes, the floor, and what each attack reads."""
    figures = {UTILITY: track.utility, BYTES: Figure.model_validate({"is": "bytes_total"})}
    figures |= name_controls(track)
    for scenario in scenarios:
        for name, of in name_read(track, scenario).items():
            figures[name] = Figure.model_validate({"is": of})
    return figures
