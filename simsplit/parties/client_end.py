"""The client's end of a step: how it makes each leg's tensors, and what it does with what arrives.

An end knows nothing of the server beyond the packets it gets. Two tables name the functions that
make each leg and take it; a topology's own end may have others (see `simsplit.topologies`). Between
two turns a step waits as a `Pending`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError
from simsplit.legs import ClientId, Leg
from simsplit.machine import Autocast
from simsplit.methods.method import NoiseSource, Step
from simsplit.methods.stack import Stack
from simsplit.methods.tokens import Stock
from simsplit.packets import Packet
from simsplit.parties.changes import Changes
from simsplit.parties.learner import Learner, step_together
from simsplit.parties.private_learning import PrivateLearning, WeightNoise
from simsplit.parties.sample_gradients import SampleGradients
from simsplit.parties.sessions import Session, Sessions
from simsplit.parties.tally import Tally, count_plain_bytes
from simsplit.phases import TRAIN, Phase
from simsplit.seeds import isolate

Tensors = tuple[Tensor, ...]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class ClientParts:
    """A client's segments, methods and learners; learners may be shared between clients."""

    head: nn.Module
    tail: nn.Module | None
    """None if the server has it."""
    stack: Stack
    learners: tuple[Learner, ...]
    shared: Learner | None = None
    """The learner of the segments that are shared: handed over, or averaged."""
    moments_travel: bool = True
    """Whether optimizer moments are handed over with shared weights."""
    features: tuple[int, ...] = ()
    """Shape of the trunk's output per sample."""
    servers: int = 1
    """How many servers offer the same trunk; each gets as few messages as possible."""
    changes: Changes | None = None
    """The code of shared weights; None: they cross unchanged."""
    noise: WeightNoise | None = None
    """The noise of DP-SGD; None: the client learns without."""
    has_labels: bool = True
    """Whether the client knows its samples' labels; of several parties one does."""


@dataclass(slots=True)
class Pending:
    """The state of a step between two of the client's turns."""

    given: Batch
    """The batch before methods changed it."""
    step: Step
    phase: Phase
    learns: bool = True
    """Whether the client learns from the step; not if it only exposes packets to attacks."""
    share: float = 1.0
    """The part's share of the labels of its mini-batch, if that crosses in parts."""
    begins: bool = True
    """Whether it is the first part of its mini-batch."""
    ends: bool = True
    """Whether it is the last part, after which the client learns."""
    counted: bool = True
    """Whether the step counts in the round's figures; not if it is interleaved."""
    turn: int = 0
    """Index of the client's current turn."""
    over: bool = False
    """Whether the client has learned already, because its phase sends no gradients."""
    labels: Tensor = field(default_factory=lambda: torch.empty(0))
    context: Tensors = ()
    """Inputs of all segments beside the activations, such as masks."""
    sent: Tensor = field(default_factory=lambda: torch.empty(0))
    """The tensor that was sent, with its autograd graph."""
    arrived: Tensor | None = None
    """The features, as a leaf that collects the tail's gradient."""
    plain: Mapping[Leg, int] = field(default_factory=dict)
    """Bytes by leg that would be sent without methods."""
    session: Session | None = None
    """The session that the step is a pass of, if any."""
    at: tuple[int | None, int] = (None, 0)
    """That session's number, and the position in it."""
    samples: SampleGradients | None = None
    """The gradients of single samples, if the client learns by DP-SGD."""

    def beside(self, segment: str, x: Tensor) -> tuple[Any, ...]:
        """Return a segment's inputs beside the activations: masks, and in a session its cache."""
        return self.context if self.session is None else self.session.beside(segment, x)

    def weigh(self, loss: Tensor) -> Tensor:
        """Weight a loss by the part's share of its mini-batch."""
        return loss if self.share == 1.0 else loss * self.share


Makes = Mapping[Leg, Callable[[Any, Pending], Tensors]]
Takes = Mapping[Leg, Callable[[Any, Packet, Pending], None]]


@dataclass(eq=False)
class ClientEnd:
    """The client's side of a step, leg by leg."""

    number: ClientId
    parts: InitVar[ClientParts]
    loss: Loss
    _: KW_ONLY
    seed: int
    device: torch.device
    autocast: Autocast = nullcontext
    stock: Stock | None = None
    noise: NoiseSource = "cpu"
    stage: str = field(default=TRAIN, init=False)
    """The phase that the run is in."""
    tally: Tally = field(default_factory=Tally, init=False)
    sessions: Sessions = field(default_factory=Sessions, init=False)

    def __post_init__(self, parts: ClientParts) -> None:
        self.head, self.tail, self._stack = parts.head, parts.tail, parts.stack
        self.learners, self.features = parts.learners, parts.features
        self.servers, self.has_labels = parts.servers, parts.has_labels
        self.random = any(learner.may_draw for learner in self.learners)
        self.private = None if parts.noise is None else PrivateLearning(parts.noise)
        """Learning by DP-SGD, if the client learns so."""

    @property
    def stack(self) -> Stack:
        """The methods, in this client's turn."""
        self._stack.turn_to(self.number)
        return self._stack

    def open_step(self, round_number: int, number: int, phase: str, *, training: bool) -> Step:
        """Open the client's view of a step, for its methods."""
        at = (self.number, round_number, number, self.seed)
        return Step(
            *at,
            training=training,
            phase=phase,
            stage=self.stage,
            stock=self.stock,
            noise=self.noise,
        )

    @contextmanager
    def leave_untouched(self) -> Iterator[None]:
        """Open a context after which running statistics are restored."""
        with ExitStack() as untouched:
            for learner in self.learners:
                untouched.enter_context(learner.leave_untouched())
            yield

    def make(self, leg: Leg, pending: Pending) -> Packet:
        """Make the packet of a leg."""
        step, tensors = pending.step, self.makes[leg](self, pending)
        session, position = pending.at
        return Packet(
            *(self.number, leg, step.round, step.number, tensors),
            session=session,
            position=position,
        )

    def take(self, packet: Packet, pending: Pending) -> None:
        """Process a packet of training."""
        self.takes[packet.leg](self, packet, pending)

    def compute_outputs(self, packet: Packet, pending: Pending) -> Tensor:
        """Compute the model's outputs for returned features; nothing is learned."""
        with torch.no_grad(), self.autocast():
            arrived = self.stack.unpack(Leg.FEATURES, packet.tensors, pending.step)
            outputs = self.through_tail(self.stack.lift(arrived, pending.step), pending)
        with torch.no_grad():
            outputs = self.stack.read_outputs(outputs, pending.step)
        if pending.session is not None:
            outputs = outputs[:, -1]
        elif pending.labels.ndim > 1:  # a text's other tokens have nothing to be compared with
            outputs = outputs[pending.labels != IGNORED]
        return outputs.float()

    def through_tail(self, lifted: Tensor, pending: Pending) -> Tensor:
        """Run the tail on lifted features."""
        if self.tail is None:
            raise ProtocolError("this client's topology leaves the tail to the server")
        with self._record(self.tail, pending):
            out: Tensor = self.tail(lifted, *pending.beside("tail", lifted))
        return out

    def learn(self, pending: Pending) -> None:
        """End the step: take one optimizer step, unless a method refuses it.

        Gradients of a mini-batch's earlier parts are kept for the last one.
        """
        # What a session has cached was computed with the weights before this step.
        self.sessions.clear()
        if pending.counted:
            self.tally.add_reported(pending.step.figures)
        if self.private is not None and pending.samples is not None:
            self.private.gather(pending.samples, pending.labels, pending.share)
        if not pending.ends:
            return
        if self.private is not None:
            self.private.release(self.learners, pending.step)
        if pending.over or self.stack.accepts(self.head, pending.step):
            step_together(self.learners)
            return
        for learner in self.learners:
            learner.clear()

    def smash(self, pending: Pending) -> Tensors:
        """Run the head, and encode its output as smashed data."""
        for learner in self.learners:
            learner.train(pending.step.training)
        given, step, phase = pending.given, pending.step, pending.phase
        step.session = pending.session
        batch = self.stack.transform(given, step)
        pending.labels, pending.context, step.mask = batch.labels, batch.context, batch.mask
        if self.private is not None and pending.learns and step.training:
            if pending.begins:
                self.private.begin()
            pending.samples = SampleGradients(len(batch.labels))
        # Where no gradient returns and the head does not learn, nothing would use its graph.
        learned = torch.is_grad_enabled() and (phase.gradients or "head" in phase.learns)
        with self.autocast(), self._seed_dropout(step, "head"), self._keep_embedding(step):
            with (
                torch.set_grad_enabled(learned),
                # first, so that what a method makes of embeddings is no part of their layer
                self._record(self.head, pending),
                self.stack.embedding(self.head, step),
            ):
                made = self.head(batch.inputs, *pending.beside("head", batch.inputs))
            pending.sent = self.stack.encode(made, step)
        pending.plain = count_plain_bytes(given, made, self.features)
        # Values alone cross, as between machines; the graph stays in `pending.sent`.
        packed = self.stack.pack(Leg.SMASHED, pending.sent.detach(), step)
        return (*packed, *(batch.context if pending.session is None else pending.session.news))

    def send_labels(self, pending: Pending) -> Tensors:
        """Send the labels of the batch."""
        return (pending.labels,)

    def score(self, packet: Packet, pending: Pending) -> None:
        """Decode the features, compute the loss, and keep the features' gradient to be sent.

        In a phase whose gradients do not cross, the client learns at once.
        """
        features = self.stack.unpack(Leg.FEATURES, packet.tensors, pending.step)
        self._judge(features.detach().requires_grad_(), pending)

    def practise(self, pending: Pending) -> None:
        """Take a step without a server: a method stands in for the trunk."""
        self.smash(pending)
        with self.autocast(), self._seed_dropout(pending.step, "trunk"):
            made = self.stack.stand_in(pending.sent, pending.step)
        if made is None:
            phase = pending.step.phase
            raise ProtocolError(f"nothing crosses in {phase}, and no method is there for the trunk")
        self._judge(made, pending)

    def _judge(self, arrived: Tensor, pending: Pending) -> None:
        """Compute the loss of features, and its gradients."""
        step, phase = pending.step, pending.phase
        pending.arrived = arrived
        with self.autocast(), self._seed_dropout(step, "tail"):
            lifted = self.stack.lift(arrived, step)
            loss = self._score_outputs(lifted, pending) if pending.counted or phase.task else None
            with nullcontext() if pending.samples is None else pending.samples.pause():
                extra = self.stack.compute_tail_loss(step)
        # Methods have used these; kept longer, they would hold the graph of the whole step.
        step.outputs = step.task = step.embedded = None
        if pending.counted and pending.learns:
            self.tally.add_method_loss(extra, len(pending.labels))
        terms = [term for term in (loss, extra) if term is not None]
        whole = pending.weigh(sum(terms[1:], start=terms[0]))
        if not pending.learns:
            # Gradients of parameters would be added to those of the next step.
            whole.backward(inputs=[arrived])
        elif phase.gradients:  # a method's own way to the head is needed again in `carry_back`
            whole.backward(retain_graph=self.stack.reaches_head)
        else:
            pending.over = True
            if whole.requires_grad:
                learning = [
                    parameter
                    for learner in self.learners
                    for name, module in learner.modules.items()
                    for parameter in module.parameters()
                    if name in phase.learns and parameter.requires_grad
                ]
                whole.backward(inputs=learning)

    def answer(self, pending: Pending) -> Tensors:
        """Return the gradient of the features, in as many messages as methods make of it."""
        assert pending.arrived is not None, "the features arrive before their gradient leaves"
        assert pending.arrived.grad is not None, "the loss does not depend on the features"
        return self.answer_with(pending.arrived.grad, pending.step)

    def answer_with(self, grad: Tensor, step: Step) -> Tensors:
        """Return a gradient of features, in as many messages as methods make of it."""
        shares = self.stack.split_gradient(grad, step)
        # The weights stay here: with them the server could sum up the gradient itself.
        step.memo["weights"] = [share.weight for share in shares]
        packed = (self.stack.pack(Leg.FEATURES_GRAD, share.grad, step) for share in shares)
        return tuple(chain.from_iterable(packed))

    def carry_back(self, packet: Packet, pending: Pending) -> None:
        """Run the backward pass through the head, of the returned gradient and loss terms."""
        grad = self.recombine_reply(packet, pending.step)
        term = self.stack.compute_encode_loss(pending.step)
        self.tally.add_method_loss(term, len(pending.labels))
        term = None if term is None else pending.weigh(term)
        if pending.sent.requires_grad:
            roots = [pending.sent] if term is None else [pending.sent, term]
            torch.autograd.backward(roots, [grad] if term is None else [grad, None])

    def _score_outputs(self, lifted: Tensor, pending: Pending) -> Tensor:
        """Compute the task's loss; without a graph if the task is not learned."""
        with torch.set_grad_enabled(pending.phase.task):
            outputs = self.through_tail(lifted, pending)
            loss = self.stack.compute_task_loss(outputs, pending.labels, self.loss, pending.step)
            pending.step.outputs, pending.step.task = outputs, loss
        if pending.counted and pending.learns:
            predicted = self.stack.read_outputs(outputs.detach(), pending.step)
            self.tally.add(loss, predicted, pending.labels, begins=pending.begins)
        return loss

    def recombine_reply(self, packet: Packet, step: Step) -> Tensor:
        """Return the gradient of what was sent, summed up if `outgoing` made several messages."""
        weights = step.memo.get("weights", [1.0])
        messages = self.stack.split_messages(packet.leg, packet.tensors)
        if len(messages) != len(weights):
            raise ProtocolError(f"{len(weights)} gradients sent, {len(messages)} replies")
        grads = [self.stack.unpack(packet.leg, message, step) for message in messages]
        if weights == [1.0]:
            return grads[0]
        return torch.stack([w * g for w, g in zip(weights, grads, strict=True)]).sum(0)

    @contextmanager
    def _keep_embedding(self, step: Step) -> Iterator[None]:
        """Open a context that keeps what the head embeds, for methods that lead back to it."""
        tokens = getattr(self.head, "tokens", None)
        if not (step.training and self.stack.reaches_head and isinstance(tokens, nn.Module)):
            yield
            return

        def keep(module: nn.Module, ids: Tensors, made: Tensor) -> Tensor:
            # A frozen embedding gets a leaf, to which a method can still take gradients.
            made = made.float()
            step.embedded = made if made.requires_grad else made.detach().requires_grad_()
            return step.embedded

        handle = tokens.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()

    def _record(self, segment: nn.Module, pending: Pending) -> AbstractContextManager[None]:
        """Open a context that notes gradients of single samples, if the step needs them."""
        return nullcontext() if pending.samples is None else pending.samples.record(segment)

    def _seed_dropout(self, step: Step, segment: str) -> AbstractContextManager[object]:
        """Open a context in which dropout draws from this step's own random stream."""
        if not (self.random and step.training):
            return nullcontext()
        # Training proper adds no phase to the scope, so that its draws do not depend on others.
        phase = () if step.phase == "train" else (step.phase,)
        scope = ("dropout", segment, step.round, step.number, *phase)
        return isolate(self.seed, *scope, device=self.device)

    makes: ClassVar[Makes] = {
        Leg.SMASHED: smash,
        Leg.LABELS: send_labels,
        Leg.FEATURES_GRAD: answer,
    }
    """For each leg that the client may send: the function that makes its tensors."""
    takes: ClassVar[Takes] = {
        Leg.FEATURES: score,
        Leg.SMASHED_GRAD: carry_back,
    }
    """For each leg that it may receive in training: the function that processes it."""
