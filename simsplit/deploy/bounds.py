"""The scenario determines what each side may send, so each packet is checked as it arrives.

Shapes, types and sizes are known before the first packet. Either side may be hostile.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from simsplit.assembly.ownership import Ownership
from simsplit.errors import ProtocolError, SimsplitError
from simsplit.methods.method import Method, Step
from simsplit.methods.stack import Stack, compute_sent_shapes
from simsplit.models.served import Served
from simsplit.packets import Packet
from simsplit.parties.changes import CODES
from simsplit.parties.learner import Learner
from simsplit.parties.optimizers import SLOW
from simsplit.topologies import CARRIED
from simsplit.topologies.topology import Content

WIDEST = 8
"""Most bytes of one value."""
ROOM = 2**20
"""Bytes that a frame may have beside its tensors."""
_ACTIVATIONS: Mapping[Content, int] = {"cut": 0, "features": 1, "outputs": 1}
"""For each kind of content, the index of its shape in `Bounds.shapes`."""


class Bounds:
    """The shapes, types and sizes of the packets of one run."""

    def __init__(self, owners: Ownership) -> None:
        scenario = owners.scenario
        self.scenario, self.classes = scenario, owners.info.classes
        self.stacks: tuple[Stack, Stack] = (owners.client_stack, owners.server_stack)
        self.shapes = compute_sent_shapes(scenario.method, owners.shapes)
        self.texts = owners.info.texts
        evaluated = scenario.evaluate.batch_size * len(scenario.evaluate.views.weights)
        written = scenario.evaluate.generated_texts if self.texts else 0
        self.rows = max(scenario.train.batch_size, evaluated, written)
        self.shared = owners.build_client_learner(owners.list_shared_modules())
        self.named = {name: tensor.detach() for name, tensor in self.shared.weights().items()}
        self.changes = owners.build_changes(self.shared)
        self.hands_on = scenario.shares and scenario.aggregation.kind == "none"
        """Whether clients hand weights to each other; these are sealed against the server."""
        self.contents = scenario.crossings.contents
        self.adapters: tuple[int, ...] = ()
        self.vocabulary = 0
        if isinstance(owners.model.trunk, Served):
            self.adapters = tuple(owners.model.head().shape)
            self.vocabulary = owners.model.trunk.vocabulary
        self._altered = _altered_by(self.stacks)
        """The contents whose packets only methods can judge."""
        self._adds_rows = _any_overrides(self.stacks[0].smashed, "transform")

    @property
    def most_bytes(self) -> int:
        """The most bytes that any frame of the run may have."""
        messages = max(1, self.stacks[0].count_messages) * self.scenario.servers
        values = max(math.prod(shape) for shape in self.shapes)
        of_step = self.rows * values * messages * 4  # methods may stack rows, and send beside them
        of_step += math.prod(self.adapters) * messages if self.adapters else 0
        slots = 1 + self.scenario.train.client.slots
        of_weights = sum(tensor.numel() for tensor in self.named.values()) * (slots + 1)
        return WIDEST * max(of_step, of_weights) + ROOM

    def check(self, packet: Packet, sent: Packet | None = None, *, by_client: bool) -> None:
        """Raise ProtocolError if a packet, which answers `sent`, does not fit the run."""
        if packet.leg in CARRIED:
            if by_client and packet.tensors and self.hands_on != (packet.sealed is not None):
                raise ProtocolError(
                    "weights that are sealed but must not be, or must be sealed but are not"
                )
            self._check_weights(packet)
        elif not packet.tensors:
            raise ProtocolError(f"an empty packet on {packet.leg}")
        elif (content := self.contents.get(packet.leg)) is not None:
            self._check_content(packet, content, sent, self.stacks[1 if by_client else 0])

    def _check_content(
        self, packet: Packet, content: Content, sent: Packet | None, receiver: Stack
    ) -> None:
        if content == "labels":
            self._check_labels(packet, sent)
        elif content == "inputs":
            self._check_inputs(packet)
        elif content in self._altered:
            self._check_unpacked(packet, receiver)
        elif content == "adapters":
            self._check_adapters(packet)
        else:
            self._check_activations(packet, content, sent)

    def _check_weights(self, packet: Packet) -> None:
        if self.changes is None or CODES not in packet.names:
            check_weights(packet, self.shared, self.named)
        elif not self.changes.fits(packet):
            raise ProtocolError("changes of weights that do not fit the shared segments")

    def _check_activations(self, packet: Packet, content: Content, sent: Packet | None) -> None:
        """Raise ProtocolError if a batch, or its gradients, do not have the shape at the cut."""
        wanted, rows = self._shape(content, packet.tensors[0]), len(packet.tensors[0])
        # a client may add a mask of real tokens to a batch of texts
        masked = self.texts and packet.leg.up and content == "cut"
        self._check_messages(packet, packet.tensors[:1] if masked else packet.tensors)
        for payload in packet.tensors[: 1 if masked else None]:
            if not self._is_batch_of(payload, wanted) or len(payload) != rows:
                raise ProtocolError(f"a payload of shape {tuple(payload.shape)} on {packet.leg}")
        if not 0 < rows <= self.rows and not self._adds_rows:
            raise ProtocolError(f"{rows} rows on {packet.leg}; at most {self.rows}")
        if sent is not None and len(sent.tensors[0]) != rows:
            raise ProtocolError(
                f"{rows} rows on {packet.leg} in answer to {len(sent.tensors[0])} rows"
            )

    def _check_messages(self, packet: Packet, payloads: Sequence[Tensor]) -> None:
        """Raise ProtocolError unless a packet has as many messages as the methods make."""
        split = packet.leg in self.scenario.crossings.training.gradients
        wanted = self.stacks[0].count_messages if split else 1
        if len(payloads) != wanted:
            raise ProtocolError(f"{len(payloads)} tensors on {packet.leg}; {wanted} are expected")

    def _shape(self, content: Content, payload: Tensor) -> tuple[int, ...]:
        """Return the shape that each sample must have; outputs of texts may have any."""
        if content == "outputs":
            return tuple(payload.shape[1:]) if self.texts else (self.classes,)
        return self.shapes[_ACTIVATIONS[content]]

    def _check_inputs(self, packet: Packet) -> None:
        """Raise ProtocolError unless a packet has pairs of the model's tokens and their mask."""
        pairs = [packet.tensors[at : at + 2] for at in range(0, len(packet.tensors), 2)]
        if len(pairs) > self.scenario.servers or not all(map(self._is_batch_of_tokens, pairs)):
            raise ProtocolError(f"a packet on {packet.leg} that is not a batch of tokens")

    def _is_batch_of_tokens(self, pair: Sequence[Tensor]) -> bool:
        if len(pair) != 2:
            return False
        tokens, real = pair
        return (
            tokens.ndim == 2
            and tokens.dtype == torch.int32
            and 0 < len(tokens) <= self.rows
            and tokens.shape[1] <= self.shapes[0][0]
            and bool(((tokens >= 0) & (tokens < self.vocabulary)).all())
            and real.shape == tokens.shape
            and real.dtype == torch.bool
        )

    def _check_adapters(self, packet: Packet) -> None:
        """Raise ProtocolError unless adapters, or their gradients, have this model's shape."""
        self._check_messages(packet, packet.tensors)
        for tensor in packet.tensors:
            if not tensor.is_floating_point() or tuple(tensor.shape) != self.adapters:
                raise ProtocolError(f"a payload of shape {tuple(tensor.shape)} on {packet.leg}")

    def _is_batch_of(self, tensor: Tensor, wanted: tuple[int, ...]) -> bool:
        """Return whether a batch has samples of the wanted shape; texts may be shorter."""
        if not tensor.is_floating_point() or tensor.ndim != 1 + len(wanted):
            return False
        exact = not self.texts or self.scenario.crossings.whole_model
        return tensor.shape[1:] == wanted if exact else tensor.shape[-1] == wanted[-1]

    def _check_unpacked(self, packet: Packet, receiver: Stack) -> None:
        """Raise ProtocolError if the receiver's methods cannot unpack a packet.

        Methods that need what they remember of their own step are not checked here.
        """
        step = Step(packet.client, packet.round, packet.step, self.scenario.seed, training=True)
        try:
            for message in receiver.split_messages(packet.leg, packet.tensors):
                receiver.unpack(packet.leg, message, step)
        except KeyError:
            return  # the method unpacks by its memory of its own forward pass, which is not here
        except (SimsplitError, RuntimeError, ValueError, IndexError, TypeError) as error:
            if isinstance(error.__cause__, KeyError):
                return  # the same of a plugin's method
            raise ProtocolError(
                f"a packet on {packet.leg} that no method reads ({type(error).__name__})"
            ) from None

    def _check_labels(self, packet: Packet, sent: Packet | None) -> None:
        """Raise ProtocolError unless labels match the batch sent, and are the run's classes."""
        good = len(packet.tensors) == 1 and packet.tensors[0].dtype == torch.int64
        if not good or (sent is not None and len(packet.tensors[0]) != len(sent.tensors[0])):
            raise ProtocolError("labels that do not match the batch that was sent")
        if not self.texts and not bool(
            ((packet.tensors[0] >= 0) & (packet.tensors[0] < self.classes)).all()
        ):
            raise ProtocolError(f"labels beyond the {self.classes} classes")


def _altered_by(stacks: Sequence[Stack]) -> frozenset[Content]:
    """Return the kinds of content that some method encodes or packs in a form of its own."""
    before = _any_overrides([each for stack in stacks for each in stack.smashed], "encode", "pack")
    after = _any_overrides([each for stack in stacks for each in stack.features], "encode", "pack")
    altered: dict[Content, bool] = {"cut": before, "adapters": before}
    altered |= {"features": after, "outputs": after}
    return frozenset(content for content, is_altered in altered.items() if is_altered)


def _any_overrides(methods: Sequence[Method], *hooks: str) -> bool:
    return any(
        getattr(type(method), hook) is not getattr(Method, hook)
        for method in methods
        for hook in hooks
    )


def check_weights(packet: Packet, learner: Learner, named: Mapping[str, Tensor]) -> None:
    """Raise ProtocolError unless a packet has the shared segments' weights.

    Optimizers' moments may come with them.
    """
    brought = dict(zip(packet.names, packet.tensors, strict=True))
    if not (named or brought):
        return  # no shared segment learns
    if len(brought) != len(packet.names) or not packet.names:
        raise ProtocolError("weights without names, or with one name twice")
    for name, tensor in brought.items():
        own = named.get(name)
        if own is None and not _is_moment(name, tensor, learner):
            raise ProtocolError(f"weights named {name[:80]}, which no client shares")
        if own is not None and (own.shape != tensor.shape or own.dtype != tensor.dtype):
            raise ProtocolError(f"weights {name} of another shape or type")
    if missing := named.keys() - brought.keys():
        raise ProtocolError(f"weights without {min(missing)}")


def _is_moment(name: str, tensor: Tensor, learner: Learner) -> bool:
    """Return whether a tensor is an optimizer's moment of one of the parameters."""
    first, index, slot = [*name.split(".", 2), "", ""][:3]
    if first != "optimizer" or not index.isdecimal() or int(index) >= len(learner.parameters):
        return False
    known = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", SLOW)
    parameter = learner.parameters[int(index)]
    return slot in known and tensor.shape == (() if slot == "step" else parameter.shape)
