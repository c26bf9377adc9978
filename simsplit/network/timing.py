"""This module is a run's clock: it knows the scenario's devices, links and order of work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simsplit.network.clock import ClientWork, Flops, Order, compute_round_times
from simsplit.network.events import RoundTimes, Stage
from simsplit.network.profiles import Rates, ServerConfig
from simsplit.packets import ClientId, Leg, Packet
from simsplit.protocol import Protocol, Turn


@dataclass(frozen=True)
class Clock:
    """The simulated time that a run's steps, packets and rounds take."""

    order: Order
    protocol: Protocol
    """The protocol of a step."""
    rates: Sequence[Rates]
    """Rates by client number."""
    server: ServerConfig
    flops: Flops
    max_ahead: int | None = None

    def time_round(self, works: Mapping[ClientId, ClientWork]) -> RoundTimes:
        """Return the times of a whole round; `works` are in the cohort's order."""
        args = self.order, self.protocol, works, self.rates, self.server, self.flops
        return compute_round_times(*args, self.max_ahead)

    def compute_transfer_s(self, client: ClientId, leg: Leg, packets: int, nbytes: int) -> float:
        """Return the seconds that `packets` packets of one leg take, one after another."""
        return self.rates[client].compute_transfer_s(leg, packets, nbytes)

    def build_sending(self, packet: Packet) -> Stage:
        """Return the stage in which a packet crosses."""
        return Stage("wire", self.compute_transfer_s(packet.client, packet.leg, 1, packet.nbytes))

    def build_computing(self, client: ClientId, turn: Turn, rows: int) -> Stage:
        """Return the stage in which one side computes a turn, for a batch of `rows` rows."""
        operations = rows * self.flops.count(turn.work)
        if turn.by_client:
            return Stage("client", operations / self.rates[client].flops_per_s)
        return Stage("server", operations / (self.server.gflops * 1e9))

    def compute_own_s(self, packet: Packet) -> float:
        """Return a packet's seconds for its client; a step's first packet counts all computing."""
        seconds = self.build_sending(packet).seconds
        if packet.leg is self.protocol.legs[0]:
            turns = [turn for turn in self.protocol.turns if turn.by_client]
            operations = len(packet.tensors[0]) * sum(self.flops.count(turn.work) for turn in turns)
            seconds += operations / self.rates[packet.client].flops_per_s
        return seconds
