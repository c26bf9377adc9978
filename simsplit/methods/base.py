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
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.needs import Given, Need, Needs, needs_leg
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
CUT_LEGS = frozenset({Leg.SMASHED, Leg.FEATURES, Leg.FEATURES_GRAD, Leg.SMASHED_GRAD})
"""Those on which a method may act."""
BACK: dict[Leg, Leg] = {Leg.SMASHED: Leg.SMASHED_GRAD, Leg.FEATURES: Leg.FEATURES_GRAD}
"""The leg that a forward leg's gradients come back on."""


class Trait(StrEnum):
    """What is true of a leg's batch at first, and may no longer be behind a method of the list."""

    SAMPLES = "samples"
    """A row is a sample, with its input and its label."""
    SHAPE = "shape"
    """It has the shape that the segment put out."""
    VALUES = "values"
    """Which of its values cross is not decided."""
    NUMBERS = "numbers"
    """On the wire a number stands for a value."""
    FORMAT = "format"
    """The number format on the wire is not decided."""


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
    """What a client may add to its texts: public texts, and tokens."""

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
        """Client, only for scoring attacks: which sent tokens are the texts' own; None: all."""
        return None


class MethodConfig(Config, ABC):
    """Base of a method's fields in a scenario; subclasses add `kind: Literal[...]`."""

    suits: ClassVar[frozenset[Modality]] = IMAGES
    """What it can be used on."""
    takes: ClassVar[frozenset[Trait]] = frozenset()
    """What it relies on; methods listed before it must have left it so."""
    ends: ClassVar[frozenset[Trait]] = frozenset()
    """What is no longer true behind it."""
    once: ClassVar[bool] = False
    """Whether a second one on the same leg makes no sense."""
    superposes: ClassVar[frozenset[Leg]] = frozenset()
    """The legs on which a row is more than one sample's."""
    reported: ClassVar[tuple[str, ...]] = ()
    """Columns that it adds to the `clients` table."""

    @property
    def needs(self) -> Needs:
        """What it cannot do without; override it and add to `super().needs`."""
        field = "legs" if "legs" in type(self).model_fields else "kind"
        legs = [leg for leg in self.acts_on if leg is not Leg.SMASHED]
        return (*suited(self.suits), *(needs_leg(leg, field) for leg in legs))

    @property
    def acts_on(self) -> tuple[Leg, ...]:
        """The forward legs that the method encodes."""
        return (Leg.SMASHED,)

    @property
    def unreadable(self) -> frozenset[Leg]:
        """The legs on which a packet says nothing to who does not remember the one before it."""
        return frozenset()

    def undoes(self) -> frozenset[Trait]:
        """What of `ends` it does end, by its options."""
        return self.ends

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """The per-sample shape after `encode`; raises ScenarioError at `where` if impossible."""
        return shape

    @abstractmethod
    def build(self, site: Site) -> Method:
        """The method's half for one site."""


def suited(suits: frozenset[Modality]) -> Needs:
    """What a part needs that can be used on these."""
    return () if len(suits) > 1 else tuple(Need(Given(modality)) for modality in suits)


class CodecConfig(MethodConfig):
    """Base of methods that can also shrink the feature legs."""

    legs: tuple[Literal["smashed", "features"], ...] = ("smashed",)
    """Which forward legs (with their gradients) to act on."""

    @property
    def acts_on(self) -> tuple[Leg, ...]:
        """The legs that the scenario names."""
        return tuple(Leg(leg) for leg in self.legs)
