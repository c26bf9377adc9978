"""The server's side of the cut: the shared trunk, the lift, and under a vanilla cut the tail.

It sees packets and its own parameters, nothing else. Several clients may be in flight: what each
one's backward pass needs is kept by client.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
from simsplit.parties.versions import Version, Versions
from simsplit.seeds import isolated


@dataclass(slots=True)
class _InFlight:
    """A client's graph on the server between its two crossings."""

    updates: int
    """Of the trunk, before the forward pass."""
    step: Step
    arrived: Tensor
    features: Tensor
    version: Version | None = None
    """Of the weights, where they may change before the backward pass."""


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
        self.updates = 0
        """Steps that the trunk has taken since the run, or its resumption, began."""
        self.trust: Mapping[ClientId, float] = {}
        """What a client's gradients count, where it is not 1."""
        self._versions: Versions | None = None
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
        step = self.step(packet, training=training)
        features = self._trunk(packet, step)
        if not training and self.tail is not None:
            with torch.no_grad(), self.autocast():
                features = self.tail(features, *self.stack.context(packet.tensors))
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
            grad = self.trusted(self.stack.unpack(Leg.FEATURES_GRAD, message, flight.step), packet)
            flight.arrived.grad = None
            flight.features.backward(grad, retain_graph=index < len(messages) - 1)
            replies += self._reply(flight)
        if flight.version is not None and self._versions is not None:
            self._versions.hand_over(flight.version)
        self.learn_now()
        return self._packet(packet, Leg.SMASHED_GRAD, tuple(replies))

    def trusted(self, value: Tensor, packet: Packet) -> Tensor:
        """A gradient or a loss, as much of it as its sender is trusted."""
        return value * self.trust[packet.client] if packet.client in self.trust else value

    @contextmanager
    def late_gradients(self) -> Iterator[None]:
        """A block in which the trunk may learn between a client's forward and backward pass."""
        self._versions = Versions(self.learner)
        yield
        self._versions = None

    def abandon(self, packet: Packet, *, training: bool = True) -> Packet:
        """A forward pass for a client that will not answer: no trace of it stays in the trunk."""
        with self.learner.untouched():
            features = self.forward(packet, training=training)
        self._in_flight.pop(packet.client, None)
        return features

    def staleness(self, client: ClientId) -> int:
        """How many steps the trunk has taken since a client's forward pass; 0 outside of a step."""
        flight = self._in_flight.get(client)
        return 0 if flight is None else self.updates - flight.updates

    def learn(self, smashed: Packet, labels: Packet) -> Packet:
        """Vanilla cut: trunk, tail and loss in one go; answers SMASHED_GRAD."""
        features = self._trunk(smashed, self.step(smashed))
        (loss,) = self.losses([smashed], [features], labels.tensors)
        self.trusted(loss, smashed).backward()
        reply = self._reply(self._landed(smashed.client))
        self.learn_now()
        return self._packet(smashed, Leg.SMASHED_GRAD, reply)

    def losses(
        self, senders: Sequence[Packet], features: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> list[Tensor]:
        """Vanilla cut: each sender's loss, tallied; one pass of the tail over all features."""
        if self.tail is None:
            raise ProtocolError("under a U-shaped cut the client holds the tail")
        with self.autocast():
            together = features[0] if len(features) == 1 else torch.cat(tuple(features))
            # of several senders there is none: images have no context
            outputs = self.tail(together, *self.stack.context(senders[0].tensors))
            outputs = outputs.split([len(part) for part in features])
            losses = [self.loss(*pair) for pair in zip(outputs, targets, strict=True)]
        for sender, loss, out, target in zip(senders, losses, outputs, targets, strict=True):
            self._tally(sender.client).add(loss, out, target)
        return losses

    def report(self, client: ClientId) -> dict[str, float]:
        """Vanilla cut: the sums of a client's steps this round."""
        return self._tally(client).read()

    def _trunk(self, packet: Packet, step: Step) -> Tensor:
        arrived = self.stack.unpack(Leg.SMASHED, packet.tensors, step)
        arrived = arrived.detach().requires_grad_(step.training)
        context = self.stack.context(packet.tensors)
        if not step.training:
            return self.through_trunk(arrived, step, context)
        # under a vanilla cut forward and backward are one
        versions = self._versions if self.tail is None else None
        with versions.after(self.updates) if versions else nullcontext() as version:
            features = self.through_trunk(arrived, step, context)
        flight = _InFlight(self.updates, step, arrived, features, version)
        self._in_flight[packet.client] = flight
        return features

    def through_trunk(
        self,
        arrived: Tensor,
        step: Step,
        context: tuple[Tensor, ...] = (),
        senders: Sequence[tuple[Step, int]] = (),
    ) -> Tensor:
        """Lift, trunk, and the methods of the feature leg: of several senders' rows each one's by
        itself, since methods remember what they send to whom.
        """
        self.learner.train(step.training)
        grad = torch.enable_grad() if step.training else torch.no_grad()
        with grad, self.autocast(), self._noise(step):
            out: Tensor = self.trunk(self.stack.lift(arrived, step), *context)
            if not senders:
                return self.stack.encode(out, step)
            parts = out.split([rows for _, rows in senders])
            pairs = zip(parts, senders, strict=True)
            return torch.cat([self.stack.encode(part, own) for part, (own, _) in pairs])

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

    def learn_now(self) -> None:
        """Take the optimizer's step."""
        step_together([self.learner])
        self.updates += 1

    def _tally(self, client: ClientId) -> Tally:
        return self.tallies.setdefault(client, Tally())

    def _noise(self, step: Step) -> AbstractContextManager[object]:
        if not (self.learner.random and step.training):
            return nullcontext()
        scope = ("dropout", step.client, step.round, step.number)
        return isolated(self.seed, *scope, device=self.device)

    def step(self, packet: Packet, *, training: bool = True) -> Step:
        """The server's view of the step that a packet belongs to."""
        return Step(packet.client, packet.round, packet.step, self.seed, training=training)

    def _packet(self, like: Packet, leg: Leg, tensors: tuple[Tensor, ...]) -> Packet:
        return Packet(like.client, leg, like.round, like.step, tensors)
