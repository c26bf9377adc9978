"""What attacks on texts share: the pretrained segments that everybody has, and an inverter.

A language model's pretrained weights are public, so the server starts from the very head and tail
that clients started from. An inverter (SIP's) learns to read tokens off what that head puts out,
scaled to a root mean square of 1 so that small models are learned from as fast as large ones.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from simsplit.attacks.base import Attack, AttackConfig, Done, Knowledge, descend
from simsplit.data.samples import Vocabulary
from simsplit.errors import ProtocolError
from simsplit.methods.base import TEXTS, Modality
from simsplit.packets import Leg, Packet
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import AdamConfig
from simsplit.seeds import isolated

NOTHING = -1
"""Label of padding: nothing is learned there."""


class TextAttackConfig(AttackConfig):
    """Base of the attacks on texts."""

    suits: ClassVar[frozenset[Modality]] = TEXTS


class InverterConfig(TextAttackConfig):
    """Options of the inverter and its training."""

    hidden: int = Field(default=256, ge=1)
    """Width of the recurrent layer."""
    bidirectional: bool = False
    """Whether the recurrent layer reads backwards too."""
    iterations: int = Field(default=400, ge=1)
    """Training steps, a batch of public texts each."""
    lr: float = Field(default=1e-3, gt=0)
    """Adam's learning rate."""


class Inverter(nn.Module):
    """A recurrent layer, and logits over tokens at every position."""

    def __init__(self, width: int, vocabulary: int, config: InverterConfig) -> None:
        super().__init__()
        self.recurrent = nn.GRU(
            width, config.hidden, batch_first=True, bidirectional=config.bidirectional
        )
        self.words = nn.Linear(config.hidden * (1 + config.bidirectional), vocabulary)

    def forward(self, z_BLD: Tensor) -> Tensor:
        out: Tensor = self.words(self.recurrent(z_BLD)[0])
        return out


@dataclass(frozen=True)
class Seen:
    """The packets of one batch of targets."""

    smashed: Packet
    features: Packet | None
    gradient: Packet | None


class TextAttack(Attack):
    """An attack on texts: training steps, then batch by batch."""

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._recovered: list[Tensor] = []
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
        self._recovered = []
        for number, seen in enumerate(batches, 1):
            self._recovered.append(self.recover(seen).cpu())
            yield learning + number, learning + len(batches)

    @property
    def steps(self) -> int:
        """Number of training steps before anything is recovered."""
        return 0

    def learn(self, number: int) -> None:
        """Take learning step `number`."""

    @abstractmethod
    def recover(self, seen: Seen) -> Tensor:
        """The tokens of each row that a client sent, R x L."""

    @property
    def recovered(self) -> Tensor:
        """The tokens of all batches, padded to the longest."""
        longest = max((part.shape[1] for part in self._recovered), default=0)
        filled = [
            nn.functional.pad(part, (0, longest - part.shape[1]), value=NOTHING)
            for part in self._recovered
        ]
        return torch.cat(filled) if filled else torch.empty(0, 0, dtype=torch.int64)


class Inverting(TextAttack):
    """An attack that reads tokens off a head's output."""

    def __init__(self, config: InverterConfig, known: Knowledge) -> None:
        super().__init__(known)
        self.config = config
        with isolated(known.seed, "inverter"):
            made = Inverter(known.shapes[0][-1], self.vocabulary.size, config)
        self.inverter = made.to(known.device)
        self.head = known.pretrained("head").eval()
        with torch.no_grad():
            batch = known.public(0)
            self.size = self.head(batch.inputs, *batch.context).square().mean().sqrt()
        adam = AdamConfig(lr=config.lr)
        self.learners["inverter"] = Learner({"inverter": self.inverter}, adam)

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Reuse an equal inverter that another attack of the run has trained, if there is one."""
        config = self.config
        alike = (config.hidden, config.bidirectional, config.iterations, config.lr)
        if self.iteration < config.iterations and alike in self.known.learned:
            self.inverter.load_state_dict(self.known.learned[alike])
            self.iteration = config.iterations
        for done, total in super().work(targets):
            if done == config.iterations:
                trained = self.inverter.state_dict()
                self.known.learned[alike] = {name: w.clone() for name, w in trained.items()}
            yield done, total

    @property
    def steps(self) -> int:
        """How many learning steps the inverter takes."""
        return self.config.iterations

    def learn(self, number: int) -> None:
        """Train on a public batch: tokens from the pretrained head's output."""
        self.learners["inverter"].train(True)
        batch = self.known.public(number)
        with torch.no_grad():
            hidden = self.head(batch.inputs, *batch.context)
        tokens = batch.inputs.masked_fill(batch.inputs == self.vocabulary.pad, NOTHING)
        read = self.inverter(hidden / self.size)
        loss = cross_entropy(read.flatten(0, 1), tokens.flatten(), ignore_index=NOTHING)
        descend(self.learners["inverter"], loss)

    def read(self, hidden_BLD: Tensor) -> Tensor:
        """The likeliest token at each position."""
        self.inverter.eval()
        with torch.no_grad():
            tokens: Tensor = self.inverter(hidden_BLD / self.size).argmax(-1)
        return tokens


def by_batch(targets: Sequence[Packet]) -> list[Seen]:
    """The targets' packets, grouped by batch."""
    found: list[Seen] = []
    for packet in targets:
        if packet.leg is Leg.SMASHED:
            found.append(Seen(packet, None, None))
        elif packet.leg is Leg.FEATURES:
            found[-1] = Seen(found[-1].smashed, packet, None)
        elif packet.leg is Leg.FEATURES_GRAD:
            found[-1] = Seen(found[-1].smashed, found[-1].features, packet)
    return found


def payload(known: Knowledge, packet: Packet) -> Tensor:
    """The payload of one of the targets' packets, unpacked by the server."""
    step = known.step(packet)
    message = known.stack.messages(packet.leg, packet.tensors)[0]
    return known.stack.unpack(packet.leg, message, step)


def messages_of(known: Knowledge) -> int:
    """How many mixtures a client sends per batch, which is no secret."""
    counts = [getattr(method, "messages", 1) for method in known.methods]
    return max(counts, default=1)


def split_messages(x_RLD: Tensor, messages: int) -> Tensor:
    """Rows of a packet by message: M x B x L x D."""
    if len(x_RLD) % messages:
        raise ProtocolError(f"{len(x_RLD)} rows are not those of {messages} messages")
    rows: Tensor = x_RLD.unflatten(0, (messages, -1))
    return rows
