"""The interface of a method at the cut: a set of hooks, each of which does nothing by default.

A method object lives on one side of the cut (`Site`) and never sees its counterpart: what the other
side must know travels in packets. Learned parts are its `module`, stepped by that side's optimizer.

    client                                   wire                server
    batch = transform(batch); in the head: embed(embeddings)
    z     = encode(head(x))        pack  --- SMASHED ------>  unpack; lift
    u     = decode(...)          unpack  <-- FEATURES ------  pack
    compute_task_loss, read_outputs, compute_tail_loss
    split_gradient(grad)           pack  --- FEATURES_GRAD ->  unpack
    compute_encode_loss, accept  unpack  <-- SMASHED_GRAD --  pack

A method that acts on the feature leg is built a second time for it, with the roles of the two sides
exchanged: the server encodes, the client lifts. `pack` and `unpack` are the wire format (a cast, an
index list). They act on detached tensors, so gradients pass straight through them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.methods.clipping import Release, Response
from simsplit.methods.tokens import Tokens
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.packets import ClientId, Leg
from simsplit.phases import TRAIN, Interleaved, Phase, Segment
from simsplit.renamed import Renamed, find_by_old_name
from simsplit.seeds import Scope, continue_on, rng_for

Side = Literal["client", "server"]
NoiseSource = Literal["cpu", "device"]
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
    """A property of the batch on a leg. All hold at first; a method may end some for the methods
    after it.
    """

    SAMPLES = "samples"
    """Each row is one sample, with its input and its label."""
    ALONE = "alone"
    """Other texts can still be added: no method before has stored anything about single rows."""
    SHAPE = "shape"
    """Payloads have the shape of the segment's output."""
    VALUES = "values"
    """The values to send have not been selected yet, so they may still be changed."""
    NUMBERS = "numbers"
    """Each number on the wire represents one value."""
    FORMAT = "format"
    """No method has set the number format on the wire yet."""


@dataclass(frozen=True)
class Labels:
    """Facts about the labels that are known before training; empty if an attacker builds the
    method.
    """

    classes: int = 0
    """Number of classes; 0: unknown."""
    shares: tuple[float, ...] = ()
    """Share of each class among the training samples of all clients."""


@dataclass(frozen=True)
class Site:
    """The place where a method is built: the side, the leg, and the shape of the method's input."""

    side: Side
    leg: Leg
    shape: Shape
    """Shape of the method's input per sample."""
    seed: int
    device: torch.device
    where: str = "method"
    """The method's path in the scenario, for error messages."""
    features: Shape = ()
    """Shape of the trunk's output per sample."""
    labels: Labels = Labels()
    adapters: bool = False
    """Whether features have an axis of adapter sets, after the samples."""
    tokens: Tokens | None = None
    """The model's vocabulary: only on clients with texts, for methods with `reads_tokens`."""
    tail: nn.Module | None = None
    """The public tail, as it was before training, frozen: only on clients that have a tail, for
    methods with `reads_tail`."""

    @property
    def sets(self) -> int:
        """Number of adapter sets in the features; 0 without such an axis."""
        return self.features[0] if self.adapters else 0

    @property
    def sends(self) -> bool:
        """Whether this side encodes (and the other lifts) on this leg."""
        return (self.side == "client") == (self.leg is Leg.SMASHED)

    @property
    def size(self) -> int:
        """Number of values per sample before encoding."""
        return int(torch.Size(self.shape).numel())


class Stock(Protocol):
    """The public texts and tokens that a client may add to its own."""

    vocabulary: int
    """Number of tokens in the vocabulary."""
    pad: int
    """The padding token."""
    size: int
    """Number of public texts."""

    def draw_support(self, count: int, rows: int, rng: torch.Generator) -> Sequence[Batch]:
        """Draw `count` batches of `rows` public texts."""

    def get_texts(self, rows: Tensor) -> Batch:
        """Return the public texts with these row numbers."""


class SessionState(Protocol):
    """The state of a session, in which texts are processed token by token, as methods see it."""

    seen: int
    """Number of tokens of each text so far, this pass included."""
    mask: Tensor | None
    """Which of these tokens are real; None: all of them."""

    def get_cache(self, name: str) -> Any:  # noqa: ANN401 - transformers is not imported for its types
        """Return this session's cache (transformers' DynamicCache) with this name."""


@dataclass(slots=True)
class Step(Renamed):
    """One side's view of one mini-batch."""

    client: ClientId
    round: int
    number: int
    """The step's number; in training it counts on from round to round."""
    seed: int
    training: bool = True
    labels: Tensor | None = None
    """The batch's labels: only where this side has them."""
    phase: str = TRAIN
    stage: str = TRAIN
    """The phase of the run, in evaluation too."""
    stock: Stock | None = None
    """Public texts and tokens: only on clients with texts."""
    evaluation_mode: str = ""
    """In evaluation: one of the method's `readings`, as a control requests it; empty: as the
    scenario sets it."""
    mask: Tensor | None = None
    """Client: which tokens are real, if texts cross with a mask."""
    leg: Leg | None = None
    """The leg of the latest `pack` or `unpack`."""
    session: SessionState | None = None
    """Client: the session, if this step is a pass of one."""
    embedded: Tensor | None = None
    """Client, in training: the head's embeddings, if a method has `reaches_head`."""
    outputs: Tensor | None = None
    """Client, for `tail_loss`: the tail's outputs."""
    task: Tensor | None = None
    """Client, for `tail_loss`: the task's loss on these outputs."""
    noise: NoiseSource = "cpu"
    """Where the noise of methods is drawn: on the CPU, or on the device of what it is added to."""
    memo: dict[Any, Any] = field(default_factory=dict)
    """State that methods pass from hook to hook. Each method uses keys of its own, such as
    itself."""
    figures: dict[str, float | Tensor] = field(default_factory=dict)
    """Figures of the step by column; the `clients` table has their means over a round. The config's
    `reported` names the columns."""

    def make_rng(self, *scope: Scope, device: torch.device | None = None) -> torch.Generator:
        """Return the random stream of one purpose in this step.

        The two sides' streams are independent, since each side has a seed of its own. With
        `device`, the stream is of noise that is wanted there: it is drawn there if the run says so.
        Draw with `device=rng.device`.

        >>> rng = step.make_rng("noise", device=z.device)  # doctest: +SKIP
        >>> z + torch.randn(z.shape, generator=rng, device=rng.device).to(z)  # doctest: +SKIP
        """
        mode = "train" if self.training else "evaluate"
        # Evaluations number their steps from 0 in every round, so the key needs the round as well.
        at = (mode, self.client, self.round, self.number, *scope)
        return rng_for(self.seed, *at, device=device if self.noise == "device" else None)

    def make_next_rng(
        self, method: "Method", name: str, *, device: torch.device | None = None
    ) -> torch.Generator:
        """Return another random stream at each call, for hooks that run several times in a step."""
        count = self.memo[method] = self.memo.get(method, 0) + 1
        return self.make_rng(name, count, device=device)

    def continue_rng(self, rng: torch.Generator, device: torch.device) -> torch.Generator:
        """Return a stream of the CPU for noise on a device: that stream, or one drawn there."""
        on_device = self.noise == "device" and device.type != "cpu"
        return continue_on(rng, device) if on_device else rng


@dataclass(frozen=True)
class Share:
    """A gradient message, and the secret weight of its reply in the sum of replies."""

    grad: Tensor
    weight: float = 1.0


class Method(Renamed):
    """Base class of methods at the cut. Subclasses override only the hooks that they need.

    >>> class Halve(Method):
    ...     def encode(self, z, step):
    ...         return z / 2
    """

    module: nn.Module | None = None
    """Learned parts on this side; this side's optimizer steps them."""
    num_messages: int = 1
    """Number of messages that `outgoing` makes of one gradient."""
    num_side: int = 0
    """Number of tensors that `pack` adds to the payload, such as scales and indices."""
    num_side_back: int | None = None
    """The same number for gradients, if it differs there."""
    reaches_head: bool = False
    """Whether the tail's loss also reaches the head through this method, without the wire."""
    changes_embeddings: bool = False
    """Whether the head's embeddings of tokens go through `embed`."""
    accepts_parts: bool = False
    """Client: whether `accept` works on the sum of the gradients of a mini-batch's parts, with the
    step of the last part (`train.accumulate`)."""
    freezes: frozenset[Segment] = frozenset()
    """Client: segments that do not learn in training proper."""

    def announce(self) -> tuple[Tensor, ...]:
        """Return the tensors that the server sends every client before training (BROADCAST)."""
        return ()

    def receive_announcement(self, tensors: tuple[Tensor, ...]) -> None:
        """Receive, on the client, what the server's half announced."""

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Change the client's batch before the head, such as by adding samples or tokens."""
        return batch

    def embed(self, x: Tensor, step: Step) -> Tensor:
        """Change the head's embeddings of its tokens, if `changes_embeddings`; differentiable."""
        return x

    def encode(self, z: Tensor, step: Step) -> Tensor:
        """Turn the sender's segment output into what is sent; differentiable."""
        return z

    def lift(self, z: Tensor, step: Step) -> Tensor:
        """Turn what the receiver got into its next segment's input; differentiable."""
        return z

    def decode(self, u: Tensor, step: Step) -> Tensor:
        """Turn the features that the client got back into the tail's input; differentiable."""
        return u

    def stand_in(self, z: Tensor, step: Step) -> Tensor | None:
        """Compute the client's substitute for the trunk's output, for phases without the server."""
        return None

    def compute_encode_loss(self, step: Step) -> Tensor | None:
        """Return the client's loss term on what was encoded, for the head's backward pass."""
        return None

    def compute_task_loss(
        self, outputs: Tensor, labels: Tensor, loss: Loss, step: Step
    ) -> Tensor | None:
        """Return the client's task loss, if it differs from `loss` on the batch's labels."""
        return None

    def read_outputs(self, outputs: Tensor, step: Step) -> Tensor:
        """Turn the tail's outputs into those of which the client reads its predictions."""
        return outputs

    def compute_tail_loss(self, step: Step) -> Tensor | None:
        """Return the client's loss term on what was decoded, which is added to the task's loss."""
        return None

    def split_gradient(self, grad: Tensor, step: Step) -> Sequence[Share]:
        """Return the messages that the client sends for one feature gradient."""
        return (Share(grad),)

    def pack(self, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """Turn a detached payload or gradient into the wire format, the payload first."""
        return (x,)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Invert `pack`, as far as the format allows."""
        return tensors[0]

    def accept(self, head: nn.Module, step: Step) -> bool:
        """Inspect the gradients of the client's head; return False to discard the step."""
        return True

    def report(self) -> dict[str, float]:
        """Return values for the client's row of the `clients` table, by column (`reported`)."""
        return {}

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
        """Build a separate optimizer for `module`; None: the side's optimizer steps it."""
        return None

    def plan_phases(self, rounds: int) -> Sequence[Phase]:
        """Return the phases that clients run before the `rounds` of training."""
        return ()

    def plan_interleaved_steps(self) -> Interleaved | None:
        """Return the phase whose steps the client takes between those of training, if any."""
        return None

    def get_own_tokens(self, step: Step) -> Tensor | None:
        """Return a mask of the sent tokens that are the private texts' (None: all of them).

        Only the scoring of attacks on a client asks for it.
        """
        return None


class MethodConfig(Config, ABC):
    """Base of a method's fields in a scenario; subclasses add `kind: Literal[...]`."""

    modalities: ClassVar[frozenset[Modality]] = NUMBERS
    """The kinds of data that the method can be used on."""
    required_traits: ClassVar[frozenset[Trait]] = frozenset()
    """Traits that the method requires: no method before it may have ended them."""
    ended_traits: ClassVar[frozenset[Trait]] = frozenset()
    """Traits that the leg no longer has after this method."""
    once: ClassVar[bool] = False
    """Whether the method may be listed only once per leg."""
    superposes: ClassVar[frozenset[Leg]] = frozenset()
    """The legs on which each row mixes several samples."""
    reencodes: ClassVar[bool] = False
    """Whether the client's half is a fixed function of the input of its `encode` or `pack`, without
    learned parts. After noise, such a method reveals no more than its noisy input does."""
    everywhere: ClassVar[bool] = False
    """Whether the method leaves smashed data unchanged, and so works where none cross."""
    reads_tokens: ClassVar[bool] = False
    """Whether clients give the method the model's vocabulary (`Site.tokens`)."""
    deployable: ClassVar[bool] = True
    """Whether a deployed run can use the method. One that counts the tokens of all clients' texts
    cannot: its server has no text."""
    reads_tail: ClassVar[bool] = False
    """Whether clients give the method the public tail (`Site.tail`)."""
    keeps_task: ClassVar[bool] = False
    """Whether the task's loss trains the tail alone, and the trunk learns from another one."""
    stops: ClassVar[frozenset[Leg]] = frozenset()
    """The legs on which the method stops all packets in training."""
    start_field: ClassVar[str | None] = None
    """Name of the field that sets after how many of a client's batches the method begins; None: at
    once."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Columns that the method adds to the `clients` table."""
    changed_share_column: ClassVar[str | None] = None
    """The reported column with the share of tokens or labels that the method changes; a share of 0
    means that it hides nothing."""
    readings: ClassVar[tuple[str, ...]] = ()
    """Other ways in which evaluation can use the method, for `evaluate.controls`."""
    works_in_sessions: ClassVar[bool] = False
    """The answer of `in_sessions`, if it does not depend on the fields."""
    requires: ClassVar[Needs] = ()
    """The method's needs from the rest of the scenario that do not depend on the fields."""

    @property
    def needs(self) -> Needs:
        """All needs from the rest of the scenario; overrides add the ones that depend on fields."""
        field = "legs" if "legs" in type(self).model_fields else "kind"
        legs = [leg for leg in self.acts_on if not (self.everywhere and leg is Leg.SMASHED)]
        return (
            *needs_modality(self.modalities),
            *(need_leg(leg, field) for leg in legs),
            *self.requires,
        )

    @property
    def release(self) -> Release | Response | str | None:
        """The mechanism that gives the noise a guarantee, or the reason that there is none; None
        for methods without noise.
        """
        return None

    @property
    def acts_on(self) -> tuple[Leg, ...]:
        """The forward legs that the method encodes."""
        return (Leg.SMASHED,)

    @property
    def coded_legs(self) -> frozenset[Leg]:
        """The forward legs on which packets carry codes that represent values."""
        return frozenset()

    @property
    def unreadable_legs(self) -> frozenset[Leg]:
        """The legs whose packets cannot be decoded without the packet of the forward pass."""
        return frozenset()

    @property
    def public_batch_size(self) -> int | None:
        """Number of samples per step on public data; None: as many as in training."""
        return None

    @property
    def added_tokens(self) -> int:
        """Number of tokens that the method adds to each text in training."""
        return 0

    def can_run_in_sessions(self, reading: str = "") -> bool:
        """Return whether each token can cross once, in its own pass, when the model writes.

        That holds if the method treats a token in evaluation (by way of `reading`) independently of
        all other passes.
        """
        return self.works_in_sessions

    def get_required_traits(self) -> frozenset[Trait]:
        """Return the traits that no method before it may have ended, with its options."""
        return self.required_traits

    def get_ended_traits(self) -> frozenset[Trait]:
        """Return the traits that the method ends with these field values."""
        return self.ended_traits

    def compute_sent_shape(self, shape: Shape, where: str) -> Shape:
        """Return the per-sample shape after `encode`, or raise ScenarioError at `where`."""
        return shape

    @abstractmethod
    def build(self, site: Site) -> Method:
        """Build the method's half for one side and leg."""


def needs_modality(modalities: frozenset[Modality]) -> Needs:
    """Return the needs of a part that can be used only on these kinds of data."""
    if modalities == ANYTHING:
        return ()
    if modalities == NUMBERS:
        return (Need(Given.NUMBERS),)
    (only,) = modalities
    return (Need(Given(only)),)


class CodecConfig(MethodConfig):
    """Base of methods that can act on the feature leg too."""

    legs: tuple[Literal["smashed", "features"], ...] = ("smashed",)
    """The forward legs that the method acts on; it also acts on their gradient legs."""

    @property
    def acts_on(self) -> tuple[Leg, ...]:
        """The legs that the scenario names."""
        return tuple(Leg(leg) for leg in self.legs)


class LabelDefenceConfig(MethodConfig):
    """Base of methods that protect labels: they leave smashed data unchanged and suit any data."""

    modalities = ANYTHING
    works_in_sessions = True
    once = True
    everywhere = True


if not TYPE_CHECKING:  # type checkers know the new names alone
    __getattr__ = partial(find_by_old_name, __name__)
