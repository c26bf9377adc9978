"""The client's side of the cut: head, tail, data, and what it does with what the server returns.

A client knows nothing of the server beyond the packets it gets. One training step is three calls,
between which its graph waits: `forward`, `finish`, `backward`. Under a vanilla cut it has no tail
and `finish` is left out; `labels` goes up beside the smashed data.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from simsplit.data.batches import Batch
from simsplit.data.samples import IGNORED
from simsplit.errors import ProtocolError
from simsplit.methods.base import Aside, Phase, Step, Stock
from simsplit.methods.stack import Stack
from simsplit.packets import ClientId, Leg, Packet
from simsplit.parties.feed import Exam, Feed
from simsplit.parties.learner import Learner, Travelling, step_together
from simsplit.parties.plain import Plain, plain_step
from simsplit.parties.precision import Autocast
from simsplit.parties.tally import Tally
from simsplit.poisons import Poison
from simsplit.seeds import isolated
from simsplit.states import below


@dataclass(slots=True)
class _Pending:
    """What a client keeps of a step while the server works on it."""

    step: Step
    sent: Tensor
    labels: Tensor
    context: tuple[Tensor, ...]
    """What all segments are given beside their input."""
    phase: Phase
    plain: Plain
    """Bytes of what would be sent without methods."""


@dataclass
class ClientParts:
    """What a client is made of; learners may be shared with other clients."""

    head: nn.Module
    tail: nn.Module | None
    stack: Stack
    learners: tuple[Learner, ...]
    shared: Learner | None = None
    """The one of the learners that is shared with other clients: handed over, or averaged."""
    moments_travel: bool = True
    """Whether optimizer moments travel with shared weights, or stay each client's own."""
    features: tuple[int, ...] = ()
    """What the trunk puts out per sample."""


class Client:
    """One client's half of every step."""

    def __init__(
        self,
        number: ClientId,
        parts: ClientParts,
        feeds: Mapping[str, Feed],
        exams: Mapping[str, Exam],
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        seed: int,
        device: torch.device,
        autocast: Autocast = nullcontext,
        poisons: Sequence[Poison] = (),
        stock: Stock | None = None,
    ) -> None:
        self.number = number
        self.head, self.tail, self.stack = parts.head, parts.tail, parts.stack
        self.learners = parts.learners
        self.shared = parts.shared
        self.moments_travel = parts.moments_travel
        self.features = parts.features
        self.feeds, self.exams = feeds, exams
        self.loss = loss
        self.seed = seed
        self.autocast = autocast
        self.poisons = poisons
        self.stock = stock
        self.tally = Tally()
        self.device = device
        self.taken = dict.fromkeys(feeds, 0)
        self.phase = Phase("train", rounds=0)
        self.random = any(learner.random for learner in self.learners)
        self._pending: _Pending | None = None

    def hear(self, announced: Sequence[tuple[Tensor, ...]]) -> None:
        """Take in what the methods announce before training."""
        self.stack.hear(announced)

    def enter(self, phase: Phase, lr_factor: float) -> None:
        """Start a round of `phase`."""
        self.phase = phase
        for learner in self.learners:
            learner.learn(phase.learns)
            learner.set_lr_factor(lr_factor)

    def forward(self, round_number: int) -> Packet:
        """Take the next batch through the head and encode it: SMASHED."""
        return self._begin(self.phase, round_number)

    def forward_aside(self, round_number: int) -> Packet | None:
        """The same of a step in between, if one is due."""
        aside = self.phase.aside
        if aside is None or self.taken[self.phase.source] % aside.every:
            return None
        return self._begin(aside.phase, round_number)

    def _begin(self, phase: Phase, round_number: int) -> Packet:
        number = self.taken[phase.source]
        self.taken[phase.source] += 1
        batch = self.feeds[phase.source].batch(number)
        step = self._step(round_number, number, phase=phase)
        step.labels = batch.labels
        return self._sent(self._smash(batch, step, phase))

    def labels(self) -> Packet:
        """Vanilla cut: the labels that belong to what `forward` sent."""
        pending = self._waiting()
        return self._sent(self._packet(Leg.LABELS, pending.step, (pending.labels,)))

    def finish(self, packet: Packet) -> Packet | None:
        """Decode the features, score them, and answer with their gradient (FEATURES_GRAD).

        In a phase whose gradients stay home the client learns here and now, and answers nothing.
        """
        pending = self._waiting()
        step, arrived = pending.step, self._arrived(packet, pending)
        told = pending.phase is self.phase  # a step in between is in no round's figures
        with self.autocast(), self._noise(step, "tail"):
            lifted = self.stack.lift(arrived, step)
            loss = self._scored(lifted, pending) if told or pending.phase.task else None
            extra = self.stack.tail_loss(step)
        if told:
            self.tally.add_method_loss(extra, len(pending.labels))
        terms = [term for term in (loss, extra) if term is not None]
        whole = sum(terms[1:], start=terms[0])
        if not pending.phase.gradients:
            if whole.requires_grad:
                whole.backward(inputs=self._learning(pending.phase))
            self._learn()
            return None
        whole.backward()
        return self._sent(self._answer(arrived, step))

    def _scored(self, lifted: Tensor, pending: _Pending) -> Tensor:
        """The task's loss; of a step in between nothing is told."""
        with torch.set_grad_enabled(pending.phase.task):
            outputs = self._tail()(lifted, *pending.context)
            loss = self.stack.task_loss(outputs, pending.labels, self.loss, pending.step)
        if pending.phase is self.phase:
            self.tally.add(loss, outputs, pending.labels)
        return loss

    def backward(self, packet: Packet) -> None:
        """Carry the returned gradient, and the methods' own terms, back through the head; learn."""
        pending = self._waiting()
        grad = self._reply(packet, pending.step)
        term = self.stack.loss(pending.step)
        self.tally.add_method_loss(term, len(pending.labels))
        if pending.sent.requires_grad:
            roots = [pending.sent] if term is None else [pending.sent, term]
            torch.autograd.backward(roots, [grad] if term is None else [grad, None])
        if pending.phase.task:
            self.tally.plain_bytes += pending.plain.whole
        if self.stack.accepts(self.head, pending.step):
            self._learn()
            return
        self._pending = None
        for learner in self.learners:
            learner.clear()

    def abandon(self, round_number: int) -> Packet:
        """Take the next batch as far as SMASHED and drop out: the client is as it was before."""
        with ExitStack() as untouched:
            for learner in self.learners:
                untouched.enter_context(learner.untouched())
            sent = self.forward(round_number)
        pending, self._pending = self._waiting(), None
        if pending.phase.task and pending.phase.gradients:
            self.tally.plain_bytes += pending.plain.abandoned
        return sent

    def probe(self, split: str, round_number: int, number: int) -> Packet:
        """Evaluation: SMASHED for batch `number` of a held-out split, nothing learned."""
        step = self._step(round_number, number, training=False)
        with torch.no_grad():
            return self._smash(self.exams[split].batch(number), step)

    def begin_text(self, texts: Batch, round_number: int, number: int) -> Packet:
        """Evaluation: SMASHED for texts that are to be gone on with, where their labels say."""
        step = self._step(round_number, number, training=False)
        told = (texts.inputs.to(self.device), texts.labels.to(self.device))
        with torch.no_grad():
            return self._smash(Batch(*told, texts.indices), step)

    def exposures(self, split: str) -> int:
        """In how many batches `expose` goes through a split."""
        return len(self.exams[split].cut)

    def expose(
        self, split: str, round_number: int, number: int, as_in_training: bool
    ) -> list[Packet]:
        """What it would send for batch `number` of a split, for attacks to be judged by: SMASHED,
        and under a vanilla cut LABELS. It is afterwards as it was before.
        """
        step = self._step(round_number, number, training=as_in_training)
        batch = self.exams[split].batch(number)
        with ExitStack() as untouched, torch.no_grad():
            for learner in self.learners:
                untouched.enter_context(learner.untouched())
            sent = [self._smash(batch, step)]
        if self.tail is None:
            sent.append(self._packet(Leg.LABELS, step, (batch.labels,)))
        return sent

    def expose_gradient(self, packet: Packet) -> Packet:
        """For attacks to be judged by: the gradient that it would answer the features of what it
        exposed last with. It is afterwards as it was before.
        """
        pending, self._pending = self._waiting(), None
        arrived = self._arrived(packet, pending)
        with ExitStack() as untouched:
            for learner in self.learners:
                untouched.enter_context(learner.untouched())
            with self.autocast(), self._noise(pending.step, "tail"):
                outputs = self._tail()(self.stack.lift(arrived, pending.step), *pending.context)
                args = (outputs, pending.labels, self.loss, pending.step)
                loss = self.stack.task_loss(*args)
            loss.backward(inputs=[arrived])
        return self._answer(arrived, pending.step)

    def own_words(
        self, split: str, round_number: int, number: int, as_in_training: bool
    ) -> Tensor | None:
        """For the judge alone: which words of what `expose` would send are its texts' own."""
        step = self._step(round_number, number, training=as_in_training)
        self.stack.transform(self.exams[split].batch(number), step)
        return self.stack.own(step)

    def predict(self, packet: Packet) -> Tensor:
        """Evaluation: the outputs for the features that came back."""
        pending = self._waiting()
        self._pending = None
        with torch.no_grad(), self.autocast():
            arrived = self.stack.unpack(Leg.FEATURES, packet.tensors, pending.step)
            outputs = self.stack.lift(arrived, pending.step)
            if self.tail is not None:
                outputs = self.tail(outputs, *pending.context)
        if pending.labels.ndim > 1:  # of texts, only where something is to come out
            outputs = outputs[pending.labels != IGNORED]
        return outputs.float()

    def hand_over(self, round_number: int) -> Packet:
        """The live tensors of every learner that is shared with other clients: HANDOVER."""
        names, tensors = self._travelling()
        made = Packet(self.number, Leg.HANDOVER, round_number, self._taken(), tensors, names)
        return self._sent(made)

    def receive(self, packet: Packet) -> None:
        """Take over what another's `hand_over` sent; nothing is copied onto itself."""
        for poison in self.poisons:
            poison.on_receive(packet)
        if self._travelling()[1] is packet.tensors:
            return
        if self.shared is not None:
            self.shared.take(dict(zip(packet.names, packet.tensors, strict=True)))

    def state(self) -> dict[str, Tensor]:
        """What this client alone owns: learners, moments that do not travel, where feeds stand."""
        taken = {f"taken.{source}": torch.tensor(count) for source, count in self.taken.items()}
        own = _prefixed("own", [learner.state() for learner in self._own()])
        own |= _prefixed("poison", [poison.state() for poison in self.poisons])
        if self.moments_travel or self.shared is None:
            return own | taken
        return own | _prefixed("moments", [self.shared.moments()]) | taken

    def shared_state(self) -> dict[str, Tensor]:
        """What this client shares with others and now holds."""
        return dict(zip(*self._travelling(), strict=True))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""
        for index, learner in enumerate(self._own()):
            learner.load(below(state, f"own.{index}."))
        for index, poison in enumerate(self.poisons):
            poison.load(below(state, f"poison.{index}."))
        if self.shared is not None:
            self.shared.load_moments(below(state, "moments.0."))
        self.taken = {source: int(state[f"taken.{source}"]) for source in self.taken}

    def load_shared(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `shared_state` gave."""
        if self.shared is not None:
            self.shared.load(state)

    def report(self) -> dict[str, float]:
        """This round's sums, and start new ones."""
        return self.tally.read() | self.stack.report()

    def steps_per_epoch(self, source: str) -> int:
        """Batches in one pass over this client's data from a source (private or public)."""
        return self.feeds[source].steps_per_epoch if source in self.feeds else 0

    def feed(self, source: str) -> Feed:
        """The stream of batches from a source."""
        return self.feeds[source]

    def aside(self) -> Aside | None:
        """What its methods want done in between the steps of training proper."""
        return self.stack.aside()

    def plan(self, rounds: int) -> list[Phase]:
        """The phases that this client's methods want before training proper."""
        return self.stack.plan(rounds)

    def _step(
        self, round_number: int, number: int, *, phase: Phase | None = None, training: bool = True
    ) -> Step:
        name = (phase or self.phase).name if training else "evaluate"
        at = (self.number, round_number, number, self.seed)
        return Step(*at, training=training, phase=name, stock=self.stock)

    def _learning(self, phase: Phase) -> list[nn.Parameter]:
        """What learns in a phase."""
        return [
            parameter
            for learner in self.learners
            for name, module in learner.modules.items()
            for parameter in module.parameters()
            if name in phase.learns and parameter.requires_grad
        ]

    def _smash(self, batch: Batch, step: Step, phase: Phase | None = None) -> Packet:
        for learner in self.learners:
            learner.train(step.training)
        given, batch = batch, self.stack.transform(batch, step)
        phase = phase or self.phase
        learned = torch.is_grad_enabled() and (phase.gradients or "head" in phase.learns)
        with self.autocast(), self._noise(step, "head"):
            with torch.set_grad_enabled(learned):
                made = self.head(batch.inputs, *batch.context)
            sent = self.stack.encode(made, step)
        plain = plain_step(given, made, self.features, vanilla=self.tail is None)
        told = (batch.labels, batch.context, phase, plain)
        self._pending = _Pending(step, sent, *told)
        packed = self.stack.pack(Leg.SMASHED, sent.detach(), step)
        return self._packet(Leg.SMASHED, step, (*packed, *batch.context))

    def _arrived(self, packet: Packet, pending: _Pending) -> Tensor:
        """The features, as a leaf that the tail's gradient is to reach."""
        features = self.stack.unpack(Leg.FEATURES, packet.tensors, pending.step)
        return features.detach().requires_grad_()

    def _answer(self, arrived: Tensor, step: Step) -> Packet:
        """The gradient of the features, in as many messages as methods make of it."""
        assert arrived.grad is not None, "the loss does not depend on the features"
        shares = self.stack.outgoing(arrived.grad, step)
        step.memo["weights"] = [share.weight for share in shares]
        packed = (self.stack.pack(Leg.FEATURES_GRAD, share.grad, step) for share in shares)
        return self._packet(Leg.FEATURES_GRAD, step, tuple(chain.from_iterable(packed)))

    def _reply(self, packet: Packet, step: Step) -> Tensor:
        """The gradient of what was sent, recombined if `outgoing` made several messages."""
        weights = step.memo.get("weights", [1.0])
        messages = self.stack.messages(Leg.SMASHED_GRAD, packet.tensors)
        if len(messages) != len(weights):
            raise ProtocolError(f"{len(weights)} gradients sent, {len(messages)} replies")
        grads = [self.stack.unpack(Leg.SMASHED_GRAD, message, step) for message in messages]
        if weights == [1.0]:
            return grads[0]
        return torch.stack([w * g for w, g in zip(weights, grads, strict=True)]).sum(0)

    def _learn(self) -> None:
        self._pending = None
        step_together(self.learners)

    def _tail(self) -> nn.Module:
        if self.tail is None:
            raise ProtocolError("under a vanilla cut the server holds the tail")
        return self.tail

    def _waiting(self) -> _Pending:
        if self._pending is None:
            raise ProtocolError(f"client {self.number} got a reply to nothing it sent")
        return self._pending

    def _packet(self, leg: Leg, step: Step, tensors: tuple[Tensor, ...]) -> Packet:
        return Packet(self.number, leg, step.round, step.number, tensors)

    def _sent(self, packet: Packet) -> Packet:
        """A packet as it leaves the client."""
        for poison in self.poisons:
            packet = poison.on_packet(packet)
        return packet

    def _noise(self, step: Step, segment: str) -> AbstractContextManager[object]:
        """Dropout draws from the global stream: lend it this step's own."""
        if not (self.random and step.training):
            return nullcontext()
        phase = () if step.phase == "train" else (step.phase,)
        scope = ("dropout", segment, step.round, step.number, *phase)
        return isolated(self.seed, *scope, device=self.device)

    def _travelling(self) -> Travelling:
        if self.shared is None:
            return (), ()
        return self.shared.travelling(moments=self.moments_travel)

    def _own(self) -> list[Learner]:
        return [learner for learner in self.learners if learner is not self.shared]

    def _taken(self) -> int:
        return sum(self.taken.values())


def _prefixed(name: str, states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{name}.{index}.{key}": tensor
        for index, state in enumerate(states)
        for key, tensor in state.items()
    }
