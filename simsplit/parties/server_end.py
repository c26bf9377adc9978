"""The server's end of a step: the trunk's half, for one client or for a cohort at once.

The batches of a cohort are one batch to the trunk (SplitFed's fused variant). The trunk learns from
the mean loss over all rows, so a client with more rows weighs more. A client gets back the gradient
of its own mean loss, as in any other step. One client is a cohort of one.

As at the client, two tables name the functions that take and make each leg; a topology's own end
fills them from the functions here.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from simsplit.errors import ProtocolError
from simsplit.machine import Autocast
from simsplit.methods.method import NoiseSource, Step
from simsplit.methods.stack import Stack
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.learner import Learner, Version
from simsplit.parties.sessions import Session, Sessions
from simsplit.parties.tally import Tally
from simsplit.seeds import Scope, isolate

Tensors = tuple[Tensor, ...]


@dataclass(slots=True)
class Member:
    """One client's part of a step on the server."""

    client: ClientId
    step: Step
    trust: float = 1.0
    """Weight of its gradients."""
    rows: int = 0
    """Number of its rows in the trunk's batch."""
    share: float = 1.0
    """Its share of the cohort's rows."""
    context: Tensors = ()
    """Inputs of all segments beside the activations, such as masks."""
    arrived: Tensor = field(default_factory=lambda: torch.empty(0))
    """The tensor that it sent, as a leaf that collects the trunk's gradient."""
    features: Tensor = field(default_factory=lambda: torch.empty(0))
    """The trunk's output for it, encoded, with its autograd graph."""
    grads: list[Tensor] = field(default_factory=list)
    """Gradients of what it sent, one for each of its gradient messages."""
    session: Session | None = None
    """The session that it sent a pass of, if it did."""

    def beside(self, segment: str, x: Tensor) -> tuple[Any, ...]:
        """Return a segment's inputs beside the activations: masks, and in a session its cache."""
        return self.context if self.session is None else self.session.beside(segment, x)

    def weigh(self, value: Tensor) -> Tensor:
        """Weight a gradient or loss of the client by its share and trust."""
        if self.share != 1.0:
            value = value * self.share
        return value if self.trust == 1.0 else value * self.trust


@dataclass(slots=True)
class Flight:
    """A step between two turns of the server."""

    members: list[Member]
    training: bool
    updates: int
    """Trunk updates before the forward pass."""
    version: Version | None = None
    """The weights' version, if they may change before the backward pass."""
    skips_trunk: bool = False
    """Whether what arrived goes back as if it were the trunk's output."""

    @property
    def features(self) -> list[Tensor]:
        """The features of every member, in order."""
        return [member.features for member in self.members]


Makes = Mapping[Leg, Callable[[Any, Flight], list[Tensors]]]
Takes = Mapping[Leg, Callable[[Any, Flight, Sequence[Packet]], None]]


class ServerEnd:
    """The server's side of a step, leg by leg."""

    makes: ClassVar[Makes] = {}
    """For each leg that the server sends: the function that makes its tensors, by member."""
    takes: ClassVar[Takes] = {}
    """For each leg that it receives: the function that processes one packet per member."""

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
        noise: NoiseSource = "cpu",
    ) -> None:
        """Hold the server's segments; `tail` is None if clients have it."""
        self.trunk, self.tail, self.stack, self.learner = trunk, tail, stack, learner
        self.loss = loss
        self.seed, self.device = seed, device
        self.autocast, self.noise = autocast, noise
        self.sessions = Sessions()
        self.entries: Mapping[ClientId, nn.Module] = {}
        """The trunk from a client's own cut on, where that is not the trunk's beginning."""
        self.tallies: dict[ClientId, Tally] = {}
        """Losses that the server computes, by client."""

    def open_step(self, packet: Packet, *, training: bool = True) -> Step:
        """Open the server's view of a packet's step, for its methods."""
        at = (packet.client, packet.round, packet.step, self.seed)
        return Step(*at, training=training, noise=self.noise)

    def through_trunk(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Lift what arrived, run the trunk on it as one batch, and encode each member's part."""
        self.learner.train(flight.training)
        members = flight.members
        for member, packet in zip(members, packets, strict=True):
            arrived = self.stack.unpack(Leg.SMASHED, packet.tensors, member.step)
            member.arrived = arrived.detach().requires_grad_(flight.training)
            member.context = self.stack.get_context(packet.tensors)
            if packet.session is not None:
                member.session = self.sessions.at(packet.client, packet.session, packet.position)
                member.session.extend(member.arrived, member.context)
        first = members[0].step
        # Only clients with one cut can make a common batch: `fused` refuses others.
        trunk: Callable[..., Tensor] = self.entries.get(first.client, self.trunk)
        if flight.skips_trunk:
            trunk = _skip_trunk
        grad = torch.enable_grad() if flight.training else torch.no_grad()
        with grad, self.autocast(), self._seed_dropout(first):
            # Only one client's batch can have masks or a session: `fused` refuses texts.
            if len(members) == 1:
                lifted = self.stack.lift(members[0].arrived, first)
                out = trunk(lifted, *members[0].beside("trunk", lifted))
                members[0].features = self.stack.encode(out, first)
                return
            rows = [len(member.arrived) for member in members]
            _share_out(members, rows)
            together = torch.cat([member.arrived for member in members])
            parts = trunk(self.stack.lift(together, first)).split(rows)
            for member, part in zip(members, parts, strict=True):
                member.features = self.stack.encode(part, member.step)

    def send_features(self, flight: Flight) -> list[Tensors]:
        """Pack the features of each member."""
        return [
            self.stack.pack(Leg.FEATURES, member.features.detach(), member.step)
            for member in flight.members
        ]

    def send_outputs(self, flight: Flight) -> list[Tensors]:
        """Pack the tail's outputs for each member, where the server has the tail."""
        with torch.no_grad(), self.autocast():
            outputs = self._through_tail(flight)
        pairs = zip(flight.members, outputs, strict=True)
        return [self.stack.pack(Leg.FEATURES, out.detach(), m.step) for m, out in pairs]

    def carry_back(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Run the backward pass of feature gradients through the trunk.

        Each of several messages gets its own reply; the trunk learns from their sum.
        """
        sent = [self.stack.split_messages(Leg.FEATURES_GRAD, packet.tensors) for packet in packets]
        if len({len(each) for each in sent}) > 1:
            raise ProtocolError("a fused cohort's clients sent differing numbers of gradients")
        for index in range(count := len(sent[0])):
            grads = [
                member.weigh(self.stack.unpack(Leg.FEATURES_GRAD, each[index], member.step))
                for member, each in zip(flight.members, sent, strict=True)
            ]
            for member in flight.members:
                member.arrived.grad = None  # the reply to a message is its gradient alone
            # All messages pass through one graph, which the last of them frees.
            more = index < count - 1
            torch.autograd.backward(flight.features, grads, retain_graph=more)
            self._note_grads(flight)

    def learn_labels(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Compute the loss with the server's tail, and run its backward pass through the trunk."""
        targets = [packet.tensors[0] for packet in packets]
        with self.autocast(), self._seed_dropout(flight.members[0].step, "tail"):
            outputs = self._through_tail(flight)
            losses = [self.loss(*pair) for pair in zip(outputs, targets, strict=True)]
        for member, loss, out, target in zip(flight.members, losses, outputs, targets, strict=True):
            self.tallies.setdefault(member.client, Tally()).add(loss, out, target)
        counted = [m.weigh(loss) for m, loss in zip(flight.members, losses, strict=True)]
        whole = counted[0] if len(counted) == 1 else torch.stack(counted).sum()
        whole.backward()
        self._note_grads(flight)

    def send_smashed_grads(self, flight: Flight) -> list[Tensors]:
        """Pack the gradients of each member's smashed data, one for each gradient message."""
        return self.pack_grads(Leg.SMASHED_GRAD, flight)

    def pack_grads(self, leg: Leg, flight: Flight) -> list[Tensors]:
        """Pack the gradients of what each member sent, as packets of `leg`."""
        return [
            tuple(
                chain.from_iterable(
                    self.stack.pack(leg, grad, member.step) for grad in member.grads
                )
            )
            for member in flight.members
        ]

    def _through_tail(self, flight: Flight) -> list[Tensor]:
        """Run the tail once over the features of all members."""
        if self.tail is None:
            raise ProtocolError("this server's topology leaves the tail to the clients")
        features = flight.features
        if len(features) == 1:
            return [self.tail(features[0], *flight.members[0].beside("tail", features[0]))]
        return list(self.tail(torch.cat(features)).split([len(each) for each in features]))

    def _note_grads(self, flight: Flight) -> None:
        for member in flight.members:
            grad = member.arrived.grad
            assert grad is not None, "the trunk's output does not depend on its input"
            # The trunk's loss is a mean over the cohort; the client's own loss is not.
            member.grads.append(grad if member.share == 1.0 else grad / member.share)

    def _seed_dropout(self, step: Step, *segment: str) -> AbstractContextManager[object]:
        """Open a context in which dropout draws from this step's own random stream."""
        if not (self.learner.random and step.training):
            return nullcontext()
        scope: tuple[Scope, ...] = ("dropout", *segment, step.client, step.round, step.number)
        return isolate(self.seed, *scope, device=self.device)


def _skip_trunk(x: Tensor, *context: Tensor) -> Tensor:
    """Return the input, in place of a trunk."""
    return x


def _share_out(members: Sequence[Member], rows: Sequence[int]) -> None:
    for member, count in zip(members, rows, strict=True):
        member.rows, member.share = count, count / sum(rows)
