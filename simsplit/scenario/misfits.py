"""Fields of a scenario that exclude each other are refused here; the error names one to change."""

from typing import Literal

import torch
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.metrics.classification import METRICS
from simsplit.metrics.token_score import TOKEN_METRICS
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.language import CausalLM
from simsplit.packets import Leg
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.messages import describe_unknown, format_value
from simsplit.topologies import find_topology

_NO_VALIDATION = "validation needs data.validation above 0"
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
