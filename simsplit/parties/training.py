"""A client's training: its stream of batches, and its turns of a step."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from simsplit.errors import ProtocolError
from simsplit.packets import Leg, Packet, Packets
from simsplit.parties.client_end import ClientEnd, Pending
from simsplit.parties.feed import Feed
from simsplit.phases import TRAIN, Phase
from simsplit.poisons import Poison
from simsplit.protocol import Protocol


class Training:
    """A client's part in training: it takes batches, sends, and learns from replies."""

    def __init__(
        self,
        end: ClientEnd,
        protocol: Protocol,
        feeds: Mapping[str, Feed],
        poisons: Sequence[Poison] = (),
    ) -> None:
        self.end, self.feeds, self.poisons = end, feeds, poisons
        self.protocol = protocol
        self.turns = [turn for turn in protocol.turns if turn.by_client]
        self.taken = dict.fromkeys(feeds, 0)
        """Batches taken so far, by source."""
        self.phase = Phase(TRAIN, rounds=0)
        self._pending: Pending | None = None

    def enter(self, phase: Phase, lr_factor: float) -> None:
        """Start a round of `phase`."""
        self.phase, self.end.stage = phase, phase.name
        for learner in self.end.learners:
            learner.learn(phase.learns)
            learner.set_lr_factor(lr_factor, phase.lr)

    def begin(self, round_number: int) -> Packets:
        """Take the next batch, and send the first packets of a step."""
        return self._begin(self.phase, round_number, told=True)

    def begin_aside(self, round_number: int) -> Packets:
        """Begin a step of the phase aside; nothing is sent if none is due."""
        aside = self.phase.aside
        if aside is None or self.taken[self.phase.source] % aside.every:
            return ()
        return self._begin(aside.phase, round_number, told=False)

    def proceed(self, packets: Packets) -> Packets:
        """Process the server's packets; send the next ones, or learn if the step is over."""
        pending = self._waiting()
        for packet in packets:
            self.end.take(packet, pending)
        pending.turn += 1
        sends = self.turns[pending.turn].sends
        made = self._made(sends, pending) if sends and not pending.over else ()
        if not made or self._is_all(made, pending.phase):
            self._end(pending)
        return made

    def abandon(self, round_number: int) -> Packets:
        """Send a step's first packet and drop out; the client's state is unchanged."""
        with ExitStack() as untouched:
            for learner in self.end.learners:
                untouched.enter_context(learner.untouched())
            pending = self._opened(self.phase, round_number, told=True)
            first = self.turns[0].sends[:1] if self.phase.crosses else ()
            sent = self._made(first, pending)
        if pending.phase.gradients:
            self._count_plain(pending, self.protocol.legs_before_dropout)
        return sent

    def report(self) -> dict[str, float]:
        """The round's sums; then start new ones."""
        return self.end.tally.read() | self.end.stack.report()

    def steps_per_epoch(self, source: str) -> int:
        """Batches in one pass over this client's data from a source (private or public)."""
        return self.feeds[source].steps_per_epoch if source in self.feeds else 0

    def plan(self, rounds: int) -> tuple[list[Phase], Phase]:
        """What the methods ask for: phases before training, and training itself."""
        return self.end.stack.plan(rounds), self.end.stack.proper()

    def _begin(self, phase: Phase, round_number: int, *, told: bool) -> Packets:
        self._pending = self._opened(phase, round_number, told=told)
        if not phase.crosses:
            self.end.practise(self._pending)
            self._end(self._pending)
            return ()
        return self._made(self.turns[0].sends, self._pending)

    def _is_all(self, made: Packets, phase: Phase) -> bool:
        """Whether a step is over with these: the gradient of what it began with is not sent."""
        first, legs = self.protocol.crossings[0], self.protocol.legs
        return not phase.returns and legs[legs.index(made[-1].leg) + 1 :] == (first.gradient,)

    def _end(self, pending: Pending) -> None:
        """Learn from a step, which is over."""
        self._pending = None
        back = () if pending.phase.gradients else self.protocol.gradients
        self._count_plain(pending, [leg for leg in self.protocol.legs if leg not in back])
        self.end.learn(pending)

    def _opened(self, phase: Phase, round_number: int, *, told: bool) -> Pending:
        number = self.taken[phase.source]
        self.taken[phase.source] += 1
        for poison in self.poisons:
            poison.on_round(round_number)
        batch = self.feeds[phase.source].batch(number)
        step = self.end.step(round_number, number, phase.name, training=True)
        step.labels = batch.labels
        return Pending(batch, step, phase, told=told)

    def _made(self, legs: Sequence[Leg], pending: Pending) -> Packets:
        return tuple(self._sent(self.end.make(leg, pending)) for leg in legs)

    def _sent(self, packet: Packet) -> Packet:
        """A packet after poisons have changed it."""
        for poison in self.poisons:
            packet = poison.on_packet(packet)
        return packet

    def _count_plain(self, pending: Pending, legs: Sequence[Leg]) -> None:
        """Count the bytes of a plain cut on these legs: one has no warm-up."""
        if pending.phase.name == TRAIN:
            self.end.tally.plain_bytes += sum(pending.plain.get(leg, 0) for leg in legs)

    @property
    def waits(self) -> bool:
        """Whether a step has begun that is not over."""
        return self._pending is not None

    def _waiting(self) -> Pending:
        if self._pending is None:
            raise ProtocolError(f"client {self.end.number} got a reply to nothing it sent")
        return self._pending
