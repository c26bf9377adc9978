"""Fields of a scenario that exclude each other are refused here; the error names one to change.

Names that tables would confuse, and clients that do not exist, are refused too.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import ValidationError
from torch import nn

from simsplit.attacks import AttackConfig
from simsplit.data import DataConfig
from simsplit.data.texts import TextTable
from simsplit.detectors import DetectorConfig
from simsplit.errors import ScenarioError
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.methods import Method, MethodConfig
from simsplit.methods.stack import Stack
from simsplit.metrics.classification import METRICS, TOKEN_METRICS
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.fresh import Shape
from simsplit.models.language import CausalLM
from simsplit.packets import Leg
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.parties.train_config import ClientsConfig
from simsplit.poisons.malicious import FIELD, MaliciousConfig
from simsplit.results.recovers import RECOVERS
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.messages import describe_unknown, explain, format_value
from simsplit.schedules.exchange import WITHOUT_TRUNK
from simsplit.topologies import find_topology

_NO_VALIDATION = "validation needs data.validation above 0"
MOST_TRIED = 64
"""Most combinations of values that an attacker tries of one attack."""
_UNTUNED = ("kind", "name", "tune")
_SAFE = {"kind", "lr", "momentum", "weight_decay", "eps", "amsgrad", "lookahead"}
"""An optimizer's options that any other option can be combined with."""


def refuse_unserved(scenario: ScenarioFields) -> None:
    """Raise ScenarioError for a model, a method or servers that the topology cannot use."""
    topology, whole = scenario.crossings, isinstance(scenario.model, AdaptedClassifier)
    for index, method in enumerate(() if scenario.gradients_cross else scenario.method):
        if any(need.leg is Leg.FEATURES_GRAD for need in method.needs):
            raise ScenarioError(
                f"method.{index}.kind",
                f"{method.kind_name} hides gradients or adapters, and neither crosses with "
                "model.learns: [tail]; leave it out, or add head to model.learns",
            )
    if scenario.servers > 1 and not topology.many_servers:
        other = find_topology(lambda each: each.many_servers)
        raise ScenarioError(
            "servers",
            f"got {scenario.servers}; only topology: {other} can ask several servers",
        )
    if topology.whole_model is True and not whole:
        raise ScenarioError(
            "model.kind",
            f"got {scenario.model.kind}; under topology: {scenario.topology} clients train "
            "adapters for a whole transformer: use adapted_classifier, which reads texts",
        )
    if topology.whole_model is False and whole:
        other = find_topology(lambda each: each.whole_model is True)
        raise ScenarioError(
            "topology",
            f"got {scenario.topology}, but an adapted_classifier cannot be cut; use topology: "
            f"{other}, or model: {{kind: sequence_classifier, lora: {{}}}}",
        )


def refuse_unknown_metrics(scenario: ScenarioFields) -> None:
    """Raise ScenarioError for a metric that is not computed for the scenario's model."""
    causal = isinstance(scenario.model, CausalLM)
    of_classes = [*METRICS, *scenario.plugins.of("METRICS")]
    known = [*TOKEN_METRICS, *GENERATION_METRICS] if causal else of_classes
    for index, name in enumerate(scenario.metrics):
        if name not in known:
            raise ScenarioError(
                f"evaluate.metrics.{index}",
                f"got {name}, which {scenario.model.kind} lacks; allowed: {', '.join(known)}",
            )


def refuse_other_samples(scenario: ScenarioFields) -> None:
    """Raise ScenarioError for a field that is for another kind of samples."""
    got = {"tables": "a table of numbers"}.get(kind := scenario.data.source.modality, kind)
    if scenario.train.group_by_length and not scenario.reads_texts:
        raise ScenarioError("train.group_by_length", f"is for texts, got {got}; use false")
    repeat = getattr(scenario.data.source, "repeat", 1)
    if repeat > 1 and (scenario.data.validation or scenario.data.auxiliary):
        raise ScenarioError(
            "data.source.repeat",
            f"got {repeat}; clients would train on copies of the samples that data.validation and "
            "data.auxiliary hold out: use 1, or hold nothing out",
        )
    if scenario.data.augment and kind != "images":
        raise ScenarioError("data.augment", f"is for images, got {got}; use []")
    for view in ("mirrored", "shifted"):
        if getattr(scenario.evaluate, view) and kind != "images":
            raise ScenarioError(f"evaluate.{view}", f"is for images, got {got}; use false")
    if scenario.train.label_smoothing and kind == "texts":
        # Attacks on texts match gradients of plain labels, which smoothing would change.
        reason = "is for classes of images and tables, got texts; use 0"
        raise ScenarioError("train.label_smoothing", reason)


def refuse_parts(scenario: ScenarioFields) -> None:
    """Raise ScenarioError if mini-batches cannot cross in parts."""
    train, field = scenario.train, "train.accumulate"
    if train.accumulate == 1:
        return
    got = f"got {train.accumulate}"
    if train.batch_size % train.accumulate:
        raise ScenarioError(
            field, f"must divide train.batch_size, {train.batch_size}, without a rest, {got}"
        )
    if not scenario.crossings.tail_with_client:
        other = find_topology(lambda each: each.tail_with_client)
        raise ScenarioError(
            field,
            f"{got}; under topology: {scenario.topology} the server computes the loss, and a part "
            f"does not tell its share of the mini-batch. Use 1, or topology: {other}",
        )
    if scenario.schedule.kind == "asynchronous" or scenario.aggregation.kind == "fused":
        kind = "fused" if scenario.aggregation.kind == "fused" else "asynchronous"
        raise ScenarioError(
            field,
            f"{got}; under {kind} steps of several clients share the trunk's gradients, so use 1",
        )


def refuse_inspected_parts(scenario: ScenarioFields, client: Stack) -> None:
    """Raise ScenarioError if mini-batches cross in parts and a method judges whole steps."""
    if scenario.train.accumulate == 1:
        return
    for method in client.smashed:
        if type(method).accept is not Method.accept and not method.accepts_parts:
            raise ScenarioError(
                "train.accumulate",
                f"got {scenario.train.accumulate}, but {type(method).__name__} judges the gradient "
                "of each mini-batch as a whole; use 1",
            )


def refuse_second_loss(scenario: ScenarioFields, client: Stack) -> None:
    """Raise ScenarioError if two methods define the task's loss: the first alone would count."""
    chain = [pair for pair in enumerate(scenario.method) if Leg.SMASHED in pair[1].acts_on]
    own = [
        pair
        for pair, method in zip(chain, client.smashed, strict=True)
        if type(method).compute_task_loss is not Method.compute_task_loss
    ]
    if len(own) > 1:
        (_, first), (index, second) = own[:2]
        raise ScenarioError(
            f"method.{index}.kind",
            f"{second.kind_name} defines the loss of the task, as {first.kind_name} does, and one "
            "method alone can; use one of them",
        )


def refuse_unscorable(scenario: ScenarioFields) -> None:
    """Raise ScenarioError for splits that are not there, or a figure that no table has."""
    for field, names in (("metrics", scenario.metrics), ("on", scenario.splits)):
        if not names or len(set(names)) < len(names):
            raise ScenarioError(
                f"evaluate.{field}", f"must name at least one, each once, got {format_value(names)}"
            )
    if "validation" in scenario.splits and not scenario.data.validation:
        raise ScenarioError("evaluate.on", f"got {format_value(scenario.splits)}; {_NO_VALIDATION}")
    if scenario.stop is not None and scenario.stop.metric not in scenario.figures:
        wrong = describe_unknown(scenario.stop.metric, scenario.figures)
        if scenario.stop.metric.startswith("validation_") and not scenario.data.validation:
            wrong = f"got '{scenario.stop.metric}'; {_NO_VALIDATION}"
        raise ScenarioError("stop.metric", wrong)


def refuse_restless(scenario: ScenarioFields) -> None:
    """Raise ScenarioError if clients are to rest on disk, and something keeps them in memory.

    A row has weights, moments and counters: methods, poisons and texts remember more, and what
    clients share is no client's own.
    """
    if not scenario.rests_on_disk:
        return
    reasons = {
        f"{scenario.shared_field}: shared keeps a segment for all": scenario.shares,
        "aggregation makes copies of one for all": scenario.aggregation.kind != "none",
        "schedule.kind: asynchronous keeps steps of all in flight": (
            scenario.schedule.kind not in ("round_robin", "per_client", "parallel")
        ),
        "clients.cut gives clients rows of several sizes": scenario.has_own_cuts,
        "method keeps a state of its own for each client": bool(scenario.method),
        "detectors look at live clients": bool(scenario.detectors),
        "attacks look at live clients": bool(scenario.attacks),
        f"{FIELD} keeps poisons": scenario.clients.malicious is not None,
        "texts cannot rest": scenario.reads_texts,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ScenarioError(
                "engine.rest",
                f"got disk, where clients with heads and tails of their own rest, but {reason}; "
                "use memory, or leave that out",
            )


def refuse_missing_network(scenario: ScenarioFields) -> None:
    """Raise ScenarioError for fields that need simulated time if there is no `network`."""
    if scenario.network is not None:
        return
    example = "such as network: {device: phone, link: lte}"
    if scenario.cohort.deadline_s is not None:
        raise ScenarioError(
            "cohort.deadline_s", f"is in simulated seconds and needs a network, {example}"
        )
    if scenario.schedule.kind == "asynchronous":
        raise ScenarioError(
            "network",
            f"missing: under asynchronous, simulated time decides which client is next; {example}",
        )


def refuse_as_torch_does(scenario: ScenarioFields, side: Literal["client", "server"]) -> None:
    """Raise ScenarioError for an optimizer's options that torch refuses to combine."""
    optimizer: OptimizerConfig = getattr(scenario.train, side)
    changed = optimizer.model_dump(exclude_defaults=True)
    if set(changed) <= _SAFE:
        return  # torch's optimizers take two seconds to import
    if (refusal := _ask_torch(optimizer)) is None:
        return
    defaults = {name: type(optimizer).model_fields[name].default for name in changed}
    # To blame is an option whose default torch would accept.
    cures = [n for n in changed if not _ask_torch(optimizer.model_copy(update={n: defaults[n]}))]
    field = ".".join(("train", side, *cures[:1]))
    got = format_value(changed[cures[0]] if cures else changed)
    raise ScenarioError(field, f"got {got}; {refusal}")


def _ask_torch(optimizer: OptimizerConfig) -> str | None:
    """Return torch's reason to refuse an optimizer's options, or None if it accepts them."""
    try:
        # Torch itself is asked, as its rules may change with its version.
        optimizer.build([nn.Parameter(torch.zeros(1))])
    except (ValueError, RuntimeError) as error:
        return f"torch's message: {error}"
    return None


def refuse_unknown_controls(controls: Sequence[str], methods: Sequence[MethodConfig]) -> None:
    """Raise ScenarioError for an unknown control, or one that is named twice."""
    known = [WITHOUT_TRUNK, *(reading for method in methods for reading in method.readings)]
    for index, control in enumerate(controls):
        if control not in known:
            raise ScenarioError(f"evaluate.controls.{index}", describe_unknown(control, known))
    if len(set(controls)) < len(controls):
        raise ScenarioError(
            "evaluate.controls", f"must name each once, got {format_value(controls)}"
        )


def refuse_unequal_shapes(controls: Sequence[str], cut: Shape, features: Shape) -> None:
    """Raise ScenarioError if the trunk is to be left out but changes shapes."""
    if WITHOUT_TRUNK in controls and cut != features:
        taken, given = ("x".join(map(str, shape)) for shape in (cut, features))
        raise ScenarioError(
            f"evaluate.controls.{list(controls).index(WITHOUT_TRUNK)}",
            f"{WITHOUT_TRUNK} needs a trunk whose input and output have the same shape; this one "
            f"takes {taken} and returns {given}",
        )


def refuse_overlong(data: DataConfig, methods: Sequence[MethodConfig], positions: int) -> None:
    """Raise ScenarioError if public texts or a method's added tokens exceed the positions.

    The model itself checks that private texts fit.
    """
    if data.public is not None and data.public.length > positions:
        raise ScenarioError(
            "data.public.length",
            f"must be at most the model's {positions} positions, got {data.public.length}",
        )
    room = positions
    for index, method in enumerate(methods):
        for field, length in _list_lengths(data) if method.added_tokens else ():
            if length + method.added_tokens > room:
                raise ScenarioError(
                    f"method.{index}.tokens",
                    f"must be at most {max(0, room - length)}: {field} is {length}, and the model "
                    f"has {positions} positions; got {method.added_tokens}",
                )
        # Each method adds its tokens to texts that the methods before have lengthened.
        room -= method.added_tokens


def _list_lengths(data: DataConfig) -> Iterator[tuple[str, int]]:
    """Yield the lengths of the texts to which methods add tokens, private and support ones."""
    mixed_in = "public" if data.support is None else "support"
    for name in ("source", mixed_in):
        source = getattr(data, name)
        if isinstance(source, TextTable):
            yield f"data.{name}.length", source.length


def refuse_ambiguous(
    detectors: Sequence[DetectorConfig],
    attacks: Sequence[AttackConfig],
    clients: ClientsConfig,
    target: int,
) -> None:
    """Raise ScenarioError for entries that tables would confuse, or clients that do not exist."""
    _refuse_two_aims(clients.malicious)
    _refuse_twins("detectors", [detector.title for detector in detectors])
    for index, detector in enumerate(detectors):
        for client in detector.trusted:
            _refuse_stranger(f"detectors.{index}.root", client, clients.count)
    _refuse_stranger("targets.client", target, clients.count)
    # Tables list floors beside attacks, so no attack may have the name of one.
    floors = [name for recovered in RECOVERS.values() for name in recovered.floors]
    _refuse_twins("attacks", [attack.title for attack in attacks], floors)
    # The wire has room for one forger.
    forging = [index for index, attack in enumerate(attacks) if attack.active]
    if len(forging) > 1:
        raise ScenarioError(
            f"attacks.{forging[1]}",
            f"is the second attack that changes the server's answers, after attacks.{forging[0]}; "
            "only one is allowed",
        )


def refuse_untunable(attacks: Sequence[AttackConfig]) -> None:
    """Raise ScenarioError for fields in `tune` that an attack lacks, or values that they refuse."""
    for index, attack in enumerate(attacks):
        _refuse_untunable(f"attacks.{index}.tune", attack)


def _refuse_untunable(where: str, attack: AttackConfig) -> None:
    fields = [name for name in type(attack).model_fields if name not in _UNTUNED]
    tune = attack.tune or {}
    for name, values in tune.items():
        if name not in fields:
            raise ScenarioError(f"{where}.{name}", describe_unknown(name, fields))
        if len(values) < 2:
            raise ScenarioError(f"{where}.{name}", "must have two values or more to choose among")
    if (count := math.prod(map(len, tune.values()))) > MOST_TRIED:
        raise ScenarioError(where, f"must have {MOST_TRIED} combinations at most, got {count}")
    try:
        attack.tried  # noqa: B018 - each is checked as it is made
    except ValidationError as error:
        first = explain(error, type(attack), {}).problems[0]
        raise ScenarioError(f"{where}.{first.field}", first.reason) from None


def _refuse_two_aims(malicious: MaliciousConfig | None) -> None:
    """Raise ScenarioError for a second poison with an aim: there is one `attack_success`."""
    poisons = malicious.poison if malicious else ()
    aims = [index for index, poison in enumerate(poisons) if poison.aims]
    if len(aims) > 1:
        raise ScenarioError(
            f"{FIELD}.poison.{aims[1]}",
            f"is the second poison that aims at test samples, after {FIELD}.poison.{aims[0]}; only "
            "one is allowed, since attack_success measures one",
        )


def _refuse_stranger(field: str, client: int, count: int) -> None:
    """Raise ScenarioError for a client number out of range."""
    if not 0 <= client < count:
        raise ScenarioError(field, f"must be a client between 0 and {count - 1}, got {client}")


def _refuse_twins(where: str, titles: Sequence[str], taken: Sequence[str] = ()) -> None:
    """Raise ScenarioError for two entries with one title, by which tables distinguish them."""
    for index, title in enumerate(titles):
        if title in (*taken, *titles[:index]):
            raise ScenarioError(
                f"{where}.{index}.name", f"'{title}' is taken; give each a name of its own"
            )
