"""Cuts of clients' own (`clients.cut`) are refused where the model, or another part, has no room
for them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from simsplit.data import DataInfo
from simsplit.errors import ScenarioError
from simsplit.models import MODELS
from simsplit.models.fresh import Place, Shape
from simsplit.models.language import LanguageConfig
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings
from simsplit.scenario.messages import describe_unknown, format_value
from simsplit.scenario.misfits import find_unequal_shapes
from simsplit.schedules.aggregation import AveragingConfig

FIELD = "clients.cut"
_DIFFER = "and clients.cut gives clients different cuts"


def find_unfit_cuts(scenario: ScenarioFields) -> Findings:
    """Refuse clients' own cuts that the model lacks, or that other parts cannot have."""
    cuts, model = scenario.clients.cut, scenario.model
    if cuts is None:
        return
    if not (field := model.cut_field):
        able = [kind for kind, each in MODELS.items() if getattr(each(), "cut_field", "")]
        yield Finding(
            FIELD,
            f"got {_show(cuts)}, but clients of {model.kind_name} have one cut; use null, or "
            f"another model: {', '.join(able)}",
        )
    if isinstance(cuts, tuple) and len(cuts) != scenario.clients.count:
        count = scenario.clients.count
        yield Finding(FIELD, f"must have a cut for each of {count} clients, got {len(cuts)}")
    if isinstance(cuts, Mapping):
        yield from _find_strangers(scenario, cuts)
    yield from _find_outside(scenario)
    least = min(scenario.places, key=model.count_passed)
    if least != getattr(model, field):
        yield Finding(
            f"model.{field}",
            f"must be the shallowest of clients.cut, {least}, where the server's trunk begins; "
            f"got {getattr(model, field)}",
        )
    if scenario.has_own_cuts:
        yield from _find_others(scenario)


def find_unequal_cuts(
    scenario: ScenarioFields, info: DataInfo, shapes: tuple[Shape, Shape]
) -> Findings:
    """Refuse clients' own cuts outside of the model, or of another shape than methods take.

    `shapes` are the shapes at the model's own cut.
    """
    for where, place in _list_entries(scenario) if scenario.has_own_cuts else ():
        try:
            cut, features = scenario.model.cut_at(place).compute_shapes(info.shape)
        except ScenarioError as error:
            yield Finding(where, f"got {place}; {error.problems[0].reason}")
            continue
        yield from find_unequal_shapes(scenario, info, (cut, features))
        if scenario.method and cut != shapes[0]:
            mine, other = ("x".join(map(str, each)) for each in (shapes[0], cut))
            yield Finding(
                "method.0.kind",
                f"{scenario.method[0].kind_name} needs one shape at all clients' cuts, and "
                f"clients.cut makes it {mine} and {other}; choose cuts of one shape, or no method",
            )


def _show(cuts: Any) -> str:  # noqa: ANN401 - a field's value
    return format_value(list(cuts) if isinstance(cuts, tuple) else cuts)


def _list_entries(scenario: ScenarioFields) -> Iterator[tuple[str, Place]]:
    """Yield each cut that the scenario names, and the path at which it does."""
    cuts = scenario.clients.cut
    if isinstance(cuts, Mapping):
        yield from ((f"{FIELD}.{word}", place) for word, place in cuts.items())
    elif isinstance(cuts, tuple):
        first = {place: number for number, place in reversed(list(enumerate(cuts)))}
        yield from ((f"{FIELD}.{number}", place) for place, number in first.items())
    elif cuts is not None:
        yield FIELD, cuts


def _find_strangers(scenario: ScenarioFields, cuts: Mapping[str, Place]) -> Findings:
    """Refuse a word that is no client's device or name."""
    network, names = scenario.network, scenario.clients.names or ()
    devices: list[str] = []
    if network is not None:
        devices = [network.device] if isinstance(network.device, str) else [*network.device]
    known = [*devices, *names]
    for word in cuts:
        if not known:
            yield Finding(
                f"{FIELD}.{word}",
                "names a device or a client, and there are neither network.device nor "
                "clients.names; add one of them, or give a list",
            )
        if word not in known:
            yield Finding(f"{FIELD}.{word}", describe_unknown(word, known))
    if network is not None:
        drawn = {*network.draw_devices(scenario.clients.count, scenario.seed)}
        for word in cuts:
            if word not in (*names, *drawn):
                yield Finding(
                    f"{FIELD}.{word}",
                    f"is the device of none of {scenario.clients.count} clients with seed "
                    f"{scenario.seed}; leave it out, or change its share in network.device",
                )


def _find_outside(scenario: ScenarioFields) -> Findings:
    """Refuse values that the model's own field does not take."""
    model = scenario.model
    for where, place in _list_entries(scenario):
        try:
            made = getattr(model.cut_at(place), model.cut_field)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            yield Finding(where, f"got {format_value(place)}, outside of the model ({reason})")
        else:
            if made != place:
                yield Finding(where, f"must be a number, got {format_value(place)}")


def _find_others(scenario: ScenarioFields) -> Findings:
    """Refuse parts that need one cut."""
    model = scenario.model
    if scenario.clients.heads == "shared" and scenario.aggregation.kind == "none":
        yield Finding(
            "clients.heads",
            "got shared, but heads of several depths cannot be handed from client to client; use "
            "per_client, or average them where they overlap (aggregation: splitfed_v2)",
        )
    if isinstance(model, LanguageConfig) and model.trunk == "skipped":
        yield Finding(
            "model.trunk", "got skipped, but deeper heads have layers of a trunk; use layers"
        )
    yield from _find_whole_averages(scenario)
    for field, parts in (("detectors", scenario.detectors), ("attacks", scenario.attacks)):
        if parts:
            yield Finding(
                f"{field}.0.kind",
                f"{parts[0].kind_name} compares what crosses at one cut, {_DIFFER}; leave it out, "
                "or use clients.cut: null",
            )


def _find_whole_averages(scenario: ScenarioFields) -> Findings:
    """Refuse an average that needs all clients to have the same weights."""
    aggregation = scenario.aggregation
    if aggregation.kind == "fused":
        yield Finding(
            "aggregation.kind",
            f"got fused, which makes one batch of all, {_DIFFER}; use splitfed_v2",
        )
    if not isinstance(aggregation, AveragingConfig):
        return
    if aggregation.bits is not None:
        yield Finding(
            "aggregation.bits",
            f"got {aggregation.bits}, which codes one set of weights, {_DIFFER}; use null",
        )
    if aggregation.strategy.needed > 1:
        yield Finding(
            "aggregation.strategy",
            f"got {aggregation.strategy.kind_name}, which compares whole updates, {_DIFFER}; use "
            "fedavg",
        )
