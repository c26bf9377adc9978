"""What a method at the cut is: a set of hooks, each of which defaults to doing nothing.

A method object lives at one side of the cut (`Site`) and never sees its counterpart: what the other
side must know travels in packets. Learned parts are its `module`, stepped by that side's optimizer.

    client                                   wire                server
    batch = transform(batch)
    z     = encode(head(x))      pack  --- SMASHED ------>  unpack; lift
    u     = decode(...)        unpack  <-- FEATURES ------  pack
    tail_loss, outgoing(grad)    pack  --- FEATURES_GRAD ->  unpack
    loss, accept               unpack  <-- SMASHED_GRAD --  pack

A method that acts on the feature leg is built a second time for it, with the roles of the two sides
exchanged: the server encodes, the client lifts. `pack` and `unpack` are the wire format (a cast, an
index list): they act on detached tensors, so gradients pass them straight through.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.packets import ClientId, Leg
from simsplit.phases import Aside, Phase
from simsplit.seeds import Scope, rng_for

Side = Literal["client", "server"]
Shape = tuple[int, ...]
Modality = Literal["images", "texts"]
Loss = Callable[[Tensor, Tensor], Tensor]
IMAGES: frozenset[Modality] = frozenset({"images"})
TEXTS: frozenset[Modality] = frozenset({"texts"})
ANYTHING = IMAGES | TEXTS


@dataclass(frozen=True)
class Site:
    """Where a method is being built: which side, which leg, and the shape that reaches it."""

    side: Side
    leg: Leg
    shape: Shape
    seed: int
    device: torch.device
    where: str = "method"

    @property
    def sends(self) -> bool:
        """Whether this side encodes (and the other lifts) on this leg."""
        return (self.side == "client") == (self.leg is Leg.SMASHED)

    @property
    def size(self) -> int:
        """Values per sample before encoding."""
        return int(torch.Size(self.shape).numel())


class Stock(Protocol):
    """What a client may add to its texts: public ones, and words."""

    vocabulary: int
    pad: int

    def support(self, count: int, rows: int, rng: torch.Generator) -> Sequence[Batch]:
        """So many batches of so many public texts."""


@dataclass(slots=True)
class Step:
    """One side's view of one mini-batch; `memo` carries what a method needs from hook to hook."""

    client: ClientId
    round: int
    number: int
    seed: int
    training: bool = True
    labels: Tensor | None = None
    phase: str = "train"
    stock: Stock | None = None
    """On a client of texts."""
    memo: dict[Any, Any] = field(default_factory=dict)

    def rng(self, *scope: Scope) -> torch.Generator:
        """This step's own stream for one purpose; the two sides' streams are unrelated."""
        mode = "train" if self.training else "evaluate"
        return rng_for(self.seed, mode, self.client, self.round, self.number, *scope)


@dataclass(frozen=True)
class Share:
    """One gradient message, and the secret weight with which its reply enters the sum."""

    grad: Tensor
    weight: float = 1.0


class Method:
    """Base class of what happens at the cut; override only the hooks that matter.

    >>> class Halve(Method):
    ...     def encode(self, z, step):
    ...         return z / 2
    """

    module: nn.Module | None = None
    """Learned parts on this side, stepped by this side's optimizer."""
    num_side: int = 0
    """How many tensors `pack` adds beside the payload (scales, indices)."""
    num_side_back: int | None = None
    """The same of gradients on their way back, where these are others."""

    lifts_by_packet: ClassVar[bool] = False
    """Whether `lift` depends on which rows came in one packet."""

    def announce(self) -> tuple[Tensor, ...]:
        """Server: what every client is told before training (counted as BROADCAST)."""
        return ()

    def hear(self, tensors: tuple[Tensor, ...]) -> None:
        """Client: take in what the server announced."""

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Client: change the batch before the head (add support samples, secret tokens)."""
        return batch

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Sender: turn the segment's output into what is sent; differentiable."""
        return z

    def lift(self, z: Tensor, step: Step) -> Tensor:
        """Receiver: turn what arrived into the next segment's input; differentiable."""
        return z

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Client: turn the returned features into the tail's input; differentiable."""
        return u

    def loss(self, step: Step) -> Tensor | None:
        """Client: a term on what was encoded, added on the way back through the head."""
        return None

    def task_loss(self, outputs: Tensor, labels: Tensor, loss: Loss, step: Step) -> Tensor | None:
        """Client: the task's loss, where it is another than that of the batch's labels."""
        return None

    def tail_loss(self, step: Step) -> Tensor | None:
        """Client: a term on what was decoded, added to the task's loss."""
        return None

    def outgoing(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """Client: the messages that stand for one feature gradient."""
        return (Share(grad),)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Either side: the wire format of a payload or gradient, payload first; no graph."""
        return (x,)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Either side: the inverse of `pack`, as near as the format allows."""
        return tensors[0]

    def accept(self, head: nn.Module, step: Step) -> bool:
        """Client: look at the head's gradients; False: do not learn from this step."""
        return True

    def report(self) -> dict[str, float]:
        """Client: figures for its row of the `clients` table (the config's `reported`)."""
        return {}

    def plan(self, rounds: int) -> Sequence[Phase]:
        """Phases to run before the `rounds` of training proper."""
        return ()

    def aside(self) -> Aside | None:
        """Client: what to do in between the steps of training proper."""
        return None

    def own(self, step: Step) -> Tensor | None:
        """Client, for whoever judges an attack: which words of what was sent are the texts' own."""
        return None


class MethodConfig(Config, ABC):
    """Base of a method's fields in a scenario; subclasses add `kind: Literal[...]`."""

    suits: ClassVar[frozenset[Modality]] = IMAGES
    """What it can be used on."""
    public: ClassVar[bool] = False
    """Whether it needs public data."""
    pads_right: ClassVar[bool] = False
    """Whether it needs texts that are padded on the right."""
    superposes: ClassVar[bool] = False
    """Whether a row on the smashed legs is more than one sample's."""
    reported: ClassVar[tuple[str, ...]] = ()
    """Columns that it adds to the `clients` table."""

    @property
    def acts_on(self) -> tuple[Leg, ...]:
        """The forward legs that the method encodes."""
        return (Leg.SMASHED,)

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """The per-sample shape after `encode`; raises ScenarioError at `where` if impossible."""
        return shape

    @abstractmethod
    def build(self, site: Site) -> Method:
        """The method's half for one site."""


class CodecConfig(MethodConfig):
    """Base of methods that can also shrink the feature legs."""

    legs: tuple[Literal["smashed", "features"], ...] = ("smashed",)
    """Which forward legs (with their gradients) to act on."""

    @property
    def acts_on(self) -> tuple[Leg, ...]:
        """The legs that the scenario names."""
        return tuple(Leg(leg) for leg in self.legs)
