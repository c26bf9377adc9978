"""The server's end of a step: the trunk's half, for one client or for a cohort at once.

The batches of a cohort are one batch to the trunk (SplitFed's fused variant). The trunk learns from
the mean loss over all rows, so a client with more rows weighs more. A client gets back the gradient
of its own mean loss, as in any other step. One client is a cohort of one.

As at the client, two tables name the functions that take and make each leg; a topology's own end
may have others.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from simsplit.errors import ProtocolError
from simsplit.legs import ClientId, Leg
from simsplit.machine import Autocast
from simsplit.methods.method import NoiseSource, Step
from simsplit.methods.stack import Stack
from simsplit.packets import Packet
from simsplit.parties.learner import Learner, Version
from simsplit.parties.sessions import Session, Sessions
from simsplit.parties.stacked_trunks import StackedTrunks
from simsplit.parties.tally import Tally
from simsplit.seeds import Scope, isolate

Tensors = tuple[Tensor, ...]


_NOTHING = torch.empty(0)
"""Stands for a member's tensors before there are any; nothing writes to it."""


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
    arrived: Tensor = field(default=_NOTHING)
    """The tensor that it sent, as a leaf that collects the trunk's gradient."""
    features: Tensor = field(default=_NOTHING)
    """The trunk's output for it, encoded, with its autograd graph."""
    grads: list[Tensor] = field(default_factory=list)
    """Gradients of what it sent, one for each of its gradient messages."""
    session: Session | None = None
    """The session that it sent a pass of, if it did."""
    opening: Packet | None = None
    """The packet that it sent first, without its tensors."""

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
    readers: list[Member]
    """The members that get the trunk's output: all, but for parties that have no labels."""
    training: bool
    updates: int
    """Trunk updates before the forward pass."""
    version: Version | None = None
    """The weights' version, if they may change before the backward pass."""
    skips_trunk: bool = False
    """Whether what arrived goes back as if it were the trunk's output."""
    together: Tensor | None = None
    """The rows of a cohort as one leaf; None: each member has a leaf of its own."""
    made: Tensor | None = None
    """The trunk's output for these rows, if members' features are its parts as they are."""
    rows: Sequence[int] = ()
    """The rows of each member, if methods take the rows of all of them as one; `made` is then
    encoded."""
    grads: list[Tensor] = field(default_factory=list)
    """The gradients of `together` in that case, one for each gradient message."""

    @property
    def step(self) -> Step:
        """The step of the first member, or of all members whose rows are taken as one."""
        return self.members[0].step

    @property
    def features(self) -> list[Tensor]:
        """The features of every reader, in order."""
        return [member.features for member in self.readers]

    @property
    def leaves(self) -> list[Tensor]:
        """Return what arrived, as the leaves that collect the trunk's gradient."""
        if self.together is not None:
            return [self.together]
        return [member.arrived for member in self.members]


Makes = Mapping[Leg, Callable[[Any, Flight], list[Tensors]]]
Takes = Mapping[Leg, Callable[[Any, Flight, Sequence[Packet]], None]]


@dataclass(eq=False)
class ServerEnd:
    """The server's side of a step, leg by leg."""

    to_readers: ClassVar[frozenset[Leg]] = frozenset()
    """The legs on which readers alone are sent something; on all others every member is."""

    trunk: nn.Module
    tail: nn.Module | None
    """None if clients have it."""
    stack: Stack
    learner: Learner
    loss: Callable[[Tensor, Tensor], Tensor]
    _: KW_ONLY
    seed: int
    device: torch.device
    autocast: Autocast = nullcontext
    noise: NoiseSource = "cpu"
    sessions: Sessions = field(default_factory=Sessions, init=False)
    entries: Mapping[ClientId, nn.Module] = field(default_factory=dict, init=False)
    """The trunk from a client's own cut on, where that is not the trunk's beginning."""
    tallies: dict[ClientId, Tally] = field(default_factory=dict, init=False)
    """Losses that the server computes, by client."""
    joins_rows: bool = field(default=False, init=False)
    """Whether methods take the rows of a cohort as one, where they can: clients are stacked."""
    copies: StackedTrunks | None = field(default=None, init=False)
    """The copies of the trunk and tail that clients now train against, if these are stacked."""

    def choose_readers(self, members: list[Member]) -> list[Member]:
        """Return the members that get the trunk's output."""
        return members

    @property
    def takes_rows(self) -> bool:
        """Whether the rows of a cohort's members can go through the methods as one."""
        known = self.takes.get(Leg.SMASHED) is ServerEnd.through_trunk
        return self.joins_rows and self.stack.joins_rows and known

    def get_client_stack(self, client: ClientId) -> Stack:
        """Return the server's side of a client's methods."""
        del client
        return self.stack

    def state(self) -> dict[str, Tensor]:
        """Return the tensors on which later steps depend, beside those that learn."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""

    def open_step(self, packet: Packet, *, training: bool = True) -> Step:
        """Open the server's view of a packet's step, for its methods."""
        at = (packet.client, packet.round, packet.step, self.seed)
        return Step(*at, training=training, noise=self.noise)

    def through_trunk(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Lift what arrived, run the trunk on it as one batch, and encode each member's part."""
        self.learner.train(flight.training)
        if flight.rows:
            self._take_rows(flight, packets)
            return
        members, copies = flight.members, self.copies
        apart = len(members) == 1 or copies is not None
        for member, packet in zip(members, packets, strict=True):
            arrived = self.stack.unpack(Leg.SMASHED, packet.tensors, member.step).detach()
            # A leaf for each member of a cohort would cost more than a small trunk.
            member.arrived = arrived.requires_grad_(flight.training) if apart else arrived
            member.context = self.stack.get_context(packet.tensors)
            if packet.session is not None:
                member.session = self.sessions.at(packet.client, packet.session, packet.position)
                member.session.extend(member.arrived, member.context)
        first = members[0].step
        # Only clients with one cut can make a common batch: `fused` refuses others.
        trunk: Callable[..., Tensor] = self.entries.get(first.client, self.trunk)
        grad = torch.enable_grad() if flight.training else torch.no_grad()
        with grad, self.autocast(), self._seed_dropout(first):
            if copies is not None:
                self._through_copies(copies, members)
                return
            # Only one client's batch can have masks or a session: `fused` refuses texts.
            if len(members) == 1:
                lifted = self.stack.lift(members[0].arrived, first)
                beside = members[0].beside("trunk", lifted)
                out = lifted if flight.skips_trunk else trunk(lifted, *beside)
                members[0].features = self.stack.encode(out, first)
                return
            rows = [len(member.arrived) for member in members]
            _count_rows(members, rows, shared=True)
            together = torch.cat([member.arrived for member in members])
            flight.together = together.requires_grad_(flight.training)
            made = trunk(self.stack.lift(together, first))
            flight.made = None if self.stack.features else made
            parts = made.split(rows)
            for member, part in zip(members, parts, strict=True):
                member.features = self.stack.encode(part, member.step)

    def send_features(self, flight: Flight) -> list[Tensors]:
        """Pack the features of each reader."""
        if flight.rows and flight.made is not None:
            made = flight.made.detach()
            return self.stack.pack_rows(Leg.FEATURES, made, flight.rows, flight.step)
        return [
            self.get_client_stack(m.client).pack(Leg.FEATURES, m.features.detach(), m.step)
            for m in flight.readers
        ]

    def send_outputs(self, flight: Flight) -> list[Tensors]:
        """Pack the tail's outputs for each reader, where the server has the tail."""
        with torch.no_grad(), self.autocast():
            outputs = self._through_tail(flight)
        if flight.rows:
            return self.stack.pack_rows(
                Leg.FEATURES, torch.cat(outputs).detach(), flight.rows, flight.step
            )
        return [
            self.get_client_stack(m.client).pack(Leg.FEATURES, out.detach(), m.step)
            for m, out in zip(flight.readers, outputs, strict=True)
        ]

    def carry_back(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Run the backward pass of feature gradients through the trunk.

        Each of several messages gets its own reply; the trunk learns from their sum.
        """
        readers = flight.readers
        sent = [
            self.get_client_stack(packet.client).split_messages(Leg.FEATURES_GRAD, packet.tensors)
            for packet in packets
        ]
        if len({len(each) for each in sent}) > 1:
            raise ProtocolError("a fused cohort's clients sent differing numbers of gradients")
        for index in range(count := len(sent[0])):
            parts = [each[index] for each in sent]
            for leaf in flight.leaves:
                leaf.grad = None  # the reply to a message is its gradient alone
            # All messages pass through one graph, which the last of them frees.
            more = index < count - 1
            if flight.rows:
                grads = [self.stack.unpack_rows(Leg.FEATURES_GRAD, parts, flight.step)]
            else:
                grads = [
                    self.get_client_stack(m.client).unpack(Leg.FEATURES_GRAD, part, m.step)
                    for m, part in zip(readers, parts, strict=True)
                ]
            if flight.made is None:
                roots = flight.features
                weighed = [m.weigh(grad) for m, grad in zip(readers, grads, strict=True)]
            else:
                roots = [flight.made]
                rows = grads[0] if flight.rows else torch.cat(grads)
                weighed = [_scale_rows(flight, rows, Member.weigh)]
            torch.autograd.backward(roots, weighed, retain_graph=more)
            self._note_grads(flight)

    def learn_labels(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Compute the loss with the server's tail, and run its backward pass through the trunk."""
        targets, readers = [packet.tensors[0] for packet in packets], flight.readers
        with self.autocast(), self._seed_dropout(readers[0].step, "tail"):
            outputs = self._through_tail(flight)
            losses = [self.loss(*pair) for pair in zip(outputs, targets, strict=True)]
        for member, loss, out, target in zip(readers, losses, outputs, targets, strict=True):
            self.tallies.setdefault(member.client, Tally()).add(loss, out, target)
        counted = [m.weigh(loss) for m, loss in zip(readers, losses, strict=True)]
        whole = counted[0] if len(counted) == 1 else torch.stack(counted).sum()
        whole.backward()
        self._note_grads(flight)

    def send_smashed_grads(self, flight: Flight) -> list[Tensors]:
        """Pack the gradients of each member's smashed data, one for each gradient message."""
        return self.pack_grads(Leg.SMASHED_GRAD, flight)

    def pack_grads(self, leg: Leg, flight: Flight) -> list[Tensors]:
        """Pack the gradients of what each member sent, as packets of `leg`."""
        if flight.rows:
            messages = (
                self.stack.pack_rows(leg, grad, flight.rows, flight.step) for grad in flight.grads
            )
            return [tuple(chain.from_iterable(each)) for each in zip(*messages, strict=True)]
        return [
            tuple(
                chain.from_iterable(
                    self.get_client_stack(m.client).pack(leg, grad, m.step) for grad in m.grads
                )
            )
            for m in flight.members
        ]

    def _take_rows(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Run the trunk on the rows of all members, which methods take as one too."""
        members, step, copies = flight.members, flight.step, self.copies
        _count_rows(members, flight.rows, shared=copies is None)
        sent = [packet.tensors for packet in packets]
        arrived = self.stack.unpack_rows(Leg.SMASHED, sent, step).detach()
        flight.together = arrived.requires_grad_(flight.training)
        with self.autocast(), self._seed_dropout(step):
            lifted = self.stack.lift(arrived, step)
            if copies is None:
                made = self.trunk(lifted)
            else:
                copies.open([member.client for member in members], flight.rows)
                made = copies.run("trunk", lifted)
            flight.made = self.stack.encode(made, step)

    def _through_copies(self, copies: StackedTrunks, members: Sequence[Member]) -> None:
        """Run each member's copy of the trunk on its rows, which are lifted in its own step."""
        lifted = [self.stack.lift(member.arrived, member.step) for member in members]
        lengths = [x.shape[1] for x in lifted] if copies.takes_texts else ()
        copies.open([member.client for member in members], [len(x) for x in lifted], lengths)
        for member, made in zip(members, copies.run_each("trunk", lifted), strict=True):
            member.features = self.stack.encode(made, member.step)

    def _through_tail(self, flight: Flight) -> list[Tensor]:
        """Run the tail once over the features of all members."""
        if self.tail is None:
            raise ProtocolError("this server's topology leaves the tail to the clients")
        if flight.rows and flight.made is not None:
            run = partial(self.copies.run, "tail") if self.copies is not None else self.tail
            outputs: Tensor = run(flight.made)
            return list(outputs.split([*flight.rows]))
        features = flight.features
        if self.copies is not None:
            return self.copies.run_each("tail", features)
        if len(features) == 1:
            return [self.tail(features[0], *flight.readers[0].beside("tail", features[0]))]
        return list(self.tail(torch.cat(features)).split([len(each) for each in features]))

    def _note_grads(self, flight: Flight) -> None:
        grads = [leaf.grad for leaf in flight.leaves if leaf.grad is not None]
        assert len(grads) == len(flight.leaves), "the trunk's output depends on its input"
        members = flight.members
        if flight.rows:
            # The trunk's loss is a mean over the cohort; the client's own loss is not.
            flight.grads.append(_scale_rows(flight, grads[0], _undo_share))
            return
        if flight.together is not None:
            grads = list(grads[0].split([member.rows for member in members]))
        for member, grad in zip(members, grads, strict=True):
            # The trunk's loss is a mean over the cohort; the client's own loss is not.
            member.grads.append(_undo_share(member, grad))

    def _seed_dropout(self, step: Step, *segment: str) -> AbstractContextManager[object]:
        """Open a context in which dropout draws from this step's own random stream."""
        if not (self.learner.may_draw and step.training):
            return nullcontext()
        scope: tuple[Scope, ...] = ("dropout", *segment, step.client, step.round, step.number)
        return isolate(self.seed, *scope, device=self.device)

    makes: ClassVar[Makes] = {
        Leg.FEATURES: send_features,
        Leg.SMASHED_GRAD: send_smashed_grads,
    }
    """For each leg that the server may send: the function that makes its tensors, by member."""
    takes: ClassVar[Takes] = {
        Leg.SMASHED: through_trunk,
        Leg.LABELS: learn_labels,
        Leg.FEATURES_GRAD: carry_back,
    }
    """For each leg that it may receive: the function that processes one packet per member."""


def _scale_rows(flight: Flight, rows: Tensor, scale: Callable[[Member, Tensor], Tensor]) -> Tensor:
    """Scale each member's rows."""
    members = flight.members
    # Weights are mostly equal: then one product serves all rows, with the same bits.
    if len({(member.share, member.trust) for member in members}) == 1:
        return scale(members[0], rows)
    pairs = zip(members, rows.split([member.rows for member in members]), strict=True)
    return torch.cat([scale(member, part) for member, part in pairs])


def _undo_share(member: Member, grad: Tensor) -> Tensor:
    return grad if member.share == 1.0 else grad / member.share


def _count_rows(members: Sequence[Member], rows: Sequence[int], *, shared: bool) -> None:
    """Note each member's rows; in a shared trunk its part of them is its weight."""
    total = sum(rows)
    for member, count in zip(members, rows, strict=True):
        member.rows, member.share = count, count / total if shared else 1.0
