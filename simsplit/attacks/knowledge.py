"""An attacker's knowledge: its own segments, public facts, and results computed from packets.

The server has the trunk, the lift and perhaps the tail. The architecture, what the methods announce
and auxiliary data are public. Clients' data and weights are not part of the knowledge. Attacks that
need more (`queries`, `shown`) are upper bounds, which no server could deploy. An attacker at a
client has none of the server's parts.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import is_not
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.data.samples import Vocabulary
from simsplit.errors import ProtocolError
from simsplit.legs import ClientId, Leg
from simsplit.methods import MethodConfig, Step
from simsplit.methods.stack import Stack, build_stack
from simsplit.models.adapted import AdaptedClassifier
from simsplit.models.encoders import EncoderHead
from simsplit.models.fresh import InputShape, Owner, Shape, SplitConfig
from simsplit.models.transformer import Head
from simsplit.packets import Packet
from simsplit.parties.feed import Feed
from simsplit.parties.optimizers import OptimizerConfig
from simsplit.seeds import derive_seed, rng_for

ViewName = Literal[
    "features",
    "shift",
    "difference",
    "sum",
    "gradient",
    "direction",
    "recovered",
    "adapter_gradient",
]

SKETCHED = 1024
"""The size of the sketch of a sample's gradient of adapters; a text's gradient takes megabytes."""


class SeenView(NamedTuple):
    """One kind of values that the server sees for all targets."""

    name: ViewName
    adapter: int
    """Number of the adapter set; of differences, of the pair of sets."""
    rows: Tensor
    """N x D, the targets in order."""


@dataclass
class Surrogate:
    """A client that the server builds itself: a real client's layers with other weights."""

    head: nn.Module
    tail: nn.Module
    stack: Stack

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules before the cut, which all learn: the head and the methods."""
        return {"head": self.head, "method": self.stack.modules}


class Pretrained:
    """The pretrained model's frozen segments and token embeddings.

    If the clients' initial weights are not public, `make` returns other weights of the same shape.
    """

    def __init__(self, make: Callable[[Owner], nn.Module], vocabulary: int) -> None:
        self._make, self._vocabulary = make, vocabulary
        self._segments: dict[Owner, nn.Module] = {}
        self.usual_levels: dict[int, Tensor] = {}
        """A cache: the level of the features of texts, by their length (see `gradient_view`).

        Measuring one takes a pass through the trunk, as long as a step of an attack on a batch.
        """

    def segment(self, owner: Owner) -> nn.Module:
        """Return a segment that all attacks share, so it must not be changed."""
        if owner not in self._segments:
            self._segments[owner] = self.own(owner)
        return self._segments[owner]

    def own(self, owner: Owner) -> nn.Module:
        """Build a frozen segment for one attack, which may change how it computes."""
        return self._make(owner).eval().requires_grad_(requires_grad=False)

    @cached_property
    def embeddings(self) -> Tensor:
        """The embeddings of all tokens, V x D, shared by all attacks."""
        head = self.segment("head")
        assert isinstance(head, Head | EncoderHead), "language models have no other heads"
        device = next(head.parameters()).device
        with torch.no_grad():
            embedded: Tensor = head.tokens(torch.arange(self._vocabulary, device=device))
        return embedded


class ServedReplay:
    """A server of an API has the whole transformer, and repeats a batch's calls by itself.

    It does so without the clients' adapters, or for one sample at a time. `batch` is the packets of
    one batch by leg.
    """

    def __init__(self, trunk: nn.Module, seed: int) -> None:
        self.trunk, self.seed = trunk, seed
        self._bases: dict[bytes, Tensor] = {}

    def base(self, batch: Mapping[Leg, Packet]) -> Tensor:
        """Return the features without adapters, N x D; they never change, so they are kept."""
        ids, mask, *_ = batch[Leg.INPUTS].tensors
        key = torch.cat([ids, mask]).cpu().numpy().tobytes()
        if key not in self._bases:
            with torch.no_grad():
                self._bases[key] = self.trunk(torch.empty(0, 0), ids, mask)[:, 0]
        return self._bases[key]

    def adapter_gradients(self, known: "Knowledge", batch: Mapping[Leg, Packet]) -> Tensor:
        """Return the gradient of each sample and adapter alone, N x n x SKETCHED.

        Gradients are sketched: random signs and places keep norms and angles on average.
        """
        ids, mask, *_ = batch[Leg.INPUTS].tensors
        adapters = batch[Leg.ADAPTERS].tensors[0].requires_grad_()
        message = known.message(batch[Leg.FEATURES_GRAD])
        # One sketch for all batches, or their rows could not be compared.
        rng, numbers = rng_for(self.seed, "sketch"), adapters.shape[1]
        places = torch.randint(SKETCHED, (numbers,), generator=rng).to(adapters.device)
        signs = (torch.randint(2, (numbers,), generator=rng) * 2.0 - 1).to(adapters.device)
        rows = []
        for grad in self._compute_each(adapters, (ids, mask), message):
            kept = grad.new_zeros(len(grad), SKETCHED)
            rows.append(kept.index_add_(1, places, grad * signs))
        return torch.stack(rows)

    def replies(self, adapters: Tensor, inputs: Sequence[Tensor], message: Tensor) -> Tensor:
        """Return the gradient of each sample's row of a message alone, N x n x P."""
        own = adapters.detach().requires_grad_()
        return torch.stack(list(self._compute_each(own, inputs, message)))

    def _compute_each(
        self, adapters: Tensor, inputs: Sequence[Tensor], message: Tensor
    ) -> Iterator[Tensor]:
        """Yield the gradient of the adapters for one sample after the other."""
        # One by one: of a batch, only the sum over its samples comes out.
        for each in torch.arange(len(message)).split(1):
            with torch.enable_grad():
                states = self.trunk(adapters, *(given[each] for given in inputs))
                (grad,) = torch.autograd.grad(states, adapters, message[each])
            yield grad


@dataclass
class SeenViews:
    """A cache of the views of one list of packets, by name."""

    packets: Sequence[Packet] = ()
    views: dict[ViewName, list[SeenView]] = field(default_factory=dict)

    def of(self, packets: Sequence[Packet]) -> dict[ViewName, list[SeenView]]:
        """Return the mutable cache of these packets' views; drop the views of other packets."""
        # By identity: all attacks of a scoring get the same packets, and comparing values is slow.
        if len(packets) != len(self.packets) or any(map(is_not, packets, self.packets)):
            self.packets, self.views = packets, {}
        return self.views


class Unseen(nn.Module):
    """The trunk of an attacker at a client, which has none."""

    def forward(self, *_inputs: object) -> Tensor:
        """Refuse, since only the server can run the trunk."""
        raise ProtocolError("an attack at a client used the trunk, which the server alone has")


@dataclass(frozen=True)
class Knowledge:
    """The server's knowledge: its segments, its half of the methods, public data."""

    trunk: nn.Module
    """The live trunk, as trained so far."""
    tail: nn.Module | None
    """The server's tail under a vanilla cut, else None."""
    stack: Stack
    """The server's half of the methods."""
    model: SplitConfig
    methods: Sequence[MethodConfig]
    shapes: tuple[Shape, Shape]
    image: InputShape
    classes: int
    auxiliary: Feed | None
    """Public samples with labels, in batches of the clients' size."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    device: torch.device
    pretrained: Pretrained
    vocabulary: Vocabulary | None = None
    """The vocabulary of texts, else None."""
    learned: dict[Hashable, Mapping[str, Tensor]] = field(default_factory=dict)
    """Weights of networks that attacks of this run have trained, for other attacks to reuse."""
    served: ServedReplay | None = None
    """The transformer of a server that has the whole model, else None."""
    seen: SeenViews = field(default_factory=SeenViews)
    """The targets' views of the present scoring, shared by all attacks."""
    optimizer: OptimizerConfig | None = None
    """The clients' optimizer. Papers print such settings, so they are taken to be public."""
    factor: Callable[[int], float] = lambda number: 1.0
    """The factor of the clients' learning rate in a round."""
    servers: int = 1
    """Number of servers that gradient messages go to in turn. The attacker is the first of them."""
    seat: ClientId | None = None
    """The client at which the attacker sits; None: it is the server."""

    def move_to(self, seat: ClientId) -> "Knowledge":
        """Return what an attacker at a client knows: a client's half of the methods, no trunk."""
        return replace(
            self,
            trunk=Unseen(),
            tail=None,
            stack=self.client_stack(),
            served=None,
            learned={},
            seen=SeenViews(),
            seat=seat,
        )

    @property
    def row_legs(self) -> tuple[Leg, Leg]:
        """The legs of values and of their gradients that this seat sees for each sample."""
        if self.seat is None:
            return Leg.FEATURES, Leg.FEATURES_GRAD
        return Leg.SMASHED, Leg.SMASHED_GRAD

    @property
    def payload_leg(self) -> Leg:
        """The leg on which this seat gets what depends on others' inputs."""
        return Leg.SMASHED if self.seat is None else Leg.FEATURES

    def step(self, packet: Packet) -> Step:
        """Return a packet's step as the server sees it, outside of training."""
        return Step(packet.client, packet.round, packet.step, self.seed, training=False)

    def message(self, packet: Packet) -> Tensor:
        """Unpack the first message of a packet, which every attacker gets."""
        return self.unpack(packet)  # which leaves out what follows the first message

    def messages(self, packet: Packet) -> list[Tensor]:
        """Unpack the messages of a packet that go to one server, the first of them."""
        with torch.no_grad():
            # Messages go to servers in turn; between steps it is the first's turn again.
            own = self.stack.split_messages(packet.leg, packet.tensors)[:: self.servers]
            step = self.step(packet)
            return [self.stack.unpack(packet.leg, each, step).float() for each in own]

    def unpack(self, packet: Packet) -> Tensor:
        """Unpack a packet's payload, detached and in fp32 whatever clients compute in."""
        with torch.no_grad():
            return self.stack.unpack(packet.leg, packet.tensors, self.step(packet)).float()

    def lift_smashed(self, packet: Packet) -> Tensor:
        """Return a packet's smashed data lifted to the cut's shape for the trunk, detached."""
        # In training mode, a codec's running statistics would learn from what an attack reads.
        with torch.no_grad(), inference(self.stack.modules):
            return self.stack.lift(self.unpack(packet), self.step(packet))

    def flatten_payload(self, packet: Packet) -> Tensor:
        """Return a packet's payload with one flat row per sample, detached.

        Rows are taken as sent. Where a sent row combines several samples, the lifted rows are
        returned instead.
        """
        if packet.leg is not Leg.SMASHED:
            return self.message(packet).flatten(1)
        sent, lifted = self.unpack(packet), self.lift_smashed(packet)
        return (sent if len(sent) == len(lifted) else lifted).flatten(1).float()

    def surrogate(self, *scope: str | int) -> Surrogate:
        """Build a client from public facts: its layers, and what methods announce to all."""
        # With the clients' seed it would start with their initial weights, which are private.
        seed = derive_seed(self.seed, "surrogate", *scope)
        model = self.model.widen()
        return Surrogate(
            model.segment("head", self.image, self.classes, seed).to(self.device),
            model.segment("tail", self.image, self.classes, seed).to(self.device),
            self.client_stack(*scope),
        )

    def client_stack(self, *scope: str | int) -> Stack:
        """Build a client's half of the methods, which has heard the server's announcements."""
        seed = derive_seed(self.seed, "surrogate", *scope)
        served = isinstance(self.model, AdaptedClassifier)
        stack = build_stack(self.methods, "client", self.shapes, seed, self.device, adapters=served)
        stack.modules.to(self.device)
        stack.receive_announcements(self.stack.announce())
        return stack

    def simulate(self, surrogate: Surrogate, batch: Batch, number: int) -> Tensor:
        """Return the trunk's input if the surrogate sent a batch; differentiable."""
        return self.simulate_with_losses(surrogate, batch, number, wanted=False)[0]

    def simulate_with_losses(
        self, surrogate: Surrogate, batch: Batch, number: int, *, wanted: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the trunk's input if the surrogate sent a batch, and its methods' loss terms.

        The terms, such as wcc's, are what a client adds to the mean loss of a batch; None without
        any, and where they are not wanted.
        """
        # No client has the number -1, so these draws of noise are none of theirs.
        step = Step(-1, 0, number, self.seed, labels=batch.labels)
        batch = surrogate.stack.transform(batch, step)
        sent = surrogate.stack.encode(surrogate.head(batch.inputs), step)
        with inference(self.stack.modules):
            # Nothing is packed here, so the server's c3sl does not know which rows only fill up its
            # last group.
            simulated = self.stack.lift(sent, step)[: len(batch.labels)]
        return simulated, surrogate.stack.compute_encode_loss(step) if wanted else None

    def outputs(self, surrogate: Surrogate, smashed: Tensor, number: int) -> Tensor:
        """Compute the network's outputs for smashed data; differentiable.

        The trunk runs in inference mode, so that the attack leaves no trace in it. Then comes the
        server's tail, or the surrogate's if the server has none.
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

    def name_classes(self, surrogate: Surrogate, smashed: Tensor, number: int) -> Tensor | None:
        """Name the class of each row of smashed data with the surrogate's tail, behind the trunk.

        Return None where the server has a tail of its own, and with it the labels.
        """
        if self.tail is not None:
            return None
        with inference(surrogate.tail), inference(surrogate.stack.modules):
            return self.outputs(surrogate, smashed, number).argmax(-1)

    def pixels(self, inputs: Tensor) -> Tensor:
        """Turn normalised images into pixels between 0 and 1; return rows of tables unchanged."""
        if not self.mean:
            return inputs
        mean, std = (_place_channels(each, self.device) for each in (self.mean, self.std))
        return inputs * std + mean

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise pixels like the heads' inputs."""
        mean, std = (_place_channels(each, self.device) for each in (self.mean, self.std))
        return (pixels - mean) / std

    def public(self, number: int) -> Batch:
        """Return batch `number` of the auxiliary data."""
        assert self.auxiliary is not None, "refused without when the scenario is read"
        return self.auxiliary.batch(number)


@lru_cache
def _place_channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Put one value per channel on a device, to broadcast over images; once for all steps."""
    return torch.tensor(values, device=device).view(-1, 1, 1)


def is_mixed(known: Knowledge, leg: Leg = Leg.SMASHED) -> bool:
    """Return whether rows on a leg belong to several samples, so that their sign may be flipped."""
    return any(leg in method.superposes for method in known.methods)


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """Open a context in which a module is in inference mode."""
    before = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(before)
