"""A run's operations and memory are measured on its own modules before it starts."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from torch import nn

from simsplit.assembly.ownership import Ownership
from simsplit.data import Prepared
from simsplit.data.batches import Batch
from simsplit.data.parts import count_rows
from simsplit.methods.method import Step
from simsplit.models.frozen import copy_learning
from simsplit.models.quantised import measure_unpacking
from simsplit.models.recomputing import watch_units
from simsplit.network.clock import Flops, count_flops
from simsplit.packets import ClientId, is_crowd
from simsplit.parties.on_disk import count_row_bytes
from simsplit.parties.seats import SEATS
from simsplit.plugins.guard import accept_nan
from simsplit.preflight import (
    READING,
    RUNTIME,
    Estimate,
    count_frozen_bytes,
    count_learned_bytes,
    count_trained_bytes,
    measure_activation_bytes,
)
from simsplit.scenario.needs import count_messages
from simsplit.schedules.aggregation import SplitFedV1

FEW = 2
"""Number of samples to measure on: batch normalisation refuses a single one."""


@accept_nan()
def measure_flops(owners: Ownership) -> Flops:
    """Return the operations of one sample's forward pass by segment, methods included."""
    return collect_flops(owners, lambda number: _measure_flops(owners, number))


def collect_flops(owners: Ownership, measure: Callable[[ClientId], Flops]) -> Flops:
    """Measure the operations at the model's own cut, and at each deeper one."""
    (shallowest, *_), *deeper = owners.depths.list_kinds()
    own: dict[ClientId, Flops] = {}
    for group in deeper:
        own |= dict.fromkeys(group, measure(group[0]))
    return replace(measure(shallowest), own=own)


def _measure_flops(owners: Ownership, number: ClientId) -> Flops:
    """Return those of one client, whatever others have."""
    client, server, tail = owners.client_stack, owners.server_stack, owners.model.tail
    head, trunk = owners.depths.get_head(number), owners.depths.get_rest(number)
    # Methods that mix only in training are measured as they train.
    seed, stock = owners.scenario.seed, _Blank(owners)
    step = Step(0, 0, 0, seed, training=False, stock=stock, evaluation_mode="mixed")
    client.receive_announcements(server.announce())
    parts = [head, trunk, tail, client.modules, server.modules]
    batch = client.transform(_make_batch(owners), step)  # a method that mixes adds texts
    beside, topology = owners.topology.beside(batch), owners.topology
    at_client = topology.tail_with_client
    with torch.no_grad(), _in_inference(parts):
        before, z = count_flops(lambda: client.encode(topology.headed(head, batch), step))
        between, u = count_flops(lambda: server.encode(trunk(server.lift(z, step), *beside), step))
        after, _ = count_flops(lambda: tail(client.lift(u, step) if at_client else u))
        stand_in, _ = count_flops(lambda: client.stand_in(z, step))
    # several servers answer at the same time
    replies = math.ceil(count_messages(owners.scenario.method) / owners.scenario.servers)
    return Flops(before / FEW, between / FEW, after / FEW, stand_in / FEW, replies)


def estimate_memory(owners: Ownership, data: Prepared, hosts: int = 0) -> Estimate:
    """Estimate the memory of all processes by purpose, before clients are made.

    Every host has its own copy of the shared modules, and of the trunk if each client trains a copy
    of it. Samples are stored once more in the memory that hosts share.
    """
    scenario, train = owners.scenario, owners.scenario.train
    server = list(owners.list_server_modules().values())
    kinds = owners.depths.list_kinds()
    # The deepest of heads that overlap has all that is shared.
    shared = list(owners.list_shared_modules(owners.depths.deepest).values())
    owners.refuse_live()
    own_parts = sum(
        _count_own_bytes(owners, group[0], _count_holders(owners, len(group))) for group in kinds
    )
    count = scenario.clients.count
    copies, servers = 0, 1
    if isinstance(scenario.aggregation, SplitFedV1):
        servers += hosts
        kept = train.server.slots if scenario.aggregation.moments == "keep" else 0
        copies = count_learned_bytes(server) * (1 + kept)  # a round's result, and kept moments
    return Estimate(
        {
            "clients' own parts": own_parts,
            "shared head and tail": count_trained_bytes(shared, train.client.slots) * (1 + hosts),
            "server": count_trained_bytes(server, train.server.slots) * servers,
            "trunk copies": copies * count,
            "activations of a step": _measure_activations(owners, data) * max(1, hosts),
            "samples": data.nbytes * (2 if hosts else 1),
            "Python and torch": (RUNTIME + READING * owners.info.texts) * (1 + hosts),
        },
        on_disk=_count_disk_bytes(owners) if scenario.rests_on_disk else 0,
    )


def measure_row(owners: Ownership) -> int:
    """Return the bytes of the row in which a client rests on disk, at most."""
    owned = owners.list_owned_modules(0)
    weights = [p for module in owned for p in module.parameters()]
    buffers = sum(b.nbytes for module in owned for b in module.buffers())
    slots = owners.scenario.train.client.slots
    return count_row_bytes(count_learned_bytes(owned), buffers, len(weights), slots)


def _count_disk_bytes(owners: Ownership) -> int:
    """Count the bytes of all rows: the newest of each client, and older ones of checkpoints."""
    checkpoint, rounds = owners.scenario.checkpoint, owners.scenario.schedule.rounds
    holders = _count_begun(owners, owners.scenario.clients.count)
    changed = min(holders, checkpoint.every * _count_selected(owners))
    # A run that writes one checkpoint, at its end, has no older rows.
    older = checkpoint.keep * changed if rounds is None or checkpoint.every < rounds else 0
    return (holders + older) * measure_row(owners)


def _count_own_bytes(owners: Ownership, number: ClientId, count: int) -> int:
    """Count the bytes that `count` clients like this one hold beside what all share."""
    scenario, train = owners.scenario, owners.scenario.train
    shared = list(owners.list_shared_modules(number).values())
    owned = owners.list_owned_modules(number)
    per_client = count_trained_bytes(owned, train.client.slots)
    common = 0
    if scenario.clients.start == "same":
        common += count_frozen_bytes(owned)
    if owners.averages:
        held = scenario.aggregation.kind != "none" and scenario.aggregation.bits is not None
        per_client += (
            count_trained_bytes(shared, train.client.slots) + count_learned_bytes(shared) * held
        )
        common += count_frozen_bytes(shared)
    elif scenario.clients.handover == "weights":
        per_client += count_learned_bytes(shared) * train.client.slots
    # Clients share what never learns.
    return (per_client - common) * count + common


def _count_holders(owners: Ownership, count: int) -> int:
    """Return how many of `count` clients have something of their own in memory, at most."""
    if owners.scenario.rests_on_disk:
        together = owners.scenario.schedule.kind == "parallel"
        return min(count, max(SEATS, _count_selected(owners) * together))
    if not (is_crowd(count) and owners.can_rest):
        return count
    return _count_begun(owners, count)


def _count_begun(owners: Ownership, count: int) -> int:
    """Return how many of `count` clients have taken part by the end of a run, at most."""
    rounds = owners.scenario.schedule.rounds
    return min(count, rounds * _count_selected(owners)) if rounds else count


def _count_selected(owners: Ownership) -> int:
    return owners.scenario.cohort.count_selected(owners.scenario.clients.count)


@accept_nan()
def _measure_activations(owners: Ownership, data: Prepared) -> int:
    """Return the bytes of activations that the largest batch of a client keeps for a step.

    If they are computed again, the largest unit's count too: a backward pass has one at a time. So
    do the values of the largest quantised weight.
    """
    model, batch, topology = owners.model, _make_batch(owners), owners.topology
    # Frozen weights are not copied: a second large model might not fit.
    layers = copy_learning(nn.ModuleList([model.head, model.trunk, model.tail]))
    head, trunk, tail = cast("nn.ModuleList", layers)

    def outputs() -> torch.Tensor:
        made: torch.Tensor = tail(trunk(topology.headed(head, batch), *topology.beside(batch)))
        return made

    with watch_units(layers) as passes:
        kept = measure_activation_bytes(outputs, layers.parameters())
    again = (measure_activation_bytes(each, layers.parameters()) for each in passes)
    kept += max(again, default=0)
    largest = int(count_rows(data.parts).max(initial=0))
    train = owners.scenario.train
    rows = min(math.ceil(train.batch_size / train.accumulate), largest)
    return kept // FEW * rows + measure_unpacking(layers)


def _make_batch(owners: Ownership) -> Batch:
    weights = owners.model.head.parameters()
    device = torch.device("meta") if any(each.is_meta for each in weights) else owners.device
    x = owners.info.make_blank(FEW).to(device)
    labels = x if owners.info.texts else torch.zeros(FEW, dtype=torch.int64, device=device)
    return Batch(x, labels, torch.arange(FEW))


class _Blank:
    """A stock of texts without content, for methods that mix texts."""

    vocabulary, pad, size = 1, 0, FEW

    def __init__(self, owners: Ownership) -> None:
        self._owners = owners

    def draw_support(self, count: int, rows: int, rng: torch.Generator) -> list[Batch]:
        """Return `count` batches without content."""
        return [_make_batch(self._owners) for _ in range(count)]

    def get_texts(self, rows: torch.Tensor) -> Batch:
        """Return a batch without content."""
        return _make_batch(self._owners)


@contextmanager
def _in_inference(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Open a context in which modules neither learn nor update statistics."""
    before = [module.training for module in modules]
    for module in modules:
        module.eval()
    yield
    for module, training in zip(modules, before, strict=True):
        module.train(training)
