"""One mini-batch through two stacks, with everything on the way kept for the contracts to look at.

The head is the identity, the trunk a fixed matrix, the loss half the sum of squares of what the
client decoded: what is left are the methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from contracts.method_cases import CUT, FEATURES
from torch import Tensor

from simsplit.data.batches import Batch
from simsplit.legs import Leg
from simsplit.methods import MethodConfig, Step
from simsplit.methods.stack import Stack, build_stack
from simsplit.seeds import rng_for

CPU = torch.device("cpu")
TRUNK = torch.randn(128, 32, generator=rng_for(0, "trunk")) / 128**0.5


class Blind(Step):
    """The server's view of a step: a method that reads labels from it is noticed."""

    @property
    def labels(self) -> None:
        raise AssertionError("the server read labels")

    @labels.setter
    def labels(self, value: Tensor | None) -> None:
        assert value is None


@dataclass
class Pair:
    """The two sides; `client` has heard what `server` announces."""

    client: Stack
    server: Stack

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.client.modules.parameters(), *self.server.modules.parameters()]

    def train(self, training: bool) -> None:
        self.client.modules.train(training)
        self.server.modules.train(training)


@dataclass
class Exchange:
    """What crossed on each leg, and the tensors at either end."""

    step: Step
    sent: Tensor
    arrived: Tensor
    lifted: Tensor
    returned: Tensor
    decoded: Tensor
    packed: dict[Leg, tuple[Tensor, ...]]
    replies: list[Tensor] = field(default_factory=list)


def pair(configs: Sequence[MethodConfig], seed: int = 0, device: torch.device = CPU) -> Pair:
    shapes = (CUT, FEATURES)
    client = build_stack(configs, "client", shapes, seed + 1, device)
    server = build_stack(configs, "server", shapes, seed, device)
    for side in (client, server):
        side.modules.to(device)
    client.receive_announcements(server.announce())
    return Pair(client, server)


def activation(batch: int, seed: int = 0) -> Tensor:
    return torch.randn(batch, *CUT, generator=rng_for(seed, "activation"))


def labels_of(batch: int) -> Tensor:
    return torch.arange(batch) % 2


def exchange(sides: Pair, z: Tensor, *, number: int = 0, training: bool = True) -> Exchange:
    """Exchange four legs for an activation `z`; without `training` the two forward ones."""
    client, server = sides.client, sides.server
    labels, rows = labels_of(len(z)).to(z.device), torch.arange(len(z), device=z.device)
    step = Step(3, 1, number, 11, training, labels if training else None)
    blind = Blind(3, 1, number, 22, training)
    with torch.set_grad_enabled(training):
        batch = client.transform(Batch(z, labels, rows), step)
        sent = client.encode(batch.inputs, step)
        up = client.pack(Leg.SMASHED, sent.detach(), step)
        arrived = server.unpack(Leg.SMASHED, up, blind).detach().requires_grad_(training)
        lifted = server.lift(arrived, blind)
        features = server.encode(lifted.flatten(1) @ TRUNK.to(z.device), blind)
        down = server.pack(Leg.FEATURES, features.detach(), blind)
        returned = client.unpack(Leg.FEATURES, down, step).detach().requires_grad_(training)
        decoded = client.lift(returned, step)
    packed = {Leg.SMASHED: up, Leg.FEATURES: down}
    seen = Exchange(step, sent, arrived, lifted, returned, decoded, packed)
    if training:
        _back(sides, seen, features, blind)
    return seen


def _back(sides: Pair, seen: Exchange, features: Tensor, blind: Step) -> None:
    client, server, step = sides.client, sides.server, seen.step
    loss, extra = half_square(seen.decoded), client.compute_tail_loss(step)
    (loss if extra is None else loss + extra).backward()
    shares = client.split_gradient(seen.returned.grad, step)
    packed = [client.pack(Leg.FEATURES_GRAD, share.grad, step) for share in shares]
    seen.packed[Leg.FEATURES_GRAD] = tuple(chain.from_iterable(packed))
    replies: list[tuple[Tensor, ...]] = []
    for message in server.split_messages(Leg.FEATURES_GRAD, seen.packed[Leg.FEATURES_GRAD]):
        seen.arrived.grad = None
        grad = server.unpack(Leg.FEATURES_GRAD, message, blind)
        features.backward(grad, retain_graph=True)
        replies.append(server.pack(Leg.SMASHED_GRAD, seen.arrived.grad, blind))
    seen.packed[Leg.SMASHED_GRAD] = tuple(chain.from_iterable(replies))
    messages = client.split_messages(Leg.SMASHED_GRAD, seen.packed[Leg.SMASHED_GRAD])
    seen.replies = [client.unpack(Leg.SMASHED_GRAD, message, step) for message in messages]
    weighted = zip(shares, seen.replies, strict=True)
    grad = sum(share.weight * reply for share, reply in weighted)
    term = client.compute_encode_loss(step)
    if seen.sent.requires_grad:
        roots = [seen.sent] if term is None else [seen.sent, term]
        torch.autograd.backward(roots, [grad] if term is None else [grad, None])


def joint_loss(sides: Pair, z: Tensor) -> Tensor:
    """Compute the same loss as one graph, without wire, packing and messages."""
    client, server = sides.client, sides.server
    labels = labels_of(len(z))
    step, blind = Step(3, 1, 0, 11, labels=labels), Blind(3, 1, 0, 22)
    inputs = client.transform(Batch(z, labels, torch.arange(len(z))), step).inputs
    lifted = server.lift(client.encode(inputs, step), blind)
    loss = half_square(client.lift(server.encode(lifted.flatten(1) @ TRUNK, blind), step))
    terms = [client.compute_tail_loss(step), client.compute_encode_loss(step)]
    return sum((term for term in terms if term is not None), start=loss)


def half_square(x: Tensor) -> Tensor:
    return x.square().sum() / 2
