"""The server's record of sessions: texts that clients' models wrote, as they crossed.

A session is a text that a client's model goes on with: its prompt crosses once, then each new token
once. The record is what the server has of it in the end: what arrived (H) and what its trunk made
of that (T), token by token, and where the prompt ends. Sessions start at the first column, whatever
padding crossed before them: under causal attention nothing real looks at what is behind a text.

Where methods need whole texts in every pass, the record is a text's last pass, which has all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from simsplit.attacks.knowledge import Knowledge
from simsplit.errors import ProtocolError
from simsplit.packets import Leg, Packet


@dataclass(frozen=True)
class Record:
    """Sessions as the server saw them, a row each."""

    sent: Tensor
    """S x L x D: what the head put out (H), as the trunk got it; zeros behind a session's end."""
    features: Tensor
    """S x L x D: what the trunk made of it (T). The tail foretells the next token from it."""
    lengths: Tensor
    """S: how many tokens crossed. The last one that was written never does."""
    prompts: Tensor
    """S: how many of them are the prompt's."""

    @property
    def real(self) -> Tensor:
        """S x L: where a token stands."""
        places = torch.arange(self.sent.shape[1], device=self.lengths.device)
        return places < self.lengths[:, None]

    @property
    def written(self) -> Tensor:
        """S x L: where a token of the response stands."""
        places = torch.arange(self.sent.shape[1], device=self.lengths.device)
        return self.real & (places >= self.prompts[:, None])

    def take(self, rows: Tensor) -> "Record":
        """Some of the sessions, as long as their longest."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        seen = (self.sent[rows, :longest], self.features[rows, :longest])
        return Record(*seen, lengths, self.prompts[rows])


def record_of(known: Knowledge, packets: Sequence[Packet]) -> Record:
    """What the server has of the sessions that these packets are of, all written together."""
    passes = [packet for packet in packets if packet.leg is Leg.SMASHED]
    answers = [packet for packet in packets if packet.leg is Leg.FEATURES]
    if not passes or passes[0].position or len(passes) != len(answers):
        raise ProtocolError("no whole sessions were seen: each begins with its prompt's pass")
    first, mask = known.smashed(passes[0]), None
    for beside in known.stack.context(passes[0].tensors):
        mask = beside
    real = torch.ones(first.shape[:2], dtype=torch.bool, device=first.device)
    real = real if mask is None else mask.to(first.device)
    lengths = real.sum(1)
    room = int(lengths.max()) + len(passes) - 1
    sent, features = (
        _aligned(each, real, lengths, room) for each in (first, _answered(known, answers[0]))
    )
    prompts, rows = lengths.clone(), torch.arange(len(first), device=first.device)
    for up, down in zip(passes[1:], answers[1:], strict=True):
        for left in known.stack.context(up.tensors):
            rows = rows[left.to(rows.device)]
        sent[rows, lengths[rows]] = known.smashed(up)[:, 0]
        features[rows, lengths[rows]] = _answered(known, down)[:, 0]
        lengths[rows] += 1
    longest = int(lengths.max())
    return Record(sent[:, :longest], features[:, :longest], lengths, prompts)


def record_of_last_passes(
    known: Knowledge, packets: Sequence[Packet], lengths: Tensor, prompts: Tensor
) -> Record:
    """The same where each pass has all of each text again, and a text is left out once it is over.

    How long texts are the server sees by their padding, and which row is whose by its beginning.
    """
    passes = [packet for packet in packets if packet.leg is Leg.SMASHED]
    answers = [packet for packet in packets if packet.leg is Leg.FEATURES]
    last = (lengths - prompts).tolist()
    sent, features = [], []
    for row, number in enumerate(last):
        place = sum(other >= number for other in last[:row])
        sent.append(known.smashed(passes[number])[place, : lengths[row]])
        features.append(_answered(known, answers[number])[place, : lengths[row]])
    return Record(
        nn.utils.rnn.pad_sequence(sent, batch_first=True),
        nn.utils.rnn.pad_sequence(features, batch_first=True),
        lengths.to(known.device),
        prompts.to(known.device),
    )


def _answered(known: Knowledge, packet: Packet) -> Tensor:
    """What the trunk made of a pass, in fp32."""
    with torch.no_grad():
        return known.stack.unpack(packet.leg, packet.tensors, known.step(packet)).float()


def _aligned(x_SPD: Tensor, real_SP: Tensor, lengths: Tensor, room: int) -> Tensor:
    """Rows without the padding before them, and with room behind."""
    made = x_SPD.new_zeros(len(x_SPD), room, x_SPD.shape[2])
    made[torch.arange(room, device=lengths.device) < lengths[:, None]] = x_SPD[real_SP]
    return made
