"""A client's training: its stream of batches, and its turns of a step."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Protocol as Interface

import torch

from simsplit.data.samples import IGNORED
from simsplit.errors import BudgetSpentError, ProtocolError
from simsplit.legs import Leg
from simsplit.packets import Packets
from simsplit.parties.client_end import ClientEnd, Pending
from simsplit.parties.feed import Feed
from simsplit.phases import TRAIN, Phase
from simsplit.poisons import Poison
from simsplit.protocol import Protocol

PRIVATE = "private"


class Spending(Interface):
    """A client's account of the privacy of its samples."""

    @property
    def is_amplified(self) -> bool:
        """Whether each batch counts, rather than each one that has a sample."""

    @property
    def most(self) -> int | None:
        """The most sendings that the budget allows; None: there is no budget."""

    @property
    def in_round(self) -> int:
        """The batches of a round in which the client does not drop out."""

    def compute(self, times: int) -> float:
        """Return epsilon after so many sendings."""


@dataclass(eq=False)
class Training:
    """A client's part in training: it takes batches, sends packets, and learns from replies."""

    end: ClientEnd
    protocol: Protocol
    feeds: Mapping[str, Feed]
    poisons: Sequence[Poison] = ()
    _: KW_ONLY
    accumulate: int = 1
    """The most parts in which each mini-batch crosses."""
    account: Spending | None = None
    """By it a client reports what it spends, and refuses to spend more than it may."""

    def __post_init__(self) -> None:
        self.turns = [turn for turn in self.protocol.turns if turn.by_client]
        self.taken = dict.fromkeys(self.feeds, 0)
        """Batches taken so far, by source."""
        self.phase = Phase(TRAIN, rounds=0)
        self.is_stacked = False
        """Whether the client's weights are now a row of stacked ones, and its own out of date."""
        self._pending: Pending | None = None
        self._parts: deque[Pending | None] = deque()
        """Parts of the mini-batch under way that have yet to cross; None: there is no such part."""

    def enter(self, phase: Phase, lr_factor: float) -> None:
        """Start a round of `phase`."""
        self.phase, self.end.stage = phase, phase.name
        self._parts.clear()  # of a round that was undone
        for learner in self.end.learners:
            learner.learn(phase.learns)
            learner.set_lr_factor(lr_factor, phase.lr)

    def begin(
        self, round_number: int, number: int | None = None, interleaved: Phase | None = None
    ) -> Packets:
        """Take the next batch of the phase, or of an interleaved one, and send first packets.

        `number` is that of the batch, where a party may have missed some; None: the next one.

        Where mini-batches cross in parts it is the next part; nothing is sent for one that a small
        batch does not have.
        """
        phase = interleaved or self.phase
        if interleaved is None and self.accumulate > 1:
            self._pending = pending = self._take_part(round_number)
        else:
            counted = interleaved is None
            self._pending = pending = self._open(phase, round_number, number, counted=counted)
        if pending is None:
            return ()
        if not len(pending.given.labels):  # a drawn batch: its step is noise alone
            self._end(pending)
            return ()
        if not phase.crosses:
            self.end.practise(pending)
            self._end(pending)
            return ()
        return self._make(self.turns[0].sends, pending)

    def begin_interleaved(self, round_number: int) -> Packets:
        """Begin a step of the interleaved phase; nothing is sent if none is due."""
        interleaved = self.phase.interleaved
        if interleaved is None or self.taken[self.phase.source] % interleaved.every:
            return ()
        return self.begin(round_number, interleaved=interleaved.phase)

    def proceed(self, packets: Packets) -> Packets:
        """Process the server's packets; send the next ones, or learn if the step is over."""
        pending = self._require_pending()
        for packet in packets:
            self.end.take(packet, pending)
        pending.turn += 1
        sends = self.turns[pending.turn].sends
        made = self._make(sends, pending) if sends and not pending.over else ()
        if not made or self._is_last(made, pending.phase):
            self._end(pending)
        return made

    def abandon(self, round_number: int, number: int | None = None) -> Packets:
        """Send a step's first packet and drop out; the client's state is unchanged."""
        with self.end.leave_untouched():
            pending = self._open(self.phase, round_number, number)
            if self.accumulate > 1:
                pending = self._cut(pending)[0]
            empty = not len(pending.given.labels)
            first = self.turns[0].sends[:1] if self.phase.crosses and not empty else ()
            sent = self._make(first, pending)
        # The bytes were sent, so a plain cut is charged for them too.
        if pending.phase.gradients:
            self._count_plain(pending, self.protocol.legs_before_dropout)
        return sent

    def report(self) -> dict[str, float]:
        """Return the round's sums, and start new ones."""
        return self.end.tally.read() | self.end.stack.report() | self.report_spending()

    def report_spending(self) -> dict[str, float]:
        """Return what the client has spent, and what it will have after another whole round."""
        account, taken = self.account, self.taken.get(PRIVATE, 0)
        if account is None:
            return {}
        times = self._count_sent(taken)
        # Not as many as in this round, of which it may have dropped out.
        further = self._count_sent(taken + account.in_round)
        return {
            "times_sent": times,
            "epsilon": account.compute(times),
            "epsilon_next": account.compute(further),
        }

    def _count_sent(self, taken: int) -> int:
        """Count the sendings that the account goes by, after so many private batches."""
        assert self.account is not None, "asked for where the client counts"
        return taken if self.account.is_amplified else self.feeds[PRIVATE].count_most(taken)

    def _refuse_to_overspend(self, source: str) -> None:
        """Raise BudgetSpentError if the next batch would pass the client's budget."""
        if self.account is None or self.account.most is None or source != PRIVATE:
            return
        if (times := self._count_sent(self.taken[source] + 1)) > self.account.most:
            raise BudgetSpentError(
                f"client {self.end.number} goes no further: its next batch would bring it to "
                f"epsilon {self.account.compute(times):.4g}, beyond its budget. The run's state "
                "before this round is kept; more noise or a larger budget would let it go on"
            )

    def steps_per_epoch(self, source: str) -> int:
        """Count the batches in one pass over this client's private or public data."""
        return self.feeds[source].steps_per_epoch if source in self.feeds else 0

    def plan(self, rounds: int) -> tuple[list[Phase], Phase]:
        """Return the phases that methods ask for before training, and the phase of training."""
        return self.end.stack.plan_phases(rounds), self.end.stack.make_training_phase()

    def _is_last(self, made: Packets, phase: Phase) -> bool:
        """Tell whether a step ends with these packets: no gradient of its first ones returns."""
        first, legs = self.protocol.crossings[0], self.protocol.legs
        return not phase.returns and legs[legs.index(made[-1].leg) + 1 :] == (first.gradient,)

    def _end(self, pending: Pending) -> None:
        """Learn from a step that is over."""
        self._pending = None
        back = () if pending.phase.gradients else self.protocol.gradients
        self._count_plain(pending, [leg for leg in self.protocol.legs if leg not in back])
        self.end.learn(pending)

    def _open(
        self, phase: Phase, round_number: int, number: int | None = None, *, counted: bool = True
    ) -> Pending:
        number = self.claim_batch(phase, round_number, number)
        batch = self.feeds[phase.source].batch(number)
        step = self.end.open_step(round_number, number, phase.name, training=True)
        step.labels = batch.labels if self.end.has_labels else None
        return Pending(batch, step, phase, counted=counted)

    def claim_batch(self, phase: Phase, round_number: int, number: int | None = None) -> int:
        """Return the number of the batch to take, which counts as taken from now on."""
        self._refuse_to_overspend(phase.source)
        if number is None:
            number = self.taken[phase.source]
        elif number < self.taken[phase.source]:
            raise ProtocolError(f"batch {number} is asked for a second time")
        # Counted even for a dropped step: the client goes on with the batch after it.
        self.taken[phase.source] = number + 1
        for poison in self.poisons:
            # Before the batch is drawn, since a poison may change batches in some rounds only.
            poison.on_round(round_number)
        return number

    def _take_part(self, round_number: int) -> Pending | None:
        """Return the next part of the mini-batch under way, or the first part of the next one."""
        if not self._parts:
            # A round that was given up may have left gradients of a mini-batch's first parts.
            for learner in self.end.learners:
                learner.clear()
            parts = self._cut(self._open(self.phase, round_number))
            self._parts.extend([*parts, *[None] * (self.accumulate - len(parts))])
        return self._parts.popleft()

    def locate(self, step: int) -> tuple[int, slice]:
        """Return the private batch of a packet's step, and which of its rows the step has."""
        if self.accumulate == 1:
            return step, slice(None)
        batch, part = divmod(step, self.accumulate)
        size = self._count_part_rows("private")
        return batch, slice(part * size, (part + 1) * size)

    def _count_part_rows(self, source: str) -> int:
        """Count the most rows of a part of a mini-batch."""
        return math.ceil(self.feeds[source].batch_size / self.accumulate)

    def _cut(self, whole: Pending) -> list[Pending]:
        """Cut a mini-batch into parts, each with draws of its own; a small one has fewer parts."""
        step, rows = whole.step, len(whole.given.labels)
        size = self._count_part_rows(whole.phase.source)
        starts = range(0, rows, size)
        labels = whole.given.labels
        # the loss is a mean over all that is labelled: of texts, over tokens
        counts = torch.ones(rows) if labels.ndim == 1 else (labels != IGNORED).flatten(1).sum(1)
        total = max(int(counts.sum()), 1)
        return [
            Pending(
                (part := whole.given.take(slice(start, start + size))),
                replace(
                    step,
                    number=step.number * self.accumulate + number,
                    labels=part.labels,
                    memo={},
                    figures={},
                ),
                whole.phase,
                share=int(counts[start : start + size].sum()) / total,
                begins=number == 0,
                ends=number == len(starts) - 1,
            )
            for number, start in enumerate(starts)
        ]

    def _make(self, legs: Sequence[Leg], pending: Pending) -> Packets:
        """Make the packets of these legs, and let poisons change them."""
        made = []
        for leg in legs:
            packet = self.end.make(leg, pending)
            for poison in self.poisons:
                packet = poison.on_packet(packet)
            made.append(packet)
        return tuple(made)

    def _count_plain(self, pending: Pending, legs: Sequence[Leg]) -> None:
        """Count the bytes that a plain cut would send on these legs."""
        # A plain cut has no warm-up, so steps of other phases cost it nothing.
        if pending.phase.name == TRAIN:
            self.end.tally.plain_bytes += sum(pending.plain.get(leg, 0) for leg in legs)

    @property
    def is_waiting(self) -> bool:
        """Whether a step has begun that is not over."""
        return self._pending is not None

    @property
    def is_between_parts(self) -> bool:
        """Whether parts of a mini-batch have yet to cross."""
        return bool(self._parts)

    def _require_pending(self) -> Pending:
        if self._pending is None:
            raise ProtocolError(f"client {self.end.number} got a reply to nothing it sent")
        return self._pending
