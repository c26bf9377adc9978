"""The packets of a step: the number, types and sizes of their tensors, and ranges of whole numbers.

All of it follows from scenario, topology and methods, so it is known before the first packet. What
methods pack is held against their wire form, then unpacked and held against the shape that was
packed. So nothing is allocated for a packet that has another form.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from simsplit.assembly.ownership import Ownership
from simsplit.data.samples import IGNORED
from simsplit.deploy.frames import is_in_range
from simsplit.deploy.wire_forms import Message, WireForms, packs
from simsplit.errors import OutOfRangeError, ProtocolError
from simsplit.methods.method import Method, Step
from simsplit.methods.stack import Stack, compute_sent_shapes
from simsplit.models.fresh import Place, Shape
from simsplit.models.language import CausalLM
from simsplit.models.served import Served
from simsplit.packets import ClientId, Packet
from simsplit.topologies.topology import Content

MOST_STACKED = 8
"""The most rows that methods may make of one sample; they need not say how many."""
_CHAINS: dict[Content, str] = {
    "cut": "smashed",
    "adapters": "smashed",
    "features": "features",
    "outputs": "features",
}
"""For each kind of payload, the methods that pack it."""


class PacketBounds:
    """The packets that the two sides of one run send each other in a step."""

    def __init__(self, owners: Ownership) -> None:
        self.scenario = scenario = owners.scenario
        self.classes, self.texts = owners.info.classes, owners.info.texts
        self.contents = scenario.crossings.contents
        self.stacks: tuple[Stack, Stack] = (owners.client_stack, owners.server_stack)
        self._owners = owners
        self._shapes: dict[Place | None, tuple[Shape, Shape]] = {
            None: compute_sent_shapes(scenario.method, owners.shapes)
        }
        self.rows = _count_rows(owners)
        """The most samples of a packet."""
        stacked = any(
            type(each).transform is not Method.transform for each in self.stacks[0].smashed
        )
        self.stacked = MOST_STACKED if stacked else 1
        """The most rows that methods make of one sample."""
        self.dtypes = _list_dtypes(owners)
        self.forms = WireForms(
            *(scenario.method, self.stacks, owners.shapes, self.dtypes), texts=self.texts
        )
        self.labels, self.longest = self.classes, 0
        if self.texts:
            added = sum(config.added_tokens for config in scenario.method)
            self.longest = owners.info.shape[0] + added + scenario.evaluate.max_new_tokens
            if isinstance(scenario.model, CausalLM):
                self.labels = scenario.text_reader().size
        self.longest_input = owners.shapes[0][0]
        self.adapters: tuple[int, ...] = ()
        self.vocabulary = 0
        if isinstance(owners.model.trunk, Served):
            self.adapters = tuple(owners.model.head().shape)
            self.vocabulary = owners.model.trunk.vocabulary

    def get_shapes(self, client: ClientId) -> tuple[Shape, Shape]:
        """Return the shapes of a sample at a client's cut and of its features, as they cross."""
        place = self._owners.depths.get_place(client)
        if place not in self._shapes:
            config = self._owners.depths.get_config(client)
            self._shapes[place] = compute_sent_shapes(
                self.scenario.method, config.compute_shapes(self._owners.info.shape)
            )
        return self._shapes[place]

    def check(self, packet: Packet, sent: Packet | None, *, by_client: bool) -> None:
        """Raise ProtocolError if a packet, which answers `sent`, does not fit its leg."""
        if packet.names or packet.sealed is not None:
            raise ProtocolError(f"names or a seal on {packet.leg}")
        if not packet.tensors:
            raise ProtocolError(f"an empty packet on {packet.leg}")
        content = self.contents.get(packet.leg)
        if content == "labels":
            self._check_labels(packet, sent)
        elif content == "inputs":
            self._check_inputs(packet)
        elif content is not None:
            self._check_payloads(packet, content, sent, self.stacks[1 if by_client else 0])

    def check_going_on(self, packet: Packet, earlier: Packet) -> None:
        """Raise ProtocolError unless a pass over texts goes on with those of the pass before it."""
        rows, before = len(packet.tensors[0]), len(earlier.tensors[0])
        left = packet.tensors[self.stacks[1].count_tensors(packet.leg) :]
        if packet.session is None or not self.forms.keeps_rows:
            return
        good = bool((left[0] < before).all()) if left else rows == before
        if rows > before or not good:
            raise ProtocolError(f"{rows} texts go on after a pass with {before}")

    def _check_payloads(
        self, packet: Packet, content: Content, sent: Packet | None, receiver: Stack
    ) -> None:
        """Raise ProtocolError if payloads, or their gradients, are not those of the run."""
        width, leg = receiver.count_tensors(packet.leg), packet.leg
        is_gradient = leg in self.scenario.crossings.training.gradients
        tensors, beside = packet.tensors, Message()
        if self.texts and content == "cut" and not is_gradient:
            tensors, beside = tensors[:width], tensors[width:]
        wanted = self.stacks[0].count_messages if is_gradient else 1
        if len(tensors) != width * wanted:
            raise ProtocolError(f"{len(tensors)} tensors on {leg}; {width * wanted} are expected")
        payloads = [
            self._open(packet, content, message, receiver)
            for message in receiver.split_messages(leg, tensors)
        ]
        for payload in payloads:
            if not self._has_shape(payload, content, packet.client):
                raise ProtocolError(f"a payload of shape {tuple(payload.shape)} on {leg}")
        if content != "adapters":
            self._check_rows(packet, payloads, sent)
        if beside:
            self._check_context(packet, payloads[0], beside)

    def _open(self, packet: Packet, content: Content, message: Message, receiver: Stack) -> Tensor:
        """Return the payload of a message; raise ProtocolError if methods did not make it."""
        leg, (payload, *_) = packet.leg, message
        chain: Sequence[Method] = getattr(receiver, _CHAINS[content])
        if not any(map(packs, chain)):
            if payload.dtype not in self.dtypes:
                raise ProtocolError(f"a payload of {payload.dtype} on {leg}")
            return payload
        self.forms.check(leg, message)
        step = Step(packet.client, packet.round, packet.step, self.scenario.seed, training=True)
        try:
            opened = receiver.unpack(leg, message, step)
        except Exception as error:  # whatever a method does with a foreign payload
            if isinstance(error, KeyError) or isinstance(error.__cause__, KeyError):
                # The method needs its memory of its own forward pass; the wire form is known.
                shapes = self.get_shapes(packet.client)
                shape = shapes[0 if _CHAINS[content] == "smashed" else 1]
                return payload.new_zeros(()).expand(len(payload), *shape)
            # the cause is kept: if a plugin's method cannot read the server's own packet either,
            # the fault is the plugin's
            raise ProtocolError(
                f"a packet on {leg} that no method reads ({type(error).__name__})"
            ) from error
        if not opened.is_floating_point() or not is_in_range(opened):
            raise OutOfRangeError(f"a packet on {leg} with values out of range")
        return opened

    def _has_shape(self, payload: Tensor, content: Content, client: ClientId) -> bool:
        """Return whether a payload has the shape of its content; texts may be shorter."""
        if content == "adapters":
            return tuple(payload.shape) == self.adapters
        if content == "outputs":
            wanted = tuple(payload.shape[1:]) if self.texts else (self.classes,)
        else:
            wanted = self.get_shapes(client)[0 if content == "cut" else 1]
        if payload.ndim != 1 + len(wanted) or 0 in payload.shape:
            return False
        if not self.texts or self.scenario.crossings.whole_model:
            return payload.shape[1:] == wanted
        return payload.shape[-1] == wanted[-1] and payload.shape[1] <= self.longest

    def _check_rows(self, packet: Packet, payloads: Sequence[Tensor], sent: Packet | None) -> None:
        """Raise ProtocolError unless all payloads have the rows of what they answer."""
        rows = len(payloads[0])
        if rows > (most := self.rows * self.stacked):
            raise ProtocolError(f"{rows} rows on {packet.leg}; at most {most}")
        # The gradients of one step are about one batch, in however many messages they come.
        if any(len(payload) != rows for payload in payloads):
            raise ProtocolError(f"messages of different sizes on {packet.leg}")
        if sent is not None and self.forms.keeps_rows and len(sent.tensors[0]) != rows:
            raise ProtocolError(
                f"{rows} rows on {packet.leg} in answer to {len(sent.tensors[0])} rows"
            )

    def _check_context(self, packet: Packet, payload: Tensor, beside: Message) -> None:
        """Raise ProtocolError unless a mask of real tokens, or the texts that go on, are beside."""
        if len(beside) != 1:
            raise ProtocolError(f"{len(beside)} tensors beside the payload on {packet.leg}")
        (context,) = beside
        if packet.session is not None and packet.position:
            good = context.dtype == torch.int64 and tuple(context.shape) == (len(payload),)
            # In order and each once: a text that goes on twice would need a second cache.
            good = good and bool((context >= 0).all()) and bool((context.diff() > 0).all())
        else:
            good = context.dtype == torch.bool and context.shape == payload.shape[:2]
            # A text without a real token has nothing to attend to, and may come out as NaN.
            good = good and bool(context.any(1).all())
        if not good:
            raise ProtocolError(f"a mask on {packet.leg} that does not fit the payload")

    def _check_inputs(self, packet: Packet) -> None:
        """Raise ProtocolError unless a packet has tokens of the model, and their mask."""
        if len(packet.tensors) != 2 or not self._is_batch_of_tokens(*packet.tensors):
            raise ProtocolError(f"a packet on {packet.leg} that is not a batch of tokens")

    def _is_batch_of_tokens(self, tokens: Tensor, real: Tensor) -> bool:
        return (
            tokens.ndim == 2
            and tokens.dtype == torch.int32
            and 0 < len(tokens) <= self.rows
            and 0 < tokens.shape[1] <= self.longest_input
            and bool(((tokens >= 0) & (tokens < self.vocabulary)).all())
            and real.shape == tokens.shape
            and real.dtype == torch.bool
            and bool(real.any(1).all())
        )

    def _check_labels(self, packet: Packet, sent: Packet | None) -> None:
        """Raise ProtocolError unless labels are the run's, and as many as the samples sent."""
        labels = packet.tensors[0]
        if len(packet.tensors) != 1 or labels.dtype != torch.int64:
            raise ProtocolError("labels that are not one tensor of whole numbers")
        rows = len(labels) if labels.ndim == (2 if self.texts else 1) else 0
        if not 0 < rows <= self.rows or 0 in labels.shape:
            raise ProtocolError(f"labels of shape {tuple(labels.shape)}")
        if sent is not None and self.forms.keeps_rows and rows != len(sent.tensors[0]):
            raise ProtocolError("labels that do not match the batch that was sent")
        known = (labels >= 0) & (labels < self.labels)
        learned = known.any() if self.texts else known.all()  # a loss without labels is NaN
        if not learned or not bool((known | (labels == IGNORED)).all()):
            raise ProtocolError(f"labels beyond the {self.labels} that there are")


def _count_rows(owners: Ownership) -> int:
    """Return the most samples of a packet, in training, evaluation or generation."""
    scenario = owners.scenario
    evaluate, public = scenario.evaluate, [each.public_batch_size or 0 for each in scenario.method]
    evaluated = evaluate.batch_size * len(evaluate.views.weights)
    written = evaluate.generated_texts if owners.info.texts else 0
    return max(scenario.train.batch_size, *public, evaluated, written)


def _list_dtypes(owners: Ownership) -> frozenset[torch.dtype]:
    """Return the types that segments of the model may put out."""
    segments = (owners.model.head, owners.model.trunk, owners.model.tail)
    every = (parameter for segment in segments for parameter in segment.parameters())
    weights = {parameter.dtype for parameter in every if parameter.is_floating_point()}
    # Under bf16, layers put out bfloat16 although their weights are float32.
    autocast = {torch.bfloat16} if owners.scenario.train.precision == "bf16" else set()
    return frozenset({torch.float32, *weights, *autocast})
