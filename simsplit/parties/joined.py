"""The server's part of a step that several parties take together, each with columns of its own.

Every party sends what its head puts out for the same samples. The server joins these, runs the
trunk once, and returns to each party the gradient of what it has sent. Only the party that has the
labels gets the features, or sends the labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from simsplit.data.samples import widen_labels
from simsplit.legs import ClientId, Leg
from simsplit.methods.stack import Stack
from simsplit.models.joins import Join, join_parts
from simsplit.packets import Packet
from simsplit.parties.server_end import Flight, Member, ServerEnd, Takes
from simsplit.parties.tally import Tally
from simsplit.states import select_below

Shape = tuple[int, ...]


class Memory:
    """What each party's head last put out for each sample, as the server has read it."""

    def __init__(
        self, rows_of: Callable[[int], Tensor], count: int, shapes: Mapping[ClientId, Shape]
    ) -> None:
        """Remember nothing of `count` samples; `rows_of` returns those of a step of training."""
        self.rows_of = rows_of
        self.kept = {party: torch.zeros(count, *shape) for party, shape in shapes.items()}

    def fill(self, lifted: dict[ClientId, Tensor], number: int) -> None:
        """Keep what parties have sent in a step, and add what the others sent before."""
        rows = self.rows_of(number)
        some = next(iter(lifted.values()))
        for party, kept in self.kept.items():
            if party in lifted:
                kept[rows] = lifted[party].detach().to(kept)
            else:
                lifted[party] = kept[rows].to(some)


@dataclass
class Joining:
    """Who the parties are, and how the server joins what they send."""

    how: Join
    reader: ClientId
    """The party that has the labels."""
    stacks: Mapping[ClientId, Stack]
    """The server's side of each party's methods."""
    shapes: Mapping[ClientId, Shape]
    """The shape of what each party's head puts out for a sample."""
    muted: set[ClientId] = field(default_factory=set)
    """Parties whose columns count as zeros, though they send something."""
    memory: "Memory | None" = None
    """What each party last sent of each sample, if that stands for a party that sends nothing."""

    def join(self, lifted: dict[ClientId, Tensor], number: int | None) -> Tensor:
        """Join the outputs of all heads in step `number` of training; None: of none.

        Zeros, or what is remembered, stand for a party that sent none.
        """
        some = next(iter(lifted.values()))
        if self.memory is not None and number is not None:
            self.memory.fill(lifted, number)
        parts = [
            lifted[party] if party in lifted else some.new_zeros(len(some), *shape)
            for party, shape in self.shapes.items()
        ]
        return join_parts(parts, self.how)

    def join_masks(self, masks: Mapping[ClientId, Tensor]) -> tuple[Tensor, ...]:
        """Join the masks of the parties' texts; none where samples are no texts.

        The tokens of a party that sent none, or whose columns count as zeros, are as padding.
        """
        if not masks:
            return ()
        some = next(iter(masks.values()))
        parts = [
            masks[party] if party in masks else some.new_zeros(len(some), shape[0])
            for party, shape in self.shapes.items()
        ]
        pairs = zip(self.shapes, parts, strict=True)
        joined = torch.cat([part & (party not in self.muted) for party, part in pairs], dim=1)
        # Attention to nothing at all would be NaN.
        joined[:, 0] |= ~joined.any(1)
        return (joined,)


class JoinedEnd(ServerEnd):
    """The server's end of a topology whose clients are parties."""

    to_readers = frozenset({Leg.FEATURES})
    joining: Joining

    def choose_readers(self, members: list[Member]) -> list[Member]:
        """Return the party that has the labels."""
        return [member for member in members if member.client == self.joining.reader]

    def get_client_stack(self, client: ClientId) -> Stack:
        """Return the server's side of a party's methods."""
        return self.joining.stacks[client]

    def through_trunk(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Lift and join what the parties sent, and run the trunk on it."""
        self.learner.train(flight.training)
        (reader,) = flight.readers
        grad = torch.enable_grad() if flight.training else torch.no_grad()
        for member, packet in zip(flight.members, packets, strict=True):
            stack = self.get_client_stack(member.client)
            arrived = stack.unpack(Leg.SMASHED, packet.tensors, member.step)
            member.arrived = arrived.detach().requires_grad_(flight.training)
            member.context = stack.get_context(packet.tensors)
        trunk: Callable[..., Tensor] = self.trunk
        with grad, self.autocast(), self._seed_dropout(reader.step):
            lifted = {member.client: self._lift(member) for member in flight.members}
            self._count(flight)
            number = reader.step.number if flight.training else None
            masks = {m.client: mask for m in flight.members for mask in m.context}
            joined = self.joining.join(lifted, number)
            out = trunk(joined, *self.joining.join_masks(masks))
            reader.features = self.get_client_stack(reader.client).encode(out, reader.step)

    def learn_labels(self, flight: Flight, packets: Sequence[Packet]) -> None:
        """Learn from the labels of one party, whose texts are a part of what the trunk reads."""
        features = flight.readers[0].features
        widened = [
            packet.with_tensors((widen_labels(packet.tensors[0], features),)) for packet in packets
        ]
        super().learn_labels(flight, widened)

    def state(self) -> dict[str, Tensor]:
        """Return what is remembered of absent parties, and by the methods of each but the first.

        Those of the first are the server's `stack`.
        """
        kept = {} if self.joining.memory is None else self.joining.memory.kept
        state = {str(party): tensor for party, tensor in kept.items()}
        for party, stack in self._list_further_stacks():
            state |= {f"methods/{party}/{name}": t for name, t in stack.state().items()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        kept = {} if self.joining.memory is None else self.joining.memory.kept
        for party, tensor in kept.items():
            tensor.copy_(state[str(party)])
        for party, stack in self._list_further_stacks():
            stack.load(select_below(state, f"methods/{party}/"))

    def _list_further_stacks(self) -> list[tuple[ClientId, Stack]]:
        return [pair for pair in self.joining.stacks.items() if pair[1] is not self.stack]

    def _count(self, flight: Flight) -> None:
        """Count the steps of parties that do not know their loss."""
        for member in flight.members if flight.training else ():
            if member.client != self.joining.reader:
                self.tallies.setdefault(member.client, Tally()).add_rows(len(member.arrived))

    def _lift(self, member: Member) -> Tensor:
        lifted = self.get_client_stack(member.client).lift(member.arrived, member.step)
        # A factor of 0 keeps the graph, so that the party gets gradients, which are 0.
        return lifted * 0.0 if member.client in self.joining.muted else lifted

    takes: ClassVar[Takes] = {
        **ServerEnd.takes,
        Leg.SMASHED: through_trunk,
        Leg.LABELS: learn_labels,
    }
