"""The packets of a step: the number, types and sizes of their tensors, and ranges of whole numbers.

All of it follows from scenario, topology and methods, so it is known before the first packet. What
methods pack is held against their wire form, then unpacked and held against the shape that was
packed. So nothing is allocated for a packet that has another form.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from simsplit.assembly.ownership import Ownership
from simsplit.data.samples import IGNORED
from simsplit.deploy.frames import is_in_range
from simsplit.errors import OutOfRangeError, ProtocolError
from simsplit.legs import ClientId, Leg
from simsplit.methods.method import Method, Step
from simsplit.methods.packed_forms import Forms, PackedForms, packs
from simsplit.methods.stack import Stack, compute_sent_shapes
from simsplit.models.fresh import Place, Shape
from simsplit.models.language import CausalLM
from simsplit.models.served_trunk import Served
from simsplit.packets import Packet, TensorForm
from simsplit.topologies.topology import Content

Message = tuple[Tensor, ...]
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

    def __init__(self, owners: Ownership, client: ClientId = 0) -> None:
        """Make the bounds of all clients that have the methods of this one."""
        self.scenario = scenario = owners.scenario
        self.methods = scenario.select_methods(client)
        self.classes, self.texts = owners.info.classes, owners.info.texts
        self.contents = scenario.crossings.contents
        self.stacks: tuple[Stack, Stack] = owners.get_stacks(client)
        self._owners = owners
        self._shapes: dict[Place | None, tuple[Shape, Shape]] = {
            None: compute_sent_shapes(self.methods, owners.shapes)
        }
        self.rows = _count_rows(owners)
        """The most samples of a packet."""
        kinds = {type(each).transform for each in self.stacks[0].smashed}
        self.stacked = MOST_STACKED if kinds - {Method.transform} else 1
        """The most rows that methods make of one sample."""
        self.dtypes = _list_dtypes(owners)
        self.forms = PackedForms([*self.methods.values()], self.stacks)
        self.keeps_rows = self.forms.keeps_rows(
            [TensorForm((2, *shape), torch.float32) for shape in owners.shapes]
        )
        """Whether a message has one row for each sample, as far as is known."""
        self._packed: dict[tuple[Leg, tuple[TensorForm, TensorForm]], Forms | None] = {}
        """By leg, and payload of one row: the forms of its message."""
        self.labels, self.longest = self.classes, 0
        self.added = sum(config.added_tokens for config in self.methods.values())
        """Tokens that methods add to a text."""
        if self.texts:
            self.longest = owners.info.shape[0] + self.added + scenario.evaluate.max_new_tokens
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
                self.methods, config.compute_shapes(self._owners.info.shape)
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
        if packet.session is None or not self.keeps_rows:
            return
        rows, before = len(packet.tensors[0]), len(earlier.tensors[0])
        left = packet.tensors[self.stacks[1].count_tensors(packet.leg) :]
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
        forms = tuple(map(TensorForm.of, message))
        # Forms that are not known are not checked; what is unpacked is.
        fits = any(each in (None, forms) for each in self._list_packed(leg, content, forms))
        if not fits or any(0 in each.shape for each in forms):
            raise _build_refusal(leg, forms)
        step = Step(packet.client, packet.round, packet.step, self.scenario.seed, training=True)
        try:
            opened = receiver.unpack(leg, message, step)
            again = self.stacks[not leg.up].pack_form(leg, TensorForm.of(opened))
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
        # A shape beside codes may be another one than theirs.
        if again not in (None, forms):
            raise _build_refusal(leg, forms)
        if not opened.is_floating_point() or not is_in_range(opened):
            raise OutOfRangeError(f"a packet on {leg} with values out of range")
        return opened

    def _list_packed(self, leg: Leg, content: Content, forms: Forms) -> Iterator[Forms | None]:
        """Yield the forms of messages that can begin as this one; None for unknown ones."""
        for one in self._list_payloads(content):
            if (leg, one) not in self._packed:
                self._packed[leg, one] = self.forms.compute(leg, *one)
            if (packed := self._packed[leg, one]) is None:
                yield None
                continue
            rows = forms[0].shape[0] // packed[0].shape[0] if forms[0].shape else 0
            # No form is computed for more rows than there can be.
            if forms[0] == _repeat(packed[0], rows) and rows <= self.rows * self.stacked:
                yield self.forms.compute(leg, *(_repeat(each, rows) for each in one))

    def _list_payloads(self, content: Content) -> Iterator[tuple[TensorForm, TensorForm]]:
        """Yield the payloads of one row that may cross, each with the output it is encoded from."""
        leg = 0 if _CHAINS[content] == "smashed" else 1
        sent, made = self._shapes[None][leg], self._owners.shapes[leg]
        fixed = not self.texts or bool(self.scenario.crossings.whole_model)
        for length in sent[:1] if fixed else range(1, self.longest + 1):
            shapes = (sent, made) if fixed else ((length, *sent[1:]), (length, *made[1:]))
            for dtype in self.dtypes:
                x, before = (TensorForm((1, *shape), dtype) for shape in shapes)
                yield x, before

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
        most, info = self.longest, self._owners.info
        if content == "cut" and info.parts:
            most = info.parts[client][0] + self.added  # a party has a field of each text
        return payload.shape[-1] == wanted[-1] and payload.shape[1] <= most

    def _check_rows(self, packet: Packet, payloads: Sequence[Tensor], sent: Packet | None) -> None:
        """Raise ProtocolError unless all payloads have the rows of what they answer."""
        rows = len(payloads[0])
        if rows > (most := self.rows * self.stacked):
            raise ProtocolError(f"{rows} rows on {packet.leg}; at most {most}")
        # The gradients of one step are about one batch, in however many messages they come.
        if any(len(payload) != rows for payload in payloads):
            raise ProtocolError(f"messages of different sizes on {packet.leg}")
        if sent is not None and self.keeps_rows and len(sent.tensors[0]) != rows:
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
        tokens, real = packet.tensors if len(packet.tensors) == 2 else (torch.empty(0),) * 2
        good = (
            tokens.ndim == 2
            and tokens.dtype == torch.int32
            and 0 < len(tokens) <= self.rows
            and 0 < tokens.shape[1] <= self.longest_input
            and bool(((tokens >= 0) & (tokens < self.vocabulary)).all())
            and real.shape == tokens.shape
            and real.dtype == torch.bool
            and bool(real.any(1).all())
        )
        if not good:
            raise ProtocolError(f"a packet on {packet.leg} that is not a batch of tokens")

    def _check_labels(self, packet: Packet, sent: Packet | None) -> None:
        """Raise ProtocolError unless labels are the run's, and as many as the samples sent."""
        labels = packet.tensors[0]
        if len(packet.tensors) != 1 or labels.dtype != torch.int64:
            raise ProtocolError("labels that are not one tensor of whole numbers")
        rows = len(labels) if labels.ndim == (2 if self.texts else 1) else 0
        if not 0 < rows <= self.rows or 0 in labels.shape:
            raise ProtocolError(f"labels of shape {tuple(labels.shape)}")
        if sent is not None and self.keeps_rows and rows != len(sent.tensors[0]):
            raise ProtocolError("labels that do not match the batch that was sent")
        known = (labels >= 0) & (labels < self.labels)
        learned = known.any() if self.texts else known.all()  # a loss without labels is NaN
        if not learned or not bool((known | (labels == IGNORED)).all()):
            raise ProtocolError(f"labels beyond the {self.labels} that there are")


def _build_refusal(leg: Leg, forms: Forms) -> ProtocolError:
    shapes = ", ".join(f"{each.shape} of {each.dtype}" for each in forms)
    return ProtocolError(f"a payload on {leg} that its methods do not make: {shapes[:200]}")


def _repeat(form: TensorForm, times: int) -> TensorForm:
    """Return the form of a tensor with so many times as many rows."""
    rows, *sample = form.shape
    return form._replace(shape=(rows * times, *sample))


def _count_rows(owners: Ownership) -> int:
    """Return the most samples of a packet, in training, evaluation or generation."""
    scenario = owners.scenario
    evaluate, public = scenario.evaluate, [each.public_batch_size or 0 for each in scenario.method]
    evaluated = evaluate.batch_size * len(evaluate.views.weights)
    written = evaluate.generated_texts if owners.info.texts else 0
    return max(scenario.train.count_most_rows(), *public, evaluated, written)


def _list_dtypes(owners: Ownership) -> frozenset[torch.dtype]:
    """Return the types that segments of the model may put out."""
    segments = (owners.model.head, owners.model.trunk, owners.model.tail)
    every = (parameter for segment in segments for parameter in segment.parameters())
    weights = {parameter.dtype for parameter in every if parameter.is_floating_point()}
    # Under bf16, layers put out bfloat16 although their weights are float32.
    autocast = {torch.bfloat16} if owners.scenario.train.precision == "bf16" else set()
    return frozenset({torch.float32, *weights, *autocast})
