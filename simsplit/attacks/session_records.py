"""The server's record of sessions, which are prompts with the responses that a model writes.

A session's prompt crosses the cut once, then each new token once. The record holds everything that
the server has of it in the end: the trunk's inputs (H) and outputs (T), token by token, and where
the prompt ends. Padding before a session is removed, so that all sessions start at the first
column. The padding behind is harmless: under causal attention no real token attends to it.

Where methods need whole texts in every pass, the record is a text's last pass, which contains all
of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from simsplit.attacks.knowledge import Knowledge
from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.packets import Packet


@dataclass(frozen=True)
class Record:
    """Sessions as the server saw them, one per row."""

    sent: Tensor
    """S x L x D: the heads' outputs (H), as the trunk got them; zeros behind a session's end."""
    features: Tensor
    """S x L x D: the trunk's outputs (T), from which the tail predicts each next token."""
    lengths: Tensor
    """S: number of tokens that crossed. A session's last token never crosses."""
    prompts: Tensor
    """S: number of prompt tokens among them."""

    @property
    def real(self) -> Tensor:
        """S x L: whether a position holds a token, not padding."""
        places = torch.arange(self.sent.shape[1], device=self.lengths.device)
        return places < self.lengths[:, None]

    @property
    def response_places(self) -> Tensor:
        """S x L: whether a position holds a token of the response."""
        places = torch.arange(self.sent.shape[1], device=self.lengths.device)
        return self.real & (places >= self.prompts[:, None])

    def take(self, rows: Tensor) -> "Record":
        """Return the record of some sessions, cut to the longest of them."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        seen = (self.sent[rows, :longest], self.features[rows, :longest])
        return Record(*seen, lengths, self.prompts[rows])


def build_record(known: Knowledge, packets: Sequence[Packet]) -> Record:
    """Build the record of sessions that were written together, from all their packets.

    The first pass holds the prompts, and each later pass one token of each unfinished session.
    """
    passes = [packet for packet in packets if packet.leg is Leg.SMASHED]
    answers = [packet for packet in packets if packet.leg is Leg.FEATURES]
    if not passes or passes[0].position or len(passes) != len(answers):
        raise ProtocolError("no whole sessions were seen: each begins with its prompt's pass")
    first = known.lift_smashed(passes[0])
    real = torch.ones(first.shape[:2], dtype=torch.bool, device=first.device)
    for mask in known.stack.get_context(passes[0].tensors):
        real = mask.to(first.device)
    lengths = real.sum(1)
    room = int(lengths.max()) + len(passes) - 1
    sent, features = (
        _align_left(each, real, lengths, room) for each in (first, known.unpack(answers[0]))
    )
    prompts, rows = lengths.clone(), torch.arange(len(first), device=first.device)
    for up, down in zip(passes[1:], answers[1:], strict=True):
        for left in known.stack.get_context(up.tensors):
            # The context of a pass names the sessions that go on, among those of the pass before.
            rows = rows[left.to(rows.device)]
        sent[rows, lengths[rows]] = known.lift_smashed(up)[:, 0]
        features[rows, lengths[rows]] = known.unpack(down)[:, 0]
        lengths[rows] += 1
    longest = int(lengths.max())
    return Record(sent[:, :longest], features[:, :longest], lengths, prompts)


def build_record_of_last_passes(
    known: Knowledge, packets: Sequence[Packet], lengths: Tensor, prompts: Tensor
) -> Record:
    """Build the record of sessions whose every pass repeats the whole unfinished texts.

    `lengths` and `prompts` are no extra knowledge: the server sees the lengths by the padding, and
    recognises a text's rows by their beginning.
    """
    passes = [packet for packet in packets if packet.leg is Leg.SMASHED]
    answers = [packet for packet in packets if packet.leg is Leg.FEATURES]
    last = (lengths - prompts).tolist()
    sent, features = [], []
    for row, number in enumerate(last):
        # A text that has ended is no longer sent, so the later ones move up.
        place = sum(other >= number for other in last[:row])
        sent.append(known.lift_smashed(passes[number])[place, : lengths[row]])
        features.append(known.unpack(answers[number])[place, : lengths[row]])
    return Record(
        nn.utils.rnn.pad_sequence(sent, batch_first=True),
        nn.utils.rnn.pad_sequence(features, batch_first=True),
        lengths.to(known.device),
        prompts.to(known.device),
    )


def _align_left(x_SPD: Tensor, real_SP: Tensor, lengths: Tensor, room: int) -> Tensor:
    """Move the real tokens of each row to the first columns of `room`; zeros follow."""
    aligned = x_SPD.new_zeros(len(x_SPD), room, x_SPD.shape[2])
    aligned[torch.arange(room, device=lengths.device) < lengths[:, None]] = x_SPD[real_SP]
    return aligned
