"""An attack: what an honest-but-curious server, or an active one, makes of what it sees.

It is given what the server has (trunk, lift, perhaps the tail), what is public (the architecture,
what the methods broadcast, auxiliary data) and packets. Neither clients' data nor their weights are
within its reach, but for upper bounds (`queries`, `shown`), which no server could deploy; what it
recovers is joined to the truth only when it is scored.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import is_not
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.attacks.pretrained import Pretrained
from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.data.samples import Vocabulary
from simsplit.methods import MethodConfig, Step
from simsplit.methods.base import IMAGES, TEXTS, Modality, suited
from simsplit.methods.stack import Stack, build_stack
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.fresh import InputShape, Shape, SplitConfig
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.feed import Feed
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.seeds import seed_for
from simsplit.states import below

if TYPE_CHECKING:
    from simsplit.attacks.views import View, ViewName

Done = tuple[int, int]
"""(pieces of work done, pieces in all)."""
Recovers = Literal["inputs", "labels", "sessions"]


@dataclass
class Surrogate:
    """A client that the server builds itself: the real one's layers, other weights."""

    head: nn.Module
    tail: nn.Module
    stack: Stack

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Everything that learns on the way to what is sent."""
        return {"head": self.head, "method": self.stack.modules}


class Served(Protocol):
    """A whole transformer, and what a batch's packets (by leg) come to in other calls."""

    def base(self, batch: Mapping[Leg, Packet]) -> Tensor:
        """The features without what clients trained, N x D."""

    def adapter_gradients(self, known: "Knowledge", batch: Mapping[Leg, Packet]) -> Tensor:
        """Of each sample and adapter, N x n x values."""

    def replies(self, adapters: Tensor, inputs: Sequence[Tensor], message: Tensor) -> Tensor:
        """What each sample's row of a message comes to alone, N x n x P."""


@dataclass
class Seen:
    """Views of packets by name; those of other packets are dropped."""

    packets: Sequence[Packet] = ()
    views: "dict[ViewName, list[View]]" = field(default_factory=dict)

    def of(self, packets: Sequence[Packet]) -> "dict[ViewName, list[View]]":
        """The views of these packets, to look at and to add to."""
        if len(packets) != len(self.packets) or any(map(is_not, packets, self.packets)):
            self.packets, self.views = packets, {}
        return self.views


@dataclass(frozen=True)
class Knowledge:
    """What the server knows: its segments, its half of the methods, public data."""

    trunk: nn.Module
    """The live trunk, as trained so far."""
    tail: nn.Module | None
    """Only under a vanilla cut."""
    stack: Stack
    """The server's half of the methods."""
    model: SplitConfig
    methods: Sequence[MethodConfig]
    shapes: tuple[Shape, Shape]
    image: InputShape
    classes: int
    auxiliary: Feed | None
    """Public samples with labels, in batches as large as the clients'."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    device: torch.device
    pretrained: Pretrained
    vocabulary: Vocabulary | None = None
    """Only of texts."""
    learned: dict[Hashable, Mapping[str, Tensor]] = field(default_factory=dict)
    """Networks that attacks of this run have trained and others can reuse."""
    served: "Served | None" = None
    """What the server of a whole transformer can compute of a batch by itself."""
    seen: "Seen" = field(default_factory=lambda: Seen())
    """What attacks of this judgement have made of the targets, and others can look at."""
    optimizer: OptimizerConfig | None = None
    """The clients' optimizer: a setting, as papers print it."""
    factor: Callable[[int], float] = lambda number: 1.0
    """What its learning rate is multiplied by in a round."""
    servers: int = 1
    """How many servers gradients' messages go to in turn, of which this is the first."""

    def step(self, packet: Packet) -> Step:
        """The server's view of a packet's step, outside of training."""
        return Step(packet.client, packet.round, packet.step, self.seed, training=False)

    def message(self, packet: Packet) -> Tensor:
        """A packet's payload as the server reads it; of several messages the first, which is what
        one of several servers sees.
        """
        with torch.no_grad():
            first = self.stack.messages(packet.leg, packet.tensors)[0]
            return self.stack.unpack(packet.leg, first, self.step(packet)).float()

    def sent(self, packet: Packet, step: Step) -> Tensor:
        """The payload of a packet of smashed data; in fp32, whatever clients compute in."""
        return self.stack.unpack(Leg.SMASHED, packet.tensors, step).float()

    def smashed(self, packet: Packet) -> Tensor:
        """A packet's smashed data as the trunk gets them: lifted to the cut's shape, detached."""
        step = self.step(packet)
        with torch.no_grad(), inference(self.stack.modules):
            return self.stack.lift(self.sent(packet, step), step)

    def crossed(self, packet: Packet) -> Tensor:
        """A packet's payload, a flat row for each sample, detached.

        As it was sent; where a row is of several samples, as the trunk gets it.
        """
        with torch.no_grad():
            sent, lifted = self.sent(packet, self.step(packet)), self.smashed(packet)
        return (sent if len(sent) == len(lifted) else lifted).flatten(1).float()

    def surrogate(self, *scope: str | int) -> Surrogate:
        """A client as the server can build it, with what is announced to all clients."""
        seed = seed_for(self.seed, "surrogate", *scope)
        model = self.model
        return Surrogate(
            model.segment("head", self.image, self.classes, seed).to(self.device),
            model.segment("tail", self.image, self.classes, seed).to(self.device),
            self.client_stack(*scope),
        )

    def client_stack(self, *scope: str | int) -> Stack:
        """A client's half of the methods, as the server can simulate it."""
        seed = seed_for(self.seed, "surrogate", *scope)
        served = isinstance(self.model, AdaptedClassifier)
        stack = build_stack(self.methods, "client", self.shapes, seed, self.device, adapters=served)
        stack.hear(self.stack.announce())
        return stack

    def simulate(self, surrogate: Surrogate, batch: Batch, number: int) -> Tensor:
        """What would reach the trunk if the surrogate sent a batch; differentiable."""
        step = Step(-1, 0, number, self.seed, labels=batch.labels)
        batch = surrogate.stack.transform(batch, step)
        sent = surrogate.stack.encode(surrogate.head(batch.inputs), step)
        with inference(self.stack.modules):
            return self.stack.lift(sent, step)[: len(batch.labels)]

    def outputs(self, surrogate: Surrogate, smashed: Tensor, number: int) -> Tensor:
        """The network's outputs for smashed data: trunk in inference mode, then the surrogate's or
        the server's tail; differentiable.
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
        """Normalised images as pixels between 0 and 1; rows of numbers as they are."""
        if not self.mean:
            return inputs
        return inputs * self._channels(self.std) + self._channels(self.mean)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels, normalised as the heads' inputs are."""
        return (pixels - self._channels(self.mean)) / self._channels(self.std)

    def public(self, number: int) -> Batch:
        """Batch `number` of auxiliary data."""
        assert self.auxiliary is not None, "refused without when the scenario is read"
        return self.auxiliary.batch(number)

    def _channels(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=self.device).view(-1, 1, 1)


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """A context in which a module is in inference mode."""
    before = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(before)


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
    recovers: ClassVar[Recovers] = "inputs"
    """What it is after: each has a judge and a table of its own. Sessions are texts that clients'
    models write, seen from the prompt's first token to the last that crosses."""
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
        wanted += [needs_leg(Leg.SMASHED)] if self.recovers == "inputs" else []
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
