"""The choreography of one mini-batch: who calls whom, and what crosses the wire in between.

Whatever a client, a method or the server throws in the middle of a step becomes one message that
says whose step it was, in which round, and on which leg.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.detectors import Sensor
from simsplit.engine.pool import ClientError, Pool
from simsplit.errors import RunFailedError, SimsplitError
from simsplit.methods.base import Phase
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.fused import FusedServer
from simsplit.parties.server import Server
from simsplit.wire import Wire


class Exchange(ABC):
    """One step of one client, or of a cohort, for a topology."""

    def __init__(self, pool: Pool, server: Server, wire: Wire) -> None:
        self.pool, self.server, self.wire = pool, server, wire
        self.fused = FusedServer(server)
        self.sensor: Sensor | None = None
        """What detectors see by; a tap of the wire."""
        self.phase = Phase("train", rounds=0)
        self.holder: ClientId | None = None
        """The client that trained last, and so holds what is handed from client to client."""
        self._making: tuple[ClientId, Leg] = (0, Leg.SMASHED)

    def take_step(self, client: ClientId, round_number: int, *, dropping: bool = False) -> None:
        """Let one client take one training step, or drop out in the middle of it."""
        if not dropping:
            self.train(client, round_number)
            return
        with self.explained(round_number):
            self.abandon(client, round_number)

    def train(self, client: ClientId, round_number: int) -> None:
        """Let one client take one training step."""
        with self.explained(round_number):
            for _ in self.stages(client, round_number):
                pass

    @abstractmethod
    def stages(self, client: ClientId, round_number: int) -> Iterator[Packet | Leg]:
        """The same, told as it goes: a packet that sets out, or the leg on which the other side is
        about to work. Whoever iterates decides when it goes on.
        """

    @abstractmethod
    def train_together(self, clients: Sequence[ClientId], round_number: int) -> None:
        """Let a cohort take one step on the concatenation of its batches."""

    @abstractmethod
    def abandon(self, client: ClientId, round_number: int) -> None:
        """Let a client drop out in the middle of a step: what it sent is counted, nobody learns."""

    @abstractmethod
    def report(self, client: ClientId) -> dict[str, float]:
        """The sums of a client's steps this round, from whoever computed its loss."""

    def reports(self, clients: Sequence[ClientId]) -> dict[ClientId, dict[str, float]]:
        """Those of several clients."""
        return self.pool.call("report", dict.fromkeys(clients, ()))

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

    def settle(self, clients: Sequence[ClientId]) -> None:
        """Bring what is handed round to all who are about to be evaluated with it, uncounted."""
        others = [client for client in clients if client != self.holder]
        if others and self.holder is not None:
            packet = self.pool.ask(self.holder, "hand_over", 0)
            if packet.tensors:
                self.pool.call("receive", dict.fromkeys(others, (packet,)))

    def evaluate(self, client: ClientId, split: str, round_number: int, number: int) -> Tensor:
        """A client's outputs for a held-out batch; the server sees no labels and nobody learns."""
        return self._answered(client, self.pool.ask(client, "probe", split, round_number, number))

    def go_on(self, client: ClientId, texts: Batch, round_number: int, number: int) -> Tensor:
        """What a client's model puts out where the texts' labels are no holes, likewise."""
        return self._answered(
            client, self.pool.ask(client, "begin_text", texts, round_number, number)
        )

    def _answered(self, client: ClientId, smashed: Packet) -> Tensor:
        with torch.no_grad():
            features = self.server.forward(self.wire.carry(smashed), training=False)
        outputs: Tensor = self.pool.ask(client, "predict", self.wire.carry(features))
        return outputs

    def _smash(self, client: ClientId, round_number: int, how: str = "forward") -> Packet:
        """A client's SMASHED, on its way."""
        self._making = client, Leg.SMASHED
        return self.wire.carry(self.pool.ask(client, how, round_number))

    @contextmanager
    def explained(self, round_number: int) -> Iterator[None]:
        """A context in which whatever is thrown is told with round, client, leg and cause."""
        try:
            yield
        except SimsplitError:
            raise
        except ClientError as error:  # which says where on a host it came from, if on one
            raise RunFailedError(f"round {round_number}, {error}") from error.__cause__ or error
        except Exception as error:
            client, leg = self._making
            where = f"round {round_number}, client {client}, leg {leg.value} (at the server)"
            raise RunFailedError(f"{where}: {type(error).__name__}: {error}") from error


class UShaped(Exchange):
    """The client holds head, tail and labels: four crossings."""

    def stages(self, client: ClientId, round_number: int) -> Iterator[Packet | Leg]:
        """SMASHED up, FEATURES down, FEATURES_GRAD up, SMASHED_GRAD down."""
        carry = self.wire.carry
        smashed = self._smash(client, round_number)
        yield smashed
        yield Leg.FEATURES
        self._making = client, Leg.FEATURES
        features = carry(self.server.forward(smashed, training=self.phase.gradients))
        yield features
        yield Leg.FEATURES_GRAD
        gradient = self.pool.ask(client, "finish", features)
        if gradient is None:  # a phase whose gradients stay home
            return
        yield carry(gradient)
        yield Leg.SMASHED_GRAD
        self._making = client, Leg.SMASHED_GRAD
        reply = carry(self.server.backward(gradient))
        yield reply
        self.pool.ask(client, "backward", reply)
        if self.phase.aside is not None:
            self._aside(client, round_number, self.phase.aside.phase)

    def _aside(self, client: ClientId, round_number: int, phase: Phase) -> None:
        """A step of another phase in between, whose gradients stay home."""
        smashed = self.pool.ask(client, "forward_aside", round_number)
        if smashed is None:
            return
        within, self.wire.phase = self.wire.phase, phase.name
        features = self.server.forward(self.wire.carry(smashed), training=False)
        self.pool.ask(client, "finish", self.wire.carry(features))
        self.wire.phase = within

    def train_together(self, clients: Sequence[ClientId], round_number: int) -> None:
        """The same four crossings, a cohort's at a time."""
        carry = self.wire.carry
        self._making = clients[0], Leg.SMASHED
        sent = self.pool.call("forward", dict.fromkeys(clients, (round_number,)))
        self._making = clients[0], Leg.FEATURES
        smashed = [carry(sent[client]) for client in clients]
        features = self.fused.forward(smashed, training=self.phase.gradients)
        self._making = clients[0], Leg.FEATURES_GRAD
        returned = self.pool.call("finish", {f.client: (carry(f),) for f in features})
        if returned[clients[0]] is None:
            return
        self._making = clients[0], Leg.SMASHED_GRAD
        replies = self.fused.backward([carry(returned[client]) for client in clients])
        self.pool.call("backward", {reply.client: (carry(reply),) for reply in replies})

    def abandon(self, client: ClientId, round_number: int) -> None:
        """SMASHED up, FEATURES down, and no answer."""
        smashed = self._smash(client, round_number, "abandon")
        self._making = client, Leg.FEATURES
        self.wire.carry(self.server.abandon(smashed, training=self.phase.gradients))

    def report(self, client: ClientId) -> dict[str, float]:
        """The client computed the loss."""
        row: dict[str, float] = self.pool.ask(client, "report")
        return row


class Vanilla(Exchange):
    """The server holds the tail and is sent the labels: three crossings."""

    def stages(self, client: ClientId, round_number: int) -> Iterator[Packet | Leg]:
        """SMASHED and LABELS up, SMASHED_GRAD down."""
        carry = self.wire.carry
        smashed = self._smash(client, round_number)
        yield smashed
        labels = carry(self.pool.ask(client, "labels"))
        yield labels
        yield Leg.SMASHED_GRAD
        self._making = client, Leg.SMASHED_GRAD
        reply = carry(self.server.learn(smashed, labels))
        yield reply
        self.pool.ask(client, "backward", reply)

    def train_together(self, clients: Sequence[ClientId], round_number: int) -> None:
        """The same crossings, a cohort's at a time."""
        carry = self.wire.carry
        self._making = clients[0], Leg.SMASHED
        sent = self.pool.call("forward", dict.fromkeys(clients, (round_number,)))
        smashed = [carry(sent[client]) for client in clients]
        self._making = clients[0], Leg.LABELS
        told = self.pool.call("labels", dict.fromkeys(clients, ()))
        self._making = clients[0], Leg.SMASHED_GRAD
        replies = self.fused.learn(smashed, [carry(told[client]) for client in clients])
        self.pool.call("backward", {reply.client: (carry(reply),) for reply in replies})

    def abandon(self, client: ClientId, round_number: int) -> None:
        """SMASHED up, and no labels: the server has nothing to learn from."""
        self._smash(client, round_number, "abandon")

    def report(self, client: ClientId) -> dict[str, float]:
        """The server computed the loss, the client its methods' own terms."""
        return self.reports([client])[client]

    def reports(self, clients: Sequence[ClientId]) -> dict[ClientId, dict[str, float]]:
        """Likewise."""
        terms = super().reports(clients)
        return {client: self.server.report(client) | own for client, own in terms.items()}


EXCHANGES: dict[str, type[Exchange]] = {"u_shaped": UShaped, "vanilla": Vanilla}
