"""The server's side of the cut: the shared trunk, the lift, and under a vanilla cut the tail.

It sees packets and its own parameters, nothing else. Several clients may be in flight: what each
one's backward pass needs is kept by client.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from simsplit.errors import ProtocolError
from simsplit.methods.base import Phase, Step
from simsplit.methods.stack import Stack
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.learner import Learner, step_together
from simsplit.parties.precision import Autocast
from simsplit.parties.tally import Tally
from simsplit.seeds import isolated


@dataclass(slots=True)
class _InFlight:
    """A client's graph on the server between its two crossings."""

    step: Step
    arrived: Tensor
    features: Tensor


class Server:
    """The trunk's half of every step."""

    def __init__(
        self,
        trunk: nn.Module,
        tail: nn.Module | None,
        stack: Stack,
        learner: Learner,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        seed: int,
        device: torch.device,
        autocast: Autocast = nullcontext,
    ) -> None:
        self.trunk, self.tail, self.stack, self.learner = trunk, tail, stack, learner
        self.loss = loss
        self.seed = seed
        self.device = device
        self.autocast = autocast
        self.tallies: dict[ClientId, Tally] = {}
        self._in_flight: dict[ClientId, _InFlight] = {}

    def announce(self) -> Sequence[tuple[Tensor, ...]]:
        """What every client must hear before training."""
        return self.stack.announce()

    def enter(self, phase: Phase, lr_factor: float) -> None:
        """Start a round of `phase`."""
        self.learner.learn(phase.learns)
        self.learner.set_lr_factor(lr_factor)

    def forward(self, packet: Packet, *, training: bool = True) -> Packet:
        """Lift what arrived and take it through the trunk: FEATURES."""
        step = Step(packet.client, packet.round, packet.step, self.seed, training=training)
        features = self._trunk(packet, step)
        if not training and self.tail is not None:
            with torch.no_grad(), self.autocast():
                features = self.tail(features)
        return self._packet(
            packet, Leg.FEATURES, self.stack.pack(Leg.FEATURES, features.detach(), step)
        )

    def backward(self, packet: Packet) -> Packet:
        """Carry the feature gradient back through the trunk, learn, answer SMASHED_GRAD.

        Of several messages each gets its own reply, and the trunk learns from their sum.
        """
        flight = self._landed(packet.client)
        messages = self.stack.messages(Leg.FEATURES_GRAD, packet.tensors)
        replies: list[Tensor] = []
        for index, message in enumerate(messages):
            grad = self.stack.unpack(Leg.FEATURES_GRAD, message, flight.step)
            flight.arrived.grad = None
            flight.features.backward(grad, retain_graph=index < len(messages) - 1)
            replies += self._reply(flight)
        step_together([self.learner])
        return self._packet(packet, Leg.SMASHED_GRAD, tuple(replies))

    def learn(self, smashed: Packet, labels: Packet) -> Packet:
        """Vanilla cut: trunk, tail and loss in one go; answers SMASHED_GRAD."""
        step = Step(smashed.client, smashed.round, smashed.step, self.seed)
        features = self._trunk(smashed, step)
        if self.tail is None:
            raise ProtocolError("under a U-shaped cut the client holds the tail")
        (targets,) = labels.tensors
        with self.autocast():
            outputs = self.tail(features)
            loss = self.loss(outputs, targets)
        self._tally(smashed.client).add(loss, outputs, targets)
        loss.backward()
        reply = self._reply(self._landed(smashed.client))
        step_together([self.learner])
        return self._packet(smashed, Leg.SMASHED_GRAD, reply)

    def report(self, client: ClientId) -> dict[str, float]:
        """Vanilla cut: the sums of a client's steps this round."""
        return self._tally(client).read()

    def _trunk(self, packet: Packet, step: Step) -> Tensor:
        self.learner.train(step.training)
        arrived = self.stack.unpack(Leg.SMASHED, packet.tensors, step)
        arrived = arrived.detach().requires_grad_(step.training)
        grad = torch.enable_grad() if step.training else torch.no_grad()
        with grad, self.autocast(), self._noise(step):
            features = self.stack.encode(self.trunk(self.stack.lift(arrived, step)), step)
        if step.training:
            self._in_flight[packet.client] = _InFlight(step, arrived, features)
        return features

    def _reply(self, flight: _InFlight) -> tuple[Tensor, ...]:
        grad = flight.arrived.grad
        assert grad is not None, "the trunk's output does not depend on its input"
        return self.stack.pack(Leg.SMASHED_GRAD, grad, flight.step)

    def _landed(self, client: ClientId) -> _InFlight:
        try:
            return self._in_flight.pop(client)
        except KeyError:
            raise ProtocolError(
                f"client {client} answers a forward pass it never asked for"
            ) from None

    def _tally(self, client: ClientId) -> Tally:
        return self.tallies.setdefault(client, Tally())

    def _noise(self, step: Step) -> AbstractContextManager[object]:
        if not (self.learner.random and step.training):
            return nullcontext()
        scope = ("dropout", step.client, step.round, step.number)
        return isolated(self.seed, *scope, device=self.device)

    def _packet(self, like: Packet, leg: Leg, tensors: tuple[Tensor, ...]) -> Packet:
        return Packet(like.client, leg, like.round, like.step, tensors)
