"""An attack: what an honest-but-curious server, or an active one, makes of what it sees.

It is given what the server has (trunk, lift, perhaps the tail), what is public (the architecture,
what the methods broadcast, auxiliary data) and packets. Neither clients' data nor their weights are
within its reach; what it recovers is joined to the truth only when it is scored.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.data.samples import Vocabulary
from simsplit.methods import MethodConfig, Step
from simsplit.methods.base import IMAGES, Modality, suited
from simsplit.methods.stack import Stack, build_stack
from simsplit.models.fresh import InputShape, Shape, SplitConfig
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.feed import Feed
from simsplit.parties.learner import Learner
from simsplit.seeds import seed_for
from simsplit.states import below

Done = tuple[int, int]
"""So many of so many pieces of work."""


@dataclass
class Surrogate:
    """A client of the server's own making: the real one's layers, other weights."""

    head: nn.Module
    tail: nn.Module
    stack: Stack

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All that can learn on the way to what is sent."""
        return {"head": self.head, "method": self.stack.modules}


@dataclass(frozen=True)
class Knowledge:
    """What the server knows."""

    trunk: nn.Module
    """Live: what it is when it is looked at."""
    tail: nn.Module | None
    """Under a vanilla cut."""
    stack: Stack
    """The server's half of the methods."""
    model: SplitConfig
    methods: Sequence[MethodConfig]
    shapes: tuple[Shape, Shape]
    image: InputShape
    classes: int
    auxiliary: Feed | None
    """Public images with labels, in batches as large as the clients'."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    device: torch.device
    vocabulary: Vocabulary | None = None
    """Of texts."""
    learned: dict[Hashable, Mapping[str, Tensor]] = field(default_factory=dict)
    """What attacks of this run have learned that others would learn alike."""
    start: int = 0
    """The seed of the weights that training started from, which are public where pretrained."""

    def pretrained(self, owner: Literal["head", "trunk", "tail"]) -> nn.Module:
        """A segment as it was before training."""
        made = self.model.segment(owner, self.image, self.classes, self.start)
        return made.to(self.device)

    def step(self, packet: Packet) -> Step:
        """The server's view of the step that a packet belongs to; not to be trained on."""
        return Step(packet.client, packet.round, packet.step, self.seed, training=False)

    def sent(self, packet: Packet, step: Step) -> Tensor:
        """What a SMASHED packet holds."""
        return self.stack.unpack(Leg.SMASHED, packet.tensors, step)

    def smashed(self, packet: Packet) -> Tensor:
        """What a SMASHED packet is to the trunk, in the cut's shape: lifted, without a graph."""
        step = self.step(packet)
        with torch.no_grad(), inference(self.stack.modules):
            return self.stack.lift(self.sent(packet, step), step)

    def surrogate(self, *scope: str | int) -> Surrogate:
        """A client as the server can build one: told what all clients are told."""
        seed = seed_for(self.seed, "surrogate", *scope)
        stack = build_stack(self.methods, "client", self.shapes, seed, self.device)
        stack.hear(self.stack.announce())
        model = self.model
        return Surrogate(
            model.segment("head", self.image, self.classes, seed).to(self.device),
            model.segment("tail", self.image, self.classes, seed).to(self.device),
            stack,
        )

    def simulate(self, surrogate: Surrogate, batch: Batch, number: int) -> Tensor:
        """What would reach the trunk if the surrogate sent it a batch; differentiable."""
        step = Step(-1, 0, number, self.seed, labels=batch.labels)
        batch = surrogate.stack.transform(batch, step)
        sent = surrogate.stack.encode(surrogate.head(batch.inputs), step)
        with inference(self.stack.modules):
            return self.stack.lift(sent, step)[: len(batch.labels)]

    def outputs(self, surrogate: Surrogate, smashed: Tensor, number: int) -> Tensor:
        """What the network says of it: through the trunk as it infers, and the surrogate's tail, or
        the server's own; differentiable.
        """
        step = Step(-1, 0, number, self.seed)
        with inference(self.trunk), inference(self.stack.modules):
            features = self.stack.encode(self.trunk(smashed), step)
        if self.tail is None:
            out: Tensor = surrogate.tail(surrogate.stack.lift(features, step))
        else:
            with inference(self.tail):
                out = self.tail(features)
        return out

    def pixels(self, inputs: Tensor) -> Tensor:
        """Normalised images as pixels between 0 and 1."""
        return inputs * self._channels(self.std) + self._channels(self.mean)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels as heads take them."""
        return (pixels - self._channels(self.mean)) / self._channels(self.std)

    def public(self, number: int) -> Batch:
        """A batch of auxiliary data."""
        assert self.auxiliary is not None, "refused without when the scenario is read"
        return self.auxiliary.batch(number)

    def _channels(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=self.device).view(-1, 1, 1)


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """A block in which a module infers, whatever it did before."""
    before = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(before)


class AttackConfig(Config, ABC):
    """What a scenario says of one attack."""

    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    """What its rows are called; null: after its kind."""
    online: ClassVar[bool] = False
    """Whether it follows training packet by packet; others start from the targets alone."""
    active: ClassVar[bool] = False
    """Whether it changes what the server answers."""
    public: ClassVar[bool] = True
    """Whether it needs auxiliary data."""
    gradients: ClassVar[bool] = False
    """Whether it needs the gradients that clients send for the targets' features."""
    causal: ClassVar[bool] = False
    """Whether it needs a causal language model, which predicts tokens."""
    suits: ClassVar[frozenset[Modality]] = IMAGES
    """What it can recover."""

    @property
    def title(self) -> str:
        """What its rows are called."""
        return self.name or self.word

    @property
    def needs(self) -> Needs:
        """What it cannot do without; override it and add to `super().needs`."""
        wanted = [*suited(self.suits)]
        wanted += [Need(Given.PUBLIC)] if self.public else []
        wanted += [Need(Given.WATCHED)] if self.online else []
        wanted += [needs_leg(Leg.FEATURES_GRAD)] if self.gradients else []
        wanted += [Need(Given.CAUSAL)] if self.causal else []
        return tuple(wanted)

    @property
    def queries(self) -> int:
        """How many auxiliary images it has a client encode: a right that only ceilings claim."""
        return 0

    @abstractmethod
    def build(self, known: Knowledge) -> "Attack":
        """The attack, told what the server knows; it has seen no packet yet."""


class Attack(ABC):
    """One attack in progress. Rows of what it recovers are the targets' samples, in order."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known
        self.learners: dict[str, Learner] = {}
        """Its networks and their optimizers."""
        self.iteration = 0

    def observe(self, packet: Packet) -> None:
        """See a packet of training on its way."""
        del packet

    def answer(self, packet: Packet) -> Packet:
        """An active attack's change to a packet that the server sends."""
        return packet

    def study(self, queries: Sequence[tuple[Packet, Tensor]]) -> None:
        """Take in what a client sent for images that the server chose."""
        del queries

    @abstractmethod
    def work(self, targets: Sequence[Packet]) -> Iterator[Done]:
        """Recover the targets' images, piece by piece; between two pieces its state can be kept."""

    @property
    @abstractmethod
    def recovered(self) -> Tensor:
        """Pixels, as far as they are recovered."""

    def state(self) -> dict[str, Tensor]:
        """All that the next iteration depends on."""
        held = {
            f"{name}/{key}": tensor
            for name, learner in self.learners.items()
            for key, tensor in learner.state().items()
        }
        return {**held, "iteration": torch.tensor(self.iteration)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""
        self.iteration = int(state["iteration"])
        for name, learner in self.learners.items():
            learner.load(below(state, f"{name}/"))


def payloads(targets: Sequence[Packet]) -> list[Packet]:
    """Only the packets of smashed data."""
    return [packet for packet in targets if packet.leg is Leg.SMASHED]


class Following(Attack):
    """An attack that takes an iteration for every step of training."""

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._smashed: dict[ClientId, Tensor] = {}
        self._labels: dict[ClientId, Tensor] = {}
        self._recovered = torch.empty(0)

    def observe(self, packet: Packet) -> None:
        """Remember what was sent; learn from it once it is answered."""
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
        """Learn from what a client sent."""

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
        """What `work` came to."""
        return self._recovered


def descend(learner: Learner, loss: Tensor) -> None:
    """One step of a learner down a loss; no other weight that the loss depends on takes notice."""
    loss.backward(inputs=learner.parameters)
    learner.step()
    learner.clear()
