"""Fields of a scenario that do not fit parties with columns of the same samples."""

from collections.abc import Callable, Mapping
from typing import Any

from simsplit.client_names import ClientNames
from simsplit.config import expand_kind
from simsplit.data.joined_tables import JoinedSource
from simsplit.data.portions import Joint
from simsplit.data.tasks import Classification
from simsplit.errors import ScenarioError, SimsplitError, format_list
from simsplit.legs import Leg
from simsplit.methods import Method, MethodConfig
from simsplit.methods.method import LabelDefenceConfig
from simsplit.methods.p3eft import P3eftConfig
from simsplit.methods.stack import Stack
from simsplit.models.language import SequenceClassifier
from simsplit.needs import Given, Need
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings
from simsplit.schedules.schedule import RoundRobinConfig
from simsplit.topologies import TOPOLOGIES

_PORTIONS = "data.partition: {kind: columns, groups: {...}} for tables, or {kind: parts} for images"


def fill_parties(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario's values with the clients that its parties are, where it names none.

    There is a party for each portion of the samples, and each has a head of its own.
    """
    filled, clients = dict(values), values.get("clients", {})
    topology = TOPOLOGIES.get(str(values.get("topology")))
    if topology is None or not topology.joint or not isinstance(clients, Mapping):
        return filled
    known: dict[str, Any] = {"heads": "per_client"}
    data = values.get("data")
    if isinstance(data, Mapping):
        filled["data"] = data = _fill_groups(data)
    partition = data.get("partition") if isinstance(data, Mapping) else None
    partition = expand_kind(partition)
    if isinstance(partition, Mapping):
        groups, parts = partition.get("groups"), partition.get("parts", 2)
        if isinstance(groups, Mapping) and groups:
            known["count"] = len(groups)
        elif partition.get("kind") == "parts":
            known["count"] = parts
    return {**filled, "clients": {**known, **clients}}


def _fill_groups(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of data with the columns of each party's file as its group."""
    source = data.get("source")
    files = source.get("files") if isinstance(source, Mapping) else None
    if not isinstance(files, Mapping) or data.get("partition") not in (None, "columns"):
        return data
    groups = {str(party): [f"{party}.*"] for party in files}
    return {**data, "partition": {"kind": "columns", "groups": groups}}


def find_unfit_parties(scenario: ScenarioFields) -> Findings:
    """Refuse parties without portions of samples, portions without parties, and an unknown one."""
    partition, joint = scenario.data.partition, scenario.crossings.joint
    if scenario.vertical is not None and not joint:
        name = next(iter(scenario.vertical.model_fields_set), "party")
        reason = f"is for topology: vertical, got {scenario.topology}; leave it out"
        yield Finding(f"vertical.{name}", reason)
    if isinstance(partition, Joint) and not joint:
        yield Finding(
            "topology",
            f"got {scenario.topology}; with partition: {partition.kind_name} clients have portions "
            "of the same samples, so use topology: vertical",
        )
    if not joint:
        return
    if not isinstance(partition, Joint):
        yield Finding(
            "data.partition.kind",
            f"got {partition.kind_name}; under topology: vertical parties have portions of the "
            f"same samples: use {_PORTIONS}",
        )
    elif not (count := partition.count_parties()):
        yield Finding("data.partition.groups", "must have the columns of each party, by its name")
    elif count != scenario.clients.count:
        yield Finding(
            "clients.count",
            f"must be that of the partition's parties, {count}, got {scenario.clients.count}",
        )
    elif isinstance(scenario.data.source, JoinedSource):
        yield from _find_strange_files(scenario, scenario.data.source)


def _find_strange_files(scenario: ScenarioFields, source: JoinedSource) -> Findings:
    """Refuse parties that are others than those of the files, or in another order."""
    files = tuple(source.files)
    groups = getattr(scenario.data.partition, "groups", {})
    foreign = any(
        not each.startswith(f"{name}.") for name, columns in groups.items() for each in columns
    )
    if foreign or tuple(groups) != files:
        yield Finding(
            "data.partition.groups",
            f"must be {format_list(files)}, in this order, each with the columns of its own file; "
            "leave data.partition out",
        )
    elif scenario.party_names != files:
        yield Finding("clients.names", f"parties are called as their files, {format_list(files)}")


def find_unknown_party(scenario: ScenarioFields) -> Findings:
    """Refuse a party with labels that does not exist."""
    if not scenario.crossings.joint:
        return
    last = scenario.clients.count - 1
    try:
        number = scenario.label_party
    except ScenarioError as error:
        yield Finding(error.field, error.reason)
        return
    if number > last:
        yield Finding("vertical.party", f"must be 0 to {last}, got {number}")
    source = scenario.data.source
    if not isinstance(source, JoinedSource) or source.label_party in (None, number):
        return
    owner = [*source.files][source.label_party or 0]
    yield Finding(
        "vertical.party",
        f"got {scenario.joining.party}, and the labels, data.source.target, are in the file of "
        f"{owner}: one party has them. Leave it out",
    )


def _has_other_poisons(scenario: ScenarioFields) -> bool:
    malicious = scenario.clients.malicious
    needs = [poison.needs for poison in malicious.poison] if malicious else []
    return any(Need(Given.PARTIES) not in each for each in needs)


_UNFIT: Mapping[str, tuple[Callable[[ScenarioFields], object], str]] = {
    "clients.heads": (
        lambda each: each.clients.heads == "shared",
        "parties have other columns, so each has a head of its own: use per_client",
    ),
    "clients.tail": (
        lambda each: each.clients.tail == "shared",
        "one party alone has the tail: use null",
    ),
    "clients.cut": (lambda each: each.clients.cut, "parties have one cut: use null"),
    "clients.malicious": (
        _has_other_poisons,
        "parties cannot relabel, and each has a part of a sample: use villain alone, or null",
    ),
    "aggregation.kind": (
        lambda each: each.aggregation.kind != "none",
        "there is one trunk, and nothing that parties share: use none",
    ),
    "schedule.kind": (
        lambda each: each.schedule.kind not in ("round_robin", "parallel"),
        "parties take each step together: use round_robin",
    ),
    "schedule.turn": (
        lambda each: isinstance(each.schedule, RoundRobinConfig) and each.schedule.turn > 1,
        "parties take each step together: use 1",
    ),
    "train.accumulate": (
        lambda each: each.train.accumulate > 1,
        "a step waits for all parties' whole mini-batches: use 1",
    ),
    "train.group_by_length": (
        lambda each: each.train.group_by_length,
        "each party would sort by its own field, and rows would no longer belong together: use "
        "false",
    ),
    "train.dp.sampling": (
        lambda each: each.train.dp is not None and each.train.dp.sampling == "poisson",
        "each party would draw other samples: use passes",
    ),
    "cohort.fraction": (
        lambda each: (
            each.joining.absent == "wait"
            and each.cohort.count_selected(each.clients.count) < each.clients.count
        ),
        "a step waits for all parties, and would never be taken: use 1, or set vertical.absent",
    ),
    "data.augment": (
        lambda each: each.data.augment,
        "a change would have to be the same for all parts of an image: use []",
    ),
    "data.even": (lambda each: each.data.even, "all parties have the same samples: use null"),
    "evaluate.mirrored": (
        lambda each: each.evaluate.mirrored,
        "a mirrored part is no part of the mirrored image: use false",
    ),
    "evaluate.shifted": (
        lambda each: each.evaluate.shifted,
        "a moved part is no part of the moved image: use false",
    ),
    "detectors": (
        lambda each: each.detectors,
        "parties send different things, which no detector can compare: use []",
    ),
    "engine.rest": (
        lambda each: each.rests_on_disk,
        "all parties take each step: use memory",
    ),
}
"""Fields that must be left alone where clients are parties: the test of each, and its reason."""


def find_unfit_for_parties(scenario: ScenarioFields) -> Findings:
    """Refuse fields that have no meaning where clients are parties."""
    for field, (is_set, reason) in _UNFIT.items() if scenario.crossings.joint else ():
        if is_set(scenario):
            yield Finding(field, f"under topology: vertical {reason}")


_UNFIT_FOR_TEXTS: Mapping[str, tuple[Callable[[ScenarioFields], object], str]] = {
    "data.source.task": (
        lambda each: not isinstance(each.data.source.task, Classification),  # type: ignore[union-attr]
        "parties have fields of one text, whose class they learn: use a classification task",
    ),
    "data.source.padding": (
        lambda each: each.data.source.padding == "left",  # type: ignore[union-attr]
        "each text begins at its party's first token: use right",
    ),
    "model.kind": (
        lambda each: not (isinstance(each.model, SequenceClassifier) and each.model.encodes()),
        "the trunk reads all texts beside each other, with padding between them, so tokens must "
        "attend both ways: use sequence_classifier with an encoder, such as BERT's family",
    ),
    "model.tail": (
        lambda each: getattr(each.model, "tail", 0),
        "the tail's layers would need the lengths of all parties' texts, which no other party is "
        "told: use 0",
    ),
    "vertical.join": (
        lambda each: each.joining.join != "concat",
        "tokens at one place of two texts have nothing in common: use concat",
    ),
    "vertical.absent": (
        lambda each: each.joining.absent == "last",
        "what is kept of a text would need its length too: use wait or zeros",
    ),
    "clients.malicious": (
        lambda each: each.clients.malicious,
        "villain adds one trigger to what a head puts out of a sample, and texts differ in length: "
        "use null",
    ),
    "data.public": (
        lambda each: each.data.public or each.data.support,
        "public texts have no fields of parties: hold rows out with data.auxiliary",
    ),
}
"""Fields that must be so where parties have texts: the test of each, and its reason."""


def find_unfit_texts(scenario: ScenarioFields) -> Findings:
    """Refuse parties' texts that a trunk could not read as one sequence."""
    if not scenario.crossings.joint or scenario.data.source.modality != "texts":
        return
    for field, (is_unfit, reason) in _UNFIT_FOR_TEXTS.items():
        if is_unfit(scenario):
            yield Finding(field, f"under topology: vertical {reason}")
    for index, method in enumerate(scenario.method):
        if isinstance(method, P3eftConfig):
            yield Finding(
                f"method.{index}.kind",
                "p3eft has to know which tokens of the features are padding, and no party is told "
                "that of the others' texts; leave it out",
            )


def find_strange_owners(scenario: ScenarioFields) -> Findings:
    """Refuse a method of a party that does not exist, or that lacks what it acts on."""
    last = scenario.clients.count - 1
    for index, method in enumerate(scenario.method):
        field = f"method.{index}.by"
        if method.by is None:
            if method.reads_labels_at_head and last and scenario.parties:
                yield Finding(
                    f"method.{index}.kind",
                    f"{method.kind_name} needs the labels of what a head puts out, and one party "
                    f"has them; add by: party {_name_reader(scenario)}",
                )
            continue
        if not scenario.parties:
            reason = f"got '{method.by}', and is for topology: vertical, got {scenario.topology}"
            yield Finding(field, f"{reason}; leave it out")
            continue
        try:
            party = scenario.find_party(method)
        except SimsplitError as error:
            yield Finding(field, str(error))
            continue
        if party is None or party > last:
            yield Finding(field, f"must be a party between 0 and {last}, got {party}")
        elif party != scenario.label_party and (lack := _find_lack(method)):
            owner = _name_reader(scenario)
            yield Finding(
                field,
                f"got '{method.by}', and {method.kind_name} {lack}, which party {owner} alone has; "
                f"use 'party {owner}', or leave it out",
            )


def _name_reader(scenario: ScenarioFields) -> str:
    return ClientNames(scenario.party_names).get(scenario.label_party)


def _find_lack(method: MethodConfig) -> str | None:
    """Return what a method needs that a party without labels does not have; None: nothing."""
    if Leg.FEATURES in method.acts_on:
        return "acts on features (legs)"
    if any(need.leg in (Leg.FEATURES, Leg.FEATURES_GRAD) for need in method.needs):
        return "acts on features or their gradients"
    if isinstance(method, LabelDefenceConfig) or method.reads_labels_at_head:
        return "acts on labels"
    return None


_ALONE = ("stand_in", "plan_phases", "plan_interleaved_steps")
"""Hooks of methods for which there must be one head."""


def find_unfit_methods(scenario: ScenarioFields, client: Stack, _: Stack) -> Findings:
    """Refuse a method that cannot work with the heads of several parties."""
    several = len(scenario.parties) > 1
    for index, method in zip(client.places, client.smashed, strict=True) if several else ():
        kind, config = type(method), scenario.method[index]
        alone = any(getattr(kind, name) is not getattr(Method, name) for name in _ALONE)
        alone = alone or method.num_messages > 1 or method.reaches_head or bool(method.freezes)
        if alone or Leg.FEATURES in config.superposes:
            yield Finding(
                f"method.{index}.kind",
                f"{config.kind_name} needs the one head whose outputs go into the trunk, and under "
                "topology: vertical there are several; leave it out",
            )
