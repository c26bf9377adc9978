"""A client's examination: held-out samples pass its head and tail, and nothing is learned.

Its exposure to attacks is here too: it encodes the targets that attacks are scored on.
"""

import typing
from collections.abc import Mapping

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.images import PLAIN
from simsplit.errors import ProtocolError
from simsplit.packets import Packets
from simsplit.parties.client_end import ClientEnd, Pending
from simsplit.parties.feed import QUERIES, Exam
from simsplit.parties.sessions import Session
from simsplit.parties.training import Training
from simsplit.protocol import Protocol

FIRST_QUERY = 2_000_000
"""Step numbers of public samples that a client encodes on demand start here."""


class Scores(typing.Protocol):
    """Computes figures from outputs."""

    def add(self, split: str, outputs: Tensor) -> None:
        """Add the outputs for the next batch of a split."""

    def figures(self, split: str) -> dict[str, float]:
        """Return the figures of all outputs that were added."""


class ClientAuthor(typing.Protocol):
    """Has one client write texts, which stay with it."""

    def begin(self, split: str, round_number: int, session: int, reading: str) -> Packets:
        """Begin to write, and return the packets of the first pass."""

    def go_on(self, packets: Packets) -> Packets:
        """Return the packets of the next pass; none when all texts are written."""

    def figures(self) -> dict[str, float]:
        """Return the figures of the texts that were written since the last call."""


class Examination:
    """A client's part in evaluation and generation."""

    def __init__(
        self, end: ClientEnd, protocol: Protocol, exams: Mapping[str, Exam], training: Training
    ) -> None:
        self.end, self.exams, self.training = end, exams, training
        self.legs = protocol.turns[0].sends
        self.scores: Scores | None = None
        """Scores the outputs of a client that keeps them to itself; None for other clients."""
        self.author: ClientAuthor | None = None
        """Writes the texts of such a client; None for other clients."""
        self._split = ""
        self._pending: Pending | None = None
        self._views = PLAIN

    def probe(self, split: str, round_number: int, number: int, reading: str = "") -> Packets:
        """Make the packets that begin batch `number` of a held-out split."""
        exam, self._split = self.exams[split], split
        packets = self._begin(exam.batch(number), (round_number, number, reading))
        # Set last, since `_begin` resets it: only evaluation shows an image in several ways.
        self._views = exam.views
        for poison in self.training.poisons if exam.marked else ():
            packets = tuple(map(poison.mark, packets))
        return packets

    def begin_text(
        self, texts: Batch, round_number: int, number: int, reading: str = ""
    ) -> Packets:
        """Begin a pass over whole texts in generation, and return its packets."""
        return self._begin(self._move(texts), (round_number, number, reading))

    def begin_pass(
        self, at: tuple[int, int], texts: Batch, left: Tensor | None, step: tuple[int, int, str]
    ) -> Packets:
        """Begin a pass of a session, and return its packets.

        `at` is the session's number and the position in it. The pass is over prompts, or over one
        more token of each text. If texts have ended since the last pass, `left` has the rows that
        go on.
        """
        batch, end = self._move(texts), self.end
        session = end.sessions.at(end.number, *at)
        session.extend(batch.inputs, batch.context if left is None else (left.to(end.device),))
        return self._begin(batch, step, session, at)

    def close(self, session: int) -> None:
        """Drop the caches of a session; it cannot go on."""
        self.end.sessions.close(self.end.number, session)

    def predict(self, packets: Packets) -> Tensor:
        """Return the model's outputs for the returned features."""
        if self._pending is None:
            raise ProtocolError(f"client {self.end.number} got a reply to nothing it sent")
        # Cleared first, so that a second reply to one batch is refused.
        pending, self._pending = self._pending, None
        (features,) = packets
        return self._views.average(self.end.compute_outputs(features, pending))

    def note(self, packets: Packets) -> None:
        """Keep the model's outputs for the returned features until they are assessed."""
        outputs = self.predict(packets)
        if self.scores is None:
            raise ProtocolError(f"client {self.end.number} has nothing to score outputs by")
        self.scores.add(self._split, outputs)

    def assess(self, split: str) -> dict[str, float]:
        """Return the figures of the outputs that were kept since the last call."""
        if self.scores is None or split != self._split:
            raise ProtocolError(f"client {self.end.number} has kept no outputs of '{split}'")
        written = {} if self.author is None else self.author.figures()
        return self.scores.figures(split) | written

    def require_author(self) -> ClientAuthor:
        """Return what writes; raise ProtocolError where clients do not keep texts to themselves."""
        if self.author is None:
            raise ProtocolError(f"client {self.end.number} writes no texts of its own accord")
        return self.author

    @property
    def is_waiting(self) -> bool:
        """Whether features have yet to come back for what was sent."""
        return self._pending is not None

    def _move(self, texts: Batch) -> Batch:
        """Move texts to the client's device."""
        device = self.end.device
        mask = None if texts.mask is None else texts.mask.to(device)
        inputs, labels = texts.inputs.to(device), texts.labels.to(device)
        return Batch(inputs, labels, texts.indices, mask)

    def _begin(
        self,
        batch: Batch,
        where: tuple[int, int, str],
        session: Session | None = None,
        at: tuple[int | None, int] = (None, 0),
    ) -> Packets:
        """Begin a pass; `where` has its round, its number and the control that it is for."""
        round_number, number, reading = where
        step = self.end.open_step(round_number, number, "evaluate", training=False)
        step.evaluation_mode = reading
        phase = self.training.phase
        pending = Pending(batch, step, phase, learns=False, session=session, at=at)
        self._pending, self._views = pending, PLAIN
        with torch.no_grad():
            return tuple(self.end.make(leg, pending) for leg in self.legs)


class Exposure:
    """A client's part in measuring attacks: it encodes targets, and its state does not change.

    A deployed client has no exposure.
    """

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
        with self.end.leave_untouched(), torch.set_grad_enabled(learned):
            return tuple(self.end.make(leg, pending) for leg in self.turns[0].sends)

    def answer(self, packets: Packets) -> Packets:
        """Make the packets with which the client would answer the server's next ones."""
        pending = self._pending
        if pending is None:
            raise ProtocolError(f"client {self.end.number} got a reply to nothing it exposed")
        pending.turn += 1
        with self.end.leave_untouched():
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
        # With draws of their own: with the targets', their noise would be the targets' too.
        first = FIRST_QUERY if split == QUERIES else 0
        step = self.end.open_step(round_number, first + number, name, training=as_in_training)
        batch = self.exams[split].batch(number)
        step.labels = batch.labels if as_in_training and self.end.has_labels else None
        return Pending(batch, step, phase, learns=False)
