"""What a client shares with others: announcements and segments; and what it alone keeps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from simsplit.legs import Leg
from simsplit.packets import Packet
from simsplit.parties.client_end import ClientParts
from simsplit.parties.learner import Learner, Travelling
from simsplit.parties.training import Training
from simsplit.poisons import Poison
from simsplit.states import select_below

TAKEN = "taken."
"""Begins the names of the numbers of batches taken, in a client's state."""


@dataclass(eq=False)
class Sharing:
    """A client's part in sharing: it hears announcements, and hands segments over."""

    parts: ClientParts
    training: Training
    poisons: Sequence[Poison]

    def hear(self, announced: Sequence[tuple[Tensor, ...]]) -> None:
        """Pass on the methods' announcements."""
        self.parts.stack.receive_announcements(announced)

    def hand_over(self, round_number: int) -> Packet:
        """Return the shared segments' live tensors as a HANDOVER packet."""
        names, tensors = self._list_travelling()
        step = sum(self.training.taken.values())
        packet = Packet(self.training.end.number, Leg.HANDOVER, round_number, step, tensors, names)
        # Packets of round 0 only bring weights to be evaluated, after which they may return.
        for poison in self.poisons if round_number else ():
            packet = poison.on_packet(packet)
        changes = self.parts.changes
        if changes is None or not tensors:
            return packet
        # Encoded last: poisons change weights, and codes are bytes.
        return changes.encode(packet, "up", packet.client, round_number)

    def receive(self, packet: Packet) -> None:
        """Copy what another client's `hand_over` sent into the shared segments."""
        shared, changes = self.parts.shared, self.parts.changes
        if changes is not None and packet.tensors:
            weights = changes.read(packet)
            packet = packet.with_names(tuple(weights), tuple(weights.values()))
            # no change refers to weights that are only evaluated
            if packet.round:
                changes.hold(weights, packet.round)
        for poison in self.poisons if packet.round else ():
            poison.on_receive(packet)
        if self._list_travelling()[1] is packet.tensors:
            return  # sender and receiver hold the same live tensors: there is nothing to copy
        if shared is not None:
            shared.take(dict(zip(packet.names, packet.tensors, strict=True)))
            self.training.end.sessions.clear()
            # Only a broadcast is the average that FedProx pulls to; a hand-over is one client's.
            if packet.leg is Leg.BROADCAST:
                shared.forget_slow()
                shared.anchor()

    def state(self) -> dict[str, Tensor]:
        """Return the shared tensors that this client now holds."""
        return dict(zip(*self._list_travelling(), strict=True))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        if self.parts.shared is not None:
            self.parts.shared.load(state, moments=self.parts.moments_travel)
            self.training.end.sessions.clear()

    def _list_travelling(self) -> Travelling:
        if self.parts.shared is None:
            return (), ()
        return self.parts.shared.list_travelling(moments=self.parts.moments_travel)


@dataclass(eq=False)
class Keeping:
    """A client's part of a checkpoint: learners, moments that stay with it, batches taken."""

    parts: ClientParts
    training: Training
    poisons: Sequence[Poison]

    def state(self) -> dict[str, Tensor]:
        """Return everything that the client's next step depends on and no other client has."""
        state = collect_own_state(
            [each.state() for each in self._own()], self.training.taken.items()
        )
        state |= _prefix("method", [self.training.end.stack.state()])
        state |= _prefix("poison", [poison.state() for poison in self.poisons])
        if self.parts.changes is not None:
            state |= _prefix("changes", [self.parts.changes.state()])
        # Moments that travel are saved with what clients share, once for all of them.
        if self.parts.moments_travel or self.parts.shared is None:
            return state
        return state | _prefix("moments", [self.parts.shared.moments()])

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.training.end.sessions.clear()
        for index, learner in enumerate(self._own()):
            learner.load(select_below(state, f"own.{index}."))
        self.training.end.stack.load(select_below(state, "method.0."))
        for index, poison in enumerate(self.poisons):
            poison.load(select_below(state, f"poison.{index}."))
        if self.parts.changes is not None:
            self.parts.changes.load(select_below(state, "changes.0."))
        if self.parts.shared is not None and not self.parts.moments_travel:
            self.parts.shared.forget_moments()
            self.parts.shared.load_moments(select_below(state, "moments.0."))
        taken = self.training.taken
        taken.update({source: int(state[f"{TAKEN}{source}"]) for source in taken})

    def _own(self) -> list[Learner]:
        return [learner for learner in self.parts.learners if learner is not self.parts.shared]


def collect_own_state(
    learned: Iterable[Mapping[str, Tensor]],
    taken: Iterable[tuple[str, int]],
    moments: Iterable[Mapping[str, Tensor]] = (),
) -> dict[str, Tensor]:
    """Collect learners' states that a client alone has, and the batches taken of each source.

    `moments` are those of shared weights, if they stay with the client.
    """
    counts = {f"{TAKEN}{source}": torch.tensor(count) for source, count in taken}
    return _prefix("own", learned) | counts | _prefix("moments", moments)


def _prefix(name: str, states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{name}.{index}.{key}": tensor
        for index, state in enumerate(states)
        for key, tensor in state.items()
    }
