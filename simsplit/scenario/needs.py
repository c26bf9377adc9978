"""Each part's needs are compared here with the things that a scenario gives.

A topology's protocol alone decides what it gives: the legs that cross, and which side has the tail.
An unmet need is a ScenarioError at the field that asks for it, with the values that would satisfy
it and another remedy.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

from simsplit.attacks import ATTACKS
from simsplit.config import Config
from simsplit.data.tasks import Classification
from simsplit.data.texts import TextTable
from simsplit.detectors import DETECTORS
from simsplit.errors import ScenarioError, format_count
from simsplit.methods import METHODS, CodecConfig, Method, MethodConfig
from simsplit.methods.p3eft import P3eftConfig
from simsplit.methods.private_backprop import PrivateBackpropConfig
from simsplit.methods.stack import Stack
from simsplit.models.text_model import TextModel
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.packets import Leg
from simsplit.poisons import POISONS
from simsplit.poisons.malicious import FIELD
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.messages import format_value
from simsplit.scenario.sessions import explain_no_sessions
from simsplit.schedules.aggregation import AGGREGATIONS
from simsplit.topologies import find_topology

Setting = Mapping[tuple[Given, Leg | None], int]
"""The amount of each thing that a scenario gives, by leg where the thing is about one."""


class _Lack(NamedTuple):
    """The message about an unmet need."""

    why: str
    """The reason, with names of words that `_collect_words` fills in."""
    mend: str = ""
    """A remedy elsewhere in the scenario; empty if there is none."""
    kinds: bool = False
    """Whether the message lists kinds that can replace the part's."""


_SET_PUBLIC = "data.auxiliary (the part of the training samples that is public, such as 0.2)"
_LACKS: dict[Given, _Lack] = {
    Given.CROSSES: _Lack("needs {leg}, which do not cross {a_topology} cut", "topology: {crossed}"),
    Given.SAMPLES: _Lack("needs {leg} of single samples, and {culprit} sends none"),
    Given.READABLE: _Lack("needs {leg} in their places, which {culprit} does not send"),
    Given.FLOATS: _Lack(
        "needs {leg} as floats, and {culprit} sends codes", "another method than {culprit} on them"
    ),
    Given.CLASSES: _Lack(
        "needs gradients of single samples, and {culprit} sends none in their places"
    ),
    Given.LABELLED: _Lack(
        "works on the classes of samples, and these texts have none",
        "data.source.task with kind: classification",
    ),
    Given.SCORING: _Lack(
        "needs clients to compute the loss, which the server does at {a_topology} cut",
        "topology: {scoring}",
    ),
    Given.CLASSIFIES: _Lack(
        "is for samples with one label each, and those of {model} are tokens", "sequence_classifier"
    ),
    Given.TASK_GRADIENT: _Lack(
        "changes the gradient of the task's loss, which another method keeps from the server",
        "one of both methods",
    ),
    Given.TWO_CLASSES: _Lack("is for two classes"),
    Given.ADAPTER_SETS: _Lack(
        "mixes the states of several sets of adapters, and clients have {got}",
        "topology: {adapting} with model.adapters: {least}",
    ),
    Given.OWN_ADAPTERS: _Lack(
        "needs adapters that only one client's steps change, and here there are none",
        "clients.heads: per_client, a model.learns with head and train.client.lookahead: null",
    ),
    Given.IN_A_ROW: _Lack(
        "needs a server that is asked two steps in a row; with servers: {servers} and {messages} "
        "per gradient none is",
        "fewer servers (with so many it would recover nothing)",
    ),
    Given.LEARNED_TRUNK: _Lack(
        "judges clients by the trunk's steps, and the trunk does not learn",
        "model.learns with trunk",
    ),
    Given.FROZEN_TRUNK: _Lack(
        "needs a trunk that does not learn: it would learn from messages that hide the gradient",
        "model.learns without trunk",
    ),
    Given.IMAGES: _Lack("is for images, got {modality}", kinds=True),
    Given.TEXTS: _Lack("is for texts, got {modality}", kinds=True),
    Given.TABLES: _Lack("is for tables, got {modality}", kinds=True),
    Given.NUMBERS: _Lack("is for images and tables, got {modality}", kinds=True),
    Given.UNMASKED: _Lack(
        "needs texts without a mask, which encoders and padding on the left bring along",
        "data.source.padding: right",
    ),
    Given.CAUSAL: _Lack("needs a model that predicts tokens, got {model}", "causal_lm"),
    Given.KNOWN_TAIL: _Lack(
        "keeps the tail unlike the pretrained one, and random weights have no pretrained tail",
        "a pretrained model (model.name), or model.sizes.public: true",
    ),
    Given.SESSIONS: _Lack("reads the texts that clients write, but {unseen}"),
    Given.PUBLIC: _Lack("needs public data", f"{_SET_PUBLIC}{{or_public}}"),
    Given.SUPPORT: _Lack("needs public texts to mix with", f"{_SET_PUBLIC}{{or_public}}"),
    Given.PAIRS: _Lack(
        "learns from public texts that cross both plain and disguised, and here none do",
        "mixguard or snd, with a warm-up",
    ),
    Given.WATCHED: _Lack(
        "follows training by the server's wire, which the steps of {aggregation} do not pass",
        "another aggregation",
    ),
    Given.TURNS: _Lack(
        "judges whole turns of clients over one trunk, and {schedule} with {aggregation} has none",
        "schedule: per_client, with aggregation: none or splitfed_v2",
    ),
    Given.LAPS: _Lack(
        "takes one step for all clients at once, which {schedule} does not do",
        "schedule: parallel",
        kinds=True,
    ),
    Given.BARRIER: _Lack(
        "trains a trunk for each client, and under {schedule} all step one", kinds=True
    ),
    Given.SHARED: _Lack(
        "needs something that clients share, and they share nothing",
        "clients.heads: shared",
        kinds=True,
    ),
    Given.HANDED_ROUND: _Lack(
        "hands shared segments from client to client, and {schedule} has no turns for that",
        "{apart}",
        kinds=True,
    ),
    Given.CLIENTS: _Lack("needs at least {least} clients", "clients.count: {least}"),
    Given.ASKED: _Lack(
        "needs at least {least} clients a round; clients.count and cohort.fraction make it {got}"
    ),
    Given.BATCH: _Lack("needs batches of {least}; train.batch_size makes it {got}"),
}


_STOPPED = _Lack("needs {leg}, and with {culprit} none cross")
"""The message about a leg that a method stops; the topology would have it."""


def find_setting(scenario: ScenarioFields) -> Setting:
    """Return the amount of each thing that a scenario gives; 0 or 1 for things without numbers."""
    data, methods = scenario.data, scenario.method
    schedule, aggregation = scenario.schedule.kind, scenario.aggregation.kind
    legs, tail = scenario.crossings.training.legs, scenario.crossings.tail_with_client
    padding = data.source.padding if isinstance(data.source, TextTable) else None
    both_ways = isinstance(scenario.model, TextModel) and scenario.model.is_bidirectional
    texts, in_turn = padding is not None, schedule in ("round_robin", "per_client")
    public = data.auxiliary > 0 or data.public is not None
    learned = "trunk" in scenario.model.learning
    of_legs: dict[tuple[Given, Leg | None], int] = {
        (what, leg): int(not _find_culprits(methods, what, leg))
        for leg in legs
        for what in (Given.CROSSES, Given.SAMPLES, Given.READABLE, Given.FLOATS)
    }
    plain = {
        Given.CLASSES: Leg.LABELS in legs or not _find_culprits(methods, Given.CLASSES),
        Given.LABELLED: not isinstance(data.source, TextTable)
        or isinstance(data.source.task, Classification),
        Given.SCORING: tail,
        Given.CLASSIFIES: scenario.model.kind != "causal_lm",
        Given.TASK_GRADIENT: not any(method.keeps_task for method in methods),
        # Checked by `refuse_classes`, when the number of classes is known.
        Given.TWO_CLASSES: True,
        Given.FROZEN_TRUNK: not learned,
        Given.ADAPTER_SETS: getattr(scenario.model, "adapters", 0),
        Given.OWN_ADAPTERS: _has_own_adapters(scenario),
        # Messages go round the servers: from 2 m on, none is asked in two steps in a row.
        Given.IN_A_ROW: scenario.servers < 2 * count_messages(methods),
        Given.LEARNED_TRUNK: learned,
        Given.IMAGES: data.source.modality == "images",
        Given.TEXTS: texts,
        Given.TABLES: data.source.modality == "tables",
        Given.NUMBERS: not texts,
        Given.UNMASKED: padding == "right" and not both_ways,
        Given.CAUSAL: scenario.model.kind == "causal_lm",
        Given.KNOWN_TAIL: isinstance(scenario.model, TextModel) and scenario.model.is_start_public,
        Given.SESSIONS: explain_no_sessions(scenario) is None,
        Given.PUBLIC: public,
        Given.SUPPORT: public or data.support is not None,
        Given.PAIRS: any(need.what is Given.PUBLIC for each in methods for need in each.needs),
        Given.WATCHED: aggregation != "splitfed_v1",
        Given.TURNS: schedule == "per_client" and aggregation in ("none", "splitfed_v2"),
        Given.LAPS: schedule == "parallel",
        Given.BARRIER: schedule != "asynchronous",
        Given.SHARED: scenario.shares,
        Given.HANDED_ROUND: in_turn or not scenario.shares,
        Given.CLIENTS: scenario.clients.count,
        Given.ASKED: scenario.cohort.count_selected(scenario.clients.count),
        Given.BATCH: scenario.train.batch_size // scenario.train.accumulate,
    }
    return {**of_legs, **{(what, None): int(amount) for what, amount in plain.items()}}


def _has_own_adapters(scenario: ScenarioFields) -> bool:
    """Return whether a client has adapters that only its own steps change."""
    alone = scenario.clients.count == 1 and scenario.aggregation.kind == "none"
    own = scenario.clients.heads == "per_client" or alone
    own = own and scenario.train.client.lookahead is None
    return own and "head" in scenario.model.learning


def count_messages(methods: Sequence[MethodConfig]) -> int:
    """Return the number of messages in which each gradient of features crosses."""
    split = (each for each in methods if isinstance(each, PrivateBackpropConfig | P3eftConfig))
    return math.prod(each.messages for each in split)


def mixes_texts(methods: Sequence[MethodConfig]) -> bool:
    """Return whether clients mix other texts with their own."""
    return any(need.what is Given.SUPPORT for each in methods for need in each.needs)


def _find_culprits(
    methods: Sequence[MethodConfig], what: Given, leg: Leg | None = None
) -> list[MethodConfig]:
    """Return the methods that take a thing away, on a leg if the thing is about one."""
    grad = Leg.FEATURES_GRAD
    return [
        each
        for each in methods
        if (what is Given.CROSSES and leg in each.stops)
        or (what is Given.SAMPLES and leg in each.superposes)
        or (what is Given.READABLE and leg in each.unreadable_legs)
        or (what is Given.FLOATS and leg in each.coded_legs)
        or (what is Given.CLASSES and grad in each.superposes | each.unreadable_legs)
    ]


class _Part(NamedTuple):
    """A part of a scenario whose needs are checked."""

    where: str
    """The part's field."""
    kind: str
    """The field of its kind."""
    config: Any
    kinds: Mapping[str, type[Config]]
    """The shipped kinds that are allowed in its place."""


def _list_parts(scenario: ScenarioFields) -> Iterator[_Part]:
    """Yield the parts of a scenario that have needs, in the order in which they are checked."""
    yield _Part("aggregation", "aggregation", scenario.aggregation, AGGREGATIONS)
    malicious = scenario.clients.malicious
    lists: list[tuple[str, Any, Mapping[str, type[Config]]]] = [
        ("method", scenario.method, METHODS),
        (f"{FIELD}.poison", malicious.poison if malicious else (), POISONS),
        ("detectors", scenario.detectors, DETECTORS),
        ("attacks", scenario.attacks, ATTACKS),
    ]
    for name, configs, kinds in lists:
        for index, config in enumerate(configs):
            yield _Part(f"{name}.{index}", f"{name}.{index}.kind", config, kinds)


def refuse_unmet(scenario: ScenarioFields) -> None:
    """Raise ScenarioError for the first need of a part that the scenario does not satisfy."""
    setting = find_setting(scenario)
    for part in _list_parts(scenario):
        for need in part.config.needs:
            _refuse_need(scenario, setting, part, need)


def refuse_classes(scenario: ScenarioFields, classes: int) -> None:
    """Raise ScenarioError for a part that is for two classes if data have another number."""
    for part in _list_parts(scenario):
        if classes != 2 and any(need.what is Given.TWO_CLASSES for need in part.config.needs):
            raise ScenarioError(
                part.kind, f"{part.config.kind_name} is for two classes, got {classes}"
            )


def refuse_learning(scenario: ScenarioFields, server: Stack) -> None:
    """Raise ScenarioError for a part that forbids the server to learn if a method learns there."""
    if not any(weight.requires_grad for weight in server.modules.parameters()):
        return
    for part in _list_parts(scenario):
        if any(need.what is Given.FROZEN_TRUNK for need in part.config.needs):
            raise ScenarioError(
                part.kind,
                f"{part.config.kind_name} {_LACKS[Given.FROZEN_TRUNK].why}, as a method does",
            )


def refuse_idle(scenario: ScenarioFields, client: Stack) -> None:
    """Raise ScenarioError for an unmet need of a method that lists none, as a plugin's may.

    Its needs are inferred from the hooks that it overrides on the client's side and its phases.
    """
    setting = find_setting(scenario)
    chain = [pair for pair in enumerate(scenario.method) if Leg.SMASHED in pair[1].acts_on]
    for (index, config), method in zip(chain, client.smashed, strict=True):
        own = {name for kind in type(config).__mro__ for name in vars(kind) if kind not in _BASES}
        part = _Part(f"method.{index}", f"method.{index}.kind", config, METHODS)
        # Declared needs were checked by `refuse_unmet`.
        for need in () if "needs" in own else _infer_needs(method):
            _refuse_need(scenario, setting, part, need)


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


def _refuse_need(scenario: ScenarioFields, setting: Setting, part: _Part, need: Need) -> None:
    """Raise ScenarioError if the setting does not satisfy a need of a part."""
    if _is_met(setting, need):
        return
    lack, words = _LACKS[need.what], _collect_words(scenario, setting, need)
    # Where a method stops the leg, another topology is no remedy.
    if need.what is Given.CROSSES and words["culprit"]:
        lack = _STOPPED
    if need.field == "kind":
        where, got = part.kind, part.config.kind_name
        ways = _find_kinds(setting, part, need) if lack.kinds else []
    else:
        where, got = f"{part.where}.{need.field}", format_bare(getattr(part.config, need.field))
        ways = _find_values(setting, part, need)
    subject = got if where.endswith(".kind") else f"got {got}; it"
    raise ScenarioError(
        where,
        f"{subject} {lack.why.format(**words)}{_format_remedies(ways, lack.mend.format(**words))}",
    )


def _format_remedies(ways: list[str], mend: str) -> str:
    if not ways:
        return f"; use {mend}" if mend else ""
    return f"; allowed: {', '.join(ways)}" + (f", or {mend}" if mend else "")


def _is_met(setting: Setting, need: Need) -> bool:
    # Legs that the topology lacks are not in the setting.
    return setting.get((need.what, need.leg), 0) >= need.least


def _find_kinds(setting: Setting, part: _Part, need: Need) -> list[str]:
    """Return the kinds whose default config satisfies the unmet need.

    Where there are many kinds, only needs for a kind of data are checked.
    """
    many = need.what in _MODALITIES and part.kinds is not AGGREGATIONS
    return [
        kind
        for kind, config in part.kinds.items()
        if all(
            _is_met(setting, each)
            for each in config().needs  # type: ignore[attr-defined]
            if each.what in _MODALITIES or not many
        )
    ]


_MODALITIES = (Given.IMAGES, Given.TEXTS, Given.TABLES, Given.NUMBERS)


def _find_values(setting: Setting, part: _Part, need: Need) -> list[str]:
    """Return the values of the field with which the part's needs are satisfied."""
    ways = []
    for value in list_options(type(part.config).model_fields[need.field].annotation):
        other = part.config.model_copy(update={need.field: value})
        if all(_is_met(setting, each) for each in other.needs if each.field == need.field):
            ways.append(format_bare(value))
    return ways


def list_options(annotation: Any) -> list[Any]:  # noqa: ANN401 - a type
    """Return all values that an annotation allows, if they can be listed; else an empty list."""
    if annotation is bool:
        return [True, False]
    inner = get_args(annotation)
    if get_origin(annotation) is tuple:
        return [(value,) for value in list_options(inner[0])]
    return list(inner) if get_origin(annotation) is Literal else []


def format_bare(value: Any) -> str:  # noqa: ANN401 - a field's
    """Return a value in the form that it has within a sentence."""
    if isinstance(value, tuple):
        return ", ".join(map(format_bare, value))
    if isinstance(value, Config):
        return value.kind_name
    return value if isinstance(value, str) else format_value(value)


def _collect_words(scenario: ScenarioFields, setting: Setting, need: Need) -> dict[str, object]:
    """Return the words that fill in the messages of `_LACKS`."""
    apart = {"clients.heads": "per_client", "clients.tail": "own"}
    shared, culprits = scenario.shared_field, _find_culprits(scenario.method, need.what, need.leg)
    return {
        "a_topology": f"{'an' if scenario.topology[0] in 'aeio' else 'a'} {scenario.topology}",
        "schedule": scenario.schedule.kind,
        "aggregation": scenario.aggregation.kind,
        "model": scenario.model.kind,
        "modality": scenario.data.source.modality,
        "leg": need.leg.words if need.leg else "",
        "culprit": culprits[0].kind_name if culprits else "",
        "least": need.least,
        "got": setting.get((need.what, need.leg), 0),
        "crossed": find_topology(lambda each: need.leg is not None and each.has(need.leg)),
        "scoring": find_topology(lambda each: each.tail_with_client),
        "adapting": find_topology(lambda each: each.whole_model is True),
        "servers": scenario.servers,
        "messages": format_count(count_messages(scenario.method), "message"),
        "unseen": explain_no_sessions(scenario),
        "apart": f"{shared}: {apart.get(str(shared))}",
        "or_public": ", or data.public (texts from elsewhere)" if scenario.reads_texts else "",
    }
