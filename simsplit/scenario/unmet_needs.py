"""Each part's needs are compared here with the things that a scenario gives (see `setting`).

An unmet need is a finding at the field that asks for it, with the values that would satisfy it and
another remedy.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from simsplit.attacks import ATTACKS, AttackConfig
from simsplit.config import Config
from simsplit.data import DataInfo
from simsplit.detectors import DETECTORS
from simsplit.errors import SimsplitError, format_count
from simsplit.legs import Leg
from simsplit.methods import METHODS, CodecConfig, Method, MethodConfig
from simsplit.methods.stack import Stack
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.poisons import POISONS
from simsplit.poisons.malicious import FIELD
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings
from simsplit.scenario.messages import format_value
from simsplit.scenario.session_rules import explain_no_sessions
from simsplit.scenario.setting import count_messages, find_culprits, is_met, measure
from simsplit.schedules.aggregation import AGGREGATIONS
from simsplit.topologies import find_topology


class _Part(NamedTuple):
    """A part of a scenario whose needs are checked."""

    where: str
    """The part's field."""
    kind: str
    """The field of its kind."""
    config: Any
    kinds: Mapping[str, type[Config]]
    """The shipped kinds that are allowed in its place."""
    methods: Sequence[MethodConfig]
    """The methods at the cut of which it reads, or at all."""


def _list_parts(scenario: ScenarioFields) -> Iterator[_Part]:
    """Yield the parts of a scenario that have needs, in the order in which they are checked."""
    every = scenario.method
    yield _Part("aggregation", "aggregation", scenario.aggregation, AGGREGATIONS, every)
    malicious = scenario.clients.malicious
    lists: list[tuple[str, Any, Mapping[str, type[Config]]]] = [
        ("method", scenario.method, METHODS),
        (f"{FIELD}.poison", malicious.poison if malicious else (), POISONS),
        ("detectors", scenario.detectors, DETECTORS),
        ("attacks", scenario.attacks, ATTACKS),
    ]
    for name, configs, kinds in lists:
        for index, config in enumerate(configs):
            methods = every
            if isinstance(config, AttackConfig):
                with suppress(SimsplitError):  # an unknown party is refused by its field
                    client = scenario.find_read_client(config)
                    methods = (*scenario.select_methods(client).values(),)
            yield _Part(f"{name}.{index}", f"{name}.{index}.kind", config, kinds, methods)


def find_unmet(scenario: ScenarioFields) -> Findings:
    """Refuse a part that needs what the rest of the scenario does not give."""
    for part in _list_parts(scenario):
        for need in part.config.needs:
            if not is_met(scenario, need, part.methods):
                yield _describe(scenario, part, need)


def find_other_classes(scenario: ScenarioFields, info: DataInfo) -> Findings:
    """Refuse a part that is for two classes if data have another number."""
    for part, need in _list_needs(scenario, Given.TWO_CLASSES) if info.classes != 2 else ():
        reason = f"{part.config.kind_name} {need.what.value.why}, got {info.classes}"
        yield Finding(part.kind, reason)


def find_learning_servers(scenario: ScenarioFields, _: Stack, server: Stack) -> Findings:
    """Refuse a part that forbids the server to learn if a method learns there."""
    if any(weight.requires_grad for weight in server.modules.parameters()):
        for part, need in _list_needs(scenario, Given.FROZEN_TRUNK):
            reason = f"{part.config.kind_name} {need.what.value.why}, as a method does"
            yield Finding(part.kind, reason)


def _list_needs(scenario: ScenarioFields, what: Given) -> Iterator[tuple[_Part, Need]]:
    """Yield the needs for a thing, with the parts that have them."""
    for part in _list_parts(scenario):
        yield from ((part, need) for need in part.config.needs if need.what is what)


def find_idle(scenario: ScenarioFields, client: Stack, _: Stack) -> Findings:
    """Refuse a method that lists no needs, as a plugin's may, if its hooks would never act.

    Its needs are inferred from the hooks that it overrides on the client's side and its phases.
    """
    for index, method in zip(client.places, client.smashed, strict=True):
        config = scenario.method[index]
        own = {name for kind in type(config).__mro__ for name in vars(kind) if kind not in _BASES}
        part = _Part(f"method.{index}", f"method.{index}.kind", config, METHODS, scenario.method)
        # Declared needs were checked by `find_unmet`.
        for need in () if "needs" in own else _infer_needs(method):
            if not is_met(scenario, need):
                yield _describe(scenario, part, need)


_BASES = (MethodConfig, CodecConfig)
_HOOKS: dict[str, Need] = {
    "decode": need_leg(Leg.FEATURES),
    "compute_tail_loss": need_leg(Leg.FEATURES),
    "compute_task_loss": Need(Given.SCORING),
    "read_outputs": Need(Given.SCORING),
    "split_gradient": need_leg(Leg.FEATURES_GRAD),
}


def _infer_needs(method: Method) -> Needs:
    """Return the needs that follow from a method's hooks and phases."""
    own = {name for kind in type(method).__mro__ if kind is not Method for name in vars(kind)}
    needs = [need for hook, need in _HOOKS.items() if hook in own]
    extra = method.plan_interleaved_steps()
    for phase in (*method.plan_phases(1), *([extra.phase] if extra else [])):
        needs += [Need(Given.PUBLIC)] if phase.source == "public" else []
        needs += [] if phase.gradients else [need_leg(Leg.FEATURES)]
    return tuple(needs)


def _describe(scenario: ScenarioFields, part: _Part, need: Need) -> Finding:
    """Return the finding of an unmet need, with what would satisfy it."""
    fact, words = need.what.value, _collect_words(scenario, need, part.methods)
    why, mend = fact.why, fact.mend
    if words["culprit"] and fact.taken:
        why, mend = fact.taken, ""
    if need.field == "kind":
        where, got = part.kind, part.config.kind_name
        ways = _find_kinds(scenario, part, need) if fact.kinds else []
    else:
        where, got = f"{part.where}.{need.field}", format_bare(getattr(part.config, need.field))
        ways = _find_values(scenario, part, need)
    subject = got if where.endswith(".kind") else f"got {got}; it"
    mend = mend.format(**words)
    remedies = f"; allowed: {', '.join(ways)}" if ways else ""
    if mend:
        remedies += f", or {mend}" if ways else f"; use {mend}"
    return Finding(where, f"{subject} {why.format(**words)}{remedies}")


def _find_kinds(scenario: ScenarioFields, part: _Part, need: Need) -> list[str]:
    """Return the kinds whose default config satisfies the unmet need.

    Where there are many kinds, only needs for a kind of data are checked.
    """
    many = need.what.value.modalities and part.kinds is not AGGREGATIONS
    return [
        kind
        for kind, config in part.kinds.items()
        if all(
            is_met(scenario, each, part.methods)
            for each in config().needs  # type: ignore[attr-defined]
            if each.what.value.modalities or not many
        )
    ]


def _find_values(scenario: ScenarioFields, part: _Part, need: Need) -> list[str]:
    """Return the values of the field with which the part's needs are satisfied."""
    ways = []
    for value in list_options(type(part.config).model_fields[need.field].annotation):
        other = part.config.model_copy(update={need.field: value})
        needs = [each for each in other.needs if each.field == need.field]
        if all(is_met(scenario, each, part.methods) for each in needs):
            ways.append(format_bare(value))
    return ways


def list_options(annotation: Any) -> list[Any]:  # noqa: ANN401 - a type
    """Return all values that an annotation allows, if they can be listed; else an empty list."""
    if annotation is bool:
        return [True, False]
    inner = get_args(annotation)
    if get_origin(annotation) is tuple:
        return [(value,) for value in list_options(inner[0])]
    if NoneType in inner:  # a number or null: of these null alone can be listed
        return [None]
    return list(inner) if get_origin(annotation) is Literal else []


def format_bare(value: Any) -> str:  # noqa: ANN401 - a field's
    """Return a value in the form that it has within a sentence."""
    if isinstance(value, tuple):
        return ", ".join(map(format_bare, value))
    if isinstance(value, Config):
        return value.kind_name
    return value if isinstance(value, str) else format_value(value)


def _collect_words(
    scenario: ScenarioFields, need: Need, methods: Sequence[MethodConfig]
) -> dict[str, object]:
    """Return the words that fill in the sentences of `Given`."""
    apart = {"clients.heads": "per_client", "clients.tail": "own"}
    shared, culprits = scenario.shared_field, find_culprits(methods, need)
    return {
        "a_topology": f"{'an' if scenario.topology[0] in 'aeio' else 'a'} {scenario.topology}",
        "schedule": scenario.schedule.kind,
        "aggregation": scenario.aggregation.kind,
        "model": scenario.model.kind,
        "heads": scenario.clients.heads,
        "modality": scenario.data.source.modality,
        "leg": need.leg.words if need.leg else "",
        "culprit": culprits[0].kind_name if culprits else "",
        "least": need.least,
        "got": measure(scenario, need, methods),
        "crossed": find_topology(lambda each: need.leg is not None and each.has(need.leg)),
        "scoring": find_topology(lambda each: each.tail_with_client),
        "adapting": find_topology(lambda each: each.whole_model is True),
        "servers": scenario.servers,
        "messages": format_count(count_messages(scenario.method), "message"),
        "unseen": explain_no_sessions(scenario),
        "apart": f"{shared}: {apart.get(str(shared))}",
        "or_public": ", or data.public (texts from elsewhere)" if scenario.reads_texts else "",
    }
