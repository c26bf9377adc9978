"""A dry pass: a blank batch goes through the segments, and its operations and memory are counted.

It is done on a run's own modules before the run. A model that is too large for this machine has its
segments on torch's device "meta": passes there give forms, FLOPs and the activations that are kept,
without a number.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn

from simsplit.assembly.ownership import Ownership
from simsplit.data.batches import Batch
from simsplit.legs import ClientId
from simsplit.machine import Autocast
from simsplit.methods.method import Step
from simsplit.models.frozen import copy_learning
from simsplit.models.quantised import measure_unpacking
from simsplit.models.shards import is_weightless
from simsplit.network.clock import Flops, count_flops
from simsplit.plugins.guard import accept_nan
from simsplit.preflight import KeptTensors
from simsplit.scenario.setting import count_messages

SEGMENTS = ("head", "trunk", "tail")
FEW = 2
"""Number of samples of a pass: batch normalisation refuses a single one."""


@accept_nan()
def measure_flops(owners: Ownership) -> Flops:
    """Return the operations of one sample's forward pass by segment, methods included.

    They are those at the model's own cut, and at each deeper one. On the device "meta" those of
    methods are left out.
    """
    (shallowest, *_), *deeper = owners.depths.list_kinds()
    measure = _measure_weightless if is_weightless() else _measure_all
    # several servers answer at the same time
    replies = math.ceil(count_messages(owners.scenario.method) / owners.scenario.servers)
    own: dict[ClientId, Flops] = {}
    for group in deeper:
        own |= dict.fromkeys(group, replace(measure(owners, group[0]), replies=replies))
    return replace(measure(owners, shallowest), replies=replies, own=own)


def _measure_all(owners: Ownership, number: ClientId) -> Flops:
    """Return the operations of one client's segments, and of a method's stand-in for the trunk."""
    (client, server), tail = owners.get_stacks(number), owners.model.tail
    head, trunk = owners.depths.get_head(number), owners.depths.get_rest(number)
    # Methods that mix only in training are measured as they train.
    seed, stock = owners.scenario.seed, _Blank(owners)
    step = Step(0, 0, 0, seed, training=False, stock=stock, evaluation_mode="mixed")
    client.receive_announcements(server.announce())
    parts = [head, trunk, tail, client.modules, server.modules]
    batch = client.transform(
        make_blank(owners, FEW, number), step
    )  # a method that mixes adds texts
    beside, topology = owners.topology.beside(batch), owners.topology
    at_client = topology.tail_with_client
    with torch.no_grad(), _in_inference(parts):
        before, z = count_flops(lambda: client.encode(topology.headed(head, batch), step))
        between, u = count_flops(lambda: server.encode(trunk(server.lift(z, step), *beside), step))
        after, _ = count_flops(lambda: tail(client.lift(u, step) if at_client else u))
        stand_in, _ = count_flops(lambda: client.stand_in(z, step))
    return Flops(before / FEW, between / FEW, after / FEW, stand_in / FEW)


@accept_nan()
def measure_activations(owners: Ownership, rows: int) -> int:
    """Return the bytes of activations that a batch of so many rows keeps for a step.

    If they are computed again, the largest unit's count too: a backward pass has one at a time. So
    do the values of the largest quantised weight.
    """
    model = owners.model
    # Frozen weights are not copied: a second large model might not fit.
    trunk = owners.depths.get_rest(0) if owners.scenario.parties else model.trunk
    layers = copy_learning(nn.ModuleList([model.head, trunk, model.tail]))
    walked = _walk(owners, FEW, 0, cast("Sequence[nn.Module]", layers))
    return walked.kept.count(SEGMENTS) // FEW * rows + measure_unpacking(layers)


def measure_head_speed(owners: Ownership, number: ClientId, autocast: Autocast) -> float:
    """Return the operations of a second in which a client's head passes blank samples on."""
    head, batch = owners.depths.get_head(number), make_blank(owners, FEW, number)

    def run() -> Tensor:
        return owners.topology.headed(head, batch)

    with torch.no_grad(), _in_inference([head]), autocast():
        flops, _ = count_flops(run)  # the first pass warms up
        begun = time.perf_counter()
        run()
        return flops / (time.perf_counter() - begun)


def make_blank(owners: Ownership, rows: int, number: ClientId = 0) -> Batch:
    """Make a client's batch without content; without numbers where the model has no weights."""
    weights = owners.model.head.parameters()
    device = torch.device("meta") if any(each.is_meta for each in weights) else owners.device
    x = owners.info.of_party(number).make_blank(rows).to(device)
    labels = x if owners.info.texts else torch.zeros(rows, dtype=torch.int64, device=device)
    return Batch(x, labels, torch.arange(rows))


class _Blank:
    """A stock of texts without content, for methods that mix texts."""

    vocabulary, pad, size = 1, 0, FEW

    def __init__(self, owners: Ownership) -> None:
        self._owners = owners

    def draw_support(self, count: int, rows: int, rng: torch.Generator) -> list[Batch]:
        """Return `count` batches without content."""
        return [make_blank(self._owners, FEW) for _ in range(count)]

    def get_texts(self, rows: torch.Tensor) -> Batch:
        """Return a batch without content."""
        return make_blank(self._owners, FEW)


@contextmanager
def _in_inference(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Open a context in which modules neither learn nor update statistics."""
    before = [module.training for module in modules]
    for module in modules:
        module.eval()
    yield
    for module, training in zip(modules, before, strict=True):
        module.train(training)


@dataclass(frozen=True)
class Walked:
    """What a pass of a batch through the segments gives."""

    kept: KeptTensors
    """What each segment keeps for its backward pass."""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    """The output of each segment."""
    flops: dict[str, int] = field(default_factory=dict)


@accept_nan()
def walk_segments(owners: Ownership, rows: int, number: ClientId) -> Walked:
    """Pass a client's blank batch through its segments, one after another."""
    depths = owners.depths
    segments = depths.get_head(number), depths.get_rest(number), owners.model.tail
    return _walk(owners, rows, number, segments)


def _walk(owners: Ownership, rows: int, number: ClientId, segments: Sequence[nn.Module]) -> Walked:
    head, trunk, tail = segments
    batch, topology = make_blank(owners, rows, number), owners.topology
    beside = topology.beside(batch)
    walked = Walked(KeptTensors(p for segment in segments for p in segment.parameters()))
    z = _pass(walked, "head", head, lambda: topology.headed(head, batch))
    u = _pass(walked, "trunk", trunk, lambda: trunk(z, *beside))
    _pass(walked, "tail", tail, lambda: tail(u, *beside))
    return walked


def _pass(walked: Walked, name: str, segment: nn.Module, run: Callable[[], Tensor]) -> Tensor:
    """Note what a pass of a segment gives, and return its output as the next one gets it."""
    walked.kept.part = name
    with walked.kept.watch({name: segment}):
        walked.flops[name], output = count_flops(run)
    walked.outputs[name] = output
    return output.detach().requires_grad_()


def _measure_weightless(owners: Ownership, number: ClientId) -> Flops:
    """Return the operations of one client's segments."""
    flops = walk_segments(owners, FEW, number).flops
    return Flops(flops["head"] / FEW, flops["trunk"] / FEW, flops["tail"] / FEW)
