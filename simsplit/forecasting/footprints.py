"""What each party of a run holds in memory, in bytes of tensors, counted on the run's own parts."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from simsplit.forecasting.probing import Prober
from simsplit.forecasting.weightless import walk_segments
from simsplit.models.recomputing import watch_units
from simsplit.parties.learner import Learner
from simsplit.phases import Phase
from simsplit.preflight import measure_activation_bytes
from simsplit.protocol import Turn

FEW = 2
"""Rows on which activations are measured, and half of them: batch normalisation refuses one."""


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


def measure_footprints(prober: Prober, phase: Phase, *, activations: bool) -> list[Footprint]:
    """Measure the footprints of a client of each cut, and of the server.

    Optimizers must have taken a step. The server's activations are those of the client with the
    shallowest cut, for whom it computes most.
    """
    made, places = list[Footprint](), prober.assembler.owners.depths
    of_server = 0
    for number in prober.numbers:
        prober.turn_to(number)
        kept = _estimate_activations(prober, phase) if activations else {}
        of_server = max(of_server, kept.get("server", 0))
        place = places.get_place(number)
        party = "client" if place is None else f"client, cut {place}"
        held = _count_held(prober.client.keeping.parts.learners)
        made.append(Footprint(party, *held, kept.get("client", 0)))
    server = prober.exchange.server.learner
    return [*made, Footprint("server", *_count_held([server]), of_server)]


def _count_held(learners: Iterable[Learner]) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and moments."""
    owned = list(learners)
    tensors = {
        id(tensor): tensor
        for learner in owned
        for module in learner.modules.values()
        for tensor in (*module.parameters(), *module.buffers())
    }
    learned = {id(p): p for learner in owned for p in learner.parameters}
    moments = {id(t): t for learner in owned for t in learner.moments().values()}
    weights, gradients, kept = (
        sum(tensor.nbytes for tensor in each.values()) for each in (tensors, learned, moments)
    )
    return weights, gradients, kept


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
    if prober.is_weightless:
        return _walk_activations(prober, rows)
    end, server = prober.client.training.end, prober.exchange.server.end
    modules = {
        "client": [end.head, *([end.tail] if end.tail is not None else [])],
        "server": [prober.trunk, *([server.tail] if server.tail is not None else [])],
    }
    learners = (*prober.client.keeping.parts.learners, prober.exchange.server.learner)
    held = {
        _place(tensor)
        for learner in learners
        for module in learner.modules.values()
        for tensor in (*module.parameters(), *module.buffers())
    }
    kept: dict[str, dict[int, torch.UntypedStorage]] = {"client": {}, "server": {}}
    side = "client"

    def keep(tensor: Tensor) -> Tensor:
        if _place(tensor) not in held:
            kept[side][_place(tensor)] = tensor.untyped_storage()
        return tensor.detach()  # the tensor itself would form a cycle with its graph

    batch = torch.arange(rows) % max(1, len(prober.feeds[phase.source].part))
    units = {party: nn.ModuleList(parts) for party, parts in modules.items()}
    with watch_units(units["client"]) as ours, watch_units(units["server"]) as theirs:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            for event in prober.walk(phase, batch):
                if isinstance(event, Turn):
                    side = "client" if event.by_client else "server"
        bytes_kept = {
            party: sum(storage.nbytes() for storage in each.values())
            for party, each in kept.items()
        }
        # Units that are computed again add what is inside of one at a time.
        for party, passes in (("client", ours), ("server", theirs)):
            weights = list(units[party].parameters())
            again = (measure_activation_bytes(each, weights) for each in list(passes))
            bytes_kept[party] += max(again, default=0)
    return bytes_kept


def _walk_activations(prober: Prober, rows: int) -> dict[str, int]:
    """Return the same of segments without weights; the methods' tensors are left out."""
    walked, served = (
        walk_segments(prober.assembler.owners, rows, prober.number),
        prober.exchange.topology.served,
    )
    parties = {"client": walked.kept.keys() - served, "server": walked.kept.keys() & served}
    return {
        party: sum(walked.kept[each] for each in segments)
        + max(walked.again[each] for each in segments)
        for party, segments in parties.items()
    }


def _place(tensor: Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place
