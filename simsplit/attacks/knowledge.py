"""What the server knows: what it has, what is public, and what it has made of packets so far.

It has the trunk, the lift and perhaps the tail. The architecture, what the methods broadcast and
auxiliary data are public. Neither clients' data nor their weights are within its reach, but for
upper bounds (`queries`, `shown`), which no server could deploy.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import is_not
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from simsplit.attacks.pretrained import Pretrained
from simsplit.data.batches import Batch
from simsplit.data.samples import Vocabulary
from simsplit.methods import MethodConfig, Step
from simsplit.methods.stack import Stack, build_stack
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.fresh import InputShape, Shape, SplitConfig
from simsplit.packets import Leg, Packet
from simsplit.parties.feed import Feed
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.seeds import seed_for

ViewName = Literal["features", "shift", "gradient", "direction", "adapter_gradient"]


class SeenView(NamedTuple):
    """One thing that the server sees of all targets."""

    name: ViewName
    adapter: int
    rows: Tensor
    """N x D, the targets in order."""


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


class ServedTransformer(Protocol):
    """A whole transformer, and what a batch's packets (by leg) come to in other calls."""

    def base(self, batch: Mapping[Leg, Packet]) -> Tensor:
        """The features without what clients trained, N x D."""

    def adapter_gradients(self, known: "Knowledge", batch: Mapping[Leg, Packet]) -> Tensor:
        """Of each sample and adapter, N x n x values."""

    def replies(self, adapters: Tensor, inputs: Sequence[Tensor], message: Tensor) -> Tensor:
        """What each sample's row of a message comes to alone, N x n x P."""


@dataclass
class SeenViews:
    """Views of packets by name; those of other packets are dropped."""

    packets: Sequence[Packet] = ()
    views: dict[ViewName, list[SeenView]] = field(default_factory=dict)

    def of(self, packets: Sequence[Packet]) -> dict[ViewName, list[SeenView]]:
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
    served: ServedTransformer | None = None
    """What the server of a whole transformer can compute of a batch by itself."""
    seen: SeenViews = field(default_factory=SeenViews)
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
