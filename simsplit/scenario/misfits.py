"""Fields of a scenario that exclude each other; a finding names the one to change.

Names that tables would confuse, and clients that do not exist, are refused too. `refusals` lists
these rules in the order in which they are checked.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from simsplit.data import DataInfo
from simsplit.data.texts import TextTable
from simsplit.detectors.watch import list_signals
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.foreign import MOST_YAML, parse_yaml, read_text
from simsplit.legs import Leg
from simsplit.methods import Method
from simsplit.methods.stack import Stack, refuse_disorder
from simsplit.metrics.classification import METRICS, TOKEN_METRICS
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.fresh import Shape
from simsplit.models.language import CausalLM
from simsplit.models.text_model import TextModel
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.poisons.malicious import FIELD
from simsplit.preflight import Estimate, refuse_if_no_room, refuse_if_too_large
from simsplit.results.directory import SCENARIO
from simsplit.results.recovered_kinds import list_reserved
from simsplit.rows import ClientRow
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings, catch
from simsplit.scenario.messages import describe_unknown, explain, format_value
from simsplit.schedules.exchange import WITHOUT_TRUNK
from simsplit.topologies import find_topology

_NO_VALIDATION = "validation needs data.validation above 0"
MOST_TRIED = 64
"""Most combinations of values that an attacker tries of one attack."""
_UNTUNED = ("kind", "name", "by", "tune")
_SAFE = {"kind", "lr", "momentum", "weight_decay", "eps", "amsgrad", "lookahead"}
"""An optimizer's options that any other option can be combined with."""


def find_idle_methods(scenario: ScenarioFields) -> Findings:
    """Refuse a method that hides gradients if training sends none."""
    for index, method in enumerate(() if scenario.gradients_cross else scenario.method):
        if any(need.leg is Leg.FEATURES_GRAD for need in method.needs):
            yield Finding(
                f"method.{index}.kind",
                f"{method.kind_name} hides gradients or adapters, and neither crosses with "
                "model.learns: [tail]; leave it out, or add head to model.learns",
            )


def find_extra_servers(scenario: ScenarioFields) -> Findings:
    """Refuse several servers if the topology can ask only one."""
    if scenario.servers > 1 and not scenario.crossings.many_servers:
        other = find_topology(lambda each: each.many_servers)
        yield Finding(
            "servers", f"got {scenario.servers}; only topology: {other} can ask several servers"
        )


def find_unserved_models(scenario: ScenarioFields) -> Findings:
    """Refuse a model that is cut under a topology of whole models, and a whole one under a cut."""
    topology, whole = scenario.crossings, isinstance(scenario.model, AdaptedClassifier)
    if topology.whole_model is True and not whole:
        yield Finding(
            "model.kind",
            f"got {scenario.model.kind}; under topology: {scenario.topology} clients train "
            "adapters for a whole transformer: use adapted_classifier, which reads texts",
        )
    if topology.whole_model is False and whole:
        other = find_topology(lambda each: each.whole_model is True)
        yield Finding(
            "topology",
            f"got {scenario.topology}, but an adapted_classifier cannot be cut; use topology: "
            f"{other}, or model: {{kind: sequence_classifier, lora: {{}}}}",
        )


def find_unknown_metrics(scenario: ScenarioFields) -> Findings:
    """Refuse a metric that is not computed for the model."""
    causal = isinstance(scenario.model, CausalLM)
    of_classes = [*METRICS, *scenario.plugins.of("METRICS")]
    known = [*TOKEN_METRICS, *GENERATION_METRICS] if causal else of_classes
    for index, name in enumerate(scenario.metrics):
        if name not in known:
            yield Finding(
                f"evaluate.metrics.{index}",
                f"got {name}, which {scenario.model.kind} lacks; allowed: {', '.join(known)}",
            )


def find_other_samples(scenario: ScenarioFields) -> Findings:
    """Refuse a field that is for another kind of samples."""
    got = {"tables": "a table of numbers"}.get(kind := scenario.data.source.modality, kind)
    if scenario.train.group_by_length and not scenario.reads_texts:
        yield Finding("train.group_by_length", f"is for texts, got {got}; use false")
    repeat = getattr(scenario.data.source, "repeat", 1)
    if repeat > 1 and (scenario.data.validation or scenario.data.auxiliary):
        yield Finding(
            "data.source.repeat",
            f"got {repeat}; clients would train on copies of the samples that data.validation and "
            "data.auxiliary hold out: use 1, or hold nothing out",
        )
    if scenario.data.augment and kind != "images":
        yield Finding("data.augment", f"is for images, got {got}; use []")
    for view in ("mirrored", "shifted"):
        if getattr(scenario.evaluate, view) and kind != "images":
            yield Finding(f"evaluate.{view}", f"is for images, got {got}; use false")
    if scenario.train.label_smoothing and kind == "texts":
        # Attacks on texts match gradients of plain labels, which smoothing would change.
        reason = "is for classes of images and tables, got texts; use 0"
        yield Finding("train.label_smoothing", reason)


def find_uneven_parts(scenario: ScenarioFields) -> Findings:
    """Refuse `train.accumulate` if mini-batches cannot cross in parts."""
    train, field = scenario.train, "train.accumulate"
    if train.accumulate == 1:
        return
    got = f"got {train.accumulate}"
    if train.batch_size % train.accumulate:
        yield Finding(
            field, f"must divide train.batch_size, {train.batch_size}, without a rest, {got}"
        )
    if not scenario.crossings.tail_with_client:
        other = find_topology(lambda each: each.tail_with_client)
        yield Finding(
            field,
            f"{got}; under topology: {scenario.topology} the server computes the loss, and a part "
            f"does not tell its share of the mini-batch. Use 1, or topology: {other}",
        )
    if scenario.schedule.kind == "asynchronous" or scenario.aggregation.kind == "fused":
        kind = "fused" if scenario.aggregation.kind == "fused" else "asynchronous"
        yield Finding(
            field,
            f"{got}; under {kind} steps of several clients share the trunk's gradients, so use 1",
        )


def find_inspected_parts(scenario: ScenarioFields, client: Stack, _: Stack) -> Findings:
    """Refuse mini-batches in parts if a method judges whole steps."""
    for method in client.smashed if scenario.train.accumulate > 1 else ():
        if type(method).accept is not Method.accept and not method.accepts_parts:
            yield Finding(
                "train.accumulate",
                f"got {scenario.train.accumulate}, but {type(method).__name__} judges the gradient "
                "of each mini-batch as a whole; use 1",
            )


def find_second_losses(scenario: ScenarioFields, client: Stack, _: Stack) -> Findings:
    """Refuse a second method that defines the task's loss: the first alone would count."""
    own = [
        (place, scenario.method[place])
        for place, method in zip(client.places, client.smashed, strict=True)
        if type(method).compute_task_loss is not Method.compute_task_loss
    ]
    for index, second in own[1:]:
        yield Finding(
            f"method.{index}.kind",
            f"{second.kind_name} defines the loss of the task, as {own[0][1].kind_name} does, and "
            "one method alone can; use one of them",
        )


def find_unheard_losses(scenario: ScenarioFields, client: Stack, _: Stack) -> Findings:
    """Refuse a loss term of features that a later method hands to it without their gradient."""
    for place, method in zip(client.places, client.smashed, strict=True):
        adds = type(method).compute_tail_loss is not Method.compute_tail_loss
        reads = type(method).decode is not Method.decode
        later = [each.kind_name for each in scenario.method[place + 1 :] if each.keeps_task]
        if adds and reads and later and not scenario.method[place].keeps_task:
            kind = scenario.method[place].kind_name
            yield Finding(
                f"method.{place}.kind",
                f"{kind} adds a loss of the features, of which no gradient leaves where {later[0]} "
                f"comes after it; list {kind} after {later[0]}",
            )


def find_weights_of_one_client(scenario: ScenarioFields) -> Findings:
    """Refuse a run whose clients have heads of their own as weights: all would get one client's."""
    folder: Path | None = getattr(scenario.model, "weights", None)
    values: Any = None
    if folder is not None:
        with suppress(OSError, ValueError):  # what is no run is refused when its weights are read
            values = parse_yaml(read_text(folder / SCENARIO, MOST_YAML))
    clients = values.get("clients") if isinstance(values, dict) else None
    if not isinstance(clients, dict) or clients.get("count") == 1:
        return
    if clients.get("heads") == "per_client":
        yield Finding(
            "model.weights",
            f"{folder} is a run whose clients have heads of their own; choose one: simsplit export "
            f"{folder} --client N --out FOLDER, and name that folder",
        )


def find_disorder(scenario: ScenarioFields) -> Findings:
    """Refuse methods that cannot be combined, or not in this order, at a client's cut."""
    for client in scenario.parties if scenario.has_own_methods else (0,):
        yield from catch(refuse_disorder, scenario.select_methods(client))


def find_unscorable(scenario: ScenarioFields) -> Findings:
    """Refuse metrics or splits that are listed twice, and a split that is not there."""
    for field, names in (("metrics", scenario.metrics), ("on", scenario.splits)):
        if not names or len(set(names)) < len(names):
            yield Finding(
                f"evaluate.{field}", f"must name at least one, each once, got {format_value(names)}"
            )
    if "validation" in scenario.splits and not scenario.data.validation:
        yield Finding("evaluate.on", f"got {format_value(scenario.splits)}; {_NO_VALIDATION}")


def find_unknown_stops(scenario: ScenarioFields) -> Findings:
    """Refuse to stop early by a figure that no table has."""
    metric = None if scenario.stop is None else scenario.stop.metric
    if metric is None or metric in scenario.figures:
        return
    wrong = describe_unknown(metric, scenario.figures)
    if metric.startswith("validation_") and not scenario.data.validation:
        wrong = f"got '{metric}'; {_NO_VALIDATION}"
    yield Finding("stop.metric", wrong)


def find_restless(scenario: ScenarioFields) -> Findings:
    """Refuse to let clients rest on disk if something keeps them in memory.

    A row has weights, moments and counters: methods, poisons and texts remember more, and what
    clients share is no client's own.
    """
    if not scenario.rests_on_disk:
        return
    reasons = {
        f"{scenario.shared_field}: shared keeps a segment for all": scenario.shares,
        "aggregation makes copies of one for all": (
            scenario.aggregation.kind not in ("none", "fused")
        ),
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
    for reason in (each for each, holds in reasons.items() if holds):
        yield Finding(
            "engine.rest",
            f"got disk, where clients with heads and tails of their own rest, but {reason}; "
            "use memory, or leave that out",
        )


def find_undrawable(scenario: ScenarioFields) -> Findings:
    """Refuse malicious clients that do not exist or leave no honest one."""
    yield from catch(lambda: scenario.malicious)


def find_missing_networks(scenario: ScenarioFields) -> Findings:
    """Refuse fields that need simulated time if there is no `network`."""
    if scenario.network is not None:
        return
    example = "such as network: {device: phone, link: lte}"
    if scenario.cohort.deadline_s is not None:
        yield Finding(
            "cohort.deadline_s", f"is in simulated seconds and needs a network, {example}"
        )
    if scenario.schedule.kind == "asynchronous":
        yield Finding(
            "network",
            f"missing: under asynchronous, simulated time decides which client is next; {example}",
        )


def find_refused_by_torch(scenario: ScenarioFields) -> Findings:
    """Refuse an optimizer's options that torch refuses to combine."""
    for side in ("client", "server"):
        optimizer: OptimizerConfig = getattr(scenario.train, side)
        changed = optimizer.model_dump(exclude_defaults=True)
        if set(changed) <= _SAFE:
            continue  # torch's optimizers take two seconds to import
        if (refusal := _ask_torch(optimizer)) is None:
            continue
        # To blame is an option whose default torch would accept.
        defaults = {name: type(optimizer).model_fields[name].default for name in changed}
        cures = [
            name
            for name, default in defaults.items()
            if not _ask_torch(optimizer.model_copy(update={name: default}))
        ]
        got = format_value(changed[cures[0]] if cures else changed)
        yield Finding(".".join(("train", side, *cures[:1])), f"got {got}; {refusal}")


def _ask_torch(optimizer: OptimizerConfig) -> str | None:
    """Return torch's reason to refuse an optimizer's options, or None if it accepts them."""
    try:
        # Torch itself is asked, as its rules may change with its version.
        optimizer.build([nn.Parameter(torch.zeros(1))])
    except (ValueError, RuntimeError) as error:
        return f"torch's message: {error}"
    return None


def find_unknown_controls(scenario: ScenarioFields) -> Findings:
    """Refuse an unknown control, and one that is named twice."""
    controls = scenario.evaluate.controls
    known = [WITHOUT_TRUNK, *(reading for each in scenario.method for reading in each.readings)]
    for index, control in enumerate(controls):
        if control not in known:
            yield Finding(f"evaluate.controls.{index}", describe_unknown(control, known))
    if len(set(controls)) < len(controls):
        yield Finding("evaluate.controls", f"must name each once, got {format_value(controls)}")


def find_images_only(scenario: ScenarioFields, info: DataInfo) -> Findings:
    """Refuse a model of images for samples that are none."""
    model = scenario.model
    if info.texts and not isinstance(model, TextModel):
        yield Finding(
            "model.kind",
            f"{model.kind} takes images, got texts; use causal_lm or sequence_classifier",
        )
    if model.images_only and len(info.shape) != 3:
        yield Finding(
            "model.kind", f"{model.kind} takes images, got samples of shape {info.shape}; use mlp"
        )


def find_unequal_shapes(
    scenario: ScenarioFields, _: DataInfo, shapes: tuple[Shape, Shape]
) -> Findings:
    """Refuse the control without a trunk if the trunk changes shapes."""
    controls, (cut, features) = scenario.evaluate.controls, shapes
    if WITHOUT_TRUNK in controls and cut != features:
        taken, given = ("x".join(map(str, shape)) for shape in shapes)
        yield Finding(
            f"evaluate.controls.{list(controls).index(WITHOUT_TRUNK)}",
            f"{WITHOUT_TRUNK} needs a trunk whose input and output have the same shape; this one "
            f"takes {taken} and returns {given}",
        )


def find_overlong(scenario: ScenarioFields, _: DataInfo, __: object) -> Findings:
    """Refuse public texts, and a method's added tokens, that exceed the model's positions.

    The model itself checks that private texts fit.
    """
    if not isinstance(scenario.model, TextModel):
        return
    data, positions = scenario.data, scenario.model.get_sizes()[2]
    if data.public is not None and data.public.length > positions:
        yield Finding(
            "data.public.length",
            f"must be at most the model's {positions} positions, got {data.public.length}",
        )
    room = positions
    for index, method in enumerate(scenario.method):
        for field, length in _list_lengths(scenario) if method.added_tokens else ():
            if length + method.added_tokens > room:
                yield Finding(
                    f"method.{index}.tokens",
                    f"must be at most {max(0, room - length)}: {field} is {length}, and the model "
                    f"has {positions} positions; got {method.added_tokens}",
                )
        # Each method adds its tokens to texts that the methods before have lengthened.
        room -= method.added_tokens


def _list_lengths(scenario: ScenarioFields) -> Iterator[tuple[str, int]]:
    """Yield the lengths of the texts to which methods add tokens, private and support ones."""
    mixed_in = "public" if scenario.data.support is None else "support"
    for name in ("source", mixed_in):
        source = getattr(scenario.data, name)
        if isinstance(source, TextTable):
            yield f"data.{name}.length", source.length


def find_second_aims(scenario: ScenarioFields) -> Findings:
    """Refuse a second poison that aims at test samples: there is one `attack_success`."""
    malicious = scenario.clients.malicious
    poisons = malicious.poison if malicious else ()
    aims = [index for index, poison in enumerate(poisons) if poison.aims]
    for index in aims[1:]:
        yield Finding(
            f"{FIELD}.poison.{index}",
            f"is the second poison that aims at test samples, after {FIELD}.poison.{aims[0]}; only "
            "one is allowed, since attack_success measures one",
        )


def find_unseen_packets(scenario: ScenarioFields) -> Findings:
    """Refuse a recorder of packets where hosts of their own take each step."""
    alone = scenario.aggregation.kind == "splitfed_v1" and scenario.engine.kind != "inline"
    for index, observer in enumerate(scenario.observers if alone else ()):
        if observer.reads_packets:
            yield Finding(
                f"observers.{index}.kind",
                f"{observer.kind_name} sees no packets of splitfed_v1 on engine.kind "
                f"{scenario.engine.kind}, where each host has a copy of the trunk; use inline",
            )


def find_twin_detectors(scenario: ScenarioFields) -> Findings:
    """Refuse a detector whose columns another one or the table of clients has already."""
    reported = [name for method in scenario.method for name in method.columns]
    norms = [f"{signal}_norm" for signal in list_signals(scenario.detectors)]
    taken = {*ClientRow.columns(), *scenario.figures, *reported, *norms}
    for index, detector in enumerate(scenario.detectors):
        own = [f"{detector.title}{end}" for end in ("", "_z", "_flagged")]
        if (twin := next((name for name in own if name in taken), None)) is not None:
            yield Finding(
                f"detectors.{index}.name", f"'{twin}' is taken; give each a name of its own"
            )
        taken |= {*own}


def find_strangers(scenario: ScenarioFields) -> Findings:
    """Refuse trusted and targeted clients that do not exist."""
    named = [
        (f"detectors.{index}.root", client)
        for index, detector in enumerate(scenario.detectors)
        for client in detector.trusted
    ]
    # Without attacks the target is not read.
    named += [("targets.client", scenario.targets.client)] if scenario.attacks else []
    count = scenario.clients.count
    for field, client in named:
        if not 0 <= client < count:
            yield Finding(field, f"must be a client between 0 and {count - 1}, got {client}")


def find_twin_attacks(scenario: ScenarioFields) -> Findings:
    """Refuse two attacks of one name, and one of a floor's name, which tables would confuse."""
    floors = list_reserved()
    yield from _find_twins("attacks", scenario.attacks, floors)


def _find_twins(where: str, parts: Sequence[Any], taken: Sequence[str] = ()) -> Findings:
    """Yield the entries with a title that an earlier entry has, or that is taken."""
    titles = [part.title for part in parts]
    for index, title in enumerate(titles):
        if title in (*taken, *titles[:index]):
            yield Finding(
                f"{where}.{index}.name", f"'{title}' is taken; give each a name of its own"
            )


def find_second_forgers(scenario: ScenarioFields) -> Findings:
    """Refuse a second attack that changes the server's answers: the wire has room for one."""
    acting = [attack.threat.acts and not attack.sitting for attack in scenario.attacks]
    forging = [index for index, acts in enumerate(acting) if acts]
    for index in forging[1:]:
        yield Finding(
            f"attacks.{index}",
            f"is the second attack that changes the server's answers, after attacks.{forging[0]}; "
            "only one is allowed",
        )


def find_untunable(scenario: ScenarioFields) -> Findings:
    """Refuse fields in `tune` that an attack lacks, and values that they refuse."""
    for index, attack in enumerate(scenario.attacks):
        where, tune = f"attacks.{index}.tune", attack.tune or {}
        fields = [name for name in type(attack).model_fields if name not in _UNTUNED]
        for name, values in tune.items():
            if name not in fields:
                yield Finding(f"{where}.{name}", describe_unknown(name, fields))
            if len(values) < 2:
                yield Finding(f"{where}.{name}", "must have two values or more to choose among")
        if (count := math.prod(map(len, tune.values()))) > MOST_TRIED:
            yield Finding(where, f"must have {MOST_TRIED} combinations at most, got {count}")
        try:
            attack.tried  # noqa: B018 - each is checked as it is made
        except ValidationError as error:
            first = explain(error, type(attack), {}).problems[0]
            yield Finding(f"{where}.{first.field}", first.reason)


def find_late_methods(scenario: ScenarioFields, batches: int) -> Findings:
    """Refuse a method that would begin after every client's last batch."""
    for index, config in enumerate(scenario.method):
        field = config.start_field
        if field is not None and getattr(config, field) >= batches:
            yield Finding(
                f"method.{index}.{field}",
                f"must be less than {batches}, the most batches on which a client trains, got "
                f"{getattr(config, field)}: {config.kind_name} would never begin; "
                "use a smaller number, or more rounds",
            )


def find_late_poisons(scenario: ScenarioFields, rounds: int) -> Findings:
    """Refuse a poison that would begin after the last round."""
    malicious = scenario.clients.malicious
    for index, poison in enumerate(malicious.poison if malicious else ()):
        if rounds and poison.from_round > rounds:
            yield Finding(
                f"{FIELD}.poison.{index}.from_round",
                f"must be at most {rounds}, the last round, got {poison.from_round}: "
                f"{poison.kind_name} would never act; use an earlier round, or more rounds",
            )


def find_too_large(
    _: ScenarioFields, estimate: Estimate, device: torch.device, file: Path
) -> Findings:
    """Refuse a run that needs more memory, or more room on the disk, than there is."""
    yield from catch(refuse_if_too_large, estimate, device)
    yield from catch(refuse_if_no_room, estimate.on_disk, file)
