"""What a run's guarantees leave out is listed first: each leg, and what it would need."""

from collections.abc import Iterator
from dataclasses import dataclass

from simsplit.legs import Leg
from simsplit.methods.clipping import Release
from simsplit.privacy.accounting import PARTS, Guarantee, find_weights_gap, list_guarantees
from simsplit.privacy.departures import SamplePart
from simsplit.scenario import Scenario

_SHOWN = {
    Leg.SMASHED: SamplePart.INPUT,
    Leg.INPUTS: SamplePart.INPUT,
    Leg.LABELS: SamplePart.LABEL,
    Leg.FEATURES_GRAD: SamplePart.LABEL,
}
"""The part of a sample that each leg shows, other than what legs before it have shown."""
_HELPS = {
    SamplePart.INPUT: "dp_forward with epsilon and relative: false",
    SamplePart.LABEL: "dp_sgd with relative: false, or randomised_response",
}


@dataclass(frozen=True)
class Uncovered:
    """A leg, or weights, without a guarantee."""

    leg: str
    shows: str
    """What the server, or who gets weights, can see of a sample."""
    needs: str
    """What would give it a guarantee."""


def list_uncovered(scenario: Scenario) -> list[Uncovered]:
    """List what no guarantee covers; empty for a scenario without noise, which promises none."""
    guarantees = list_guarantees(scenario)
    if not guarantees:
        return []
    if not scenario.crossings.accounted:
        why = f"a topology that is accounted for; {scenario.topology} is not"
        return [Uncovered("all legs", "samples", why)]
    sound = [each for each in guarantees if not each.lacks]
    covered = frozenset[SamplePart]().union(*(PARTS[each.protects] for each in sound))
    legs = (leg for leg in scenario.crossings.training.legs if leg in _SHOWN)
    found = [
        Uncovered(leg, f"each sample's {_SHOWN[leg]}", _write_need(scenario, guarantees, leg))
        for leg in legs
        if _SHOWN[leg] not in covered
    ]
    return [*found, *_find_weights(scenario)]


def _write_need(scenario: Scenario, guarantees: list[Guarantee], leg: Leg) -> str:
    """Write what a leg needs: the reason why its own noise does not suffice, or noise."""
    for method in scenario.method:
        release = method.release
        own = leg if not isinstance(release, Release) else release.leg
        if release is not None and own == leg:
            for each in guarantees:
                if each.lacks and each.method.startswith(method.kind_name):
                    return f"{method.kind_name} does not suffice: {each.lacks}"
    return f"noise, such as {_HELPS[_SHOWN[leg]]}"


def _find_weights(scenario: Scenario) -> Iterator[Uncovered]:
    learned = [each for each in scenario.model.learning if each not in scenario.crossings.served]
    if not learned:
        return
    leg = f"{Leg.HANDOVER}, and weights" if scenario.shares else "weights"
    shows = f"what {' and '.join(learned)} have learned of each sample"
    if scenario.train.dp is None:
        names = " and ".join(learned)
        yield Uncovered(leg, shows, f"train.dp, or {names} left out of model.learns")
    elif gap := find_weights_gap(scenario):
        yield Uncovered(leg, shows, gap)
