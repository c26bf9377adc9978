"""A run's clock: one scenario's devices, links and order of work, asked what things take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simsplit.network.clock import Flops, Order, Work, round_times
from simsplit.network.events import RoundTimes, Stage
from simsplit.network.profiles import Rates, ServerConfig
from simsplit.packets import ClientId, Leg, Packet
from simsplit.protocol import Protocol, Turn


@dataclass(frozen=True)
class Clock:
    """What a run's steps, packets and rounds take in simulated time."""

    order: Order
    protocol: Protocol
    """Of a step."""
    rates: Sequence[Rates]
    """By client number."""
    server: ServerConfig
    flops: Flops
    max_ahead: int | None = None

    def round(self, works: Mapping[ClientId, Work]) -> RoundTimes:
        """A whole round, of those who took part, in their order."""
        args = self.order, self.protocol, works, self.rates, self.server, self.flops
        return round_times(*args, self.max_ahead)

    def transfer_s(self, client: ClientId, leg: Leg, packets: int, nbytes: int) -> float:
        """So many packets of one leg, one after another."""
        return self.rates[client].transfer_s(leg, packets, nbytes)

    def sending(self, packet: Packet) -> Stage:
        """One packet on its way."""
        return Stage("wire", self.transfer_s(packet.client, packet.leg, 1, packet.nbytes))

    def computing(self, client: ClientId, turn: Turn, rows: int) -> Stage:
        """What one side computes in a turn, for a batch of so many rows."""
        operations = rows * self.flops.of(turn.work)
        if turn.by_client:
            return Stage("client", operations / self.rates[client].flops_per_s)
        return Stage("server", operations / (self.server.gflops * 1e9))

    def own_s(self, packet: Packet) -> float:
        """What a packet costs its client: its way, and with the first one all of its computing."""
        seconds = self.sending(packet).seconds
        if packet.leg is self.protocol.legs[0]:
            turns = [turn for turn in self.protocol.turns if turn.by_client]
            operations = len(packet.tensors[0]) * sum(self.flops.of(turn.work) for turn in turns)
            seconds += operations / self.rates[packet.client].flops_per_s
        return seconds
