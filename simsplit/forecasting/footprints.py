"""What each party of a run holds in memory, in bytes of tensors, counted on the run's own parts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from simsplit.assembly.dry_pass import FEW, SEGMENTS, walk_segments
from simsplit.assembly.dry_step import Prober
from simsplit.client_names import ClientNames
from simsplit.parties.learner import Learner
from simsplit.parties.sample_gradients import uses_torch_func
from simsplit.phases import Phase
from simsplit.preflight import KeptTensors
from simsplit.protocol import Turn


@dataclass(frozen=True)
class Footprint:
    """Bytes of one party."""

    party: str
    weights: int
    """Parameters and buffers, frozen ones too."""
    gradients: int
    moments: int
    """Tensors that optimizers keep."""
    activations: int
    """Tensors of one step that are kept between its forward and backward pass."""

    @property
    def total(self) -> int:
        """Bytes of the party at the peak of a step."""
        return self.weights + self.gradients + self.moments + self.activations


def measure_footprints(prober: Prober, phase: Phase) -> list[Footprint]:
    """Measure the footprints of a client of each cut, and of the server.

    Optimizers must have taken a step. The server's activations are those of the client with the
    shallowest cut, for whom it computes most.
    """
    made, places = list[Footprint](), prober.assembler.owners.depths
    of_server = 0
    for number in prober.numbers:
        prober.turn_to(number)
        kept = _estimate_activations(prober, phase)
        of_server = max(of_server, kept["server"])
        place = places.get_place(number)
        party = "client" if place is None else f"client, cut {place}"
        if prober.scenario.parties:
            party = ClientNames(prober.scenario.party_names).label(number)
        held = _count_held(prober.client.keeping.parts.learners)
        made.append(Footprint(party, *held, kept["client"]))
    server = prober.exchange.server.learner
    return [*made, Footprint("server", *_count_held([server]), of_server)]


def _count_held(learners: Iterable[Learner]) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and moments."""
    owned = list(learners)
    tensors = {id(tensor): tensor for tensor in _list_tensors(owned)}
    learned = {id(p): p for learner in owned for p in learner.parameters}
    moments = {id(t): t for learner in owned for t in learner.moments().values()}
    weights, gradients, kept = (
        sum(tensor.nbytes for tensor in each.values()) for each in (tensors, learned, moments)
    )
    return weights, gradients, kept


def _list_tensors(learners: Iterable[Learner]) -> Iterator[Tensor]:
    """Yield parameters and buffers of the modules that learners have."""
    for learner in learners:
        for module in learner.modules.values():
            yield from (*module.parameters(), *module.buffers())


def _estimate_activations(prober: Prober, phase: Phase) -> dict[str, int]:
    """Estimate what a whole batch keeps from what a few and twice as many samples keep."""
    few, more = (_measure_activations(prober, phase, rows) for rows in (FEW, 2 * FEW))
    rows = -(-prober.batch_rows // prober.scenario.train.accumulate)
    made = {}
    for party in few:
        each = (more[party] - few[party]) / FEW
        made[party] = round(few[party] + (rows - FEW) * each)
    return made


def _measure_activations(prober: Prober, phase: Phase, rows: int) -> dict[str, int]:
    """Return the bytes that each side of a step keeps, weights not counted."""
    end, server = prober.client.training.end, prober.exchange.server.end
    learners = prober.client.keeping.parts.learners
    segments = [each for learner in learners for each in learner.modules.values()]
    # torch.func, which differentiates samples alone, refuses to be watched.
    unwatched = end.private is not None and any(map(uses_torch_func, segments))
    if prober.is_weightless or prober.is_slow or unwatched:
        return _walk_activations(prober, rows)
    modules = {
        "client": [end.head, *([end.tail] if end.tail is not None else [])],
        "server": [prober.trunk, *([server.tail] if server.tail is not None else [])],
    }
    kept = KeptTensors(_list_tensors([*learners, prober.exchange.server.learner]))
    kept.part = "client"
    batch = torch.arange(rows) % max(1, len(prober.feeds[phase.source].part))
    with kept.watch({party: nn.ModuleList(parts) for party, parts in modules.items()}):
        for event in prober.walk(phase, batch):
            if isinstance(event, Turn):
                kept.part = "client" if event.by_client else "server"
    return {party: kept.count([party]) for party in modules}


def _walk_activations(prober: Prober, rows: int) -> dict[str, int]:
    """Return the same of a pass through the segments; the methods' tensors are left out."""
    kept = walk_segments(prober.assembler.owners, rows, prober.number).kept
    served = prober.exchange.topology.served
    return {
        "client": kept.count(each for each in SEGMENTS if each not in served),
        "server": kept.count(each for each in SEGMENTS if each in served),
    }
