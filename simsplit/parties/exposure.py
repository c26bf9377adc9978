"""A client's exposure to attacks: it encodes the targets that attacks are scored on.

The client's state does not change. A deployed client has no exposure.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from simsplit.errors import ProtocolError
from simsplit.packets import Packets
from simsplit.parties.client_end import ClientEnd, Pending
from simsplit.parties.feed import Exam
from simsplit.parties.training import Training
from simsplit.protocol import Protocol


class Exposure:
    """A client's part in measuring attacks: it encodes targets, and its state does not change."""

    def __init__(
        self, end: ClientEnd, protocol: Protocol, exams: Mapping[str, Exam], training: Training
    ) -> None:
        self.end, self.exams, self.training = end, exams, training
        self.turns = [turn for turn in protocol.turns if turn.by_client]
        self._pending: Pending | None = None

    def batches(self, split: str) -> int:
        """Count the batches in a split."""
        return len(self.exams[split].cut)

    def expose(
        self, split: str, round_number: int, number: int, *, as_in_training: bool
    ) -> Packets:
        """Make the packets that a step on batch `number` of a split would begin with."""
        pending = self._open(split, round_number, number, as_in_training=as_in_training)
        self._pending = pending
        # No gradient flows back from here, unless a method's loss depends on the head itself.
        learned = as_in_training and self.end.stack.reaches_head
        with self._leave_untouched(), torch.set_grad_enabled(learned):
            return tuple(self.end.make(leg, pending) for leg in self.turns[0].sends)

    def answer(self, packets: Packets) -> Packets:
        """Make the packets with which the client would answer the server's next ones."""
        pending = self._pending
        if pending is None:
            raise ProtocolError(f"client {self.end.number} got a reply to nothing it exposed")
        pending.turn += 1
        with self._leave_untouched():
            for packet in packets:
                self.end.take(packet, pending)
            return tuple(self.end.make(leg, pending) for leg in self.turns[pending.turn].sends)

    def own_tokens(
        self, split: str, round_number: int, number: int, *, as_in_training: bool
    ) -> Tensor | None:
        """Return the mask of the texts' own tokens in what `expose` sends; it scores attacks."""
        pending = self._open(split, round_number, number, as_in_training=as_in_training)
        # A step's random streams begin anew, so this draws the mask that `expose` drew.
        self.end.stack.transform(pending.given, pending.step)
        return self.end.stack.get_own_tokens(pending.step)

    def _open(self, split: str, round_number: int, number: int, *, as_in_training: bool) -> Pending:
        phase = self.training.phase
        name = phase.name if as_in_training else "evaluate"
        step = self.end.open_step(round_number, number, name, training=as_in_training)
        batch = self.exams[split].batch(number)
        step.labels = batch.labels if as_in_training else None
        return Pending(batch, step, phase, learns=False)

    @contextmanager
    def _leave_untouched(self) -> Iterator[None]:
        """Open a context after which running statistics are restored."""
        with ExitStack() as untouched:
            for learner in self.end.learners:
                untouched.enter_context(learner.leave_untouched())
            yield
