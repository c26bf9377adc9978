"""What keeps a scenario's clients from training as one tensor (`engine.stack`).

A number is refused where they cannot. `auto` then takes one after another, and says why.
"""

from collections.abc import Iterator

from torch.nn.modules.dropout import _DropoutNd

from simsplit.methods.stack import Stack
from simsplit.models.fresh import CutNetwork
from simsplit.models.text_model import TextModel
from simsplit.parties.stackable import find_unstacked_lifts, find_unstacked_methods
from simsplit.parties.stacked_adapters import find_unadapted, reads_texts
from simsplit.scenario.fields import ScenarioFields
from simsplit.scenario.findings import Finding, Findings
from simsplit.scenario.setting import is_unmasked

FIELD = "engine.stack"


def find_unstackable(scenario: ScenarioFields) -> Findings:
    """Refuse stacks of clients where a step is not of several clients at once."""
    yield from _refuse(scenario, list_obstacles(scenario))


def find_unstackable_methods(scenario: ScenarioFields, client: Stack, server: Stack) -> Findings:
    """Refuse stacks of clients whose methods need each client's step alone."""
    yield from _refuse(scenario, find_unstacked_methods(client.get_methods()))
    if scenario.aggregation.kind == "splitfed_v1":
        yield from _refuse(scenario, find_unstacked_lifts(server))


def find_unstackable_layers(scenario: ScenarioFields, model: CutNetwork) -> Findings:
    """Refuse stacks of clients whose layers draw for each client, or mix clients' texts."""
    if isinstance(scenario.inline_engine.stack, int):
        owned = [model.head, *([model.tail] if scenario.crossings.tail_with_client else [])]
        if scenario.aggregation.kind == "splitfed_v1":
            owned = [model.head, model.trunk, model.tail]
        layers = (layer for segment in owned for layer in segment.modules())
        if any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in layers):
            yield from _refuse(scenario, iter(["dropout draws for each client"]))
        for segment in filter(reads_texts, owned):
            yield from _refuse(scenario, find_unadapted(segment))


def find_idle_stacks(scenario: ScenarioFields) -> Findings:
    """Warn of what stacks do not serve: clients under `auto`, or methods of stacked clients."""
    if scenario.inline_engine.stack == "auto":
        for why in list_obstacles(scenario):
            yield Finding(FIELD, f"auto takes one client after another: {why}")
    if scenario.inline_engine.stack != "off" and not any(list_obstacles(scenario)):
        for index, method in enumerate(scenario.method):
            if not method.is_rowwise():
                yield Finding(
                    f"method.{index}.kind",
                    f"{method.kind_name} is called client by client: it does not treat each row "
                    "alone, so stacks of clients win less",
                )


def list_obstacles(scenario: ScenarioFields) -> Iterator[str]:
    """Yield why no client of a scenario can be stacked, as far as its fields say."""
    train, kind = scenario.train, scenario.aggregation.kind
    if kind not in ("fused", "splitfed_v1"):
        yield (
            f"aggregation.kind {kind} steps the trunk after each client, and the next one's tail "
            "needs that trunk; under fused clients share a step, under splitfed_v1 each has a trunk"
        )
    if kind == "splitfed_v1":
        yield from _list_copy_obstacles(scenario)
    if train.dp is not None:
        yield "train.dp clips and counts each client's samples"
    if train.precision != "fp32":
        yield f"train.precision {train.precision} is not stacked; fp32 is"
    if train.checkpointing:
        yield "train.checkpointing runs layers again in the backward pass, on one client's weights"
    if train.client.lookahead is not None:
        yield "train.client.lookahead acts on each client's steps"


def _list_copy_obstacles(scenario: ScenarioFields) -> Iterator[str]:
    """Yield why copies of a trunk cannot be stacked, which take what fused refuses."""
    if isinstance(scenario.model, TextModel):
        yield from _list_text_obstacles(scenario, scenario.model)
    if scenario.has_own_cuts:
        yield "clients' cuts differ"
    if scenario.train.accumulate > 1:
        yield "mini-batches cross in parts"
    if scenario.train.server.lookahead is not None:
        yield "train.server.lookahead acts on each copy's steps"


def _list_text_obstacles(scenario: ScenarioFields, model: TextModel) -> Iterator[str]:
    """Yield why clients with texts cannot be stacked, whose base runs once for all of them."""
    if not is_unmasked(scenario):
        yield "texts cross with masks of each client's own"
    if getattr(model, "lora", None) is None:
        yield "whole layers of a transformer learn; adapters (model.lora) are stacked"
    if model.dtype != "float32":
        yield f"model.dtype {model.dtype} is not stacked; float32 is"


def _refuse(scenario: ScenarioFields, reasons: Iterator[str]) -> Findings:
    stack = scenario.inline_engine.stack
    for why in reasons if isinstance(stack, int) else ():
        yield Finding(FIELD, f"got {stack}, but {why}; use off")
