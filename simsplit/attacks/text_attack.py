"""The base class of attacks on texts, which work batch by batch, and facts about messages.

Each row that a client sends yields a guess at a text, and the attack states its confidence in each
guess. Where a text has several guesses, the surest is the attack's answer.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from simsplit.attacks.attack import Attack, Done
from simsplit.attacks.inverters import NOTHING
from simsplit.attacks.knowledge import Knowledge, is_mixed
from simsplit.data.batches import pad_tokens
from simsplit.data.samples import Vocabulary
from simsplit.errors import ProtocolError
from simsplit.legs import Leg
from simsplit.methods import MethodConfig
from simsplit.packets import Packet


@dataclass(frozen=True)
class SeenBatch:
    """The packets of one batch of targets; the features and gradient where they cross."""

    smashed: Packet
    features: Packet | None = None
    gradient: Packet | None = None
    again: tuple[Packet, ...] = ()
    """Smashed data of the same texts in other epochs."""


class Read(NamedTuple):
    """The guesses at the texts of a batch."""

    tokens: Tensor
    """R x L, one guess per row, message by message."""
    sureness: Tensor
    """Confidence in each guess, R."""


class TextAttack(Attack):
    """An attack on texts: it takes training steps, then recovers one batch after another."""

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._read: list[Read] = []
        assert known.vocabulary is not None, "refused on images when the scenario is read"
        self.vocabulary: Vocabulary = known.vocabulary

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        learning = self.steps
        batches = by_batch(targets)
        while self.iteration < learning:
            self.learn(self.iteration)
            self.iteration += 1
            yield self.iteration, learning + len(batches)
        self._read = []
        for number, seen in enumerate(batches, 1):
            self._read.append(Read(*(part.cpu() for part in self.recover(seen))))
            yield learning + number, learning + len(batches)

    @property
    def steps(self) -> int:
        """Number of training steps before the first batch is recovered."""
        return 0

    def learn(self, number: int) -> None:
        """Take training step `number`."""

    @abstractmethod
    def recover(self, seen: SeenBatch) -> Read:
        """Return guesses at a batch's texts: equally many for each text, message by message."""

    def together(self, sure_R: Tensor, messages: int) -> Tensor:
        """Average sureness over each message's rows where the rows share an unknown sign."""
        if not (is_mixed(self.known) and has_shared_secrets(self.known)):
            return sure_R
        sure_MB = sure_R.view(messages, -1)
        return sure_MB.mean(1, keepdim=True).expand_as(sure_MB).flatten()

    @property
    def recovered(self) -> Tensor:
        """The tokens of all batches, padded to the longest with NOTHING."""
        parts = [read.tokens for read in self._read]
        longest = max((part.shape[1] for part in parts), default=0)
        filled = [pad_tokens(part, longest, NOTHING) for part in parts]
        return torch.cat(filled) if filled else torch.empty(0, 0, dtype=torch.int64)

    @property
    def sureness(self) -> Tensor:
        return torch.cat([read.sureness for read in self._read] or [torch.empty(0)])


def pick_surer(one: Read, other: Read) -> Read:
    """Return the surer of two guesses at each row."""
    tokens = torch.where((one.sureness >= other.sureness)[:, None], one.tokens, other.tokens)
    return Read(tokens, torch.maximum(one.sureness, other.sureness))


def by_batch(targets: Sequence[Packet]) -> list[SeenBatch]:
    """Group the targets' packets by batch."""
    batches: list[SeenBatch] = []
    for packet in targets:
        if packet.leg is Leg.SMASHED and batches and packet.round != batches[0].smashed.round:
            # Each epoch encodes the targets in the same batches, numbered alike.
            same = [place for place, seen in enumerate(batches) if seen.smashed.step == packet.step]
            batches[same[0]] = replace(batches[same[0]], again=(*batches[same[0]].again, packet))
        elif packet.leg is Leg.SMASHED:
            batches.append(SeenBatch(packet))
        elif packet.round != batches[0].smashed.round:
            continue  # only the smashed data of other epochs are used
        elif packet.leg is Leg.FEATURES:
            batches[-1] = replace(batches[-1], features=packet)
        elif packet.leg is Leg.FEATURES_GRAD:
            batches[-1] = replace(batches[-1], gradient=packet)
    return batches


def count_messages(known: Knowledge) -> int:
    """Count the messages that a client sends for each text. The number is public."""
    counts = [getattr(method, "messages", 1) for method in _list_mixing_methods(known)]
    return max(counts, default=1)


def count_sources(known: Knowledge) -> int:
    """Count the texts that are mixed into the messages for one text. The number is public."""
    mixing = _list_mixing_methods(known)
    counts = [getattr(each, "inputs", getattr(each, "messages", 1)) for each in mixing]
    return max(counts, default=1)


def _list_mixing_methods(known: Knowledge) -> list[MethodConfig]:
    """Return the methods whose `messages` may hold smashed data; the others' hold gradients."""
    return [method for method in known.methods if not method.everywhere]


def has_shared_secrets(known: Knowledge) -> bool:
    """Return whether methods hide all texts of a batch with the same secrets."""
    return all(getattr(method, "secrets", "batch") == "batch" for method in known.methods)


def split_messages(x_RLD: Tensor, messages: int) -> Tensor:
    """Split a packet's rows by message: M x B x L x D."""
    if len(x_RLD) % messages:
        raise ProtocolError(f"{len(x_RLD)} rows are not those of {messages} messages")
    rows: Tensor = x_RLD.unflatten(0, (messages, -1))
    return rows
