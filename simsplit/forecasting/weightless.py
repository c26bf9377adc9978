"""Models that are too large for this machine are planned from the forms of their weights alone.

Segments lie on torch's device "meta": their passes there give forms, FLOPs and the activations that
are kept, without a number. What crosses is made by the run's own methods, of random activations.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from simsplit.assembly.ownership import Ownership
from simsplit.assembly.sizing import collect_flops
from simsplit.data.batches import Batch
from simsplit.machine import read_free_bytes
from simsplit.models.language import LanguageConfig
from simsplit.models.recomputing import watch_units
from simsplit.models.shards import make_weightless
from simsplit.network.clock import Flops, count_flops
from simsplit.packets import ClientId
from simsplit.preflight import measure_activation_bytes
from simsplit.scenario import Scenario

LARGE = 2**31
"""Bytes of weights in float32 from which on a model is planned without them."""
FEW = 2
"""Samples of a pass on the device "meta"."""


@dataclass(frozen=True)
class Walked:
    """What a pass of a batch gives on the device "meta"."""

    outputs: dict[str, Tensor]
    """The output of each segment."""
    flops: dict[str, int]
    kept: dict[str, int]
    """Bytes that each segment keeps for its backward pass."""
    again: dict[str, int]
    """Bytes inside of each segment's largest unit, if units are computed again."""


def is_too_large(scenario: Scenario) -> bool:
    """Return whether a scenario's model is planned without its weights."""
    model = scenario.model
    if not isinstance(model, LanguageConfig) or model.encodes():
        return False
    info = scenario.data.describe()
    assert info is not None, "sources of texts know their shape"
    with make_weightless():
        made = model.build(info.shape, info.classes, scenario.seed)
    segments = (made.head, made.trunk, made.tail)
    held = 4 * sum(p.numel() for each in segments for p in each.parameters())
    return held > min(LARGE, read_free_bytes(torch.device("cpu")) // 2) or not model.has_weights()


def walk_segments(owners: Ownership, rows: int, number: ClientId) -> Walked:
    """Pass a client's blank batch through segments on the device "meta"."""
    topology, tail = owners.topology, owners.model.tail
    head, trunk = owners.depths.get_head(number), owners.depths.get_rest(number)
    batch = make_blank(owners, rows)
    beside = topology.beside(batch)
    walked = Walked({}, {}, {}, {})
    z = _pass(walked, "head", head, lambda: topology.headed(head, batch))
    u = _pass(walked, "trunk", trunk, lambda: trunk(z, *beside))
    _pass(walked, "tail", tail, lambda: tail(u, *beside))
    return walked


def _pass(walked: Walked, name: str, segment: nn.Module, run: Callable[[], Tensor]) -> Tensor:
    """Note what a pass of a segment gives, and return its output as the next one gets it."""
    with watch_units(segment) as passes:
        walked.kept[name] = measure_activation_bytes(run, segment.parameters())
    again = (measure_activation_bytes(each, segment.parameters()) for each in list(passes))
    walked.again[name] = max(again, default=0)
    with torch.no_grad():
        walked.flops[name], output = count_flops(run)
    walked.outputs[name] = output
    return output.detach().requires_grad_()


def count_weightless_flops(owners: Ownership, replies: int) -> Flops:
    """Count the operations of one sample by segment; those of methods are left out."""

    def measure(number: ClientId) -> Flops:
        flops = walk_segments(owners, FEW, number).flops
        head, trunk, tail = (flops[name] / FEW for name in ("head", "trunk", "tail"))
        return Flops(head, trunk, tail, replies=replies)

    return collect_flops(owners, measure)


def make_blank(owners: Ownership, rows: int) -> Batch:
    """Make a batch without numbers."""
    x = owners.info.make_blank(rows).to("meta")
    masked = owners.scenario.text_reader().both_ways
    mask = torch.ones(x.shape, dtype=torch.bool, device="meta") if masked else None
    return replace(Batch(x, x, torch.arange(rows)), mask=mask)
