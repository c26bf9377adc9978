"""The server's side of the cut: it takes its turns of a step with an end, and learns from them.

It sees packets and its own parameters, nothing else. Several clients may be in flight, so what the
backward pass of each needs is kept by client.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal

from torch import Tensor

from simsplit.errors import ProtocolError
from simsplit.legs import ClientId, Leg
from simsplit.packets import Packet, Packets
from simsplit.parties.learner import Versions, step_together
from simsplit.parties.server_end import Flight, Member, ServerEnd
from simsplit.parties.stacked_trunks import StackedTrunks
from simsplit.phases import Phase
from simsplit.protocol import Turn

Manner = Literal["train", "gather", "infer", "skip", "abandon"]
"""train: the trunk learns. gather: as train, but gradients wait for a later step. infer: nothing
learns. skip: nothing learns, and what arrived goes back without the trunk. abandon: as train, but
no trace stays in the trunk, as the client will not answer."""


class Server:
    """The server's side of training, which answers packets and updates the trunk."""

    def __init__(self, end: ServerEnd, returned: frozenset[Leg]) -> None:
        """Serve by `end`; `returned` are the legs on which gradients go back to clients."""
        self.end, self.learner, self.stack = end, end.learner, end.stack
        self._returned = returned
        self.updates = 0
        """Steps that the trunk has taken since the run, or its resumption, began."""
        self.trust: Mapping[ClientId, float] = {}
        """The weight of a client's gradients, where it is not 1."""
        self.returns = True
        """Whether gradients are sent back to clients: not where nothing before the cut learns."""
        self._versions: Versions | None = None
        self._flights: dict[ClientId, Flight] = {}

    def announce(self, client: ClientId) -> Sequence[tuple[Tensor, ...]]:
        """Return what the methods at a client's cut announce to it before training."""
        return self.end.get_client_stack(client).announce()

    def enter(self, phase: Phase, lr_factor: float) -> None:
        """Start a round of `phase`."""
        self.returns = phase.returns
        self.learner.learn(phase.learns)
        self.learner.set_lr_factor(lr_factor)

    def answer(
        self, arrived: Mapping[ClientId, Packets], turn: Turn, manner: Manner
    ) -> dict[ClientId, Packets]:
        """Take one turn for these clients at once; their packets go in and out in one order."""
        if manner == "abandon":
            with self.learner.leave_untouched():
                return self._answer(arrived, turn, training=True)
        training = manner in ("train", "gather")
        answers = self._answer(arrived, turn, training=training, skipping=manner == "skip")
        # The trunk learns once for the whole cohort: a step per client would make the order of
        # clients matter.
        if turn.last and manner == "train":
            self.learn_now()
        return answers

    def forget(self, clients: Iterable[ClientId]) -> None:
        """Drop what is kept for a step of these clients."""
        for client in clients:
            self._flights.pop(client, None)

    @contextmanager
    def keep_versions(self) -> Iterator[None]:
        """Open a context in which the trunk may be updated between a client's two passes."""
        self._versions = Versions(self.learner)
        try:
            yield
        finally:
            self._versions = None

    @contextmanager
    def serve_copies(self, copies: StackedTrunks) -> Iterator[None]:
        """Open a context in which each client trains against its own row of stacked copies."""
        self.end.copies = copies
        try:
            yield
        finally:
            self.end.copies = None

    def count_staleness(self, client: ClientId) -> int:
        """Count trunk updates since a client's forward pass; 0 outside of a step."""
        flight = self._flights.get(client)
        return 0 if flight is None else self.updates - flight.updates

    def report(self, client: ClientId) -> dict[str, float]:
        """Return the sums of a client's steps this round, if the server computes the loss."""
        tally = self.end.tallies.get(client)
        return {} if tally is None else tally.read()

    def learn_now(self) -> None:
        """Take one optimizer step of the trunk."""
        # What a session has cached was computed with the weights before this step.
        self.end.sessions.clear()
        if self.end.copies is None:
            step_together([self.learner])
        else:
            self.end.copies.learn()
        self.updates += 1

    def _answer(
        self,
        arrived: Mapping[ClientId, Packets],
        turn: Turn,
        *,
        training: bool,
        skipping: bool = False,
    ) -> dict[ClientId, Packets]:
        packets = [packets[0] for packets in arrived.values()]
        if turn.first:
            flight = self._open_flight(packets, training=training)
        else:
            flight = self._take_flight(packets)
        flight.skips_trunk = skipping
        # The backward pass needs the weights that the forward pass saw, if others learn in between.
        late = self._versions if training and turn.first and not turn.last else None
        weights = nullcontext(flight.version) if late is None else late.after(self.updates)
        with weights as flight.version:
            for leg in turn.takes:
                of_leg = [each for sent in arrived.values() for each in sent if each.leg is leg]
                self.end.takes[leg](self.end, flight, of_leg)
        if turn.last and flight.version is not None and self._versions is not None:
            self._versions.hand_over(flight.version)
        sends = [leg for leg in turn.sends if self.returns or leg not in self._returned]
        answers: dict[ClientId, Packets] = {packet.client: () for packet in packets}
        for leg in sends:
            to = flight.readers if leg in self.end.to_readers else flight.members
            for member, tensors in zip(to, self.end.makes[leg](self.end, flight), strict=True):
                assert member.opening is not None, "a flight begins with a packet of each member"
                answer = member.opening.answer(leg, tensors)
                answers[member.client] = (*answers.get(member.client, ()), answer)
        if not turn.last:
            self._flights[flight.readers[0].client] = flight
        return answers

    def _open_flight(self, packets: Sequence[Packet], *, training: bool) -> Flight:
        # Without methods nothing reads a member's step but the first one's, whose draws dropout
        # has, so a cohort has one in common. Of parties it may be the reader's, who is not first.
        common, methods, rows = None, self.stack.get_methods(), list[int]()
        if training and (len(packets) > 1 or self.end.copies) and self.end.takes_rows:
            rows = [len(packet.tensors[0]) for packet in packets]
        if rows or (len(packets) > 1 and not (methods or self.end.to_readers)):
            common = self.end.open_step(packets[0], training=training)
        if rows and methods and common is not None:
            steps = (self.end.open_step(packet, training=training) for packet in packets)
            common.parts = list(zip(steps, rows, strict=True))
        members = [
            Member(
                packet.client,
                common or self.end.open_step(packet, training=training),
                self.trust.get(packet.client, 1.0),
                opening=packet.with_tensors(()),
            )
            for packet in packets
        ]
        readers = self.end.choose_readers(members)
        return Flight(members, readers, training, self.updates, rows=rows)

    def _take_flight(self, packets: Sequence[Packet]) -> Flight:
        # Popped, so that a second answer cannot train the trunk on the same pass again.
        flight = self._flights.pop(packets[0].client, None)
        clients = [packet.client for packet in packets]
        if flight is None or [member.client for member in flight.readers] != clients:
            raise ProtocolError(
                f"client {clients[0]} answers a forward pass that it never asked for"
            )
        return flight
