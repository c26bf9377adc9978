"""Fields of a scenario that exclude each other; the error names the one to change."""

from typing import Literal

import torch
from torch import nn

from simsplit.errors import ScenarioError
from simsplit.evaluation.generation import GENERATION_METRICS
from simsplit.metrics.classification import METRICS
from simsplit.metrics.tokens import TOKEN_METRICS
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.language import CausalLM
from simsplit.packets import Leg
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.messages import shown, unknown
from simsplit.topologies import first_with

_NO_VALIDATION = "validation needs data.validation above 0"
_SAFE = {"kind", "lr", "momentum", "weight_decay", "lookahead"}
"""An optimizer's options that go with all others."""


def refuse_unserved(scenario: ScenarioFields) -> None:
    """Raise ScenarioError for a model, a method or servers that the topology has no use for."""
    topology, whole = scenario.crossings, isinstance(scenario.model, AdaptedClassifier)
    for index, method in enumerate(() if scenario.gradients_cross else scenario.method):
        if any(need.leg is Leg.FEATURES_GRAD for need in method.needs):
            raise ScenarioError(
                f"method.{index}.kind",
                f"{method.word} hides what gradients or trained adapters tell, and over an API "
                "where the head alone learns (model.learns: [tail]) neither crosses; leave it "
                "out, or add head to model.learns",
            )
    if scenario.servers > 1 and not topology.many_servers:
        other = first_with(lambda each: each.many_servers)
        raise ScenarioError(
            "servers",
            f"got {scenario.servers}; several servers can be asked over topology: {other}",
        )
    if topology.whole_model is True and not whole:
        raise ScenarioError(
            "model.kind",
            f"got {scenario.model.kind}; over topology: {scenario.topology} clients bring nothing "
            "but adapters for a whole transformer: use adapted_classifier, which reads texts",
        )
    if topology.whole_model is False and whole:
        other = first_with(lambda each: each.whole_model is True)
        raise ScenarioError(
            "topology",
            f"got {scenario.topology}, and an adapted_classifier is not cut; use topology: "
            f"{other}, or model: {{kind: sequence_classifier, lora: {{}}}}",
        )


def refuse_unknown_metrics(scenario: ScenarioFields) -> None:
    """Figures that nobody computes of such a model."""
    causal = isinstance(scenario.model, CausalLM)
    of_classes = [*METRICS, *scenario.plugins.of("METRICS")]
    known = [*TOKEN_METRICS, *GENERATION_METRICS] if causal else of_classes
    for index, name in enumerate(scenario.metrics):
        if name not in known:
            raise ScenarioError(
                f"evaluate.metrics.{index}",
                f"got {name}, which {scenario.model.kind} has not; allowed: {', '.join(known)}",
            )


def refuse_other_samples(scenario: ScenarioFields) -> None:
    """What is for images, for texts, or for classes alone."""
    got = {"tables": "a table of numbers"}.get(kind := scenario.data.source.modality, kind)
    if scenario.train.group_by_length and not scenario.reads_texts:
        raise ScenarioError("train.group_by_length", f"is for texts, got {got}; use false")
    repeat = getattr(scenario.data.source, "repeat", 1)
    if repeat > 1 and (scenario.data.validation or scenario.data.auxiliary):
        raise ScenarioError(
            "data.source.repeat",
            f"got {repeat}; copies of what data.validation and data.auxiliary hold out would "
            "be trained on: use 1, or hold nothing out",
        )
    if scenario.data.augment and kind != "images":
        raise ScenarioError("data.augment", f"is for images, got {got}; use []")
    for view in ("mirrored", "shifted"):
        if getattr(scenario.evaluate, view) and kind != "images":
            raise ScenarioError(f"evaluate.{view}", f"is for images, got {got}; use false")
    if scenario.train.label_smoothing and kind == "texts":
        # attacks on texts' gradients match those of plain labels
        told = "is for classes of images and tables, got texts; use 0"
        raise ScenarioError("train.label_smoothing", told)


def refuse_unscorable(scenario: ScenarioFields) -> None:
    """Splits and figures that do not exist."""
    for field, names in (("metrics", scenario.metrics), ("on", scenario.splits)):
        if not names or len(set(names)) < len(names):
            raise ScenarioError(
                f"evaluate.{field}", f"must name at least one, each once, got {shown(names)}"
            )
    if "validation" in scenario.splits and not scenario.data.validation:
        raise ScenarioError("evaluate.on", f"got {shown(scenario.splits)}; {_NO_VALIDATION}")
    if scenario.stop is not None and scenario.stop.metric not in scenario.figures:
        wrong = unknown(scenario.stop.metric, scenario.figures)
        if scenario.stop.metric.startswith("validation_") and not scenario.data.validation:
            wrong = f"got '{scenario.stop.metric}'; {_NO_VALIDATION}"
        raise ScenarioError("stop.metric", wrong)


def refuse_missing_network(scenario: ScenarioFields) -> None:
    """What goes by simulated time, without speeds to reckon it from."""
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
            f"missing: under asynchronous, simulated time says who comes first; {example}",
        )


def refuse_as_torch_does(scenario: ScenarioFields, side: Literal["client", "server"]) -> None:
    """torch alone knows which of an optimizer's options go together."""
    optimizer: OptimizerConfig = getattr(scenario.train, side)
    changed = optimizer.model_dump(exclude_defaults=True)
    if set(changed) <= _SAFE:
        return  # torch's optimizers take two seconds to import
    if (refusal := _refusal(optimizer)) is None:
        return
    defaults = {name: type(optimizer).model_fields[name].default for name in changed}
    cures = [n for n in changed if not _refusal(optimizer.model_copy(update={n: defaults[n]}))]
    field = ".".join(("train", side, *cures[:1]))
    got = shown(changed[cures[0]] if cures else changed)
    raise ScenarioError(field, f"got {got}; {refusal}")


def _refusal(optimizer: OptimizerConfig) -> str | None:
    """Why torch will not have these options, or None if it will."""
    try:
        optimizer.build([nn.Parameter(torch.zeros(1))])
    except (ValueError, RuntimeError) as error:
        return f"torch says: {error}"
    return None
