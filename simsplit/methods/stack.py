"""A scenario's list of methods as one: hooks in order on the way out, reversed on the way back."""

import math
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.errors import ProtocolError
from simsplit.methods.base import Labels, Loss, Method, MethodConfig, Shape, Share, Side, Site, Step
from simsplit.methods.tokens import Tokens
from simsplit.packets import Leg
from simsplit.phases import SEGMENTS, TRAIN, Aside, Phase
from simsplit.seeds import seed_for

_FEATURE_LEGS = frozenset({Leg.FEATURES, Leg.FEATURES_GRAD})
NOTHING = Labels()
_BACK = frozenset({Leg.FEATURES_GRAD, Leg.SMASHED_GRAD})


class Stack:
    """One side's methods, composed. `smashed` and `features` are the chains of the two legs."""

    def __init__(self, smashed: Sequence[Method], features: Sequence[Method], side: Side) -> None:
        self.side = side
        self.smashed = tuple(smashed)
        self.features = tuple(features)
        learned = {
            f"{leg}_{index}": (method, method.module)
            for leg, methods in (("smashed", self.smashed), ("features", self.features))
            for index, method in enumerate(methods)
            if method.module is not None
        }
        self.modules = nn.ModuleDict({name: module for name, (_, module) in learned.items()})
        self.optimizers = {name: method.optimizer for name, (method, _) in learned.items()}
        """For each of the modules: what makes an optimizer of its own, if it wants one."""
        self.reaches_head = any(method.reaches_head for method in self.smashed)

    def announce(self) -> list[tuple[Tensor, ...]]:
        """What each method announces, in order."""
        return [method.announce() for method in chain(self.smashed, self.features)]

    def hear(self, announced: Sequence[tuple[Tensor, ...]]) -> None:
        """Pass each method what its counterpart announced."""
        for method, tensors in zip(chain(self.smashed, self.features), announced, strict=True):
            method.hear(tensors)

    def transform(self, batch: Batch, step: Step) -> Batch:
        """Client: every method's `transform`, in order; the step's labels follow the batch's."""
        for method in self.smashed:
            batch = method.transform(batch, step)
        if step.labels is not None:
            step.labels = batch.labels
        return batch

    def encode(self, x: Tensor, step: Step) -> Tensor:
        """Sender: the client's on the smashed leg, the server's on the feature leg."""
        for method in self.smashed if self.side == "client" else self.features:
            x = _as_wide(method.encode(x, step), x)
        return x

    def lift(self, x: Tensor, step: Step) -> Tensor:
        """Receiver: the other chain, in reverse; on the client followed by `decode`."""
        if self.side == "server":
            for method in reversed(self.smashed):
                x = _as_wide(method.lift(x, step), x)
            return x
        for method in reversed(self.features):
            x = _as_wide(method.lift(x, step), x)
        for method in reversed(self.smashed):
            x = _as_wide(method.decode(x, step), x)
        return x

    def stand_in(self, z: Tensor, step: Step) -> Tensor | None:
        """Client: what the first method that can makes of z in place of the trunk."""
        each = (method.stand_in(z, step) for method in self.smashed)
        return next((made for made in each if made is not None), None)

    def loss(self, step: Step) -> Tensor | None:
        """The sum of the terms on what was encoded, or None where no method has one."""
        return _total([method.loss(step) for method in self.smashed])

    def task_loss(self, outputs: Tensor, labels: Tensor, loss: Loss, step: Step) -> Tensor:
        """The first `task_loss` that a method defines, else the loss on the labels."""
        for method in self.smashed:
            if (own := method.task_loss(outputs, labels, loss, step)) is not None:
                return own
        return loss(outputs, labels)

    def tail_loss(self, step: Step) -> Tensor | None:
        """The sum of the terms on what was decoded, or None."""
        return _total([method.tail_loss(step) for method in self.smashed])

    def accepts(self, head: nn.Module, step: Step) -> bool:
        """Whether every method lets the client learn from a step; each one looks."""
        accepted = [method.accept(head, step) for method in self.smashed]
        return all(accepted)

    def report(self) -> dict[str, float]:
        """The values that methods report, by name."""
        return {name: value for m in self.smashed for name, value in m.report().items()}

    def outgoing(self, grad: Tensor, step: Step) -> list[Share]:
        """The messages for one gradient; each method may split the messages of the one before."""
        shares = [Share(grad)]
        for method in self.smashed:
            shares = [
                Share(inner.grad, outer.weight * inner.weight)
                for outer in shares
                for inner in method.outgoing(outer.grad, step)
            ]
        return shares

    @property
    def num_messages(self) -> int:
        """How many messages `outgoing` makes of one gradient."""
        return math.prod(method.num_messages for method in self.smashed)

    def pack(self, leg: Leg, x: Tensor, step: Step) -> tuple[Tensor, ...]:
        """The wire format: the payload, then each method's side tensors in order."""
        beside: list[Tensor] = []
        for method in self._chain(leg):
            x, *side = method.pack(x, step)
            if len(side) != (declared := _num_side(method, leg)):
                name = type(method).__name__
                raise ProtocolError(
                    f"{name}.pack gave {len(side)} side tensors; num_side is {declared}"
                )
            beside += side
        return tuple(_dense(tensor) for tensor in (x, *beside))

    def unpack(self, leg: Leg, tensors: tuple[Tensor, ...], step: Step) -> Tensor:
        """The inverse of `pack`, last method first; the context after it is ignored."""
        x, *beside = tensors[: self._width(leg)]
        for method in reversed(self._chain(leg)):
            start = len(beside) - _num_side(method, leg)
            x = method.unpack((x, *beside[start:]), step)
            del beside[start:]
        return x

    def messages(self, leg: Leg, tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """A packet's tensors by message; one message unless `outgoing` made several."""
        width = self._width(leg)
        return [tensors[start : start + width] for start in range(0, len(tensors), width)]

    def context(self, smashed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What a packet of smashed data carries after its payload: further inputs of the trunk."""
        return smashed[self._width(Leg.SMASHED) :]

    def plan(self, rounds: int) -> list[Phase]:
        """The phases that the methods want before training proper, in order."""
        return [phase for method in self.smashed for phase in method.plan(rounds)]

    def proper(self) -> Phase:
        """Training proper as the methods have it; how long it is, they do not say."""
        frozen = frozenset().union(*(method.freezes for method in self.smashed))
        learned = (each.module is not None for each in self.smashed if "head" not in each.freezes)
        returns = "head" not in frozen or any(learned)
        return Phase(TRAIN, 0, learns=SEGMENTS - frozen, returns=returns, aside=self.aside())

    def _width(self, leg: Leg) -> int:
        """Number of tensors in one message."""
        return 1 + sum(_num_side(method, leg) for method in self._chain(leg))

    def aside(self) -> Aside | None:
        """The steps in between that a method wants; at most one method does."""
        return next(filter(None, (method.aside() for method in self.smashed)), None)

    def own(self, step: Step) -> Tensor | None:
        """Client: which sent tokens are the texts' own; None: all."""
        return next((own for method in self.smashed if (own := method.own(step)) is not None), None)

    def _chain(self, leg: Leg) -> tuple[Method, ...]:
        return self.features if leg in _FEATURE_LEGS else self.smashed


def _num_side(method: Method, leg: Leg) -> int:
    """How many tensors the method adds to a payload on this leg."""
    back = method.num_side_back if leg in _BACK else None
    return method.num_side if back is None else back


def _as_wide(made: Tensor, given: Tensor) -> Tensor:
    """As wide as what a method was given: an autocast narrows the layers that methods add.

    Their bytes beside a plain cut's are then of what they do, not of where their last sum stands.
    """
    return made.to(given.dtype) if made.is_floating_point() and given.is_floating_point() else made


def _dense(tensor: Tensor) -> Tensor:
    """The tensor with a storage of its own size; otherwise a slice would send the whole storage."""
    if tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _total(terms: Sequence[Tensor | None]) -> Tensor | None:
    present = [term for term in terms if term is not None]
    return sum(present[1:], start=present[0]) if present else None


def build_stack(
    configs: Sequence[MethodConfig],
    side: Side,
    shapes: tuple[Shape, Shape],
    seed: int,
    device: torch.device,
    *,
    labels: Labels = NOTHING,
    adapters: bool = False,
    tokens: Tokens | None = None,
    tail: nn.Module | None = None,
) -> Stack:
    """One side's half of the listed methods; `shapes` are the cut's and the features'."""
    chains: dict[Leg, list[Method]] = {Leg.SMASHED: [], Leg.FEATURES: []}
    for leg, shape in zip(chains, shapes, strict=True):
        for index, config in enumerate(configs):
            if leg not in config.acts_on:
                continue
            where = f"method.{index}"
            stream = seed_for(seed, "method", str(leg), index)
            site = Site(
                *(side, leg, shape, stream, device),
                where=where,
                features=shapes[1],
                labels=labels,
                adapters=adapters,
                tokens=tokens,
                tail=tail,
            )
            sent = config.sent_shape(shape, where)
            chains[leg].append(config.build(site))
            shape = sent
    return Stack(chains[Leg.SMASHED], chains[Leg.FEATURES], side)


def sent_shapes(
    configs: Sequence[MethodConfig], shapes: tuple[Shape, Shape]
) -> tuple[Shape, Shape]:
    """What crosses per sample on the two forward legs; checks every method on the way."""
    sent = []
    for leg, shape in zip((Leg.SMASHED, Leg.FEATURES), shapes, strict=True):
        for index, config in enumerate(configs):
            if leg in config.acts_on:
                shape = config.sent_shape(shape, f"method.{index}")
        sent.append(shape)
    return sent[0], sent[1]
