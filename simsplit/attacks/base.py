"""An attack: what an honest-but-curious server, or an active one, makes of what it sees.

It is given what the server knows (see `knowledge`) and packets. What it recovers is joined to the
truth only when it is scored.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from simsplit.attacks.knowledge import Knowledge
from simsplit.config import Config
from simsplit.methods.base import IMAGES, TEXTS, Modality, suited
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.learner import Learner
from simsplit.states import below

Done = tuple[int, int]
"""(pieces of work done, pieces in all)."""


class AttackConfig(Config, ABC):
    """Base of an attack's fields in a scenario."""

    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    """Name of its rows in tables; null: its kind."""
    online: ClassVar[bool] = False
    """Whether it follows training packet by packet; other attacks get the targets' packets only."""
    active: ClassVar[bool] = False
    """Whether it changes what the server sends."""
    public: ClassVar[bool] = True
    """Whether it needs auxiliary data."""
    shown: ClassVar[bool] = False
    """Whether it is shown the images behind each packet of training; only for upper bounds."""
    gradients: ClassVar[bool] = False
    """Whether it needs the gradients that clients send for the targets' features."""
    causal: ClassVar[bool] = False
    """Whether it needs a causal language model, which predicts tokens."""
    suits: ClassVar[frozenset[Modality]] = IMAGES
    """The kinds of data that it can recover."""
    recovers: ClassVar[str] = "inputs"
    """The kind of things that it is after, a key of `results.recovers.RECOVERS`: each has a judge
    and a table of its own."""
    reads_smashed: ClassVar[bool] = True
    """Whether it needs packets of smashed data."""
    mixes_targets: ClassVar[bool] = False
    """Whether targets are encoded in a drawn order, unless `targets.order` says otherwise."""
    effort: ClassVar[tuple[str, ...]] = ("iterations",)
    """The fields that say how long it works; `targets.curve` scores it with less of them."""

    @property
    def title(self) -> str:
        """The name of its rows."""
        return self.name or self.word

    @property
    def needs(self) -> Needs:
        """What it needs from the rest of the scenario; override it and add to `super().needs`."""
        wanted = [*suited(self.suits)]
        wanted += [needs_leg(Leg.SMASHED)] if self.reads_smashed else []
        wanted += [Need(Given.PUBLIC)] if self.public else []
        wanted += [Need(Given.WATCHED)] if self.online else []
        wanted += [needs_leg(Leg.FEATURES_GRAD)] if self.gradients else []
        wanted += [Need(Given.CAUSAL)] if self.causal else []
        return tuple(wanted)

    @property
    def exposures(self) -> int:
        """In how many epochs it sees the targets' packets."""
        return 1

    @property
    def queries(self) -> int:
        """How many auxiliary images a client encodes for it; only for upper bounds."""
        return 0

    @abstractmethod
    def build(self, known: Knowledge) -> "Attack":
        """The attack, told what the server knows; it has seen no packet yet."""


class TextAttackConfig(AttackConfig):
    """Base of the attacks on texts."""

    suits: ClassVar[frozenset[Modality]] = TEXTS


@dataclass(frozen=True)
class Guesses:
    """What an attack recovered, as the judge gets it."""

    rows: Tensor
    """Pixels, or tokens."""
    sureness: Tensor | None = None
    """How sure the attack is of each row; None: it has one guess, or cannot tell."""
    ahead: bool = False
    """Whether the token at a place is the text's next one after it, not the one there."""


class Attack(ABC):
    """One attack on a run. Rows of what it recovers are the targets, in order."""

    ahead: ClassVar[bool] = False
    """Whether it recovers labels: at the place of a token, the one that follows it in the text."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known
        self.learners: dict[str, Learner] = {}
        """Its networks and their optimizers."""
        self.iteration = 0

    def show(self, client: ClientId, pixels: Tensor) -> None:
        """Be shown the images of the step that a client begins (`shown`)."""
        del client, pixels

    def observe(self, packet: Packet) -> None:
        """See a packet of training."""
        del packet

    def answer(self, packet: Packet) -> Packet:
        """Active attacks: replace a packet that the server sends."""
        return packet

    def study(self, queries: Sequence[tuple[Packet, Tensor]]) -> None:
        """Receive the packets of the images that it had a client encode (`queries`)."""
        del queries

    @abstractmethod
    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Recover the targets in pieces; its state can be saved between two pieces."""

    @property
    @abstractmethod
    def recovered(self) -> Tensor:
        """What is recovered so far: pixels, or tokens."""

    @property
    def sureness(self) -> Tensor | None:
        """How sure it is of each row, if targets have several rows each."""
        return None

    def guesses(self) -> Guesses:
        """All that it tells the judge."""
        sure = self.sureness
        rows = self.recovered.cpu()
        return Guesses(rows, None if sure is None else sure.cpu(), self.ahead)

    def state(self) -> dict[str, Tensor]:
        """Everything that the next iteration depends on, as tensors."""
        held = {
            f"{name}/{key}": tensor
            for name, learner in self.learners.items()
            for key, tensor in learner.state().items()
        }
        return {**held, "iteration": torch.tensor(self.iteration)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.iteration = int(state["iteration"])
        for name, learner in self.learners.items():
            learner.load(below(state, f"{name}/"))


def payloads(targets: Sequence[Packet]) -> list[Packet]:
    """Only the packets of smashed data."""
    return [packet for packet in targets if packet.leg is Leg.SMASHED]


class Following(Attack):
    """An attack that takes one iteration for every step of training."""

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._smashed: dict[ClientId, Tensor] = {}
        self._labels: dict[ClientId, Tensor] = {}
        self._recovered = torch.empty(0)

    def observe(self, packet: Packet) -> None:
        """Keep smashed data until they are answered, then take an iteration on them."""
        if packet.leg is Leg.SMASHED:
            self._smashed[packet.client] = self.known.smashed(packet)
        elif packet.leg is Leg.LABELS:
            self._labels[packet.client] = packet.tensors[0].clone()
        elif packet.leg is Leg.SMASHED_GRAD and packet.client in self._smashed:
            smashed = self._smashed.pop(packet.client)
            self.iterate(smashed, self._labels.pop(packet.client, None))
            self.iteration += 1

    @abstractmethod
    def iterate(self, smashed: Tensor, labels: Tensor | None) -> None:
        """Learn from the smashed data of one step."""

    @abstractmethod
    def invert(self, smashed: Tensor, labels: Tensor | None) -> Tensor:
        """Reconstruct inputs from smashed data: pixels, N x C x H x W."""

    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Reconstruct all targets in one pass."""
        labels = [packet for packet in targets if packet.leg is Leg.LABELS]
        told = torch.cat([packet.tensors[0] for packet in labels]) if labels else None
        smashed = torch.cat([self.known.smashed(packet) for packet in payloads(targets)])
        with torch.no_grad():
            self._recovered = self.invert(smashed, told)
        yield 1, 1

    @property
    def recovered(self) -> Tensor:
        return self._recovered


def descend(learner: Learner, loss: Tensor) -> None:
    """One optimizer step down a loss; gradients of no other weights are changed."""
    loss.backward(inputs=learner.parameters)
    learner.step()
    learner.clear()
