"""A client's examination: held-out samples through its head and tail, nothing learned."""

import typing
from collections.abc import Mapping

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.data.views import PLAIN
from simsplit.errors import ProtocolError
from simsplit.methods.base import Step
from simsplit.packets import Packets
from simsplit.parties.client_end import ClientEnd, Pending
from simsplit.parties.feed import Exam
from simsplit.parties.sessions import Session
from simsplit.parties.training import Training
from simsplit.protocol import Protocol


class Scores(typing.Protocol):
    """What makes figures of outputs."""

    def add(self, split: str, outputs: Tensor) -> None:
        """Take the outputs for the next batch of a split."""

    def figures(self, split: str) -> dict[str, float]:
        """The figures of all that was added."""


class Author(typing.Protocol):
    """What has one client write texts that stay with it."""

    def begin(self, split: str, round_number: int, session: int, reading: str) -> Packets:
        """The packets of the first pass."""

    def go_on(self, packets: Packets) -> Packets:
        """Those of the next one; none when all is written."""

    def figures(self) -> dict[str, float]:
        """The figures of what was written since the last time."""


class Examination:
    """A client's part in evaluation and generation."""

    def __init__(
        self, end: ClientEnd, protocol: Protocol, exams: Mapping[str, Exam], training: Training
    ) -> None:
        self.end, self.exams, self.training = end, exams, training
        self.legs = protocol.turns[0].sends
        self.scores: Scores | None = None
        """Only of a client that keeps its outputs to itself."""
        self.author: Author | None = None
        """Likewise."""
        self._split = ""
        self._pending: Pending | None = None
        self._views = PLAIN

    def probe(self, split: str, round_number: int, number: int, reading: str = "") -> Packets:
        """The packets that begin batch `number` of a held-out split."""
        exam, self._split = self.exams[split], split
        begun = self._begun(exam.batch(number), self._step(round_number, number, reading))
        self._views = exam.views
        return begun

    def begin_text(
        self, texts: Batch, round_number: int, number: int, reading: str = ""
    ) -> Packets:
        """The packets that begin a pass over whole texts in generation."""
        return self._begun(self._here(texts), self._step(round_number, number, reading))

    def begin_pass(
        self, at: tuple[int, int], texts: Batch, left: Tensor | None, step: tuple[int, int, str]
    ) -> Packets:
        """The packets that begin a pass of a session (its number, and the position in it).

        The pass is over prompts, or over one more token of each text; if any have ended since the
        pass before, `left` says which rows go on.
        """
        batch, end = self._here(texts), self.end
        session = end.sessions.at(end.number, *at)
        session.extend(batch.inputs, batch.context if left is None else (left.to(end.device),))
        return self._begun(batch, self._step(*step), session, at)

    def close(self, session: int) -> None:
        """Drop the caches of a session; it cannot go on."""
        self.end.sessions.close(self.end.number, session)

    def predict(self, packets: Packets) -> Tensor:
        """The model's outputs for the returned features."""
        if self._pending is None:
            raise ProtocolError(f"client {self.end.number} got a reply to nothing it sent")
        pending, self._pending = self._pending, None
        (features,) = packets
        return self._views.mean(self.end.compute_outputs(features, pending))

    def note(self, packets: Packets) -> None:
        """Keep the model's outputs for the returned features until they are assessed."""
        outputs = self.predict(packets)
        if self.scores is None:
            raise ProtocolError(f"client {self.end.number} has nothing to score outputs by")
        self.scores.add(self._split, outputs)

    def assess(self, split: str) -> dict[str, float]:
        """The figures of the outputs kept since the last time."""
        if self.scores is None or split != self._split:
            raise ProtocolError(f"client {self.end.number} has kept no outputs of '{split}'")
        written = {} if self.author is None else self.author.figures()
        return self.scores.figures(split) | written

    def written_by(self) -> Author:
        """What writes; ProtocolError where texts are not the client's to keep."""
        if self.author is None:
            raise ProtocolError(f"client {self.end.number} writes no texts of its own accord")
        return self.author

    @property
    def is_waiting(self) -> bool:
        """Whether features are to come back for what was sent."""
        return self._pending is not None

    def _here(self, texts: Batch) -> Batch:
        """Texts on the client's device."""
        device = self.end.device
        mask = None if texts.mask is None else texts.mask.to(device)
        inputs, labels = texts.inputs.to(device), texts.labels.to(device)
        return Batch(inputs, labels, texts.indices, mask)

    def _begun(
        self,
        batch: Batch,
        step: Step,
        session: Session | None = None,
        at: tuple[int | None, int] = (None, 0),
    ) -> Packets:
        phase = self.training.phase
        pending = Pending(batch, step, phase, learns=False, session=session, at=at)
        self._pending, self._views = pending, PLAIN
        with torch.no_grad():
            return tuple(self.end.make(leg, pending) for leg in self.legs)

    def _step(self, round_number: int, number: int, reading: str) -> Step:
        step = self.end.open_step(round_number, number, "evaluate", training=False)
        step.reading = reading
        return step
