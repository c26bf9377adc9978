"""What attacks on texts share: packets batch by batch, messages, and guesses.

Each row that a client sends makes a guess at a text, and the attack says how sure it is of each
guess: of several guesses at a text it names the surest as its own.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from simsplit.attacks.base import Attack, Done
from simsplit.attacks.inverters import NOTHING
from simsplit.attacks.knowledge import Knowledge
from simsplit.data.samples import Vocabulary
from simsplit.errors import ProtocolError
from simsplit.methods import MethodConfig
from simsplit.packets import Leg, Packet


@dataclass(frozen=True)
class SeenBatch:
    """The packets of one batch of targets."""

    smashed: Packet
    features: Packet | None = None
    gradient: Packet | None = None
    again: tuple[Packet, ...] = ()
    """Smashed data of the same texts in other epochs."""


class Read(NamedTuple):
    """What an attack makes of a batch."""

    tokens: Tensor
    """R x L, a guess a row, message by message."""
    sureness: Tensor
    """R: how sure it is of each guess."""


class TextAttack(Attack):
    """An attack on texts: training steps, then batch by batch."""

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._read: list[Read] = []
        assert known.vocabulary is not None, "refused on images when the scenario is read"
        self.vocabulary: Vocabulary = known.vocabulary

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Take all training steps, then recover batch by batch."""
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
        """Number of training steps before anything is recovered."""
        return 0

    def learn(self, number: int) -> None:
        """Take learning step `number`."""

    @abstractmethod
    def recover(self, seen: SeenBatch) -> Read:
        """Guesses at a batch's texts: as many for each, in the order of messages."""

    @property
    def recovered(self) -> Tensor:
        """The tokens of all batches, padded to the longest."""
        parts = [read.tokens for read in self._read]
        longest = max((part.shape[1] for part in parts), default=0)
        filled = [
            nn.functional.pad(part, (0, longest - part.shape[1]), value=NOTHING) for part in parts
        ]
        return torch.cat(filled) if filled else torch.empty(0, 0, dtype=torch.int64)

    @property
    def sureness(self) -> Tensor:
        """How sure it is of each row."""
        return torch.cat([read.sureness for read in self._read] or [torch.empty(0)])


def by_batch(targets: Sequence[Packet]) -> list[SeenBatch]:
    """The targets' packets, grouped by batch."""
    found: list[SeenBatch] = []
    for packet in targets:
        if packet.leg is Leg.SMASHED and found and packet.round != found[0].smashed.round:
            same = [place for place, seen in enumerate(found) if seen.smashed.step == packet.step]
            found[same[0]] = replace(found[same[0]], again=(*found[same[0]].again, packet))
        elif packet.leg is Leg.SMASHED:
            found.append(SeenBatch(packet))
        elif packet.round != found[0].smashed.round:
            continue  # of other epochs smashed data alone are looked at
        elif packet.leg is Leg.FEATURES:
            found[-1] = replace(found[-1], features=packet)
        elif packet.leg is Leg.FEATURES_GRAD:
            found[-1] = replace(found[-1], gradient=packet)
    return found


def payload(known: Knowledge, packet: Packet) -> Tensor:
    """The payload of one of the targets' packets, unpacked by the server; in fp32."""
    step = known.step(packet)
    message = known.stack.messages(packet.leg, packet.tensors)[0]
    return known.stack.unpack(packet.leg, message, step).float()


def messages_of(known: Knowledge) -> int:
    """How many messages a client sends for each text, which is no secret."""
    counts = [getattr(method, "messages", 1) for method in _mixing(known)]
    return max(counts, default=1)


def sources_of(known: Knowledge) -> int:
    """How many texts are in the messages for one, which is no secret either."""
    counts = [getattr(each, "inputs", getattr(each, "messages", 1)) for each in _mixing(known)]
    return max(counts, default=1)


def _mixing(known: Knowledge) -> list[MethodConfig]:
    """The methods that may change smashed data; messages of others are of gradients."""
    return [method for method in known.methods if not method.everywhere]


def turned(known: Knowledge, leg: Leg = Leg.SMASHED) -> bool:
    """Whether what crosses on a leg is mixed, and so may have its sign turned."""
    return any(leg in method.superposes for method in known.methods)


def shared_secrets(known: Knowledge) -> bool:
    """Whether all texts of a batch are mixed, or hidden, in the same way."""
    return all(getattr(method, "secrets", "batch") == "batch" for method in known.methods)


def split_messages(x_RLD: Tensor, messages: int) -> Tensor:
    """Rows of a packet by message: M x B x L x D."""
    if len(x_RLD) % messages:
        raise ProtocolError(f"{len(x_RLD)} rows are not those of {messages} messages")
    rows: Tensor = x_RLD.unflatten(0, (messages, -1))
    return rows
