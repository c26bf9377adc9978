"""What a part that learns by `train.dp` must be: its gradient must be a sum over single samples."""

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from simsplit.data import Prepared
from simsplit.data.client_parts import count_rows
from simsplit.methods.stack import Stack
from simsplit.models.fresh import CutNetwork
from simsplit.parties.sample_gradients import find_unfit
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings


def find_mixing_methods(scenario: ScenarioFields) -> Findings:
    """Refuse methods that see the whole batch, or learn, where clients learn by `train.dp`."""
    for index, method in enumerate(() if scenario.train.dp is None else scenario.method):
        if not (method.accounted or method.reencodes):
            yield Finding(
                f"method.{index}.kind",
                f"{method.kind_name} may see the whole batch, so that a sample has no gradient of "
                "its own for train.dp; use methods that noise or encode each row (dp_forward, "
                "dp_sgd, lightsplit, cast, topk, quantise), or leave train.dp out",
            )
        elif method.depends_on_batch:
            yield Finding(
                f"method.{index}",
                f"{method.kind_name} clips or noises by the whole batch's values, so that a sample "
                "changes the gradients of others, for which train.dp does not account; use sizes "
                "that are absolute (dp_forward: relative: false and an epsilon; dp_sgd: relative: "
                "false and noise: gaussian; noise: unit: value), or leave train.dp out",
            )


def find_unsampled_batches(scenario: ScenarioFields) -> Findings:
    """Refuse `train.dp` beside fields that decide batches or memory in other ways."""
    dp, train = scenario.train.dp, scenario.train
    if dp is None:
        return
    drawn = dp.sampling == "poisson"
    others = {
        "train.accumulate": drawn and train.accumulate > 1,
        "train.drop_last": drawn and train.drop_last,
        "train.group_by_length": drawn and train.group_by_length,
        "train.checkpointing": train.checkpointing,
    }
    for field in (each for each, is_set in others.items() if is_set):
        why = "batches are drawn (train.dp.sampling: poisson)"
        if field == "train.checkpointing":
            why = "train.dp needs the activations of the forward pass"
        yield Finding(field, f"cannot be used where {why}; leave one of both out")
    if not {*scenario.model.learning} - scenario.crossings.served:
        yield Finding(
            "train.dp",
            f"got a mechanism, but clients learn nothing (model.learns: "
            f"{list(scenario.model.learning)}); leave it out, or have head or tail learn",
        )
    if scenario.crossings.whole_model:
        yield Finding(
            "train.dp",
            f"cannot be used with topology: {scenario.topology}, whose adapters get the gradient "
            "of a whole batch; use u_shaped",
        )


def find_unplanned_budgets(scenario: ScenarioFields) -> Findings:
    """Refuse a budget of `train.dp` if a client cannot know how long the run is."""
    dp, schedule = scenario.train.dp, scenario.schedule
    if dp is not None and dp.epsilon is not None and schedule.epochs and schedule.local_steps:
        yield Finding(
            "train.dp.epsilon",
            f"got {dp.epsilon:g}, but the number of rounds depends on all clients' samples "
            "(schedule.epochs with local_steps), which no client knows; set schedule.rounds",
        )


def find_large_deltas(scenario: ScenarioFields, data: Prepared) -> Findings:
    """Warn of a delta above 1 / the number of a client's samples."""
    given = [("train.dp.delta", getattr(scenario.train.dp, "delta", None))]
    given += [
        (f"method.{index}.report_delta", getattr(method, "report_delta", None))
        for index, method in enumerate(scenario.method)
    ]
    samples = count_rows(data.parts)
    most = int(samples.max(initial=0))
    for field, delta in given:
        if delta is not None and most and delta > 1 / most:
            yield Finding(
                field,
                f"got {delta:g}, but client {int(samples.argmax())} has {most:,} samples: a "
                f"mechanism that publishes one of them has such a delta. Use less than "
                f"1 / {most:,}, such as {_round_down(0.1 / most)}",
            )


def _round_down(delta: float) -> str:
    return f"1e-{math.ceil(-math.log10(delta))}"


def find_learned_parts(scenario: ScenarioFields, client: Stack, _: Stack) -> Findings:
    """Refuse methods with learned parts at the client where clients learn by `train.dp`."""
    if scenario.train.dp is not None and any(True for _ in client.modules.parameters()):
        kinds = ", ".join(each.kind_name for each in scenario.method)
        yield Finding(
            "method",
            f"{kinds}: a part that a method learns at the client has no gradient of a single "
            "sample for train.dp; use a method without one",
        )


def find_mixing_layers(scenario: ScenarioFields, model: CutNetwork) -> Findings:
    """Refuse batch normalisation, and layers without gradients of samples, under `train.dp`."""
    if scenario.train.dp is None:
        return
    for owner in scenario.model.learning:
        if owner not in scenario.crossings.served:
            for name, layer in find_unfit(getattr(model, owner)):
                yield Finding("train.dp", f"{owner}: {_explain_unfit(name, layer)}")


def _explain_unfit(name: str, layer: nn.Module) -> str:
    kind = type(layer).__name__
    if isinstance(layer, _BatchNorm):
        return (
            f"its layer {name} is batch normalisation ({kind}), which mixes the samples of a "
            "batch; use a network with GroupNorm in its place, another cut, or take this part "
            "out of model.learns"
        )
    return (
        f"no gradient of a single sample is known for its layer {name} ({kind}); use adapters "
        "(model.lora), another cut, or take this part out of model.learns"
    )
