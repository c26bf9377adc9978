"""The server that averages: what clients share goes down before a round, and up after it.

The averages live here between rounds; what a client holds of them in the meantime is overwritten
when it next takes part. Two averages are kept apart, as SplitFed's two servers keep them: the
clients' shared segments, which cross the wire, and (v1) the trunk's copies, which do not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from simsplit.engine.pool import Pool
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.calls import HandOver, Receive
from simsplit.parties.changes import Changes
from simsplit.parties.server import Server
from simsplit.schedules.averaging import Averager
from simsplit.states import below
from simsplit.wire import Wire

Weights = Mapping[str, Tensor]


class Federation:
    """Averages of one run; either may be missing."""

    def __init__(
        self,
        pool: Pool,
        server: Server,
        wire: Wire,
        *,
        shared: Averager | None,
        trunk: Averager | None,
        changes: Changes | None = None,
    ) -> None:
        """`changes` codes what clients share; None: it crosses as it is."""
        self.pool, self.server, self.wire = pool, server, wire
        self.shared, self.trunk, self.changes = shared, trunk, changes
        self._heard: set[ClientId] | None = None
        """Who had the last broadcast; None: all, of the weights that a run starts with."""
        self.trust: Mapping[ClientId, float] = {}
        """What a client's work counts, where it is not 1."""

    def send(self, clients: Sequence[ClientId], round_number: int) -> None:
        """Give those who are about to train what all share (BROADCAST)."""
        if self.shared is not None:
            packets = self._coded(self._broadcast(clients, round_number))
            self.pool.ask_each({p.client: Receive(self.wire.carry(p)) for p in packets})

    def settle(self, clients: Sequence[ClientId]) -> None:
        """Bring clients to where the server is, uncounted: to be evaluated with the averages."""
        if self.shared is not None:
            self.pool.ask_each({p.client: Receive(p) for p in self._broadcast(clients, 0)})

    def collect(
        self, samples: Mapping[ClientId, int], round_number: int, trunks: Mapping[ClientId, Weights]
    ) -> None:
        """Take up what each has made of it (HANDOVER) and average, weighted by samples."""
        trusted = {c: self.trust.get(c, 1.0) * count for c, count in samples.items()}
        samples = {client: max(1, round(count)) for client, count in trusted.items()}
        if self.shared is not None:
            sent = self.pool.ask_all(samples, HandOver(round_number))
            packets = {client: self.wire.carry(packet) for client, packet in sent.items()}
            updates = {client: (self._read(p), samples[client]) for client, p in packets.items()}
            self.shared.average(round_number, updates)
        if self.trunk is not None:
            parts = {client: (trunks[client], samples[client]) for client in samples}
            self.trunk.average(round_number, parts)
            self.server.learner.take(self.trunk.weights)

    def state(self) -> dict[str, Tensor]:
        """Both averages, and what their strategies remember."""
        state = {
            f"{name}/{key}": tensor
            for name, averager in self._kept()
            for key, tensor in averager.state().items()
        }
        if self.changes is not None:
            state |= {f"changes/{name}": t for name, t in self.changes.state().items()}
        if self._heard is not None:
            state["heard"] = torch.tensor(sorted(self._heard), dtype=torch.int64)
        return state

    def load(self, state: Weights) -> None:
        """Take over what `state` gave."""
        for name, averager in self._kept():
            averager.load(below(state, f"{name}/"))
        if self.changes is not None:
            self.changes.load(below(state, "changes/"))
            self._heard = set(state["heard"].tolist()) if "heard" in state else None

    def _kept(self) -> Iterable[tuple[str, Averager]]:
        both = (("shared", self.shared), ("trunk", self.trunk))
        return [(name, averager) for name, averager in both if averager is not None]

    def _coded(self, packets: Sequence[Packet]) -> Sequence[Packet]:
        """A broadcast in few bits to those who had the one before, and whole to the others."""
        if self.changes is None or not packets:
            return packets
        coded = self.changes.encode(packets[0], "down", packets[0].round)
        told = self.changes.read(coded)
        self.changes.hold(told, packets[0].round)
        heard, self._heard = self._heard, {packet.client for packet in packets}
        whole = packets[0].renamed(tuple(told), tuple(told.values()))
        return [
            replace(coded if heard is None or p.client in heard else whole, client=p.client)
            for p in packets
        ]

    def _read(self, packet: Packet) -> Weights:
        """The weights that a client has sent."""
        if self.changes is not None:
            return self.changes.read(packet)
        return dict(zip(packet.names, packet.tensors, strict=True))

    def _broadcast(self, clients: Sequence[ClientId], round_number: int) -> list[Packet]:
        assert self.shared is not None, "asked for where something is shared"
        weights = self.shared.weights
        names, tensors = tuple(weights), tuple(weights.values())
        return [Packet(c, Leg.BROADCAST, round_number, 0, tensors, names) for c in clients]
