"""A client's examination: held-out samples through its head and tail, nothing learned."""

from collections.abc import Mapping

import torch
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError
from simsplit.packets import Packets
from simsplit.parties.client_end import ClientEnd, Pending
from simsplit.parties.feed import Exam
from simsplit.parties.training import Training
from simsplit.protocol import Protocol


class Examination:
    """A client's part in evaluation and generation."""

    def __init__(
        self, end: ClientEnd, protocol: Protocol, exams: Mapping[str, Exam], training: Training
    ) -> None:
        self.end, self.exams, self.training = end, exams, training
        self.legs = protocol.turns[0].sends
        self._pending: Pending | None = None

    def probe(self, split: str, round_number: int, number: int, reading: str = "") -> Packets:
        """The packets that begin batch `number` of a held-out split."""
        return self._begun(self.exams[split].batch(number), round_number, number, reading)

    def begin_text(
        self, texts: Batch, round_number: int, number: int, reading: str = ""
    ) -> Packets:
        """The packets that begin a pass over texts in generation."""
        device = self.end.device
        inputs, labels = texts.inputs.to(device), texts.labels.to(device)
        return self._begun(Batch(inputs, labels, texts.indices), round_number, number, reading)

    def predict(self, packets: Packets) -> Tensor:
        """The model's outputs for the returned features."""
        if self._pending is None:
            raise ProtocolError(f"client {self.end.number} got a reply to nothing it sent")
        pending, self._pending = self._pending, None
        (features,) = packets
        return self.end.outputs(features, pending)

    def _begun(self, batch: Batch, round_number: int, number: int, reading: str) -> Packets:
        step = self.end.step(round_number, number, "evaluate", training=False)
        step.reading = reading
        self._pending = pending = Pending(batch, step, self.training.phase, learns=False)
        with torch.no_grad():
            return tuple(self.end.make(leg, pending) for leg in self.legs)
