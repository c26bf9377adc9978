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
from simsplit.methods.clipping import Release, Response
from simsplit.methods.tokens import Tokens
from simsplit.needs import Given, Need, Needs, needs_leg
from simsplit.packets import ClientId, Leg
from simsplit.phases import TRAIN, Aside, Phase, Segment
from simsplit.seeds import Scope, rng_for

Side = Literal["client", "server"]
Shape = tuple[int, ...]
Modality = Literal["images", "texts", "tables"]
Loss = Callable[[Tensor, Tensor], Tensor]
IMAGES: frozenset[Modality] = frozenset({"images"})
TEXTS: frozenset[Modality] = frozenset({"texts"})
TABLES: frozenset[Modality] = frozenset({"tables"})
NUMBERS = IMAGES | TABLES
ANYTHING = NUMBERS | TEXTS
CUT_LEGS = frozenset({Leg.SMASHED, Leg.FEATURES, Leg.FEATURES_GRAD, Leg.SMASHED_GRAD})
"""The legs on which a method can act."""
BACK: dict[Leg, Leg] = {Leg.SMASHED: Leg.SMASHED_GRAD, Leg.FEATURES: Leg.FEATURES_GRAD}
"""The leg that carries the gradients of each forward leg."""


class Trait(StrEnum):
    """A property that a leg's batch has at first; a method may end it for those that follow."""

    SAMPLES = "samples"
    """A row is one sample, with its input and its label."""
    ALONE = "alone"
    """Other texts may still be sent along: no method has kept something of the rows there are."""
    SHAPE = "shape"
    """Payloads have the shape of the segment's output."""
    VALUES = "values"
    """It is still open which values are sent."""
    NUMBERS = "numbers"
    """Each number on the wire stands for one value."""
    FORMAT = "format"
    """The number format on the wire is still open."""


@dataclass(frozen=True)
class Labels:
    """What is known of the labels before training; nothing where an attacker builds a method."""

    classes: int = 0
    shares: tuple[float, ...] = ()
    """Of all clients' training samples, the share of each class."""


@dataclass(frozen=True)
class Site:
    """Where a method is built: the side, the leg, and the shape of what reaches it."""

    side: Side
    leg: Leg
    shape: Shape
    seed: int
    device: torch.device
    where: str = "method"
    features: Shape = ()
    """Shape of the trunk's output per sample."""
    labels: Labels = Labels()
    adapters: bool = False
    """Whether features come of several adapter sets, on the axis after the samples."""
    tokens: Tokens | None = None
    """Only on clients of texts, for methods that say `reads_tokens`."""
    tail: nn.Module | None = None
    """The tail as everybody knows it, before training and frozen: only on clients that have one,
    for methods that say `reads_tail`."""

    @property
    def sets(self) -> int:
        """How many adapter sets features come of; 0 where there is no such axis."""
        return self.features[0] if self.adapters else 0

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
    size: int
    """How many public texts there are."""

    def support(self, count: int, rows: int, rng: torch.Generator) -> Sequence[Batch]:
        """This many batches of this many public texts."""

    def texts(self, rows: Tensor) -> Batch:
        """The public texts of these numbers."""


class Ongoing(Protocol):
    """A session, as methods see it: what is kept of a text that goes on token by token."""

    seen: int
    """Tokens of each text so far, with those of this pass."""
    mask: Tensor | None
    """Of all these, which are real; None if all are."""

    def past(self, name: str) -> Any:  # noqa: ANN401 - transformers is not imported for its types
        """A cache (transformers' DynamicCache) of this name, for this session alone."""


@dataclass(slots=True)
class Step:
    """One side's view of one mini-batch; `memo` holds what a method keeps from hook to hook."""

    client: ClientId
    round: int
    number: int
    seed: int
    training: bool = True
    labels: Tensor | None = None
    phase: str = TRAIN
    stage: str = TRAIN
    """The phase that the run is in, in evaluation too."""
    stock: Stock | None = None
    """Only on clients of texts."""
    reading: str = ""
    """In evaluation: the way that a control asks for; empty: as the scenario says."""
    mask: Tensor | None = None
    """Client: which tokens are real, of texts that cross with a mask."""
    session: Ongoing | None = None
    """Client: the session that it is a pass of, if it is one."""
    embedded: Tensor | None = None
    """Client, in training: what the head embeds, where a method `reaches_head`."""
    outputs: Tensor | None = None
    """Client, for `tail_loss`: what the tail makes of the features."""
    task: Tensor | None = None
    """Client, for `tail_loss`: the task's loss on these."""
    memo: dict[Any, Any] = field(default_factory=dict)
    told: dict[str, float | Tensor] = field(default_factory=dict)
    """Figures of the step, whose means over a round stand in the client's row of the `clients`
    table; the config's `reported` names them."""

    def rng(self, *scope: Scope) -> torch.Generator:
        """A random stream for one purpose in this step; the two sides' streams are independent."""
        mode = "train" if self.training else "evaluate"
        return rng_for(self.seed, mode, self.client, self.round, self.number, *scope)

    def next_rng(self, method: "Method", name: str) -> torch.Generator:
        """Return another stream at each call of a method that may be asked several times a step."""
        count = self.memo[method] = self.memo.get(method, 0) + 1
        return self.rng(name, count)


@dataclass(frozen=True)
class Share:
    """One gradient message, and the secret weight of its reply in the sum of replies."""

    grad: Tensor
    weight: float = 1.0


class Method:
    """Base class of what happens at the cut; override only the hooks that matter.

    >>> class Halve(Method):
    ...     def encode(self, z, step):
    ...         return z / 2
    """

    module: nn.Module | None = None
    """Learned parts on this side; this side's optimizer steps them."""
    num_messages: int = 1
    """How many messages `outgoing` makes of one gradient."""
    num_side: int = 0
    """How many tensors `pack` adds to the payload, such as scales and indices."""
    num_side_back: int | None = None
    """The same for gradients, if it is another number there."""
    reaches_head: bool = False
    """Whether the tail's loss reaches the head by a way of this method's own, beside the wire."""
    freezes: frozenset[Segment] = frozenset()
    """Client: segments that do not learn in training proper."""

    def announce(self) -> tuple[Tensor, ...]:
        """Server: tensors that every client gets before training (counted as BROADCAST)."""
        return ()

    def hear(self, tensors: tuple[Tensor, ...]) -> None:
        """Client: receive what the server's half announced."""

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Client: change the batch before the head, such as by adding samples or tokens."""
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

    def stand_in(self, z: Tensor, step: Step) -> Tensor | None:
        """Client: in place of the trunk's output, in a phase in which nothing crosses."""
        return None

    def loss(self, step: Step) -> Tensor | None:
        """Client: a loss term on what was encoded, added in the head's backward pass."""
        return None

    def task_loss(self, outputs: Tensor, labels: Tensor, loss: Loss, step: Step) -> Tensor | None:
        """Client: the task's loss, if it differs from the loss on the batch's labels."""
        return None

    def tail_loss(self, step: Step) -> Tensor | None:
        """Client: a loss term on what was decoded (and on `step.outputs`), added to the task's."""
        return None

    def outgoing(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """Client: the messages to send for one feature gradient."""
        return (Share(grad),)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Either side: payload or gradient in wire format, payload first; without gradients."""
        return (x,)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Either side: the inverse of `pack`, as far as the format allows."""
        return tensors[0]

    def accept(self, head: nn.Module, step: Step) -> bool:
        """Client: inspect the head's gradients; False: do not learn from this step."""
        return True

    def report(self) -> dict[str, float]:
        """Client: values for its row of the `clients` table; the config's `reported` names them."""
        return {}

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
        """An optimizer of this method's own, for its `module`; None: its side's steps it."""
        return None

    def plan(self, rounds: int) -> Sequence[Phase]:
        """Client: phases to run before the `rounds` of training."""
        return ()

    def aside(self) -> Aside | None:
        """Client: steps of another phase between the steps of training."""
        return None

    def own(self, step: Step) -> Tensor | None:
        """Client, only for scoring attacks: which sent tokens are the texts' own; None: all."""
        return None


class MethodConfig(Config, ABC):
    """Base of a method's fields in a scenario; subclasses add `kind: Literal[...]`."""

    suits: ClassVar[frozenset[Modality]] = NUMBERS
    """The kinds of data that it can be used on."""
    takes: ClassVar[frozenset[Trait]] = frozenset()
    """Traits that the leg must still have when this method comes."""
    ends: ClassVar[frozenset[Trait]] = frozenset()
    """Traits that the leg no longer has after this method."""
    once: ClassVar[bool] = False
    """Whether it may be listed only once per leg."""
    superposes: ClassVar[frozenset[Leg]] = frozenset()
    """The legs on which a row mixes several samples."""
    reencodes: ClassVar[bool] = False
    """Whether all that it does at the client depends on what reaches its `encode` or `pack` alone,
    and nothing of it learns: behind noise it then tells no more than the noise lets through."""
    everywhere: ClassVar[bool] = False
    """Whether it leaves smashed data alone, and so works where none cross."""
    reads_tokens: ClassVar[bool] = False
    """Whether it is told the model's vocabulary."""
    reads_tail: ClassVar[bool] = False
    """Whether it is given the tail as everybody knows it."""
    stops: ClassVar[frozenset[Leg]] = frozenset()
    """The legs that nothing crosses in training because of it."""
    begins: ClassVar[str | None] = None
    """The field that says after how many of a client's batches it begins, if one does."""
    reported: ClassVar[tuple[str, ...]] = ()
    """Columns that it adds to the `clients` table."""
    changes: ClassVar[str | None] = None
    """The one with the share of tokens or labels that it changes; at 0 it hides nothing."""
    readings: ClassVar[tuple[str, ...]] = ()
    """Other ways in which evaluation can go through it, for `evaluate.controls`."""
    passes: ClassVar[bool] = False
    """Whether `in_sessions` says yes, where it says the same of all options."""
    requires: ClassVar[Needs] = ()
    """What it needs from the rest of the scenario whatever its options are."""

    @property
    def needs(self) -> Needs:
        """What it needs from the rest of the scenario; where options decide, override it and add
        to `super().needs`.
        """
        field = "legs" if "legs" in type(self).model_fields else "kind"
        legs = [leg for leg in self.acts_on if not (self.everywhere and leg is Leg.SMASHED)]
        return (*suited(self.suits), *(needs_leg(leg, field) for leg in legs), *self.requires)

    @property
    def release(self) -> Release | Response | str | None:
        """The mechanism by which its noise has a guarantee, or why it has none; None of methods
        that are not there for their noise.
        """
        return None

    @property
    def acts_on(self) -> tuple[Leg, ...]:
        """The forward legs that it encodes."""
        return (Leg.SMASHED,)

    @property
    def coded(self) -> frozenset[Leg]:
        """The forward legs on which packets carry codes that stand for values."""
        return frozenset()

    @property
    def unreadable(self) -> frozenset[Leg]:
        """The legs whose packets can only be read by who remembers the packet before."""
        return frozenset()

    @property
    def public_batch_size(self) -> int | None:
        """Samples per step on public data; None: as many as in training."""
        return None

    @property
    def added_tokens(self) -> int:
        """Tokens that it adds to each text in training."""
        return 0

    def in_sessions(self, reading: str = "") -> bool:
        """Whether a text can cross token by token, each one once, when the model writes: what it
        does to a token in evaluation (as `reading` has it) takes no other pass into account.
        """
        del reading
        return self.passes

    def undoes(self) -> frozenset[Trait]:
        """The traits that it ends with these options."""
        return self.ends

    def sent_shape(self, shape: Shape, where: str) -> Shape:
        """The per-sample shape after `encode`; raises ScenarioError at `where` if impossible."""
        return shape

    @abstractmethod
    def build(self, site: Site) -> Method:
        """The method's half for one side and leg."""


def suited(suits: frozenset[Modality]) -> Needs:
    """The needs of a part that can be used on these kinds of data only."""
    if suits == ANYTHING:
        return ()
    if suits == NUMBERS:
        return (Need(Given.NUMBERS),)
    (only,) = suits
    return (Need(Given(only)),)


class CodecConfig(MethodConfig):
    """Base of methods that can act on the feature leg too."""

    legs: tuple[Literal["smashed", "features"], ...] = ("smashed",)
    """The forward legs to act on; each one's gradient leg follows."""

    @property
    def acts_on(self) -> tuple[Leg, ...]:
        """The legs that the scenario names."""
        return tuple(Leg(leg) for leg in self.legs)


class LabelDefenceConfig(MethodConfig):
    """Base of methods that protect labels: they leave smashed data alone and suit any data."""

    suits: ClassVar[frozenset[Modality]] = ANYTHING
    passes: ClassVar[bool] = True
    once: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True
