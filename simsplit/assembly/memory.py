"""A run's memory is estimated from its own modules before it starts."""

import math

from simsplit.assembly.dry_pass import measure_activations
from simsplit.assembly.ownership import Ownership
from simsplit.data import Prepared
from simsplit.data.client_parts import count_rows
from simsplit.legs import ClientId, is_crowd
from simsplit.parties.on_disk import count_row_bytes
from simsplit.parties.seats import SEATS
from simsplit.preflight import (
    READING,
    RUNTIME,
    Estimate,
    count_frozen_bytes,
    count_learned_bytes,
    count_trained_bytes,
)
from simsplit.schedules.aggregation import SplitFedV1


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
    largest = int(count_rows(data.parts).max(initial=0))
    rows = min(math.ceil(train.batch_size / train.accumulate), largest)
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
            "activations of a step": measure_activations(owners, rows) * max(1, hosts),
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
    common = count_frozen_bytes(owned) if scenario.clients.start == "same" else 0
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
