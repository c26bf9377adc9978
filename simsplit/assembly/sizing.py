"""A run's operations and memory are measured on its own modules before it starts."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from simsplit.packets import is_crowd
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
    model, client, server = owners.model, owners.client_stack, owners.server_stack
    # Methods that mix only in training are measured as they train.
    seed, stock = owners.scenario.seed, _Blank(owners)
    step = Step(0, 0, 0, seed, training=False, stock=stock, evaluation_mode="mixed")
    client.receive_announcements(server.announce())
    parts = [model.head, model.trunk, model.tail, client.modules, server.modules]
    batch = client.transform(_make_batch(owners), step)  # a method that mixes adds texts
    beside, topology = owners.topology.beside(batch), owners.topology
    at_client = topology.tail_with_client
    with torch.no_grad(), _in_inference(parts):
        head, z = count_flops(lambda: client.encode(topology.headed(model.head, batch), step))
        trunk, u = count_flops(
            lambda: server.encode(model.trunk(server.lift(z, step), *beside), step)
        )
        tail, _ = count_flops(lambda: model.tail(client.lift(u, step) if at_client else u))
        stand_in, _ = count_flops(lambda: client.stand_in(z, step))
    # several servers answer at the same time
    replies = math.ceil(count_messages(owners.scenario.method) / owners.scenario.servers)
    return Flops(head / FEW, trunk / FEW, tail / FEW, stand_in / FEW, replies)


def estimate_memory(owners: Ownership, data: Prepared, hosts: int = 0) -> Estimate:
    """Estimate the memory of all processes by purpose, before clients are made.

    Every host has its own copy of the shared modules, and of the trunk if each client trains a copy
    of it. Samples are stored once more in the memory that hosts share.
    """
    scenario = owners.scenario
    train, count = scenario.train, scenario.clients.count
    shared = list(owners.list_shared_modules().values())
    server = list(owners.list_server_modules().values())
    owned = owners.list_owned_modules()
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
    copies, servers = 0, 1
    if isinstance(scenario.aggregation, SplitFedV1):
        servers += hosts
        kept = train.server.slots if scenario.aggregation.moments == "keep" else 0
        copies = count_learned_bytes(server) * (1 + kept)  # a round's result, and kept moments
    return Estimate(
        {
            # Clients share what never learns.
            "clients' own parts": (per_client - common) * _count_holders(owners) + common,
            "shared head and tail": count_trained_bytes(shared, train.client.slots) * (1 + hosts),
            "server": count_trained_bytes(server, train.server.slots) * servers,
            "trunk copies": copies * count,
            "activations of a step": _measure_activations(owners, data) * max(1, hosts),
            "samples": data.nbytes * (2 if hosts else 1),
            "Python and torch": (RUNTIME + READING * owners.info.texts) * (1 + hosts),
        }
    )


def _count_holders(owners: Ownership) -> int:
    """Return how many clients have something of their own at the end of a run."""
    scenario = owners.scenario
    count, rounds = scenario.clients.count, scenario.schedule.rounds
    if not (is_crowd(count) and owners.can_rest and rounds):
        return count
    return min(count, rounds * scenario.cohort.count_selected(count))


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
