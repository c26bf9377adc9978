"""The choreography of one mini-batch: who calls whom, and what crosses the wire in between."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.engine.pool import Pool
from simsplit.methods.base import Phase
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.server import Server
from simsplit.wire import Wire


class Exchange(ABC):
    """One step of one client, for a topology."""

    def __init__(self, pool: Pool, server: Server, wire: Wire) -> None:
        self.pool, self.server, self.wire = pool, server, wire
        self.phase = Phase("train", rounds=0)
        self.holder: ClientId | None = None
        """The client that trained last, and so holds what the clients share."""

    @abstractmethod
    def train(self, client: ClientId, round_number: int) -> None:
        """Let one client take one training step."""

    @abstractmethod
    def report(self, client: ClientId) -> dict[str, float]:
        """The sums of a client's steps this round, from whoever computed its loss."""

    def announce(self, clients: range, *, counted: bool) -> None:
        """Tell every client what the methods broadcast; once per run it is counted."""
        announced = self.server.announce()
        tensors = tuple(tensor for message in announced for tensor in message)
        if counted and tensors:
            for client in clients:
                self.wire.carry(Packet(client, Leg.BROADCAST, 0, 0, tensors))
        self.pool.call("hear", dict.fromkeys(clients, (announced,)))

    def hand_over(self, client: ClientId, round_number: int) -> None:
        """Bring what the clients share from its holder to `client`, if that is another."""
        if self.holder is not None and self.holder != client:
            packet: Packet = self.pool.ask(self.holder, "hand_over", round_number)
            if packet.tensors:
                self.pool.ask(client, "receive", self.wire.carry(packet))
        self.holder = client

    def evaluate(self, client: ClientId, batch: Batch, round_number: int, number: int) -> Tensor:
        """A client's outputs for a batch; the server sees no labels and nobody learns."""
        smashed = self.pool.ask(client, "probe", batch, round_number, number)
        with torch.no_grad():
            features = self.server.forward(self.wire.carry(smashed), training=False)
        outputs: Tensor = self.pool.ask(client, "predict", self.wire.carry(features))
        return outputs


class UShaped(Exchange):
    """The client holds head, tail and labels: four crossings."""

    def train(self, client: ClientId, round_number: int) -> None:
        """SMASHED up, FEATURES down, FEATURES_GRAD up, SMASHED_GRAD down."""
        carry = self.wire.carry
        smashed = carry(self.pool.ask(client, "forward", round_number))
        features = carry(self.server.forward(smashed, training=self.phase.gradients))
        gradient = self.pool.ask(client, "finish", features)
        if gradient is not None:
            self.pool.ask(client, "backward", carry(self.server.backward(carry(gradient))))

    def report(self, client: ClientId) -> dict[str, float]:
        """The client computed the loss."""
        row: dict[str, float] = self.pool.ask(client, "report")
        return row


class Vanilla(Exchange):
    """The server holds the tail and is sent the labels: three crossings."""

    def train(self, client: ClientId, round_number: int) -> None:
        """SMASHED and LABELS up, SMASHED_GRAD down."""
        carry = self.wire.carry
        smashed = carry(self.pool.ask(client, "forward", round_number))
        labels = carry(self.pool.ask(client, "labels"))
        self.pool.ask(client, "backward", carry(self.server.learn(smashed, labels)))

    def report(self, client: ClientId) -> dict[str, float]:
        """The server computed the loss, the client its methods' own terms."""
        terms: dict[str, float] = self.pool.ask(client, "report")
        return self.server.report(client) | terms


EXCHANGES: dict[str, type[Exchange]] = {"u_shaped": UShaped, "vanilla": Vanilla}
