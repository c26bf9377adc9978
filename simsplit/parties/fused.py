"""The trunk's half of a step that several clients take as one: SplitFed's fused variant.

The server's objective is the mean loss over all rows of the cohort, so a client with more rows
weighs more; what a client is sent back is the gradient of its own mean loss, as in any other step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simsplit.errors import ProtocolError
from simsplit.methods.base import Step
from simsplit.packets import Leg, Packet
from simsplit.parties.server import Server


@dataclass(slots=True)
class _Together:
    """The graph of a cohort's forward pass."""

    arrived: Tensor
    features: Tensor
    rows: list[int]
    steps: list[Step]
    """Each sender's, with what methods remember of what it sent."""

    @property
    def shares(self) -> list[float]:
        """Each client's part of the rows."""
        return [count / sum(self.rows) for count in self.rows]


class FusedServer:
    """A server that concatenates what a cohort sends and takes one step on it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._flight: _Together | None = None

    def forward(self, packets: Sequence[Packet], *, training: bool = True) -> list[Packet]:
        """All of the cohort's batches through the trunk as one: FEATURES for each."""
        flight = self._trunk(packets, training=training)
        parts = zip(packets, flight.features.split(flight.rows), flight.steps, strict=True)
        return [self._packed(packet, Leg.FEATURES, part.detach(), at) for packet, part, at in parts]

    def backward(self, packets: Sequence[Packet]) -> list[Packet]:
        """Carry all feature gradients back at once, learn, answer SMASHED_GRAD to each."""
        flight = self._landed()
        stack = self.server.stack
        messages = [stack.messages(Leg.FEATURES_GRAD, packet.tensors) for packet in packets]
        if len({len(each) for each in messages}) > 1:
            raise ProtocolError("a fused cohort's clients sent differing numbers of gradients")
        replies: list[tuple[Tensor, ...]] = [()] * len(packets)
        for index in range(len(messages[0])):
            grads = [
                self.server.trusted(
                    stack.unpack(Leg.FEATURES_GRAD, each[index], step) * share, packet
                )
                for each, packet, share, step in zip(
                    messages, packets, flight.shares, flight.steps, strict=True
                )
            ]
            flight.arrived.grad = None
            more = index < len(messages[0]) - 1
            flight.features.backward(torch.cat(grads), retain_graph=more)
            parts = self._replies(packets, flight)
            replies = [(*sent, *part.tensors) for sent, part in zip(replies, parts, strict=True)]
        self.server.learn_now()
        return [
            Packet(packet.client, Leg.SMASHED_GRAD, packet.round, packet.step, tensors)
            for packet, tensors in zip(packets, replies, strict=True)
        ]

    def learn(self, smashed: Sequence[Packet], labels: Sequence[Packet]) -> list[Packet]:
        """Vanilla cut: trunk, tail and the cohort's loss in one go; SMASHED_GRAD to each."""
        flight = self._trunk(smashed)
        targets = [tensor for packet in labels for tensor in packet.tensors]
        losses = self.server.losses(smashed, flight.features.split(flight.rows), targets)
        weighted = [
            self.server.trusted(loss * share, packet)
            for packet, loss, share in zip(smashed, losses, flight.shares, strict=True)
        ]
        torch.stack(weighted).sum().backward()
        replies = self._replies(smashed, self._landed())
        self.server.learn_now()
        return replies

    def _trunk(self, packets: Sequence[Packet], *, training: bool = True) -> _Together:
        server = self.server
        steps = [server.step(packet, training=training) for packet in packets]
        inputs = [
            server.stack.unpack(Leg.SMASHED, packet.tensors, step)
            for packet, step in zip(packets, steps, strict=True)
        ]
        arrived = torch.cat(inputs).detach().requires_grad_(training)
        rows = [len(each) for each in inputs]
        together = server.step(packets[0], training=training)
        senders = list(zip(steps, rows, strict=True))
        features = server.through_trunk(arrived, together, senders=senders)
        self._flight = _Together(arrived, features, rows, steps)
        return self._flight

    def _replies(self, packets: Sequence[Packet], flight: _Together) -> list[Packet]:
        grad = flight.arrived.grad
        assert grad is not None, "the trunk's output does not depend on its input"
        parts = zip(packets, grad.split(flight.rows), flight.shares, flight.steps, strict=True)
        return [
            self._packed(packet, Leg.SMASHED_GRAD, g / share, at) for packet, g, share, at in parts
        ]

    def _landed(self) -> _Together:
        if self._flight is None:
            raise ProtocolError("a cohort answers a forward pass that it never asked for")
        flight, self._flight = self._flight, None
        return flight

    def _packed(self, like: Packet, leg: Leg, tensor: Tensor, step: Step) -> Packet:
        tensors = self.server.stack.pack(leg, tensor, step)
        return Packet(like.client, leg, like.round, like.step, tensors)
