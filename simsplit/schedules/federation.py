"""The server that averages: shared weights go down to clients before a round, and up after it.

The averages live here between rounds. What a client holds of them in the meantime is overwritten
when it next takes part. Two averages are kept apart, as by SplitFed's two servers: that of the
clients' shared segments, which cross the wire, and (v1) that of the trunk's copies, which do not.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from simsplit.engine.pool import Pool
from simsplit.errors import OutOfRangeError
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet
from simsplit.parties.calls import HandOver, Receive
from simsplit.parties.changes import Changes
from simsplit.parties.server import Server
from simsplit.schedules.averaging import Update
from simsplit.schedules.overlaps import AnyAverager, Names
from simsplit.states import measure_norm, select_below
from simsplit.wire import Wire

Weights = Mapping[str, Tensor]


@dataclass(eq=False)
class Federation:
    """Averages of one run; either may be missing."""

    pool: Pool
    server: Server
    wire: Wire
    _: KW_ONLY
    shared: AnyAverager | None
    trunk: AnyAverager | None
    changes: Changes | None = None
    """The code of shared weights in few bits; None: they cross whole."""
    held: Names | None = None
    """The shared weights that each client has, where clients' cuts differ."""
    passed: Names | None = None
    """Those of the trunk that its steps pass, likewise."""
    up_to_date: set[ClientId] | None = field(default=None, init=False)
    """The clients that had the last broadcast; None: all, with the run's first weights."""
    trust: Mapping[ClientId, float] = field(default_factory=dict, init=False)
    """The weight of a client's work, where it is not 1."""

    def send(self, clients: Sequence[ClientId], round_number: int) -> None:
        """Send the shared weights (BROADCAST) to the clients that are about to train."""
        if self.shared is not None:
            packets = self._encode(self._broadcast(clients, round_number))
            self.pool.ask_each({p.client: Receive(self.wire.carry(p)) for p in packets})

    def settle(self, clients: Sequence[ClientId]) -> None:
        """Bring the averages to clients that are about to be evaluated with them; not counted."""
        if self.shared is not None:
            # Round 0: no change will refer to these weights (see `Sharing.receive`).
            self.pool.ask_each({p.client: Receive(p) for p in self._broadcast(clients, 0)})

    def collect(
        self, samples: Mapping[ClientId, int], round_number: int, trunks: Mapping[ClientId, Weights]
    ) -> None:
        """Collect what clients have trained (HANDOVER), and average it, weighted by samples."""
        trusted = {c: self.trust.get(c, 1.0) * count for c, count in samples.items()}
        # Flower weighs by whole samples, and an update of 0 samples would be left out.
        samples = {client: max(1, round(count)) for client, count in trusted.items()}
        if self.shared is not None:
            sent = self.pool.ask_all(samples, HandOver(round_number))
            updates = {}
            for client, packet in sent.items():
                with self.pool.work_on({client: (packet,)}):
                    carried = self.wire.carry(packet)
                    weights = dict(zip(carried.names, carried.tensors, strict=True))
                    if self.changes is not None:
                        weights = self.changes.read(carried)
                    updates[client] = weights, samples[client]
            self._average(self.shared, round_number, updates)
        if self.trunk is not None:
            parts = {
                client: (_select(trunks[client], self.passed, client), samples[client])
                for client in samples
            }
            self._average(self.trunk, round_number, parts)
            # Evaluation and checkpoints read the server's own trunk.
            self.server.learner.take(self.trunk.weights)

    def _average(
        self, averager: AnyAverager, round_number: int, updates: Mapping[ClientId, Update]
    ) -> None:
        """Average updates; where clients are remote, no average is used that is not finite."""
        sent = {
            client: (Packet(client, Leg.HANDOVER, round_number, 0, tuple(weights.values())),)
            for client, (weights, _) in updates.items()
        }
        with self.pool.work_on(sent):
            self.pool.compare_weights(
                {client: weights for client, (weights, _) in updates.items()},
                averager.weights,
                of_trunk=averager is self.trunk,
            )
            averager.average(round_number, updates)
            # a norm reads each value once, where `isfinite` takes twenty times as long
            if self.pool.remote and not math.isfinite(measure_norm(averager.weights.values())):
                raise OutOfRangeError("weights whose average is not finite")

    def state(self) -> dict[str, Tensor]:
        """Return both averages, and what their strategies remember."""
        state = {
            f"{name}/{key}": tensor
            for name, averager in self._list_averagers()
            for key, tensor in averager.state().items()
        }
        if self.changes is not None:
            state |= {f"changes/{name}": t for name, t in self.changes.state().items()}
        if self.up_to_date is not None:
            state["heard"] = torch.tensor(sorted(self.up_to_date), dtype=torch.int64)
        return state

    def load(self, state: Weights) -> None:
        """Restore what `state` returned."""
        for name, averager in self._list_averagers():
            averager.load(select_below(state, f"{name}/"))
        if self.changes is not None:
            self.changes.load(select_below(state, "changes/"))
            self.up_to_date = set(state["heard"].tolist()) if "heard" in state else None

    def _list_averagers(self) -> Iterable[tuple[str, AnyAverager]]:
        both = (("shared", self.shared), ("trunk", self.trunk))
        return [(name, averager) for name, averager in both if averager is not None]

    def _encode(self, packets: Sequence[Packet]) -> Sequence[Packet]:
        """Encode a broadcast as changes for clients that had the last one; others get it whole."""
        if self.changes is None or not packets:
            return packets
        # Encoded once for all: rounding is random, and all ends must hold the same weights.
        encoded = self.changes.encode(packets[0], "down", packets[0].round)
        # The server holds what clients read, rounding included, so that its errors do not add up.
        read = self.changes.read(encoded)
        self.changes.hold(read, packets[0].round)
        had_it, self.up_to_date = self.up_to_date, {packet.client for packet in packets}
        whole = packets[0].with_names(tuple(read), tuple(read.values()))
        return [
            replace(encoded if had_it is None or p.client in had_it else whole, client=p.client)
            for p in packets
        ]

    def _broadcast(self, clients: Sequence[ClientId], round_number: int) -> list[Packet]:
        assert self.shared is not None, "asked for where something is shared"
        whole, packets = self.shared.weights, []
        for client in clients:
            own = _select(whole, self.held, client)
            names, tensors = tuple(own), tuple(own.values())
            packets.append(Packet(client, Leg.BROADCAST, round_number, 0, tensors, names))
        return packets


def _select(weights: Weights, names: Names | None, client: ClientId) -> Weights:
    """Return a client's part of weights; all of them where all clients have one cut."""
    if names is None:
        return weights
    return {name: tensor for name, tensor in weights.items() if name in names[client]}
