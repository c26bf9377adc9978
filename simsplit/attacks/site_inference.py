"""Of which client is a message? A classifier, or clusters, of smashed data of all clients.

A server knows which connection a message comes from; but messages may be mixed on the way, or kept
without a name. So the attacker keeps the messages of the last round of training. With names it
knows the clients of every second message, and names those of the others; where each client sends
one message a round, its halves count as two. Without names it clusters messages, and the judge
gives each cluster the client that fits best.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simsplit.attacks.attack import AttackConfig, Done, KeepingAttack
from simsplit.attacks.kmeans import find_clusters
from simsplit.attacks.knowledge import Knowledge
from simsplit.attacks.member_attack import flatten_message
from simsplit.attacks.regression import classify
from simsplit.attacks.threat import Sees, Threat, When
from simsplit.legs import ClientId, Leg
from simsplit.methods.method import ANYTHING, Modality
from simsplit.packets import Packet

_MOST = 2**26
"""The most values of messages that are kept of a round."""


class SiteInferenceConfig(AttackConfig):
    """The client of a message, by smashed data of all clients in the last round."""

    kind: Literal["site_inference"] = "site_inference"
    names: bool = True
    """Whether it knows the clients of every second message, and names those of the others; if not,
    it clusters messages."""
    threat: ClassVar[Threat] = Threat((Sees.MESSAGES,), (), when=When.TRAINING)
    recovers: ClassVar[str] = "origins"
    modalities: ClassVar[frozenset[Modality]] = ANYTHING
    effort: ClassVar[tuple[str, ...]] = ()
    watches_all: ClassVar[bool] = True

    # None: it reads messages of training, of all clients, and no targets.
    num_epochs: ClassVar[int] = 0

    def build(self, known: Knowledge) -> "SiteInference":
        return SiteInference(self, known)


@dataclass(frozen=True)
class Origins:
    """Guesses at the clients of messages, of their samples or as a whole."""

    truth: Tensor
    """The client's place among those that sent messages."""
    guesses: Tensor
    """Such a place, or the number of a cluster."""


class SiteInference(KeepingAttack):
    """An attack that keeps the messages of the last round, and tells their clients."""

    config: SiteInferenceConfig

    def __init__(self, config: SiteInferenceConfig, known: Knowledge) -> None:
        super().__init__(config, known)
        self.origins: dict[str, Origins] = {}
        """What it tells of samples, and of messages as a whole."""
        self._sent: list[tuple[ClientId, Tensor]] = []
        self._round = 0

    def observe(self, packet: Packet) -> None:
        if packet.leg is not Leg.SMASHED:
            return
        if packet.round != self._round:
            self._round, self._sent = packet.round, []
        if sum(rows.numel() for _, rows in self._sent) < _MOST:
            self._sent.append((packet.client, flatten_message(self.known, packet)))

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        del targets
        who, second = self._number()
        if self.config.names and not second.any():
            self._sent = [(who, half) for who, rows in self._sent for half in rows.chunk(2)]
            who, second = self._number()
        self.origins = {}
        if len(who.unique()) > 1 and (second.any() or not self.config.names):
            told = self._name(who, second) if self.config.names else self._cluster(who)
            self.origins = dict(told)
        yield 1, 1

    def _number(self) -> tuple[Tensor, Tensor]:
        """Return the place of each message's client, and which are its second, fourth ..."""
        clients = torch.tensor([client for client, _ in self._sent])
        who = clients.unique(return_inverse=True)[1]
        before = [int((who[:n] == who[n]).sum()) for n in range(len(who))]
        return who, torch.tensor(before, dtype=torch.int64) % 2 == 1

    def _name(self, who: Tensor, second: Tensor) -> Iterator[tuple[str, Origins]]:
        """Name the clients of every second message by the messages before them."""
        known, read = (torch.nonzero(each)[:, 0].tolist() for each in (~second, second))
        scores = classify(self._join(known), self._repeat(who, known), self._join(read))
        yield "samples", Origins(self._repeat(who, read), scores.argmax(1))
        sizes = [len(self._sent[n][1]) for n in read]
        means = torch.stack([part.mean(0) for part in scores.split(sizes)])
        yield "messages", Origins(who[read], means.argmax(1))

    def _cluster(self, who: Tensor) -> Iterator[tuple[str, Origins]]:
        """Cluster samples, and messages by their means."""
        every, count, seed = range(len(who)), int(who.max()) + 1, self.known.seed
        rows = self._join(every)
        yield "samples", Origins(self._repeat(who, every), find_clusters(rows, count, 10, seed))
        means = torch.stack([rows.mean(0) for _, rows in self._sent])
        yield "messages", Origins(who, find_clusters(means, count, 10, seed))

    def _join(self, which: Sequence[int]) -> Tensor:
        """Return the rows of some messages."""
        return torch.cat([self._sent[n][1] for n in which])

    def _repeat(self, who: Tensor, which: Sequence[int]) -> Tensor:
        """Return the client of each row of some messages."""
        return torch.cat([who[n].expand(len(self._sent[n][1])) for n in which])
