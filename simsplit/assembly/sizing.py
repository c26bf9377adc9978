"""What a run will take, measured on its own modules before it starts: arithmetic and memory."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from simsplit.assembly.ownership import Ownership
from simsplit.data import Prepared
from simsplit.data.batches import Batch
from simsplit.methods.base import Step
from simsplit.network.clock import Flops
from simsplit.network.flops import count_flops
from simsplit.preflight import (
    READING,
    RUNTIME,
    Estimate,
    activation_bytes,
    learned_bytes,
    trained_bytes,
)
from simsplit.scenario.needs import count_messages
from simsplit.schedules.aggregation import SplitFedV1

FEW = 2
"""Samples to measure on: one alone is no batch to a normalising layer."""


def flops_of(owners: Ownership) -> Flops:
    """What one sample's forward pass takes in each segment, methods included."""
    model, client, server = owners.model, owners.client_stack, owners.server_stack
    # mixed, where a method can: evaluation may be plain where training is not
    seed, stock = owners.scenario.seed, _Blank(owners)
    step = Step(0, 0, 0, seed, training=False, stock=stock, reading="mixed")
    client.hear(server.announce())
    parts = [model.head, model.trunk, model.tail, client.modules, server.modules]
    batch = client.transform(_batch(owners), step)  # more than was given, if it is mixed
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


def estimate(owners: Ownership, data: Prepared, hosts: int = 0) -> Estimate:
    """Memory by purpose, of all processes, before clients are made.

    Every host has its own copy of what clients share, and of the trunk where each client trains a
    copy of it; the images are there once more, in the memory that hosts share.
    """
    scenario = owners.scenario
    train, count = scenario.train, scenario.clients.count
    shared = list(owners.shared_modules().values())
    server = list(owners.server_modules().values())
    per_client = trained_bytes(owners.owned_modules(), train.client.slots)
    if owners.averages:
        held = scenario.aggregation.kind != "none" and scenario.aggregation.bits is not None
        per_client += trained_bytes(shared, train.client.slots) + learned_bytes(shared) * held
    elif scenario.clients.handover == "weights":
        per_client += learned_bytes(shared) * train.client.slots
    copies, servers = 0, 1
    if isinstance(scenario.aggregation, SplitFedV1):
        servers += hosts
        kept = train.server.slots if scenario.aggregation.moments == "keep" else 0
        copies = learned_bytes(server) * (1 + kept)  # what a round gives back, and moments
    return Estimate(
        {
            "clients' own parts": per_client * count,
            "shared head and tail": trained_bytes(shared, train.client.slots) * (1 + hosts),
            "server": trained_bytes(server, train.server.slots) * servers,
            "trunk copies": copies * count,
            "activations of a step": _activations(owners, data) * max(1, hosts),
            "samples": data.nbytes * (2 if hosts else 1),
            "Python and torch": (RUNTIME + READING * owners.info.texts) * (1 + hosts),
        }
    )


def _activations(owners: Ownership, data: Prepared) -> int:
    model, batch, topology = owners.model, _batch(owners), owners.topology
    layers = nn.ModuleList([model.head, model.trunk, model.tail])

    def outputs() -> torch.Tensor:
        head, trunk, tail = copy.deepcopy(layers)
        made: torch.Tensor = tail(trunk(topology.headed(head, batch), *topology.beside(batch)))
        return made

    kept = activation_bytes(outputs)
    weights = sum(p.nbytes for p in layers.parameters())
    largest = max((len(part) for part in data.parts), default=0)
    return max(0, kept - weights) // FEW * min(owners.scenario.train.batch_size, largest)


def _images(owners: Ownership) -> torch.Tensor:
    return owners.info.blank(FEW).to(owners.device)


def _batch(owners: Ownership) -> Batch:
    x = _images(owners)
    labels = x if owners.info.texts else torch.zeros(FEW, dtype=torch.int64, device=owners.device)
    return Batch(x, labels, torch.arange(FEW))


class _Blank:
    """Texts without content, to mix others with."""

    vocabulary, pad, size = 1, 0, FEW

    def __init__(self, owners: Ownership) -> None:
        self._owners = owners

    def support(self, count: int, rows: int, rng: torch.Generator) -> list[Batch]:
        """Batches without content, as many as asked for."""
        del rows, rng
        return [_batch(self._owners) for _ in range(count)]

    def texts(self, rows: torch.Tensor) -> Batch:
        """A batch without content."""
        del rows
        return _batch(self._owners)


@contextmanager
def _in_inference(modules: Sequence[nn.Module]) -> Iterator[None]:
    """A context in which modules neither learn nor keep statistics."""
    before = [module.training for module in modules]
    for module in modules:
        module.eval()
    yield
    for module, training in zip(modules, before, strict=True):
        module.train(training)
