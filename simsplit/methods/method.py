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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from simsplit.config import Config
from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.methods.clipping import Release, Response
from simsplit.methods.step import NoiseSource as NoiseSource
from simsplit.methods.step import Step as Step
from simsplit.methods.tokens import Tokens
from simsplit.needs import Given, Need, Needs, need_leg
from simsplit.packets import TensorForm
from simsplit.phases import Interleaved, Phase, Segment

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


@dataclass(frozen=True)
class Share:
    """A gradient message, and the secret weight of its reply in the sum of replies."""

    grad: Tensor
    weight: float = 1.0


class Method:
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
    """Number of tensors that `pack` adds to the payload, such as scales and indices, if the class
    does not declare their forms (`pack_form`)."""
    reaches_head: bool = False
    """Whether the tail's loss also reaches the head through this method, without the wire."""
    changes_embeddings: bool = False
    """Whether the head's embeddings of tokens go through `embed`."""
    joins_rows: bool = False
    """Whether rows of several clients can go through in one call: its config `is_rowwise`."""
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

    def pack_form(self, x: TensorForm, leg: Leg) -> tuple[TensorForm, ...]:
        """Return the forms of what `pack` makes of an x of this form: all that bounds its bytes.

        A class with a `pack` of its own and without this has its forms measured.
        """
        return (x,) * (1 + self.num_side)

    def unpack(self, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """Invert `pack`, as far as the format allows."""
        return tensors[0]

    def accept(self, head: nn.Module, step: Step) -> bool:
        """Inspect the gradients of the client's head; return False to discard the step."""
        return True

    def report(self) -> dict[str, float]:
        """Return values for the client's row of the `clients` table, by column (`reported`)."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return what the method remembers from step to step beside `module`, as tensors."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned earlier, of this client or before training."""

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

    by: str | None = Field(default=None, pattern=r"^party \S.*$")
    """Under topology: vertical, the party at whose cut it acts, `party bank` (a name or number);
    null: every party's."""
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
    accounted: ClassVar[bool] = False
    """Whether the accountant knows all that the client's half does: it draws labels, or adds noise
    to what is sent, and reports nothing else of samples than `changed_share_column`."""
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
    rowwise: ClassVar[bool] = False
    """Whether both halves encode, lift and pack each row alone, draw by `draw_rows` and report no
    figures: rows of clients that train as one tensor then go through in one call."""
    works_in_sessions: ClassVar[bool] = False
    """The answer of `in_sessions`, if it does not depend on the fields."""
    reads_labels_at_head: ClassVar[bool] = False
    """Whether each client must know the labels of what its head puts out."""
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

    @property
    def depends_on_batch(self) -> bool:
        """Whether what becomes of a row depends on the batch's other rows, as by a mean norm."""
        return False

    def is_rowwise(self) -> bool:
        """Return whether that holds with these field values."""
        return self.rowwise

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
    return (Need(Given[only.upper()]),)


class CodecConfig(MethodConfig):
    """Base of methods that can act on the feature leg too."""

    legs: tuple[Literal["smashed", "features"], ...] = Field(default=("smashed",), min_length=1)
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
    # The needs of a defence that changes gradients by the labels of their samples.
    by_labels: ClassVar[Needs] = (
        need_leg(Leg.FEATURES_GRAD),
        Need(Given.SCORING),
        Need(Given.CLASSIFIES),
    )
