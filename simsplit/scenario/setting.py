"""This module measures what a scenario gives to its parts, thing by thing.

A topology's protocol alone decides which legs cross, and which side has the tail.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from simsplit.data.tasks import Classification
from simsplit.data.texts import TextTable
from simsplit.legs import Leg
from simsplit.methods import MethodConfig
from simsplit.methods.p3eft import P3eftConfig
from simsplit.methods.private_backprop import PrivateBackpropConfig
from simsplit.models.text_model import TextModel
from simsplit.needs import Given, Need
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.session_rules import explain_no_sessions

TAKING: Mapping[Given, Callable[[MethodConfig], frozenset[Leg]]] = {
    Given.CROSSES: lambda each: frozenset(each.stops),
    Given.SAMPLES: lambda each: frozenset(each.superposes),
    Given.READABLE: lambda each: frozenset(each.unreadable_legs),
    Given.FLOATS: lambda each: frozenset(each.coded_legs),
}
"""Things about a leg -> the legs on which a method takes them away."""


def _has_public(scenario: ScenarioFields) -> bool:
    return scenario.data.auxiliary > 0 or scenario.data.public is not None


def _has_classes(scenario: ScenarioFields) -> bool:
    source = scenario.data.source
    return not isinstance(source, TextTable) or isinstance(source.task, Classification)


def _has_own_adapters(scenario: ScenarioFields) -> bool:
    """Return whether a client has adapters that only its own steps change."""
    alone = scenario.clients.count == 1 and scenario.aggregation.kind == "none"
    own = scenario.clients.heads == "per_client" or alone
    own = own and scenario.train.client.lookahead is None
    return own and "head" in scenario.model.learning


def is_unmasked(scenario: ScenarioFields) -> bool:
    """Return whether texts cross without masks: a causal model padded on the right needs none."""
    source, model = scenario.data.source, scenario.model
    both_ways = isinstance(model, TextModel) and model.is_bidirectional
    return isinstance(source, TextTable) and source.padding == "right" and not both_ways


def _hands_linear_head(scenario: ScenarioFields) -> bool:
    coded = getattr(scenario.aggregation, "bits", None) is not None
    shared = scenario.clients.heads == "shared" and "head" in scenario.model.learning
    return shared and scenario.model.kind == "mlp" and not coded


AMOUNTS: Mapping[Given, Callable[[ScenarioFields], int]] = {
    Given.CLASSES: lambda each: (
        each.crossings.has(Leg.LABELS) or not find_culprits(each.method, Need(Given.CLASSES))
    ),
    Given.LABELLED: _has_classes,
    Given.SCORING: lambda each: each.crossings.can_satisfy(Need(Given.SCORING)),
    Given.CLASSIFIES: lambda each: each.model.kind != "causal_lm",
    Given.TASK_GRADIENT: lambda each: not any(method.keeps_task for method in each.method),
    # Checked by `find_other_classes`, when the number of classes is known.
    Given.TWO_CLASSES: lambda each: True,
    Given.FROZEN_TRUNK: lambda each: "trunk" not in each.model.learning,
    Given.ONE_HEAD: lambda each: not each.parties,
    Given.PARTIES: lambda each: bool(each.parties),
    Given.LEARNED_TRUNK: lambda each: "trunk" in each.model.learning,
    Given.ADAPTER_SETS: lambda each: getattr(each.model, "adapters", 0),
    Given.OWN_ADAPTERS: _has_own_adapters,
    # Messages go round the servers: from 2 m on, none is asked in two steps in a row.
    Given.IN_A_ROW: lambda each: each.servers < 2 * count_messages(each.method),
    Given.UNMASKED: is_unmasked,
    Given.CAUSAL: lambda each: each.model.kind == "causal_lm",
    Given.KNOWN_TAIL: lambda each: isinstance(each.model, TextModel) and each.model.is_start_public,
    Given.SESSIONS: lambda each: explain_no_sessions(each) is None,
    Given.PUBLIC: _has_public,
    Given.SUPPORT: lambda each: _has_public(each) or each.data.support is not None,
    Given.PAIRS: lambda each: _have_need(each.method, Given.PUBLIC),
    Given.WATCHED: lambda each: each.aggregation.kind != "splitfed_v1",
    Given.TURNS: lambda each: (
        each.schedule.kind == "per_client" and each.aggregation.kind in ("none", "splitfed_v2")
    ),
    Given.LAPS: lambda each: each.schedule.kind == "parallel",
    Given.BARRIER: lambda each: each.schedule.kind != "asynchronous",
    Given.SHARED: lambda each: each.shares,
    Given.HANDED_HEAD: _hands_linear_head,
    Given.HANDED_ROUND: lambda each: (
        each.schedule.kind in ("round_robin", "per_client") or not each.shares
    ),
    Given.CLIENTS: lambda each: each.clients.count,
    Given.ASKED: lambda each: each.cohort.count_selected(each.clients.count),
    Given.BATCH: lambda each: each.train.batch_size // each.train.accumulate,
}
"""The amount of each thing that a scenario gives; 0 or 1 (or a truth) for things without numbers.

Things about legs and kinds of data are measured by `measure` itself."""


def measure(
    scenario: ScenarioFields, need: Need, methods: Sequence[MethodConfig] | None = None
) -> int:
    """Return the amount of a needed thing that a scenario gives.

    `methods` are those at the cut that the need is about; None: all.
    """
    if modalities := need.what.value.modalities:
        return scenario.data.source.modality in modalities
    if need.what in TAKING:
        crosses = need.leg is not None and scenario.crossings.has(need.leg)
        return crosses and not find_culprits(scenario.method if methods is None else methods, need)
    return int(AMOUNTS[need.what](scenario))


def is_met(
    scenario: ScenarioFields, need: Need, methods: Sequence[MethodConfig] | None = None
) -> bool:
    """Return whether a scenario satisfies a need; `methods` as in `measure`."""
    return measure(scenario, need, methods) >= need.least


def find_culprits(methods: Sequence[MethodConfig], need: Need) -> list[MethodConfig]:
    """Return the methods that take a needed thing away, on a leg if the thing is about one."""
    if need.what is Given.CLASSES:
        grad = Leg.FEATURES_GRAD
        return [each for each in methods if grad in each.superposes | each.unreadable_legs]
    taken = TAKING.get(need.what)
    return [each for each in methods if taken is not None and need.leg in taken(each)]


def count_messages(methods: Sequence[MethodConfig]) -> int:
    """Return the number of messages in which each gradient of features crosses."""
    split = (each for each in methods if isinstance(each, PrivateBackpropConfig | P3eftConfig))
    return math.prod(each.messages for each in split)


def mixes_texts(methods: Sequence[MethodConfig]) -> bool:
    """Return whether clients mix other texts with their own."""
    return _have_need(methods, Given.SUPPORT)


def _have_need(methods: Sequence[MethodConfig], what: Given) -> bool:
    return any(need.what is what for each in methods for need in each.needs)
