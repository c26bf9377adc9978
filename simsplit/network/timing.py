"""A run's clock: one scenario's devices, links and order of work, asked what things take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simsplit.network.clock import Flops, Order, Topology, Work, round_times
from simsplit.network.events import RoundTimes, Stage
from simsplit.network.profiles import Rates, ServerConfig
from simsplit.packets import ClientId, Leg, Packet


@dataclass(frozen=True)
class Clock:
    """What a run's steps, packets and rounds take in simulated time."""

    order: Order
    topology: Topology
    rates: Sequence[Rates]
    """By client number."""
    server: ServerConfig
    flops: Flops
    max_ahead: int | None = None

    def round(self, works: Mapping[ClientId, Work]) -> RoundTimes:
        """A whole round, of those who took part, in their order."""
        args = self.order, self.topology, works, self.rates, self.server, self.flops
        return round_times(*args, self.max_ahead)

    def transfer_s(self, client: ClientId, leg: Leg, packets: int, nbytes: int) -> float:
        """So many packets of one leg, one after another."""
        return self.rates[client].transfer_s(leg, packets, nbytes)

    def sending(self, packet: Packet) -> Stage:
        """One packet on its way."""
        return Stage("wire", self.transfer_s(packet.client, packet.leg, 1, packet.nbytes))

    def computing(self, client: ClientId, leg: Leg, rows: int) -> Stage:
        """What it takes to make a packet of a leg, for a batch of so many rows."""
        flops, vanilla = self.flops, self.topology == "vanilla"
        if leg is Leg.FEATURES:
            return self._serving(rows * flops.trunk)
        if leg is Leg.SMASHED_GRAD:
            whole = 3 * (flops.trunk + flops.tail)
            return self._serving(rows * (whole if vanilla else 2 * flops.trunk))
        operations = 3 * flops.tail if leg is Leg.FEATURES_GRAD else flops.head
        return Stage("client", rows * operations / self.rates[client].flops_per_s)

    def learning(self, client: ClientId, rows: int) -> Stage:
        """The backward pass through the head."""
        return Stage("client", rows * 2 * self.flops.head / self.rates[client].flops_per_s)

    def own_s(self, packet: Packet) -> float:
        """What a packet costs its client: its way, and with SMASHED all computing of the step."""
        seconds = self.sending(packet).seconds
        if packet.leg is Leg.SMASHED:
            tail = 0.0 if self.topology == "vanilla" else self.flops.tail
            operations = len(packet.tensors[0]) * 3 * (self.flops.head + tail)
            seconds += operations / self.rates[packet.client].flops_per_s
        return seconds

    def _serving(self, operations: float) -> Stage:
        return Stage("server", operations / (self.server.gflops * 1e9))
